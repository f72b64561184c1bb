"""Incidents among the changes of an index, with the fleet of streams that they are of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from service.wire.change_index import FoundChange
from service.wire.event_entries import CHANGES, kind_of


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
    lost = Tagged.of(gone.values())
    changed = Tagged.of(present.values()).beside(lost)
    return movers(changed, tagged.beside(lost) if gone else tagged)


def _beginning(change: FoundChange, fleet: Fleet, usual: float) -> Beginning:
    member = fleet.members.get(change.stream)
    per_day = usual if member is None or member.per_day is None else member.per_day
    return change.beginning(DAY_S / per_day if per_day else 0.0)
