"""Protobuf: messages with the fields that are used, as structs that JSON gives as well.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from service.problems import BodyTooLarge, MalformedBody

PROTOBUF = "application/x-protobuf"
OTHERS = "other fields"
OTHER_FIELDS = 16  # for each of the most samples or points of a request; they have up to 8
NUMBER = 0  # kinds of fields in a message
EIGHT_BYTES = 1
LENGTH = 2
SIZES = {EIGHT_BYTES: 8, 5: 4}  # bytes of a field of these kinds
MOST_NUMBERS = 1 << 29  # of fields


class Type(NamedTuple):
    """Type of a plain field: its kind, its type in JSON, its default, and how it is read.

    JSON may have numbers of 64 bits as text.
    """

    kind: int
    json: Any
    default: Any
    read: Callable[[bytes, int, int], Any]


def _packed(form: str) -> Callable[[bytes, int, int], Any]:
    unpack = struct.Struct(form).unpack_from
    return lambda content, start, _: unpack(content, start)[0]


def _signed(content: bytes, start: int, _: int) -> int:
    value = varint(content, start)[0] & (1 << 64) - 1
    return value - (1 << 64 if value >> 63 else 0)


TEXT = Type(LENGTH, str, "", lambda content, start, stop: content[start:stop].decode())
ANYTHING = Type(LENGTH, msgspec.Raw, None, lambda *_: msgspec.Raw())  # of which the number counts
BOOL = Type(NUMBER, bool, False, lambda content, start, _: varint(content, start)[0] > 0)
UNSIGNED = Type(NUMBER, int, 0, lambda content, start, _: varint(content, start)[0])
INT64 = Type(NUMBER, int | str, 0, _signed)
FIXED64 = Type(EIGHT_BYTES, int | str, 0, _packed("<Q"))
SIGNED_FIXED64 = Type(EIGHT_BYTES, int | str, 0, _packed("<q"))
DOUBLE = Type(EIGHT_BYTES, float | str, 0.0, _packed("<d"))


class Field(NamedTuple):
    """Field of a message; `type` is the name of a message where it is one."""

    name: str
    number: int
    type: Type | str
    once: bool = False
    oneof: bool = False  # None where it is not there


class Messages:
    """Reads messages into structs, and bounds what they consist of: structs take thirty times it.

    most: fields of each name that a request may have for each sample that it may have; OTHERS: of
    all without any of these names, known or not, as a field has two bytes, and a look at each of
    some millions would take seconds. advice: to who sent too many.
    """

    def __init__(
        self, messages: Mapping[str, Sequence[Field]], most: Mapping[str, int], advice: str
    ) -> None:
        self._most = most
        self._advice = advice
        self._fields = {
            message: {field.number: field for field in fields}
            for message, fields in messages.items()
        }
        self.structs: dict[str, Any] = {}
        for name in messages:
            self._define(name)

    def _define(self, name: str) -> Any:
        """Return the struct of a message, whose names in JSON are in camel case."""
        fields: list[tuple[str, Any, Any]] = []
        for field in self._fields[name].values():
            part: Any = (
                field.type.json if isinstance(field.type, Type) else self._define(field.type)
            )
            if field.oneof:
                fields.append((field.name, part | None, None))
            elif not field.once:
                fields.append((field.name, list[part], []))
            else:
                blank = field.type.default if isinstance(field.type, Type) else part()
                fields.append((field.name, part, blank))
        if name not in self.structs:
            kind = msgspec.defstruct(name, fields, rename="camel", frozen=True, gc=False)
            self.structs[name] = kind
        return self.structs[name]

    def read(self, content: bytes, root: str, max_samples: int, name: str) -> Any:
        """Return a message of type `root`; raises BodyTooLarge, and MalformedBody with the name."""
        limits = {part: most * max_samples for part, most in self._most.items()}
        try:
            return self._message(content, root, 0, len(content), limits, Counter())
        except (IndexError, UnicodeDecodeError, struct.error):
            raise MalformedBody(f"body: expected a protobuf message {name}") from None

    def _message(
        self,
        content: bytes,
        type_: str,
        at: int,
        end: int,
        limits: Mapping[str, int],
        counts: Counter[str],
    ) -> Any:
        values: dict[str, Any] = {}
        for number, kind, start, stop in fields_of(content, at, end):
            field = self._fields[type_].get(number)
            counted = field.name if field is not None and field.name in limits else OTHERS
            counts[counted] += 1
            if counts[counted] > limits[counted]:
                raise BodyTooLarge(
                    f"expected at most {limits[counted]} {counted} in a request: {self._advice}"
                )
            # One of another kind than stated is no such field.
            if field is None or kind != (
                LENGTH if isinstance(field.type, str) else field.type.kind
            ):
                continue
            if isinstance(field.type, str):
                value = self._message(content, field.type, start, stop, limits, counts)
            else:
                value = field.type.read(content, start, stop)
            if field.once or field.oneof:
                values[field.name] = value
            else:
                values.setdefault(field.name, []).append(value)
        return self.structs[type_](**values)


def fields_of(content: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, kind, start and end of each field of a message; kind LENGTH: its length is said.

    Raises IndexError where it is none, or cut short, and for groups, which no message here has.
    """
    while at < end:
        tag = content[at]
        at += 1
        if tag > 127:  # which few are
            tag, at = varint(content, at - 1)
        kind = tag & 7
        start = at
        if kind == LENGTH:
            size, start = varint(content, at)
            at = start + size
        elif kind == NUMBER:
            _, at = varint(content, at)
        elif kind in SIZES:
            at += SIZES[kind]
        else:
            raise IndexError
        if at > end or not 8 <= tag < MOST_NUMBERS << 3:
            raise IndexError
        yield tag >> 3, kind, start, at


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


def varint_of(value: int) -> bytes:
    """What `varint` reads."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
