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
    BOOL,
    BYTES,
    DOUBLE,
    FIXED64,
    INT64,
    PROTOBUF,
    SIGNED_FIXED64,
    TEXT,
    UNSIGNED,
    Field,
    Schema,
)
from service.api.parsing.series import RemoteWrite, finite, too_many_labels
from service.problems import UnsupportedMediaType
from service.wire import tags

NAMES = {"service.name": "job", "service.instance.id": "instance"}
# Attributes of a resource that tell of a program's start: with them it would begin other streams.
LEFT_OUT = ("process.", "telemetry.")
MESSAGE = "ExportMetricsServiceRequest"
NO_VALUE = 1  # flag of a point without a value
NS_PER_MS = 1_000_000
VALUES = ("string_value", "bool_value", "int_value", "double_value")
OTHERS = ("histogram", "exponential_histogram", "summary")
_schema = Schema(
    "moca.otlp",
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
            Field("gauge", 5, "Points", once=True),
            Field("sum", 7, "Points", once=True),
            Field("histogram", 9, "Others", once=True),
            Field("exponential_histogram", 10, "Others", once=True),
            Field("summary", 11, "Others", once=True),
        ],
        "Points": [Field("data_points", 1, "Point")],
        "Others": [Field("data_points", 1, BYTES)],
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
        "Response": [Field("partial_success", 1, "PartialSuccess", once=True)],
        "PartialSuccess": [
            Field("rejected_data_points", 1, INT64, once=True),
            Field("error_message", 2, TEXT, once=True),
        ],
    },
    "set send_batch_max_size of the collector's batch processor",
)


class _JsonMessage(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A message that came as JSON."""

    def HasField(self, name: str) -> bool:
        """Whether a field is there, as messages of protobuf say it."""
        return getattr(self, name) is not None


def _json_decoder() -> Any:
    """Return what reads a request in JSON, into structs with the members of the messages."""
    structs: dict[str, Any] = {}
    for name, fields in reversed([*_schema.messages.items()]):  # parts come after their wholes
        members: list[tuple[str, Any, Any]] = []
        for field in fields:
            is_message = isinstance(field.type, str)
            part: Any = structs[field.type] if is_message else field.type.json
            if field.oneof:
                members.append((field.name, part | None, None))
            elif field.once:
                members.append((field.name, part, part() if is_message else field.type.default))
            else:
                members.append((field.name, list[part], []))
        structs[name] = msgspec.defstruct(name, members, bases=(_JsonMessage,), frozen=True)
    return msgspec.json.Decoder(structs["Request"]).decode


_decode = _json_decoder()


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
        request = _schema.read(body, "Request", max_points, MESSAGE)
    _check("resources", len(request.resource_metrics), max_points)
    scopes = [scope for one in request.resource_metrics for scope in one.scope_metrics]
    _check("scopes", len(scopes), max_points)
    metrics = [metric for scope in scopes for metric in scope.metrics]
    _check("metrics", len(metrics), max_points)
    kinds = ("gauge", "sum", *OTHERS)
    samples = sum(len(getattr(metric, kind).data_points) for metric in metrics for kind in kinds)
    _check("data points", samples, max_points)
    write = RemoteWrite([], [], samples, 0, 0)
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
                _add(write, metric, common)
    return write


def _check(what: str, count: int, most: int) -> None:
    if count > most:
        raise _schema.too_large(most, what, count)


def _of_json(body: bytes, max_points: int) -> Any:
    most = 2 * tags.MAX_TAGS * max_points  # an attribute is two objects
    _check("objects", body.count(b"{"), most)
    try:
        body.decode()  # in fields that are not used, too
        return _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(f"expected an {MESSAGE}: {error}", "body") from None


def _add(write: RemoteWrite, metric: Any, common: Mapping[str, str]) -> None:
    """Add the points of a metric. common: labels of the resource."""
    points = [*metric.gauge.data_points, *metric.sum.data_points]
    for point in points:
        try:
            labels = tuple(_labels(metric.name, common, point.attributes))
            sample = _value(point), _milliseconds(point)
        except (ValueError, OverflowError) as error:  # JSON has integers of any size
            write.refusals.append((1, f"{metric.name[:100]}: {error}"))
            continue
        write.series.append((labels, [sample]))
    others = sum(len(getattr(metric, name).data_points) for name in OTHERS)
    if others:
        reason = "a histogram or summary becomes no stream: filter it, or send a gauge or sum"
        write.refusals.append((others, f"{metric.name[:100]}: {reason}"))


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
        if value.HasField(name):
            member = getattr(value, name)
            return str(member).lower() if isinstance(member, bool) else str(member)
    return None


def _value(point: Any) -> float | None:
    """Return a point's value; None for those that are no numbers."""
    if point.flags & NO_VALUE:
        return None
    for name in ("as_double", "as_int"):
        if point.HasField(name):
            return finite(float(getattr(point, name)))
    raise ValueError("expected a point with a value")


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
    partial_success = {"rejected_data_points": rejected, "error_message": reason}
    encoded: bytes = _schema.classes["Response"](
        partial_success=partial_success
    ).SerializeToString()
    return encoded
