"""Statistics after thousands of observations, with inputs that move and inputs that are stuck."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch

from model_core import filter as moca
from model_core.filter import FilterState, Inputs, Prior
from tests.model_core.cases import (
    BY_NAME,
    Case,
    alpaca_case,
    gaussian,
    multivariate_case,
    tensor,
    walk,
)
from tests.model_core.reference import Series, Window

KINDS = ("moving", "stuck", "stuck with outliers")


class Long(NamedTuple):
    """One regime seen by three streams: inputs (3, T, 2), labels (3, T, d), outlier rates (3,)."""

    x: torch.Tensor | None
    y: torch.Tensor
    outlier_rate: torch.Tensor

    def step(self, case: Case, state: FilterState, prior: Prior, t: int):
        one = torch.ones(3, dtype=torch.float64)
        told = one > 0, 1e-4 * one[:, None], one, torch.nan * one, self.outlier_rate
        x = None if self.x is None else self.x[:, t]
        return moca.step(case.model, state, prior, Inputs(x, self.y[:, t], *told))


def one_regime(case: Case, steps: int) -> Long:
    rng, outputs = np.random.default_rng(0), case.model.y_dim
    x = rng.normal(size=(3, steps, 2))
    x[1:] = x[1:, :1]
    truth = case.reference
    weights = truth.prior_mean + truth.factor @ rng.normal(size=truth.prior_mean.shape)
    noise = np.sqrt(truth.noise) * rng.normal(size=(3, steps, outputs))
    noise[2, 50::100] *= 30
    offset, scale = truth.y_scaling
    y = offset + scale * (truth.features(x) @ weights + noise)
    return Long(tensor(x), tensor(y), tensor([0.0, 0.0, 0.01]))


def covariances(state: FilterState) -> torch.Tensor:
    return state.stats.cov[torch.isfinite(state.belief.log_prob)]


@pytest.mark.parametrize("steps", [2000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_alpaca_stays_a_posterior(steps):
    """Exactly symmetric, positive definite, and what solving from all the data gives."""
    case = alpaca_case(2, features=12)
    data, prior = one_regime(case, steps), case.prior(3)
    state = moca.init(prior, 6)
    for t in range(steps):
        state, info = data.step(case, state, prior, t)
        assert info.ok.all()
        if t % 250 == 249:
            cov = covariances(state)
            assert torch.equal(cov, cov.mT)
            assert torch.linalg.eigvalsh(cov).min() > 0
    assert state.belief.run_length.amax(-1).tolist() == [steps - 1] * 3
    for row in range(2):  # the third weighs its observations
        compare_with_a_solution(case, state, data, row)


def compare_with_a_solution(case: Case, state: FilterState, data: Long, row: int) -> None:
    """The oldest hypothesis has absorbed everything."""
    truth, slot = case.reference, state.belief.run_length[row].argmax()
    assert torch.isfinite(state.belief.log_prob[row, slot])
    offset, scale = truth.y_scaling
    phi, label = truth.features(data.x[row].numpy()), (data.y[row].numpy() - offset) / scale
    start = np.linalg.inv(truth.factor @ truth.factor.T)
    precision = start + phi.T @ phi
    mean = np.linalg.solve(precision, start @ truth.prior_mean + phi.T @ label)
    found = state.stats.mean[row, slot].numpy(), state.stats.cov[row, slot].numpy()
    np.testing.assert_allclose(found[1], np.linalg.inv(precision), atol=1e-8)
    np.testing.assert_allclose(phi[-1] @ found[0], phi[-1] @ mean, atol=1e-9)
    variance = phi[-1] @ np.linalg.solve(precision, phi[-1])
    assert phi[-1] @ found[1] @ phi[-1] == pytest.approx(variance, rel=1e-7)


def correlated(case: Case, steps: int, scale: float) -> Long:
    """Outputs that move, that are stuck at one value, and that all say the same, with outliers."""
    rng, outputs = np.random.default_rng(0), case.model.y_dim
    y = rng.normal(size=(3, steps, outputs)) @ (np.eye(outputs) + 0.9)
    y[1] = 3.0
    y[2] = y[2, :, :1]
    y[2, 50::100] *= 30
    return Long(None, tensor(case.location + scale * case.scale * y), tensor([0.0, 0.0, 0.01]))


@pytest.mark.parametrize(
    ("steps", "scale"),
    [(2000, 1.0), (500, 1e6), (500, 1e30), pytest.param(20_000, 1.0, marks=pytest.mark.slow)],
)
def test_a_multivariate_stays_a_posterior(steps, scale):
    """Exactly symmetric, positive definite and never below the prior; labels of any size."""
    case = multivariate_case(3)
    data, prior = correlated(case, steps, scale), case.prior(3)
    least, state = prior.stats.psi[0, 0], moca.init(prior, 6)
    size = least.diagonal().sqrt()
    for t in range(steps):
        state, info = data.step(case, state, prior, t)
        assert info.ok.all()
        if t % 250 == 249:
            psi = state.stats.psi[torch.isfinite(state.belief.log_prob)]
            assert torch.equal(psi, psi.mT)
            assert (torch.linalg.cholesky_ex(psi).info == 0).all()
            scaled = psi / size / size.unsqueeze(-1)
            lost = 1e-13 * torch.linalg.eigvalsh(scaled).amax(-1)
            above = torch.linalg.eigvalsh(scaled - torch.eye(3)).amin(-1)
            assert (above >= -lost).all()
            assert torch.isfinite(info.predictive.covariance()).all()
    for row in range(2):  # the third weighs its observations
        compare_psi_with_a_solution(case, state, data, row)


def compare_psi_with_a_solution(case: Case, state: FilterState, data: Long, row: int) -> None:
    """The oldest hypothesis has absorbed everything; a stuck value adds only its distance once."""
    truth, slot, y = case.reference, state.belief.run_length[row].argmax(), data.y[row].numpy()
    assert state.belief.run_length[row, slot] == len(y) - 1
    mean, count = y.mean(0), len(y)
    shift = truth.kappa * count / (truth.kappa + count) * np.outer(*[mean - truth.location] * 2)
    scatter = (y - mean).T @ (y - mean)
    expected = np.diag(2 * truth.beta * truth.scale**2) + scatter + shift
    size = np.sqrt(np.diag(expected))
    found = state.stats.psi[row, slot].numpy()
    np.testing.assert_allclose(
        found / np.outer(size, size), expected / np.outer(size, size), atol=1e-9
    )
    _, kappa, nu, _ = (each[row, slot] for each in state.stats)
    assert kappa.item() == pytest.approx(truth.kappa + count)
    assert nu.item() == pytest.approx(2 * truth.alpha + 2 + count)


def uneventful(case: Case, steps: int) -> list[Series]:
    """All moves; inputs stuck, or labels where there are none; the same with outliers."""
    rng, outputs = np.random.default_rng(0), case.model.y_dim
    location, scale = (each[:outputs] for each in (case.location, case.scale))
    batch = []
    for kind in KINDS:
        x = rng.normal(size=(steps, case.model.x_dim))
        y = location + scale * rng.normal(size=(steps, outputs))
        if kind != "moving" and case.model.x_dim:
            x = x[:1].repeat(steps, 0)
        elif kind != "moving":
            y = (location + scale)[None].repeat(steps, 0)
        rate = 0.0 if kind != "stuck with outliers" else 0.01
        y[50::100] += 30 * scale * (rate > 0)
        one = np.ones(steps)
        batch.append(Series(x, y, one > 0, 1e-4 * one, one, np.nan * one, rate * one))
    return batch


@pytest.mark.parametrize("steps", [2000, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["linear", "autoregressive-lags", "autoregressive-all"])
def test_a_regression_stays_a_posterior(name, steps):
    case = BY_NAME[name]
    batch, prior = uneventful(case, steps + 1), case.prior(3)
    before = [each._replace(**{k: v[:-1] for k, v in each._asdict().items()}) for each in batch]
    for t, step in enumerate(walk(case.model, prior, before, 6)):
        assert step.info.ok.all()
        if t % 250 == 249:
            cov = covariances(step.state)
            assert torch.equal(cov, cov.mT)
            assert torch.linalg.eigvalsh(cov).min() > 0
    last = tensor([each.x[-1] for each in batch])
    phi = case.model.encode(last if case.model.x_dim else None, step.state.context)
    found = case.model.predictive(step.state.stats, phi)
    for row in range(2):  # the third weighs its observations
        slot = step.state.belief.run_length[row].argmax()
        # Where labels are stuck, the first have other lags: the best start is just after them.
        start = steps - 1 - int(step.state.belief.run_length[row, slot])
        assert start <= 2
        told = case.reference.described(batch[row]) if not case.model.x_dim else batch[row]
        past = Window(told.x[start:-1], told.y[start:-1], np.ones(steps - start))
        for got, expected in zip(found, case.reference._student(told.x[-1], past), strict=True):
            np.testing.assert_allclose(got[row, slot].numpy(), expected, rtol=1e-6, atol=1e-8)


def test_a_trend_begins_anew_after_a_million_observations():
    """The season's phase is the same, and nothing else of the time is left."""
    case = BY_NAME["autoregressive-all"]
    batch, prior = uneventful(case, 60), case.prior(3)
    late = prior.context.clone()
    late[:, 0] = 1_000_000
    now = list(walk(case.model, prior, batch, 10))
    then = list(walk(case.model, prior._replace(context=late), batch, 10))
    for a, b in zip(now, then, strict=True):
        torch.testing.assert_close(a.info.log_score, b.info.log_score, atol=1e-11, rtol=0)


def test_a_gaussian_of_one_value_narrows_without_end():
    """A stuck sensor: the scale falls as one over the root of the count, and nothing breaks."""
    case, steps = gaussian(1), 2000
    prior, one = case.prior(), torch.ones(1, dtype=torch.float64)
    state = moca.init(prior, 5)
    told = one > 0, 1e-4 * one[:, None], one, torch.nan * one, 0.01 * one
    for _ in range(steps):
        state, info = moca.step(case.model, state, prior, Inputs(None, one[None], *told))
        assert info.ok.all()
    slot = state.belief.run_length.argmax()
    _, kappa, alpha, beta = (each[0, slot].item() for each in state.stats)
    truth = case.reference
    shift = truth.kappa * steps * (1 - truth.location[0]) ** 2 / (2 * (truth.kappa + steps))
    weight = kappa - truth.kappa
    assert 0.98 * steps < weight <= steps
    assert alpha == pytest.approx(truth.alpha + weight / 2, rel=1e-12)
    assert beta == pytest.approx(truth.beta * truth.scale[0] ** 2 + shift, rel=0.02)
    spread = info.predictive.covariance().sqrt().item()
    assert 0 < spread < 3 * truth.scale[0]
    assert torch.isfinite(info.predictive.quantile(tensor([0.01, 0.99]))).all()
