"""The feeds of all partitions: their entries as stored, reads of them, the changes and incidents
in what they retain, and the fleet of streams that these are of.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

import msgspec

from model_core.incidents import DAY_S, Tagged
from service import wire
from service.observability import metrics
from service.store import keys
from service.store.reads import AsyncStore
from service.store.shards import AsyncStoreClient, entries_of, read_of
from service.store.streams import StoredHead, living_heads
from service.tasks import apart, bounded
from service.wire import Id, checked
from service.wire.event_entries import CHANGES, START, FeedEntry, Raised, decode, number_of
from service.wire.incidents import ChangeIndex, Fleet, FoundIncidents, Member, find

log = logging.getLogger(__name__)


class Reread(NamedTuple):
    """What a partition's feed has from a position on.

    there: whether it still has the entry at the position; without it `beyond` is empty. more:
    whether there may be more beyond.
    """

    there: bool
    beyond: list[FeedEntry]
    more: bool


class Feeds:
    """Reads of the feeds."""

    def __init__(self, client: AsyncStoreClient, partitions: int) -> None:
        self._client = client
        self.partitions = partitions

    async def newest(self) -> dict[int, Id]:
        """Return the last id of every partition's feed, without empty ones."""
        every = range(self.partitions)
        rows = await self._client.all(
            ("XREVRANGE", keys.feed(partition), "+", "-", "COUNT", 1) for partition in every
        )
        ids = {p: Id.parse(row[0][0]) for p, row in zip(every, rows, strict=True) if row}
        return {partition: id_ for partition, id_ in ids.items() if id_ > START}

    async def grown(self, after: Mapping[int, Id], count: int) -> dict[int, Id]:
        """Return how far the feeds go beyond `after`, those that do; counting `count` entries."""
        names = {keys.feed(p): p for p in range(self.partitions)}
        positions = {name: str(after.get(p, START)) for name, p in names.items()}
        replies = await self._client.run(
            read_of({name: positions[name] for name in group}, count)
            for group in self._client.shards.groups(positions)
        )
        return {names[name]: Id.parse(entries[-1][0]) for name, entries in entries_of(replies)}

    async def reread(self, at: Mapping[int, Id], count: int) -> dict[int, Reread]:
        """Return up to `count` entries from each partition's position on, but that one."""
        rows = await self._client.all(
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
        rows = await self._client.all(
            ("XRANGE", keys.feed(partition), "-", "+", "COUNT", 1) for partition in partitions
        )
        pairs = zip(partitions, rows, strict=True)
        return {partition: Id.parse(row[0][0]) if row else None for partition, row in pairs}

    async def page(self, after: Mapping[int, Id], count: int) -> list[FeedEntry]:
        """Return up to `count` entries beyond `after` of each partition that it names."""
        rows = await self._client.all(
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


# --- changes and incidents ------------------------------------------------------------------------

READ_AT_ONCE = 1024  # entries, of all partitions: some 20 ms of decoding
TIMEOUT_S = 5.0
HEADS_AT_ONCE = 2000
MOST_STREAMS = 50_000  # of a fleet whose tags and paces are read: some 0.5 kB of memory each
FRESH_S = 10.0  # how long they count
SHARE = 20  # they count for so many times what it took to read them, at least
OF_INCIDENTS = frozenset({"change", "returned"})
KNOWN_S = 3600.0  # of a stream's life, until its pace is known


class ChangeFeed:
    """Changes of all streams, of what the feeds retain.

    index: as it was when it was last read on.
    """

    def __init__(self, feeds: Feeds) -> None:
        self.index = ChangeIndex(feeds.partitions)
        self._feeds = feeds
        self._untrimmed: set[int] = set()  # partitions
        self._reading = asyncio.Lock()

    async def read_on(self) -> None:
        """Bring the index to where the feeds are now; raises RedisError, TimeoutError."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._reading.acquire()
        except TimeoutError as error:
            raise TimeoutError(
                f"other readers of the event feeds take over {TIMEOUT_S:g} s"
            ) from error
        try:
            await self._take_all()
        finally:
            self._reading.release()

    async def _take_all(self) -> None:
        behind = list(self.index.positions)
        while behind:
            count = max(16, READ_AT_ONCE // len(behind))
            at = {partition: self.index.positions[partition] for partition in behind}
            rereads = await bounded(self._feeds.reread(at, count), TIMEOUT_S)
            behind = []
            for partition, reread in rereads.items():
                if not reread.there:  # trimmed up to here, or restored to an earlier state
                    self.index.restart(partition)
                for entry in reread.beyond:
                    self.index.add(entry)
                if reread.more or not reread.there:
                    behind.append(partition)
            # Feeds are trimmed only where something is added. What an error leaves here is
            # trimmed by the next reader.
            self._untrimmed.update(p for p in rereads if self.index.positions[p] != at[p])
            if self._untrimmed:
                oldest = await bounded(self._feeds.oldest(list(self._untrimmed)), TIMEOUT_S)
                for partition, id_ in oldest.items():
                    self.index.trim(partition, id_)
                self._untrimmed -= oldest.keys()


class IncidentFeed:
    """Finds incidents in a feed of changes.

    thread: groups, and decodes the fleet.
    """

    def __init__(self, store: AsyncStore, changes: ChangeFeed, thread: Executor) -> None:
        self._store = store
        self._changes = changes
        self._thread = thread
        self._reading = asyncio.Lock()
        self._fleet = Fleet({}, 0, [], Tagged(()))
        self._fresh_until = 0.0
        self._last: dict[frozenset[str], tuple[list[Id], Fleet, FoundIncidents]] = {}

    async def found(self, kinds: frozenset[str] = CHANGES) -> FoundIncidents:
        """Return all incidents of changes of these kinds; raises RedisError, TimeoutError."""
        kinds &= OF_INCIDENTS
        await self._changes.read_on()
        index = self._changes.index
        positions = list(index.positions.values())
        fleet = await self.fleet()
        last = self._last.get(kinds)
        if last is not None and last[0] == positions and last[1] is fleet:
            return last[2]
        changes = list(index.changes())
        found = await apart(self._thread, find, changes, fleet, kinds)
        self._last[kinds] = positions, fleet, found
        return found

    async def fleet(self) -> Fleet:
        """Return the tags and paces of all streams, some FRESH_S old; raises as `found` does."""
        async with self._reading:  # those that wait find what the first has read
            if time.monotonic() < self._fresh_until:
                return self._fleet
            began = time.monotonic()
            rows = await bounded(self._store.partition_names("", MOST_STREAMS), TIMEOUT_S)
            names = [name for row in rows for name in row]
            streams = len(names)
            if streams > MOST_STREAMS:  # those of every partition, so that their shares are alike
                share = MOST_STREAMS // len(rows)
                streams = await bounded(self._store.count(""), TIMEOUT_S)
                names = [name for row in rows for name in row[:share]]
            members: dict[str, Member] = {}
            unreadable: list[str] = []
            for first in range(0, len(names), HEADS_AT_ONCE):
                some = names[first : first + HEADS_AT_ONCE]
                heads = await bounded(self._store.heads(some), TIMEOUT_S)
                read, damaged = await apart(self._thread, _members, heads)
                members |= read
                unreadable += damaged
            tags = [member.tags for member in members.values()]
            tagged = await apart(self._thread, Tagged, tags)
            self._fleet = Fleet(members, streams, unreadable, tagged)
            ended = time.monotonic()
            self._fresh_until = ended + max(FRESH_S, SHARE * (ended - began))
            return self._fleet


def _members(stored: Mapping[bytes, StoredHead | None]) -> tuple[dict[str, Member], list[str]]:
    """Return what heads say, and the names of damaged ones."""
    heads, unreadable = living_heads({keys.text_of(name): own for name, own in stored.items()})
    members = {
        stream: Member(
            head.settings.model, head.settings.tags, _per_day(head), head.settings.threshold
        )
        for stream, head in heads.items()
    }
    return members, unreadable


def _per_day(head: wire.Head) -> float | None:
    """Observations of a stream a day; None: it is too young, or on its clients' clock."""
    if head.pace is not None and head.pace.per_day is not None:
        return head.pace.per_day
    if head.settings.interval is not None:
        return DAY_S / head.settings.interval
    alive_s = (head.updated_ms - head.created_ms) / 1000
    if head.last_time is not None or alive_s < KNOWN_S:
        return None
    return head.seq * DAY_S / alive_s
