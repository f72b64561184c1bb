"""Sensitivity on a stream's own labels: quiet continuations, and the threshold found in them."""

import math

import numpy as np
import pytest
import torch

from model_core import filter as moca
from model_core import kernel
from model_core.sensitivity import own, quiet
from model_core.sensitivity.curve import log_odds
from model_core.upm.builtin import Options, build
from training.evaluation.online import Settings, prior_of, run

N = 2000


def autoregression(rng, coefficient, n=N):
    y = np.zeros(n)
    for t in range(1, n):
        y[t] = coefficient * y[t - 1] + rng.normal()
    return y


def test_independent_labels_are_drawn_again():
    y = np.exp(np.random.default_rng(1).normal(size=N))
    drawn = quiet.learn(y).draw(np.random.default_rng(2), 8, 1000)
    assert np.isclose(drawn[..., None], np.unique(y), rtol=0, atol=1e-9).any(-1).all()
    assert (drawn > np.quantile(y, 0.99)).mean() == pytest.approx(0.01, abs=0.005)


def test_an_autoregression_goes_on_from_the_last_label():
    y = 50 + autoregression(np.random.default_rng(3), 0.9)
    regime = quiet.learn(y)
    assert regime.coefficients.sum() == pytest.approx(0.9, abs=0.03)
    drawn = regime.draw(np.random.default_rng(4), 400, 300)
    assert drawn[:, 0].mean() == pytest.approx(50 + 0.9 * (y[-1] - 50), abs=0.3)
    assert drawn[:, -1].mean() == pytest.approx(50, abs=0.6)
    assert drawn[:, 100:].std() == pytest.approx(1 / math.sqrt(1 - 0.9**2), rel=0.15)


def test_a_line_goes_on():
    y = 0.01 * np.arange(N) + np.random.default_rng(5).normal(size=N)
    regime = quiet.learn(y)
    assert regime.slope == pytest.approx(0.01, rel=0.05)
    assert regime.draw(np.random.default_rng(6), 50, 500)[:, -1].mean() == pytest.approx(25, abs=1)


def test_a_change_is_no_noise_and_a_walk_is_one_regime():
    rng = np.random.default_rng(7)
    y = rng.normal(size=N)
    y[800:] = 6 + 2 * y[800:]
    regime = quiet.learn(y, [800])
    drawn = regime.draw(np.random.default_rng(8), 20, 500)
    assert (drawn.mean(), drawn.std()) == (pytest.approx(6, abs=0.3), pytest.approx(2, rel=0.1))
    walk = rng.normal(size=N).cumsum()
    assert quiet.learn(walk, [300, 900, 1400]).coefficients.sum() > 0.99


def test_too_little_is_refused():
    with pytest.raises(ValueError, match="at least 500 retained labels, got 499"):
        quiet.learn(np.random.default_rng(9).normal(size=499))
    with pytest.raises(ValueError, match="that differ"):
        quiet.learn(np.ones(N))


def counts(rate, floor=0.0, thousands=16.0):
    """Alarms whose rate is inverse to the odds of the threshold."""
    return [round(thousands * (rate * math.exp(-odds) + floor)) for odds in own.LOG_ODDS]


@pytest.mark.parametrize("asked", [0.1, 0.5, 2.0])
def test_the_threshold_has_the_rate(asked):
    found = own.calibrated(counts(10.0), 16_000, asked)
    assert found.false_alarms_per_1000 == asked
    assert log_odds(found.threshold) == pytest.approx(math.log(10.0 / asked), abs=0.3)


def test_a_rate_that_no_threshold_has_is_said():
    found = own.calibrated(counts(10.0, floor=0.5), 16_000, 0.1)
    assert found.false_alarms_per_1000 == pytest.approx(0.5, rel=0.15)
    assert log_odds(found.threshold) < 12  # beyond it is only later, not quieter
    loud = own.calibrated(counts(10.0), 16_000, 900.0)
    assert log_odds(loud.threshold) == pytest.approx(own.LOG_ODDS[0])


def confirmed(model, y, continuations):
    prior = prior_of(model, [([0.0], [1.0])])
    *_, (state, _) = run(model, prior, torch.tensor(y[None, :, None]), Settings())
    before = [each.clone() for each in moca.leaves(state)]
    *_, counts = own.confirmations(model, state, prior, continuations, np.array([0.01]), 0.01)
    assert all(map(torch.equal, before, moca.leaves(state)))  # the stream's own is left alone
    return counts


@pytest.mark.parametrize("name", ["gaussian", "averaged"])
def test_kernels_confirm_what_eager_steps_do(name):
    pytest.importorskip("numba")
    model, rng = build(name, Options()), np.random.default_rng(10)
    y, continuations = rng.normal(size=60), rng.normal(size=(4, 50))
    continuations[1, 20:] += 6
    continuations[2, 30:] -= 9
    with kernel.eager_only():
        expected = confirmed(model, y, continuations)
    fast = kernel.in_place(model, "cpu")
    fast.compile()
    assert confirmed(model, y, continuations) == expected
    assert expected[0] >= expected[own.LOG_ODDS.index(6.0)] >= 2
