"""Intervals and calibration measures, as scipy has them and by hand."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from model_core.components import Normal, StudentT
from model_core.predictive import Mixture
from training.statistics import calibration
from training.statistics.intervals import (
    estimate,
    paired,
    student_t_quantile,
)

LEVELS = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)


@pytest.fixture
def values():
    return np.random.default_rng(0).normal(3, 2, 40)


def test_the_interval_of_a_mean_is_scipys(values):
    for df in (1, 2, 7, 199):
        expected = stats.t.ppf(0.975, df)
        assert student_t_quantile(0.975, df) == pytest.approx(expected, rel=1e-7)
    for level in (0.9, 0.95):
        found = estimate(values, level)
        expected = stats.t.interval(level, 39, values.mean(), stats.sem(values))
        assert (found.low, found.high) == pytest.approx(expected)
        assert (found.mean, found.count) == (pytest.approx(values.mean()), 40)


def test_a_paired_difference_is_that_of_the_differences(values):
    ours = values - 0.5
    found = paired(ours, values)
    assert found == pytest.approx((-0.5, -0.5, -0.5, 40))
    noisy = values + np.random.default_rng(2).normal(0, 0.1, 40)
    test = stats.ttest_rel(noisy, values)
    low, high = test.confidence_interval(0.95)
    assert paired(noisy, values) == pytest.approx((float(np.mean(noisy - values)), low, high, 40))
    assert paired(noisy, values, generator=np.random.default_rng(3)).high == pytest.approx(
        high, abs=0.01
    )


def run(batch=20, steps=12, outputs=2, seed=0):
    """Beliefs (B, T, T) by [t, r] and Normals (B, T, T, d); garbage where no hypothesis is."""
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, steps, steps)
    gone = torch.ones(steps, steps, dtype=torch.bool).triu(1)
    raw = torch.randn(shape, generator=generator, dtype=torch.float64)
    log_weight = raw.masked_fill(gone, -math.inf).log_softmax(-1)
    loc = 2 * torch.randn(*shape, outputs, generator=generator, dtype=torch.float64)
    scale = 0.3 + torch.rand(*shape, outputs, generator=generator, dtype=torch.float64)
    loc = loc.masked_fill(gone.unsqueeze(-1), math.nan)
    chosen = torch.multinomial(log_weight.exp().flatten(0, 1), 1, generator=generator)
    at = chosen.reshape(batch, steps, 1, 1).expand(-1, -1, -1, outputs)
    noise = torch.randn(batch, steps, outputs, generator=generator, dtype=torch.float64)
    y = loc.gather(2, at).squeeze(2) + scale.gather(2, at).squeeze(2) * noise
    return log_weight, loc, scale, y


def test_a_pit_is_the_cdf_of_the_mixture():
    log_weight, loc, scale, y = run()
    y[3, 4] = math.nan
    found = calibration.pit(log_weight, Normal(loc, scale), y)
    each = stats.norm.cdf(y.unsqueeze(2), loc, scale)
    expected = (log_weight.exp().unsqueeze(-1) * torch.from_numpy(each).nan_to_num(0)).sum(2)
    expected[3, 4] = math.nan
    assert_close(found, expected, atol=1e-9, rtol=0, equal_nan=True)
    assert calibration.histogram(found).sum() == found.numel() - 2
    log_weight, loc, scale, y = (each[:, -1] for each in run())
    components = StudentT(torch.full_like(loc, 5), loc, scale)
    expected = Mixture(log_weight, components).cdf(y)
    assert_close(calibration.pit(log_weight, components, y), expected)


def test_distance_and_band_are_scipys_and_coverage_is_by_hand():
    drawn = torch.rand(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = stats.kstest(drawn.flatten().numpy(), "uniform").statistic
    assert calibration.distance(drawn) == pytest.approx(expected)
    for count, bins in ((20, 4), (1000, 15)):
        band = tuple(stats.binom.ppf([0.025, 0.975], count, 1 / bins))
        assert calibration.uniform_band(count, bins) == band
    shares = torch.tensor([0.5, 0.2, 0.95, math.nan], dtype=torch.float64)
    found = calibration.coverage(shares, LEVELS)
    assert_close(found, torch.tensor([1 / 3, 1 / 3, 1.0], dtype=torch.float64))


def test_reliability_by_hand():
    probability = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6], [0.7, 0.3]]).double()
    label = torch.tensor([0.0, 0.0, 1.0, math.nan])
    found = calibration.reliability(probability, label, bins=4)
    assert found.count.tolist() == [0, 0, 1, 2]
    assert_close(found.confidence[2:], torch.tensor([0.6, 0.85]).double())
    assert found.accuracy[2:].tolist() == [1.0, 0.5]
    assert torch.isnan(found.accuracy[:2]).all()
    assert calibration.calibration_error(found) == pytest.approx((0.4 + 2 * 0.35) / 3)
