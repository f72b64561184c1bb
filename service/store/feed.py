"""The feeds of all partitions: their entries as stored, and reads of them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from service.observability import metrics
from service.store import keys
from service.store.shards import AsyncStoreClient, entries_of, read_of
from service.tasks import end
from service.wire import checked
from service.wire.event_entries import START, FeedEntry, Id, Raised, decode, number_of, positions

log = logging.getLogger(__name__)
WAIT_MS = 1000  # longest blocking read: a server that does not answer is soon given up


class Reread(NamedTuple):
    """What a partition's feed has from a position on.

    there: whether it still has the entry at the position; without it `beyond` is empty. more:
    whether there may be more beyond.
    """

    there: bool
    beyond: list[FeedEntry]
    more: bool


class Feeds:
    """Follows the feeds with one client, and reads pages of them with another.

    `follow` has a blocking read for each group of feeds that one command may name. They go on
    after it returned, so that the first answer does not end the others.
    """

    def __init__(
        self, waiting: AsyncStoreClient, reading: AsyncStoreClient, partitions: int
    ) -> None:
        self._waiting = waiting
        self._reading = reading
        self.partitions = partitions
        self._reads: dict[tuple[str, ...], tuple[Mapping[str, str], asyncio.Task[Any]]] = {}

    async def close(self) -> None:
        """Give blocking reads up."""
        reads = self._reads
        self._reads = {}
        await end(*(task for _, task in reads.values()))

    async def newest(self) -> dict[int, Id]:
        """Return the last id of every partition's feed, without empty ones."""
        every = range(self.partitions)
        rows = await self._reading.all(
            ("XREVRANGE", keys.feed(partition), "+", "-", "COUNT", 1) for partition in every
        )
        return positions(
            (p, Id.parse(row[0][0])) for p, row in zip(every, rows, strict=True) if row
        )

    async def follow(self, after: Mapping[int, Id], count: int, block_ms: int) -> list[FeedEntry]:
        """Return up to `count` entries per partition beyond `after`, waiting for the first."""
        names = {keys.feed(p): p for p in range(self.partitions)}
        positions = {name: str(after.get(p, "0-0")) for name, p in names.items()}
        loop = asyncio.get_running_loop()
        until = loop.time() + block_ms / 1000
        replies: list[Any] = []
        while not any(replies) and loop.time() < until:
            self._begin(positions, count)
            tasks = [task for _, task in self._reads.values()]
            done, _ = await asyncio.wait(
                tasks, timeout=until - loop.time(), return_when=asyncio.FIRST_COMPLETED
            )
            self._reads = {g: read for g, read in self._reads.items() if read[1] not in done}
            replies = [task.result() for task in done]
        return [
            entry_of(names[name], id_, fields)
            for name, entries in entries_of(replies)
            for id_, fields in entries
        ]

    def _begin(self, positions: Mapping[str, str], count: int) -> None:
        """Have a blocking read of each group under way, from the positions on."""
        for group in self._waiting.shards.groups(positions):
            after = {name: positions[name] for name in group}
            before = self._reads.get(tuple(group))
            if before is not None and before[0] == after:
                continue
            if before is not None:
                before[1].cancel()
            words = read_of(after, count, WAIT_MS)
            read = asyncio.create_task(self._waiting.wait_for(words, WAIT_MS / 1000))
            self._reads[tuple(group)] = (after, read)

    async def reread(self, at: Mapping[int, Id], count: int) -> dict[int, Reread]:
        """Return up to `count` entries from each partition's position on, but that one."""
        rows = await self._reading.all(
            ("XRANGE", keys.feed(partition), str(id_), "+", "COUNT", count)
            for partition, id_ in at.items()
        )
        rereads = {}
        for (partition, position), row in zip(at.items(), rows, strict=True):
            there = position == START or bool(row and Id.parse(row[0][0]) == position)
            # The entry at the position was read before: to read it again tells of its damage again.
            new = row[position != START :] if there else []
            beyond = [entry_of(partition, id_, fields) for id_, fields in new]
            rereads[partition] = Reread(there, beyond, len(row) == count)
        return rereads

    async def oldest(self, partitions: Sequence[int]) -> dict[int, Id | None]:
        """Return the id of the oldest retained entry of each partition; None: it has none."""
        rows = await self._reading.all(
            ("XRANGE", keys.feed(partition), "-", "+", "COUNT", 1) for partition in partitions
        )
        pairs = zip(partitions, rows, strict=True)
        return {partition: Id.parse(row[0][0]) if row else None for partition, row in pairs}

    async def page(self, after: Mapping[int, Id], count: int) -> list[FeedEntry]:
        """Return up to `count` entries beyond `after` of each partition that it names."""
        rows = await self._reading.all(
            ("XRANGE", keys.feed(partition), f"({id_}", "+", "COUNT", count)
            for partition, id_ in after.items()
        )
        return [
            entry_of(partition, id_, fields)
            for partition, row in zip(after, rows, strict=True)
            for id_, fields in row
        ]


def entry_of(partition: int, id_: bytes, fields: dict[bytes, bytes]) -> FeedEntry:
    """Read one entry of a partition's feed.

    What is damaged counts as trimmed away: up to this very entry where it cannot be read.
    """
    at = Id.parse(id_)
    raised = readable(fields.get(b"e", b""), number_of(partition, at))
    before = before_of(id_, fields)
    return FeedEntry(partition, at, at if raised is None or before is None else before, raised)


def before_of(id_: bytes, fields: dict[bytes, bytes]) -> Id | None:
    """Return the id of the entry before one; None where it is damaged."""
    before = fields.get(b"b", b"0-0")
    digest = hashlib.sha1(id_ + b" " + before, usedforsecurity=False).hexdigest()  # by commit.lua
    if fields.get(b"c", digest[:8].encode()) != digest[:8].encode():
        return None
    try:
        return Id.parse(before)
    except ValueError:
        return None


def readable(blob: bytes, number: str) -> Raised | None:
    """Decode an entry; None if it cannot be read, which is logged and counted."""
    try:
        return decode(checked(blob, "feed", number))
    except (msgspec.MsgspecError, ValueError) as error:  # damaged, or text that is none
        log.warning("cannot read event %s: %s", number, error)
        metrics.CORRUPT_STATES.inc()
        return None
