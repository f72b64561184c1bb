"""Scores of forecasts whose values are known."""

import math

import numpy as np
import pytest
import torch

from training.evaluation.quality import forecasts
from training.evaluation.quality.baselines import Normal
from training.evaluation.quality.forecasts import Forecast, SeriesScore


def standard(n):
    y = np.random.default_rng(0).normal(size=n)
    return y, forecasts.of_normal(y, Normal(np.zeros(n), np.ones(n)))


def test_crps_of_a_normal():
    """`z (2 F(z) - 1) + 2 f(z) - 1 / sqrt(pi)` (Gneiting & Raftery 2007)."""
    z = np.array([0.0, 0.5, -1.3, 2.0])
    quantiles = np.tile(
        torch.special.ndtri(torch.tensor(forecasts.LEVELS, dtype=torch.float64)).numpy(), (4, 1)
    )
    cdf = torch.special.ndtr(torch.from_numpy(z)).numpy()
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    exact = z * (2 * cdf - 1) + 2 * density - 1 / math.sqrt(math.pi)
    assert forecasts.crps(z, quantiles) == pytest.approx(exact, rel=0.05)


def test_crps_of_a_point_is_the_absolute_error():
    quantiles = np.full((2, len(forecasts.LEVELS)), 3.0)
    assert forecasts.crps(np.array([1.0, 4.5]), quantiles) == pytest.approx([2.0, 1.5])


def test_scores_of_the_true_normal():
    y, forecast = standard(20_000)
    scored = forecasts.score(y, forecast, 1.0, 0)
    assert scored.log_score == pytest.approx(-0.5 - 0.5 * math.log(2 * math.pi), abs=0.02)
    assert scored.error == pytest.approx(math.sqrt(2 / math.pi), abs=0.02)
    assert scored.crps == pytest.approx(1 / math.sqrt(math.pi), abs=0.02)
    assert forecasts.covered(scored.pit) == pytest.approx(0.9, abs=0.01)
    assert scored.runaway == 0.0


def test_units_and_what_comes_before_do_not_matter():
    y, _ = standard(200)
    y[40] = np.nan
    normal = Normal(np.zeros(200), np.ones(200))
    one = forecasts.score(y, forecasts.of_normal(y, normal), 1.0, 20)
    scaled = forecasts.of_normal(7 * y, Normal(normal.mean, 7 * normal.sd))
    other = forecasts.score(7 * y, scaled, 7.0, 20)
    assert one[:4] == pytest.approx(other[:4])
    assert len(one.pit) == 179


def test_a_mean_beyond_the_data_is_a_runaway():
    y = np.array([-1.0, 1.0, np.nan, -1.0, 1.0])
    assert forecasts.runaway(y, np.array([np.nan, 0.5, -1.0, 1.0]), 1.0) == 0.0
    assert forecasts.runaway(y, np.array([0.0, 5.0]), 2.0) == 2.0
    assert forecasts.runaway(y, np.array([0.0, -9.0]), 2.0) == 4.0


def test_corpora_are_pooled():
    def series(log_score, error, pits, far=0.0):
        return SeriesScore(log_score, error, error, far, np.array(pits))

    ours = [series(1.0, 1.0, [0.5, 0.01], 5.0), series(2.0, 4.0, [0.3, 0.7])]
    last = [series(0.0, 2.0, [0.5, 0.5]), series(4.0, 2.0, [0.5, 0.5])]
    found = forecasts.pooled(ours, last, np.random.default_rng(0))
    assert found.log_score.mean == 1.5
    assert found.lead == pytest.approx(-0.5)
    assert found.relative_error.mean == pytest.approx(1.0)  # half and twice
    assert (found.relative_error.low, found.relative_error.high) == pytest.approx((0.5, 2.0))
    assert (found.coverage, found.lowest, found.highest) == (0.75, 0.5, 1.0)
    assert (found.runaway, found.runaways) == (5.0, 1)


def test_series_of_hardly_more_than_a_warm_up_are_not_scored():
    y, _ = standard(60)
    assert forecasts.scorable(y)
    assert not forecasts.scorable(y[:45])
    assert isinstance(standard(5)[1], Forecast)
