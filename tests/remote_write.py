"""Remote writes as a Prometheus sends them, made with protobuf's own messages."""

from typing import Any, NamedTuple

import cramjam
import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from service import wire
from service.api.parsing.remote_write import Version

V1 = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
V2 = V1 | {"Content-Type": f"application/x-protobuf;proto={Version.V2.value}"}
TYPE = descriptor_pb2.FieldDescriptorProto


class Field(NamedTuple):
    """Field of a message; `message`: of which it is, where it is one."""

    name: str
    number: int
    kind: int
    message: str = ""
    once: bool = False
    oneof: bool = False  # of the only one of a message, so that it is known whether it is there


def message_classes(package: str, messages) -> dict[str, Any]:
    """Return the class of each message by its name."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto3"
    )
    for message, fields in messages.items():
        described = file.message_type.add(name=message)
        if any(field.oneof for field in fields):
            described.oneof_decl.add(name="only")
        for field in fields:
            label = TYPE.LABEL_OPTIONAL if field.once or field.oneof else TYPE.LABEL_REPEATED
            added = described.field.add(
                name=field.name, number=field.number, type=field.kind, label=label
            )
            if field.message:
                added.type_name = f".{package}.{field.message}"
            if field.oneof:
                added.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    classes = message_factory.GetMessageClassesForFiles([file.name], pool)
    return {name.rpartition(".")[2]: kind for name, kind in classes.items()}


CLASS = message_classes(
    "moca.remote_write",
    {
        "Label": [
            Field("name", 1, TYPE.TYPE_STRING, once=True),
            Field("value", 2, TYPE.TYPE_STRING, once=True),
        ],
        "Sample": [
            Field("value", 1, TYPE.TYPE_DOUBLE, once=True),
            Field("timestamp", 2, TYPE.TYPE_INT64, once=True),
        ],
        "Series1": [
            Field("labels", 1, TYPE.TYPE_BYTES),  # a `Label` each
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
    },
)


def raw(settings):
    """Settings as an `Ingest` has them."""
    return msgspec.Raw(wire.encode(settings))


def packed(message):
    return bytes(cramjam.snappy.compress_raw(message.SerializeToString()))


def version_1(*series):
    """Body of a request; series: (labels, [(value, ms)...])."""
    request = CLASS["Request1"]()
    for labels, samples in series:
        each = request.timeseries.add()
        for name, value in labels.items():
            label = CLASS["Label"](name=name, value=value)
            each.labels.append(label.SerializeToString())
        for value, ms in samples:
            each.samples.add(value=value, timestamp=ms)
    return packed(request)


def version_2(*series, histograms=()):
    request = CLASS["Request2"]()
    request.symbols.append("")
    for labels, samples in series:
        each = request.timeseries.add()
        for text in (text for pair in labels.items() for text in pair):
            if text not in request.symbols:
                request.symbols.append(text)
            each.labels_refs.append(list(request.symbols).index(text))
        for value, ms in samples:
            each.samples.add(value=value, timestamp=ms)
        each.histograms.extend(histograms)
    return packed(request)
