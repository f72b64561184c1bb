"""Reruns of streams whose belief was overridden: each override counts again where it was made."""

import random

import pytest
import torch

from service.wire import Configure, EventFeedback, Move, Observation, RunLength, SetBelief, WhatIf
from service.worker.commands import rerun
from service.worker.filtering.history import retained

KNOWN = {"location": [0.0], "scale": [1.0], "hazard": 0.02}
SHORT = [(2, 0.25), (0, 0.75)]


def labels(count=60, level=0.0, seed=5):
    rng = random.Random(seed)
    return [rng.gauss(level, 1) for _ in range(count)]


def overridden(bench, stream, at, y, belief=SHORT, **settings):
    """A stream with an override before the observation `at`."""
    bench.ask(Configure(stream, {**KNOWN, **settings}), status=201)
    bench.observe(stream, y[:at])
    bench.ask(SetBelief(stream, belief))
    bench.observe(stream, y[at:])


def believed(bench, stream):
    found = bench.ask(RunLength(stream))["belief"]
    return {each["run_length"]: each["probability"] for each in found}


def outcome(steps):
    """What a generator returns in the end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def rerun_of(bench, stream):
    """The stream as it is, and as a rerun without any correction has it."""
    engine = bench.worker.engine
    held = engine.streams[bench.partition(stream), stream]
    with torch.inference_mode():
        found = outcome(rerun.corrected(engine, held, retained(held, engine.store, 5000)))
        states = [each.slab.state(each.row) for each in (held, found.stream)]
        found.close()
    return [held.live(), found.head], states


@pytest.mark.parametrize("at", [1, 30, 59, 60])
def test_a_rerun_without_a_correction_is_the_stream(bench, at):
    if at == 1:
        overridden(bench, "a", at, labels(), [(0, 1.0)])
    else:
        overridden(bench, "a", at, labels())
    bench.ask(RunLength("a"))
    heads, states = rerun_of(bench, "a")
    for one, other in zip(states[0].belief, states[1].belief, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)
    for one, other in zip(states[0].stats, states[1].stats, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)
    for name in ("seq", "best_start", "map_run_length", "belief_override", "confirmed_start"):
        assert getattr(heads[1], name) == getattr(heads[0], name), name
    assert heads[1].changed_probability == pytest.approx(heads[0].changed_probability, abs=1e-9)


def test_several_overrides_in_one_place_are_the_last(bench):
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", labels(20))
    bench.ask(SetBelief("a", [(0, 0.2), (4, 0.3), (19, 0.5)]))
    bench.ask(SetBelief("a", [(4, 0.9), (19, 0.1)]))
    bench.observe("a", labels(20, seed=6))
    _, states = rerun_of(bench, "a")
    for one, other in zip(states[0].belief, states[1].belief, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)


def test_what_if_with_the_same_settings_is_the_stream(bench, close):
    overridden(bench, "a", 30, labels())
    before = bench.stored("a")
    answer = bench.ask(WhatIf("a", {}, series=True, beliefs=1))
    assert bench.stored("a") == before
    close(answer["log_score"], [each.log_score for each in bench.records("a")])
    assert answer["mean_log_score"] == pytest.approx(answer["present_mean_log_score"], abs=1e-12)
    now = {r: p for r, p in believed(bench, "a").items() if p >= 1e-4}
    (last,) = answer["beliefs"]
    assert last["run_length"] == sorted(now)
    assert last["probability"] == pytest.approx([now[r] for r in sorted(now)], abs=1e-6)


@pytest.mark.parametrize("at", [30, 60])
def test_a_verdict_that_says_nothing_new_leaves_the_belief(bench, at):
    y = [Observation(y=v, changepoint=1.0 if i == 10 else None) for i, v in enumerate(labels())]
    overridden(bench, "a", at, y)
    before = believed(bench, "a")
    bench.ask(EventFeedback("a", change=True, start=10))
    assert believed(bench, "a") == pytest.approx(before, abs=1e-9)
    bench.crash()
    assert believed(bench, "a") == pytest.approx(before, abs=1e-9)
    more = labels(5, seed=9)
    bench.observe("a", more)
    overridden(bench, "b", at, y)
    bench.observe("b", more)
    assert believed(bench, "a") == pytest.approx(believed(bench, "b"), abs=1e-9)


@pytest.mark.parametrize("at", [30, 60])
def test_a_moved_stream_takes_its_overrides_along(bench, at):
    overridden(bench, "a", at, labels())
    bench.ask(Configure("b", {**KNOWN, "model": "averaged"}), status=201)
    bench.observe("b", labels()[:at])
    bench.ask(SetBelief("b", SHORT))
    bench.observe("b", labels()[at:])
    bench.ask(Move("a", "averaged"))
    assert believed(bench, "a") == pytest.approx(believed(bench, "b"), abs=1e-9)
    bench.crash()
    for each in ("a", "b"):
        bench.observe(each, labels(30, seed=8))
    assert believed(bench, "a") == pytest.approx(believed(bench, "b"), abs=1e-9)


def test_a_later_verdict_is_stronger_than_an_override(bench):
    """That a regime began at 27 was the override's word; the verdict says that none did."""
    y = [Observation(y=v) for v in (*labels(27), *labels(33, 3.0))]
    overridden(bench, "a", 30, y, [(2, 1.0)])
    assert {59 - r for r, p in believed(bench, "a").items() if p > 0.5} == {27}
    (event,) = [each for each in bench.events("a") if each.state != "withdrawn"]
    bench.ask(EventFeedback("a", change=False, event=event.id))
    assert {59 - r for r, p in believed(bench, "a").items() if p > 0.5} == {0}


def test_of_a_rerun_that_begins_later_the_oldest_regime_is_the_longest(bench):
    """An override that says that nothing has changed, ever, is not lost with the first history."""
    y = [Observation(y=v) for v in labels(400)]
    overridden(bench, "a", 300, y, [(299, 1.0)], history=150)
    bench.ask(Move("a", "averaged"))
    kept = bench.worker.engine.streams[bench.partition("a"), "a"]
    first = retained(kept, bench.worker.engine.store, 5000)[0].seq
    assert first > 150
    assert max(believed(bench, "a")) == 399 - first


def test_an_override_stays_with_the_record(bench):
    overridden(bench, "a", 30, labels(), [(2, 0.25), (0, 0.75), (5, 0.0)])
    records = bench.records("a")
    assert [r.seq for r in records if r.belief_override is not None] == [30]
    assert records[30].belief_override == [(2, 0.25), (0, 0.75)]
