"""Protobuf: messages of the fields that are used, read by its own library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from service.problems import BodyTooLarge, MalformedBody
from service.wire.tags import MAX_TAGS

PROTOBUF = "application/x-protobuf"
# Parts for each of the most samples of a request: a label has up to four, a sample some more.
MOST_PARTS = 4 * MAX_TAGS + 16
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
        parts = sum(map(content.count, self._tags))
        if parts > MOST_PARTS * max_samples:
            raise self.too_large(MOST_PARTS * max_samples, "parts", parts)
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
