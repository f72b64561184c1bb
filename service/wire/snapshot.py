"""A stream's whole state as one blob: what is exported, and what makes the same stream elsewhere.

Layout: `MOCASNAP`, version (u16), CRC-32 of what follows (u32), then zlib-compressed msgpack.
"""

from __future__ import annotations

import struct
import zlib
from zlib import crc32

import msgspec
from msgspec import Struct

from service.wire import Event, Head, Record, SettingsChange, encode

MAGIC = b"MOCASNAP"
VERSION = 4
GROWTH = 16  # decompressed bytes for each that is stored, at most, beyond the first megabytes
LEAST = 4 << 20
_PREFIX = struct.Struct("<8sHI")


class BadSnapshot(ValueError):
    """Bytes that are no snapshot, or one that was damaged."""


class StreamSnapshot(Struct):
    """A stream at one position.

    checkpoint: state at `head.checkpoint`, None before there is one. records: all that is
    retained, up to `head.seq`. idempotency: by field, as stored. model_digest: of an artifact's
    files, None of a built-in model.
    """

    stream: str
    model_digest: str | None
    head: Head
    checkpoint: bytes | None
    records: list[Record]
    events: list[Event]
    idempotency: dict[bytes, bytes]
    changes: list[SettingsChange] = []


_decode = msgspec.msgpack.Decoder(StreamSnapshot).decode


def dump(snapshot: StreamSnapshot) -> bytes:
    """Return a snapshot's bytes."""
    body = zlib.compress(encode(snapshot), 6)
    return _PREFIX.pack(MAGIC, VERSION, crc32(body)) + body


def check(blob: bytes) -> None:
    """Raise BadSnapshot unless magic, version and checksum are right."""
    if len(blob) < _PREFIX.size or not blob.startswith(MAGIC):
        raise BadSnapshot("not a snapshot of a stream")
    _, version, checksum = _PREFIX.unpack_from(blob)
    if version != VERSION:
        raise BadSnapshot(f"the snapshot has format {version}, expected {VERSION}")
    if crc32(memoryview(blob)[_PREFIX.size :]) != checksum:
        raise BadSnapshot("the snapshot's checksum does not match its bytes")


def load(blob: bytes) -> StreamSnapshot:
    """Read what `dump` made; raises BadSnapshot."""
    check(blob)
    body = memoryview(blob)[_PREFIX.size :]
    limit = LEAST + GROWTH * len(body)
    try:
        unpacker = zlib.decompressobj()
        unpacked = unpacker.decompress(body, limit)
        if not unpacker.eof:
            raise BadSnapshot("the snapshot is truncated, or its content is too large")
        snapshot = _decode(unpacked)
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadSnapshot(f"cannot read the snapshot: {error}") from error
    # Records must lead, one by one, from the checkpoint to the head.
    head = snapshot.head
    records = snapshot.records
    first = records[0].seq if records else head.seq
    seqs = [record.seq for record in records]
    if seqs != list(range(first, head.seq)) or first > head.checkpoint:
        raise BadSnapshot("the snapshot's records do not connect its checkpoint with its head")
    if head.deleted or bool(head.checkpoint) != (snapshot.checkpoint is not None):
        raise BadSnapshot("the snapshot's state does not match its head")
    return snapshot
