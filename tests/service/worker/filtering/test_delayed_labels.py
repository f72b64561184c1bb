"""Labels that come later: whatever the order, in the end as if they had come in time."""

import json
import random

import pytest

from service.wire import Act, Configure, Move, Observation, Observe, Predict, RunLength, SetBelief
from tests.service.worker.conftest import BAD, Fragile

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
    """Two streams in the same state, with the same records and events."""
    close(bench.ask(RunLength(one))["belief"], bench.ask(RunLength(other))["belief"])
    skip = {"mean", "quantiles", "variance", "probabilities"}
    for a, b in zip(bench.records(one), bench.records(other), strict=True):
        close(
            {f: getattr(a, f) for f in a.__struct_fields__ if f not in skip},
            {f: getattr(b, f) for f in b.__struct_fields__ if f not in skip},
        )
    assert [e.start for e in bench.events(one)] == [e.start for e in bench.events(other)]


def two(bench, **settings):
    """Streams a, whose labels are late, and b, whose are not."""
    for stream in ("a", "b"):
        bench.ask(Configure(stream, {**KNOWN, **settings}), status=201)


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))]
)
def test_in_the_end_it_is_as_if_all_had_come_in_time(bench, close, seed):
    rng, labels = random.Random(seed), values(40)
    if seed % 2:
        two(bench, warmup=10, location=None, scale=None)
    else:
        two(bench)
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


def test_the_very_first_observation_may_wait_for_its_label(bench, close):
    """It is answered from the prior, also after a crash; settings made again lose nothing."""
    two(bench)
    assert pend(bench, "a")["predictive"]["mean"] == [0.0]
    bench.crash()
    assert pend(bench, "a")["predictive"] is not None
    again = bench.ask(Configure("a", KNOWN))
    assert (again["seq"], again["awaited"]) == (2, [0, 1])
    bench.observe("b", [1.0, 2.0])
    late(bench, "a", 0, 1.0)
    late(bench, "a", 1, 2.0)
    same(bench, close, "a", "b")


def test_answers_past_a_gap_are_those_without_the_label(bench, close):
    two(bench, confirm_after=10)  # nothing is confirmed behind a gap, nor in the other that soon
    labels = values(26)
    bench.observe("a", labels[:20])
    bench.observe("b", labels[:20])
    first = pend(bench, "a")
    (unlabelled,) = bench.observe("b", [Observation()])
    assert (first["provisional"], first["seq"], first["log_score"]) == (True, 20, None)
    found = bench.observe("a", labels[21:], belief=True)
    expected = bench.observe("b", labels[21:], belief=True)
    assert all(answer["run_length"]["belief"] for answer in found)
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
    assert bench.head("a").seq == 26


def test_a_label_that_waited_and_cannot_be_applied_counts_as_missing(monkeypatch, bench, close):
    monkeypatch.setattr("model_core.upm.conjugate.Gaussian", Fragile)
    two(bench)
    bench.observe("a", values(3))
    bench.observe("b", [*values(3), 1.0, None, 2.0])
    pend(bench, "a")
    bench.observe("a", [BAD, 2.0])
    late(bench, "a", 3, 1.0)
    assert bench.head("a").seq == 6
    same(bench, close, "a", "b")


def test_labels_are_given_up_when_too_many_wait_or_when_asked(bench, close):
    two(bench, label_window=5)
    labels = values(20)
    pend(bench, "a")
    bench.observe("a", labels[1:5])
    assert bench.head("a").seq == 0  # five wait
    bench.observe("a", labels[5:6])
    assert bench.head("a").seq == 6
    refused = late(bench, "a", 0, 1.0, status=409)
    assert refused["type"].endswith("/seq-conflict")
    assert refused["detail"].endswith("observation is 6, and no label is pending at seq 0")
    pend(bench, "a")
    bench.observe("a", [1.0])
    late(bench, "a", 6, None)
    bench.observe("b", [Observation(), *labels[1:6], Observation(), 1.0])
    same(bench, close, "a", "b")


def test_answers_are_from_where_the_stream_is_once_labels_were_given_up(bench, close):
    two(bench, label_window=1)
    level = [5.0] * 10
    bench.observe("a", level)
    bench.observe("b", level)
    pend(bench, "a")
    bench.observe("a", [-5.0])  # nothing waits any more
    expected = bench.observe("b", [Observation(), -5.0, Observation()])
    close(pend(bench, "a")["predictive"], expected[-1]["predictive"])


def test_more_may_be_settled_than_was_answered_ahead(bench, close):
    two(bench, label_window=3)
    level = [5.0] * 10
    bench.observe("a", level)
    bench.observe("b", level)
    pend(bench, "a")
    pend(bench, "a")
    bench.observe("a", [-5.0])
    late(bench, "a", 11, -5.0)  # what is ahead is before the last
    answer = pend(bench, "a")  # the first label is given up
    expected = bench.observe("b", [Observation(), -5.0, -5.0, Observation()])
    close(answer["predictive"], expected[-1]["predictive"])


def test_labels_nobody_waits_for_change_nothing(bench):
    bench.ask(Configure("a", {**KNOWN, "label_window": 2}), status=201)
    for _ in range(3):
        pend(bench, "a")  # the third gives the first up
    late(bench, "a", 2, 1.0)
    before = bench.stored("a")
    for seq in (0, 2, 9):  # given up; known; to come
        answer = late(bench, "a", seq, 1.0, status=409)
        assert answer["type"].endswith("/seq-conflict")
        assert answer["seq"] == 3
    assert bench.ask(SetBelief("a", [(0, 1.0)]), status=409)["type"].endswith("/not-awaited")
    assert bench.stored("a") == before
    bench.ask(Configure("none", {**KNOWN, "label_window": 0}), status=201)
    (outcome,) = bench.send(Observe("none", [Observation(pending=True)]))
    assert outcome.status == 409


def test_inputs_wait_and_choose(bench):
    bench.ask(Configure("a", {"model": "linear", "warmup": 4}), status=201)
    rng = random.Random(5)
    for i in range(12):
        x = [rng.gauss(0, 1)]
        assert pend(bench, "a", x=x)["seq"] == i
        late(bench, "a", i, 2 * x[0] + rng.gauss(0, 0.1))
    pend(bench, "a", x=[0.5])
    found = bench.ask(Act("a", [[-1.0], [2.0]], "greedy"))
    assert (found["chosen"], found["seq"]) == (1, 13)
    assert late(bench, "a", 12, 1.0, status=409, x=[0.6])["field"] == "x"
    bench.ask(Configure("a", {"model": "gaussian"}), status=409)
    assert late(bench, "a", 12, 1.0, x=[0.5])["seq"] == 12


# --- settings and models that change while labels are to come -------------------------------------


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"hazard": 0.4}, {"outlier_rate": 0.2}),
        ({"interval": None}, {"hazard": 0.4}),
    ],
)
def test_each_observation_counts_under_the_settings_it_came_under(bench, close, first, then):
    labels = values(12)
    seen = [Observation(y=y, time=f"2026-01-01T00:{i:02d}:00Z") for i, y in enumerate(labels)]
    two(bench, interval=20.0)
    for stream in ("a", "b"):
        bench.observe(stream, seen[:3])
    pend(bench, "a", time=seen[3].time)
    bench.observe("b", seen[3:4])
    for stream in ("a", "b"):
        bench.observe(stream, seen[4:6])
        bench.ask(Configure(stream, first))
        bench.observe(stream, seen[6:8])
        bench.ask(Configure(stream, then))
        bench.observe(stream, seen[8:])
    changed_at = bench.client.hkeys(f"moca:{{{bench.partition('a')}}}:changes:a")
    assert {field.split(b":")[0] for field in changed_at} == {b"6", b"8"}
    bench.crash()
    late(bench, "a", 3, labels[3])
    assert bench.head("a").pending_settings == []
    same(bench, close, "a", "b")


def test_what_waits_goes_along_to_another_model_and_its_hazard(bench, close):
    labels = values(30)
    two(bench)
    bench.observe("a", labels[:25])
    bench.observe("b", labels[:26])
    pend(bench, "a")
    for stream in ("a", "b"):
        bench.observe(stream, labels[26:28])
        bench.ask(Configure(stream, {"hazard": 0.3}))
        bench.ask(Move(stream, "averaged"))
    late(bench, "a", 25, labels[25])
    for stream in ("a", "b"):
        bench.observe(stream, labels[28:])
    close(bench.ask(RunLength("a"))["belief"], bench.ask(RunLength("b"))["belief"])


def test_a_model_that_cannot_take_what_waits_refuses_the_move(bench):
    cases = [
        ({"model": "linear"}, {"x": [1.0, 2.0]}, "gaussian", "dimension-mismatch"),
        ({"model": "gaussian", "warmup": 5}, {}, "linear", "dimension-mismatch"),
        ({"model": "gaussian", "location": [1.0], "scale": [1.0]}, {}, "poisson", "out-of-range"),
    ]
    for stream, (made, seen, to, slug) in zip("abc", cases, strict=True):
        bench.ask(Configure(stream, made), status=201)
        pend(bench, stream, **seen)
        bench.observe(stream, [Observation(y=-3.5, **seen)])
        before = bench.stored(stream)
        (refused,) = bench.send(Move(stream, to))
        assert refused.status == 422
        assert slug in json.loads(refused.body[0])["type"]
        assert bench.stored(stream) == before
        late(bench, stream, 0, 1.0)
        assert bench.head(stream).seq == 2
