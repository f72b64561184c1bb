"""Calibration measures: against scipy, and on labels from a model that is known."""

import math

import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from model_core.components import Categorical, Normal, StudentT
from model_core.predictive import Mixture
from training.statistics import calibration

LEVELS = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)


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
    found = calibration.pit(log_weight, Normal(loc, scale), y)
    each = stats.norm.cdf(y.unsqueeze(2), loc, scale)
    expected = (log_weight.exp().unsqueeze(-1) * torch.from_numpy(each).nan_to_num(0)).sum(2)
    assert_close(found, expected, atol=1e-9, rtol=0)


def test_it_is_that_of_the_filters_mixture():
    log_weight, loc, scale, y = (each[:, -1] for each in run())
    components = StudentT(torch.full_like(loc, 5), loc, scale)
    expected = Mixture(log_weight, components).cdf(y)
    assert_close(calibration.pit(log_weight, components, y), expected)


def test_the_true_model_is_uniform_and_an_overconfident_one_is_not():
    log_weight, loc, scale, y = run(batch=200)
    true = calibration.pit(log_weight, Normal(loc, scale), y)
    sure = calibration.pit(log_weight[:, :1], Normal(loc[:, :1], 0.4 * scale[:, :1]), y[:, :1])
    critical = 1.63 / math.sqrt(true.numel())  # at 1 %
    assert calibration.distance(true) < critical
    assert calibration.distance(sure) > 1.63 / math.sqrt(sure.numel())
    assert_close(calibration.coverage(true, LEVELS), LEVELS, atol=0.03, rtol=0)
    assert (calibration.coverage(sure, LEVELS) < LEVELS - 0.05).all()
    low, high = calibration.uniform_band(true.numel(), 10, 0.9999)
    counts = calibration.histogram(true, 10)
    assert ((counts >= low) & (counts <= high)).all()


def test_the_distance_is_scipys():
    values = torch.rand(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = stats.kstest(values.flatten().numpy(), "uniform").statistic
    assert calibration.distance(values) == pytest.approx(expected)


def test_missing_labels_do_not_count():
    log_weight, loc, scale, y = run()
    y[3, 4] = math.nan
    found = calibration.pit(log_weight, Normal(loc, scale), y)
    assert torch.isnan(found[3, 4]).all()
    assert torch.isnan(found).sum() == 2
    assert calibration.histogram(found).sum() == found.numel() - 2


def test_coverage_by_hand():
    values = torch.tensor([0.5, 0.2, 0.95, math.nan], dtype=torch.float64)
    found = calibration.coverage(values, LEVELS)
    assert_close(found, torch.tensor([1 / 3, 1 / 3, 1.0], dtype=torch.float64))


@pytest.mark.parametrize(("count", "bins"), [(20, 4), (1000, 15)])
def test_the_band_is_the_binomials(count, bins):
    low, high = calibration.uniform_band(count, bins)
    assert (low, high) == tuple(stats.binom.ppf([0.025, 0.975], count, 1 / bins))


def test_reliability_by_hand():
    probability = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6], [0.7, 0.3]]).double()
    label = torch.tensor([0.0, 0.0, 1.0, math.nan])
    found = calibration.reliability(probability, label, bins=4)
    assert found.count.tolist() == [0, 0, 1, 2]
    assert_close(found.confidence[2:], torch.tensor([0.6, 0.85]).double())
    assert found.accuracy[2:].tolist() == [1.0, 0.5]
    assert torch.isnan(found.accuracy[:2]).all()
    assert calibration.calibration_error(found) == pytest.approx((0.4 + 2 * 0.35) / 3)


def test_a_true_classifier_is_calibrated_and_a_sharpened_one_is_not():
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(20_000, 5, generator=generator, dtype=torch.float64)
    label = torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1)
    true = calibration.reliability(logits.softmax(-1), label)
    sharp = calibration.reliability((3 * logits).softmax(-1), label)
    assert calibration.calibration_error(true) < 0.02
    assert calibration.calibration_error(sharp) > 0.15


def test_what_has_no_pit_is_refused():
    log = torch.zeros(1, 1)
    with pytest.raises(ValueError, match="'class'"):
        calibration.pit(log, Categorical(torch.zeros(1, 1, 2)), torch.zeros(1, 1))
    with pytest.raises(ValueError, match="none"):
        calibration.distance(torch.full((3,), math.nan))
    with pytest.raises(ValueError, match="none"):
        calibration.reliability(torch.ones(2, 1), torch.full((2,), -1))
