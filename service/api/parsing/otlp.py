"""OpenTelemetry metrics: from the body of an OTLP request to the series of a remote write.

Messages have the field numbers and names of the protocol
(https://opentelemetry.io/docs/specs/otlp/), and no fields that are not used here. Gauges and sums
become series. Attributes of resource and point become labels; `service.name` and
`service.instance.id` are called `job` and `instance`, as Prometheus calls them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from service.api.parsing.bodies import JSON, malformed
from service.api.parsing.protobuf import (
    ANYTHING,
    BOOL,
    DOUBLE,
    FIXED64,
    INT64,
    OTHER_FIELDS,
    PROTOBUF,
    SIGNED_FIXED64,
    TEXT,
    UNSIGNED,
    Field,
    Messages,
    varint_of,
)
from service.api.parsing.protobuf import OTHERS as OTHER_PARTS
from service.api.parsing.series import RefusedSeries, RemoteWrite, finite, too_many_labels
from service.problems import BodyTooLarge, UnsupportedMediaType
from service.wire import tags

NAMES = {"service.name": "job", "service.instance.id": "instance"}
# Attributes of a resource that tell of a program's start: with them it would begin other streams.
LEFT_OUT = ("process.", "telemetry.")
MESSAGE = "ExportMetricsServiceRequest"
NO_VALUE = 1  # flag of a point without a value
NS_PER_MS = 1_000_000
VALUES = ("string_value", "bool_value", "int_value", "double_value")
OTHERS = ("histogram", "exponential_histogram", "summary")
MAX_SAMPLES_ADVICE = "set send_batch_max_size of the collector's batch processor"
_NUMBERS = {"gauge": 5, "sum": 7, "histogram": 9, "exponential_histogram": 10, "summary": 11}
_messages = Messages(
    {
        "Request": [Field("resource_metrics", 1, "ResourceMetrics")],
        "ResourceMetrics": [
            Field("resource", 1, "Resource", once=True),
            Field("scope_metrics", 2, "ScopeMetrics"),
        ],
        "Resource": [Field("attributes", 1, "Attribute")],
        "ScopeMetrics": [Field("metrics", 2, "Metric")],
        "Metric": [
            Field("name", 1, TEXT, once=True),
            *(
                Field(name, number, "Others" if name in OTHERS else "Points", once=True)
                for name, number in _NUMBERS.items()
            ),
        ],
        "Points": [Field("data_points", 1, "Point")],
        "Others": [Field("data_points", 1, ANYTHING)],
        "Point": [
            Field("attributes", 7, "Attribute"),
            Field("time_unix_nano", 3, FIXED64, once=True),
            Field("as_double", 4, DOUBLE, oneof=True),
            Field("as_int", 6, SIGNED_FIXED64, oneof=True),
            Field("flags", 8, UNSIGNED, once=True),
        ],
        "Attribute": [
            Field("key", 1, TEXT, once=True),
            Field("value", 2, "Value", once=True),
        ],
        "Value": [
            Field("string_value", 1, TEXT, oneof=True),
            Field("bool_value", 2, BOOL, oneof=True),
            Field("int_value", 3, INT64, oneof=True),
            Field("double_value", 4, DOUBLE, oneof=True),
        ],
    },
    {
        "resource_metrics": 1,
        "scope_metrics": 1,
        "metrics": 1,
        "data_points": 1,
        "attributes": tags.MAX_TAGS,
        OTHER_PARTS: OTHER_FIELDS + 4 * tags.MAX_TAGS,  # an attribute has three
    },
    MAX_SAMPLES_ADVICE,
)
_decode: Any = msgspec.json.Decoder(_messages.structs["Request"]).decode


def media_of(content_type: str) -> str:
    """Return the media type of a request; raises UnsupportedMediaType."""
    media = content_type.partition(";")[0].strip().lower()
    if media not in {PROTOBUF, JSON}:
        raise UnsupportedMediaType(
            f"Content-Type: expected {PROTOBUF} or {JSON}, got {content_type[:200]!r}"
        )
    return media


def parse(body: bytes, media: str, max_points: int) -> RemoteWrite:
    """Return the content of a body as series; raises MalformedBody and BodyTooLarge.

    max_points: of all metrics. Points that no stream can have are refused one by one.
    """
    if media == JSON:
        request = _of_json(body, max_points)
    else:
        request = _messages.read(body, "Request", max_points, MESSAGE)
    write = RemoteWrite([], [], 0, 0, 0)
    samples = 0
    for resource in request.resource_metrics:
        # Read once: a resource may have as many attributes as all points together.
        common = _texts(
            {},
            (
                attribute
                for attribute in resource.resource.attributes
                if not attribute.key.startswith(LEFT_OUT)
            ),
        )
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                samples += _add(write, metric, common)
    if samples > max_points:
        raise BodyTooLarge(
            f"expected at most {max_points} data points, got {samples}: {MAX_SAMPLES_ADVICE}"
        )
    return write._replace(samples=samples)


def _of_json(body: bytes, max_points: int) -> Any:
    most = 2 * tags.MAX_TAGS * max_points  # an attribute is two objects
    count = body.count(b"{")
    if count > most:
        raise BodyTooLarge(
            f"expected at most {most} objects in a request, got {count}: {MAX_SAMPLES_ADVICE}"
        )
    try:
        body.decode()  # in fields that are not used, too
        return _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(f"expected an {MESSAGE}: {error}", "body") from None


def _add(write: RemoteWrite, metric: Any, common: Mapping[str, str]) -> int:
    """Add the points of a metric; returns how many there are.

    common: labels of the resource.
    """
    points = [*metric.gauge.data_points, *metric.sum.data_points]
    for point in points:
        try:
            labels = tuple(_labels(metric.name, common, point.attributes))
            sample = _value(point), _milliseconds(point)
        except (ValueError, OverflowError) as error:  # JSON has integers of any size
            write.refusals.append(RefusedSeries(1, f"{metric.name[:100]}: {error}"))
            continue
        write.series.append((labels, [sample]))
    others = sum(len(getattr(metric, name).data_points) for name in OTHERS)
    if others:
        reason = "a histogram or summary becomes no stream: filter it, or send a gauge or sum"
        write.refusals.append(RefusedSeries(others, f"{metric.name[:100]}: {reason}"))
    return len(points) + others


def _labels(name: str, common: Mapping[str, str], own: Iterable[Any]) -> Iterator[str]:
    """Yield names and values of a point's labels; its own attributes count before the resource's.

    Raises ValueError for too many, or without a name.
    """
    if not name:
        raise ValueError("expected a metric with a name")
    texts = _texts({tags.METRIC: name, **common}, own)
    if len(texts) > tags.MAX_TAGS:
        raise ValueError(too_many_labels(len(texts)))
    for pair in sorted(texts.items()):
        yield from pair


def _texts(texts: dict[str, str], attributes: Iterable[Any]) -> dict[str, str]:
    """Add attributes to labels, until these are too many, and return them.

    Attributes that are lists or maps are left out, and so is one called `__name__`.
    """
    for attribute in attributes:
        if len(texts) > tags.MAX_TAGS:
            break
        text = _text(attribute.value)
        if text is not None and attribute.key != tags.METRIC:  # the metric's name is its own
            texts[NAMES.get(attribute.key, attribute.key)] = text
    return texts


def _text(value: Any) -> str | None:
    for name in VALUES:
        member = getattr(value, name)
        if member is not None:
            return str(member).lower() if isinstance(member, bool) else str(member)
    return None


def _value(point: Any) -> float | None:
    """Return a point's value; None for those that are no numbers."""
    if point.flags & NO_VALUE:
        return None
    value = point.as_int if point.as_double is None else point.as_double
    if value is None:
        raise ValueError("expected a point with a value")
    return finite(float(value))


def _milliseconds(point: Any) -> int:
    ns = int(point.time_unix_nano)
    if ns <= 0:
        raise ValueError(f"expected the time of each point, got {ns}")
    return ns // NS_PER_MS


def answer(rejected: int, reason: str, media: str) -> bytes:
    """Return the answer to a request, of which so many points were rejected."""
    if media == JSON:
        partial = {"rejectedDataPoints": str(rejected), "errorMessage": reason}
        return msgspec.json.encode({"partialSuccess": partial} if rejected else {})
    if not rejected:
        return b""
    success = b"\x08" + varint_of(rejected) + _sized(2, reason.encode())
    return _sized(1, success)


def _sized(number: int, content: bytes) -> bytes:
    """Return a field that has a length."""
    return bytes([number << 3 | 2]) + varint_of(len(content)) + content
