"""What streams keep in Redis, as their worker loads it."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast
from zlib import crc32

import msgspec
import redis

from service import wire
from service.redis import keys

CHUNK = 64


class CorruptState(ValueError):
    """Stored bytes that cannot be read; the message says whose."""


def phase_of(stream: str) -> int:
    """Return how far a stream's chunks are shifted, so that streams made together differ."""
    return crc32(stream.encode()) % CHUNK


def chunk_of(stream: str, seq: int) -> int:
    """Return the number of the chunk that holds a record."""
    return (seq + phase_of(stream)) // CHUNK


def first_of(stream: str, chunk: int) -> int:
    """Return the seq of the first record that a chunk can hold."""
    return max(0, chunk * CHUNK - phase_of(stream))


def seal(records: Sequence[wire.Record | msgspec.Raw]) -> bytes:
    """Encode the records of one chunk; Raw: encoded already."""
    return zlib.compress(wire.encode(records))


def unseal(blob: bytes) -> list[wire.Record]:
    """Decode what `seal` made."""
    try:
        return wire.decode_chunk(zlib.decompress(blob))
    except (zlib.error, msgspec.MsgspecError) as error:
        raise CorruptState(f"a sealed chunk cannot be read: {error}") from error


class Stored(NamedTuple):
    """What one stream left in Redis, as bytes. Idempotency is by field, as keys.py says."""

    head: bytes | None
    checkpoint: bytes | None  # the one that the head names
    tail: dict[int, bytes]  # by seq, ascending
    idempotency: dict[bytes, bytes]
    stale: tuple[bytes, ...] = ()  # fields of checkpoints that no commit came to name


class Store:
    """A worker's reads of the streams of partitions it owns, and its checkpoints."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def load(self, partition: int, streams: Sequence[str]) -> list[Stored]:
        """Load each stream's head, its checkpoint, its tail and its idempotency records."""
        if not streams:
            return []
        heads = cast(list[bytes | None], self._client.hmget(keys.heads(partition), list(streams)))
        with self._client.pipeline(transaction=False) as pipe:
            for stream, head in zip(streams, heads, strict=True):
                pipe.hget(keys.checkpoint(partition, stream), checkpoint_field(head))
                pipe.hgetall(keys.tail(partition, stream))
                pipe.hgetall(keys.idempotency(partition, stream))
                pipe.hkeys(keys.checkpoint(partition, stream))
            found = pipe.execute()
        loaded = []
        for i, head in enumerate(heads):
            checkpoint, tail, idempotency, fields = found[4 * i : 4 * i + 4]
            named = checkpoint_field(head).encode()
            stale = tuple(field for field in fields if named and field != named)
            ordered = {int(seq): tail[seq] for seq in sorted(tail, key=int)}
            loaded.append(Stored(head, checkpoint, ordered, idempotency, stale))
        return loaded

    def put_checkpoints(
        self, partition: int, checkpoints: Iterable[tuple[str, str, bytes]]
    ) -> None:
        """Write (stream, field, state) before the commit that moves the heads' pointers."""
        with self._client.pipeline(transaction=False) as pipe:
            for stream, field, blob in checkpoints:
                pipe.hset(keys.checkpoint(partition, stream), field, blob)
            pipe.execute()

    def events(self, partition: int, stream: str) -> dict[int, wire.Event]:
        """Read the committed events of a stream."""
        stored = cast(dict[bytes, bytes], self._client.hgetall(keys.events(partition, stream)))
        what = f"an event of {stream!r}"
        return {int(i): decoded(wire.decode_event, blob, what) for i, blob in stored.items()}

    def keyed(self, partition: int, stream: str, field: bytes) -> wire.IdempotencyRecord | None:
        """Read one idempotency record."""
        key = keys.idempotency(partition, stream)
        blob = cast(bytes | None, self._client.hget(key, field))
        what = f"an idempotency record of {stream!r}"
        return None if blob is None else decoded(wire.decode_idempotency, blob, what)

    def staged(self, partition: int, token: str) -> bytes | None:
        """Read a snapshot that the API left for this partition."""
        return cast(bytes | None, self._client.get(keys.staged(partition, token)))

    def chunks(self, partition: int, stream: str, numbers: Sequence[int]) -> list[bytes | None]:
        """Read sealed chunks as stored; None for one that is not there. See `unseal`."""
        if not numbers:
            return []
        fields = [str(number) for number in numbers]
        return cast(list[bytes | None], self._client.hmget(keys.history(partition, stream), fields))


def checkpoint_field(head: bytes | None) -> str:
    """Return the field of the checkpoint a head names; one that never exists without any."""
    if head is None:
        return ""
    try:
        decoded = wire.decode_head(head)
    except msgspec.MsgspecError:  # the worker decodes it again, and says whose head is corrupt
        return ""
    return f"{decoded.generation}:{decoded.checkpoint}"


def decoded(decode: Any, blob: bytes, what: str) -> Any:
    """Decode stored bytes; raises CorruptState, saying of what they are."""
    try:
        return decode(blob)
    except msgspec.MsgspecError as error:
        raise CorruptState(f"{what} cannot be read: {error}") from error
