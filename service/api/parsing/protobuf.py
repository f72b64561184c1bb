"""Protobuf: messages with the fields that are used, and their counts before any of it is built.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from service.problems import BodyTooLarge, MalformedBody

PROTOBUF = "application/x-protobuf"
TYPE = descriptor_pb2.FieldDescriptorProto
OTHERS = "other fields"
OTHER_FIELDS = 16  # for each of the most samples or points of a request; they have up to 8
UNKNOWN = (OTHERS, "")
SIZES = {1: 8, 5: 4}  # bytes of a field of these kinds
MOST_NUMBERS = 1 << 29  # of fields


class Field(NamedTuple):
    """Field of a message; `message`: of which it is, where it is one."""

    name: str
    number: int
    kind: int
    message: str = ""
    once: bool = False
    oneof: bool = False  # of the only one of a message, so that it is known whether it is there


Messages = Mapping[str, Sequence[Field]]


def message_classes(package: str, messages: Messages) -> dict[str, Any]:
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


# Types of plain fields in JSON, which may have numbers of 64 bits as text, and their defaults.
_JSON: dict[int, tuple[Any, Any]] = {
    TYPE.TYPE_STRING: (str, ""),
    TYPE.TYPE_BOOL: (bool, False),
    TYPE.TYPE_UINT32: (int, 0),
    **dict.fromkeys((TYPE.TYPE_INT64, TYPE.TYPE_FIXED64, TYPE.TYPE_SFIXED64), (int | str, 0)),
    TYPE.TYPE_DOUBLE: (float | str, 0.0),
}


def json_struct(messages: Messages, name: str) -> Any:
    """Return a struct that reads a message as JSON: names in camel case.

    What is not there is empty, or None for one of a `oneof`. Repeated bytes are any values, of
    which only the number counts.
    """
    fields: list[tuple[str, Any, Any]] = []
    for field in messages[name]:
        part: Any = json_struct(messages, field.message) if field.message else msgspec.Raw
        if field.message and field.once:
            fields.append((field.name, part, part()))
        elif field.message or field.kind == TYPE.TYPE_BYTES:
            fields.append((field.name, list[part], []))
        elif field.oneof:
            fields.append((field.name, _JSON[field.kind][0] | None, None))
        else:
            fields.append((field.name, *_JSON[field.kind]))
    return msgspec.defstruct(name, fields, rename="camel", frozen=True, gc=False)


def parse_message(kind: Any, content: bytes, name: str) -> Any:
    """Return a message of a class; raises MalformedBody, which gives the name."""
    message = kind()
    try:
        message.ParseFromString(content)
    except DecodeError as error:
        raise MalformedBody(f"body: expected a protobuf message {name}: {error}") from None
    return message


class PartCounts:
    """Counts what messages consist of as bytes: objects of it may take thirty times the space."""

    def __init__(self, messages: Messages, most: Mapping[str, int], advice: str) -> None:
        """most: fields of each name that a request may have for each sample that it may have.

        Of all fields without any of these names, known or not, it may have `OTHER_FIELDS`: a field
        has two bytes, and a look at each of some millions would take seconds. Messages are looked
        into if they have such a field. advice: to who sent too many.
        """
        self._most = {**most, OTHERS: OTHER_FIELDS}
        self._advice = advice
        counted = {name for name in messages if _counts(messages, most, name)}
        # Of each message the fields by number: the name that one counts under, and what to look
        # into.
        self._known = {
            message: {
                field.number: (
                    field.name if field.name in most else OTHERS,
                    field.message if field.message in counted else "",
                )
                for field in fields
            }
            for message, fields in messages.items()
        }

    def check(self, content: bytes, root: str, max_samples: int, name: str) -> None:
        """Count what a message of class `root` consists of; raises BodyTooLarge, MalformedBody.

        name: of the message, for the error.
        """
        limits = {name: most * max_samples for name, most in self._most.items()}
        counts = dict.fromkeys(limits, 0)

        def count(message: str, at: int, end: int) -> None:
            fields = self._known[message]
            for number, nested, start, stop in fields_of(content, at, end):
                name, inner = fields.get(number, UNKNOWN)
                counts[name] += 1
                if counts[name] > limits[name]:
                    raise BodyTooLarge(
                        f"expected at most {limits[name]} {name} in a request: {self._advice}"
                    )
                # One of another type than stated is no such field to the parser either.
                if nested and inner:
                    count(inner, start, stop)

        try:
            count(root, 0, len(content))
        except IndexError:
            raise MalformedBody(f"body: expected a protobuf message {name}") from None


def _counts(messages: Messages, most: Mapping[str, int], name: str) -> bool:
    """Whether a message has a field that is counted, or a message that has one."""
    return any(
        field.name in most or (field.message and _counts(messages, most, field.message))
        for field in messages[name]
    )


def fields_of(content: bytes, at: int, end: int) -> Iterator[tuple[int, bool, int, int]]:
    """Number, whether it has a length, start and end of each field of a message.

    Raises IndexError where it is none, or cut short, and for groups, which no message here has.
    """
    while at < end:
        tag = content[at]
        at += 1
        if tag > 127:  # which few are
            tag, at = varint(content, at - 1)
        kind = tag & 7
        start = at
        if kind == 2:  # of a length that is said
            size, start = varint(content, at)
            at = start + size
        elif kind == 0:
            _, at = varint(content, at)
        elif kind in SIZES:
            at += SIZES[kind]
        else:
            raise IndexError
        if at > end or not 8 <= tag < MOST_NUMBERS << 3:
            raise IndexError
        yield tag >> 3, kind == 2, start, at


def varint(content: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and where it ends."""
    byte = content[at]
    at += 1
    if byte < 128:
        return byte, at
    value = byte & 127
    shift = 7
    while byte > 127:
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if shift > 70:
            raise IndexError
    return value, at
