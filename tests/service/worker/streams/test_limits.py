"""Reads that would keep their worker for too long, or end it, are refused in words."""

import json
import time

import pytest

from service.wire import Configure, Observation, Predict, RunLength

ALL = [i / 100 for i in range(1, 100)]


def refused(bench, command):
    began = time.monotonic()
    (outcome,) = bench.send(command)
    assert outcome.status == 422
    found = json.loads(outcome.body[0])
    assert found["type"].endswith("/unfit-model")
    assert time.monotonic() - began < 5
    return found["detail"]


@pytest.fixture
def wide(bench):
    bench.ask(Configure("a", {"model": "linear", "warmup": 3}), status=201)
    seen = [Observation(x=[float(i)], y=[float(i * j % 7) for j in range(256)]) for i in range(4)]
    bench.observe("a", seen)
    return bench


def test_a_thousand_covariances_of_256_outputs(wide):
    points = [[i / 1000] for i in range(1000)]
    assert "split the request" in refused(wide, Predict("a", points))
    assert "split the request" in refused(wide, Predict("a", points[:2], samples=1000))
    assert len(wide.ask(Predict("a", points[:2]))["predictions"]) == 2


def test_many_quantiles_of_many_hypotheses(bench):
    settings = {"location": [0.0], "scale": [1.0], "max_hypotheses": 2000, "model": "averaged"}
    bench.ask(Configure("a", settings), status=201)
    bench.observe("a", [0.0, 1.0])
    assert "split the request" in refused(bench, Predict("a", None, ALL, horizon=100))
    assert "paths" in refused(bench, Predict("a", None, [0.5], horizon=100, samples=1000))
    assert bench.ask(Predict("a", None, ALL, components=True))["predictions"]


@pytest.mark.slow
def test_what_was_allowed_by_other_bounds_still_is(bench):
    """A page of inputs, or of steps ahead, with the settings as they come."""
    bench.ask(Configure("a", {"model": "linear", "warmup": 3}), status=201)
    bench.observe("a", [Observation(x=[float(i)], y=float(i % 3)) for i in range(9)])
    found = bench.ask(Predict("a", [[i / 1000] for i in range(1000)]))
    assert len(found["predictions"]) == 1000
    bench.ask(Configure("b", {"location": [0.0], "scale": [1.0], "model": "averaged"}), status=201)
    bench.observe("b", [0.0, 1.0])
    assert len(bench.ask(Predict("b", horizon=100, samples=1000))["predictions"]) == 100


@pytest.mark.parametrize("model", ["gaussian", "averaged", "multivariate"])
def test_a_label_beyond_all_scales_is_the_senders_fault(bench, model):
    settings = {"model": model, "location": [1e100], "scale": [1e-100]}
    bench.ask(Configure("a", settings), status=201)
    (answer,) = bench.observe("a", [Observation(y=1000.0)], status=422)
    assert answer["type"].endswith("/label-out-of-range")
    assert bench.ask(RunLength("a"))["seq"] is None
