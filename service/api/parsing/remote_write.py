"""Prometheus remote write, 1.0 and 2.0: from the body of a request to its series.

Messages have the field numbers of the specifications
(https://prometheus.io/docs/specs/prw/remote_write_spec/ and .../remote_write_spec_2_0/). Their
bytes are passed over once, here: a series that is known is known by the bytes of its labels, and
objects for each of them would cost more than all else. Histograms and exemplars are counted, not
read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache

import cramjam

from service.api.parsing.protobuf import (
    LENGTH,
    OTHER_FIELDS,
    OTHERS,
    PROTOBUF,
    fields_of,
    varint,
)
from service.api.parsing.series import (
    Labels,
    RefusedSeries,
    RemoteWrite,
    Samples,
    finite,
    plain_texts,
    too_many_labels,
)
from service.problems import BodyTooLarge, MalformedBody, UnsupportedEncoding, UnsupportedMediaType
from service.wire.tags import MAX_TAGS

# The byte before a field has its number, and in three bits 2: it has a length, 1: eight bytes,
# 0: it is a number.
LABELS = 1 << 3 | 2  # one label, or references to all of them
REFERENCE = 1 << 3  # to one of them
SAMPLE = 2 << 3 | 2
VALUE = 1 << 3 | 1
TIMESTAMP = 2 << 3
SYMBOL = 4 << 3 | 2
LONGEST = 10  # bytes of a number
MOST_PIECES = 2 * MAX_TAGS + 2  # labels, or references, that are put together
# Parts that a request may have for each sample that it may have.
MOST = {
    "timeseries": 1,
    "samples": 1,
    "histograms": 1,
    "exemplars": 1,
    "labels": MAX_TAGS,
    "symbols": 2 * MAX_TAGS,
    OTHERS: OTHER_FIELDS,
}
_double = struct.Struct("<d").unpack_from
_more_to_come = bytes(range(128, 256))  # bytes of a number that are not its last one


class Version(Enum):
    """Of the protocol, with the name of its message."""

    V1 = "prometheus.WriteRequest"
    V2 = "io.prometheus.write.v2.Request"


def version_of(content_type: str, encoding: str) -> Version:
    """Return the version of a request; raises UnsupportedMediaType and UnsupportedEncoding."""
    kind, *parameters = (part.strip() for part in content_type.split(";"))
    named = dict(part.partition("=")[::2] for part in parameters)
    proto = named.get("proto", Version.V1.value).strip('"')
    if kind.lower() != PROTOBUF or proto not in {version.value for version in Version}:
        expected = " or ".join(f"{PROTOBUF};proto={version.value}" for version in Version)
        raise UnsupportedMediaType(f"Content-Type: expected {expected}, got {content_type[:200]!r}")
    if encoding.strip().lower() != "snappy":
        raise UnsupportedEncoding(f"Content-Encoding: expected snappy, got {encoding[:100]!r}")
    return Version(proto)


# Of each version the field of a series, and those in a series that are counted.
SERIES = {Version.V1: 1 << 3 | 2, Version.V2: 5 << 3 | 2}
COUNTED = {
    Version.V1: {3: "exemplars", 4: "histograms"},
    Version.V2: {3: "histograms", 4: "exemplars"},
}


def parse(body: bytes, version: Version, max_bytes: int, max_samples: int) -> RemoteWrite:
    """Return the content of a body; raises MalformedBody and BodyTooLarge.

    max_bytes: once decompressed. max_samples: of all series, and series in a request. Series with
    labels that no stream can have are refused one by one.
    """
    content = _decompressed(body, max_bytes)
    try:
        return _Walk(content, version, max_samples).write()
    except (IndexError, UnicodeDecodeError, struct.error):
        raise MalformedBody(f"body: expected a protobuf message {version.value}") from None


class _Walk:
    """One pass over the bytes of a request; IndexError where they are no message."""

    def __init__(self, content: bytes, version: Version, max_samples: int) -> None:
        self._content = content
        self._plain = version is Version.V1
        self._series_tag = SERIES[version]
        self._counted = COUNTED[version]
        self._limits = {name: most * max_samples for name, most in MOST.items()}
        self._counts = dict.fromkeys(MOST, 0)

    def write(self) -> RemoteWrite:
        """Return the series, and counts of what is not read."""
        content = self._content
        end = len(content)
        plain = self._plain
        first = self._series_tag
        found: list[tuple[bytes, int, Samples]] = []
        symbols: list[str] = []  # as a list, so that series share each string
        at = 0
        while at < end:
            tag = content[at]
            if tag == first:
                start, at = _span(content, at)
                self._count("timeseries")
                found.append(self._series(start, at))
            elif tag == SYMBOL and not plain:
                start, at = _span(content, at)
                self._count("symbols")
                symbols.append(content[start:at].decode())
            else:
                at = self._pass_over(at, end, {})
        if at > end:
            raise IndexError
        series: list[tuple[Labels, Samples]] = []
        refusals: list[RefusedSeries] = []
        for labels, count, samples in found:
            if count > (MAX_TAGS if plain else 2 * MAX_TAGS):  # none of them is looked at
                reason = too_many_labels(count if plain else count / 2)
                refusals.append(RefusedSeries(len(samples), f"a series: {reason}"))
            else:
                own = labels if plain else _referred(symbols, labels, count)
                series.append((own, samples))
        counts = self._counts
        return RemoteWrite(
            series,
            refusals,
            counts["samples"],
            counts["histograms"],
            counts["exemplars"],
            _texts if plain else plain_texts,
        )

    def _series(self, at: int, end: int) -> tuple[bytes, int, Samples]:
        """Return a series: the fields of its labels, how many there are, and its samples."""
        content = self._content
        labels = b""
        count = 0
        samples: Samples = []
        while at < end:
            tag = content[at]
            start = at
            if tag == SAMPLE:
                start, at = _span(content, at)
                samples.append(self._sample(start, at))
                continue
            if tag == LABELS:
                at, more = self._run(at, end)
                piece = content[start:at]
            elif tag == REFERENCE and not self._plain:
                _, at = varint(content, at + 1)
                more = 1
                piece = bytes((LABELS, at - start - 1)) + content[start + 1 : at]
            else:
                at = self._pass_over(at, end, self._counted)
                continue
            if count < MOST_PIECES:  # with more it is refused, and they would be copied as often
                labels += piece
            count += more
        if at > end:
            raise IndexError
        self._count("labels", count)
        self._count("samples", len(samples))
        if not self._plain:
            count = sum(len(part.translate(None, _more_to_come)) for part in _payloads(labels))
        return labels, count, samples

    def _run(self, at: int, end: int) -> tuple[int, int]:
        """Where labels that follow on each other end, and how many they are."""
        content = self._content
        count = 0
        while at < end and content[at] == LABELS:
            size = content[at + 1]
            at += 2
            if size > 127:
                size, at = varint(content, at - 1)
            at += size
            count += 1
        return at, count

    def _sample(self, at: int, end: int) -> tuple[float | None, int]:
        content = self._content
        value = 0.0
        timestamp = 0
        while at < end:
            tag = content[at]
            if tag == VALUE:
                (value,) = _double(content, at + 1)
                at += 9
            elif tag == TIMESTAMP:
                timestamp, size = _signed(content[at + 1 : min(end, at + 1 + LONGEST)])
                at += 1 + size
            else:
                at = self._pass_over(at, end, {})
        if at > end:
            raise IndexError
        return finite(value), timestamp

    def _pass_over(self, at: int, end: int, counted: Mapping[int, str]) -> int:
        """Count a field that is not read; return where it ends."""
        number, kind, _, stop = next(fields_of(self._content, at, end))
        self._count(counted.get(number, OTHERS) if kind == LENGTH else OTHERS)
        return stop

    def _count(self, name: str, more: int = 1) -> None:
        """Count parts of a request; raises BodyTooLarge."""
        count = self._counts[name] = self._counts[name] + more
        if count > self._limits[name]:
            raise BodyTooLarge(
                f"expected at most {self._limits[name]} {name} in a request: "
                "set max_samples_per_send of the sender's queue_config"
            )


def _span(content: bytes, at: int) -> tuple[int, int]:
    """Where the content of a field that has a length begins, and ends."""
    size = content[at + 1]
    at += 2
    if size > 127:
        size, at = varint(content, at - 1)
    return at, at + size


@lru_cache(4096)
def _signed(content: bytes) -> tuple[int, int]:
    """A number that may be negative, and how long it is: many series have samples of a time."""
    value, size = varint(content, 0)
    value &= (1 << 64) - 1
    return value - (1 << 64 if value >> 63 else 0), size


def _payloads(fields: bytes) -> Iterator[bytes]:
    for _, _, start, end in fields_of(fields, 0, len(fields)):
        yield fields[start:end]


def _texts(labels: Sequence[str] | bytes) -> tuple[str, ...]:
    """Read the fields of labels; raises MalformedBody."""
    assert isinstance(labels, bytes)
    texts: list[str] = []
    try:
        for label in _payloads(labels):
            pair = {1: "", 2: ""}
            for number, kind, start, end in fields_of(label, 0, len(label)):
                if kind == LENGTH and number in pair:
                    pair[number] = label[start:end].decode()
            texts += pair.values()
    except (IndexError, UnicodeDecodeError):
        detail = "body: expected a protobuf message prometheus.Label, of text in UTF-8"
        raise MalformedBody(detail) from None
    return tuple(texts)


def _decompressed(body: bytes, limit: int) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(body)
        if size > limit:  # as declared, before anything is decompressed
            raise BodyTooLarge(f"the unpacked body has {size} bytes; at most {limit}")
        return bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError as error:
        raise MalformedBody(f"body: expected snappy's block format: {error}") from None


def _referred(symbols: Sequence[str], labels: bytes, count: int) -> tuple[str, ...]:
    refs: list[int] = []
    for content in _payloads(labels):
        if content.isascii():  # numbers of a byte each
            refs += content
            continue
        at = 0
        while at < len(content):
            ref, at = varint(content, at)
            refs.append(ref)
    try:
        texts = tuple([symbols[ref] for ref in refs])
    except IndexError:
        detail = f"labels_refs: expected less than the number of symbols, {len(symbols)}"
        raise MalformedBody(f"body: {detail}, got {max(refs)}") from None
    if count % 2:
        raise MalformedBody(f"body: labels_refs: expected pairs, got {count}")
    return texts
