"""Prometheus remote write, 1.0 and 2.0: from the body of a request to its series.

Messages have the field numbers of the specifications
(https://prometheus.io/docs/specs/prw/remote_write_spec/ and .../remote_write_spec_2_0/). A series
that is known is known by the bytes of its labels, which are not read then. Histograms and exemplars
are counted, not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import cramjam
from google.protobuf.message import DecodeError

from service.api.parsing.protobuf import (
    BYTES,
    DOUBLE,
    INT64,
    PROTOBUF,
    TEXT,
    UNSIGNED,
    Field,
    Schema,
)
from service.api.parsing.series import (
    Labels,
    RemoteWrite,
    Samples,
    finite,
    plain_texts,
    too_many_labels,
)
from service.problems import BodyTooLarge, MalformedBody, UnsupportedEncoding, UnsupportedMediaType
from service.wire.tags import MAX_TAGS

_schema = Schema(
    "moca.remote_write",
    {
        "Request1": [Field("timeseries", 1, "Series1")],
        "Series1": [
            Field("labels", 1, BYTES),  # a `Label` each
            Field("samples", 2, "Sample"),
            Field("exemplars", 3, BYTES),
            Field("histograms", 4, BYTES),
        ],
        "Label": [Field("name", 1, TEXT, once=True), Field("value", 2, TEXT, once=True)],
        "Request2": [Field("symbols", 4, TEXT), Field("timeseries", 5, "Series2")],
        "Series2": [
            Field("labels_refs", 1, UNSIGNED),
            Field("samples", 2, "Sample"),
            Field("histograms", 3, BYTES),
            Field("exemplars", 4, BYTES),
        ],
        "Sample": [
            Field("value", 1, DOUBLE, once=True),
            Field("timestamp", 2, INT64, once=True),
        ],
    },
    "set max_samples_per_send of the sender's queue_config",
)
_label = _schema.classes["Label"].FromString


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


def parse(body: bytes, version: Version, max_bytes: int, max_samples: int) -> RemoteWrite:
    """Return the content of a body; raises MalformedBody and BodyTooLarge.

    max_bytes: once decompressed. max_samples: of all series, and series in a request. Series with
    labels that no stream can have are refused one by one.
    """
    plain = version is Version.V1
    root = "Request1" if plain else "Request2"
    request = _schema.read(_decompressed(body, max_bytes), root, max_samples, version.value)
    count = len(request.timeseries)
    if count > max_samples:
        raise _schema.too_large(max_samples, "timeseries", count)
    samples = sum([len(one.samples) for one in request.timeseries])
    if samples > max_samples:
        raise _schema.too_large(max_samples, "samples", samples)
    symbols = [] if plain else list(request.symbols)  # once, so that series share each string
    series: list[tuple[Labels, Samples]] = []
    refusals: list[tuple[int, str]] = []
    histograms = 0
    exemplars = 0
    for one in request.timeseries:
        labels = one.labels if plain else one.labels_refs
        histograms += len(one.histograms)
        exemplars += len(one.exemplars)
        labelled = len(labels) if plain else len(labels) / 2
        if labelled > MAX_TAGS:  # none of them is looked at
            reason = too_many_labels(labelled)
            refusals.append((len(one.samples), f"a series: {reason}"))
            continue
        own = tuple(labels) if plain else _referred(symbols, labels)
        series.append((own, [(finite(each.value), each.timestamp) for each in one.samples]))
    texts = _texts if plain else plain_texts
    return RemoteWrite(series, refusals, samples, histograms, exemplars, texts)


def _texts(labels: Labels) -> tuple[str, ...]:
    """Read labels; raises MalformedBody."""
    try:
        read = [_label(label) for label in labels]
    except DecodeError:
        detail = "body: expected a protobuf message prometheus.Label, of text in UTF-8"
        raise MalformedBody(detail) from None
    return tuple([text for label in read for text in (label.name, label.value)])


def _decompressed(body: bytes, limit: int) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(body)
        if size > limit:  # as declared, before anything is decompressed
            raise BodyTooLarge(f"the unpacked body has {size} bytes; at most {limit}")
        return bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError as error:
        raise MalformedBody(f"body: expected snappy's block format: {error}") from None


def _referred(symbols: Sequence[str], refs: Any) -> tuple[str, ...]:
    try:
        texts = tuple([symbols[ref] for ref in refs])
    except IndexError:
        detail = f"labels_refs: expected less than the number of symbols, {len(symbols)}"
        raise MalformedBody(f"body: {detail}, got {max(refs)}") from None
    if len(texts) % 2:
        raise MalformedBody(f"body: labels_refs: expected pairs, got {len(texts)}")
    return texts
