"""Times that count, settings on record, streams that expire or are pinned."""

import pytest

from service import wire
from service.store import keys
from service.store.worker_reads import each_decoded
from service.wire import Configure, Delete, Expire, Move, Observation, Observe

KNOWN = {"location": [0.0], "scale": [1.0]}


def at(second, y=0.0, **more):
    return Observation(y=y, time=f"2024-01-01T00:{second // 60:02}:{second % 60:02}Z", **more)


def listed(bench, key):
    return bench.client.zrange(key(bench.partition("a")), 0, -1, withscores=True)


def test_time_elapsed_is_taken_from_times(bench):
    bench.ask(Configure("a", {**KNOWN, "interval": 10.0}), status=201)
    bench.observe("a", [at(0), at(10), at(40), at(40), at(45), at(50, elapsed=7.0)])
    bench.crash()
    bench.observe("a", [Observation(y=0.0), at(70)])
    elapsed = [record.elapsed for record in bench.records("a")]
    assert elapsed == [1.0, 1.0, 3.0, 0.0, 0.5, 7.0, 1.0, 2.0]


def test_without_an_interval_times_are_only_shown(bench):
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", [at(50), at(10)])
    assert [record.elapsed for record in bench.records("a")] == [1.0, 1.0]


def test_a_long_gap_makes_a_change_likely(bench):
    for stream, second in (("a", 1), ("b", 3000)):
        bench.ask(Configure(stream, {**KNOWN, "interval": 1.0, "hazard": 0.001}), status=201)
        bench.observe(stream, [at(0, y=0.1), at(second, y=0.1)])
    short, long = (bench.head(stream).changed_probability for stream in "ab")
    assert short < 0.01 < 0.5 < long


@pytest.mark.parametrize("seconds", [[20, 10], [20, 30, 25]])
def test_time_that_goes_backwards_is_refused_whole(bench, seconds):
    bench.ask(Configure("a", {**KNOWN, "interval": 1.0}), status=201)
    bench.observe("a", [at(15)])
    before = bench.stored("a")
    (outcome,) = bench.send(Observe("a", [at(second) for second in seconds]))
    assert outcome.status == 422
    assert b"time-backwards" in outcome.body[-1]
    assert b"observations[" in outcome.body[-1]
    assert bench.stored("a") == before


def test_changed_settings_are_on_record(bench):
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", [0.0, 1.0])
    bench.ask(Configure("a", {"hazard": 0.2, "confirm_after": 3}))
    bench.observe("a", [0.0])
    bench.now_ms += 1
    bench.ask(Move("a", "averaged"))
    p = bench.partition("a")
    stored = bench.client.hgetall(keys.changes(p, "a"))
    found, unreadable = each_decoded(wire.decode_change, stored, "change", "a")
    assert not unreadable
    assert [(each.seq, each.settings) for each in sorted(found, key=lambda e: e.seq)] == [
        (2, {"hazard": 0.2, "confirm_after": 3}),
        (3, {"model": "averaged@2"}),
    ]
    bench.send(Delete("a"))
    assert not bench.client.exists(keys.changes(p, "a"))


def test_a_stream_expires_when_nothing_happened_for_long_enough(bench):
    bench.ask(Configure("a", {**KNOWN, "ttl": 10.0}), status=201)
    ((name, due),) = listed(bench, keys.due)
    assert (name, due) == (b"a", bench.now_ms + 10_000)
    bench.now_ms += 8000
    bench.observe("a", [1.0])
    assert listed(bench, keys.due)[0][1] == bench.now_ms + 10_000
    bench.now_ms += 9999
    (kept,) = bench.send(Expire("a"))
    assert (kept.status, bench.head("a").deleted) == (200, False)
    bench.now_ms += 1
    (gone,) = bench.send(Expire("a"))
    assert (gone.status, bench.head("a").deleted) == (204, True)
    assert listed(bench, keys.due) == []
    (again,) = bench.send(Expire("a"))
    assert again.status == 404
    bench.observe("a", [1.0])
    assert listed(bench, keys.due) == []


def test_an_observation_before_the_expiry_in_the_log_counts(bench):
    bench.ask(Configure("a", {**KNOWN, "ttl": 10.0}), status=201)
    bench.now_ms += 11_000
    numbers = bench.append(Observe("a", [Observation(y=1.0)]), Expire("a"))
    assert [outcome.status for outcome in bench.outcomes(numbers)] == [200, 200]


def test_a_ttl_may_end(bench):
    bench.ask(Configure("a", {**KNOWN, "ttl": 10.0}), status=201)
    bench.crash()
    bench.ask(Configure("a", {"ttl": None}))
    assert listed(bench, keys.due) == []
    bench.now_ms += 60_000
    (kept,) = bench.send(Expire("a"))
    assert kept.status == 200


def test_pinned_streams_are_listed_while_they_are(bench):
    bench.ask(Configure("a", {**KNOWN, "pinned": True}), status=201)
    assert listed(bench, keys.pinned) == [(b"a", 0)]
    bench.observe("a", [1.0, 2.0])
    bench.crash()
    bench.ask(Configure("a", {"pinned": False}))
    assert listed(bench, keys.pinned) == []
    bench.ask(Configure("a", {"pinned": True}))
    bench.send(Delete("a"))
    assert listed(bench, keys.pinned) == []
