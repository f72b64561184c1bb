"""Order and search of the overview beyond the order of ids, which the store has itself."""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from service import wire
from service.api.gateway.changes import Changes
from service.api.gateway.reads import from_store
from service.api.gateway.sorted_cursor import SortedCursor
from service.errors.base import FieldError, InvalidField
from service.schema.commands import OverviewQuery
from service.store import keys
from service.store.api_reads import AsyncStore
from service.store.worker_reads import CorruptState, decoded

MOST = 50_000  # streams that a page is chosen of: some 0.4 kB each of this process's memory
AT_ONCE = 2000  # heads that are read together: some 2 MB
FRESH_S = 3.0  # how long a value counts: a console asks every 4 s, several ask at once
Rank = tuple[float, str]
_cursor: SortedCursor[Rank] = SortedCursor(Rank)


class Chosen(NamedTuple):
    """Ids of a page, in order, the number of streams on all pages, and the next cursor."""

    names: list[str]
    total: int
    cursor: str | None


class Ranking:
    """Chooses the streams of a page: of those that contain a text, the first by a value."""

    def __init__(
        self, store: AsyncStore, changes: Changes, partitions: int, thread: Executor
    ) -> None:
        self._store, self._changes, self._partitions = store, changes, partitions
        self._thread = thread
        self._values: dict[str, tuple[float, float]] = {}  # P(changed), and until when it counts
        self._reading = asyncio.Lock()

    async def page(self, query: OverviewQuery) -> Chosen:
        """Return a page; raises InvalidField for a cursor that is none, and for too many streams.

        With `sort=changed_probability` values are up to FRESH_S old.
        """
        after = _cursor.decode(query.cursor, query.sort)
        total = await from_store(self._store.count(query.prefix))
        if total > MOST:
            detail = (
                f"for `contains` and `sort` expected at most {MOST:,} streams with the prefix "
                f"{query.prefix!r}, got {total:,}: give a longer prefix"
            )
            raise InvalidField([FieldError("query.prefix", detail)])
        names, _ = await from_store(self._store.names(query.prefix, None, MOST))
        names = [name for name in names if query.contains in name]
        values = await self._by(query.sort, names)
        ranks = [(-values.get(name, -math.inf), name) for name in names]
        rest = ranks if after is None else [rank for rank in ranks if rank > after]
        page = heapq.nsmallest(query.limit, rest)
        cursor = _cursor.encode(query.sort, page[-1]) if len(rest) > len(page) else None
        return Chosen([name for _, name in page], len(names), cursor)

    async def _by(self, sort: str, names: Sequence[str]) -> Mapping[str, float]:
        if sort == "change":
            return await self._changes.latest()
        return await self._changed(names) if sort == "changed_probability" else {}

    async def _changed(self, names: Sequence[str]) -> Mapping[str, float]:
        """Return P(changed) of streams that have one."""
        async with self._reading:  # those that wait find what the first has read
            now = time.monotonic()
            stale = [name for name in names if self._values.get(name, (0.0, 0.0))[1] < now]
            for first in range(0, len(stale), AT_ONCE):
                group = stale[first : first + AT_ONCE]
                pairs = {(keys.partition_of(name, self._partitions), name) for name in group}
                blobs = await from_store(self._store.heads(pairs))
                loop = asyncio.get_running_loop()
                read = await loop.run_in_executor(self._thread, _probabilities, blobs)
                self._values.update((name, (read[name], now + FRESH_S)) for name in read)
            if len(self._values) > 2 * MOST:  # streams of other prefixes, and deleted ones
                self._values = {name: self._values[name] for name in names if name in self._values}
        return {name: self._values[name][0] for name in names if name in self._values}


def _probabilities(blobs: Mapping[str, bytes | None]) -> dict[str, float]:
    """Return P(changed) by stream; -1 without one, and of a stream that cannot be read."""
    probabilities = {}
    for name, blob in blobs.items():
        try:
            head = decoded(wire.decode_head, blob, "head", name) if blob else None
        except CorruptState:  # the overview names it, where it is on a page
            head = None
        known = None if head is None else head.changed_probability
        probabilities[name] = -1.0 if known is None else known
    return probabilities
