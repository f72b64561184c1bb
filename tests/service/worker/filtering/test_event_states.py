"""Changepoint events through the whole worker: what the filter finds, and what clients get."""

import csv
import random
from importlib.resources import files

import pytest

from service.wire import Configure, Observation

KNOWN = {"location": [0.0], "scale": [1.0], "hazard": 0.01}
IN_TIME = {**KNOWN, "confirm_after": 10}


def told(answers):
    """(seq, id, state, start) of each event in the answers."""
    found = [(a["seq"], a["event"]) for a in answers if a["event"]]
    return [(seq, e["id"], e["state"], e["start"]) for seq, e in found]


def noise(count, level=0.0, seed=0, sd=1.0):
    rng = random.Random(seed)
    return [rng.gauss(level, sd) for _ in range(count)]


def check_stored(bench, stream, answers):
    """The stored events are the last state of each that an answer told, or was relocated since."""
    events = {event.id: event for event in bench.events(stream)}
    head = bench.head(stream)
    assert list(events) == list(range(1, head.next_event))
    confirmed = [e for e in events.values() if e.state == "confirmed"]
    starts = [e.start for e in confirmed]
    assert starts == sorted(set(starts))
    for event in events.values():
        assert 0 <= event.delay == event.suspected_at - event.start
        if event.state == "confirmed":
            assert event.confirmed_at >= event.suspected_at
            assert 0 < event.probability <= 1
    if confirmed:
        assert head.last_event == confirmed[-1]
        assert head.confirmed_start == starts[-1]
    assert (head.event is not None) == any(e.state == "suspected" for e in events.values())


def test_the_nile(bench):
    text = files("service.samples").joinpath("nile.csv").read_text().splitlines()
    y = [float(row["y"]) for row in csv.DictReader(line for line in text if line[0] != "#")]
    bench.ask(Configure("nile", {"confirm_after": 10}), status=201)
    answers = bench.observe("nile", y)
    (event,) = [event for event in bench.events("nile") if event.state == "confirmed"]
    assert event.start == 28
    assert 30 <= event.suspected_at <= 35
    assert event.confirmed_at >= event.suspected_at + 10
    assert event.direction == "down"
    assert -2.5 < event.size < -1.5
    check_stored(bench, "nile", answers)
    alarm = next(a["seq"] for a in answers if (a["changed_probability"] or 0) > 0.9)
    assert event.start < alarm < event.confirmed_at


def varying(seed, count=250, rate=0.03):
    """Labels of regimes whose levels are far apart."""
    rng = random.Random(seed)
    level, y = 0.0, []
    for _ in range(count):
        if rng.random() < rate:
            level = rng.gauss(0, 4)
        y.append(rng.gauss(level, 1))
    return y


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("given", [{}, {"confirm_probability": 0.7}])
@pytest.mark.parametrize("model", ["gaussian", "averaged"])
def test_by_default_a_change_is_confirmed_when_it_is_probable(bench, model, given, seed):
    bench.ask(Configure("a", {**KNOWN, **given, "model": model}), status=201)
    answers = bench.observe("a", varying(seed))
    threshold = given.get("confirm_probability", 0.99)
    probable = [a["seq"] for a in answers if a["changed_probability"] >= threshold]
    events = [a["event"] for a in answers if a["event"] and a["event"]["state"] == "confirmed"]
    assert [each["confirmed_at"] for each in events] == probable != []
    check_stored(bench, "a", answers)


def test_suspected_confirmed_and_what_the_answers_say(bench):
    bench.ask(Configure("a", IN_TIME), status=201)
    times = [f"2024-01-01T00:{i // 60:02}:{i % 60:02}Z" for i in range(90)]
    y = noise(50) + noise(40, level=4.0, seed=1)
    seen = [Observation(y=v, time=time) for v, time in zip(y, times, strict=True)]
    answers = bench.observe("a", seen)
    states = [entry[1:] for entry in told(answers)]
    assert [(id_, state) for id_, state, _ in states] == [(1, "suspected"), (1, "confirmed")]
    assert states[0][2] == states[1][2] in (49, 50)
    (raised, made) = [a for a in answers if a["event"]]
    assert made["seq"] == raised["seq"] + 10
    assert made["event"]["suspected_at"] == raised["seq"]
    assert made["event"]["confirmed_at"] == made["seq"]
    assert made["event"]["time"] == made["time"]
    assert made["event"]["direction"] == "up"
    assert 3 < made["event"]["size"] < 5
    # The alarm is on before the confirmation and off after it: the change is known then.
    assert answers[made["seq"]]["changed_probability"] > 0.99
    assert answers[made["seq"] + 1]["changed_probability"] < 0.2
    check_stored(bench, "a", answers)


def test_a_spike_is_withdrawn(bench):
    bench.ask(Configure("a", IN_TIME), status=201)
    answers = bench.observe("a", noise(50) + [3.0, 3.0] + noise(6, seed=2))
    states = [entry[2] for entry in told(answers) if entry[1] == 1]
    assert states == ["suspected", "withdrawn"]
    assert bench.events("a")[0].state == "withdrawn"
    assert bench.events("a")[0].probability == 0.0
    assert bench.head("a").last_event is None
    check_stored(bench, "a", answers)


def test_labels_of_three_outputs(bench):
    rng = random.Random(1)
    before = [[rng.gauss(0, 1), rng.gauss(5, 2), rng.gauss(-1, 0.1)] for _ in range(50)]
    after = [[rng.gauss(0, 1), rng.gauss(-5, 2), rng.gauss(-1, 0.1)] for _ in range(30)]
    answers = bench.observe("a", before + after)
    (event,) = [event for event in bench.events("a") if event.state == "confirmed"]
    assert event.start == 50
    assert event.direction == "down"
    assert len(event.size) == 3
    assert -7 < event.size[1] < -3
    assert abs(event.size[0]) < 1
    check_stored(bench, "a", answers)


def test_constant_segments(bench):
    """Values that never vary within a regime: a change of them is found and has no size."""
    bench.observe("a", [5.0] * 60 + [9.0] * 60 + [2.0] * 60)
    events = [event for event in bench.events("a") if event.state == "confirmed"]
    assert [event.start for event in events] == [60, 120]
    assert [(event.direction, event.size) for event in events] == [("up", None), ("down", None)]


def test_missing_labels_neither_raise_nor_hide(bench):
    bench.ask(Configure("a", KNOWN), status=201)
    y = noise(40) + [None] * 20 + noise(40, level=5.0, seed=1)
    answers = bench.observe("a", y)
    assert not any(a["event"] for a in answers[:60])
    (event,) = [event for event in bench.events("a") if event.state == "confirmed"]
    assert 40 <= event.start <= 60


def test_told_changes(bench):
    """Supervision: a switch that the client knows is found at once where the labels agree."""
    bench.ask(Configure("a", IN_TIME), status=201)
    y = [Observation(y=v) for v in noise(40)]
    y[30].changepoint = 1.0
    answers = bench.observe("a", y)
    assert told(answers)[0] == (30, 1, "suspected", 30)
    assert answers[30]["changepoint_probability"] == pytest.approx(1)
    assert answers[30]["run_length"]["map"] == 0
    known = [Observation(y=v, changepoint=0.0) for v in noise(30) + noise(30, level=6.0)]
    bench.ask(Configure("b", IN_TIME), status=201)
    assert not told(bench.observe("b", known))


def test_relocated_by_what_comes_later(bench):
    """A start confirmed early moves when the best path leads through another one."""
    found = 0
    for seed in range(12):
        stream = f"s{seed}"
        bench.ask(Configure(stream, {**KNOWN, "hazard": 0.05, "confirm_after": 2}), status=201)
        y = noise(40, seed=seed) + noise(30, level=1.6, seed=seed + 50)
        y += noise(40, level=-3.0, seed=seed + 90)
        answers = bench.observe(stream, y)
        check_stored(bench, stream, answers)
        raised = {a["event"]["id"]: a["event"]["start"] for a in answers
                  if a["event"] and a["event"]["state"] == "confirmed"}  # fmt: skip
        stored = {e.id: e.start for e in bench.events(stream) if e.state == "confirmed"}
        found += any(stored[i] != start for i, start in raised.items() if i in stored)
    assert found


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(8))
def test_what_holds_of_every_series(bench, seed):
    rng = random.Random(seed)
    rule = {"confirm_after": rng.choice([1, 3, 10])} if seed < 4 else {"confirm_probability": 0.9}
    bench.ask(Configure("a", {**KNOWN, "hazard": 0.05, "outlier_rate": 0.0, **rule}), status=201)
    level, y = 0.0, []
    for _ in range(250):
        if rng.random() < 0.05:
            level = rng.gauss(0, 3)
        y.append(rng.gauss(level, 1))
    answers = bench.observe("a", y)
    check_stored(bench, "a", answers)
    last = {}
    for seq, id_, state, _start in told(answers):
        before = last.get(id_)
        # An event ends once; one that was confirmed may only be confirmed again, elsewhere.
        assert before != "withdrawn"
        assert state in (
            ("confirmed",) if before == "confirmed" else ("suspected", "withdrawn", "confirmed")
        )
        last[id_] = state
        assert answers[seq]["event"]["suspected_at"] <= seq
