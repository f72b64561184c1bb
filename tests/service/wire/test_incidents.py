"""The index has the changes of which the feeds retain an entry, with the times of their first; and
incidents among them.
"""

import random

import pytest

from model_core.incidents import Tagged
from model_core.sentences import Explanation
from service.api.gateway.pages import IncidentPages
from service.schema.queries import IncidentQuery, IncidentsQuery
from service.schema.rendering import stream_change
from service.wire import Event, Id, KnownRegime
from service.wire.event_entries import FeedEntry, Raised
from service.wire.incidents import ChangeIndex, Fleet, FoundIncident, Member, find, shared

PARTITIONS = 3


def entries_of(rng, partition, streams=4, count=120):
    """Entries of a feed in order: lives of many events, in any order of their states."""
    entries = []
    before = Id(0, 0)
    for i in range(count):
        stream = f"s{partition}-{rng.randrange(streams)}"
        generation = rng.randrange(1, 3)
        event = Event(
            rng.randrange(1, 4),
            rng.choice(["suspected", "confirmed", "withdrawn"]),
            start=rng.randrange(50),
            suspected_at=60,
            confirmed_at=rng.choice([None, 70, 80]),
            kind=rng.choice(["change"] * 4 + ["anomaly"]),
        )
        time = rng.choice([None, f"2024-05-01T12:00:{rng.randrange(60):02d}+02:00"])
        raised = Raised(stream, "gaussian", generation, event, time, 1_700_000_000_000 + i)
        id_ = Id(1000 + i // 3, i)
        damaged = rng.random() < 0.05
        entries.append(FeedEntry(partition, id_, before, None if damaged else raised))
        before = id_
    return entries


def clock(raised):
    return raised.time if raised.time is not None else raised.at_ms


def key_of(entry):
    """(stream, generation, id) of a change's entry; None: it is of none."""
    raised = entry.raised
    if raised is None or raised.event.kind != "change":
        return None
    return raised.stream, raised.generation, raised.event.id


def left_of(entries, trims):
    """Entries of the changes that are left. trims: (entries that were read, first retained)."""
    kept = []
    read = 0
    for count, first in [*trims, (len(entries), trims[-1][1] if trims else 0)]:
        kept += range(read, count)
        read = count
        alive = {key_of(entries[i]) for i in range(first, read)}
        kept = [i for i in kept if key_of(entries[i]) in alive]
    return [entries[i] for i in kept]


def brute_force(entries):
    """By (stream, generation, id): last state, time of the first entry, of the confirmation."""
    lives = {}
    for each in entries:
        if (key := key_of(each)) is not None:
            lives.setdefault(key, []).append(each.raised)
    found = {}
    for key, life in lives.items():
        last = life[-1].event
        same = [r for r in life if r.event.confirmed_at == last.confirmed_at]
        confirmed = None if last.confirmed_at is None else clock(same[0])
        found[key] = last, clock(life[0]), confirmed
    return found


def shown(moment):
    return None if moment is None else (moment.at_ms if moment.time is None else moment.time)


def indexed(index):
    return {
        (each.stream, each.generation, each.event.id): (
            each.event,
            shown(each.suspected),
            shown(each.confirmed),
        )
        for each in index.changes()
    }


def test_whatever_comes_and_is_trimmed_the_index_has_the_changes_that_are_left():
    for seed in range(20):
        rng = random.Random(seed)
        feeds = {p: entries_of(rng, p) for p in range(PARTITIONS)}
        index = ChangeIndex(PARTITIONS)
        read = dict.fromkeys(feeds, 0)
        trims = {p: [] for p in feeds}
        for _ in range(40):
            p = rng.randrange(PARTITIONS)
            for entry in feeds[p][read[p] : read[p] + rng.randrange(12)]:
                index.add(entry)
                read[p] += 1
                assert index.positions[p] == entry.id
            if read[p] and rng.random() < 0.5:
                first = rng.randrange(trims[p][-1][1] if trims[p] else 0, read[p] + 1)
                trims[p].append((read[p], first))
                rest = feeds[p][first : read[p]]
                index.trim(p, rest[0].id if rest else None)
            if rng.random() < 0.05:
                index.restart(p)
                read[p], trims[p] = 0, []
            expected = brute_force(
                [e for q in feeds for e in left_of(feeds[q][: read[q]], trims[q])]
            )
            assert indexed(index) == expected
            assert len(index) == len(expected)


def only_change(*events, times=(None, None, None)):
    """The change of an index that has the states of one."""
    index = ChangeIndex(1)
    before = Id(0, 0)
    for i, (event, time) in enumerate(zip(events, times, strict=False)):
        id_ = Id(1000 + i, 0)
        raised = Raised("s", "gaussian", 1, event, time, 1_714_564_800_000 + 60_000 * i)
        index.add(FeedEntry(0, id_, before, raised))
        before = id_
    (change,) = index.changes()
    return change


def test_a_change_began_by_the_time_of_its_start_or_as_its_states_are_apart():
    suspected = Event(1, "suspected", 40, 42)
    confirmed = Event(1, "confirmed", 40, 42, confirmed_at=47, earliest=38, latest=41, coverage=0.9)
    noon = 1_714_564_800.0
    change = only_change(suspected, confirmed)  # 5 observations in a minute
    assert change.step == 12.0
    apart = change.beginning(99.0)
    assert apart == ("s", noon - 60, noon - 24, noon - 12, 12.0)
    sent = only_change(suspected, confirmed._replace(start_time="2024-05-01T11:58:00Z"))
    assert sent.beginning(99.0)[1:4] == (noon - 156, noon - 120, noon - 108)
    arrived = only_change(suspected, confirmed._replace(start_ms=round(1e3 * noon)))
    assert arrived.beginning(99.0).estimate == noon


def test_without_an_interval_a_start_is_as_unsure_as_its_confirmation_was_slow():
    confirmed = Event(1, "confirmed", 40, 48, confirmed_at=48)
    change = only_change(confirmed)  # one state: the pace is that of the stream
    assert change.step == 0.0
    begun = change.beginning(10.0)
    assert (begun.estimate - begun.lower, begun.upper - begun.estimate) == (50.0, 20.0)


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
    return Fleet(members, len(members), [], Tagged([m.tags for m in members.values()]))


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


class Feeds:
    """Reads of all changes, and of what is known of their streams."""

    def __init__(self, found):
        self.seen = found

    async def found(self, kinds):
        return self.seen

    async def fleet(self):
        return self.seen.fleet

    async def described(self, changes, around):
        return [stream_change(change) for change in changes], []


async def test_changes_of_an_incident_are_in_the_order_of_the_sizes_in_their_sentences():
    """Which may be another than that of the events' own sizes."""

    def mean(size):
        return Explanation(f"mean rose by {abs(size)} sd", "mean", size=size)

    changes = [
        raised("a", 2, size=9.0, explanation=mean(1.0)),
        raised("b", 2, size=[1.0, None], explanation=mean(-5.0)),
        raised("c", 2, size=[1.0, -4.0], explanation=Explanation("spread", "spread", size=99.0)),
        raised("d", 2, size=2.0),
        raised("e", 2),
    ]
    found = find(index_of(*changes), fleet_of(*"abcde"))
    feeds = Feeds(found)
    (incident,) = found.incidents
    one = await IncidentPages(feeds, feeds).one(incident.id, IncidentQuery())
    assert [change.stream for change in one.changes] == one.names == [*"bcdae"]
    assert one.size == 3.0
    for least, total in ((5.0, 1), (5.1, 0)):
        query = IncidentsQuery(min_size=least)
        assert (await IncidentPages(feeds, feeds).page(query, 0.0)).total == total


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
