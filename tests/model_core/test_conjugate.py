"""Every conjugate predictive against an integral of likelihood times prior over the parameters.

The integrals are trapezoids over a wide grid of unbounded parameters, where they are exact to
rounding. They know the likelihood and the prior alone: no posterior, no update.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import NamedTuple

import numpy as np
import pytest
from scipy import integrate, special, stats

from model_core.upm.builtin import Options, build
from tests.model_core.cases import (
    CASES,
    Case,
    bernoulli,
    categorical,
    exponential,
    gaussian,
    mixed_poisson,
    multivariate_case,
    poisson,
    tensor,
)

LogLikelihood = Callable[[np.ndarray], np.ndarray]  # of one observation (d,), over the grid


class Grid(NamedTuple):
    """Log prior density of the grid's points, any constant left out, and the likelihood there."""

    log_prior: np.ndarray
    log_likelihood: LogLikelihood

    def log_evidence(self, y: np.ndarray, weight: np.ndarray) -> float:
        """`log sum prior prod p(y_i | theta)^w_i`, up to a constant."""
        terms = [w * self.log_likelihood(each) for each, w in zip(y, weight, strict=True)]
        return float(special.logsumexp(sum(terms, self.log_prior)))


def gaussian_grid(case: Case) -> Grid:
    """Over the mean and the log variance; `d mu d sigma^2 = sigma^2 d mu d log sigma^2`."""
    kappa, alpha, beta = case.model.kappa, case.model.alpha, case.model.beta
    location, scale = case.location[0], case.scale[0]
    log_variance = np.linspace(-6, 18, 250)[:, None]
    variance = np.exp(log_variance)
    # In units of the posterior's width the mean is smooth whatever the variance.
    z = np.linspace(-12, 12, 600)
    mean = location + z * np.sqrt(variance / kappa)
    prior = stats.invgamma.logpdf(variance, alpha, scale=beta * scale**2) + log_variance
    return Grid(
        prior + stats.norm.logpdf(z),
        lambda y: stats.norm.logpdf(y[0], mean, np.sqrt(variance)),
    )


def poisson_grid(case: Case) -> Grid:
    log_rate = np.linspace(-60, 8, 20_000)
    rate, shape = np.exp(log_rate), case.model.shape
    prior = stats.gamma.logpdf(rate, shape, scale=case.location[0] / shape) + log_rate
    return Grid(prior, lambda y: stats.poisson.logpmf(y[0], rate))


def mixed_poisson_grid(case: Case) -> Grid:
    log_rate = np.linspace(-60, 9, 20_000)
    rate, shape, location = np.exp(log_rate), case.model.shape, case.location[0]
    each = [
        np.log(weight) + stats.gamma.logpdf(rate, shape, scale=factor * location / shape)
        for factor, weight in zip(case.model.factors, case.model.weights, strict=True)
    ]
    prior = special.logsumexp(each, axis=0) + log_rate
    return Grid(prior, lambda y: stats.poisson.logpmf(y[0], rate))


def exponential_grid(case: Case) -> Grid:
    """The prior mean of a duration, `E[1 / rate]`, is the location."""
    log_rate = np.linspace(-30, 8, 20_000)
    rate, shape = np.exp(log_rate), case.model.shape
    scale = 1 / ((shape - 1) * case.location[0])
    assert stats.invgamma.mean(shape, scale=1 / scale) == pytest.approx(case.location[0])
    prior = stats.gamma.logpdf(rate, shape, scale=scale) + log_rate
    return Grid(prior, lambda y: stats.expon.logpdf(y[0], scale=1 / rate))


def bernoulli_grid(case: Case) -> Grid:
    logit = np.linspace(-70, 70, 20_000)
    one, none = special.log_expit(logit), special.log_expit(-logit)
    prior = case.model.ones * one + case.model.zeros * none
    return Grid(prior, lambda y: one if y[0] else none)


def categorical_grid(case: Case) -> Grid:
    """Over two logits against the third class; the simplex's Jacobian is `p1 p2 p3`."""
    logit = np.stack(np.meshgrid(*[np.linspace(-45, 45, 400)] * 2, indexing="ij"), -1)
    full = np.concatenate((logit, np.zeros_like(logit[..., :1])), -1)
    log_p = special.log_softmax(full, -1)
    return Grid(case.model.concentration * log_p.sum(-1), lambda y: log_p[..., int(y[0])])


GRIDS = [
    (gaussian(1), gaussian_grid),
    (poisson(), poisson_grid),
    (mixed_poisson(), mixed_poisson_grid),
    (bernoulli(), bernoulli_grid),
    (categorical(), categorical_grid),
    (exponential(), exponential_grid),
]
ALL = [*(case for case, _ in GRIDS), gaussian(3), multivariate_case(2), multivariate_case(3)]
ids = {"ids": lambda value: getattr(value, "name", "")}


def log_predictive(case: Case, y: np.ndarray, weight: np.ndarray, new: np.ndarray) -> float:
    """What the model says of a new observation after those that it absorbed."""
    prior = case.prior()
    stats_, phi = prior.stats, case.model.encode(None, prior.context)
    for each, w in zip(y, weight, strict=True):
        stats_ = case.model.update(stats_, phi, tensor([each]), tensor([[w]]))
    found = case.model.predictive(stats_, phi).joint_log_density(tensor([[new]]))
    return found.item()


def drawn(case: Case, count: int, seed: int = 0) -> np.ndarray:
    return case.draw(np.random.default_rng(seed), count)[1]


WEIGHTS = {"before any": [], "one": [1.0], "some": [1.0] * 6, "fractions": [0.2, 1, 0.05, 0.7, 0]}


@pytest.mark.parametrize(("case", "grid"), GRIDS, **ids)
@pytest.mark.parametrize("weight", WEIGHTS.values(), ids=WEIGHTS)
def test_the_predictive_is_the_integral_over_the_parameters(case, grid, weight):
    y, points = drawn(case, 6)[: len(weight)], grid(case)
    before = points.log_evidence(y, np.array(weight))
    for new in drawn(case, 4, seed=1):
        after = points.log_evidence([*y, new], np.array([*weight, 1.0]))
        found = log_predictive(case, y, weight, new)
        assert found == pytest.approx(after - before, abs=1e-8)


def log_evidence_given(sigma: np.ndarray, case: Case, y: np.ndarray, weight: np.ndarray):
    """Log density of the observations given covariances (..., 2, 2), the mean integrated out.

    Given Sigma they are jointly normal around the location with covariance
    `Sigma (x) (diag(1 / w) + 1 1' / kappa)`, a mean's share in them all. `N(y; mu, Sigma)^w` is
    `N(y; mu, Sigma / w)` times `|Sigma|^((1 - w) / 2)` and a constant, left out, which is 1 for
    a whole observation.
    """
    if not len(y):
        return np.zeros(sigma.shape[:-2])
    rows = np.diag(1 / weight) + 1 / case.model.kappa
    error = y - case.location
    quadratic = np.linalg.inv(sigma) @ (error.T @ np.linalg.solve(rows, error))
    log_det = np.linalg.slogdet(sigma)[1]
    answer = -0.5 * len(y) * log_det - 0.5 * quadratic.trace(axis1=-2, axis2=-1)
    answer += 0.5 * (1 - weight).sum() * log_det
    return answer - np.log(2 * np.pi) * len(y) - np.linalg.slogdet(rows)[1]


def covariances(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Covariances over a grid, and the log of the prior times the volume that each stands for.

    Over log standard deviations a, b and `c = atanh(rho)`: the volume of (s11, s12, s22) is
    `4 s1^3 s2^3 (1 - rho^2) da db dc`.
    """
    log_scale = [np.log(s) + np.linspace(-4, 8, 60) for s in case.scale]
    a, b, c = np.meshgrid(*log_scale, np.linspace(-7, 7, 70), indexing="ij")
    rho, log_left = np.tanh(c), -2 * np.log(np.cosh(c))
    cross = rho * np.exp(a + b)
    sigma = np.stack((np.exp(2 * a), cross, cross, np.exp(2 * b)), -1).reshape(*a.shape, 2, 2)
    nu = 2 * case.model.alpha + 1
    psi = np.diag(2 * case.model.beta * case.scale**2)
    log_det = 2 * a + 2 * b + log_left
    precision = np.linalg.inv(sigma)
    # Inverse Wishart (Murphy, sec. 9), written out: scipy's is slow for so many.
    prior = -0.5 * (nu + 3) * log_det - 0.5 * (precision @ psi).trace(axis1=-2, axis2=-1)
    few = sigma[::30, ::30, ::30].reshape(-1, 2, 2)
    theirs = [stats.invwishart.logpdf(each, nu, psi) for each in few]
    assert np.ptp(prior[::30, ::30, ::30].ravel() - theirs) < 1e-6 * np.abs(theirs).max()
    return sigma, prior + 3 * a + 3 * b + log_left


@pytest.mark.parametrize("weight", [[], [1.0] * 3, [0.2, 1, 0.7]], ids=["none", "ones", "parts"])
def test_the_multivariate_predictive_is_the_integral_over_covariances(weight):
    case = multivariate_case(2)
    sigma, log_prior = covariances(case)
    y, weight = drawn(case, 3)[: len(weight)], np.array(weight)
    before = special.logsumexp(log_prior + log_evidence_given(sigma, case, y, weight))
    for new in drawn(case, 2, seed=1):
        now = np.concatenate((y, [new])), np.append(weight, 1.0)
        after = special.logsumexp(log_prior + log_evidence_given(sigma, case, *now))
        assert log_predictive(case, y, weight, new) == pytest.approx(after - before, abs=1e-6)


@pytest.mark.parametrize("case", ALL, **ids)
def test_the_order_of_observations_does_not_matter(case):
    """`p(y1) p(y2 | y1) p(y3 | y1, y2)` is the same in every order."""
    y, ones = drawn(case, 3), np.ones(3)
    found = []
    for order in permutations(range(3)):
        z = y[list(order)]
        found.append(sum(log_predictive(case, z[:t], ones[:t], z[t]) for t in range(3)))
    assert found == pytest.approx([found[0]] * 6, abs=1e-11)


@pytest.mark.parametrize("y_dim", [1, 2, 3, 6])
def test_the_multivariate_evidence_is_a_ratio_of_normalising_constants(y_dim):
    """`log p(y_1..n) = log Z_n - log Z_0 - (n d / 2) log pi` (Murphy, sec. 9)."""
    case, steps = multivariate_case(y_dim), 12
    y, model = drawn(case, steps), case.model
    found = sum(log_predictive(case, y[:t], np.ones(t), y[t]) for t in range(steps))
    nu, kappa = 2 * model.alpha + y_dim - 1, model.kappa
    psi = np.diag(2 * model.beta * case.scale**2)
    centred, shift = y - y.mean(0), y.mean(0) - case.location
    after = psi + centred.T @ centred + kappa * steps / (kappa + steps) * np.outer(shift, shift)

    def log_z(nu, kappa, psi):
        half_log_det = 0.5 * nu * np.linalg.slogdet(psi)[1]
        return special.multigammaln(nu / 2, y_dim) - half_log_det - 0.5 * y_dim * np.log(kappa)

    expected = log_z(nu + steps, kappa + steps, after) - log_z(nu, kappa, psi)
    expected -= 0.5 * steps * y_dim * np.log(np.pi)
    assert found == pytest.approx(expected, abs=1e-10)


def test_one_output_is_the_gaussian():
    """The multivariate of one output, and each output of one before it has seen anything."""
    one, alone = multivariate_case(1), gaussian(1)
    alone = alone._replace(model=type(alone.model)(kappa=0.4, alpha=1.7, beta=1.2))
    y, weight = drawn(one, 30), np.linspace(0, 1, 30)
    found = log_predictive(one, y, weight, y[0])
    assert found == pytest.approx(log_predictive(alone, y, weight, y[0]), abs=1e-12)
    wide, apart = multivariate_case(3), gaussian(3)
    same = type(apart.model)(y_dim=3, kappa=0.4, alpha=1.7, beta=1.2)
    marginals = wide.model.predictive(wide.prior().stats, None).alone()
    expected = same.predictive(apart.prior().stats, None)
    for a, b in zip(marginals, expected, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-14)


def test_outputs_alone_are_marginals_of_the_joint_density():
    case = multivariate_case(2)
    stats_ = case.prior().stats
    for each in drawn(case, 5):
        stats_ = case.model.update(stats_, None, tensor([each]), tensor([[1.0]]))
    found = case.model.predictive(stats_, None)
    scale = found.alone().scale[0, 0].numpy()
    for value in drawn(case, 3, seed=2):
        for output in range(2):

            def joint(other, value=value, output=output):
                y = [value[0], other] if output == 0 else [other, value[1]]
                return found.joint_log_density(tensor([[y]])).exp().item()

            other = 1 - output
            centre, far = found.loc[0, 0, other].item(), 400 * scale[other]
            around = {"points": [centre], "limit": 400, "epsabs": 1e-13}
            total, _ = integrate.quad(joint, centre - far, centre + far, **around)
            alone = found.log_density(tensor([[value]]))[0, 0, output].exp().item()
            assert total == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize("case", [c for c in CASES if not c.model.x_dim], **ids)
def test_nothing_is_learnt_at_weight_zero(case):
    y, prior = drawn(case, 1), case.prior()
    phi = case.model.encode(None, prior.context)
    before = case.model.update(prior.stats, phi, tensor(y), tensor([[1.0]]))
    after = case.model.update(before, phi, tensor(7 * y + 1), tensor([[0.0]]))
    assert all((a == b).all() for a, b in zip(before, after, strict=True))


def test_priors_have_a_variance():
    """With the parameters that a stream gets, of any location and scale."""
    for name in ("gaussian", "multivariate", "exponential", "poisson@1", "poisson@2"):
        model = build(name, Options(y_dim=2))
        for size in (1e-6, 1.0, 1e6):
            given = [tensor([[size] * model.y_dim])] * 2
            prior, phi = model.prior(*given), model.encode(None, model.context(*given))
            for each in (model.predictive(prior, phi), model.outlier(prior, phi)):
                assert np.isfinite(each.variance().numpy()).all()
