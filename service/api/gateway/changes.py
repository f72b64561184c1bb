"""Changes of all streams: an index of the event feeds, read on at every request."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np

from moca_client.responses import ChangesPage, StreamChange, Timeline
from model_core.segmentation import NEAR
from service import wire
from service.api.gateway.explanations import Explanations
from service.api.gateway.reads import TIMEOUT_S, from_store, without
from service.api.gateway.sorted_cursor import SortedCursor
from service.problems import RedisUnavailable
from service.schema import rendering
from service.schema.queries import ChangesQuery, seconds_of
from service.store.feed import Feeds, Reread
from service.store.reads import AsyncStore, Place
from service.store.streams import UnreadablePart, decoded
from service.wire import tags
from service.wire.change_index import ChangeIndex, FoundChange
from service.wire.event_entries import Filter

READ_AT_ONCE = 1024  # entries, of all partitions: some 20 ms of decoding
_EARLIEST_S, _LATEST_S = -62_135_500_000.0, 253_402_200_000.0  # years 1 to 9999, for timelines
Rank = tuple[float, str, int, int]  # what changes are sorted by: value, stream, generation, id
T = TypeVar("T")
_cursor: SortedCursor[Rank] = SortedCursor(Rank)


class Changes:
    """Answers which streams changed, of what the feeds retain.

    thread: ranks. It may be that of the explanations: pages take turns in it.
    """

    def __init__(
        self,
        feeds: Feeds,
        store: AsyncStore,
        explanations: Explanations,
        console: bool,
        thread: Executor,
    ) -> None:
        self._feeds = feeds
        self._store = store
        self._explanations = explanations
        self._console = console
        self._thread = thread
        self._index = ChangeIndex(feeds.partitions)
        self._untrimmed: set[int] = set()  # partitions
        self._reading = asyncio.Lock()

    async def latest(self) -> dict[str, float]:
        """Return when each stream last changed, in seconds since 1970, as far as that is retained.

        By name: of a stream that is deleted until one of its name changes.
        """
        await self._read_on()
        return await self._apart(_latest, list(self._index.changes()))

    async def page(self, query: ChangesQuery, now_s: float) -> ChangesPage:
        """Return the page of a query; raises InvalidField for a cursor that is none."""
        after = _cursor.decode(query.cursor, query.sort)
        await self._read_on()
        every = list(self._index.changes())  # the index goes on meanwhile
        page, total, last, timeline = await self._apart(_ranked, every, query, now_s, after)
        placed = [self._index.between(found, NEAR) for found in page]
        rows, unreadable = await self._described(placed, query.explain)
        cursor = None if last is None else _cursor.encode(query.sort, last)
        left_out = without(unreadable, "changes")
        return ChangesPage(rows, total, timeline, cursor, left_out)

    async def _apart(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    async def _read_on(self) -> None:
        """Bring the index to where the feeds are now; raises RedisUnavailable."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._reading.acquire()
        except TimeoutError as error:
            detail = f"the event feeds were not read by other requests within {TIMEOUT_S:g} s"
            raise RedisUnavailable(f"{detail}: try again") from error
        try:
            await self._take_all()
        finally:
            self._reading.release()

    async def _take_all(self) -> None:
        behind = list(self._index.positions)
        while behind:
            count = max(16, READ_AT_ONCE // len(behind))
            at = {partition: self._index.positions[partition] for partition in behind}
            found = await from_store(self._feeds.reread(at, count))
            behind = [p for p, reread in found.items() if self._take(p, reread)]
            # Feeds are trimmed only where something is added. What an error leaves here is
            # trimmed by the next request.
            self._untrimmed.update(p for p in found if self._index.positions[p] != at[p])
            if self._untrimmed:
                oldest = await from_store(self._feeds.oldest(list(self._untrimmed)))
                for partition, id_ in oldest.items():
                    self._index.trim(partition, id_)
                self._untrimmed -= oldest.keys()

    def _take(self, partition: int, reread: Reread) -> bool:
        """Add what a partition's feed has beyond its position; whether there may be more."""
        if not reread.there:  # trimmed up to here, or the store was restored to an earlier state
            self._index.restart(partition)
            return True
        for entry in reread.beyond:
            self._index.add(entry)
        return reread.more

    async def _described(
        self, page: Sequence[FoundChange], explain: bool
    ) -> tuple[list[StreamChange], list[str]]:
        """Return the rows of a page, and the streams that cannot be read."""
        heads, unreadable = await self._heads(page)
        rows = [rendering.stream_change(found) for found in page]
        wanted: dict[int, FoundChange] = {}
        for i, (found, row) in enumerate(zip(page, rows, strict=True)):
            head = heads.get(found.stream)
            if head is not None and head.generation == found.generation:
                if self._console:
                    row.link = rendering.console_link(found.stream, found.event.start)
                if found.event.state != "withdrawn":
                    wanted[i] = found
        if explain and wanted:
            places = {i: _place(found, heads[found.stream]) for i, found in wanted.items()}
            sides, damaged = await self._explanations.of(places)
            for i, each in sides.items():
                rows[i].before = each.before
                rows[i].after = each.after
                rows[i].explanation = each.explanation
                rows[i].start_time = each.start_time
            unreadable.update(wanted[i].stream for i in damaged)
        return rows, sorted(unreadable)

    async def _heads(self, page: Sequence[FoundChange]) -> tuple[dict[str, wire.Head], set[str]]:
        """Return the heads of streams that are there, and the names of damaged ones."""
        streams = {(found.partition, found.stream) for found in page}
        blobs = await from_store(self._store.heads(streams)) if streams else {}
        heads: dict[str, wire.Head] = {}
        unreadable = set()
        for stream, blob in blobs.items():
            try:
                head = blob and decoded(wire.decode_head, blob, "head", stream)
            except UnreadablePart:
                unreadable.add(stream)
                continue
            if head and not head.deleted:
                heads[stream] = head
        return heads, unreadable


# --- which, and in which order ---------------------------------------------------------------


def _ranked(
    changes: Sequence[FoundChange], query: ChangesQuery, now_s: float, after: Rank | None
) -> tuple[list[FoundChange], int, Rank | None, Timeline | None]:
    """Return a page, how many changes fit, the last place if there are more pages, and a count."""
    fits, place = _filter(query, now_s), _RANKS[query.sort]
    fitting = [(place(each), each) for each in changes if fits(each)]
    rest = fitting if after is None else [each for each in fitting if each[0] > after]
    page = heapq.nsmallest(query.limit, rest, key=_first)
    last = page[-1][0] if len(rest) > len(page) else None
    timeline = _timeline([found for _, found in fitting], query, now_s)
    return [found for _, found in page], len(fitting), last, timeline


def _timeline(fitting: Sequence[FoundChange], query: ChangesQuery, now_s: float) -> Timeline | None:
    """Count changes in time, from `since` or the oldest on, to `until`, now or the newest.

    Those after now count in the last bin where `until` is not given.
    """
    if not query.bins or not fitting:
        return None
    times = np.array([found.seconds for found in fitting])
    confirmed = np.array([found.event.state == "confirmed" for found in fitting])
    since, until = seconds_of(query.since, now_s), seconds_of(query.until, now_s)
    first = float(times.min()) if since is None else since
    last = float(times.max()) if until is None else until
    if until is None and since is not None:  # one change dated in the future is no scale for all
        last = now_s
    first = min(max(first, _EARLIEST_S), _LATEST_S)
    last = max(min(last, _LATEST_S), first + 1e-3 * query.bins)
    inside = np.clip(times, first, last)
    counts = [
        np.histogram(inside[which], query.bins, (first, last))[0].tolist()
        for which in (confirmed, ~confirmed)
    ]
    return Timeline(
        rendering.instant(round(1e3 * first)), rendering.instant(round(1e3 * last)), *counts
    )


def _latest(changes: Sequence[FoundChange]) -> dict[str, float]:
    """Return the time of each stream's last change that was not withdrawn."""
    times: dict[str, float] = {}
    for found in changes:
        if found.event.state == "confirmed":
            times[found.stream] = max(found.seconds, times.get(found.stream, found.seconds))
    return times


def _filter(query: ChangesQuery, now_s: float) -> Callable[[FoundChange], bool]:
    """Return whether a change fits a query."""
    lets = Filter(
        prefixes=tuple(query.prefix),
        models=frozenset(query.model),
        states=frozenset(query.state),
        match=tuple(tags.parse(selector) for selector in query.match),
    ).lets
    since, until = seconds_of(query.since, now_s), seconds_of(query.until, now_s)
    least, sure = query.min_size, query.min_probability

    def fits(found: FoundChange) -> bool:
        return (
            (since is None or found.seconds >= since)
            and (until is None or found.seconds < until)
            and (least is None or magnitude(found) >= least)
            and (sure is None or found.event.probability >= sure)
            and query.contains in found.stream
            and lets(found.raised)  # what takes longest comes last
        )

    return fits


def magnitude(found: FoundChange) -> float:
    """Size of a change, of the output that moved most; -1: it has none."""
    size = rendering.largest(found.event.size)
    return -1.0 if size is None else size


def _by(value: Callable[[FoundChange], float]) -> Callable[[FoundChange], Rank]:
    """Return the order of which the change of the largest value comes first."""

    def place(found: FoundChange) -> Rank:
        raised = found.raised
        return -value(found), raised.stream, raised.generation, raised.event.id

    return place


_RANKS = {
    "time": _by(lambda found: found.seconds),
    "size": _by(magnitude),
    "probability": _by(lambda found: found.event.probability),
}
_first = itemgetter(0)


def _place(found: FoundChange, head: wire.Head) -> Place:
    start, previous, following = found.event.start, found.previous, found.following
    return Place(found.partition, found.stream, head, start, previous, following)
