"""What streams keep in Redis, as their worker loads it."""

from __future__ import annotations

import struct
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast
from zlib import crc32

import cramjam
import msgspec
from redis.exceptions import ResponseError

from service import wire
from service.store import keys
from service.store.shards import Argument, StoreClient, Words, script
from service.wire import stored_records
from service.wire.stored_records import Part, Sums, begin_of

BLOCK = 64  # rows in a block of a tail, at most
END = 1 << 48  # after all positions
MOST_STATE_RATIO = 256  # of LZ4: a damaged length takes no memory

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


def wrong_type(reply: object) -> bool:
    """Whether a reply, or an error, says that a key is of a type that it cannot have: damage."""
    return isinstance(reply, ResponseError) and "WRONGTYPE" in str(reply)


def blocks(place: int, first: int, rows: Sequence[bytes]) -> list[bytes]:
    """Join rows of positions from `first` on as they lie in a tail, so many in each block.

    place: of a stream's tail, as of `wire.place_of`.
    """
    return [
        wire.checksummed_at(place, stored_records.block_of(first + at, rows[at : at + BLOCK]))
        for at in range(0, len(rows), BLOCK)
    ]


def rows_of(
    stream: str,
    blobs: Sequence[bytes],
    start: int = 0,
    stop: int = sys.maxsize,
    sums: Sums = stored_records.sums_of,
) -> tuple[int, list[Part]]:
    """Rows of what `blocks` made with positions in [start, stop), and the position of the first.

    Blocks follow on each other. One that begins within the one before stands for its last rows.
    Those that end before `start` are not looked at, though they be damaged. Raises UnreadablePart.
    """
    before = max(0, bisect_right(blobs, start, key=begin_of) - 1)
    place = wire.place_of("tail", stream)
    parts: list[Part] = []
    first = end = start
    last = -1
    with reading("tail", stream):
        for begin, begin_of_last, rows in stored_records.split_blocks(place, blobs[before:], sums):
            if last < 0:
                first = end = begin
            if begin <= last:
                raise ValueError("its blocks are in another order")
            if begin > end:
                raise ValueError(f"it goes on at seq {begin}, expected {end}")
            _drop(parts, end - begin)
            if parts and isinstance(rows, list) and isinstance(parts[-1], list):
                parts[-1] += rows
            else:
                parts.append(rows)
            end = begin + len(rows)
            last = begin_of_last
    _drop(parts, end - max(stop, first))
    if first < start and parts:
        parts[0] = parts[0][start - first :]
    return max(first, start), parts


def _drop(parts: list[Part], count: int) -> None:
    """Take the last rows away."""
    while parts and count > 0:
        part = parts.pop()
        if len(part) > count:
            parts.append(part[:-count])
        count -= len(part)


def records_of(
    stream: str, blobs: Sequence[bytes], start: int = 0, stop: int = sys.maxsize
) -> list[wire.Record]:
    """Decode records with seq in [start, stop) of blocks; raises UnreadablePart."""
    first, parts = rows_of(stream, blobs, start, stop)
    with reading("tail", stream):
        rows = enumerate(stored_records.singly(parts), first)
        return [stored_records.decoded_row(seq, row) for seq, row in rows]


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
    return wire.joined(settled, position_of(stream, stored.position))


def position_of(stream: str, stored: bytes) -> wire.Position:
    """Decode a position; raises UnreadablePart."""
    blob, _ = _parts_of(stream, stored)
    return cast(wire.Position, decoded(wire.decode_position, blob, "position", stream))


def blocks_of(stream: str, stored: StoredHead, tail: Sequence[bytes]) -> list[bytes]:
    """Return the blocks of a tail, with the one that lies beside the position.

    Raises UnreadablePart.
    """
    _, block = _parts_of(stream, stored.position or b"")
    return [*tail, block] if block else [*tail]


def _parts_of(stream: str, position: bytes) -> tuple[bytes, bytes]:
    """Return a position and the block beside it, empty without one; raises UnreadablePart."""
    with reading("position", stream):
        return stored_records.split_position(position)


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
    encoded = wire.checksummed(wire.encode_position(head), "position", stream)
    position = stored_records.with_block(encoded)
    return [keys.settled_field(stream), settled, stream, position]


class Stored(NamedTuple):
    """What one stream left in Redis. Idempotency is by field, as keys.py says.

    beside: rows that lie beside the position.
    """

    head: wire.Head | None = None
    checkpoint: bytes | None = None
    tail: Sequence[bytes] = ()  # blocks with all rows after the checkpoint; see `blocks`
    idempotency: Mapping[bytes, bytes] = {}
    wrong: str | None = None  # why it cannot be read
    beside: Sequence[bytes | wire.Record] = ()


class Span(NamedTuple):
    """Rows of a stream from the position `first` to before `end`.

    thin: rows that each block is likely to have of a tail that ends there, where these are few.
    """

    partition: int
    stream: str
    first: int
    end: int
    thin: int = 0


def reading_span(partition: int, stream: str, first: int, end: int, *settled: str) -> Words:
    """Return what reads blocks with the rows from `first` to `end`.

    settled: field of the settled part, where the stream's head is to be read as well.
    """
    names = [keys.heads(partition), keys.tail(partition, stream)]
    return script("rows", names, [first, end, stream, *settled])


def _reading(span: Span) -> Words:
    if not span.thin:
        return reading_span(span.partition, span.stream, span.first, span.end)
    # So many blocks are likely to hold the span. A script takes four times as long.
    first = (span.first - span.end) // span.thin
    return ("LRANGE", keys.tail(span.partition, span.stream), first, -1)


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
                ("HGETALL", keys.idempotency(partition, stream)),
                ("ZSCORE", keys.names(partition), stream),
            )
        parts, checkpoints, *others = self._client.all(commands)
        loaded = []
        for i, stream in enumerate(streams):
            stored = Stored(None, checkpoints[i], idempotency=others[2 * i])
            parts_of_head = stored_head(*parts[2 * i : 2 * i + 2])
            try:
                if parts_of_head is not None:
                    head = head_of(stream, parts_of_head)
                    _, rows = rows_of(stream, blocks_of(stream, parts_of_head, ()))
                    beside = stored_records.singly(rows)
                    stored = stored._replace(head=head, beside=beside)
                elif others[2 * i + 1] is not None:
                    stored = stored._replace(wrong="its head is missing")
            except UnreadablePart as error:
                stored = stored._replace(wrong=str(error))
            loaded.append(stored)
        spans = []
        for stream, own in zip(streams, loaded, strict=True):
            # Of one that is new the last rows, to see that nothing is left of another.
            first, end = (END - 1, END) if own.head is None else (own.head.checkpoint, own.head.seq)
            spans.append(Span(partition, stream, first, end))
        tails = self.tails(spans)
        return [own._replace(tail=tail) for own, tail in zip(loaded, tails, strict=True)]

    def tails(self, spans: Sequence[Span]) -> list[list[bytes]]:
        """Read blocks of streams that have rows in spans, as `blocks` made them, in one round trip.

        Where a tail does not end with its span, or has a gap, it takes a second one.
        """
        wanted = [i for i, span in enumerate(spans) if span.first < span.end]
        commands = [_reading(spans[i]) for i in wanted]
        found: list[list[bytes]] = [[] for _ in spans]
        again = []
        for i, reply in zip(wanted, self._client.all(commands) if commands else (), strict=True):
            if not spans[i].thin:
                found[i] = reply[0]
            elif reply and begin_of(reply[0]) <= spans[i].first:
                found[i] = reply
            else:
                again.append(i)
        if again:
            others = self.tails([spans[i]._replace(thin=0) for i in again])
            for i, blobs in zip(again, others, strict=True):
                found[i] = blobs
        return found

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


def packed_state(stream: str, blob: bytes) -> bytes:
    """Compress a state of `model_core.codec` as it is stored: to three quarters, in 5 us.

    Zstandard makes it a tenth smaller, and takes four times as long.
    """
    return wire.checksummed(bytes(cramjam.lz4.compress_block(blob)), "checkpoint", stream)


def state_of(stream: str, head: wire.Head, checkpoint: bytes | None) -> bytes | None:
    """Return what `packed_state` took, None before there is one; raises UnreadablePart.

    It has the beginning and the checksum of `model_core.codec`.
    """
    if not head.checkpoint:
        return None
    if checkpoint is None:
        raise UnreadablePart(f"the checkpoint of {stream!r} at seq {head.checkpoint} is missing")

    def state(body: bytes) -> bytes:
        if int.from_bytes(body[:4], "little") > MOST_STATE_RATIO * len(body):
            raise wire.Damaged("a length that no state has")
        blob = bytes(cramjam.lz4.decompress_block(body))
        if not blob.startswith(b"MOCA") or crc32(blob[:-4]).to_bytes(4, "little") != blob[-4:]:
            raise wire.Damaged("checksum mismatch")
        return blob

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
    """Raise UnreadablePart, naming a stored part, where it, or what is in it, cannot be read."""
    try:
        yield
    except (*UNREADABLE, ResponseError) as error:
        if isinstance(error, ResponseError) and not wrong_type(error):
            raise
        raise _unreadable(part, owner, error) from error


def _unreadable(part: str, owner: str, error: Exception) -> UnreadablePart:
    return UnreadablePart(f"cannot read the stored {part} of {owner!r}: {error}")


# Decoders of the values of a stream's hashes, by their names in `keys.HASHES`.
_VALUES: dict[str, Callable[[bytes], Any]] = {
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
