"""Events through the whole worker: what the filter finds, what answers and the feed say of it."""

import random

import pytest

from service.wire import (
    Configure,
    Delete,
    EventFeedback,
    Move,
    Observation,
    Observe,
    WhatIf,
    event_entries,
)
from tests.service.worker.conftest import confirmed, noise

KNOWN = {"location": [0.0], "scale": [1.0], "hazard": 0.01}
IN_TIME = {**KNOWN, "confirm_after": 10}


def told(answers):
    """(seq, id, state, start) of each event in the answers."""
    found = [(a["seq"], a["event"]) for a in answers if a["event"]]
    return [(seq, e["id"], e["state"], e["start"]) for seq, e in found]


def varying(seed, count=250, rate=0.04):
    """Labels of regimes whose levels are far apart."""
    rng = random.Random(seed)
    level, y = 0.0, []
    for _ in range(count):
        level = rng.gauss(0, 4) if rng.random() < rate else level
        y.append(rng.gauss(level, 1))
    return y


def check_stored(bench, stream):
    """What holds of the stored events of every stream."""
    head, events = bench.head(stream), bench.events(stream)
    assert [event.id for event in events] == list(range(1, head.track.next_event))
    starts = [event.start for event in confirmed(bench, stream)]
    assert starts == sorted(set(starts))
    for event in events:
        assert 0 <= event.delay == event.suspected_at - event.start
        if event.state == "confirmed":
            assert event.confirmed_at >= event.suspected_at
            assert 0 < event.probability <= 1
    if starts:
        assert head.track.last_event == confirmed(bench, stream)[-1]
        assert head.track.confirmed_start == starts[-1]
    assert (head.track.event is not None) == any(e.state == "suspected" for e in events)


def test_the_feed_of_a_batch_is_in_the_order_of_the_log_and_written_once(make_bench, caplog):
    bench = make_bench(partitions=1)
    for stream in "ab":
        bench.ask(Configure(stream, IN_TIME), status=201)
    seen = [Observation(y) for y in noise(50, seed=0) + noise(22, level=4.0, seed=1)]
    bench.send(Observe("a", seen[:50]), Observe("b", seen), Observe("a", seen[50:]))
    assert [each.raised.stream for each in bench.feed()] == ["b"] * 3 + ["a"] * 3
    assert [stream.feed for stream in bench.worker.engine.streams.values()] == [()] * 2
    assert caplog.text == ""  # no commit was refused


def test_answers_and_feed_say_each_state_once_in_order(bench):
    bench.ask(Configure("a", IN_TIME), status=201)
    times = [f"2024-01-01T00:{i // 60:02}:{i % 60:02}Z" for i in range(72)]
    y = noise(50, seed=0) + noise(22, level=4.0, seed=1)
    seen = [Observation(y=v, time=time) for v, time in zip(y, times, strict=True)]
    answers = bench.observe("a", seen)
    states = [entry[1:] for entry in told(answers)]
    start = states[0][2]
    assert start in (49, 50)
    assert states == [(1, "suspected", start), (1, "confirmed", start)]
    raised, made = (a for a in answers if a["event"])
    assert made["seq"] == raised["seq"] + 10
    assert made["event"]["refined_at"] is None
    assert made["event"]["suspected_at"] == raised["seq"]
    assert made["event"]["confirmed_at"] == made["seq"]
    assert made["event"]["time"] == made["time"]
    # The alarm is on before the confirmation and off after it: the change is known then.
    assert answers[made["seq"]]["changed_probability"] > 0.99
    assert answers[made["seq"] + 1]["changed_probability"] < 0.2
    first, last, refined = bench.feed()
    found = [each.raised.event for each in (first, last)]
    assert [(event.id, event.state) for event in found] == [e[:2] for e in states]
    # Its start was looked at once more: in the feed, and no news for those who post.
    again = refined.raised.event
    assert again.refined_at == made["seq"] + 10
    assert (again.id, again.state, again.confirmed_at) == (1, "confirmed", made["seq"])
    for event in (last.raised.event, again):
        assert event.earliest <= start <= event.latest
        assert 0.9 <= event.coverage <= 1
    assert last.before == first.id
    assert (last.raised.time, last.raised.event.time) == (made["time"], made["time"])
    assert (last.raised.model, last.raised.generation) == ("gaussian", 1)
    assert last.raised.at_ms == bench.now_ms
    check_stored(bench, "a")


def test_what_holds_of_every_series(bench):
    """An event ends once; one that was confirmed may only be confirmed again, elsewhere."""
    relocated = 0
    for seed in range(9):
        stream = f"s{seed}"
        rule = [{"confirm_after": 2}, {"confirm_after": 10}, {"false_alarm_every": 1000.0}][
            seed % 3
        ]
        given = {**KNOWN, "hazard": 0.05, "outlier_rate": 0.0, **rule}
        bench.ask(Configure(stream, given), status=201)
        answers = bench.observe(stream, [y / 2 for y in varying(seed, 150)])
        check_stored(bench, stream)
        last = {}
        for each in bench.feed(stream):
            event = each.raised.event
            if event.kind == "anomaly":
                continue
            before = last.get(event.id)
            assert before is None or before.state != "withdrawn"
            if before is not None and before.state == "confirmed":
                assert event.state == "confirmed"
                relocated += 1
            last[event.id] = event
        assert list(last.values()) == bench.events(stream)
        listed = [(e.raised.event.id, e.raised.event.state) for e in bench.feed(stream)]
        assert all(entry[1:3] in listed for entry in told(answers))
    assert relocated


def test_events_keep_their_place_when_a_stream_ends_in_the_same_batch(bench):
    settings = {**KNOWN, "confirm_after": 4}
    bench.ask(Configure("a", settings), 201)
    seen = [Observation(y=y) for y in noise(15, seed=0) + noise(10, level=8.0, seed=0)]
    bench.send(Observe("a", seen), Delete("a"), Configure("a", settings), Observe("a", seen))
    lives = {1: [], 2: []}
    generations = []
    for each in bench.feed():
        event = each.raised.event
        generations.append(each.raised.generation)
        lives[each.raised.generation].append((event.kind, event.state, event.start))
    assert generations == sorted(generations)
    assert lives[1] == lives[2] != []


def test_ids_follow_from_the_place_in_the_log():
    places = [("5-0", 0, 0), ("5-0", 0, 1), ("5-0", 1, 0), ("5-1", 0, 0), ("6-0", 0, 0)]
    ids = [event_entries.id_of(*place) for place in places]
    assert ids == sorted(set(ids))
    assert all(event_entries.Id.parse(str(each)) == each for each in ids)
    assert event_entries.id_of(f"5-{2**32 - 1}", 2**20 - 1, 2**12 - 1).number == 2**64 - 1
    with pytest.raises(ValueError, match="no id"):
        event_entries.id_of("5-0", 2**20, 0)


# --- anomalies ------------------------------------------------------------------------------------

# The second comes within 100 observations of the first. Each is stranger than those before it.
OUTLIERS = {150: 12.0, 190: -18.0, 270: -30.0}
GAUSSIAN = {"model": "gaussian", "location": [0.0], "scale": [1.0]}


def labels(count=300, seed=0):
    rng = random.Random(seed)
    return [OUTLIERS.get(i, rng.gauss(0, 1)) for i in range(count)]


def raised(bench, stream="a"):
    """Anomalies as they came through the feed."""
    return [e.raised for e in bench.feed(stream) if e.raised.event.kind == "anomaly"]


def ids(bench, stream="a"):
    return [event.id for event in bench.anomalies(stream)]


def test_what_an_alarm_says(bench):
    bench.ask(Configure("a", GAUSSIAN), 201)
    times = [f"2024-01-01T00:{i // 60:02}:{i % 60:02}Z" for i in range(300)]
    seen = [Observation(y=y, time=t) for y, t in zip(labels(), times, strict=True)]
    answers = bench.observe("a", seen)
    # Changes, their numbers and the answers are those of a stream without alarms.
    bench.ask(Configure("b", {**GAUSSIAN, "anomaly_alarm": None}), 201)
    assert [{**each, "stream": "a"} for each in bench.observe("b", seen)] == answers
    assert bench.events("a") == bench.events("b")
    assert bench.anomalies("b") == raised(bench, "b") == []
    found = bench.anomalies("a")
    assert set(OUTLIERS) <= {a["seq"] for a in answers if (a["anomaly"] or 0) >= 0.999}
    assert [event.id for event in found] == [150, 270]
    assert [entry.event for entry in raised(bench)] == found
    for event, entry in zip(found, raised(bench), strict=True):
        answer = answers[event.id]
        assert event.probability == answer["anomaly"]
        said = answer["predictive"]
        sd = said["variance"][0][0] ** 0.5
        assert event.size == pytest.approx((OUTLIERS[event.id] - said["mean"][0]) / sd)
        assert event.direction == ("up" if OUTLIERS[event.id] > 0 else "down")
        assert (event.time, entry.time) == (times[event.id], times[event.id])
        assert (entry.model, entry.at_ms) == ("gaussian", bench.now_ms)
    assert bench.head("a").last_anomaly == 270


def test_reruns_and_restarts_raise_none_and_keep_the_silence(bench):
    ways = {
        "feedback": lambda: bench.ask(EventFeedback("feedback", start=120, change=True)),
        "move": lambda: bench.ask(Move("move", "averaged")),
        "whatif": lambda: bench.ask(WhatIf("whatif", {"hazard": 0.2})),
        "crash": bench.crash,
        "stop": bench.stop,
    }
    for stream, happen in ways.items():
        bench.ask(Configure(stream, GAUSSIAN), 201)
        bench.observe(stream, labels()[:180])
        before = bench.anomalies(stream)
        happen()
        assert bench.head(stream).last_anomaly == 150
        bench.observe(stream, labels()[180:240])  # strange again at 190
        assert bench.anomalies(stream) == before
        assert [entry.event for entry in raised(bench, stream)] == before
        assert [event.id for event in before] == [150]


def test_late_labels_raise_theirs_when_they_come(bench):
    bench.ask(Configure("a", GAUSSIAN), 201)
    y = labels()[:160]
    bench.observe("a", y[:150])
    bench.ask(Observe("a", [Observation(y=None, pending=True)]))
    bench.observe("a", y[151:])
    assert bench.anomalies("a") == []
    bench.ask(Observe("a", [Observation(y=y[150])], seq=150))
    assert ids(bench) == [150]
    assert len(raised(bench)) == 1
