"""Changes of all streams, and what the history of a stream has on both sides of each.

An index of the event feeds, read on at every request, has the changes; explanations of those on a
page are computed of the histories.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np

from moca_client.responses import ChangesPage, Mover, StreamChange, Timeline
from model_core.explanation import AFTER, BEFORE
from model_core.stream.segmentation import NEAR
from service import wire
from service.api.gateway.reads import SortedCursor, from_store, without
from service.problems import CorruptState
from service.schema import rendering
from service.schema.queries import ChangesQuery, seconds_of
from service.schema.sides import Sides, sides_of
from service.store import reads
from service.store.changes import ChangeFeed
from service.store.incidents import IncidentFeed
from service.store.reads import AsyncStore, ChangePlace, StoredAround
from service.store.streams import UnreadablePart, decoded
from service.wire import tags
from service.wire.change_index import FoundChange
from service.wire.event_entries import Filter
from service.wire.incidents import Fleet, shared

EXPLANATIONS_KEPT = 5000
TRIES = 3  # of reading a history while commits move its records
EXPLAINED_AT_ONCE = 20  # changes whose histories are read together: some 5,000 labels
ChangeRank = tuple[float, str, int, int]  # value that is sorted by, stream, generation, id
# The beginning and the end of what was looked at, and where seasons were last found or given up:
# the last labels are less other seasons from then on.
Seen = tuple[int, int, int | None]
T = TypeVar("T")
_cursor: SortedCursor[ChangeRank] = SortedCursor(ChangeRank)


class ChangePages:
    """Answers which streams changed, of what the feeds retain.

    thread: ranks. It may be that of the explanations: pages take turns in it.
    """

    def __init__(
        self,
        feed: ChangeFeed,
        store: AsyncStore,
        incidents: IncidentFeed,
        explanations: Explanations,
        console: bool,
        thread: Executor,
    ) -> None:
        self._feed = feed
        self._store = store
        self._incidents = incidents
        self._explanations = explanations
        self._console = console
        self._thread = thread

    async def latest(self) -> dict[str, float]:
        """Return when each stream last changed, in seconds since 1970, as far as that is retained.

        By name: of a stream that is deleted until one of its name changes.
        """
        return await self._apart(_latest, await self.all())

    async def all(self) -> list[FoundChange]:
        """Return every change that the feeds retain, in no order; raises RedisUnavailable."""
        await from_store(self._feed.read_on(), bound=False)
        return list(self._feed.index.changes())

    async def page(self, query: ChangesQuery, now_s: float) -> ChangesPage:
        """Return the page of a query; raises InvalidField for a cursor that is none."""
        after = _cursor.decode(query.cursor, query.sort)
        changes = await self.all()  # the index goes on meanwhile
        ranked = await self._apart(_ranked, changes, query, now_s, after)
        rows, unreadable = await self.described(ranked.page, query.explain, query.around)
        found = await from_store(self._incidents.found(), bound=False)
        incident_of = found.by_change()
        for change, row in zip(ranked.page, rows, strict=True):
            row.incident = incident_of.get(change.raised.change_id)
        movers = None
        if query.movers:
            movers = await self._apart(_movers, ranked.fitting, query, found.fleet)
        cursor = None if ranked.last is None else _cursor.encode(query.sort, ranked.last)
        left_out = without(unreadable, "changes")
        return ChangesPage(
            rows, len(ranked.fitting), ranked.streams, ranked.timeline, movers, cursor, left_out
        )

    async def _apart(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    async def described(
        self, changes: Sequence[FoundChange], explain: bool, around: int
    ) -> tuple[list[StreamChange], list[str]]:
        """Return the rows of changes, and the streams that cannot be read."""
        page = [self._feed.index.between(change, NEAR) for change in changes]
        heads, unreadable = await self._heads(page)
        rows = [rendering.stream_change(change) for change in page]
        present: list[tuple[StreamChange, wire.Head, int]] = []
        wanted: dict[int, FoundChange] = {}
        for i, (change, row) in enumerate(zip(page, rows, strict=True)):
            head = heads.get(change.stream)
            if head is not None and head.generation == change.generation:
                if self._console:
                    row.link = rendering.console_link(change.stream, change.event.start)
                present.append((row, head, change.partition))
                if change.event.state != "withdrawn":
                    wanted[i] = change
        if explain and wanted:
            places = {
                i: ChangePlace(
                    change.partition,
                    change.stream,
                    heads[change.stream],
                    change.event.start,
                    change.previous,
                    change.following,
                )
                for i, change in wanted.items()
            }
            sides, damaged = await self._explanations.of(places)
            for i, change_sides in sides.items():
                rows[i].before = change_sides.before
                rows[i].after = change_sides.after
                rows[i].explanation = change_sides.explanation
                rows[i].start_time = change_sides.start_time
            unreadable.update(wanted[i].stream for i in damaged)
        if around:
            unreadable.update(await self._add_around(present, around))
        return rows, sorted(unreadable)

    async def _add_around(
        self, present: Sequence[tuple[StreamChange, wire.Head, int]], around: int
    ) -> set[str]:
        """Add the values around changes of present streams; returns the unreadable streams."""
        unreadable = set()
        for row, head, partition in present:
            first = row.start - around
            last = max(row.start + around, (row.confirmed_at or 0) + 1)
            try:
                records = await from_store(
                    self._store.records(partition, row.stream, head, first, last)
                )
            except CorruptState:
                unreadable.add(row.stream)
                continue
            row.around = rendering.around(row, records, around)
        return unreadable

    async def _heads(self, page: Sequence[FoundChange]) -> tuple[dict[str, wire.Head], set[str]]:
        """Return the heads of streams that are there, and the names of damaged ones."""
        streams = {(change.partition, change.stream) for change in page}
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


class _Ranked(NamedTuple):
    """A page of changes.

    fitting: those of all pages. last: the page's last place, if there are more pages.
    """

    page: list[FoundChange]
    fitting: list[FoundChange]
    streams: int
    last: ChangeRank | None
    timeline: Timeline | None


def _ranked(
    changes: Sequence[FoundChange], query: ChangesQuery, now_s: float, after: ChangeRank | None
) -> _Ranked:
    """Return a page of the changes that fit a query."""
    fits = _filter(query, now_s)
    rank_of = _RANKS[query.sort]
    fitting = [(rank_of(change), change) for change in changes if fits(change)]
    left = fitting if after is None else [ranked for ranked in fitting if ranked[0] > after]
    page = heapq.nsmallest(query.limit, left, key=itemgetter(0))
    last = page[-1][0] if len(left) > len(page) else None
    every = [change for _, change in fitting]
    timeline = _timeline(every, query, now_s)
    streams = len({(change.stream, change.generation) for change in every})
    return _Ranked([change for _, change in page], every, streams, last, timeline)


def _movers(fitting: Sequence[FoundChange], query: ChangesQuery, fleet: Fleet) -> list[Mover]:
    """Return what the streams of changes share, of all streams that a query lets through."""
    event_filter = _event_filter(query)
    members = {
        name: member
        for name, member in fleet.members.items()
        if query.contains in name and event_filter.lets_stream(name, member.model, member.tags)
    }
    return [Mover(*mover) for mover in shared(fitting, members)]


def _timeline(fitting: Sequence[FoundChange], query: ChangesQuery, now_s: float) -> Timeline | None:
    """Count changes in time, from `since` or the oldest on, to `until`, now or the newest.

    Those after now count in the last bin where `until` is not given.
    """
    if not query.bins or not fitting:
        return None
    times = np.array([change.seconds for change in fitting])
    confirmed = np.array([change.event.state == "confirmed" for change in fitting])
    since = seconds_of(query.since, now_s)
    until = seconds_of(query.until, now_s)
    first = float(times.min()) if since is None else since
    last = float(times.max()) if until is None else until
    if until is None and since is not None:  # one change dated in the future is no scale for all
        last = now_s
    first = min(max(first, rendering.EARLIEST_S), rendering.LATEST_S)
    last = max(min(last, rendering.LATEST_S), first + 1e-3 * query.bins)
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
    for change in changes:
        if change.event.state == "confirmed":
            times[change.stream] = max(change.seconds, times.get(change.stream, change.seconds))
    return times


def _filter(query: ChangesQuery, now_s: float) -> Callable[[FoundChange], bool]:
    """Return whether a change fits a query."""
    event_filter = _event_filter(query)
    since = seconds_of(query.since, now_s)
    until = seconds_of(query.until, now_s)

    def fits(change: FoundChange) -> bool:
        return (
            (since is None or change.seconds >= since)
            and (until is None or change.seconds < until)
            and (query.min_size is None or magnitude(change) >= query.min_size)
            and (query.min_probability is None or change.event.probability >= query.min_probability)
            and query.contains in change.stream
            and event_filter.lets(change.raised)  # what takes longest comes last
        )

    return fits


def _event_filter(query: ChangesQuery) -> Filter:
    return Filter(
        prefixes=tuple(query.prefix),
        models=frozenset(query.model),
        states=frozenset(query.state),
        match=tuple(tags.parse(selector) for selector in query.match),
    )


def magnitude(change: FoundChange) -> float:
    """Size of a change, of the output that moved most; -1: it has none."""
    size = rendering.largest(change.event.size)
    return -1.0 if size is None else size


def _by(value: Callable[[FoundChange], float]) -> Callable[[FoundChange], ChangeRank]:
    """Return the order of which the change of the largest value comes first."""

    def place(change: FoundChange) -> ChangeRank:
        raised = change.raised
        return -value(change), raised.stream, raised.generation, raised.event.id

    return place


_RANKS = {
    "time": _by(lambda change: change.seconds),
    "size": _by(magnitude),
    "probability": _by(lambda change: change.event.probability),
}


# --- what the history has on them ----------------------------------------------------------------


class Explanations:
    """Explains changes of any streams, each once until its history has more on it.

    thread: computes. It should be one, and of no other use: requests take turns in it.
    """

    def __init__(self, store: AsyncStore, thread: Executor) -> None:
        self._store = store
        self._thread = thread
        self._kept: dict[tuple[str, int, int], tuple[Seen, Sides]] = {}

    async def of(self, places: Mapping[int, ChangePlace]) -> tuple[dict[int, Sides], set[int]]:
        """Return what the history has on each change, and those whose history cannot be read.

        Raises RedisUnavailable.
        """
        sides: dict[int, Sides] = {}
        missing: list[int] = []
        for i, place in places.items():
            seen, kept = self._kept.get(_key(place), (None, None))
            if kept is not None and seen == _seen(place):
                sides[i] = kept
            else:
                missing.append(i)
        damaged: set[int] = set()
        # In groups, each kept before the next is read: a request holds the histories of one at a
        # time, and what a request that failed had done is not done again.
        for first in range(0, len(missing), EXPLAINED_AT_ONCE):
            group = missing[first : first + EXPLAINED_AT_ONCE]
            read = await self._read([places[i] for i in group])
            for i, explanation in zip(group, read, strict=True):
                if explanation is None:
                    damaged.add(i)
                    continue
                sides[i] = explanation.sides
                self._kept.pop(_key(places[i]), None)
                if explanation.whole:
                    self._kept[_key(places[i])] = _seen(places[i]), explanation.sides
            while len(self._kept) > EXPLANATIONS_KEPT:
                del self._kept[next(iter(self._kept))]
        return sides, damaged

    async def _read(self, places: Sequence[ChangePlace]) -> list[_Explanation | None]:
        """Explain changes; again those of which a commit moved records between two reads."""
        explanations: dict[int, _Explanation | None] = {}
        left = list(range(len(places)))
        for _ in range(TRIES):
            chosen = [places[i] for i in left]
            stored = await from_store(self._store.around(chosen, BEFORE, AFTER))
            loop = asyncio.get_running_loop()
            computed = await loop.run_in_executor(self._thread, _explained, chosen, stored)
            explanations |= zip(left, computed, strict=True)
            left = [
                i
                for i in left
                if (explanation := explanations[i]) is not None and not explanation.whole
            ]
            if not left:
                break
        return [explanations[i] for i in range(len(places))]


def _key(place: ChangePlace) -> tuple[str, int, int]:
    return place.stream, place.head.generation, place.start


def _seen(place: ChangePlace) -> Seen:
    """What an explanation depends on: it is computed again when that changes."""
    season = place.head.season
    since = None if season is None else season.since
    return reads.looked_since(place, BEFORE), reads.looked_until(place, AFTER), since


class _Explanation(NamedTuple):
    """What a history has on a change. whole: whether all of it was there."""

    sides: Sides
    whole: bool


def _explained(
    places: Sequence[ChangePlace], stored: Sequence[StoredAround]
) -> list[_Explanation | None]:
    """Return what the histories have on each change; None: it cannot be read."""
    explanations: list[_Explanation | None] = []
    for place, stored_around in zip(places, stored, strict=True):
        try:
            around = reads.decode_around(place, stored_around, BEFORE, AFTER)
        except UnreadablePart:
            explanations.append(None)
            continue
        sides = sides_of(place.head, around.before, around.after, around.first)
        explanations.append(_Explanation(sides, around.whole))
    return explanations
