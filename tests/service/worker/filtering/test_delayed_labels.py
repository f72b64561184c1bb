"""Labels that come later: whatever the order, in the end as if they had come in time."""

import json
import random

import pytest

from service.wire import Act, Configure, Move, Observation, Observe, Predict, RunLength, SetBelief
from service.worker.streams.slab import Slab

KNOWN = {"location": [0.0], "scale": [1.0], "hazard": 0.03}


def values(count, seed=1):
    rng = random.Random(seed)
    return [rng.gauss(3 * (i // 20 % 2), 1) for i in range(count)]


def late(bench, stream, seq, y, status=200, **more):
    (outcome,) = bench.send(Observe(stream, [Observation(y=y, **more)], seq=seq))
    assert outcome.status == status, outcome
    return json.loads(outcome.body[-1])


def pend(bench, stream, **more):
    (answer,) = bench.observe(stream, [Observation(pending=True, **more)])
    return answer


def same(bench, close, one, other):
    close(bench.ask(RunLength(one))["belief"], bench.ask(RunLength(other))["belief"])
    skip = {"mean", "quantiles", "variance", "probabilities"}
    for a, b in zip(bench.records(one), bench.records(other), strict=True):
        close(
            {f: getattr(a, f) for f in a.__struct_fields__ if f not in skip},
            {f: getattr(b, f) for f in b.__struct_fields__ if f not in skip},
        )
    assert [e.start for e in bench.events(one)] == [e.start for e in bench.events(other)]


def test_the_very_first_observation_may_wait_for_its_label(bench, close):
    """It is answered from the prior, also after a crash, as if the label had come with it."""
    for stream in ("a", "b"):
        bench.ask(Configure(stream, KNOWN), status=201)
    first = pend(bench, "a")
    assert first["predictive"]["mean"] == [0.0]
    bench.crash()
    assert pend(bench, "a")["predictive"] is not None
    bench.observe("b", [1.0, 2.0])
    late(bench, "a", 0, 1.0)
    late(bench, "a", 1, 2.0)
    same(bench, close, "a", "b")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(6))
def test_in_the_end_it_is_as_if_all_had_come_in_time(bench, close, seed):
    rng, labels = random.Random(seed), values(60)
    bench.ask(Configure("a", KNOWN), status=201)
    bench.ask(Configure("b", KNOWN), status=201)
    bench.observe("b", labels)
    waiting, at = [], 0
    while at < len(labels) or waiting:
        if at < len(labels) and (not waiting or rng.random() < 0.6):
            if rng.random() < 0.5:
                pend(bench, "a")
                waiting.append(at)
            else:
                bench.observe("a", [labels[at]])
            at += 1
        else:
            seq = waiting.pop(rng.randrange(len(waiting)))
            late(bench, "a", seq, labels[seq])
        if rng.random() < 0.1:
            bench.crash()
    assert bench.head("a").pending == []
    same(bench, close, "a", "b")


def test_answers_past_a_gap_are_those_without_the_label(bench, close):
    # Nothing is confirmed behind a gap, nor in the other stream that soon.
    for stream in "ab":
        bench.ask(Configure(stream, {**KNOWN, "confirm_after": 10}), status=201)
    labels = values(30)
    bench.observe("a", labels[:20])
    bench.observe("b", labels[:20])
    first = pend(bench, "a")
    (unlabelled,) = bench.observe("b", [Observation()])
    assert (first["provisional"], first["seq"], first["log_score"]) == (True, 20, None)
    found = bench.observe("a", labels[21:30])
    expected = bench.observe("b", labels[21:30])
    for one, other in zip([first, *found], [unlabelled, *expected], strict=True):
        assert one.pop("provisional") is True
        one["event"] = other["event"] = None
        close({**one, "stream": "b"}, other)
    assert bench.head("a").seq == 20
    assert [e.state for e in bench.events("a") if e.suspected_at >= 20] == []
    (one,), (other,) = (bench.ask(Predict(s))["predictions"] for s in "ab")
    close(one, other)
    answer = late(bench, "a", 20, labels[20])
    assert "provisional" not in answer
    assert answer["seq"] == 20
    assert answer["log_score"] is not None
    assert bench.head("a").seq == 30


def test_a_label_that_is_not_the_first_to_come_is_answered_provisionally(bench):
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", values(10))
    pend(bench, "a")
    pend(bench, "a")
    answer = late(bench, "a", 11, 0.5)
    assert (answer["seq"], answer["provisional"]) == (11, True)
    assert answer["log_score"] is not None
    assert bench.head("a").seq == 10
    late(bench, "a", 10, 0.1)
    assert bench.head("a").seq == 12


def test_the_window_closes_by_count(bench, close):
    bench.ask(Configure("a", {**KNOWN, "label_window": 5}), status=201)
    bench.ask(Configure("b", KNOWN), status=201)
    labels = values(20)
    pend(bench, "a")
    bench.observe("a", labels[1:6])
    assert bench.head("a").seq == 6
    bench.observe("b", [Observation(), *labels[1:6]])
    same(bench, close, "a", "b")
    late(bench, "a", 0, 1.0, status=409)


def test_a_label_may_be_given_up(bench, close):
    bench.ask(Configure("a", KNOWN), status=201)
    bench.ask(Configure("b", KNOWN), status=201)
    pend(bench, "a")
    bench.observe("a", [1.0])
    late(bench, "a", 0, None)
    bench.observe("b", [Observation(), 1.0])
    same(bench, close, "a", "b")


def test_inputs_wait_and_choose(bench):
    bench.ask(Configure("a", {"model": "linear", "warmup": 4}), status=201)
    rng = random.Random(5)
    for i in range(30):
        x = [rng.gauss(0, 1)]
        answer = pend(bench, "a", x=x)
        assert answer["seq"] == i
        late(bench, "a", i, 2 * x[0] + rng.gauss(0, 0.1))
    pend(bench, "a", x=[0.5])
    found = bench.ask(Act("a", [[-1.0], [2.0]], "greedy"))
    assert (found["chosen"], found["seq"]) == (1, 31)
    assert late(bench, "a", 30, 1.0, status=409, x=[0.6])["field"] == "x"
    assert late(bench, "a", 30, 1.0, x=[0.5])["seq"] == 30


@pytest.mark.parametrize(
    ("seq", "detail"), [(3, "no pending label at seq 3"), (9, "the next observation is 6")]
)
def test_labels_nobody_waits_for(bench, seq, detail):
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", values(5))
    pend(bench, "a")
    before = bench.stored("a")
    answer = late(bench, "a", seq, 1.0, status=409)
    assert answer["type"].endswith("/seq-conflict")
    assert detail in answer["detail"]
    assert answer["seq"] == 6
    assert bench.stored("a") == before


@pytest.mark.parametrize("others", [0, 1])
def test_a_label_that_was_given_up_has_one_answer(bench, others):
    """Whether or not the stream awaits the labels of other observations."""
    bench.ask(Configure("a", {**KNOWN, "label_window": 2}), status=201)
    for _ in range(3):
        pend(bench, "a")
    for seq in range(1, 3 - others):
        late(bench, "a", seq, 1.0)
    answer = late(bench, "a", 0, 1.0, status=409)
    assert answer["type"].endswith("/seq-conflict")
    assert "no pending label at seq 0" in answer["detail"]
    assert answer["seq"] == 3


def test_a_window_of_none(bench):
    bench.ask(Configure("a", {**KNOWN, "label_window": 0}), status=201)
    (outcome,) = bench.send(Observe("a", [Observation(pending=True)]))
    assert outcome.status == 409


def test_a_belief_that_is_not_settled_cannot_be_overridden(bench):
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", values(5))
    pend(bench, "a")
    answer = bench.ask(SetBelief("a", [(2, 1.0)]), status=409)
    assert answer["type"].endswith("/not-awaited")


def test_what_waits_goes_along_to_another_model(bench, close):
    labels = values(40)
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", labels[:30])
    pend(bench, "a")
    bench.observe("a", labels[31:])
    bench.ask(Move("a", "averaged"))
    late(bench, "a", 30, labels[30])
    bench.ask(Configure("b", {**KNOWN, "model": "averaged"}), status=201)
    bench.observe("b", labels)
    close(bench.ask(RunLength("a"))["belief"], bench.ask(RunLength("b"))["belief"])


def test_in_the_warm_up_too(bench, close):
    labels = values(40)
    bench.ask(Configure("a", {"warmup": 10}), status=201)
    bench.ask(Configure("b", {"warmup": 10}), status=201)
    bench.observe("b", labels)
    bench.observe("a", labels[:4])
    pend(bench, "a")
    bench.observe("a", labels[5:30])
    late(bench, "a", 4, labels[4])
    bench.observe("a", labels[30:])
    same(bench, close, "a", "b")


def test_a_key_covers_a_late_label(bench):
    bench.ask(Configure("a", KNOWN), status=201)
    pend(bench, "a")
    command = Observe("a", [Observation(y=1.0)], key="k", digest="d", seq=0)
    (first,), (again,) = bench.send(command), bench.send(command)
    assert json.loads(again.body[0]) == {**json.loads(first.body[0]), "duplicate": True}
    assert bench.head("a").seq == 1


@pytest.fixture
def steps(monkeypatch):
    """How many observations were stepped through."""
    counted, step = [], Slab.step

    def counting(slab, rows, *rest):
        counted.extend(rows)
        return step(slab, rows, *rest)

    monkeypatch.setattr(Slab, "step", counting)
    return counted


def test_labels_that_come_in_order_go_through_what_waits_once(bench, close, steps):
    labels = values(60)
    for stream in ("a", "b"):
        bench.ask(Configure(stream, KNOWN), status=201)
    bench.observe("b", labels)
    for _ in labels:
        pend(bench, "a")
    steps.clear()
    for seq in range(1, 60):
        late(bench, "a", seq, labels[seq])
    assert len(steps) <= 2 * 60
    late(bench, "a", 0, labels[0])
    same(bench, close, "a", "b")


def test_a_label_that_never_comes_costs_no_rerun(bench, close, steps):
    labels = values(60)
    for stream in ("a", "b"):
        bench.ask(Configure(stream, {**KNOWN, "label_window": 20}), status=201)
    answers = []
    for _ in labels[:40]:
        steps.clear()
        answers.append(pend(bench, "a"))
        assert len(steps) <= 2
    for seq in range(20, 40):
        late(bench, "a", seq, labels[seq])
    bench.observe("b", [Observation()] * 20 + labels[20:40])
    same(bench, close, "a", "b")
