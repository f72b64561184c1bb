"""Prometheus remote write, 1.0 and 2.0: from the body of a request to its series.

Messages have the field numbers of the specifications
(https://prometheus.io/docs/specs/prw/remote_write_spec/ and .../remote_write_spec_2_0/), and no
fields that are not used here. Histograms and exemplars are counted, not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import cramjam

from service.api.parsing.protobuf import (
    PROTOBUF,
    TYPE,
    Field,
    Messages,
    PartCounts,
    message_classes,
    parse_message,
)
from service.api.parsing.series import (
    RefusedSeries,
    RemoteSeries,
    RemoteWrite,
    check_label_count,
    finite,
)
from service.problems import BodyTooLarge, MalformedBody, UnsupportedEncoding, UnsupportedMediaType
from service.wire import tags

# Histograms and exemplars are messages that are counted.
_MESSAGES: Messages = {
    "Label": [
        Field("name", 1, TYPE.TYPE_STRING, once=True),
        Field("value", 2, TYPE.TYPE_STRING, once=True),
    ],
    "Sample": [
        Field("value", 1, TYPE.TYPE_DOUBLE, once=True),
        Field("timestamp", 2, TYPE.TYPE_INT64, once=True),
    ],
    "Series1": [
        Field("labels", 1, TYPE.TYPE_BYTES),  # a `Label` each: nearly all are known as they are
        Field("samples", 2, TYPE.TYPE_MESSAGE, "Sample"),
        Field("exemplars", 3, TYPE.TYPE_BYTES),
        Field("histograms", 4, TYPE.TYPE_BYTES),
    ],
    "Request1": [Field("timeseries", 1, TYPE.TYPE_MESSAGE, "Series1")],
    "Series2": [
        Field("labels_refs", 1, TYPE.TYPE_UINT32),
        Field("samples", 2, TYPE.TYPE_MESSAGE, "Sample"),
        Field("histograms", 3, TYPE.TYPE_BYTES),
        Field("exemplars", 4, TYPE.TYPE_BYTES),
    ],
    "Request2": [
        Field("symbols", 4, TYPE.TYPE_STRING),
        Field("timeseries", 5, TYPE.TYPE_MESSAGE, "Series2"),
    ],
}
_CLASS = message_classes("moca.remote_write", _MESSAGES)
_COUNTS = PartCounts(
    _MESSAGES,
    {
        "timeseries": 1,
        "samples": 1,
        "histograms": 1,
        "exemplars": 1,
        "labels": tags.MAX_TAGS,
        "labels_refs": tags.MAX_TAGS,
        "symbols": 2 * tags.MAX_TAGS,
    },
    "set max_samples_per_send of the sender's queue_config",
)


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
    content = _decompressed(body, max_bytes)
    root = "Request1" if version is Version.V1 else "Request2"
    _COUNTS.check(content, root, max_samples)
    request = parse_message(_CLASS[root], content, version.value)
    count = sum(len(series.samples) for series in request.timeseries)
    # As a list, so that series share each string.
    symbols = list(request.symbols) if version is Version.V2 else []
    series: list[RemoteSeries] = []
    refusals: list[RefusedSeries] = []
    for message in request.timeseries:
        sent = message.labels if version is Version.V1 else message.labels_refs
        try:
            # Before as much as one of them is looked at.
            check_label_count(len(sent) if version is Version.V1 else len(sent) / 2)
        except ValueError as error:
            refusals.append(RefusedSeries(len(message.samples), f"a series: {error}"))
            continue
        samples = [(finite(sample.value), sample.timestamp) for sample in message.samples]
        if version is Version.V1:
            series.append(RemoteSeries(tuple(sent), samples, _texts))
        else:
            series.append(RemoteSeries(_referred(symbols, sent), samples))
    histograms = sum(len(message.histograms) for message in request.timeseries)
    exemplars = sum(len(message.exemplars) for message in request.timeseries)
    return RemoteWrite(series, refusals, count, histograms, exemplars)


def _texts(labels: tuple[bytes, ...]) -> tuple[str, ...]:
    """Read labels; raises MalformedBody."""
    read = [parse_message(_CLASS["Label"], label, "prometheus.Label") for label in labels]
    return tuple([text for label in read for text in (label.name, label.value)])


def _decompressed(body: bytes, limit: int) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(body)
        if size > limit:  # as declared, before anything is decompressed
            raise BodyTooLarge(f"the unpacked body has {size} bytes; at most {limit}")
        return bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError as error:
        raise MalformedBody(f"body: expected snappy's block format: {error}") from None


def _referred(symbols: Sequence[str], refs: Sequence[int]) -> tuple[str, ...]:
    try:
        labels = tuple([symbols[ref] for ref in refs])
    except IndexError:
        detail = f"labels_refs: expected less than the number of symbols, {len(symbols)}"
        raise MalformedBody(f"body: {detail}, got {max(refs)}") from None
    if len(labels) % 2:
        raise MalformedBody(f"body: labels_refs: expected pairs, got {len(labels)}")
    return labels
