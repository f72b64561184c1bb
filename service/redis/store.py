"""What streams keep in Redis: loading for the worker, reading committed state for the API."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast
from zlib import crc32

import msgspec
import redis
import redis.asyncio

from service import wire
from service.redis import keys

CHUNK = 64
STAGED_MS = 600_000  # longer than any request waits


class CorruptState(ValueError):
    """Stored bytes that cannot be read; the message says whose."""


def phase_of(stream: str) -> int:
    """Return how far a stream's chunks are shifted, so that streams made together differ."""
    return crc32(stream.encode()) % CHUNK


def chunk_of(stream: str, seq: int) -> int:
    """Return the number of the chunk that holds a record."""
    return (seq + phase_of(stream)) // CHUNK


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


class Parts(NamedTuple):
    """All that is kept of a stream: records in order, idempotency by field, as stored."""

    head: wire.Head
    checkpoint: bytes | None
    records: list[wire.Record]
    events: list[wire.Event]
    idempotency: dict[bytes, bytes]


class Health(NamedTuple):
    """State of the store; lists are by partition."""

    unowned: list[int]  # partitions without a lease
    pending: list[int]  # observations appended and not yet done
    used_memory: int
    maxmemory: int  # 0: no limit


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
        return {int(i): _decode(wire.decode_event, blob, what) for i, blob in stored.items()}

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


class AsyncStore:
    """The API's reads of committed state."""

    def __init__(self, client: redis.asyncio.Redis, partitions: int) -> None:
        self._client = client
        self._partitions = partitions

    async def head(self, partition: int, stream: str) -> wire.Head | None:
        """Return a stream's head, or None when there is no such stream (any more)."""
        blob = await cast(Any, self._client.hget(keys.heads(partition), stream))
        if blob is None:
            return None
        head: wire.Head = _decode(wire.decode_head, blob, f"the head of {stream!r}")
        return None if head.deleted else head

    async def events(self, partition: int, stream: str) -> list[wire.Event]:
        """Return a stream's events by id."""
        blobs = await cast(Any, self._client.hvals(keys.events(partition, stream)))
        found = [_decode(wire.decode_event, blob, f"an event of {stream!r}") for blob in blobs]
        return sorted(found, key=lambda event: event.id)

    async def stage(self, partition: int, token: str, blob: bytes) -> None:
        """Leave a snapshot for a partition's worker, for a while."""
        await self._client.set(keys.staged(partition, token), blob, px=STAGED_MS)

    async def parts(self, partition: int, stream: str) -> Parts | None:
        """Return all that is kept of a stream, as of one commit; None when there is no stream."""
        hashes = keys.checkpoint, keys.tail, keys.history, keys.events, keys.idempotency
        async with self._client.pipeline(transaction=True) as pipe:
            pipe.hget(keys.heads(partition), stream)
            for key in hashes:
                pipe.hgetall(key(partition, stream))
            blob, states, tail, history, events, idempotency = await pipe.execute()
        if blob is None:
            return None
        head: wire.Head = _decode(wire.decode_head, blob, f"the head of {stream!r}")
        if head.deleted:
            return None
        records = [record for chunk in history.values() for record in unseal(chunk)]
        records += [
            _decode(wire.decode_record, r, f"a record of {stream!r}") for r in tail.values()
        ]
        by_seq = {record.seq: record for record in records if record.seq < head.seq}
        return Parts(
            head,
            states.get(f"{head.generation}:{head.checkpoint}".encode()),
            [by_seq[seq] for seq in sorted(by_seq)],
            [_decode(wire.decode_event, e, f"an event of {stream!r}") for e in events.values()],
            idempotency,
        )

    async def records(
        self, partition: int, stream: str, head: wire.Head, start: int, stop: int
    ) -> list[wire.Record]:
        """Return the retained records with seq in [start, stop), ascending."""
        start, stop = max(start, head.seq - head.settings.history, 0), min(stop, head.seq)
        if start >= stop:
            return []
        numbers = range(chunk_of(stream, start), chunk_of(stream, stop - 1) + 1)
        seqs = range(max(start, head.sealed), stop)
        # In one transaction, and chunks up to the end: a commit after `head` was read may have
        # sealed what was then in the tail.
        async with self._client.pipeline(transaction=True) as pipe:
            pipe.hmget(keys.history(partition, stream), [str(number) for number in numbers])
            if seqs:
                pipe.hmget(keys.tail(partition, stream), [str(seq) for seq in seqs])
            chunks, *tails = await pipe.execute()
        records = [record for blob in chunks if blob for record in unseal(blob)]
        records += [
            _decode(wire.decode_record, blob, f"a record of {stream!r}")
            for tail in tails
            for blob in tail
            if blob
        ]
        by_seq = {record.seq: record for record in records if start <= record.seq < stop}
        return [by_seq[seq] for seq in sorted(by_seq)]

    async def names(
        self, prefix: str, cursor: str | None, limit: int
    ) -> tuple[list[str], str | None]:
        """Return up to `limit` ids of living streams after `cursor`, and the next cursor.

        Sorted by code point over all partitions. The cursor is None on the last page.
        """
        low, high = b"[" + prefix.encode(), b"(" + prefix.encode() + b"\xff"
        if cursor is not None and cursor >= prefix:
            low = b"(" + cursor.encode()
        share = limit // self._partitions + 8  # ids are spread evenly: rarely a second round
        page: list[bytes] = []
        while len(page) <= limit:
            rows = await self._names_between(low, high if prefix else b"+", share)
            # A partition whose row is full may have more ids beyond its last one.
            horizon = min((row[-1] for row in rows if len(row) == share), default=None)
            page += sorted(id_ for row in rows for id_ in row if horizon is None or id_ <= horizon)
            if horizon is None:
                break
            low = b"(" + horizon
        ids = [id_.decode() for id_ in page[:limit]]
        return ids, ids[-1] if len(page) > limit and ids else None

    async def _names_between(self, low: bytes, high: bytes, count: int) -> list[list[bytes]]:
        async with self._client.pipeline(transaction=False) as pipe:
            for partition in range(self._partitions):
                pipe.zrangebylex(keys.names(partition), cast(Any, low), cast(Any, high), 0, count)
            return cast(list[list[bytes]], await pipe.execute())

    async def outcomes(
        self, partition: int, incarnation: str, numbers: Sequence[int]
    ) -> list[wire.Outcome | None]:
        """Return the committed outcome of each command, None where there is none yet."""
        async with self._client.pipeline(transaction=False) as pipe:
            for number in numbers:
                pipe.hget(keys.outcomes(partition, incarnation, number), str(number))
            blobs = await pipe.execute() if numbers else []
        return [
            None if blob is None else _decode(wire.decode_outcome, blob, "an outcome")
            for blob in blobs
        ]

    async def health(self) -> Health:
        """Ask the store how it is; raises a RedisError when it does not answer."""
        every = range(self._partitions)
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.info("memory")
            for partition in every:
                pipe.exists(keys.lease(partition))
                pipe.hmget(keys.meta(partition), ["in", "done"])
            memory, *rest = await pipe.execute()
        return Health(
            unowned=[partition for partition in every if not rest[2 * partition]],
            pending=[int(appended or 0) - int(done or 0) for appended, done in rest[1::2]],
            used_memory=int(memory["used_memory"]),
            maxmemory=int(memory["maxmemory"]),
        )


def _decode(decode: Any, blob: bytes, what: str) -> Any:
    try:
        return decode(blob)
    except msgspec.MsgspecError as error:
        raise CorruptState(f"{what} cannot be read: {error}") from error
