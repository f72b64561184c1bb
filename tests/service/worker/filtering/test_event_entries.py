"""The feed of events as workers write it: each state once, in order, whatever dies."""

import random

import msgspec
import pytest
import redis

from service import wire
from service.store import event_log, keys
from service.wire import Configure, Delete, Event, Observation, Observe, event_entries
from tests.service.worker.commits import commit_of, replace_commit, restore_commit

LEVELS = (0.0, 8.0, -8.0, 0.0)
STREAMS = ("a", "b", "c", "d")
KNOWN = {"model": "gaussian", "location": [0.0], "scale": [1.0], "confirm_after": 4}


def labels(seed, each=15):
    rng = random.Random(seed)
    return [level + rng.gauss(0, 1) for level in LEVELS for _ in range(each)]


def entries(bench, partition):
    found = bench.client.xrange(keys.feed(partition))
    return [event_log.entry_of(partition, id_, fields) for id_, fields in found]


def every(bench):
    return [e for p in range(bench.settings.partitions) for e in entries(bench, p)]


def states(found, stream):
    return [
        (e.raised.event.id, e.raised.event.state, e.raised.event.start)
        for e in found
        if e.raised.stream == stream
    ]


def test_every_state_of_an_event_is_in_the_feed(bench):
    bench.ask(Configure("a", KNOWN), 201)
    seen = [
        Observation(y=y, time=f"2024-01-01T00:{i // 60:02}:{i % 60:02}Z")
        for i, y in enumerate(labels(1))
    ]
    answers = bench.observe("a", seen)
    found = every(bench)
    # An answer names the last event that moved with it: those are in the feed, in their order.
    said = [(e["id"], e["state"], e["start"]) for a in answers if (e := a["event"])]
    listed = states(found, "a")
    assert [each for each in listed if each in said] == said
    assert {"suspected", "confirmed"} <= {state for _, state, _ in said}
    confirmed = next(e.raised for e in found if e.raised.event.state == "confirmed")
    assert confirmed.time == seen[confirmed.event.confirmed_at].time
    assert (confirmed.model, confirmed.generation) == ("gaussian@1", 1)
    assert confirmed.at_ms == bench.now_ms
    assert [e.before for e in found[1:]] == [e.id for e in found[:-1]]


def test_events_keep_their_place_when_a_stream_ends_in_the_same_batch(bench):
    bench.ask(Configure("a", KNOWN), 201)
    seen = [Observation(y=y) for y in labels(2)[:30]]
    bench.send(Observe("a", seen), Delete("a"), Configure("a", KNOWN), Observe("a", seen))
    found = every(bench)
    generations = [e.raised.generation for e in found]
    assert generations == sorted(generations)
    lives = [
        [each for each, g in zip(states(found, "a"), generations, strict=True) if g == life]
        for life in (1, 2)
    ]
    assert lives[0] == lives[1] != []


def cut(bench, after):
    """Have the next commit fail, before or after it took place."""
    commit = commit_of(bench.worker.log)

    def faulty(commits):
        restore_commit(bench.worker.log)
        if after:
            commit(commits)
        raise redis.ConnectionError("cut")

    replace_commit(bench.worker.log, faulty)


def trouble(bench, rng):
    """Something bad for the worker, or nothing."""
    fate = rng.randrange(4)
    if fate < 2:
        cut(bench, after=fate == 1)
    if fate == 2:
        bench.turn()
        bench.crash()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(3))
def test_workers_that_fail_and_die_leave_the_feed_of_one_that_never_did(make_bench, seed):
    calm, bench, rng = make_bench(), make_bench(db=1), random.Random(seed)
    for stream in STREAMS:
        for each in (calm, bench):
            each.ask(Configure(stream, KNOWN), 201)
        calm.observe(stream, labels(stream))
    for at in range(0, 60, 4):
        numbers = []
        for stream in STREAMS:
            part = [Observation(y=y) for y in labels(stream)[at : at + 4]]
            numbers += bench.append(Observe(stream, part))
        trouble(bench, rng)
        bench.outcomes(numbers)
    found, expected = every(bench), every(calm)
    for stream in STREAMS:
        assert states(found, stream) == states(expected, stream) != []
    assert len({(e.partition, e.id) for e in found}) == len(found)


def test_readers_of_earlier_versions_take_no_anomaly_for_a_change():
    """They pass over `kind`. Webhooks of theirs always name states; it has none of those."""
    event = Event(7, "confirmed", 7, 7, confirmed_at=7, kind="anomaly")
    raised = event_entries.Raised("a", "gaussian@1", 1, event)
    blob = wire.checked(event_entries.encode(raised, "n"), "feed", "n")
    plain = msgspec.msgpack.decode(blob)
    assert plain["event"]["state"] not in event_entries.STATES
    assert event_entries.decode(blob) == raised
    assert not event_entries.Filter().lets(raised)
    assert event_entries.Filter(kinds=frozenset({"anomaly"})).lets(raised)
    older = msgspec.msgpack.encode(
        {
            "stream": "a",
            "model": "m@1",
            "generation": 1,
            "event": {"id": 1, "state": "confirmed", "start": 3, "suspected_at": 4},
        }
    )
    assert event_entries.decode(older).event.kind == "change"
    assert event_entries.Filter().lets(event_entries.decode(older))


def test_ids_follow_from_the_place_in_the_log():
    places = [("5-0", 0, 0), ("5-0", 0, 1), ("5-0", 1, 0), ("5-1", 0, 0), ("6-0", 0, 0)]
    ids = [event_entries.id_of(*place) for place in places]
    assert ids == sorted(set(ids))
    assert all(event_entries.Id.parse(str(each)) == each for each in ids)
    assert event_entries.id_of(f"5-{2**32 - 1}", 2**20 - 1, 2**12 - 1).number == 2**64 - 1
    with pytest.raises(ValueError, match="no id"):
        event_entries.id_of("5-0", 2**20, 0)
