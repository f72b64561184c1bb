"""The block form of Bayesian regression, and what the models built on it refuse."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from scipy import stats

from model_core.components import Normal
from model_core.upm.builtin import Options, build
from model_core.upm.linear import Autoregressive, Linear
from model_core.upm.regression import NoisyStats, absorb
from tests.model_core.cases import BY_NAME, CASES, irregular, series, tensor

REGRESSIONS = [case for case in CASES if hasattr(case.model, "forecasts")]
regressions = pytest.mark.parametrize("case", REGRESSIONS, ids=lambda case: case.name)


def rows_of(case, steps: int):
    """Features and labels (1, T, ...) of one stream, and statistics of three hypotheses."""
    one, prior = series(case, 3, steps), case.prior()
    context, phi = prior.context, []
    y = tensor(one.y[None])
    for t in range(steps):
        x = tensor(one.x[None, t]) if case.model.x_dim else None
        phi.append(case.model.encode(x, context))
        context = case.model.remember(context, y[:, t], torch.tensor([True]))
    spread = type(prior.stats)(*(each.expand(-1, 3, *each.shape[2:]) for each in prior.stats))
    return torch.stack(phi, 1), y, spread


@regressions
def test_a_block_of_any_weights_is_its_rows_in_turn(case):
    """Also of weights between 0 and 1, if they are known beforehand."""
    phi, y, before = rows_of(case, 12)
    weight = tensor(irregular(1, 3, 12, seed=4) ** 2).clamp(max=1.0)
    weight[:, :, ::5], weight[:, 1, :4] = 0.0, 0.0
    together, after = case.model.forecasts(before, phi, y, weight)
    alone = before
    for t in range(12):
        row = case.model.predictive(alone, phi[:, t])
        for got, expected in zip(together, row, strict=True):
            torch.testing.assert_close(got[:, :, t], expected, atol=1e-11, rtol=1e-11)
        alone = case.model.update(alone, phi[:, t], y[:, t], weight[..., t])
    for got, expected in zip(after, alone, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-11, rtol=1e-11)
    assert torch.equal(after.cov, after.cov.mT)
    assert torch.equal(alone.cov, alone.cov.mT)


@regressions
def test_a_weight_of_nothing_changes_nothing(case):
    phi, y, before = rows_of(case, 5)
    weight = torch.zeros(1, 3, 5, dtype=torch.float64)
    for after in (
        case.model.forecasts(before, phi, y, weight)[1],
        case.model.update(before, phi[:, 4], y[:, 4], weight[..., 4]),
    ):
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_row_that_is_not_finite_spoils_no_other_stream():
    case = BY_NAME["alpaca-1"]
    phi, y, before = rows_of(case, 6)
    both = type(before)(*(torch.cat((each, each)) for each in before))
    phi, y = torch.cat((phi, phi)), torch.cat((y, y))
    phi[1, 3] = torch.nan
    weight = torch.ones(2, 3, 6, dtype=torch.float64)
    found = case.model.block(both, phi, y, weight)
    assert torch.isfinite(found.log_label[0]).all()
    assert torch.isfinite(found.stats.cov[0]).all()
    assert torch.isnan(found.log_label[1, :, 3:]).all()


@pytest.mark.parametrize("chunk", [1, 5])
def test_gradients_at_a_weight_of_0(chunk):
    """The square root of the weight has none there; what is built on it must."""
    n = 3
    mean, factor = tensor(irregular(1, 2, n, 1, seed=1)), tensor(irregular(n, n, seed=2))
    cov = (factor @ factor.mT).expand(1, 2, n, n)
    features, y = tensor(irregular(1, 1, chunk, n, seed=3)), tensor(irregular(1, chunk, 1, seed=4))
    weight = torch.zeros(1, 2, chunk, dtype=torch.float64)
    weight[:, 1] = 0.5
    weight.requires_grad_()
    found = absorb(mean, cov, features, y, weight)
    sum(each.sum() for each in found).backward()
    assert torch.isfinite(weight.grad).all()
    assert weight.grad[:, 1].abs().min() > 0


@pytest.mark.parametrize("weight", [(1.0, 1.0, 1.0), (1.0, 0.3, 0.0)])
def test_unknown_noise_is_integrated_out(weight):
    """Predictive density against a sum over coefficients and noise variance on a grid."""
    mean, cov = np.array([0.4, -0.3]), np.array([[0.8, 0.3], [0.3, 0.5]])
    alpha, beta = 1.6, 0.7
    phi, y = irregular(4, 2, seed=1), irregular(4, seed=2)
    # Coefficients are mean + sigma u, so that one grid of u fits every variance.
    axis, log_variance = np.linspace(-8, 8, 90), np.linspace(-9, 14, 240)
    u1, u2, s = np.meshgrid(axis, axis, log_variance, indexing="ij", sparse=True)
    sigma = np.exp(s / 2)
    log_prior = stats.invgamma.logpdf(np.exp(s), alpha, scale=beta) + s
    precision = np.linalg.inv(cov)
    log_prior = log_prior - 0.5 * (
        precision[0, 0] * u1**2 + 2 * precision[0, 1] * u1 * u2 + precision[1, 1] * u2**2
    )

    def log_density(row):
        centre = phi[row, 0] * (mean[0] + sigma * u1) + phi[row, 1] * (mean[1] + sigma * u2)
        return stats.norm.logpdf(y[row], centre, sigma)

    posterior = log_prior + sum(w * log_density(i) for i, w in enumerate(weight))
    posterior = np.exp(posterior - posterior.max())
    expected = (posterior * np.exp(log_density(3))).sum() / posterior.sum()
    model = Linear(y_dim=1, x_dim=1)
    before = NoisyStats(
        tensor(mean[None, None, :, None]),
        tensor(cov[None, None]),
        tensor([[[alpha]]]),
        tensor([[[beta]]]),
    )
    told = tensor(phi[None, :3]), tensor(y[None, :3, None]), tensor([[weight]])
    after = model.forecasts(before, *told)[1]
    found = model.predictive(after, tensor(phi[None, 3])).log_density(tensor(y[3]))
    assert found.exp().item() == pytest.approx(expected, rel=1e-6)


def test_the_predictives_that_noise_makes():
    known, unknown = BY_NAME["alpaca-2"], BY_NAME["alpaca-unknown-2"]
    phi, _, before = rows_of(known, 1)
    assert isinstance(known.model.predictive(before, phi[:, 0]), Normal)
    phi, _, before = rows_of(unknown, 1)
    found = unknown.model.predictive(before, phi[:, 0])
    assert found.df[0, 0].tolist() == pytest.approx((2 * unknown.reference.noise.alpha).tolist())
    assert torch.isfinite(found.variance()).all()


def test_what_is_refused():
    model = BY_NAME["alpaca-1"].model
    with pytest.raises(ValueError, match="one of noise_variance and noise_prior"):
        dataclasses.replace(model, noise_variance=None)
    with pytest.raises(ValueError, match="order is -1"):
        Autoregressive(order=-1)
    for season in (1, -3):
        with pytest.raises(ValueError, match=f"season is {season}"):
            Autoregressive(season=season)
    model, one = Linear(x_dim=2), torch.ones(2, 3, dtype=torch.float64)
    context = model.context(one, one)
    with pytest.raises(ValueError, match="requires an input x of 2 numbers"):
        model.encode(None, context)


@pytest.mark.parametrize("trend", [False, True])
@pytest.mark.parametrize("season", [0, 2, 3, 4, 7, 100])
@pytest.mark.parametrize("order", [0, 1, 3])
def test_autoregressive_models_of_any_size(order, season, trend):
    options = Options(y_dim=2, order=order, season=season, trend=trend)
    model = build("autoregressive", options)
    location, scale = tensor([[5.0, -1.0]]), tensor([[2.0, 0.1]])
    prior, context = model.prior(location, scale), model.context(location, scale)
    y = location + scale
    for t in range(4):
        phi = model.encode(None, context)
        assert phi.shape == (1, prior.mean.shape[2])
        expected = [1.0, 1.0] * min(t, order) + [0.0, 0.0] * (order - t)
        assert phi[0, 1 : 1 + 2 * order].tolist() == pytest.approx(expected)
        context = model.remember(context, torch.nan * y if t == 2 else y, torch.tensor([t != 2]))
    assert model.predictive(prior, phi).mean()[0, 0].tolist() == pytest.approx([5.0, -1.0])


def test_a_linear_model_without_inputs_is_a_level():
    model = build("linear", Options(y_dim=2))
    location = tensor([[5.0, -1.0]])
    context = model.context(location, location.abs())
    found = model.predictive(model.prior(location, location.abs()), model.encode(None, context))
    assert found.mean()[0, 0].tolist() == [5.0, -1.0]
