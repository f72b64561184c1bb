"""Pages: of changes of all streams, of incidents, which are changes of several at once, of streams.

Changes are those of an index of the event feeds that is read on at every request.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import Executor
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from moca_client import responses
from moca_client.responses import ChangesPage, Mover, StreamChange, Timeline
from moca_client.tables import magnitude
from model_core.incidents import Tagged
from service import wire
from service.problems import CorruptState, InvalidField, NotFound
from service.schema import rendering
from service.schema.queries import (
    STANDING,
    ChangesQuery,
    IncidentQuery,
    IncidentsQuery,
    OverviewQuery,
    kinds_of,
    seconds_of,
)
from service.store import keys
from service.store.feed import OF_INCIDENTS, ChangeFeed, IncidentFeed
from service.store.reads import AsyncStore, from_store, without
from service.store.streams import StoredHead, UnreadablePart, decoded, living_heads, position_of
from service.tasks import apart
from service.wire import tags
from service.wire.event_entries import blob_of, text_of
from service.wire.incidents import Fleet, FoundChange, FoundIncident, shared

TAGS_AT_ONCE = 1000  # heads: some 5 ms of decoding
MOST_READ = 10_000  # heads in one request
MOST_RANKED = 50_000  # streams that a page is chosen of: some 0.4 kB each of this process's memory
HEADS_AT_ONCE = 2000  # positions that are read together: some .2 MB
FRESH_S = 3.0  # how long a value counts: a console asks every 4 s, several ask at once
StreamRank = tuple[float, bytes]
ChangeRank = tuple[float, str, int, int]  # value that is sorted by, stream, generation, id
IncidentRank = tuple[float, str]  # value that is sorted by, id
T = TypeVar("T")


def page_of(
    ranked: Iterable[tuple[Any, T]], place: Any, sort: str, cursor: str | None, limit: int
) -> tuple[list[T], str | None]:
    """Return the first rows after a cursor, by their places, and the cursor of the next page.

    place: the type of places, tuples. A cursor has the place of the last row, and the order. Raises
    InvalidField for one that is none of this order.
    """
    after = None
    if cursor is not None:
        try:
            other, after = msgspec.msgpack.decode(blob_of(cursor), type=tuple[str, place])
        except (ValueError, msgspec.MsgspecError):
            detail = "expected the unmodified cursor of a page"
            raise InvalidField.at("query.cursor", detail) from None
        if other != sort:
            detail = f"expected a cursor of sort={sort}, got one of sort={other}"
            raise InvalidField.at("query.cursor", detail)
    left = [row for row in ranked if after is None or row[0] > after]
    page = heapq.nsmallest(limit, left, key=itemgetter(0))
    rows = [row for _, row in page]
    if len(left) == len(page):
        return rows, None
    return rows, text_of(wire.encode((sort, page[-1][0])))


# --- changes --------------------------------------------------------------------------------------


class ChangePages:
    """Answers which streams changed, of what the feeds retain.

    thread: ranks; pages take turns in it.
    """

    def __init__(
        self,
        feed: ChangeFeed,
        store: AsyncStore,
        incidents: IncidentFeed,
        console: bool,
        thread: Executor,
    ) -> None:
        self._feed = feed
        self._store = store
        self._incidents = incidents
        self._console = console
        self._thread = thread

    async def latest(self) -> dict[str, float]:
        """Return when each stream last changed, in seconds since 1970, as far as that is retained.

        By name: of a stream that is deleted until one of its name changes.
        """
        return await apart(self._thread, _latest, await self.all())

    async def all(self) -> list[FoundChange]:
        """Return every change that the feeds retain, in no order; raises RedisUnavailable."""
        await from_store(self._feed.read_on(), bound=False)
        return list(self._feed.index.changes())

    async def page(self, query: ChangesQuery, now_s: float) -> ChangesPage:
        """Return the page of a query; raises InvalidField for a cursor that is none."""
        changes = await self.all()  # the index goes on meanwhile
        fitting, page, answer = await apart(self._thread, _ranked, changes, query, now_s)
        answer.changes, unreadable = await self.described(page, query.around)
        answer.unreadable = without(unreadable, "changes")
        found = await from_store(self._incidents.found(kinds_of(query.kind)), bound=False)
        incident_of = found.by_change()
        for change, row in zip(page, answer.changes, strict=True):
            row.incident = incident_of.get(change.raised.change_id)
        if query.movers:
            answer.movers = await apart(self._thread, _movers, fitting, query, found.fleet)
        return answer

    async def described(
        self, changes: Sequence[FoundChange], around: int
    ) -> tuple[list[StreamChange], list[str]]:
        """Return the rows of changes, and the streams that cannot be read."""
        streams = {change.stream for change in changes}
        stored = await from_store(self._store.heads(streams)) if streams else {}
        heads, damaged = living_heads(stored)
        unreadable = set(damaged)
        rows = [rendering.stream_change(change) for change in changes]
        present: list[tuple[StreamChange, wire.Head]] = []
        for change, row in zip(changes, rows, strict=True):
            head = heads.get(change.stream)
            if head is not None and head.generation == change.generation:
                if self._console:
                    row.link = rendering.console_link(change.stream, change.event.start)
                present.append((row, head))
        for row, head in present if around else ():
            read = self._store.records(row.stream, head, row.start - around, row.start + around)
            try:
                row.around = rendering.around(row, await from_store(read))
            except CorruptState:
                unreadable.add(row.stream)
        return rows, sorted(unreadable)


# --- which, and in which order ---------------------------------------------------------------


def _ranked(
    changes: Sequence[FoundChange], query: ChangesQuery, now_s: float
) -> tuple[list[FoundChange], list[FoundChange], ChangesPage]:
    """Return the changes that fit a query, those of its page, and what is answered beside these."""
    fits = _filter(query, now_s)
    rank_of = _RANKS[query.sort]
    fitting = [change for change in changes if fits(change)]
    ranked = ((rank_of(change), change) for change in fitting)
    page, cursor = page_of(ranked, ChangeRank, query.sort, query.cursor, query.limit)
    timeline = _timeline(fitting, query, now_s)
    streams = len({change.stream for change in fitting})
    return fitting, page, ChangesPage([], len(fitting), streams, timeline, cursor=cursor)


def _movers(fitting: Sequence[FoundChange], query: ChangesQuery, fleet: Fleet) -> list[Mover]:
    """Return what the streams of changes share, of all streams that a query lets through."""
    event_filter = query.filter(kinds_of(query.kind))
    members = {
        name: member
        for name, member in fleet.members.items()
        if query.contains in name and event_filter.lets_stream(name, member.model, member.tags)
    }
    tagged = Tagged([member.tags for member in members.values()])
    return rendering.shared_tags(shared(fitting, members, tagged))


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
    event_filter = query.filter(kinds_of(query.kind), frozenset(query.state) or STANDING)
    since = seconds_of(query.since, now_s)
    until = seconds_of(query.until, now_s)

    def fits(change: FoundChange) -> bool:
        return (
            (since is None or change.seconds >= since)
            and (until is None or change.seconds < until)
            and (query.min_size is None or magnitude(change.event) >= query.min_size)
            and (query.min_evidence is None or _evidence(change) >= query.min_evidence)
            and query.contains in change.stream
            and event_filter.lets(change.raised)  # what takes longest comes last
        )

    return fits


def _evidence(change: FoundChange) -> float:
    return change.event.evidence or 0.0


def _by(value: Callable[[FoundChange], float]) -> Callable[[FoundChange], ChangeRank]:
    """Return the order of which the change of the largest value comes first."""

    def place(change: FoundChange) -> ChangeRank:
        raised = change.raised
        return -value(change), raised.stream, raised.generation, raised.event.id

    return place


_RANKS = {
    "time": _by(lambda change: change.seconds),
    "size": _by(lambda change: magnitude(change.event)),
    "evidence": _by(_evidence),
}


# --- incidents ------------------------------------------------------------------------------------


class IncidentPages:
    """Answers which streams changed together."""

    def __init__(self, incidents: IncidentFeed, changes: ChangePages) -> None:
        self._incidents = incidents
        self._changes = changes

    async def page(self, query: IncidentsQuery, now_s: float) -> responses.IncidentsPage:
        """Return the page of a query; raises InvalidField for a cursor that is none."""
        found = await from_store(self._incidents.found(kinds_of(query.kind)), bound=False)
        fleet = found.fleet
        fitting = _fitting(found.incidents, query, now_s)
        page, cursor = page_of(fitting, IncidentRank, query.sort, query.cursor, query.limit)
        return responses.IncidentsPage(
            [_rendered(incident, fleet) for incident in page],
            len(fitting),
            responses.Fleet(fleet.streams, found.false_alarms_per_day, found.per_day),
            cursor,
            without(fleet.unreadable, "incidents"),
        )

    async def one(self, id_: str, query: IncidentQuery) -> responses.IncidentDetail:
        """Return the incident that has a change of this id; raises NotFound."""
        incident = await self.found(id_, kinds_of(query.kind))
        largest_first = sorted(
            incident.changes, key=lambda change: (-magnitude(change.event), change.stream)
        )
        rows, unreadable = await self._changes.described(largest_first, query.around)
        for row in rows:
            row.incident = incident.id
        rendered = _rendered(incident, await from_store(self._incidents.fleet(), bound=False))
        members = {name: getattr(rendered, name) for name in rendered.__struct_fields__}
        return responses.IncidentDetail(
            **members, changes=rows, unreadable=without(unreadable, "incident")
        )

    async def found(self, id_: str, kinds: frozenset[str]) -> FoundIncident:
        """Return the incident that has a change of this id, as it was found; raises NotFound."""
        found = await from_store(self._incidents.found(kinds), bound=False)
        incident = found.of(id_)
        if incident is None:
            of = " and ".join(sorted(kinds & OF_INCIDENTS))
            raise NotFound(
                f"no incident {id_!r} of changes of kind {of} is retained; see GET /v1/incidents"
            )
        return incident

    async def of_changes(self, ids: Set[str], kinds: frozenset[str]) -> list[responses.Incident]:
        """Return the incidents of changes of these kinds that have one of these ids."""
        found = await from_store(self._incidents.found(kinds), bound=False)
        return [
            _rendered(incident, found.fleet)
            for incident in found.incidents
            if ids & incident.change_ids
        ]


def _fitting(
    found: Sequence[FoundIncident], query: IncidentsQuery, now_s: float
) -> list[tuple[IncidentRank, FoundIncident]]:
    """Return the incidents that a query is for, each with its place."""
    filter_ = query.filter(OF_INCIDENTS)
    since = seconds_of(query.since, now_s)
    until = seconds_of(query.until, now_s)
    fitting = []
    for incident in found:
        began = incident.moment.estimate
        if (
            len(incident.changes) >= query.min_streams
            and (since is None or began >= since)
            and (until is None or began < until)
            and any(
                query.contains in change.stream
                and filter_.lets(change.raised)
                and (query.min_size is None or magnitude(change.event) >= query.min_size)
                for change in incident.changes
            )
        ):
            value = began if query.sort == "time" else len(incident.changes)
            fitting.append(((-value, incident.id), incident))
    return fitting


def _rendered(incident: FoundIncident, fleet: Fleet) -> responses.Incident:
    movers = shared(incident.changes, fleet.members, fleet.tagged)
    return rendering.incident(incident, movers, fleet.streams)


# --- streams: by their tags, in the order of ids; by a text, in another order ---------------------


class SelectedStream(NamedTuple):
    """One stream. head: as stored, for those who need more of it; None: not there any more."""

    stream: str
    tags: dict[str, str]
    head: StoredHead | None


class SelectedPage(NamedTuple):
    """Streams in the order of their ids; `cursor` is None where there are no more."""

    rows: list[SelectedStream]
    cursor: str | None
    unreadable: list[str]


async def select(
    store: AsyncStore,
    prefix: str,
    match: Sequence[str],
    cursor: str | None,
    limit: int,
) -> SelectedPage:
    """Return up to `limit` streams after `cursor` that fit a selector at least, or all.

    At most MOST_READ streams are looked at: there may be fewer, or none, and yet a cursor.
    """
    rows: list[SelectedStream] = []
    unreadable: list[str] = []
    for _ in range(MOST_READ // TAGS_AT_ONCE):
        count = min(TAGS_AT_ONCE, limit - len(rows)) if not match else TAGS_AT_ONCE
        names, cursor = await from_store(store.names(prefix, cursor, count))
        heads = await from_store(store.heads(names))
        for name in names:
            stream_tags: dict[str, str] | None = {}
            if (head := heads[name]) is not None:
                try:
                    tagged = decoded(wire.decode_tagged, head.settled, "head", name)
                    stream_tags = tagged.settings.tags
                except UnreadablePart:
                    unreadable.append(name)
                    stream_tags = None if match else {}
            if stream_tags is not None and tags.selected(match, name, stream_tags):
                if len(rows) == limit:
                    return SelectedPage(rows, rows[-1].stream, unreadable)
                rows.append(SelectedStream(name, stream_tags, head))
        if cursor is None or len(rows) == limit:
            break
    return SelectedPage(rows, cursor, unreadable)


class Ranking:
    """Chooses the streams of a page: of those that contain a text, the first by a value."""

    def __init__(self, store: AsyncStore, changes: ChangePages, thread: Executor) -> None:
        self._store = store
        self._changes = changes
        self._thread = thread
        # P(changed), and until when it counts, by name as stored: text is made of a page's alone.
        self._values: dict[bytes, tuple[float, float]] = {}
        self._reading = asyncio.Lock()

    async def page(self, query: OverviewQuery) -> tuple[list[str], int, str | None]:
        """Return the ids of a page, the number of streams on all pages, and the next cursor.

        Raises InvalidField for a cursor that is none, and for too many streams. With
        `sort=changed_probability` values are up to FRESH_S old.
        """
        total = await from_store(self._store.count(query.prefix))
        if total > MOST_RANKED:
            detail = (
                f"for `contains` and `sort` expected at most {MOST_RANKED:,} streams with the "
                f"prefix {query.prefix!r}, got {total:,}: give a longer prefix"
            )
            raise InvalidField.at("query.prefix", detail)
        contained = query.contains.encode()
        rows = await from_store(self._store.partition_names(query.prefix, MOST_RANKED))
        names = [name for row in rows for name in row if contained in name]
        values: Mapping[bytes, float] = {}
        if query.sort == "change":
            latest = await self._changes.latest()
            values = {name.encode(): time_s for name, time_s in latest.items()}
        elif query.sort == "changed_probability":
            values = await self._changed(names)
        # Bytes of UTF-8 have the order of the code points.
        ranked = (((-values.get(name, -math.inf), name), name) for name in names)
        page, cursor = page_of(ranked, StreamRank, query.sort, query.cursor, query.limit)
        return list(map(keys.text_of, page)), len(names), cursor

    async def _changed(self, names: Sequence[bytes]) -> Mapping[bytes, float]:
        """Return P(changed) of streams that have one."""
        async with self._reading:  # those that wait find what the first has read
            now = time.monotonic()
            stale = [name for name in names if self._values.get(name, (0.0, 0.0))[1] < now]
            for first in range(0, len(stale), HEADS_AT_ONCE):
                some = stale[first : first + HEADS_AT_ONCE]
                blobs = await from_store(self._store.positions(some))
                read = await apart(self._thread, _probabilities, blobs)
                self._values.update((name, (read[name], now + FRESH_S)) for name in read)
            values = {name: self._values[name] for name in names if name in self._values}
            if len(self._values) > 2 * MOST_RANKED:  # streams of other prefixes, and deleted ones
                self._values = values
        return {name: value for name, (value, _) in values.items()}


def _probabilities(blobs: Mapping[bytes, bytes | None]) -> dict[bytes, float]:
    """Return P(changed) by stream; -1 without one, and of a stream that cannot be read."""
    probabilities = {}
    for name, blob in blobs.items():
        probability = None
        if blob is not None:
            # The overview names one that cannot be read, where it is on a page.
            with contextlib.suppress(UnreadablePart):
                position = position_of(keys.text_of(name), blob)
                probability = position.changed_probability
        probabilities[name] = -1.0 if probability is None else probability
    return probabilities
