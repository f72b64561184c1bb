"""The walk that forecasts are averaged with: as its recursion says, and without a vote."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import t as student_t

from model_core import filter as moca
from model_core.upm import walk
from model_core.upm.robust_averaged import RobustAveraged
from tests.model_core.test_robust_averaged import Alone, stepped
from training.data.base import Batch
from training.evaluation.online import observed, prior_of


def through(values, leads=None):
    """What is kept after each value (nan: none), and the forecasts before it; one output."""
    kept = walk.begin(torch.zeros(1, 1, dtype=torch.float64))
    states, forecasts = [kept], []
    for i, value in enumerate(values):
        found = walk.forecast(kept)
        forecasts.append((found.loc.item(), found.scale.item()))
        y = torch.tensor([[0.0 if math.isnan(value) else value]], dtype=torch.float64)
        labelled = torch.tensor([not math.isnan(value)])
        lead = torch.tensor([0.0 if leads is None else leads[i]], dtype=torch.float64)
        kept = walk.advance(kept, y, labelled, lead)
        states.append(kept)
    return torch.cat(states).numpy(), np.array(forecasts)


def test_recursion():
    """Against sums over the whole past, with weights that decay."""
    rng = np.random.default_rng(1)
    values = np.r_[rng.normal(size=40).cumsum(), 60.0, rng.normal(size=20)]
    states, forecasts = through(values)
    before = np.r_[0.0, values[:-1]]
    error = values - forecasts[:, 0]
    g = 4 / (3 + (error / forecasts[:, 1]) ** 2)
    moved = values - before
    changed = np.r_[0.0, (np.minimum(g, 1) * moved)[:-1]]
    for t in range(1, len(values) + 1):
        age = np.arange(t)[::-1]
        count = 2 * 0.98**t + (0.98**age).sum()
        square = 2 * 0.98**t + (0.98**age * (g * error**2 + 1e-8)[:t]).sum()
        pull = (g / forecasts[:, 1] ** 2 * changed)[:t]
        own = 0.99**t + (0.99**age * (0.01 + pull * changed[:t])).sum()
        cross = (0.99**age * pull * moved[:t]).sum()
        assert states[t, 1:] == pytest.approx(
            [count, values[t - 1], min(g[t - 1], 1) * moved[t - 1], square, own, cross], rel=1e-9
        )
        if t < len(values):
            phi = min(1.0, max(-1.0, cross / own))
            expected = values[t - 1] + phi * states[t, 3]
            assert forecasts[t] == pytest.approx([expected, math.sqrt(square / count)], rel=1e-9)


def test_weight_by_bayes_rule_with_a_share():
    leads = [0.0, 2.0, -1.0, 800.0, -800.0, 3.0]
    states, _ = through(np.zeros(6), leads)
    weight = 0.5
    for lead, after in zip(leads, states[1:, 0], strict=True):
        odds = weight / (1 - weight) * math.exp(min(lead, 700))
        weight = 0.99 * odds / (1 + odds) + 0.005
        assert after == pytest.approx(weight, rel=1e-12)


def test_a_missing_label_ends_the_momentum_and_nothing_else():
    states, forecasts = through([0.0, 1.0, 2.0, 3.0, math.nan, math.nan])
    assert (states[5] == states[6]).all()
    changed = states[4] != states[5]
    assert changed.tolist() == [False, False, False, True, False, False, False]
    assert forecasts[4, 0] > 3.5
    assert forecasts[5, 0] == 3.0


def test_a_trend_goes_on_and_an_outlier_does_not():
    trend = np.arange(60.0)
    _, forecasts = through(trend)
    assert np.abs(forecasts[40:, 0] - trend[40:]).max() < 0.1
    values = np.random.default_rng(2).normal(size=60).cumsum()
    values[50] += 1000.0
    _, forecasts = through(values)
    assert abs(forecasts[51, 0] - values[50]) < 20.0


@pytest.mark.parametrize(("draws", "low", "high"), [("walk", 0.5, 1.0), ("noise", 0.0, 0.1)])
def test_weight_follows_what_forecasts_better(draws, low, high):
    values = np.random.default_rng(3).normal(size=300)
    _, contexts, *_ = stepped(RobustAveraged(), values.cumsum() if draws == "walk" else values)
    assert low <= contexts[100:, 6].mean() <= high


def test_score_and_mean_are_those_of_both():
    model = RobustAveraged()
    prior = prior_of(model, [([0.0], [1.0])])
    state = moca.init(prior, 20)
    rows = [[[value] for value in np.random.default_rng(4).normal(size=50).cumsum()]]
    batch = Batch(None, torch.tensor(rows, dtype=torch.float64))
    for t in range(50):
        inputs = observed(model, batch, t)
        kept = state.context[0, 6:].clone()
        alone = Alone()
        before, info_alone = moca.step(alone, state, prior, inputs)
        after, info = moca.step(model, state, prior, inputs)
        v, found = kept[0].item(), walk.forecast(kept[None])
        density = student_t(3, found.loc.item(), found.scale.item()).logpdf(rows[0][t][0])
        score = np.logaddexp(math.log1p(-v) + info_alone.log_score.item(), math.log(v) + density)
        mean = (1 - v) * info_alone.predictive.mean().item() + v * found.loc.item()
        assert info.log_score.item() == pytest.approx(score, abs=1e-12)
        assert info.predictive.mean().item() == pytest.approx(mean, abs=1e-12)
        assert info.predictive.log_weight.exp().sum().item() == pytest.approx(1)
        # It has no vote: beliefs and statistics are the same to the last bit.
        for one, other in zip(moca.leaves(after), moca.leaves(before), strict=True):
            if one is not after.context:
                assert torch.equal(one, other)
        assert torch.equal(after.context[:, :6], before.context[:, :6])
        state = after
