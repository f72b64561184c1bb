"""Anomaly events: when they are raised, what they say, and that each is raised once."""

import random

import msgspec
import pytest

from service import wire
from service.store import keys
from service.store.worker_reads import decoded, each_decoded
from service.wire import Configure, Delete, EventFeedback, Move, Observation, Observe, WhatIf
from tests.service.worker.commands.test_snapshot import export, put
from tests.service.worker.filtering.test_event_entries import every, trouble

KNOWN = {"model": "gaussian", "location": [0.0], "scale": [1.0]}
# The second comes within 100 observations of the first. Each is stranger than those before it.
OUTLIERS = {150: 12.0, 190: -18.0, 270: -30.0}


def labels(count=300, seed=0):
    rng = random.Random(seed)
    return [OUTLIERS.get(i, rng.gauss(0, 1)) for i in range(count)]


def anomalies(bench, stream="a"):
    """As stored."""
    blobs = bench.client.hgetall(keys.anomalies(bench.partition(stream), stream))
    found, unreadable = each_decoded(wire.decode_event, blobs, "anomaly", stream)
    assert not unreadable
    return sorted(found, key=lambda event: event.id)


def raised(bench, stream="a"):
    """As they came through the feed."""
    found = [e.raised for e in every(bench) if e.raised.stream == stream]
    return [each for each in found if each.event.kind == "anomaly"]


def test_what_an_alarm_says(bench):
    bench.ask(Configure("a", KNOWN), 201)
    times = [f"2024-01-01T00:{i // 60:02}:{i % 60:02}Z" for i in range(300)]
    seen = [Observation(y=y, time=t) for y, t in zip(labels(), times, strict=True)]
    answers = bench.observe("a", seen)
    strange = [a["seq"] for a in answers if (a["anomaly"] or 0) >= 0.999]
    assert set(OUTLIERS) <= set(strange)
    found = anomalies(bench)
    assert [event.id for event in found] == [150, 270]
    assert [entry.event for entry in raised(bench)] == found
    for event, entry in zip(found, raised(bench), strict=True):
        answer = answers[event.id]
        assert (event.kind, event.state, event.delay) == ("anomaly", "confirmed", 0)
        assert event.start == event.suspected_at == event.confirmed_at == event.id
        assert event.probability == answer["anomaly"] >= 0.999
        said = answer["predictive"]
        sd = said["variance"][0][0] ** 0.5
        assert event.size == pytest.approx((OUTLIERS[event.id] - said["mean"][0]) / sd)
        assert event.direction == ("up" if OUTLIERS[event.id] > 0 else "down")
        assert (event.time, entry.time) == (times[event.id], times[event.id])
        assert (entry.model, entry.at_ms) == ("gaussian@1", bench.now_ms)
    assert bench.head("a").last_anomaly == 270


def test_compiled_kernels_raise_the_same(make_bench):
    """One after the other, and in series of many observations."""
    found = []
    for compiles, part in ((False, 1), (True, 1), (True, 32)):
        bench = make_bench(db=len(found), partitions=1)
        bench.worker.engine.compiles = compiles
        bench.ask(Configure("a", KNOWN), 201)
        bench.observe("a", labels()[:1])
        for slab in bench.worker.engine._slabs.values():
            if compiles:
                slab._compiled.compile()  # waits for it
        bench.observe("a", labels()[1:], part=part)
        found.append([(e.id, e.direction, e.size, e.probability) for e in anomalies(bench)])
    first, *others = found
    assert [event[:2] for event in first] == [(150, "up"), (270, "down")]
    for other in others:
        assert [event[:2] for event in other] == [event[:2] for event in first]
        for one, same in zip(first, other, strict=True):
            assert one[2:] == pytest.approx(same[2:], rel=1e-7)


def test_alarms_are_no_changes(make_bench):
    """Changes, their numbers and the answers are those of a stream without alarms."""
    bench, silent = make_bench(), make_bench(db=1)
    shifted = [*labels(300), *(y + 6 for y in labels(60, seed=1))]
    bench.ask(Configure("a", KNOWN), 201)
    silent.ask(Configure("a", {**KNOWN, "anomaly_alarm": None}), 201)
    both = [each.observe("a", shifted) for each in (bench, silent)]
    assert both[0] == both[1]
    assert bench.events("a") == silent.events("a") != []
    assert all(event.kind == "change" for event in bench.events("a"))
    heads = bench.head("a"), silent.head("a")
    assert heads[0].last_event == heads[1].last_event is not None
    assert heads[0].next_event == heads[1].next_event
    assert len(anomalies(bench)) >= 2
    assert anomalies(silent) == raised(silent) == []


def test_the_threshold_is_a_setting(bench):
    assert bench.ask(Configure("a", KNOWN), 201)["settings"]["anomaly_alarm"] == 0.999
    bench.observe("a", labels()[:200])
    assert [event.id for event in anomalies(bench)] == [150]
    assert bench.ask(Configure("a", {"anomaly_alarm": None}))["settings"]["anomaly_alarm"] is None
    bench.observe("a", labels()[200:])
    assert [event.id for event in anomalies(bench)] == [150]
    bench.ask(Configure("a", {"anomaly_alarm": 0.6}))
    answers = bench.observe("a", [0.0, 3.0] * 10)
    first = next(a["seq"] for a in answers if a["anomaly"] >= 0.6)
    assert [event.id for event in anomalies(bench)] == [150, first]


def test_a_lasting_change_is_one_alarm(bench):
    bench.ask(Configure("a", KNOWN), 201)
    rng = random.Random(3)
    bench.observe("a", [rng.gauss(0, 1) + 8 * (i >= 150) for i in range(240)])
    assert [event.id for event in anomalies(bench)] == [150]
    assert [e.start for e in bench.events("a") if e.state == "confirmed"] == [150]


@pytest.mark.parametrize(
    ("settings", "calm", "odd", "sizes"),
    [
        ({"model": "categorical", "classes": 3}, [0.0], 2.0, None),
        ({"model": "bernoulli"}, [0.0], 1.0, None),
        ({"model": "gaussian", "warmup": 10}, [[0.0, 1.0], [1.0, 0.0]], [0.5, 40.0], 2),
    ],
)
def test_sizes_are_of_numbers_alone(bench, settings, calm, odd, sizes):
    bench.ask(Configure("a", {"anomaly_alarm": 0.99, **settings}), 201)
    bench.observe("a", [*(calm * 200)[:200], odd])
    event = anomalies(bench)[-1]
    assert event.id == 200
    if sizes is None:
        assert (event.direction, event.size) == (None, None)
    else:
        assert event.direction == "up"
        assert len(event.size) == sizes
        assert event.size[1] > 5 > abs(event.size[0])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(4))
def test_workers_that_fail_and_die_raise_each_once(make_bench, seed):
    calm, rng = make_bench(), random.Random(seed)
    bench = make_bench(db=1, checkpoint_every=32)
    y = labels()
    for each in (calm, bench):
        each.ask(Configure("a", KNOWN), 201)
    calm.observe("a", y)
    for at in range(0, len(y), 10):
        numbers = bench.append(Observe("a", [Observation(y=v) for v in y[at : at + 10]]))
        trouble(bench, rng)
        bench.outcomes(numbers)
    events = [entry.event for entry in raised(bench)]
    assert [event.id for event in events] == [150, 270]
    assert anomalies(bench) == events
    for event, other in zip(events, anomalies(calm), strict=True):
        assert event.size == pytest.approx(other.size, rel=1e-9)
        assert msgspec.structs.replace(event, size=other.size) == other


@pytest.mark.parametrize("way", ["crash", "stop"])
def test_the_silence_lasts_through_a_restart(bench, way):
    bench.ask(Configure("a", KNOWN), 201)
    bench.observe("a", labels()[:170])
    getattr(bench, way)()
    bench.observe("a", labels()[170:])
    assert [event.id for event in anomalies(bench)] == [150, 270]
    assert len(raised(bench)) == 2


@pytest.mark.parametrize(
    "command",
    [
        EventFeedback("a", start=120, change=True),
        Move("a", "averaged"),
        WhatIf("a", {"hazard": 0.2}),
    ],
)
def test_reruns_raise_none_and_keep_the_silence(bench, command):
    bench.ask(Configure("a", KNOWN), 201)
    bench.observe("a", labels()[:180])
    before = anomalies(bench)
    assert [event.id for event in before] == [150]
    bench.ask(command)
    assert anomalies(bench) == [entry.event for entry in raised(bench)] == before
    assert bench.head("a").last_anomaly == 150
    bench.observe("a", labels()[180:240])  # strange again at 190
    assert anomalies(bench) == before


def test_an_imported_stream_has_them_and_raises_them_no_more(make_bench):
    bench, other = make_bench(), make_bench(db=1)
    bench.ask(Configure("a", KNOWN), 201)
    bench.observe("a", labels()[:180])
    put(other, "a", export(bench, "a"))
    assert anomalies(other) == anomalies(bench) != []
    assert raised(other) == []
    for each in (bench, other):
        each.observe("a", labels()[180:])
    assert anomalies(other) == anomalies(bench)
    assert [entry.event.id for entry in raised(other)] == [270]


def test_a_stream_of_the_same_name_has_none_of_its_predecessor(bench):
    """Nor has it those that a worker left behind which does not know of them."""
    bench.ask(Configure("a", KNOWN), 201)
    bench.observe("a", labels()[:160])
    key = keys.anomalies(bench.partition("a"), "a")
    left = bench.client.hgetall(key)
    assert left
    bench.send(Delete("a"))
    assert not bench.client.exists(key)
    bench.client.hset(key, mapping=left)
    bench.ask(Configure("a", KNOWN), 201)
    assert not bench.client.exists(key)


def rewrite(bench, stream, change):
    """Have the head be as another worker would write it."""
    key = keys.heads(bench.partition(stream))
    head = decoded(wire.decode_head, bench.client.hget(key, stream), "head", stream)
    plain = msgspec.msgpack.decode(wire.encode(head))
    change(plain)
    bench.client.hset(key, stream, wire.encode(plain))


def test_streams_of_earlier_versions_raise_none(bench):
    """Their users never asked for them; the setting begins them."""
    bench.ask(Configure("a", KNOWN), 201)
    bench.observe("a", labels()[:50])
    bench.crash()
    rewrite(bench, "a", lambda head: head["settings"].pop("anomaly_alarm"))
    assert bench.ask(Configure("a", {"hazard": 0.02}))["settings"]["anomaly_alarm"] is None
    bench.observe("a", labels()[50:200])
    assert anomalies(bench) == raised(bench) == []
    bench.ask(Configure("a", {"anomaly_alarm": 0.999}))
    bench.observe("a", labels()[200:])
    assert [event.id for event in anomalies(bench)] == [270]


def test_an_older_worker_on_the_way_ends_the_silence_alone(bench):
    """It drops the place of the last alarm: at most one more comes, under an id of its own."""
    bench.ask(Configure("a", KNOWN), 201)
    bench.observe("a", labels()[:170])
    bench.crash()
    rewrite(bench, "a", lambda head: head.pop("last_anomaly"))
    bench.observe("a", labels()[170:])
    assert [event.id for event in anomalies(bench)] == [150, 190]


def test_late_labels_raise_theirs_when_they_come(bench):
    bench.ask(Configure("a", KNOWN), 201)
    y = labels()[:160]
    bench.observe("a", y[:150])
    bench.ask(Observe("a", [Observation(y=None, pending=True)]))
    bench.observe("a", y[151:])
    assert anomalies(bench) == []
    bench.ask(Observe("a", [Observation(y=y[150])], seq=150))
    assert [event.id for event in anomalies(bench)] == [150]
    assert len(raised(bench)) == 1
