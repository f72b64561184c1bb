"""The index has the changes of which the feeds retain an entry, with the times of their first."""

import random

from service.wire import Event
from service.wire.change_index import ChangeIndex
from service.wire.event_entries import FeedEntry, Id, Raised

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
