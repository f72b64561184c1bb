"""Verdicts, other settings tried, other models: each against a stream that saw it all afresh."""

import json
import random

import msgspec
import pytest

from model_core.upm.builtin import NEWEST
from service.wire import (
    Configure,
    EventFeedback,
    Move,
    Observation,
    Observe,
    Predict,
    RunLength,
    WhatIf,
)
from service.worker.filtering.history import retained
from tests.service.worker.streams.test_reload import MODELS, configure, series

KNOWN = {"location": [0.0], "scale": [1.0], "hazard": 0.01}


def shifted(*levels, each=40, seed=2):
    rng = random.Random(seed)
    return [rng.gauss(level, 1) for level in levels for _ in range(each)]


def told(labels, **by_seq):
    known = {int(seq[1:]): p for seq, p in by_seq.items()}
    return [Observation(y=y, changepoint=known.get(i)) for i, y in enumerate(labels)]


def standing(bench, stream):
    return [each for each in bench.events(stream) if each.state != "withdrawn"]


def same_belief(bench, close, one, other, x=None):
    found, expected = bench.ask(RunLength(one)), bench.ask(RunLength(other))
    assert found["warming_up"] == expected["warming_up"]
    close(found["belief"], expected["belief"])
    found, expected = bench.ask(Predict(one, x)), bench.ask(Predict(other, x))
    close(found["predictions"], expected["predictions"])


# --- moves ------------------------------------------------------------------------------------


@pytest.mark.one_in(2)
@pytest.mark.parametrize("at", [9, 63, 150])
@pytest.mark.parametrize(("before", "after"), [("gaussian", "averaged"), ("averaged", "gaussian")])
def test_a_moved_stream_is_one_that_was_always_there(bench, close, before, after, at):
    labels = series("gaussian", 200)
    configure(bench, "a", before)
    configure(bench, "b", after)
    bench.observe("a", labels[:at])
    bench.observe("b", labels[:at])
    answer = bench.ask(Move("a", after))
    assert answer["model"] == NEWEST[after]
    same_belief(bench, close, "a", "b")
    bench.crash()
    same_belief(bench, close, "a", "b")
    found, expected = bench.observe("a", labels[at:]), bench.observe("b", labels[at:])
    for one, other in zip(found, expected, strict=True):
        close(
            {k: v for k, v in one.items() if k not in ("stream", "event")},
            {k: v for k, v in other.items() if k not in ("stream", "event")},
        )
    assert [record.seq for record in bench.records("a")] == list(range(200))


def test_a_move_reruns_what_is_retained(bench, close):
    labels = [Observation(y=y) for y in shifted(0, 4, each=150)]
    configure(bench, "a", "gaussian", history=100)
    bench.observe("a", labels)
    first = bench.records("a")[0].seq
    bench.ask(Move("a", "averaged"))
    engine = bench.worker.engine
    kept = retained(engine.streams[bench.partition("a"), "a"], engine.store, 5000)
    assert first - 63 <= kept[0].seq <= first
    configure(bench, "b", "averaged")
    bench.observe("b", labels[kept[0].seq :])
    found, expected = bench.ask(RunLength("a")), bench.ask(RunLength("b"))
    close(
        [(each["run_length"], each["probability"]) for each in found["belief"]],
        [(each["run_length"], each["probability"]) for each in expected["belief"]],
    )
    assert found["seq"] == 299
    bench.crash()
    assert bench.records("a")[0].seq == first
    bench.observe("a", labels[:40])
    assert bench.head("a").seq == 340


def test_a_trained_model_takes_a_stream_over(bench, close, alpaca):
    labels = series("pump", 120)
    configure(bench, "a", "linear")
    bench.observe("a", labels)
    configure(bench, "b", "pump")
    bench.observe("b", labels)
    bench.ask(Move("a", "pump"))
    same_belief(bench, close, "a", "b", [[0.3, -1.0]])


@pytest.mark.parametrize(
    ("model", "status", "says"),
    [
        ("poisson", 422, "observation 0: y: expected a count"),
        ("nothing", 422, "no model"),
        ("linear", 422, "x"),
        ("categorical", 422, "classes"),
    ],
)
def test_a_model_that_does_not_fit(bench, model, status, says):
    bench.observe("a", shifted(0, 3))
    before = bench.stored("a")
    answer = bench.ask(Move("a", model), status=status)
    assert says in answer["detail"]
    assert bench.stored("a") == before


def test_events_go_on_under_their_ids(bench):
    bench.ask(Configure("a", {"warmup": 10}), status=201)
    bench.observe("a", shifted(0, 6, 0))
    before = bench.events("a")
    assert [each.state for each in before] == ["confirmed", "confirmed"]
    bench.ask(Move("a", "averaged"))
    assert bench.events("a") == before
    bench.observe("a", shifted(8))
    after = bench.events("a")
    assert after[:2] == before
    assert [each.id for each in after] == [1, 2, 3]
    assert abs(after[2].start - 120) <= 2


# --- verdicts ---------------------------------------------------------------------------------


def test_what_was_no_change_is_one_regime(bench, close):
    labels = shifted(0, 3, 3, each=30)
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", labels)
    (event,) = standing(bench, "a")
    answer = bench.ask(EventFeedback("a", change=False, event=event.id))
    assert answer["event"]["state"] == "withdrawn"
    assert answer["event"]["verdict"] is False
    refused = {f"s{i}": 0.0 for i in range(1, 90)}
    bench.ask(Configure("b", KNOWN), status=201)
    bench.observe("b", told(labels, **refused))
    same_belief(bench, close, "a", "b")
    assert [e.verdict for e in bench.events("a") if e.id == event.id] == [False]
    bench.crash()
    same_belief(bench, close, "a", "b")
    assert [r.changepoint for r in bench.records("a")] == [None] + 89 * [0.0]


def test_a_missed_one_is_reported(bench, close):
    labels = shifted(0, 0.7, each=30)
    settings = {**KNOWN, "hazard": 1e-6}
    bench.ask(Configure("a", settings), status=201)
    bench.observe("a", labels)
    assert bench.events("a") == []
    answer = bench.ask(EventFeedback("a", change=True, start=30))
    assert (answer["event"]["start"], answer["event"]["verdict"]) == (30, True)
    assert answer["event"]["state"] == "confirmed"
    bench.ask(Configure("b", settings), status=201)
    bench.observe("b", told(labels, s30=1.0))
    same_belief(bench, close, "a", "b")
    assert [each.start for each in bench.events("a")] == [30]
    (one,), (other,) = bench.observe("a", [0.5]), bench.observe("b", [0.5])
    close(one["changed_probability"], other["changed_probability"])


def test_a_verdict_stays_with_the_event(bench):
    bench.ask(Configure("a", {**KNOWN, "confirm_after": 40}), status=201)
    bench.observe("a", shifted(0, 4, each=30))
    (event,) = standing(bench, "a")
    assert event.state == "suspected"
    answer = bench.ask(EventFeedback("a", change=True, event=event.id))
    assert answer["event"]["verdict"] is True
    bench.observe("a", shifted(4, each=30))
    (event,) = standing(bench, "a")
    assert (event.state, event.verdict) == ("confirmed", True)


def test_an_earlier_verdict_outlives_a_later_one(bench):
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", shifted(0, 5, 0))
    first, second = standing(bench, "a")
    bench.ask(EventFeedback("a", change=False, event=second.id))
    bench.ask(EventFeedback("a", change=True, event=first.id))
    first, second = (e for e in bench.events("a") if e.id in (first.id, second.id))
    assert (first.state, first.verdict) == ("confirmed", True)
    assert (second.state, second.verdict) == ("withdrawn", False)
    assert bench.head("a").confirmed_start == first.start == 40


@pytest.mark.parametrize(
    ("command", "status", "slug"),
    [
        (EventFeedback("a", change=False, event=9), 404, "unknown-event"),
        (EventFeedback("a", change=True, start=0), 409, "not-retained"),
        (EventFeedback("a", change=True, start=80), 409, "not-retained"),
        (EventFeedback("w", change=True, start=1), 409, "warming-up"),
    ],
)
def test_verdicts_on_what_is_not_there(bench, command, status, slug):
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", shifted(0, 5))
    bench.observe("w", [1.0, 2.0])
    before = bench.stored("a")
    assert bench.ask(command, status=status)["type"].endswith(slug)
    assert bench.stored("a") == before


def test_a_verdict_counts_once_whatever_dies(bench, close):
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", shifted(0, 5))
    numbers = bench.append(
        EventFeedback("a", change=False, event=1), Observe("a", [Observation(y=1.0)])
    )
    bench.outcomes(numbers)
    before = bench.ask(RunLength("a"))
    bench.crash()
    close(bench.ask(RunLength("a")), before)
    assert bench.head("a").seq == 81


# --- what if ----------------------------------------------------------------------------------


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", MODELS)
def test_under_the_same_settings_it_is_the_same(bench, alpaca, kind, close):
    configure(bench, "a", kind)
    bench.observe("a", series(kind, 150))
    before = bench.stored("a")
    answer = bench.ask(WhatIf("a", {}, series=True))
    assert bench.stored("a") == before
    records = bench.records("a")
    scores = [(a, r.log_score) for a, r in zip(answer["log_score"], records, strict=True)]
    beyond = scores[40:]  # those of the warm-up were answered before the filter ran
    assert len([new for new, _ in beyond if new is not None]) > 90
    close([new for new, _ in beyond], [old for _, old in beyond])
    assert [each["start"] for each in answer["events"]] == [e.start for e in bench.events("a")]


def test_under_others_it_is_as_if_they_had_been_given(bench, close):
    labels = [Observation(y=y) for y in shifted(0, 2, 0, each=50)]
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", labels)
    tried = {"hazard": 0.2, "confirm_after": 3, "outlier_rate": 0.0, "max_hypotheses": 20}
    answer = bench.ask(WhatIf("a", tried, series=True))
    bench.ask(Configure("b", {**KNOWN, **tried}), status=201)
    expected = bench.observe("b", labels)
    close(answer["log_score"], [each["log_score"] for each in expected])
    close(answer["changed_probability"], [each["changed_probability"] for each in expected])
    events = [msgspec.to_builtins(each) for each in bench.events("b")]
    close([e["start"] for e in answer["events"]], [e["start"] for e in events])
    assert answer["compared"] == 150
    assert answer["settings"]["hazard"] == 0.2


@pytest.mark.one_in(2)
@pytest.mark.parametrize("there", [{}, {"confirm_after": 10}])
@pytest.mark.parametrize(
    "tried", [{}, {"confirm_after": 3}, {"confirm_probability": 0.8}, {"confirm_probability": 0.99}]
)
def test_events_of_a_rerun_are_those_of_the_rule_tried(bench, there, tried):
    labels = shifted(0, 2, 0, each=50)
    bench.ask(Configure("a", {**KNOWN, **there}), status=201)
    bench.observe("a", labels)
    answer = bench.ask(WhatIf("a", tried))
    bench.ask(Configure("b", {**KNOWN, **(tried or there)}), status=201)
    bench.observe("b", labels)
    settings = bench.ask(Configure("b", {}))["settings"]
    assert answer["settings"] == settings
    times = [(e["start"], e["suspected_at"], e["confirmed_at"]) for e in answer["events"]]
    assert times == [(e.start, e.suspected_at, e.confirmed_at) for e in bench.events("b")]
    assert any(at is not None for *_, at in times)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", MODELS)
def test_beliefs_of_a_rerun_are_those_after_each_observation(bench, alpaca, kind, close):
    configure(bench, "a", kind)
    bench.observe("a", series(kind, 150))
    answer = bench.ask(WhatIf("a", {}, beliefs=20))
    assert [each["seq"] for each in answer["beliefs"]] == list(range(130, 150))
    now = [
        (each["run_length"], each["probability"])
        for each in bench.ask(RunLength("a"))["belief"]
        if each["probability"] >= 1e-4
    ]
    last = answer["beliefs"][-1]
    assert last["run_length"] == [run_length for run_length, _ in now]
    assert last["probability"] == pytest.approx([p for _, p in now], abs=1e-6)
    for each in answer["beliefs"]:
        assert 0.99 < sum(each["probability"]) < 1.0001
    assert "beliefs" not in bench.ask(WhatIf("a", {}))


def test_beliefs_of_a_rerun_are_few(bench):
    bench.ask(Configure("a", {**KNOWN, "max_hypotheses": 500}), status=201)
    bench.observe("a", [Observation(y=0.0)] * 300)
    answer = bench.ask(WhatIf("a", {"hazard": 0.3}, beliefs=500))
    assert len(answer["beliefs"]) == 300
    assert max(len(each["run_length"]) for each in answer["beliefs"]) <= 64


def test_what_if_is_bounded(make_bench):
    bench = make_bench(max_replay=70)
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", shifted(0, 2, 0, each=100))
    answer = bench.ask(WhatIf("a", {"hazard": 0.2}))
    assert 300 - 70 - 63 <= answer["first"] <= 300 - 70


def test_what_if_refuses_what_a_stream_would(bench):
    bench.observe("a", shifted(0, 3))
    (outcome,) = bench.send(WhatIf("a", {"model": "categorical"}))
    assert outcome.status == 422
    assert json.loads(outcome.body[0])["type"].endswith("unfit-settings")
    assert bench.ask(WhatIf("none", {}), status=404)
