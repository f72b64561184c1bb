"""What streams keep in Redis, as their worker loads it."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, cast
from zlib import crc32

import cramjam
import msgspec

from service import wire
from service.store import keys
from service.store.shards import Argument, StoreClient, Words
from service.wire import stored_records

CHUNK = 64
STATE_LEVEL = 1  # of Zstandard: higher ones save another hundredth
MOST_STATE_RATIO = 4096  # of a compressed state: a damaged length takes no memory

# Also text that is none, and rows that end too early.
UNREADABLE = (
    msgspec.MsgspecError,
    ValueError,
    struct.error,
    IndexError,
    RecursionError,
    cramjam.DecompressionError,
)


class UnreadablePart(ValueError):
    """Stored bytes that cannot be read; the message names part and stream."""


def phase_of(stream: str) -> int:
    """Return how far a stream's chunks are shifted, so that streams made together differ."""
    return crc32(stream.encode()) % CHUNK


def chunk_of(stream: str, seq: int) -> int:
    """Return the number of the chunk that holds a record."""
    return (seq + phase_of(stream)) // CHUNK


def first_of(stream: str, chunk: int) -> int:
    """Return the seq of the first record that a chunk can hold."""
    return max(0, chunk * CHUNK - phase_of(stream))


def seal(stream: str, number: int, first: int, encoded: Sequence[bytes]) -> bytes:
    """Join the rows of one chunk, the first of which is at position `first`."""
    return wire.checksummed(stored_records.columns_of(first, encoded), "history", stream, number)


def blocks(place: int, first: int, rows: Sequence[bytes]) -> list[bytes]:
    """Join rows of positions from `first` on as they lie in a tail, so many in each block.

    place: of a stream's tail, as of `wire.place_of`.
    """
    return [
        wire.checksummed_at(place, stored_records.block_of(first + at, rows[at : at + CHUNK]))
        for at in range(0, len(rows), CHUNK)
    ]


def unseal(stream: str, number: int | str, blob: bytes) -> list[wire.Record]:
    """Decode what `seal` made."""
    return cast(list[wire.Record], decoded(wire.decode_columns, blob, "history", stream, number))


def unseal_columns(stream: str, number: int, blob: bytes) -> tuple[int, list[stored_records.Bytes]]:
    """First position and runs of what `seal` made, which are not decoded."""
    return cast(
        tuple[int, list[stored_records.Bytes]],
        decoded(stored_records.split_columns, blob, "history", stream, number),
    )


def in_tail(
    stream: str, blobs: Iterable[bytes], start: int = 0, stop: int = sys.maxsize
) -> list[wire.Record]:
    """Decode what `blocks` made, with seq in [start, stop); raises UnreadablePart.

    Blocks that have none of them are not looked at, though they be damaged.
    """
    decode = partial(wire.decode_block, start=start, stop=stop)
    return [
        record
        for blob in blobs
        if stored_records.overlaps(blob[wire.CHECKSUM_SIZE :], start, stop)
        for record in decoded(decode, blob, "tail", stream)
    ]


def records_of(
    stream: str,
    chunks: Iterable[tuple[int | str, bytes | None]],
    tail: Iterable[bytes],
    start: int = 0,
    stop: int = sys.maxsize,
) -> list[wire.Record]:
    """Decode records with seq in [start, stop) of chunks, by number, and of a tail; ascending.

    A commit between two reads may have moved records from tail to chunk. Raises UnreadablePart.
    """
    records = [record for n, chunk in chunks if chunk for record in unseal(stream, n, chunk)]
    records += in_tail(stream, tail, start, stop)
    by_seq = {record.seq: record for record in records if start <= record.seq < stop}
    return [by_seq[seq] for seq in sorted(by_seq)]


def tail_has(blobs: Iterable[bytes], seq: int) -> bool:
    """Whether a block of `blobs` says that it has the record of a seq."""
    return any(stored_records.overlaps(b[wire.CHECKSUM_SIZE :], seq, seq + 1) for b in blobs)


class StoredHead(NamedTuple):
    """The two parts of a head, as bytes. See `wire.Head`."""

    settled: bytes
    position: bytes | None  # None: it is missing


def stored_head(settled: bytes | None, position: bytes | None) -> StoredHead | None:
    """Return a head of what is stored in its two fields; None without one."""
    return None if settled is None else StoredHead(settled, position)


def head_of(stream: str, stored: StoredHead) -> wire.Head:
    """Decode a head; raises UnreadablePart."""
    if stored.position is None:
        raise UnreadablePart(f"the position of {stream!r} is missing")
    settled = decoded(wire.decode_settled, stored.settled, "head", stream)
    position = decoded(wire.decode_position, stored.position, "position", stream)
    return wire.joined(settled, position)


def living_heads(stored: Mapping[str, StoredHead | None]) -> tuple[dict[str, wire.Head], list[str]]:
    """Decode the heads of streams that are there, by name; also the names of damaged ones."""
    heads = {}
    unreadable = []
    for stream, parts in stored.items():
        if parts is None:
            continue
        try:
            head = head_of(stream, parts)
        except UnreadablePart:
            unreadable.append(stream)
            continue
        if not head.deleted:
            heads[stream] = head
    return heads, unreadable


def head_fields(stream: str, head: wire.Head) -> list[Argument]:
    """Return the fields of a head among those of its partition, each with its value."""
    settled = wire.checksummed(wire.encode_settled(head), "head", stream)
    position = wire.checksummed(wire.encode_position(head), "position", stream)
    return [stream, settled, keys.position_field(stream), position]


class Stored(NamedTuple):
    """What one stream left in Redis, as bytes. Idempotency is by field, as keys.py says."""

    head: StoredHead | None
    checkpoint: bytes | None
    tail: list[bytes]  # see `blocks`
    idempotency: dict[bytes, bytes]
    named: bool = False  # listed as a living stream; only looked at where there is no head


class Store:
    """A worker's reads of the streams of partitions it owns."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client

    def load(self, partition: int, streams: Sequence[str]) -> list[Stored]:
        """Load each stream's head, its checkpoint, its tail and its idempotency records."""
        if not streams:
            return []
        commands: list[Words] = [
            ("HMGET", keys.heads(partition), *keys.head_fields(streams)),
            ("HMGET", keys.checkpoints(partition), *streams),
        ]
        for stream in streams:
            commands += (
                ("LRANGE", keys.tail(partition, stream), 0, -1),
                ("HGETALL", keys.idempotency(partition, stream)),
                ("ZSCORE", keys.names(partition), stream),
            )
        parts, checkpoints, *others = self._client.all(commands)
        heads = map(stored_head, parts[::2], parts[1::2])
        named = (score is not None for score in others[2::3])
        return list(map(Stored, heads, checkpoints, others[::3], others[1::3], named))

    def events(self, partition: int, stream: str) -> dict[int, wire.Event]:
        """Read the committed changes of a stream, by id; raises UnreadablePart."""
        stored = cast(dict[bytes, bytes], self._client.hgetall(keys.events(partition, stream)))
        events = values_of("events", stream, stored)
        return {event.id: event for event in events if event.kind == "change"}

    def hindsight(self, partition: int, stream: str) -> wire.StoredHindsight | None:
        """Read a stream's segmentation in hindsight; None without one. Raises UnreadablePart."""
        blob = cast(bytes | None, self._client.hget(keys.hindsight(partition), stream))
        return hindsight_of(stream, blob)

    def keyed(self, partition: int, stream: str, field: bytes) -> wire.IdempotencyRecord | None:
        """Read one idempotency record."""
        key = keys.idempotency(partition, stream)
        blob = cast(bytes | None, self._client.hget(key, field))
        return None if blob is None else values_of("idempotency", stream, {field: blob})[0]

    def staged(self, partition: int, token: str) -> bytes | None:
        """Read a snapshot that the API left for this partition."""
        return cast(bytes | None, self._client.get(keys.staged(partition, token)))

    def chunks(self, asked: Sequence[tuple[int, str, Sequence[int]]]) -> list[list[bytes | None]]:
        """Read sealed chunks as stored, by partition, stream and numbers, in one round trip.

        None for one that is not there. See `unseal`.
        """
        commands = [
            ("HMGET", keys.history(partition, stream), *map(str, numbers))
            for partition, stream, numbers in asked
            if numbers
        ]
        stored = iter(self._client.all(commands) if commands else ())
        return [next(stored) if numbers else [] for _, _, numbers in asked]


def packed_state(stream: str, blob: bytes) -> bytes:
    """Compress a state of `model_core.codec` as it is stored: to three quarters, in 30 us."""
    packed = bytes(cramjam.zstd.compress(blob, STATE_LEVEL))
    return wire.checksummed(len(blob).to_bytes(4, "little") + packed, "checkpoint", stream)


def state_of(stream: str, head: wire.Head, checkpoint: bytes | None) -> bytes | None:
    """Return what `packed_state` took, None before there is one; raises UnreadablePart.

    It has the beginning and the checksum of `model_core.codec`.
    """
    if not head.checkpoint:
        return None
    if checkpoint is None:
        raise UnreadablePart(f"the checkpoint of {stream!r} at seq {head.checkpoint} is missing")

    def state(body: bytes) -> bytes:
        length = int.from_bytes(body[:4], "little")
        if length > MOST_STATE_RATIO * len(body):
            raise wire.Damaged("a length that no state has")
        blob = bytearray(length)
        cramjam.zstd.decompress_into(body[4:], blob)
        if not blob.startswith(b"MOCA") or crc32(blob[:-4]).to_bytes(4, "little") != blob[-4:]:
            raise wire.Damaged("checksum mismatch")
        return bytes(blob)

    return cast(bytes, decoded(state, checkpoint, "checkpoint", stream))


def hindsight_of(stream: str, blob: bytes | None) -> wire.StoredHindsight | None:
    """Decode a stored segmentation in hindsight; None without one. Raises UnreadablePart."""
    if blob is None:
        return None
    return cast(wire.StoredHindsight, decoded(wire.decode_hindsight, blob, "hindsight", stream))


def decoded(decode: Any, blob: bytes, part: str, owner: str, field: object = "") -> Any:
    """Check and decode a stored part; raises UnreadablePart, naming it."""
    try:
        return decode(wire.checked(blob, part, owner, field))
    except UNREADABLE as error:
        raise _unreadable(f"{part} {field}".strip(), owner, error) from error


@contextmanager
def reading(part: str, owner: str) -> Iterator[None]:
    """Raise UnreadablePart, naming a stored part, where what is in it cannot be read."""
    try:
        yield
    except UNREADABLE as error:
        raise _unreadable(part, owner, error) from error


def _unreadable(part: str, owner: str, error: Exception) -> UnreadablePart:
    return UnreadablePart(f"cannot read the stored {part} of {owner!r}: {error}")


# Decoders of the values of a stream's hashes, by their names in `keys.HASHES`.
_VALUES: dict[str, Callable[[bytes], Any]] = {
    "history": wire.decode_columns,
    "events": wire.decode_event,
    "idempotency": wire.decode_idempotency,
    "changes": wire.decode_change,
}


def values_of(name: str, stream: str, stored: Mapping[bytes, bytes]) -> list[Any]:
    """Decode the values of a hash; raises UnreadablePart where one of them cannot be read."""
    decode = _VALUES[name]
    return [
        decoded(decode, blob, name, stream, keys.text_of(field)) for field, blob in stored.items()
    ]
