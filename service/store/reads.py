"""What streams keep in Redis, as the API reads it: committed state only, in bounded time."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from moca_client.responses import Window
from service import calendar, wire
from service.models.catalogue import Canary, decode_canary, encode_canary
from service.observability import metrics
from service.problems import CorruptState, RedisUnavailable
from service.store import keys
from service.store.shards import LOST, UNREACHABLE, AsyncStoreClient, good, script
from service.store.streams import (
    StoredHead,
    UnreadablePart,
    blocks_of,
    decoded,
    head_of,
    hindsight_of,
    living_heads,
    reading,
    reading_span,
    records_of,
    state_of,
    stored_head,
    values_of,
    wrong_type,
)
from service.tasks import bounded
from service.wire import Id
from service.wire.event_entries import START, kind_of
from service.wire.snapshot import StreamSnapshot

log = logging.getLogger(__name__)
STAGED_MS = 600_000  # longer than any request waits
TIMEOUT_S = 5.0  # of a read that a request waits for
Name = TypeVar("Name", str, bytes)  # of a stream
T = TypeVar("T")


class Recent(NamedTuple):
    """One stream and its last records, ascending; fewer than were asked for where it has no more.

    Some may lie before what the stream retains, and go with the next commit; others may have come
    after the head was read.
    """

    stream: str
    head: wire.Head
    records: list[wire.Record]


class Health(NamedTuple):
    """State of the store; lists are by partition."""

    unowned: list[int]  # partitions without a lease
    pending: list[int]  # observations appended and not yet done
    used_memory: int
    maxmemory: int  # 0: no limit
    streams: int  # that live


class Condition(NamedTuple):
    """State of the log and of what keeps it."""

    oldest_pending_s: float  # 0: nothing waits
    append_only: bool  # on every server
    append_only_failing: bool  # the last write or rewrite of the file failed


class AsyncStore:
    """The API's reads of committed state."""

    def __init__(self, client: AsyncStoreClient, partitions: int) -> None:
        self._client = client
        self._partitions = partitions

    def _partition(self, stream: str | bytes) -> int:
        return keys.partition_of(stream, self._partitions)

    async def head(self, stream: str) -> wire.Head | None:
        """Return a stream's head, or None when there is no such stream (any more)."""
        stored = (await self.heads([stream]))[stream]
        if stored is None:
            return None
        head = head_of(stream, stored)
        return None if head.deleted else head

    async def events(self, stream: str, kinds: Collection[str]) -> list[wire.Event]:
        """Return a stream's events of these kinds: changepoints by id, then anomalies by id.

        Raises UnreadablePart.
        """
        key = keys.events(self._partition(stream), stream)
        with reading("events", stream):
            blobs = await cast(Any, self._client.hgetall(key))
        events = [e for e in values_of("events", stream, blobs) if kind_of(e) in kinds]
        return sorted(events, key=lambda event: (event.kind == "anomaly", event.id))

    async def hindsight(self, stream: str) -> wire.StoredHindsight | None:
        """Return a stream's segmentation in hindsight; None without one. Raises UnreadablePart."""
        blob = await cast(Any, self._client.hget(keys.hindsight(self._partition(stream)), stream))
        return hindsight_of(stream, blob)

    async def stage(self, stream: str, token: str, blob: bytes) -> None:
        """Leave a snapshot for the worker of a stream's partition, for a while."""
        await self._client.set(keys.staged(self._partition(stream), token), blob, px=STAGED_MS)

    async def snapshot(self, stream: str) -> StreamSnapshot | None:
        """Return all that is kept of a stream, as of one commit; None when there is no stream.

        The digest of its model is None where the head has none.
        """
        commands = keys.read_all(self._partition(stream), stream)
        with reading("parts", stream):
            parts, checkpoint, tail, *hashes = await self._client.atomic(commands)
        stored = stored_head(*parts)
        if stored is None:
            return None
        head = head_of(stream, stored)
        if head.deleted:
            return None
        events, idempotency, changes = hashes
        keyed = values_of("idempotency", stream, idempotency)
        return StreamSnapshot(
            stream,
            head.digest,
            head,
            state_of(stream, head, checkpoint),
            records_of(stream, blocks_of(stream, stored, tail), stop=head.seq),
            values_of("events", stream, events),
            # Without checksums: they may get another stream.
            dict(zip(idempotency, map(wire.encode, keyed), strict=True)),
            values_of("changes", stream, changes),
        )

    async def records(
        self, stream: str, head: wire.Head, start: int, stop: int
    ) -> list[wire.Record]:
        """Return the retained records with seq in [start, stop), ascending.

        Raises UnreadablePart.
        """
        start = max(start, head.retained_from)
        stop = min(stop, head.seq)
        if start >= stop:
            return []
        stored, records = await self.following(stream, head, start, stop)
        if stored is not None:
            now = head_of(stream, stored)
            if now.generation == head.generation and not now.deleted:
                _check_complete(stream, now, records, range(start, stop))
        return records

    async def following(
        self, stream: str, head: wire.Head, start: int, stop: int
    ) -> tuple[StoredHead | None, list[wire.Record]]:
        """Return the head as stored, and with it the records with seq in [start, stop).

        They are those that are stored: some may lie before what the stream retains, and go with a
        later commit.
        """
        settled = keys.settled_field(stream)
        read = reading_span(self._partition(stream), stream, start, stop, settled)
        with reading("tail", stream):
            ((blobs, parts),) = await self._client.all([read])
        return stored_head(*parts), records_of(stream, blobs, start, stop)

    async def heads(self, streams: Iterable[Name]) -> dict[Name, StoredHead | None]:
        """Return the heads of streams as stored, tombstones included.

        Names may be text, or bytes as they are stored.
        """
        return {
            name: stored_head(settled, position)
            for names, row in await self._of_heads(streams, keys.head_fields)
            for name, settled, position in zip(names, row[::2], row[1::2], strict=True)
        }

    async def positions(self, streams: Iterable[Name]) -> dict[Name, bytes | None]:
        """Return the positions alone of streams, as `heads` returns them."""
        return {
            name: position
            for names, row in await self._of_heads(streams, list)
            for name, position in zip(names, row, strict=True)
        }

    async def _of_heads(
        self,
        streams: Iterable[Name],
        fields: Callable[[list[Name]], list[Name]],
    ) -> list[tuple[list[Name], list[bytes | None]]]:
        """Return the names in each partition, and their fields among its heads.

        Those of a partition are read by one command: no commit comes between them.
        """
        by_partition: defaultdict[int, list[Name]] = defaultdict(list)
        for stream in streams:
            by_partition[self._partition(stream)].append(stream)
        rows = await self._client.all(
            ("HMGET", keys.heads(partition), *fields(own))  # type: ignore[has-type]
            for partition, own in by_partition.items()
        )
        return list(zip(by_partition.values(), rows, strict=True))

    async def partition_names(self, prefix: str, limit: int) -> list[list[bytes]]:
        """Return up to `limit` names of living streams of each partition, as stored."""
        low, high = _bounds(prefix)
        return await self._names_between(low, high, limit)

    async def names(
        self, prefix: str, cursor: str | None, limit: int
    ) -> tuple[list[str], str | None]:
        """Return up to `limit` ids of living streams after `cursor`, and the next cursor.

        Sorted by code point over all partitions. The cursor is None on the last page.
        """
        low, high = _bounds(prefix)
        if cursor is not None and cursor >= prefix:
            low = b"(" + cursor.encode()
        share = limit // self._partitions + 8  # ids are spread evenly: rarely a second round
        page: list[bytes] = []
        while len(page) <= limit:
            rows = await self._names_between(low, high, share)
            # A partition whose row is full may have more ids beyond its last one.
            horizon = min((row[-1] for row in rows if len(row) == share), default=None)
            page += sorted(id_ for row in rows for id_ in row if horizon is None or id_ <= horizon)
            if horizon is None:
                break
            low = b"(" + horizon
        ids = [keys.text_of(id_) for id_ in page[:limit]]
        return ids, ids[-1] if len(page) > limit and ids else None

    async def count(self, prefix: str) -> int:
        """Return how many living streams have an id that starts with `prefix`."""
        low, high = _bounds(prefix)
        every = range(self._partitions)
        return sum(await self._client.all(("ZLEXCOUNT", keys.names(p), low, high) for p in every))

    async def recent(
        self, streams: Sequence[str], heads: Mapping[str, StoredHead | None], count: int
    ) -> tuple[list[Recent], list[str]]:
        """Return up to `count` last records of streams that have a head, and who cannot be read.

        heads: as `heads` returned them.
        """
        living, unreadable = living_heads({stream: heads[stream] for stream in streams})
        present = [(name, living[name]) for name in streams if name in living]
        if not count:
            return [Recent(stream, head, []) for stream, head in present], unreadable
        spans = (
            reading_span(self._partition(stream), stream, max(head.seq - count, 0), head.seq)
            for stream, head in present
        )
        replies = await self._client.run(spans)
        good([reply for reply in replies if not wrong_type(reply)])
        rows, more = await asyncio.to_thread(_recent, present, replies, count)
        return rows, sorted(unreadable + more)

    async def _names_between(self, low: bytes, high: bytes, count: int) -> list[list[bytes]]:
        return await self._client.all(
            ("ZRANGEBYLEX", keys.names(partition), low, high, "LIMIT", 0, count)
            for partition in range(self._partitions)
        )

    async def changes(self, stream: str, start: int, stop: int) -> list[wire.SettingsChange]:
        """Return the settings changed at positions in [start, stop), in order.

        Raises UnreadablePart, also for one that belongs elsewhere.
        """
        key = keys.changes(self._partition(stream), stream)
        with reading("changes", stream):
            stored = await cast(Any, self._client.hgetall(key))
        every = values_of("changes", stream, stored)
        inside = [change for change in every if start <= change.seq < stop]
        inside.sort(key=lambda change: (change.seq, change.number, change.time_ms))
        return inside

    async def expired(self, now_ms: int, most: int) -> list[str]:
        """Return up to `most` streams of each partition whose time to live is over."""
        rows = await self._client.all(
            ("ZRANGEBYSCORE", keys.due(partition), "-inf", now_ms, "LIMIT", 0, most)
            for partition in range(self._partitions)
        )
        return [keys.text_of(name) for row in rows for name in row]

    async def canaries(self) -> tuple[dict[str, Canary], list[str]]:
        """Return all canaries by the name of their model, and those that cannot be read."""
        return await self._by_name(keys.CANARIES, decode_canary, "canary")

    async def windows(self) -> tuple[dict[str, Window], list[str]]:
        """Return all windows of the calendar by name, and those that cannot be read."""
        return await self._by_name(keys.CALENDAR, calendar.decode, "window")

    async def _by_name(self, key: str, decode: Any, part: str) -> tuple[dict[str, Any], list[str]]:
        by_name = {}
        unreadable = []
        for field, blob in (await cast(Any, self._client.hgetall(key))).items():
            name = keys.text_of(field)
            try:
                by_name[name] = decoded(decode, blob, part, name)
            except UnreadablePart:
                unreadable.append(name)
        return by_name, unreadable

    async def put_canary(self, name: str, canary: Canary | None) -> None:
        """Set a model's canary, or end it."""
        if canary is None:
            await cast(Any, self._client.hdel(keys.CANARIES, name))
        else:
            blob = wire.checksummed(encode_canary(canary), "canary", name)
            await cast(Any, self._client.hset(keys.CANARIES, name, blob))

    async def put_window(self, window: Window) -> None:
        """Set a window of the calendar."""
        blob = wire.checksummed(calendar.encode(window), "window", window.name)
        await cast(Any, self._client.hset(keys.CALENDAR, window.name, blob))

    async def delete_window(self, name: str) -> bool:
        """Remove a window of the calendar; returns whether it was there."""
        return bool(await cast(Any, self._client.hdel(keys.CALENDAR, name)))

    async def results(
        self, incarnation: str, after: Mapping[int, Id], count: int
    ) -> dict[int, list[tuple[Id, bytes]]]:
        """Return up to `count` pieces of outcomes of each partition beyond an id, as stored."""
        rows = await self._client.all(
            ("XRANGE", keys.results(partition, incarnation), f"({id_}", "+", "COUNT", count)
            for partition, id_ in after.items()
        )
        return {
            partition: [(Id.parse(id_), fields.get(b"b", b"")) for id_, fields in row]
            for partition, row in zip(after, rows, strict=True)
        }

    async def last_results(self, incarnation: str, partitions: Iterable[int]) -> dict[int, Id]:
        """Return the id of the last piece of each partition, START where it has none."""
        asked = list(partitions)
        rows = await self._client.all(
            ("XREVRANGE", keys.results(partition, incarnation), "+", "-", "COUNT", 1)
            for partition in asked
        )
        return {
            p: Id.parse(row[0][0]) if row else START for p, row in zip(asked, rows, strict=True)
        }

    async def condition(self) -> Condition:
        """Return what else there is to watch; raises a RedisError when the store does not answer.

        A log that cannot be read counts as empty: its worker reports it.
        """
        ages = await self._client.run(
            script("oldest", [keys.log(partition)], []) for partition in range(self._partitions)
        )
        for age in ages:
            if isinstance(age, LOST):
                raise age
        oldest_ms = max((age for age in ages if isinstance(age, int)), default=0)
        servers = await self._client.infos("persistence")
        written = [server for server in servers if int(server.get("aof_enabled", 0))]
        failing = any(
            server.get(name) != "ok"
            for server in written
            for name in ("aof_last_write_status", "aof_last_bgrewrite_status")
        )
        return Condition(oldest_ms / 1000, len(written) == len(servers), failing)

    async def health(self) -> Health:
        """Ask the store how it is; raises a RedisError when it does not answer."""
        every = range(self._partitions)
        answers = await self._client.all(
            command
            for p in every
            for command in (
                ("EXISTS", keys.lease(p)),
                ("HMGET", keys.meta(p), "in", "done"),
                ("ZCARD", keys.names(p)),
            )
        )
        memory = await self._client.info("memory")
        return Health(
            unowned=[partition for partition in every if not answers[3 * partition]],
            pending=[_count(appended) - _count(done) for appended, done in answers[1::3]],
            used_memory=int(memory["used_memory"]),
            maxmemory=int(memory["maxmemory"]),
            streams=sum(answers[2::3]),
        )


def _count(value: bytes | None) -> int:
    """Return a counter; what is none counts nothing, until its partition is next acquired."""
    return int(value) if value and value.isdigit() else 0


def _check_complete(
    stream: str,
    head: wire.Head,
    records: Sequence[wire.Record],
    wanted: range,
) -> None:
    """Raise UnreadablePart where a wanted record is missing that `head` retains."""
    first = max(wanted.start, head.retained_from)
    there = {record.seq for record in records}
    gone = [seq for seq in range(first, min(wanted.stop, head.seq)) if seq not in there]
    if gone:
        raise UnreadablePart(f"observation {gone[-1]} of {stream!r} is missing")


def _bounds(prefix: str) -> tuple[bytes, bytes]:
    """Return the lexical bounds of names that start with a prefix."""
    return b"[" + prefix.encode(), b"(" + prefix.encode() + b"\xff" if prefix else b"+"


def _recent(
    present: Sequence[tuple[str, wire.Head]],
    replies: Sequence[Any],
    count: int,
) -> tuple[list[Recent], list[str]]:
    """Decode what `recent` has read; a reply may be an error, of a tail of another type."""
    rows = []
    unreadable = []
    for (stream, head), reply in zip(present, replies, strict=True):
        try:
            with reading("tail", stream):
                blobs, _ = good([reply])[0]
            last = records_of(stream, blobs, max(head.seq - count, 0), head.seq)
        except UnreadablePart:
            unreadable.append(stream)
        else:
            rows.append(Recent(stream, head, last))
    return rows, unreadable


# --- reads that requests wait for -----------------------------------------------------------------


async def from_store(read: Awaitable[T], bound: bool = True) -> T:
    """Wait for a read of the store; map its errors to RedisUnavailable and CorruptState.

    bound: whether for TIMEOUT_S at most; one of many reads has bounds of its own.
    """
    try:
        return cast(T, await bounded(read, TIMEOUT_S)) if bound else await read
    except UNREACHABLE as error:
        raise RedisUnavailable(f"the store does not respond: {error}") from error
    except UnreadablePart as error:
        log.warning("%s", error)
        metrics.CORRUPT_STATES.inc()
        raise CorruptState(str(error)) from error


def without(unreadable: list[str], where: str) -> list[str]:
    """Log and return the names of unreadable parts that an answer leaves out."""
    if unreadable:
        log.warning("%s: cannot read %s", where, ", ".join(unreadable))
        metrics.CORRUPT_STATES.inc()
    return unreadable
