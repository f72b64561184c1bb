"""Changes of all streams, a fold of the event feeds, and incidents among them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from model_core.incidents import (
    DAY_S,
    Beginning,
    ByChance,
    Moment,
    Mover,
    Tagged,
    incidents,
    moment,
    movers,
)
from service.wire import Event, Id, timestamps
from service.wire.event_entries import CHANGES, START, FeedEntry, Raised, kind_of


class Entered(NamedTuple):
    """When an event entered a state: the client's time where one was sent, else the arrival."""

    seconds: float  # since 1970
    time: str | None  # as the client sent it
    at_ms: int  # the API's clock


class FoundChange(NamedTuple):
    """One change in its last state, as far as the feed is retained.

    step: seconds between two observations, as the states of the change were apart; 0: not known.
    """

    raised: Raised  # its last state
    suspected: Entered
    confirmed: Entered | None
    step: float = 0.0

    @property
    def stream(self) -> str:
        """Name of its stream."""
        return self.raised.stream

    @property
    def generation(self) -> int:
        """Which of the streams of that name."""
        return self.raised.generation

    @property
    def event(self) -> Event:
        """The event in its last state."""
        return self.raised.event

    @property
    def seconds(self) -> float:
        """When it was confirmed, or else suspected."""
        return (self.confirmed or self.suspected).seconds

    def beginning(self, step: float) -> Beginning:
        """When a confirmed change began, as far as the times of its start and its states say.

        step: seconds between two observations of the stream, used where its states do not say.
        Times of observations that nobody sent are those of their arrival.
        """
        confirmed = self.confirmed
        assert confirmed is not None
        event = self.event
        step = self.step or step
        confirmed_at = event.confirmed_at or event.start
        if event.start_time is not None:
            start_s = timestamps.seconds(event.start_time)
        elif event.start_ms is not None:
            start_s = event.start_ms / 1000
        else:
            start_s = confirmed.seconds - (confirmed_at - event.start) * step
        # Where no interval is known it is half of what it took to confirm the change.
        unsure = max(confirmed_at - event.start, 1) / 2
        earliest = event.start - unsure if event.earliest is None else event.earliest
        latest = event.start + unsure / 2 if event.latest is None else event.latest
        return Beginning(
            self.stream,
            start_s - (event.start - earliest + 1) * step,
            start_s,
            start_s + (latest - event.start) * step,
            step,
        )


class ChangeIndex:
    """Changes by stream, of which the feeds retain an entry at least.

    Entries of a partition are added in order; `trim` takes out the changes of which none is
    retained any more. Those that stay keep their times. An index that is read later has the times
    of the entries that are left.
    """

    def __init__(self, partitions: int) -> None:
        self.positions = dict.fromkeys(range(partitions), START)  # the last entry added
        self._entries: dict[int, deque[tuple[Id, _Life]]] = {p: deque() for p in self.positions}
        self._streams: dict[tuple[str, int], dict[int, _Life]] = {}  # by name and generation

    def __len__(self) -> int:
        """Return the number of changes."""
        return sum(map(len, self._streams.values()))

    def add(self, entry: FeedEntry) -> None:
        """Add the next entry of a partition."""
        self.positions[entry.partition] = entry.id
        raised = entry.raised
        if raised is None or raised.event.kind != "change":
            return
        lives = self._streams.setdefault((raised.stream, raised.generation), {})
        life = lives.get(raised.event.id)
        if life is None:
            life = lives[raised.event.id] = _Life(raised)
        life.add(raised)
        self._entries[entry.partition].append((entry.id, life))

    def trim(self, partition: int, oldest: Id | None) -> None:
        """Remove a partition's entries before the oldest that is retained; None: all."""
        entries = self._entries[partition]
        while entries and (oldest is None or entries[0][0] < oldest):
            _, life = entries.popleft()
            life.retained -= 1
            if not life.retained:
                stream = life.last.stream, life.last.generation
                del self._streams[stream][life.last.event.id]
                if not self._streams[stream]:
                    del self._streams[stream]

    def restart(self, partition: int) -> None:
        """Remove all of a partition, to be read again: its feed is not the one that was read."""
        self.trim(partition, None)
        self.positions[partition] = START

    def changes(self) -> Iterator[FoundChange]:
        """Iterate over all changes, in no order."""
        for lives in self._streams.values():
            for life in lives.values():
                yield life.change()


class _Life:
    """One change: its last entry, when the first ones were, and how many are retained."""

    __slots__ = ("_change", "_confirmed", "_places", "_suspected", "last", "retained")

    def __init__(self, first: Raised) -> None:
        self.last = first
        self.retained = 0
        self._suspected = _entered(first)
        self._confirmed: dict[int, Entered] = {}  # by `confirmed_at`, of the first with it
        self._places = {first.event.suspected_at: self._suspected.seconds}  # times of positions
        self._change: FoundChange | None = None

    def add(self, raised: Raised) -> None:
        self.last = raised
        self.retained += 1
        confirmed = raised.event.confirmed_at
        if confirmed is not None and confirmed not in self._confirmed:
            self._confirmed[confirmed] = _entered(raised)
            self._places[confirmed] = self._confirmed[confirmed].seconds
        elif confirmed is not None and raised.event.refined_at is not None:
            self._places[raised.event.refined_at] = _entered(raised).seconds
        self._change = None

    def change(self) -> FoundChange:
        """Return its last state, computed once."""
        if self._change is None:
            at = self.last.event.confirmed_at
            confirmed = None if at is None else self._confirmed[at]
            first = min(self._places)
            last = max(self._places)
            apart = max(self._places[last] - self._places[first], 0.0)
            step = apart / (last - first) if last > first else 0.0
            self._change = FoundChange(self.last, self._suspected, confirmed, step)
        return self._change


def _entered(raised: Raised) -> Entered:
    seconds = raised.at_ms / 1000 if raised.time is None else timestamps.seconds(raised.time)
    return Entered(seconds, raised.time, raised.at_ms)


class Member(NamedTuple):
    """What incidents need of one stream of the fleet.

    per_day: observations, as far as that is known. alarm_period: observations between two false
    alarms; 0: its rule of confirmation has none.
    """

    model: str
    tags: dict[str, str]
    per_day: float | None
    alarm_period: float


class Fleet(NamedTuple):
    """All streams. members: by name, of at most MOST_STREAMS; tagged: their tags."""

    members: dict[str, Member]
    streams: int
    unreadable: list[str]
    tagged: Tagged

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
        return first.raised.change_id

    @property
    def change_ids(self) -> set[str]:
        """The ids of its changes, any of which leads to it."""
        return {change.raised.change_id for change in self.changes}


class FoundIncidents(NamedTuple):
    """All incidents of what the feeds retain.

    per_day: beginnings, of incidents and of changes by themselves.
    """

    incidents: list[FoundIncident]
    per_day: float
    false_alarms_per_day: float
    fleet: Fleet

    def by_change(self) -> dict[str, str]:
        """Return the id of the incident of every change that has one."""
        ids: dict[str, str] = {}
        for incident in self.incidents:
            ids |= dict.fromkeys(incident.change_ids, incident.id)
        return ids

    def of(self, id_: str) -> FoundIncident | None:
        """Return the incident that has a change of this id."""
        for incident in self.incidents:
            if id_ in incident.change_ids:
                return incident
        return None


def find(
    changes: Sequence[FoundChange], fleet: Fleet, kinds: frozenset[str] = CHANGES
) -> FoundIncidents:
    """Return the incidents of confirmed changes of these kinds, in no order."""
    confirmed = [
        change
        for change in changes
        if change.event.state == "confirmed"
        and change.confirmed is not None
        and kind_of(change.event) in kinds
    ]
    steps = [change.step for change in confirmed if change.step > 0.0]
    usual = DAY_S / median(steps) if steps else 0.0
    beginnings = []
    for change in confirmed:
        member = fleet.members.get(change.stream)
        per_day = usual if member is None or member.per_day is None else member.per_day
        beginnings.append(change.beginning(DAY_S / per_day if per_day else 0.0))
    false_alarms = fleet.false_alarms_per_day(usual)
    grouped = incidents(beginnings, false_alarms)
    found = [
        FoundIncident([confirmed[i] for i in group], moment([beginnings[i] for i in group]), chance)
        for group, chance in zip(grouped.groups, grouped.chances, strict=True)
    ]
    return FoundIncidents(found, grouped.per_day, false_alarms, fleet)


def shared(
    changes: Sequence[FoundChange], members: Mapping[str, Member], tagged: Tagged
) -> list[Mover]:
    """Return what the streams of some changes have in common that others of these have not.

    tagged: tags of the members. Those of a stream that is gone are those of its change.
    """
    gone: dict[str, dict[str, str]] = {}
    present: dict[str, dict[str, str]] = {}
    for change in changes:
        member = members.get(change.stream)
        if member is None:
            gone.setdefault(change.stream, change.raised.tags)
        else:
            present[change.stream] = member.tags
    lost = Tagged([*gone.values()])
    changed = Tagged([*present.values()]).beside(lost)
    return movers(changed, tagged.beside(lost) if gone else tagged)
