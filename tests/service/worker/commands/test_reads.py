"""Forecasts, actions, and the belief overridden: what is read off a stream, and stated of it."""

import json
import math
import random

import pytest
import torch

from model_core import actions
from model_core import filter as moca
from model_core.actions import Strategy
from model_core.stream.slab import Slab
from model_core.table import statistics_line
from service.wire import Act, Configure, Observation, Predict, RunLength, SetBelief
from service.worker.streams import step_inputs
from tests.service.worker.conftest import slug

KNOWN = {"location": [0.0], "scale": [1.0], "hazard": 0.05, "outlier_rate": 0.0}
CANDIDATES = [[-1.0, 0.5], [0.2, 0.1], [2.0, -1.0]]


# --- forecasts ----------------------------------------------------------------------------------


def test_forecasts_need_a_filter_without_inputs(bench):
    bench.ask(Configure("a", {"model": "linear"}), status=201)
    bench.observe("a", [Observation(x=[1.0], y=1.0)])
    answer = bench.ask(Predict("a", horizon=3), status=422)
    assert (slug(answer), answer["field"]) == ("unfit-model", "horizon")
    bench.observe("b", [1.0])
    assert slug(bench.ask(Predict("b", horizon=3), status=409)) == "warming-up"


def test_predictions_of_numbers_that_are_not_finite_are_a_fault(bench):
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", [0.0, 1.0])
    held = bench.worker.engine.streams[bench.partition("a"), "a"]
    own = held.slab.row(held.row)
    own.lines[statistics_line(1) :] = math.nan
    held.slab.put(held.row, own)
    answer = bench.ask(Predict("a"), status=500)
    assert (slug(answer), answer["seq"]) == ("numerical-fault", 2)


def test_without_a_kernel_a_prediction_is_no_step(bench, monkeypatch):
    """Of each input that would copy the stream, and learn."""
    wide = [[0.1 * i] * 32 for i in range(3)]
    bench.ask(Configure("a", {"model": "linear", "warmup": 2}), status=201)
    bench.observe("a", [Observation(x=x, y=float(i)) for i, x in enumerate(wide)])
    monkeypatch.setattr(Slab, "tried", None)
    answers = bench.ask(Predict("a", wide))["predictions"]
    assert all(math.isfinite(answer["predictive"]["mean"][0]) for answer in answers)


# --- actions ------------------------------------------------------------------------------------


@pytest.fixture
def inputs(bench):
    """A stream whose label is 2 x0 - x1."""
    rng = random.Random(2)
    bench.ask(Configure("a", {"model": "linear", "warmup": 5, "hazard": 0.02}), status=201)
    x = [[rng.gauss(0, 1), rng.gauss(0, 1)] for _ in range(30)]
    bench.observe("a", [Observation(x=v, y=2 * v[0] - v[1] + rng.gauss(0, 0.1)) for v in x])
    return bench


@pytest.mark.parametrize("strategy", [Strategy("thompson"), Strategy("optimistic", 4)])
def test_a_seed_draws_what_it_draws(inputs, strategy):
    """The same choice as one made directly; another seed makes another."""
    command = Act("a", CANDIDATES, strategy.name, strategy.samples, 11)
    before = inputs.stored("a")
    answer = inputs.ask(command)
    held = inputs.worker.engine.streams[inputs.partition("a"), "a"]
    state, prior = held.slab.batch([held.row])
    grown, _ = moca.grow(state, prior, step_inputs.inputs(held.slab, [inputs.records("a")[-1]]))
    asked = torch.tensor([CANDIDATES], dtype=torch.float64)
    drawn = actions.hypotheses(grown), asked, strategy, actions.seeded([11])
    expected = actions.choose(held.slab.model, *drawn)
    assert answer["values"] == expected.values[0].tolist()
    assert answer["chosen"] == int(expected.chosen[0])
    assert answer["candidate"] == CANDIDATES[answer["chosen"]]
    assert answer["seed"] == 11
    assert inputs.ask(command) == answer
    assert inputs.stored("a") == before
    command.seed = 12
    assert inputs.ask(command)["values"] != answer["values"]


def test_greedy_takes_the_best_mean(inputs):
    answer = inputs.ask(Act("a", CANDIDATES, "greedy"))
    assert answer["chosen"] == 2
    assert answer["values"] == pytest.approx([-2.5, 0.3, 5.0], abs=0.3)
    assert answer["seed"] is None


def test_what_cannot_be_chosen_from(bench):
    bench.ask(Configure("none", {"model": "linear"}), status=201)
    bench.ask(Configure("warming", {"model": "linear"}), status=201)
    bench.observe("warming", [Observation(x=[0.0, 1.0], y=1.0)])
    bench.ask(Configure("without", {}), status=201)
    bench.ask(Configure("several", {"model": "linear", "warmup": 3}), status=201)
    bench.observe("several", [Observation(x=[float(i)], y=[i + 0.1, -float(i)]) for i in range(6)])
    for stream, candidates, status, expected in (
        ("none", [[1.0, 2.0]], 409, "warming-up"),
        ("warming", [[1.0, 2.0]], 409, "warming-up"),
        ("warming", [[1.0, 2.0], [1.0]], 422, "dimension-mismatch"),
        ("warming", [[1.0, 1e300]], 422, "label-out-of-range"),
        ("without", [[1.0]], 422, "unfit-model"),
        ("several", [[1.0]], 422, "unfit-model"),
    ):
        answer = bench.ask(Act(stream, candidates, "thompson"), status=status)
        assert slug(answer) == expected, (stream, candidates)


# --- the belief overridden ----------------------------------------------------------------------


@pytest.fixture
def stream(bench):
    rng = random.Random(1)
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", [rng.gauss(3 * (i >= 12), 1) for i in range(15)])
    return "a"


def alike(bench, stream):
    """Another stream with the same observations."""
    bench.ask(Configure("b", KNOWN), status=201)
    bench.observe("b", [Observation(y=r.y) for r in bench.records(stream)])
    return "b"


def test_the_answer_describes_the_belief(bench, stream):
    answer = bench.ask(RunLength(stream))
    pairs = [(each["run_length"], each["probability"]) for each in answer["belief"]]
    summary = answer["run_length"]
    assert math.fsum(p for _, p in pairs) == pytest.approx(1)
    assert all(each["start"] == 14 - each["run_length"] for each in answer["belief"])
    assert summary["mean"] == pytest.approx(math.fsum(r * p for r, p in pairs))
    assert summary["map"] == max(pairs, key=lambda pair: pair[1])[0]
    assert answer["changepoint_probability"] == dict(pairs)[0]
    recent = math.fsum(p for r, p in pairs if r < 5)
    assert answer["recent_change_probability"] == pytest.approx(recent)
    for level, length in summary["quantiles"].items():
        reached = [r for r, _ in pairs if sum(p for s, p in pairs if s <= r) >= float(level)]
        assert length == min(reached)


def test_stated_probabilities_take_the_place_of_the_believed_ones(bench, stream):
    answer = bench.ask(SetBelief(stream, [(3, 0.25), (9, 0.75)], 0.3))
    bench.crash()
    assert bench.believed(stream) == pytest.approx({3: 0.25, 9: 0.75})
    assert answer["run_length"]["map"] == bench.head(stream).map_run_length == 9
    assert answer["changed_probability"] == pytest.approx(1.0)  # both start after 0
    components = bench.ask(Predict(stream, components=True))["predictions"][0]["components"]
    weights = {each["run_length"]: each["weight"] for each in components}
    assert weights == pytest.approx({0: 0.3, 4: 0.7 * 0.25, 10: 0.7 * 0.75})


def test_the_belief_as_it_is_changes_nothing(bench, stream):
    other = alike(bench, stream)
    bench.ask(SetBelief(stream, sorted(bench.believed(stream).items())))
    (one,), (same,) = bench.observe(stream, [0.4]), bench.observe(other, [0.4])
    assert one["log_score"] == pytest.approx(same["log_score"], abs=1e-12)
    assert one["run_length"]["mean"] == pytest.approx(same["run_length"]["mean"], abs=1e-9)


def test_supervision_of_the_next_observation_counts_once(bench, stream):
    """That of the observation itself comes first."""
    other = alike(bench, stream)
    bench.ask(SetBelief(stream, changepoint=1.0))
    (one,) = bench.observe(stream, [2.0])
    (same,) = bench.observe(other, [Observation(y=2.0, changepoint=1.0)])
    assert one["changepoint_probability"] == same["changepoint_probability"] == 1.0
    bench.observe(stream, [2.0])
    assert [each.changepoint for each in bench.records(stream)[-2:]] == [1.0, None]
    bench.ask(SetBelief(stream, changepoint=1.0))
    (answer,) = bench.observe(stream, [Observation(y=0.0, changepoint=0.0)])
    assert answer["changepoint_probability"] == 0.0


def test_a_belief_that_does_not_fit_is_refused_and_changes_nothing(bench, stream):
    bench.observe("w", [1.0, 2.0])
    before = bench.stored("a")
    for command, status, expected in (
        (SetBelief("a", [(40, 1.0)]), 422, "unfit-belief"),
        (SetBelief("a", [(3, 1.0)], seq=14), 409, "seq-conflict"),
        (SetBelief("a", [(3, 1.0)], seq=16), 409, "seq-conflict"),
        (SetBelief("w", [(0, 1.0)]), 409, "warming-up"),
    ):
        (outcome,) = bench.send(command)
        assert outcome.status == status, command
        assert slug(json.loads(outcome.body[0])) == expected
        assert bench.stored("a") == before
    bench.observe("a", [Observation(pending=True)])
    assert slug(bench.ask(SetBelief("a", [(3, 1.0)]), status=409)) == "not-awaited"
