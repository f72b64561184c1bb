"""Cursors of the feed: how far a reader has come in every partition, as one short text."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Mapping

from service.wire.event_entries import START, Id

VERSION = 1
CHECK_BYTES = 4
MOST_BYTES = 28  # of one partition: three numbers, the second and third of up to 64 bits
LARGEST = 2**64 - 1


class BadCursor(ValueError):
    """A text that is no cursor of this deployment; the message says why."""


class Positions:
    """The last id read of each of a reader's partitions; `text` is the cursor."""

    def __init__(self, partitions: Iterable[int], total: int, positions: Mapping[int, Id]) -> None:
        self._head = bytes([VERSION]) + _number(total)
        self._ids = {p: positions.get(p, START) for p in sorted(partitions)}
        self._parts = {p: _part(p, id_) for p, id_ in self._ids.items()}

    def __contains__(self, partition: int) -> bool:
        """Whether the reader reads this partition."""
        return partition in self._ids

    def __getitem__(self, partition: int) -> Id:
        """Return the last id read."""
        return self._ids[partition]

    def move(self, partition: int, id_: Id) -> None:
        """Note that a partition was read up to an id."""
        self._ids[partition] = id_
        self._parts[partition] = _part(partition, id_)

    def behind(self, others: Mapping[int, Id]) -> dict[int, Id]:
        """Return the positions of those partitions in which `others` are further."""
        return {p: id_ for p, id_ in self._ids.items() if id_ < others.get(p, START)}

    def text(self) -> str:
        """Return the cursor; partitions at their start are left out."""
        blob = self._head + b"".join(self._parts.values())
        return text_of(blob + _check(blob))


def parse(text: str, total: int) -> dict[int, Id]:
    """Read a cursor of a deployment of `total` partitions; BadCursor when it is none."""
    blob = _blob(text, total)
    if blob[0] != VERSION:
        raise BadCursor(f"expected a cursor of version {VERSION}, got version {blob[0]}")
    numbers = _numbers(blob[1:-CHECK_BYTES])
    if not numbers or numbers[0] != total or len(numbers) % 3 != 1:
        raise BadCursor(f"expected a cursor of a service with {total} partitions")
    triples = list(zip(numbers[1::3], numbers[2::3], numbers[3::3], strict=True))
    positions = {partition: Id(ms, number) for partition, ms, number in triples}
    if len(positions) != len(triples) or any(p >= total for p in positions):
        raise BadCursor("expected each partition once")
    return positions


def _blob(text: str, total: int) -> bytes:
    if len(text) > 2 * MOST_BYTES * (total + 1):
        raise BadCursor("expected a shorter cursor")
    try:
        blob = blob_of(text)
    except ValueError:
        raise BadCursor("expected the id of a message of this call") from None
    whole = len(blob) > CHECK_BYTES + 1 and _check(blob[:-CHECK_BYTES]) == blob[-CHECK_BYTES:]
    if not whole or text_of(blob) != text:
        raise BadCursor("expected the unmodified id of a message of this call")
    return blob


def text_of(blob: bytes) -> str:
    """Return bytes as text for a URL: base64 without padding."""
    return base64.urlsafe_b64encode(blob).rstrip(b"=").decode()


def blob_of(text: str) -> bytes:
    """Return what `text_of` had; ValueError for what it never gives."""
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _check(blob: bytes) -> bytes:
    return zlib.crc32(blob).to_bytes(CHECK_BYTES, "big")


def _part(partition: int, id_: Id) -> bytes:
    if id_ == START:
        return b""
    return _number(partition) + _number(id_.ms) + _number(id_.number)


def _number(value: int) -> bytes:
    """Seven bits in a byte, the lowest first; the highest bit says that more follow."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _numbers(blob: bytes) -> list[int]:
    values = []
    value = 0
    shift = 0
    for byte in blob:
        value |= (byte & 127) << shift
        shift += 7
        if not byte & 128:
            values.append(value)
            value = 0
            shift = 0
    if shift or any(number > LARGEST for number in values):
        raise BadCursor("expected integers of at most 64 bits")
    return values
