"""The averaged model, beside regressions solved from all observations at once in numpy."""

import numpy as np
import pytest
import torch
from scipy import stats as distributions
from scipy.special import logsumexp

from model_core import filter as moca
from model_core.predictive import Mixture
from model_core.upm.averaged import Averaged
from tests.model_core.cases import tensor
from tests.model_core.regressions import lags_of
from training.evaluation.online import Settings, follow

LOCATION, SCALE = np.array([2.0, -5.0]), np.array([3.0, 0.5])
MODEL = Averaged(y_dim=2, kappa=0.7, slope=4.0, autoregression=9.0, alpha=1.8, beta=0.6)


def labels(steps, seed=0):
    rng = np.random.default_rng(seed)
    return LOCATION + SCALE * (rng.normal(size=(steps, 2)) + 0.1 * np.arange(steps)[:, None])


def designs(y, output):
    """Features of the three regressions for labels that follow a first one: (3, T - 1, 2)."""
    scaled = (y - LOCATION) / SCALE
    lag = np.array([each[0][output] for each in lags_of(scaled, np.full(len(y), True), 1)[1:]])
    age = np.arange(len(lag)) / 10
    return [np.stack((np.ones(len(lag)), u), 1) for u in (0 * lag, age, lag)]


def student(kind, features, y, weight, now, output):
    """Predictive of the label with features `now` after all rows: df, mean and scale."""
    prior = np.diag((MODEL.kappa, (1.0, MODEL.slope, MODEL.autoregression)[kind]))
    mean = np.array((LOCATION[output], 0.0))
    precision = prior + features.T @ (weight[:, None] * features)
    k = np.linalg.solve(precision, prior @ mean + features.T @ (weight * y))
    alpha = MODEL.alpha + weight.sum() / 2
    left = weight @ (y - features @ k) ** 2 + (k - mean) @ prior @ (k - mean)
    beta = MODEL.beta * SCALE[output] ** 2 + left / 2
    wide = 1 + now @ np.linalg.solve(precision, now)
    return 2 * alpha, now @ k, np.sqrt(beta / alpha * wide)


def absorb(y, weight):
    """Statistics and the coming features after a first label that only the context holds."""
    location, scale = tensor(LOCATION)[None], tensor(SCALE)[None]
    stats, context = MODEL.prior(location, scale), MODEL.context(location, scale)
    there = torch.tensor([True])
    context = MODEL.remember(context, tensor(y[:1]), there)
    for i in range(1, len(y)):
        phi = MODEL.encode(None, context)
        stats = MODEL.update(stats, phi, tensor(y[i : i + 1]), tensor([[weight[i - 1]]]))
        context = MODEL.remember(context, tensor(y[i : i + 1]), there)
    return stats, MODEL.encode(None, context)


@pytest.mark.parametrize("steps", [1, 2, 3, 30])
def test_predictive_is_that_of_three_regressions(steps):
    y = labels(steps + 1)
    weight = np.ones(steps - 1)
    found = MODEL.predictive(*absorb(y[:-1], weight)).log_density(tensor(y[-1:, None]))[0, 0]
    for output in range(2):
        rows = designs(y, output)
        label = y[1:, output]
        log_weight = np.zeros(3)
        for i in range(steps - 1):
            for kind in range(3):
                past = student(kind, rows[kind][:i], label[:i], weight[:i], rows[kind][i], output)
                log_weight[kind] += distributions.t.logpdf(label[i], *past)
        each = [
            distributions.t.logpdf(
                label[-1],
                *student(kind, rows[kind][:-1], label[:-1], weight, rows[kind][-1], output),
            )
            for kind in range(3)
        ]
        expected = logsumexp(log_weight + each) - logsumexp(log_weight)
        assert found[output].item() == pytest.approx(expected, abs=1e-9)


def test_a_weight_counts_as_that_part_of_a_label():
    y, weight = labels(13), np.linspace(0.1, 1, 11)
    found = MODEL.predictive(*absorb(y[:-1], weight)).each
    for output in range(2):
        rows = designs(y, output)
        for kind in range(3):
            now = student(kind, rows[kind][:-1], y[1:-1, output], weight, rows[kind][-1], output)
            parts = torch.broadcast_tensors(found.df, found.loc, found.scale)
            ours = [each[0, 0, output, kind].item() for each in parts]
            assert ours == pytest.approx(now, rel=1e-9)


def test_no_weight_leaves_everything():
    stats, phi = absorb(labels(9), np.ones(8))
    after = MODEL.update(stats, phi, tensor([[1e9, -1e9]]), tensor([[0.0]]))
    for name, before, now in zip(stats._fields, stats, after, strict=True):
        torch.testing.assert_close(now, before, rtol=1e-12, atol=1e-12, msg=name)


def test_weights_go_to_what_explains_the_labels():
    rng, steps = np.random.default_rng(3), 60
    noise = rng.normal(size=steps)
    walk = np.zeros(steps)
    for t in range(1, steps):
        walk[t] = 0.9 * walk[t - 1] + 0.4 * noise[t]
    shapes = (noise, 0.3 * noise + 0.2 * np.arange(steps), walk)
    best = []
    for shape in shapes:
        y = LOCATION + SCALE * np.stack((shape, shape), 1)
        stats, _ = absorb(y, np.ones(steps - 1))
        weight = stats.log_weight[0, 0].exp()
        torch.testing.assert_close(weight.sum(-1), torch.ones(2, dtype=torch.float64))
        torch.testing.assert_close(weight[0], weight[1])  # outputs in other units
        best.append(int(weight[0].argmax()))
    assert best == [0, 1, 2]


def test_distribution_function_and_quantiles_agree():
    found = MODEL.predictive(*absorb(labels(6), np.ones(5)))
    mixture = Mixture(torch.zeros(1, 1, dtype=torch.float64), found)
    levels = tensor([0.01, 0.3, 0.5, 0.95])
    quantiles = mixture.quantile(levels)
    for i, level in enumerate(levels.tolist()):
        torch.testing.assert_close(mixture.cdf(quantiles[:, i]), torch.full((1, 2), level).double())
    draws = mixture.sample(20_000, torch.Generator().manual_seed(0))
    inside = (draws < quantiles[:, 1:2]).double().mean(1)
    torch.testing.assert_close(inside, torch.full((1, 2), 0.3).double(), atol=0.015, rtol=0)
    narrow = mixture.covariance()[0].diagonal().sqrt()
    torch.testing.assert_close(draws[0].std(0), narrow, rtol=0.1, atol=0)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("value", [0.0, 1e3, 1e8, 1e100])
def test_long_runs_of_one_value_stay_finite(value):
    model = Averaged()
    prior = moca.make_prior(model, tensor([[0.0]]), tensor([[1.0]]))
    state = moca.init(prior, 5)
    one, nan = tensor([1.0]), tensor([np.nan])
    for t in range(1500):
        y = tensor([[value if t >= 20 else (-1.0) ** t]])
        there = torch.tensor([True])
        inputs = moca.Inputs(None, y, there, tensor([[0.01]]), one, nan, 0.01 * one)
        state, info = moca.step(model, state, prior, inputs)
        assert bool(info.ok)
    # One part in a hundred is a new regime, and one an outlier.
    assert info.predictive.mean().item() == pytest.approx(0.99**2 * value, rel=1e-3, abs=1e-2)


@pytest.mark.parametrize("correlation", [0.5, 0.8])
def test_an_outlier_is_hardly_a_lever_on_the_label_after_it(correlation):
    """Of 40 streams with memory and one outlier of 8 deviations, few doubt their regime."""
    rng, streams = np.random.default_rng(1), 40
    y = rng.normal(size=(streams, 260, 1))
    for t in range(1, 260):
        y[:, t] = correlation * y[:, t - 1] + (1 - correlation**2) ** 0.5 * y[:, t]
    y[:, 220] += 8
    found = follow(Averaged(), y.tolist(), Settings())
    assert sum(max(each.changed[221:]) > 0.9 for each in found) <= 0.3 * streams
