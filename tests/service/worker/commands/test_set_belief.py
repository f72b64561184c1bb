"""The run-length belief overridden, and what is known of the observation to come."""

import json
import random

import pytest

from service.wire import Configure, Observation, Predict, RunLength, SetBelief

KNOWN = {"location": [0.0], "scale": [1.0], "hazard": 0.05, "outlier_rate": 0.0}


@pytest.fixture
def stream(bench):
    rng = random.Random(1)
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", [rng.gauss(3 * (i >= 12), 1) for i in range(15)])
    return "a"


def believed(bench, stream):
    found = bench.ask(RunLength(stream))["belief"]
    return {each["run_length"]: each["probability"] for each in found}


def test_stated_probabilities_take_the_place_of_the_believed_ones(bench, stream):
    answer = bench.ask(SetBelief(stream, [(3, 0.25), (9, 0.75)]))
    assert believed(bench, stream) == pytest.approx({3: 0.25, 9: 0.75})
    assert answer["run_length"]["map"] == 9
    assert answer["changed_probability"] == pytest.approx(1.0)  # both start after 0
    summary = bench.head(stream)
    assert summary.map_run_length == 9


def test_the_belief_as_it_is_changes_nothing(bench, stream):
    before = believed(bench, stream)
    bench.ask(SetBelief(stream, sorted(before.items())))
    bench.ask(Configure("b", KNOWN), status=201)
    bench.observe("b", [Observation(y=r.y) for r in bench.records(stream)])
    (one,), (other,) = bench.observe(stream, [0.4]), bench.observe("b", [0.4])
    assert one["log_score"] == pytest.approx(other["log_score"], abs=1e-12)
    assert one["run_length"]["mean"] == pytest.approx(other["run_length"]["mean"], abs=1e-9)


def test_an_override_outlives_its_worker(bench, stream):
    bench.ask(SetBelief(stream, [(2, 1.0)], 0.3))
    bench.crash()
    assert believed(bench, stream) == {2: 1.0}
    told = bench.ask(Predict(stream, components=True))["predictions"][0]["components"]
    assert {c["run_length"]: c["weight"] for c in told} == pytest.approx({0: 0.3, 3: 0.7})


def test_what_is_told_of_the_next_observation_is_its_supervision(bench, stream):
    bench.ask(SetBelief(stream, changepoint=1.0))
    bench.ask(Configure("b", KNOWN), status=201)
    bench.observe("b", [Observation(y=r.y) for r in bench.records(stream)])
    (one,) = bench.observe(stream, [2.0])
    (other,) = bench.observe("b", [Observation(y=2.0, changepoint=1.0)])
    assert one["changepoint_probability"] == other["changepoint_probability"] == 1.0
    assert bench.records(stream)[-1].changepoint == 1.0
    bench.observe(stream, [2.0])
    assert bench.records(stream)[-1].changepoint is None


def test_an_observations_own_supervision_comes_first(bench, stream):
    bench.ask(SetBelief(stream, changepoint=1.0))
    (answer,) = bench.observe(stream, [Observation(y=0.0, changepoint=0.0)])
    assert answer["changepoint_probability"] == 0.0


@pytest.mark.parametrize(
    ("command", "status", "says"),
    [
        (
            SetBelief("a", [(40, 1.0)]),
            422,
            "no hypothesis has run length 40; existing run lengths: 0, 1, 2",
        ),
        (SetBelief("a", [(3, 1.0)], seq=14), 409, "seq is 14, but the next observation is 15"),
        (SetBelief("none", [(3, 1.0)]), 404, "no stream"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(bench, stream, command, status, says):
    before = bench.stored("a")
    (outcome,) = bench.send(command)
    assert outcome.status == status
    assert says in json.loads(outcome.body[0])["detail"]
    assert bench.stored("a") == before


def test_there_is_nothing_to_override_in_the_warm_up(bench):
    bench.observe("w", [1.0, 2.0])
    assert bench.ask(SetBelief("w", [(0, 1.0)]), status=409)["seq"] == 2
