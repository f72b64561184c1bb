"""Simulated families: what they are said to be."""

import math

import numpy as np
import pytest

from training.evaluation.quality.families import FAMILIES, WALK_LENGTH

LONG = 200_000
BY_NAME = {family.name: family for family in FAMILIES}


@pytest.mark.parametrize(
    "name", [name for name in BY_NAME if name not in ("random walk", "slow drift")]
)
def test_marginal_scale_is_as_stated(name):
    family = BY_NAME[name]
    y = family.draw(np.random.default_rng(1), LONG)
    mean, sd = {"1 % outliers": (0.0, math.sqrt(0.99 + 0.01 * 64)), "counts": (4.0, 2.0)}.get(
        name, (0.0, 1.0)
    )
    assert y.mean() == pytest.approx(mean, abs=0.03)
    # The variance of squares of Student-t3 does not exist.
    assert y.std() == pytest.approx(sd, rel=0.15 if name == "Student-t3" else 0.03)


def test_what_makes_each_of_them():
    rng = np.random.default_rng(2)
    drawn = {name: family.draw(rng, LONG) for name, family in BY_NAME.items()}
    for name, coefficient in (("AR(0.5)", 0.5), ("AR(0.9)", 0.9), ("normal", 0.0)):
        y = drawn[name]
        assert np.corrcoef(y[1:], y[:-1])[0, 1] == pytest.approx(coefficient, abs=0.01)
    for name, period in (("season of 24", 24), ("season of 288", 288)):
        y = drawn[name]
        assert np.corrcoef(y[period:], y[:-period])[0, 1] == pytest.approx(0.75, abs=0.01)
    assert np.mean(np.abs(drawn["1 % outliers"]) == 8.0) == pytest.approx(0.01, abs=0.001)
    assert np.all(drawn["counts"] == drawn["counts"].round())
    assert np.diff(drawn["random walk"]).std() == pytest.approx(1.0, abs=0.01)
    assert np.polyfit(np.arange(LONG), drawn["slow drift"], 1)[0] == pytest.approx(0.002, rel=0.01)
    assert np.log(drawn["lognormal"] - drawn["lognormal"].min() + 1e-9).std() < 1.0


def test_the_scale_of_a_walk_is_that_within_a_stream():
    rng = np.random.default_rng(3)
    walk = BY_NAME["random walk"]
    variances = [walk.draw(rng, WALK_LENGTH).var() for _ in range(4000)]
    assert math.sqrt(np.mean(variances)) == pytest.approx(walk.sd, rel=0.05)


def test_a_shift_is_by_the_stated_deviations():
    for family in FAMILIES:
        quiet = family.draw(np.random.default_rng(4), 50)
        shifted = family.shifted(np.random.default_rng(4), 50, 30, 2.0)
        assert shifted[:30] == pytest.approx(quiet[:30])
        assert shifted[30:] - quiet[30:] == pytest.approx(2.0 * family.sd)
