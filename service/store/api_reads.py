"""What streams keep in Redis, as the API reads it: committed state only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import redis.asyncio
from redis.asyncio.cluster import RedisCluster

from service import wire
from service.models import canary as canaries
from service.models.canary import Canary
from service.store import keys, overview, regimes
from service.store.cluster.asynchronous import AsyncCluster
from service.store.overview import Last, Name, Row
from service.store.script import Call, Script
from service.store.worker_reads import (
    UnreadablePart,
    all_decoded,
    chunk_of,
    decoded,
    first_of,
    hindsight_of,
    state,
    unseal,
)
from service.wire.event_entries import CHANGES

# Of the kinds of events: the key, and the name of its parts.
EVENTS = (("change", keys.events, "event"), ("anomaly", keys.anomalies, "anomaly"))
STAGED_MS = 600_000  # longer than any request waits


class Parts(NamedTuple):
    """All that is kept of a stream: records in order, idempotency by field, encoded."""

    head: wire.Head
    checkpoint: bytes | None
    records: list[wire.Record]
    events: list[wire.Event]
    idempotency: dict[bytes, bytes]
    changes: list[wire.Change]
    anomalies: list[wire.Event]


class Health(NamedTuple):
    """State of the store; lists are by partition."""

    unowned: list[int]  # partitions without a lease
    pending: list[int]  # observations appended and not yet done
    used_memory: int
    maxmemory: int  # 0: no limit


class AsyncStore:
    """The API's reads of committed state."""

    def __init__(self, client: redis.asyncio.Redis, partitions: int) -> None:
        self._client = client
        self._partitions = partitions
        self._look = Look()

    async def head(self, partition: int, stream: str) -> wire.Head | None:
        """Return a stream's head, or None when there is no such stream (any more)."""
        blob = await cast(Any, self._client.hget(keys.heads(partition), stream))
        if blob is None:
            return None
        head: wire.Head = decoded(wire.decode_head, blob, "head", stream)
        return None if head.deleted else head

    async def events(
        self, partition: int, stream: str, kinds: Collection[str] = CHANGES
    ) -> list[wire.Event]:
        """Return a stream's events of these kinds: changepoints by id, then anomalies by id.

        Raises UnreadablePart.
        """
        found: list[wire.Event] = []
        for kind, key, part in EVENTS:
            if kind in kinds:
                blobs = await cast(Any, self._client.hgetall(key(partition, stream)))
                events = all_decoded(wire.decode_event, blobs, part, stream)
                found += sorted(events, key=lambda event: event.id)
        return found

    async def hindsight(self, partition: int, stream: str) -> wire.Hindsight | None:
        """Return a stream's segmentation in hindsight; None without one. Raises UnreadablePart."""
        blob = await cast(Any, self._client.hget(keys.hindsight(partition), stream))
        return hindsight_of(stream, blob)

    async def stage(self, partition: int, token: str, blob: bytes) -> None:
        """Leave a snapshot for a partition's worker, for a while."""
        await self._client.set(keys.staged(partition, token), blob, px=STAGED_MS)

    async def parts(self, partition: int, stream: str) -> Parts | None:
        """Return all that is kept of a stream, as of one commit; None when there is no stream."""
        async with self._client.pipeline(transaction=True) as pipe:
            pipe.hget(keys.heads(partition), stream)
            for key in keys.HASHES.values():
                pipe.hgetall(key(partition, stream))
            blob, *found = await pipe.execute()
        if blob is None:
            return None
        head: wire.Head = decoded(wire.decode_head, blob, "head", stream)
        if head.deleted:
            return None
        states, tail, history, events, idempotency, changes, anomalies = found
        named = f"{head.generation}:{head.checkpoint}"
        held = states.get(named.encode())
        if head.checkpoint and held is None:
            raise UnreadablePart(
                f"the checkpoint of {stream!r} at seq {head.checkpoint} is missing"
            )
        records = [r for n, chunk in history.items() for r in unseal(stream, _text(n), chunk)]
        records += all_decoded(wire.decode_record, tail, "tail", stream)
        by_seq = {record.seq: record for record in records if record.seq < head.seq}
        return Parts(
            head,
            None if held is None else decoded(state, held, "checkpoint", stream, named),
            [by_seq[seq] for seq in sorted(by_seq)],
            all_decoded(wire.decode_event, events, "event", stream),
            _outcomes(idempotency, stream),
            all_decoded(wire.decode_change, changes, "change", stream),
            all_decoded(wire.decode_event, anomalies, "anomaly", stream),
        )

    async def records(
        self, partition: int, stream: str, head: wire.Head, start: int, stop: int
    ) -> list[wire.Record]:
        """Return the retained records with seq in [start, stop), ascending.

        Raises UnreadablePart.
        """
        start, stop = max(start, head.seq - head.settings.history, 0), min(stop, head.seq)
        if start >= stop:
            return []
        blob, records, absent = await self._retained(partition, stream, head, start, stop)
        if blob is not None:
            now: wire.Head = decoded(wire.decode_head, blob, "head", stream)
            if now.generation == head.generation and not now.deleted:
                _check_complete(stream, now, records, absent, range(start, stop))
        return records

    async def following(
        self, partition: int, stream: str, head: wire.Head, start: int, stop: int
    ) -> tuple[bytes | None, list[wire.Record]]:
        """Return the head as stored, and with it the records with seq in [start, stop).

        `head` says where to look for them. They are those that are stored: some may lie before
        what the stream retains, and go with the next commit.
        """
        return (await self._retained(partition, stream, head, start, stop))[:2]

    async def _retained(
        self, partition: int, stream: str, head: wire.Head, start: int, stop: int
    ) -> tuple[bytes | None, list[wire.Record], list[int]]:
        """Return what `following` does, and the numbers of chunks that are not there."""
        numbers = range(chunk_of(stream, start), chunk_of(stream, stop - 1) + 1)
        seqs = range(max(start, head.sealed), stop)
        # In one transaction, and chunks up to the end: a commit after `head` was read may have
        # sealed what was then in the tail.
        async with self._client.pipeline(transaction=True) as pipe:
            pipe.hget(keys.heads(partition), stream)
            pipe.hmget(keys.history(partition, stream), [str(number) for number in numbers])
            if seqs:
                pipe.hmget(keys.tail(partition, stream), [str(seq) for seq in seqs])
            blob, chunks, *tails = await pipe.execute()
        both = zip(numbers, chunks, strict=True)
        records = [record for n, chunk in both if chunk for record in unseal(stream, n, chunk)]
        records += [
            decoded(wire.decode_record, each, "tail", stream, seq)
            for tail in tails
            for seq, each in zip(seqs, tail, strict=True)
            if each
        ]
        by_seq = {record.seq: record for record in records if start <= record.seq < stop}
        absent = [number for number, chunk in zip(numbers, chunks, strict=True) if chunk is None]
        return blob, [by_seq[seq] for seq in sorted(by_seq)], absent

    async def heads(self, streams: Iterable[tuple[int, Name]]) -> dict[Name, bytes | None]:
        """Return the heads of (partition, stream) as stored, tombstones included.

        Names may be text, or bytes as they are stored.
        """
        return await overview.fetch_heads(self._client, streams)

    async def partition_names(self, prefix: str, limit: int) -> list[list[bytes]]:
        """Return up to `limit` names of living streams of each partition, as stored."""
        low, high = b"[" + prefix.encode(), b"(" + prefix.encode() + b"\xff"
        return await self._names_between(low, high if prefix else b"+", limit)

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
        ids = [_text(id_) for id_ in page[:limit]]
        return ids, ids[-1] if len(page) > limit and ids else None

    async def count(self, prefix: str) -> int:
        """Return how many living streams have an id that starts with `prefix`."""
        low, high = b"[" + prefix.encode(), b"(" + prefix.encode() + b"\xff"
        return await overview.count(self._client, self._partitions, low, high if prefix else b"+")

    async def overview(
        self, streams: Sequence[tuple[int, str]], labels: int
    ) -> tuple[list[Row], list[str]]:
        """Return heads and last labels of streams that are there, and who cannot be read."""
        return await overview.read(self._client, streams, labels)

    async def last(
        self, streams: Sequence[tuple[int, str]], heads: Mapping[str, bytes | None]
    ) -> tuple[list[Last], list[str]]:
        """Return the last record of streams that have a head, and who cannot be read.

        heads: as `heads` returned them.
        """
        return await overview.last(self._client, streams, heads)

    async def around(
        self, places: Sequence[regimes.Place], before: int, after: int
    ) -> list[regimes.Stored]:
        """Return what is stored around changes, for `regimes.decode`."""
        return await regimes.fetch(self._client, places, before, after)

    async def _names_between(self, low: bytes, high: bytes, count: int) -> list[list[bytes]]:
        async with self._client.pipeline(transaction=False) as pipe:
            for partition in range(self._partitions):
                pipe.zrangebylex(keys.names(partition), cast(Any, low), cast(Any, high), 0, count)
            return cast(list[list[bytes]], await pipe.execute())

    async def changes(
        self, partition: int, stream: str, start: int, stop: int
    ) -> list[wire.Change]:
        """Return the settings changed at positions in [start, stop), in order.

        Raises UnreadablePart, also for one that belongs elsewhere.
        """
        found = await cast(Any, self._client.hgetall(keys.changes(partition, stream)))
        every = all_decoded(wire.decode_change, found, "change", stream)
        inside = [change for change in every if start <= change.seq < stop]
        inside.sort(key=lambda change: (change.seq, change.number, change.time_ms))
        return inside

    async def expired(self, now_ms: int, most: int) -> list[str]:
        """Return up to `most` streams of each partition whose time to live is over."""
        async with self._client.pipeline(transaction=False) as pipe:
            for partition in range(self._partitions):
                pipe.zrangebyscore(keys.due(partition), "-inf", now_ms, 0, most)
            return [_text(name) for row in await pipe.execute() for name in row]

    async def uncalibrated(self, most: int) -> list[str]:
        """Return up to `most` streams of each partition whose sensitivity is to be calibrated."""
        async with self._client.pipeline(transaction=False) as pipe:
            for partition in range(self._partitions):
                pipe.zrange(keys.uncalibrated(partition), 0, most - 1)
            return [_text(name) for row in await pipe.execute() for name in row]

    async def canaries(self) -> tuple[dict[str, Canary], list[str]]:
        """Return all canaries by the name of their model, and those that cannot be read."""
        found, unreadable = {}, []
        for name, blob in (await cast(Any, self._client.hgetall(keys.CANARIES))).items():
            model = _text(name)
            try:
                found[model] = decoded(canaries.decode, blob, "canary", model)
            except UnreadablePart:
                unreadable.append(model)
        return found, unreadable

    async def put_canary(self, name: str, canary: Canary | None) -> None:
        """Set a model's canary, or end it."""
        if canary is None:
            await cast(Any, self._client.hdel(keys.CANARIES, name))
        else:
            blob = wire.checksummed(canaries.encode(canary), "canary", name)
            await cast(Any, self._client.hset(keys.CANARIES, name, blob))

    async def outcomes(
        self, incarnation: str, wanted: Iterable[tuple[int, int]]
    ) -> dict[int, wire.Outcome | UnreadablePart]:
        """Return what is committed of commands, given as (partition, number), by number.

        One that cannot be read is an error in its place.
        """
        by_key: defaultdict[str, list[int]] = defaultdict(list)
        for partition, number in wanted:
            by_key[keys.outcomes(partition, incarnation, number)].append(number)
        async with self._client.pipeline(transaction=False) as pipe:
            for key, numbers in by_key.items():
                pipe.hmget(key, [str(number) for number in numbers])
            rows = await pipe.execute() if by_key else []
        return {
            number: _outcome(blob, incarnation, number)
            for numbers, row in zip(by_key.values(), rows, strict=True)
            for number, blob in zip(numbers, row, strict=True)
            if blob is not None
        }

    async def condition(self) -> Condition:
        """Say what else there is to watch; raises a RedisError when the store does not answer."""
        return await self._look.at(self._client, self._partitions)

    async def health(self) -> Health:
        """Ask the store how it is; raises a RedisError when it does not answer."""
        every = range(self._partitions)
        cluster = self._client if isinstance(self._client, AsyncCluster) else None
        async with self._client.pipeline(transaction=False) as pipe:
            for partition in every:
                pipe.exists(keys.lease(partition))
                pipe.hmget(keys.meta(partition), ["in", "done"])
            if cluster is None:
                pipe.info("memory")
            rest = await pipe.execute()
        memory = rest.pop() if cluster is None else await cluster.memory()
        return Health(
            unowned=[partition for partition in every if not rest[2 * partition]],
            pending=[_count(appended) - _count(done) for appended, done in rest[1::2]],
            used_memory=int(memory["used_memory"]),
            maxmemory=int(memory["maxmemory"]),
        )


def _outcome(blob: bytes, incarnation: str, number: int) -> wire.Outcome | UnreadablePart:
    try:
        found: wire.Outcome = decoded(wire.decode_outcome, blob, "outcome", incarnation, number)
    except UnreadablePart as error:
        return error
    return found


def _outcomes(stored: dict[bytes, bytes], stream: str) -> dict[bytes, bytes]:
    """Encoded idempotency records by field, without checksums: they may get another stream."""
    found = {}
    for field, blob in stored.items():
        record = decoded(wire.decode_idempotency, blob, "idempotency", stream)
        if record.field != field:
            raise UnreadablePart(f"an idempotency record of {stream!r} has another stream's name")
        found[field] = wire.encode(record)
    return found


def _check_complete(
    stream: str,
    head: wire.Head,
    records: Sequence[wire.Record],
    absent: Sequence[int],
    wanted: range,
) -> None:
    """Raise UnreadablePart where a wanted record is missing that `head` retains.

    absent: chunks that are not there.
    """
    for number in absent:
        if head.oldest <= number < chunk_of(stream, head.sealed):
            raise UnreadablePart(f"chunk {number} of {stream!r} is missing")
    first = max(wanted.start, head.seq - head.settings.history, first_of(stream, head.oldest))
    if chunk_of(stream, first) == head.oldest and first < head.sealed:
        # It may begin with an observation that never was here: that of an imported stream.
        first = min((record.seq for record in records), default=wanted.stop)
    there = {record.seq for record in records}
    gone = [seq for seq in range(first, min(wanted.stop, head.seq)) if seq not in there]
    if gone:
        raise UnreadablePart(f"observation {gone[-1]} of {stream!r} is missing")


def _text(name: bytes) -> str:
    """Return a name of a list; a damaged one is shown as far as it goes."""
    return name.decode(errors="backslashreplace")


def _count(value: bytes | None) -> int:
    """Return a counter; what is none counts nothing, until its partition is next acquired."""
    return int(value) if value and value.isdigit() else 0


class Condition(NamedTuple):
    """State of the log and of what keeps it."""

    oldest_pending_s: float  # 0: nothing waits
    append_only: bool  # on every server
    append_only_failing: bool  # the last write or rewrite of the file failed


class Look:
    """Asks for it."""

    def __init__(self) -> None:
        self._oldest = Script("oldest")

    async def at(self, client: redis.asyncio.Redis, partitions: int) -> Condition:
        """Return the condition of a store; raises a RedisError when it does not answer.

        A log that cannot be read counts as empty: its worker reports it.
        """
        calls = [Call([keys.log(partition)], []) for partition in range(partitions)]
        ages = await self._oldest.run_all_async(client, calls)
        oldest_ms = max((age for age in ages if isinstance(age, int)), default=0)
        servers = await _persistence(client)
        kept = all(_kept(each) for each in servers)
        return Condition(oldest_ms / 1000, kept, any(_failing(each) for each in servers))


async def _persistence(client: Any) -> list[dict[str, Any]]:
    """INFO's persistence of the server, or of each primary of a cluster."""
    if not isinstance(client, RedisCluster):
        return [await client.info("persistence")]
    await client.initialize()
    nodes = client.get_primaries()
    ask = cast(Any, client.execute_command)
    found = await ask("INFO", "persistence", target_nodes=nodes)
    return [found] if len(nodes) == 1 else list(found.values())


def _kept(server: dict[str, Any]) -> bool:
    return bool(int(server.get("aof_enabled", 0)))


def _failing(server: dict[str, Any]) -> bool:
    said = (server.get("aof_last_write_status"), server.get("aof_last_bgrewrite_status"))
    return _kept(server) and any(each != "ok" for each in said)
