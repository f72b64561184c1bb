"""Incidents of all streams: changes of the feeds that began together, and the fleet they are of."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from operator import itemgetter
from statistics import median
from typing import NamedTuple

from moca_client import responses
from model_core.incidents import (
    DAY_S,
    Beginning,
    ByChance,
    Moment,
    incidents,
    moment,
    movers,
)
from service import wire
from service.api.gateway.changes import ChangePages, magnitude
from service.api.gateway.reads import SortedCursor, from_store, without
from service.problems import NotFound
from service.schema import rendering
from service.schema.queries import IncidentQuery, IncidentsQuery, seconds_of
from service.store.reads import AsyncStore
from service.store.streams import UnreadablePart, decoded
from service.wire import tags
from service.wire.change_index import FoundChange
from service.wire.event_entries import Filter

HEADS_AT_ONCE = 2000
MOST_STREAMS = 50_000  # of a fleet whose tags and paces are read: some 0.5 kB of memory each
FRESH_S = 10.0  # how long they count
KNOWN_S = 3600.0  # of a stream's life, until its pace is known
_Place = tuple[float, str]  # value that is sorted by, id
_cursor: SortedCursor[_Place] = SortedCursor(_Place)


class Member(NamedTuple):
    """What incidents need of one stream of the fleet.

    per_day: observations, as far as that is known. alarm_period: observations between two false
    alarms; 0: its rule of confirmation has none.
    """

    tags: dict[str, str]
    per_day: float | None
    alarm_period: float


class Fleet(NamedTuple):
    """All streams. members: by name, of at most MOST_STREAMS."""

    members: dict[str, Member]
    streams: int
    unreadable: list[str]

    def false_alarms_per_day(self, usual: float) -> float:
        """False alarms to expect of all streams, where nothing changes.

        usual: observations a day of streams of which that is not known.
        """
        return sum(
            (usual if member.per_day is None else member.per_day) / member.alarm_period
            for member in self.members.values()
            if member.alarm_period
        )


class FoundIncident(NamedTuple):
    """An incident: its changes, when it began, and what chance would show of it."""

    changes: list[FoundChange]
    moment: Moment
    by_chance: ByChance

    @property
    def id(self) -> str:
        """The id of the change that was suspected first, which others join."""
        first = min(self.changes, key=lambda change: (change.suspected.at_ms, change.stream))
        return first.id


class FoundIncidents(NamedTuple):
    """All incidents of what the feeds retain."""

    incidents: list[FoundIncident]
    per_day: float  # beginnings: of incidents, and of changes by themselves
    false_alarms_per_day: float
    fleet: Fleet


class IncidentPages:
    """Answers which streams changed together. thread: groups, as it does other work of lists."""

    def __init__(self, store: AsyncStore, changes: ChangePages, thread: Executor) -> None:
        self._store = store
        self._changes = changes
        self._thread = thread
        self._reading = asyncio.Lock()
        self._fleet = Fleet({}, 0, [])
        self._fresh_until = 0.0

    async def page(self, query: IncidentsQuery, now_s: float) -> responses.IncidentsPage:
        """Return the page of a query; raises InvalidField for a cursor that is none."""
        after = _cursor.decode(query.cursor, query.sort)
        found = await self._all()
        fleet = found.fleet
        fitting = _fitting(found.incidents, query, now_s)
        left = [ranked for ranked in fitting if after is None or ranked[0] > after]
        page = heapq.nsmallest(query.limit, left, key=itemgetter(0))
        cursor = _cursor.encode(query.sort, page[-1][0]) if len(left) > len(page) else None
        return responses.IncidentsPage(
            [_rendered(incident, fleet) for _, incident in page],
            len(fitting),
            responses.Fleet(fleet.streams, found.false_alarms_per_day, found.per_day),
            cursor,
            without(fleet.unreadable, "incidents"),
        )

    async def one(self, id_: str, query: IncidentQuery) -> responses.IncidentDetail:
        """Return the incident that has a change of this id; raises NotFound."""
        found = await self._all()
        for incident in found.incidents:
            if any(change.id == id_ for change in incident.changes):
                break
        else:
            raise NotFound(f"no incident {id_!r} is retained; see GET /v1/incidents")
        largest_first = sorted(
            incident.changes, key=lambda change: (-magnitude(change), change.stream)
        )
        rows, unreadable = await self._changes.described(largest_first, query.explain, query.around)
        rendered = _rendered(incident, found.fleet)
        members = {name: getattr(rendered, name) for name in rendered.__struct_fields__}
        return responses.IncidentDetail(
            **members, changes=rows, unreadable=without(unreadable, "incident")
        )

    async def _all(self) -> FoundIncidents:
        changes = await self._changes.all()
        fleet = await self._read_fleet()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, find, changes, fleet)

    async def _read_fleet(self) -> Fleet:
        """Return the tags and paces of all streams, up to FRESH_S old."""
        async with self._reading:  # those that wait find what the first has read
            if time.monotonic() < self._fresh_until:
                return self._fleet
            rows = await from_store(self._store.partition_names("", MOST_STREAMS))
            names = [(partition, name) for partition, row in enumerate(rows) for name in row]
            streams = len(names)
            if streams > MOST_STREAMS:  # those of every partition, so that their shares are alike
                share = MOST_STREAMS // len(rows)
                streams = await from_store(self._store.count(""))
                names = [(i, name) for i, row in enumerate(rows) for name in row[:share]]
            members: dict[str, Member] = {}
            unreadable: list[str] = []
            loop = asyncio.get_running_loop()
            for first in range(0, len(names), HEADS_AT_ONCE):
                blobs = await from_store(self._store.heads(names[first : first + HEADS_AT_ONCE]))
                read, damaged = await loop.run_in_executor(self._thread, _members, blobs)
                members |= read
                unreadable += damaged
            self._fleet = Fleet(members, streams, unreadable)
            self._fresh_until = time.monotonic() + FRESH_S
            return self._fleet


def find(changes: Sequence[FoundChange], fleet: Fleet) -> FoundIncidents:
    """Return the incidents of confirmed changes, in no order."""
    confirmed = [change for change in changes if change.event.state == "confirmed"]
    steps = [change.step for change in confirmed if change.step > 0.0]
    usual = DAY_S / median(steps) if steps else 0.0
    beginnings = [_beginning(change, fleet, usual) for change in confirmed]
    false_alarms = fleet.false_alarms_per_day(usual)
    grouped = incidents(beginnings, false_alarms)
    return FoundIncidents(
        [
            FoundIncident(
                [confirmed[i] for i in group], moment([beginnings[i] for i in group]), chance
            )
            for group, chance in zip(grouped.groups, grouped.chances, strict=True)
        ],
        grouped.per_day,
        false_alarms,
        fleet,
    )


def _beginning(change: FoundChange, fleet: Fleet, usual: float) -> Beginning:
    member = fleet.members.get(change.stream)
    per_day = usual if member is None or member.per_day is None else member.per_day
    return change.beginning(DAY_S / per_day if per_day else 0.0)


def _members(
    blobs: Mapping[bytes, bytes | None],
) -> tuple[dict[str, Member], list[str]]:
    """Return what heads say, and the names of damaged ones."""
    members = {}
    unreadable = []
    for name, blob in blobs.items():
        stream = name.decode(errors="backslashreplace")
        try:
            head = decoded(wire.decode_head, blob, "head", stream) if blob else None
        except UnreadablePart:
            unreadable.append(stream)
            continue
        if head is not None and not head.deleted:
            settings = head.settings
            members[stream] = Member(settings.tags, _per_day(head), settings.threshold)
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


def _fitting(
    found: Sequence[FoundIncident], query: IncidentsQuery, now_s: float
) -> list[tuple[_Place, FoundIncident]]:
    """Return the incidents that a query is for, each with its place."""
    filter_ = Filter(
        prefixes=tuple(query.prefix),
        models=frozenset(query.model),
        match=tuple(tags.parse(selector) for selector in query.match),
    )
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
                query.contains in change.stream and filter_.lets(change.raised)
                for change in incident.changes
            )
        ):
            value = began if query.sort == "time" else len(incident.changes)
            fitting.append(((-value, incident.id), incident))
    return fitting


def _rendered(incident: FoundIncident, fleet: Fleet) -> responses.Incident:
    """Return an incident with what its streams share."""
    of_all = {name: member.tags for name, member in fleet.members.items()}
    for change in incident.changes:  # of streams that are gone, too
        of_all.setdefault(change.stream, change.raised.tags)
    changed = [of_all[change.stream] for change in incident.changes]
    return rendering.incident(
        incident.id,
        incident.changes,
        incident.moment,
        incident.by_chance,
        movers(changed, of_all.values()),
        max(fleet.streams, len(of_all)),
    )
