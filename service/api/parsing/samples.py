"""Samples in the bodies of requests: remote write of Prometheus, metrics of OpenTelemetry.

Messages have the field numbers of the specifications, and no fields that are not used here
(https://prometheus.io/docs/specs/prw/remote_write_spec/ and .../remote_write_spec_2_0/,
https://opentelemetry.io/docs/specs/otlp/). Protobuf is read by its own library.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import cramjam
import msgspec
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from service.api.parsing.bodies import JSON, malformed, wrong_media
from service.api.parsing.series import (
    UNKNOWN,
    KnownSamples,
    KnownTargets,
    Labels,
    RemoteWrite,
    Samples,
    finite,
    plain_texts,
    too_many_labels,
)
from service.problems import BodyTooLarge, MalformedBody, UnsupportedEncoding
from service.wire import tags

PROTOBUF = "application/x-protobuf"
# Parts for each of the most samples of a request: a label has up to four, a sample some more.
MOST_PARTS = 4 * tags.MAX_TAGS + 16
LENGTH = 2  # kind of a field that has a length, in the byte before it
MORE = 0x80  # in a byte of a number that goes on
_TYPE = descriptor_pb2.FieldDescriptorProto


class Unread(msgspec.Struct, frozen=True, gc=False):
    """Any object of JSON: what is in it is left out."""


class Type(NamedTuple):
    """Type of a plain field. json: its type there, where numbers of 64 bits may be text."""

    number: int
    json: Any
    default: Any


TEXT = Type(_TYPE.TYPE_STRING, str, "")
BYTES = Type(_TYPE.TYPE_BYTES, Unread, None)  # of a message that is not read
BOOL = Type(_TYPE.TYPE_BOOL, bool, False)
UNSIGNED = Type(_TYPE.TYPE_UINT32, int, 0)
INT64 = Type(_TYPE.TYPE_INT64, int | str, 0)
FIXED64 = Type(_TYPE.TYPE_FIXED64, int | str, 0)
SIGNED_FIXED64 = Type(_TYPE.TYPE_SFIXED64, int | str, 0)
DOUBLE = Type(_TYPE.TYPE_DOUBLE, float | str, 0.0)


class Field(NamedTuple):
    """Field of a message; `type` is the name of a message where it is one."""

    name: str
    number: int
    type: Type | str
    once: bool = False
    oneof: bool = False  # of a message that has one of these


class Schema:
    """Messages by name. advice: to who sent too many."""

    def __init__(self, package: str, messages: Mapping[str, Sequence[Field]], advice: str) -> None:
        self.messages = messages
        self.classes = _classes(package, messages)
        self._advice = advice
        repeated = [
            field
            for fields in messages.values()
            for field in fields
            if not (field.once or field.oneof)
        ]
        tags = {field.number << 3 | LENGTH for field in repeated}
        # The library reads those that are longer than need be, too.
        self._tags = {bytes([tag]) for tag in tags}
        self._tags |= {bytes([tag | MORE, rest]) for tag in tags for rest in (0, MORE)}

    def read(self, content: bytes, root: str, max_samples: int, name: str) -> Any:
        """Return a message of type `root`; raises MalformedBody with its name, and BodyTooLarge.

        A message takes twenty times its bytes: those that parts begin with are counted before.
        """
        most = MOST_PARTS * max_samples
        # A short one cannot have so many: to count takes as long as to read all samples.
        parts = sum(map(content.count, self._tags)) if len(content) > most else 0
        if parts > most:
            raise self.too_large(most, "parts", parts)
        try:
            return self.classes[root].FromString(content)
        except DecodeError:
            raise MalformedBody(f"body: expected a protobuf message {name}") from None

    def too_large(self, most: int, what: str, count: int) -> BodyTooLarge:
        """Return the error of a request that has more of something than it may have."""
        detail = f"expected at most {most} {what} in a request, got {count}: {self._advice}"
        return BodyTooLarge(detail)


def _classes(package: str, messages: Mapping[str, Sequence[Field]]) -> dict[str, Any]:
    """Return the class of each message."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto3"
    )
    for message, fields in messages.items():
        described = file.message_type.add(name=message)
        if any(field.oneof for field in fields):
            described.oneof_decl.add(name="value")
        for field in fields:
            single = field.once or field.oneof
            added = described.field.add(
                name=field.name,
                number=field.number,
                label=_TYPE.LABEL_OPTIONAL if single else _TYPE.LABEL_REPEATED,
            )
            if isinstance(field.type, str):
                added.type = _TYPE.TYPE_MESSAGE
                added.type_name = f".{package}.{field.type}"
            else:
                added.type = field.type.number
            if field.oneof:
                added.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    classes = message_factory.GetMessageClassesForFiles([file.name], pool)
    return {message: classes[f"{package}.{message}"] for message in messages}


# --- remote write ---------------------------------------------------------------------------------

# A series that is known is known by the bytes of its labels, which are not read then. Nor are the
# messages of those that have a single sample, as Prometheus sends them: the samples of a request
# are read at once, from their bytes. Histograms and exemplars are counted, not read.

_remote_write = Schema(
    "moca.remote_write",
    {
        "Request1": [Field("timeseries", 1, BYTES)],  # a `Series1` each
        "Series1": [
            Field("labels", 1, BYTES),  # a `Label` each
            Field("samples", 2, "Sample"),
            Field("exemplars", 3, BYTES),
            Field("histograms", 4, BYTES),
        ],
        "Labels": [Field("labels", 1, "Label")],
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
_series = _remote_write.classes["Series1"]
_labels = _remote_write.classes["Labels"].FromString
# A sample of a value and a time in this century, which has 6 bytes, each after its tag; and one of
# 0, which is left out.
SAMPLE = [2 << 3 | LENGTH, 16, 1 << 3 | 1]
ZERO_SAMPLE = [2 << 3 | LENGTH, 7, 2 << 3]
TIME = 2 << 3
TIME_BYTES = 6
SAMPLE_BYTES = len(SAMPLE) + 8 + 1 + TIME_BYTES
ZERO_BYTES = len(ZERO_SAMPLE) + TIME_BYTES
SHIFTS = 7 * np.arange(TIME_BYTES)
GOES_ON = np.arange(TIME_BYTES) < TIME_BYTES - 1  # of its bytes
SHORT_BYTES = 1 << 20  # of a body that is read in some milliseconds, whatever it has


class Version(Enum):
    """Of the protocol, with the name of its message."""

    V1 = "prometheus.WriteRequest"
    V2 = "io.prometheus.write.v2.Request"


def version_of(content_type: str, encoding: str) -> Version:
    """Return the version of a request; raises UnsupportedMediaType and UnsupportedEncoding.

    encoding: of the body; empty: it is not named.
    """
    kind, *parameters = (part.strip() for part in content_type.split(";"))
    named = dict(part.partition("=")[::2] for part in parameters)
    proto = named.get("proto", Version.V1.value).strip('"')
    if kind.lower() != PROTOBUF or proto not in {version.value for version in Version}:
        expected = " or ".join(f"{PROTOBUF};proto={version.value}" for version in Version)
        raise wrong_media(expected, content_type)
    if (encoding or "snappy").strip().lower() != "snappy":
        raise UnsupportedEncoding(f"Content-Encoding: expected snappy, got {encoding[:100]!r}")
    return Version(proto)


def parse_known(
    body: bytes, version: Version, known: KnownTargets, max_bytes: int, max_samples: int
) -> KnownSamples | None:
    """Return the samples of a short body whose series have one each, and are all known.

    None of any other body, which `parse_write` reads. In the thread that answers: samples come from
    another at twice the cost.
    """
    if version is not Version.V1 or _size(body, max_bytes) > SHORT_BYTES:
        return None
    request = _message(body, version, max_bytes, max_samples)
    samples = _known_samples(list(request.timeseries), known)
    return None if UNKNOWN in samples.targets else samples


def parse_write(
    body: bytes, version: Version, known: KnownTargets, max_bytes: int, max_samples: int
) -> RemoteWrite:
    """Return the content of a body; raises MalformedBody and BodyTooLarge.

    max_bytes: once decompressed. max_samples: of all series, and series in a request. Series with
    labels that no stream can have are refused one by one.
    """
    plain = version is Version.V1
    request = _message(body, version, max_bytes, max_samples)
    parts = list(request.timeseries)
    if plain:
        targets, sizes, values, times = _known_samples(parts, known)
        columns = zip(parts, targets, sizes, values.tolist(), times.tolist(), strict=True)
        parts = [
            _series_of(part) if target is UNKNOWN else (part[:-size], [(finite(value), ms)])
            for part, target, size, value, ms in columns
        ]
    samples = sum([1 if isinstance(part, tuple) else len(part.samples) for part in parts])
    if samples > max_samples:
        raise _remote_write.too_large(max_samples, "samples", samples)
    symbols = [] if plain else list(request.symbols)  # once, so that series share each string
    series: list[tuple[Labels, Samples]] = []
    refusals: list[tuple[int, str]] = []
    histograms = 0
    exemplars = 0
    for part in parts:
        if isinstance(part, tuple):
            series.append(part)
            continue
        labels = part.labels if plain else part.labels_refs
        histograms += len(part.histograms)
        exemplars += len(part.exemplars)
        labelled = len(labels) if plain else len(labels) / 2
        if labelled > tags.MAX_TAGS:  # none of them is looked at
            reason = too_many_labels(labelled)
            refusals.append((len(part.samples), f"a series: {reason}"))
            continue
        own = _series(labels=labels).SerializeToString() if plain else _referred(symbols, labels)
        series.append((own, [(finite(each.value), each.timestamp) for each in part.samples]))
    texts = _label_texts if plain else plain_texts
    return RemoteWrite(series, refusals, samples, histograms, exemplars, texts)


def _message(body: bytes, version: Version, max_bytes: int, max_samples: int) -> Any:
    _size(body, max_bytes)
    try:
        content = bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError as error:
        raise _not_snappy(error) from None
    root = "Request1" if version is Version.V1 else "Request2"
    request = _remote_write.read(content, root, max_samples, version.value)
    if len(request.timeseries) > max_samples:
        raise _remote_write.too_large(max_samples, "timeseries", len(request.timeseries))
    return request


def _size(body: bytes, max_bytes: int) -> int:
    """Return the size of an unpacked body as declared, before anything is decompressed."""
    try:
        size: int = cramjam.snappy.decompress_raw_len(body)
    except cramjam.DecompressionError as error:
        raise _not_snappy(error) from None
    if size > max_bytes:
        raise BodyTooLarge(f"the unpacked body has {size} bytes; at most {max_bytes}")
    return size


def _not_snappy(error: Exception) -> MalformedBody:
    return MalformedBody(f"body: expected snappy's block format: {error}")


def _series_of(content: bytes) -> Any:
    try:
        return _series.FromString(content)
    except DecodeError:
        detail = f"body: expected a protobuf message {Version.V1.value}"
        raise MalformedBody(detail) from None


def _known_samples(parts: Sequence[bytes], known: KnownTargets) -> KnownSamples:
    """Return the sample of each series; its target is UNKNOWN where its message is to be read."""
    ends = b"".join([part[-SAMPLE_BYTES:].rjust(SAMPLE_BYTES) for part in parts])
    content = np.frombuffer(ends, np.uint8).reshape(-1, SAMPLE_BYTES)
    whole = (content[:, : len(SAMPLE)] == SAMPLE).all(1) & (content[:, -TIME_BYTES - 1] == TIME)
    zero = (content[:, -ZERO_BYTES:-TIME_BYTES] == ZERO_SAMPLE).all(1)
    values = content[:, len(SAMPLE) : -TIME_BYTES - 1].copy().view("<f8")[:, 0]
    values[~whole] = 0.0
    number = content[:, -TIME_BYTES:]
    plain = (whole | zero) & ((number >= MORE) == GOES_ON).all(1)
    sizes = np.where(plain, np.where(whole, SAMPLE_BYTES, ZERO_BYTES), 0).tolist()
    targets = [
        known.get(part[:-size], UNKNOWN) if size else UNKNOWN
        for part, size in zip(parts, sizes, strict=True)
    ]
    times = ((number & MORE - 1).astype(np.int64) << SHIFTS).sum(1)
    return KnownSamples(targets, sizes, values, times)


def _label_texts(labels: Labels) -> tuple[str, ...]:
    """Read labels; raises MalformedBody."""
    try:
        read = _labels(labels).labels
    except DecodeError:
        detail = "body: expected a protobuf message prometheus.Label, of text in UTF-8"
        raise MalformedBody(detail) from None
    return tuple([text for label in read for text in (label.name, label.value)])


def _referred(symbols: Sequence[str], refs: Any) -> tuple[str, ...]:
    try:
        texts = tuple([symbols[ref] for ref in refs])
    except IndexError:
        detail = f"labels_refs: expected less than the number of symbols, {len(symbols)}"
        raise MalformedBody(f"body: {detail}, got {max(refs)}") from None
    if len(texts) % 2:
        raise MalformedBody(f"body: labels_refs: expected pairs, got {len(texts)}")
    return texts


# --- OpenTelemetry --------------------------------------------------------------------------------

# Gauges and sums become series. Attributes of resource and point become labels; `service.name` and
# `service.instance.id` are called `job` and `instance`, as Prometheus calls them.

NAMES = {"service.name": "job", "service.instance.id": "instance"}
# Attributes of a resource that tell of a program's start: with them it would begin other streams.
LEFT_OUT = ("process.", "telemetry.")
METRICS = "ExportMetricsServiceRequest"
NO_VALUE = 1  # flag of a point without a value
NS_PER_MS = 1_000_000
VALUES = ("string_value", "bool_value", "int_value", "double_value")
OTHERS = ("histogram", "exponential_histogram", "summary")
_otlp = Schema(
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
    for name, fields in reversed([*_otlp.messages.items()]):  # parts come after their wholes
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


_decode_json = _json_decoder()


def media_of(content_type: str) -> str:
    """Return the media type of a request; raises UnsupportedMediaType."""
    media = content_type.partition(";")[0].strip().lower()
    if media not in {PROTOBUF, JSON}:
        raise wrong_media(f"{PROTOBUF} or {JSON}", content_type)
    return media


def parse_metrics(body: bytes, media: str, max_points: int) -> RemoteWrite:
    """Return the content of a body as series; raises MalformedBody and BodyTooLarge.

    max_points: of all metrics. Points that no stream can have are refused one by one.
    """
    if media == JSON:
        _check("objects", body.count(b"{"), 2 * tags.MAX_TAGS * max_points)  # two of an attribute
        try:
            body.decode()  # in fields that are not used, too
            request = _decode_json(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise malformed(f"expected an {METRICS}: {error}", "body") from None
    else:
        request = _otlp.read(body, "Request", max_points, METRICS)
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
        common = _attribute_texts(
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
        raise _otlp.too_large(most, what, count)


def _add(write: RemoteWrite, metric: Any, common: Mapping[str, str]) -> None:
    """Add the points of a metric. common: labels of the resource."""
    points = [*metric.gauge.data_points, *metric.sum.data_points]
    for point in points:
        try:
            labels = tuple(_point_labels(metric.name, common, point.attributes))
            value = _value(point)
            ns = int(point.time_unix_nano)
            if ns <= 0:
                raise ValueError(f"expected the time of each point, got {ns}")
        except (ValueError, OverflowError) as error:  # JSON has integers of any size
            write.refusals.append((1, f"{metric.name[:100]}: {error}"))
            continue
        write.series.append((labels, [(value, ns // NS_PER_MS)]))
    others = sum(len(getattr(metric, name).data_points) for name in OTHERS)
    if others:
        reason = "a histogram or summary becomes no stream: filter it, or send a gauge or sum"
        write.refusals.append((others, f"{metric.name[:100]}: {reason}"))


def _point_labels(name: str, common: Mapping[str, str], own: Iterable[Any]) -> Iterator[str]:
    """Yield names and values of a point's labels; its own attributes count before the resource's.

    Raises ValueError for too many, or without a name.
    """
    if not name:
        raise ValueError("expected a metric with a name")
    texts = _attribute_texts({tags.METRIC: name, **common}, own)
    if len(texts) > tags.MAX_TAGS:
        raise ValueError(too_many_labels(len(texts)))
    for pair in sorted(texts.items()):
        yield from pair


def _attribute_texts(texts: dict[str, str], attributes: Iterable[Any]) -> dict[str, str]:
    """Add attributes to labels, until these are too many, and return them.

    Attributes that are lists or maps are left out, and so is one called `__name__`.
    """
    for attribute in attributes:
        if len(texts) > tags.MAX_TAGS:
            break
        text = _attribute_text(attribute.value)
        if text is not None and attribute.key != tags.METRIC:  # the metric's name is its own
            texts[NAMES.get(attribute.key, attribute.key)] = text
    return texts


def _attribute_text(value: Any) -> str | None:
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


def metrics_answer(rejected: int, reason: str, media: str) -> bytes:
    """Return the answer to a request, of which so many points were rejected."""
    if media == JSON:
        partial = {"rejectedDataPoints": str(rejected), "errorMessage": reason}
        return msgspec.json.encode({"partialSuccess": partial} if rejected else {})
    if not rejected:
        return b""
    partial_success = {"rejected_data_points": rejected, "error_message": reason}
    encoded: bytes = _otlp.classes["Response"](partial_success=partial_success).SerializeToString()
    return encoded
