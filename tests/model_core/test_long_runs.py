"""Statistics after thousands of observations, with inputs that move and inputs that are stuck."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from model_core import filter as moca
from model_core.upm.conjugate import Gaussian
from tests.model_core.cases import of_labels, walk
from tests.model_core.enumeration import evidence_bound
from tests.model_core.references import Series, Window
from tests.model_core.registry import Case, case, tensor

NILE = Path(__file__).parents[2] / "service" / "samples" / "nile.csv"


def uneventful(one: Case, steps: int) -> list[Series]:
    """All moves; inputs stuck, or labels where there are none; the same with outliers."""
    rng, batch = np.random.default_rng(0), []
    location, scale = (each[: one.model.y_dim] for each in (one.location, one.scale))
    for rate, stuck in ((0.0, False), (0.0, True), (0.01, True)):
        x, y = one.draw(rng, steps)
        if one.model.label == "real":
            x, y = rng.normal(size=x.shape), location + scale * rng.normal(size=y.shape)
            y[50::100] += 30 * scale * (rate > 0)
        if stuck and one.model.x_dim:
            x = x[:1].repeat(steps, 0)
        elif stuck:
            y = y[:1].repeat(steps, 0)
        batch.append(of_labels(y, x, 1e-4, rate))
    return batch


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alpaca-2", "multivariate-2", "pcoc-3", "averaged-1"])
def test_twenty_thousand_steps_stay_finite(name):
    one, steps = case(name), 20_000
    for step in walk(one.model, one.prior(3), uneventful(one, steps), 6):
        assert step.info.ok.all()
    assert all(torch.isfinite(each).all() for each in step.state.stats)
    assert torch.isfinite(step.info.predictive.mean()).all()


REGRESSIONS = [
    "autoregressive-all",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("alpaca-unknown-2", "linear")),
]


@pytest.mark.parametrize("name", REGRESSIONS)
def test_a_regression_stays_a_posterior(name):
    """Exactly symmetric, positive definite, and what solving from all the data gives."""
    one, steps = case(name), 300
    batch = uneventful(one, steps + 1)
    before = [each._replace(**{k: v[:-1] for k, v in each._asdict().items()}) for each in batch]
    for t, step in enumerate(walk(one.model, one.prior(3), before, 4)):
        assert step.info.ok.all()
        if t % 100 == 99:
            cov = step.state.stats.cov[torch.isfinite(step.state.belief.log_prob)]
            assert torch.equal(cov, cov.mT)
            assert torch.linalg.eigvalsh(cov).min() > 0
    last = tensor([each.x[-1] for each in batch])
    phi = one.model.encode(last if one.model.x_dim else None, step.state.context)
    found = one.model.predictive(step.state.stats, phi)
    for row in range(2):  # the third weighs its observations
        slot = step.state.belief.run_length[row].argmax()
        # Where labels are stuck, the first have other lags: the best start is just after them.
        start = steps - 1 - int(step.state.belief.run_length[row, slot])
        assert start <= 2
        looks_back = hasattr(one.reference, "described")
        told = one.reference.described(batch[row]) if looks_back else batch[row]
        past = Window(told.x[start:-1], told.y[start:-1], np.ones(steps - start))
        for got, expected in zip(found, one.reference.predictive(told.x[-1], past), strict=True):
            np.testing.assert_allclose(got[row, slot].numpy(), expected, rtol=1e-6, atol=1e-8)


def test_a_multivariate_stays_a_posterior():
    """Exactly symmetric, positive definite and never below the prior; labels of any size."""
    one, steps, batch = case("multivariate-2"), 300, []
    for size in (1.0, 1e6, 1e30):
        streams = uneventful(one, steps)
        streams[1].y[:] = streams[1].y[:, :1]  # all say the same
        batch += [
            each._replace(y=one.location + size * (each.y - one.location)) for each in streams
        ]
    least, prior = one.prior().stats.psi[0, 0], one.prior(len(batch))
    for t, step in enumerate(walk(one.model, prior, batch, 6)):
        assert step.info.ok.all()
        if t % 100 == 99:
            psi = step.state.stats.psi[torch.isfinite(step.state.belief.log_prob)]
            assert torch.equal(psi, psi.mT)
            assert (torch.linalg.cholesky_ex(psi).info == 0).all()
            scaled = psi / least.diagonal().sqrt() / least.diagonal().sqrt().unsqueeze(-1)
            lost = 1e-13 * torch.linalg.eigvalsh(scaled).amax(-1)
            assert (torch.linalg.eigvalsh(scaled - torch.eye(2)).amin(-1) >= -lost).all()
            assert torch.isfinite(step.info.predictive.covariance()).all()
    for row in (0, 3, 6):
        slot = step.state.belief.run_length[row].argmax()
        assert step.state.belief.run_length[row, slot] == steps - 1
        past = Window(batch[row].x, batch[row].y, np.ones(steps))
        _, shape, df = one.reference.student(past)
        psi, kappa = step.state.stats.psi[row, slot].numpy(), one.model.kappa + steps
        expected = shape * kappa * df / (kappa + 1)
        scale = np.sqrt(np.diag(expected))
        unit = np.outer(scale, scale)
        np.testing.assert_allclose(psi / unit, expected / unit, atol=1e-9)


def test_a_gaussian_of_one_value_narrows_without_end():
    """A stuck sensor: the scale falls as one over the root of the count, and nothing breaks."""
    one, steps = case("gaussian-1"), 400
    stream = uneventful(one, steps)[1]._replace(outlier_rate=np.full(steps, 0.01))
    *_, step = walk(one.model, one.prior(), [stream], 5)
    slot = step.state.belief.run_length.argmax()
    weight = step.state.stats.kappa[0, slot].item() - one.model.kappa
    assert 0.97 * steps < weight <= steps
    assert 0 < step.info.predictive.covariance().sqrt().item() < 3 * one.scale[0]
    assert torch.isfinite(step.info.predictive.quantile(tensor([0.01, 0.99]))).all()


def test_fifty_hypotheses_cost_less_than_a_thousandth_of_a_nat():
    """On average, with the outlier rate that gaussian streams have; and the bound holds."""
    with NILE.open() as file:
        y = np.array([[float(row["y"])] for row in csv.DictReader(file)])
    model, found = Gaussian(), []
    moments = tensor(y[:10].mean(0))[None], tensor(y[:10].std(0, ddof=1))[None]
    prior = moca.make_prior(model, *moments)
    stream = of_labels(y, None, model.hazard, model.outlier_rate)
    for room in (50, len(y)):
        infos = [step.info for step in walk(model, prior, [stream], room)]
        found.append([torch.cat([info[i] for info in infos]) for i in (1, 3)])
    (pruned, mass), (exact, _) = found
    assert (exact - pruned).mean().abs() < 1e-3
    assert (mass[:50] == 0).all()
    assert 0 < mass.max() < 0.01
    assert (evidence_bound(pruned, mass) <= exact.cumsum(0).numpy() + 1e-9).all()
