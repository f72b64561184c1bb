"""Incidents of an index: their ids, their fleet, and what their streams share."""

import pytest

from model_core.incidents import Tagged
from service.wire import Event, KnownRegime
from service.wire.change_index import ChangeIndex
from service.wire.event_entries import FeedEntry, Id, Raised
from service.wire.incidents import Fleet, FoundIncident, Member, find, shared

MS = 1_714_564_800_000
MINUTE_MS = 60_000


def raised(stream, minute, state="confirmed", **more):
    event = Event(1, state, 40, 41, confirmed_at=42, start_ms=MS, **more)
    return Raised(stream, "gaussian", 1, event, None, MS + MINUTE_MS * minute, {"site": stream[0]})


def index_of(*entries):
    index = ChangeIndex(1)
    before = Id(0, 0)
    for i, entry in enumerate(entries):
        id_ = Id(1000 + i, 0)
        index.add(FeedEntry(0, id_, before, entry))
        before = id_
    return list(index.changes())


def fleet_of(*names, per_day=1440.0):
    members = {name: Member("gaussian", {"site": name[0]}, per_day, 10_000.0) for name in names}
    return Fleet(members, len(members), [], Tagged.of(m.tags for m in members.values()))


def test_the_id_of_an_incident_stays_while_streams_join_and_each_member_leads_to_it():
    names = ["a5", "b1", "a2", "b9", "a7"]
    fleet = fleet_of(*names)
    ids = set()
    for count in range(2, len(names) + 1):
        joined = [raised(name, i + 2) for i, name in enumerate(names[:count])]
        found = find(index_of(*joined), fleet)
        (incident,) = found.incidents
        assert len(incident.changes) == count
        ids.add(incident.id)
        assert {entry.change_id for entry in joined} == found.by_change().keys()
        assert all(found.of(entry.change_id) is incident for entry in joined)
    assert ids == {raised("a5", 2).change_id}
    assert find(index_of(*joined), fleet).of("0" * 12) is None


def test_the_id_of_an_incident_is_looked_for_once(monkeypatch):
    """It is that of the first of its changes, which may be thousands."""
    names = [f"a{i}" for i in range(50)]
    found = find(index_of(*[raised(name, 2) for name in names]), fleet_of(*names))
    (incident,) = found.incidents
    first = incident.id
    looked = []
    monkeypatch.setattr(FoundIncident, "id", property(lambda own: looked.append(own) or first))
    assert found.by_change() == dict.fromkeys(incident.change_ids, first)
    assert len(looked) == 1


def test_a_change_that_is_not_confirmed_is_part_of_none():
    changes = index_of(raised("a", 2), raised("b", 2, "withdrawn"), raised("c", 2, "suspected"))
    assert find(changes, fleet_of("a", "b", "c")).incidents == []


def test_returns_to_remembered_regimes_are_part_where_they_are_asked_for():
    back = {"returned": KnownRegime(None, 0.9, 3, 2, 30)}
    changes = [raised("a", 2), raised("b", 2), raised("c", 2, **back), raised("d", 2, **back)]
    (incident,) = find(index_of(*changes), fleet_of("a", "b", "c", "d")).incidents
    assert {change.stream for change in incident.changes} == {"a", "b"}
    for kinds, expected in (({"returned"}, "cd"), ({"change", "returned"}, "abcd")):
        found = find(index_of(*changes), fleet_of("a", "b", "c", "d"), frozenset(kinds))
        (incident,) = found.incidents
        assert {change.stream for change in incident.changes} == {*expected}


def test_false_alarms_add_up_over_the_fleet():
    fleet = fleet_of("a", "b", per_day=5000.0)
    members = fleet.members | {
        "young": Member("gaussian", {}, None, 10_000.0),
        "by time": Member("gaussian", {}, 1e6, 0.0),  # its rule has no alarm period
    }
    assert Fleet(members, 4, [], fleet.tagged).false_alarms_per_day(usual=2000.0) == pytest.approx(
        1.2
    )


def test_streams_that_are_gone_are_among_those_that_share():
    changes = index_of(*[raised(f"x{i}", 2) for i in range(6)])
    fleet = fleet_of(*[f"y{i}" for i in range(60)])
    (mover,) = shared(changes, fleet.members, fleet.tagged)
    assert (mover.tag, mover.value, mover.changed, mover.streams) == ("site", "x", 6, 6)
