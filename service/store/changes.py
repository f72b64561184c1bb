"""Changes and incidents of what the feeds retain, and the fleet of streams that they are of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import Executor

from model_core.incidents import DAY_S, Tagged
from service import wire
from service.store import keys
from service.store.feed import Feeds, Reread
from service.store.reads import AsyncStore
from service.store.streams import StoredHead, living_heads
from service.tasks import apart, bounded
from service.wire.change_index import ChangeIndex
from service.wire.event_entries import CHANGES, Id
from service.wire.incidents import Fleet, FoundIncidents, Member, find

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
            behind = [p for p, reread in rereads.items() if self._take(p, reread)]
            # Feeds are trimmed only where something is added. What an error leaves here is
            # trimmed by the next reader.
            self._untrimmed.update(p for p in rereads if self.index.positions[p] != at[p])
            if self._untrimmed:
                oldest = await bounded(self._feeds.oldest(list(self._untrimmed)), TIMEOUT_S)
                for partition, id_ in oldest.items():
                    self.index.trim(partition, id_)
                self._untrimmed -= oldest.keys()

    def _take(self, partition: int, reread: Reread) -> bool:
        """Add what a partition's feed has beyond its position; whether there may be more."""
        if not reread.there:  # trimmed up to here, or the store was restored to an earlier state
            self.index.restart(partition)
            return True
        for entry in reread.beyond:
            self.index.add(entry)
        return reread.more


class IncidentFeed:
    """Finds incidents in a feed of changes.

    thread: groups, and decodes the fleet.
    """

    def __init__(self, store: AsyncStore, changes: ChangeFeed, thread: Executor) -> None:
        self._store = store
        self._changes = changes
        self._thread = thread
        self._reading = asyncio.Lock()
        self._fleet = Fleet({}, 0, [], Tagged.of([]))
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
            names = [(partition, name) for partition, row in enumerate(rows) for name in row]
            streams = len(names)
            if streams > MOST_STREAMS:  # those of every partition, so that their shares are alike
                share = MOST_STREAMS // len(rows)
                streams = await bounded(self._store.count(""), TIMEOUT_S)
                names = [(i, name) for i, row in enumerate(rows) for name in row[:share]]
            members: dict[str, Member] = {}
            unreadable: list[str] = []
            for first in range(0, len(names), HEADS_AT_ONCE):
                some = names[first : first + HEADS_AT_ONCE]
                heads = await bounded(self._store.heads(some), TIMEOUT_S)
                read, damaged = await apart(self._thread, _members, heads)
                members |= read
                unreadable += damaged
            tags = [member.tags for member in members.values()]
            tagged = await apart(self._thread, Tagged.of, tags)
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
