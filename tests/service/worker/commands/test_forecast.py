"""Predictions of several labels to come, through the worker."""

import json
import math
import random

import pytest

from service.wire import Configure, Observation, Predict

KNOWN = {"location": [0.0], "scale": [1.0], "hazard": 0.05}


def walk(count, seed=3):
    rng, last, made = random.Random(seed), 0.0, []
    for _ in range(count):
        last = 0.9 * last + rng.gauss(0, 0.3)
        made.append(last)
    return made


def test_each_step_of_an_exchangeable_model_is_exact(bench, close):
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", [3.0 + 0.1 * i for i in range(10)])
    before = bench.stored("a")
    answer = bench.ask(Predict("a", horizon=30))
    assert [each["ahead"] for each in answer["predictions"]] == list(range(1, 31))
    (now,) = bench.ask(Predict("a"))["predictions"]
    close(answer["predictions"][0]["predictive"], now["predictive"])
    # The chance that the regime has ended grows, and with it the prior's share.
    means = [each["predictive"]["mean"][0] for each in answer["predictions"]]
    assert means == sorted(means, reverse=True)
    assert bench.stored("a") == before
    bench.observe("a", [Observation() for _ in range(4)])
    (later,) = bench.ask(Predict("a"))["predictions"]
    assert later["predictive"]["mean"][0] == pytest.approx(means[4], abs=1e-12)


@pytest.mark.parametrize("model", ["averaged", "autoregressive"])
def test_labels_that_feed_back_are_followed(bench, model):
    bench.ask(Configure("a", {"model": model, "warmup": 5}), status=201)
    bench.observe("a", walk(60))
    answer = bench.ask(Predict("a", horizon=12, samples=7, seed=5))
    found = answer["predictions"]
    widths = [each["predictive"]["quantiles"] for each in found]
    assert widths[11]["0.95"][0] - widths[11]["0.05"][0] > 1.5 * (
        widths[0]["0.95"][0] - widths[0]["0.05"][0]
    )
    assert all(len(each["samples"]) == 7 for each in found)
    assert bench.ask(Predict("a", horizon=12, samples=7, seed=5)) == answer
    assert all(math.isfinite(each["predictive"]["mean"][0]) for each in found)


def test_classes_and_counts_too(bench):
    for model, more in (("categorical", {"classes": 3}), ("bernoulli", {}), ("poisson", {})):
        bench.ask(Configure(model, {"model": model, **more}), status=201)
        bench.observe(model, [1.0, 0.0, 1.0] * 10)
        found = bench.ask(Predict(model, horizon=3, samples=2))["predictions"]
        assert len(found) == 3
        assert len(found[2]["samples"]) == 2
        probabilities = found[2]["predictive"].get("probabilities", [1.0])
        assert sum(probabilities) == pytest.approx(1)


@pytest.mark.parametrize(
    ("settings", "status", "says"),
    [({"model": "linear"}, 422, "give `x`"), ({"model": "gaussian"}, 409, "still warming up")],
)
def test_where_there_is_nothing_to_say(bench, settings, status, says):
    bench.ask(Configure("a", settings), status=201)
    bench.observe("a", [Observation(x=[1.0] if settings["model"] == "linear" else None, y=1.0)])
    (outcome,) = bench.send(Predict("a", horizon=3))
    assert outcome.status == status
    assert says in json.loads(outcome.body[0])["detail"]
