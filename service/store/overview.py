"""Many streams at a glance: their heads and their last labels, in two rounds for all of them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import count as count_from
from typing import Any, NamedTuple, TypeVar, cast

import redis.asyncio

from service import wire
from service.store import keys
from service.store.worker_reads import UnreadablePart, chunk_of, decoded, unseal

Label = float | None
Name = TypeVar("Name", str, bytes)  # of a stream


class Row(NamedTuple):
    """One stream. labels: the first number of each of its last labels; None: a missing one."""

    stream: str
    head: wire.Head
    labels: list[Label]


async def read(
    client: redis.asyncio.Redis, streams: Sequence[tuple[int, str]], labels: int
) -> tuple[list[Row], list[str]]:
    """Return a row for each (partition, stream) that is there, and who cannot be read."""
    heads, unreadable = _decoded(streams, await fetch_heads(client, streams))
    if not labels:
        return [Row(stream, head, []) for _, stream, head in heads], unreadable
    async with client.pipeline(transaction=False) as pipe:
        for partition, stream, head in heads:
            # What a commit seals after `head` was read is missing from the tail, and then there.
            first = _first(head, labels)
            seqs = [str(seq) for seq in range(max(first, head.sealed), head.seq)]
            pipe.hmget(keys.tail(partition, stream), seqs or [""])
            last = max(first, head.seq - 1)
            chunks = range(chunk_of(stream, first), chunk_of(stream, last) + 1)
            pipe.hmget(keys.history(partition, stream), [str(number) for number in chunks])
        found = await pipe.execute()
    rows, more = await asyncio.to_thread(_rows, heads, found, labels)
    return rows, sorted(unreadable + more)


class Last(NamedTuple):
    """One stream with its last record; None: it has none, or none is retained."""

    stream: str
    head: wire.Head
    record: wire.Record | None


async def last(
    client: redis.asyncio.Redis,
    streams: Sequence[tuple[int, str]],
    blobs: Mapping[str, bytes | None],
) -> tuple[list[Last], list[str]]:
    """Return the last record of each (partition, stream) that is there, and who cannot be read.

    blobs: their heads as stored. What is sealed since they were read is found where it is now.
    """
    heads, unreadable = _decoded(streams, blobs)
    async with client.pipeline(transaction=False) as pipe:
        for partition, stream, head in heads:
            pipe.hget(keys.tail(partition, stream), str(head.seq - 1))
        tails = await pipe.execute()
    # Of those that are sealed the tail is trimmed, now or after it was read.
    sealed = [i for i, blob in enumerate(tails) if blob is None and heads[i][2].seq]
    async with client.pipeline(transaction=False) as pipe:
        for partition, stream, head in (heads[i] for i in sealed):
            pipe.hget(keys.history(partition, stream), str(chunk_of(stream, head.seq - 1)))
        chunks = dict(zip(sealed, await pipe.execute() if sealed else [], strict=True))
    rows = []
    for i, (_, stream, head) in enumerate(heads):
        try:
            rows.append(Last(stream, head, _last(stream, head, tails[i], chunks.get(i))))
        except UnreadablePart:
            unreadable.append(stream)
    return rows, sorted(unreadable)


def _last(
    stream: str, head: wire.Head, tail: bytes | None, chunk: bytes | None
) -> wire.Record | None:
    seq = head.seq - 1
    if tail is not None:
        return cast(wire.Record, decoded(wire.decode_record, tail, "tail", stream, seq))
    if chunk is None:
        return None
    records = unseal(stream, chunk_of(stream, seq), chunk)
    return next((record for record in records if record.seq == seq), None)


async def count(client: redis.asyncio.Redis, partitions: int, low: bytes, high: bytes) -> int:
    """Return how many ids of living streams there are between two bounds."""
    async with client.pipeline(transaction=False) as pipe:
        for partition in range(partitions):
            pipe.zlexcount(keys.names(partition), cast(Any, low), cast(Any, high))
        return sum(await pipe.execute())


async def fetch_heads(
    client: redis.asyncio.Redis, streams: Iterable[tuple[int, Name]]
) -> dict[Name, bytes | None]:
    """Return the heads of (partition, stream) as stored, tombstones included."""
    by_partition: defaultdict[int, list[Name]] = defaultdict(list)
    for partition, stream in streams:
        by_partition[partition].append(stream)
    async with client.pipeline(transaction=False) as pipe:
        for partition, names in by_partition.items():
            pipe.hmget(keys.heads(partition), cast(Any, names))
        rows = await pipe.execute()
    every = zip(by_partition.values(), rows, strict=True)
    return {s: blob for names, row in every for s, blob in zip(names, row, strict=True)}


def _decoded(
    streams: Sequence[tuple[int, str]], blobs: Mapping[str, bytes | None]
) -> tuple[list[tuple[int, str, wire.Head]], list[str]]:
    """Return the heads of those that are there, in the order asked for, and who cannot be read."""
    found, unreadable = [], []
    for partition, stream in streams:
        if (blob := blobs[stream]) is None:
            continue
        try:
            head = decoded(wire.decode_head, blob, "head", stream)
        except UnreadablePart:
            unreadable.append(stream)
            continue
        if not head.deleted:
            found.append((partition, stream, head))
    return found, unreadable


def _rows(
    heads: list[tuple[int, str, wire.Head]], found: list[Any], labels: int
) -> tuple[list[Row], list[str]]:
    rows, unreadable = [], []
    for i, (_, stream, head) in enumerate(heads):
        try:
            last = _labels(stream, head, found[2 * i], found[2 * i + 1], labels)
        except UnreadablePart:
            unreadable.append(stream)
            continue
        rows.append(Row(stream, head, last))
    return rows, unreadable


def _labels(
    stream: str,
    head: wire.Head,
    tail: Iterable[bytes | None],
    chunks: Iterable[bytes | None],
    labels: int,
) -> list[Label]:
    first = _first(head, labels)
    numbers, seqs = count_from(chunk_of(stream, first)), count_from(max(first, head.sealed))
    records = [
        r for n, blob in zip(numbers, chunks, strict=False) if blob for r in unseal(stream, n, blob)
    ]
    records += [
        decoded(wire.decode_record, blob, "tail", stream, seq)
        for seq, blob in zip(seqs, tail, strict=False)
        if blob
    ]
    by_seq = {record.seq: record for record in records if first <= record.seq < head.seq}
    return [_one(by_seq[seq].y) for seq in sorted(by_seq)]


def _first(head: wire.Head, labels: int) -> int:
    """Position of the first of the last labels."""
    return max(0, head.seq - min(labels, head.settings.history))


def _one(label: wire.Label) -> Label:
    return label[0] if isinstance(label, list) else label
