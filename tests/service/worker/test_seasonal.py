"""Streams that look for seasons: as `moca evaluate` has it, and through whatever befalls them."""

import math

import numpy as np
import pytest

from model_core import season
from model_core.upm.builtin import Options, build
from service.schema import rendering
from service.wire import (
    Configure,
    EventFeedback,
    Move,
    Observation,
    Observe,
    Predict,
    SegmentHistory,
    WhatIf,
)
from training.evaluation.online import Settings, follow

LEVELS = (0.05, 0.5, 0.95)
SEASONAL = {"model": "gaussian", "seasonal": True}


def day(n=330, step=300, seed=0):
    """A season of 24 whose level rises by 4 standard deviations at a step."""
    rng = np.random.default_rng(seed)
    y = 5 + 1.2 * np.sin(2 * np.pi * np.arange(n) / 24) + 0.5 * rng.normal(size=n)
    y[step:] += 2.0
    return y.tolist()


def numbers(values):
    return [math.nan if value is None else value for value in values]


@pytest.mark.parametrize("model", ["gaussian", "averaged"])
def test_answers_are_those_of_the_evaluation(bench, model):
    y = day()
    y[150] = None
    bench.ask(Configure("a", {**SEASONAL, "model": model}), status=201)
    answers = bench.observe("a", y)
    rows = [[math.nan if value is None else value] for value in y]
    (found,) = follow(build(model, Options()), [rows], Settings(seasons=True), LEVELS)
    head = bench.head("a")
    told = {each["seq"]: each["event"] for each in answers if each["event"] and each["seq"] >= 20}
    expected = {t: event for t, event in found.events if t >= 20}
    assert {t: (each["id"], each["state"], each["start"]) for t, each in told.items()} == {
        t: (each.id, each.state, each.start) for t, each in expected.items()
    }
    for t, each in expected.items():
        assert told[t]["probability"] == pytest.approx(each.probability, rel=1e-9)
        assert told[t]["size"] == pytest.approx(each.size, rel=1e-9)
    assert any(each.state == "confirmed" and 300 <= t < 324 for t, each in expected.items())
    after = answers[20:]
    for name, ours in (
        ("log_score", found.answers.log_score),
        ("changed_probability", found.answers.changed),
        ("anomaly", found.answers.anomaly),
    ):
        theirs = numbers(each[name] for each in after)
        np.testing.assert_allclose(theirs, ours[20:], rtol=1e-9, atol=1e-9)
    means = [each["predictive"]["mean"] for each in after]
    np.testing.assert_allclose(means, found.answers.summary.mean[20:], rtol=1e-9)
    low = [each["predictive"]["quantiles"]["0.05"] for each in after]
    np.testing.assert_allclose(low, found.answers.summary.quantiles[20:, 0], rtol=1e-6)
    segments = rendering.segmentation(head, bench.records("a"))
    assert [segment.start for segment in segments][1:] == list(found.served)
    assert head.season.periods == [24]
    periods = [each.get("season") for each in answers]
    assert periods[:48] == [None] * 48
    assert periods[-1] == {"periods": [24]}
