"""A stream that remembers its regimes, on a worker: durable as all else."""

import numpy as np
import pytest

from service.wire import Configure, EventFeedback, RunLength, SetBelief, WhatIf

LEVELS = [0.0, 7.0, -6.0]


def labels(count, seed=3):
    rng = np.random.default_rng(seed)
    levels = np.repeat([LEVELS[k % 3] for k in range(count // 30 + 1)], 30)[:count]
    return (levels + rng.normal(size=count)).tolist()


def confirmed(bench, stream="a"):
    return [event for event in bench.events(stream) if event.state == "confirmed"]


def test_killed_and_replayed_it_keeps_ids_and_numbers(make_bench, close):
    """Wherever it is killed, and whatever is in the tail: no checkpoint is due of itself."""
    bench, plain = make_bench(checkpoint_every=10_000), make_bench(db=1)
    for own in (bench, plain):
        own.ask(Configure("a", {"regimes": 4}), status=201)
    given = labels(420)
    rng = np.random.default_rng(0)
    answers, at = [], 0
    while at < len(given):
        count = int(rng.integers(1, 40))
        answers += bench.observe("a", given[at : at + count])
        at += count
        bench.crash()
    truth = plain.observe("a", given)
    close(answers, truth, 0.0)
    known = [answer.get("regime") for answer in truth]
    assert {regime["id"] for regime in known if regime} >= {1, 2, 3}
    events = confirmed(bench)
    assert events == confirmed(plain)
    assert [event.word for event in events[-4:]] == ["returned"] * 4
    told = [answer["event"] for answer in truth if answer["event"]]
    (served,) = [event for event in told if event["confirmed_at"] == events[-1].confirmed_at][:1]
    assert served["returned"]["id"] == events[-1].returned.id
    records = bench.records("a")
    assert [record.regime and record.regime.id for record in records] == [
        regime and regime["id"] for regime in known
    ]
    assert bench.head("a").regime == records[-1].regime


def test_snapshot_carries_what_is_remembered(make_bench, close):
    bench = make_bench()
    bench.ask(Configure("a", {"regimes": 4}), status=201)
    given = labels(300)
    bench.observe("a", given[:250])
    bench.put("b", bench.export("a"))
    for ours, theirs in zip(
        bench.observe("a", given[250:]), bench.observe("b", given[250:]), strict=True
    ):
        close({**ours, "stream": ""}, {**theirs, "stream": ""}, 0.0)


def test_models_that_recall_nothing_are_refused(bench):
    bench.default_model = "averaged"
    problem = bench.ask(Configure("p", {"model": "poisson", "regimes": 2}), status=422)
    assert "regimes" in problem["detail"]
    bench.ask(Configure("v", {"regimes": 2}), status=201)
    bench.observe("v", [[1.0, 2.0]], status=422)
    (answer,) = bench.observe("v", [1.0])
    assert answer["model"] == "averaged"


def test_setting_is_fixed_once_there_are_observations(bench):
    bench.ask(Configure("a", {"regimes": 2}), status=201)
    bench.observe("a", labels(30))
    problem = bench.ask(Configure("a", {"regimes": 3}), status=409)
    assert "regimes" in problem["detail"]


def test_feedback_beliefs_and_other_settings(make_bench, close):
    """Reruns and overrides of the belief go through what is remembered, and survive a crash."""
    bench, plain = make_bench(), make_bench(db=1)
    given = labels(300)
    for own in (bench, plain):
        own.ask(Configure("a", {"regimes": 4}), status=201)
        own.observe("a", given[:200])
        own.ask(EventFeedback("a", False, confirmed(own)[1].id))
        own.ask(SetBelief("a", [(3, 0.5), (9, 0.5)]))
        tried = own.ask(WhatIf("a", {"regimes": 0}))
        assert tried["seq"] == 200
    bench.crash()
    found, expected = (own.observe("a", given[200:]) for own in (bench, plain))
    close(found, expected, 0.0)
    belief = bench.ask(RunLength("a"))["belief"]
    lengths = [entry["run_length"] for entry in belief]
    assert lengths == sorted(set(lengths))
    assert sum(entry["probability"] for entry in belief) == pytest.approx(1, abs=1e-9)
    bench.crash()
    close(bench.observe("a", given[:40]), plain.observe("a", given[:40]), 0.0)
    assert any(answer.get("regime") for answer in found)
