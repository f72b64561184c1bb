"""Independent outputs or a vector autoregression: beside loops, and on simulated vectors."""

import numpy as np
import pytest
import torch
from scipy import stats as distributions

from model_core import filter as moca
from model_core.components.either import Either
from model_core.upm.joint import Joint
from model_core.upm.robust_averaged import MOST_ODDS, REACH, TAILS, RobustAveraged
from tests.model_core import test_robust_averaged
from tests.model_core.cases import BY_NAME
from training.data.base import Batch
from training.evaluation.online import Settings, follow, observed, prior_of


class Belief(test_robust_averaged.Belief):
    """The filter again, by loops; regressions keep their normal equations."""

    def __init__(self, model, location, scale):
        super().__init__(model, location, scale)
        d = len(location)
        self.variance, self.squares, self.products = np.ones(d), 20 * np.ones(d), np.zeros(d)
        self.before = np.zeros(d)

    def fresh(self):
        m, d = self.model, len(self.location)
        moments = np.diag([m.kappa] + [m.autoregression] * d)
        matrix = np.vstack([self.location, np.diag(self.scale)])
        psi, nu = np.diag(2 * m.beta * self.scale**2), 2 * m.alpha + d - 1
        vectors = [[moments, moments @ matrix, psi, nu] for _ in range(2)]
        return {**super().fresh(), "vectors": vectors, "choice": np.full(3, 1 / 3)}

    def step(self, y, labelled, *told):
        if not labelled:
            self.before = np.zeros_like(self.before)
        return super().step(y, labelled, *told)

    def together(self, regime, j, y):
        """Features, location, f' Lambda^-1 f, density and squared distance of an autoregression."""
        moments, right, psi, nu = regime["vectors"][j]
        f, d = np.r_[1.0, self.lag], len(y)
        variance = f @ np.linalg.solve(moments, f)
        bounds = [self.location + self.scale * (b + s * REACH)
                  for b, s in ((self.least, -1), (self.most, 1))]  # fmt: skip
        loc = np.clip(f @ np.linalg.solve(moments, right), *bounds)
        df = nu - d + 1
        shape = psi * (1 + variance) / df
        density = distributions.multivariate_t(loc, shape, min(df, (1e9, TAILS)[j])).pdf(y)
        return f, loc, variance, density, (y - loc) @ np.linalg.solve(shape, y - loc)

    def learn(self, y, grown, rate):
        outside, d = self.outside(y), len(y)
        r = max(0, (self.products / self.squares).max())
        likelihood, shares, expected = [], [], np.zeros_like(y)
        for chance, regime in zip(grown, self.regimes, strict=True):
            found, each, densities, means = self.alone(regime, y)
            vectors = [self.together(regime, j, y) for j in range(2)]
            density = np.array([densities.prod(), *(v[3] for v in vectors)])
            choice = regime["choice"]
            inside = choice @ density
            inlier = (1 - rate) * inside / ((1 - rate) * inside + rate * outside)
            likelihood.append((1 - rate) * inside + rate * outside)
            odds = min(inlier / (1 - inlier) if inlier < 1 else np.inf, MOST_ODDS)
            odds = odds * density / inside
            mean = choice @ [means, *(v[1] for v in vectors)]
            expected = expected + chance / grown.sum() * mean
            told = choice * density / inside
            share = odds / (1 + odds)
            believed = told[0] * self.absorb(regime, y, found, each, share[0])
            for j, (f, loc, variance, _, distance) in enumerate(vectors):
                moments, right, psi, nu = regime["vectors"][j]
                g = share[1 + j] * (min(1, (TAILS + d) / (TAILS + distance)) if j else 1)
                target = f @ np.linalg.solve(moments, right) + y - loc
                grows = g * np.outer(y - loc, y - loc) / (1 + g * variance)
                regime["vectors"][j] = [
                    moments + g * np.outer(f, f), right + g * np.outer(f, target),
                    psi + grows, nu + g,
                ]  # fmt: skip
                believed = believed + told[1 + j] * g
            regime["choice"] = inlier * told + (1 - inlier) * choice
            shares.append(believed)
        counted = grown * np.array(likelihood) ** ((1 - r) / (1 + r))
        posterior = counted / counted.sum()
        error = (y - expected) / self.scale
        z = np.clip(error / np.sqrt(self.variance), -3, 3)
        capped = np.minimum(error**2, 9 * self.variance)
        self.variance = self.variance + (capped - self.variance) / (20 + self.time)
        self.squares, self.products = self.squares + z**2, self.products + z * self.before
        self.before = z
        self.believe(y, posterior, shares, expected)
        return self.walked(y, (grown * likelihood).sum())


@pytest.mark.parametrize("rate", [0.0, 0.02])
def test_the_whole_filter_beside_loops(rate):
    test_robust_averaged.compare(BY_NAME["joint-2"], Belief, rate)


def last(model, y):
    """State after labels (T, d), and what the last step said."""
    prior = prior_of(model, [(np.median(y[:20], 0).tolist(), y[:20].std(0, ddof=1).tolist())])
    state = moca.init(prior, 50)
    batch = Batch(None, torch.tensor(y[None]))
    for t in range(len(y)):
        state, info = moca.step(model, state, prior, observed(model, batch, t))
    return state, info


def chances(state):
    """Probabilities of the three in the most probable regime."""
    return state.stats.log_choice[0, state.belief.log_prob[0].argmax()].exp().tolist()


def test_regimes_choose_what_fits():
    rng = np.random.default_rng(3)
    independent = rng.normal(size=(150, 3))
    mixing = np.linalg.cholesky(0.1 * np.eye(3) + 0.9)
    assert chances(last(Joint(y_dim=3), independent)[0])[0] > 0.99
    assert chances(last(Joint(y_dim=3), independent @ mixing.T)[0])[0] < 0.01


def test_errors_that_follow_their_neighbours_count_less():
    rng = np.random.default_rng(4)
    noise = rng.normal(size=(200, 2))
    # An autoregression of order one has no model of what has two roots of one angle.
    smooth = np.zeros_like(noise)
    for t in range(2, len(noise)):
        smooth[t] = 1.8 * smooth[t - 1] - 0.9 * smooth[t - 2] + noise[t]
    model = Joint()
    white, _ = last(model, noise)
    dependent, _ = last(model, smooth)
    assert model.evidence_share(white.context).item() > 0.75
    assert model.evidence_share(dependent.context).item() < 0.5


def correlated(rng, count, steps):
    mixing = np.linalg.cholesky(0.2 * np.eye(3) + 0.8)
    return rng.normal(size=(count, steps, 3)) @ mixing.T


def test_correlated_quiet_vectors_raise_no_events_and_steps_are_found():
    rng = np.random.default_rng(5)
    y = correlated(rng, 6, 400)
    y[3:, 300:, 0] += 2.0
    found = [each.confirmed() for each in follow(Joint(y_dim=3), y.tolist(), Settings())]
    assert not any(found[:3])
    assert all(len(starts) == 1 and abs(starts[0] - 300) <= 3 for starts in found[3:])
    independent = follow(RobustAveraged(y_dim=3), y[:3].tolist(), Settings())
    assert sum(len(each.confirmed()) for each in independent) >= 3


def test_moments_and_draws_of_either():
    """Of a mixture whose weights and parts are known, beside draws."""
    _, info = last(Joint(y_dim=2), correlated(np.random.default_rng(6), 1, 60)[0, :, :2])
    components = info.predictive.components
    assert isinstance(components, Either)
    best = info.predictive.log_weight[0].argmax()
    one = components.rebuilt(*(p[:, best : best + 1] for p in components.parameters()))
    df = [torch.full_like(one.parameters()[k], 30.0) for k in (0, 5)]
    one = one._replace(
        alone=one.alone._replace(each=one.alone.each._replace(df=df[0])),
        together=one.together._replace(df=df[1]),
        log_choice=torch.tensor([[[0.5, 0.3, 0.2]]], dtype=torch.float64).log(),
    )
    many = one.rebuilt(*(p.expand(-1, 200_000, *p.shape[2:]) for p in one.parameters()))
    drawn = many.sample(torch.Generator().manual_seed(0))[0]
    spread = one.variance()[0, 0].sqrt()
    assert ((drawn.mean(0) - one.mean()[0, 0]).abs() < 0.01 * spread).all()
    error = (drawn.T.cov() - one.covariance()[0, 0]).abs() / (spread[:, None] * spread)
    assert (error < 0.02).all()
    assert torch.allclose(one.covariance()[0, 0].diagonal(), one.variance()[0, 0], rtol=1e-12)
    at = one.mean()[0, 0] + spread
    below = (drawn <= at).double().mean(0)
    assert ((one.cdf(at[None, None])[0, 0] - below).abs() < 0.005).all()
    # Bayes: the joint density over that of the first output integrates to one over the second.
    grid = at[1] + spread[1] * torch.linspace(-60, 60, 24001, dtype=torch.float64)
    points = torch.stack((at[0].expand_as(grid), grid), -1)[None]
    joint = one.joint_log_density(points)[0].exp()
    alone = one.log_density(at[None, None])[0, 0, 0].exp()
    assert torch.trapezoid(joint, grid).item() == pytest.approx(alone.item(), rel=1e-4)


def extremes():
    rng = np.random.default_rng(8)
    two = rng.normal(size=(150, 2))
    walk = two.cumsum(0)
    jump, far = two.copy(), two.copy()
    jump[90] = 1e8
    jump[91:] += 1e6
    far[50], far[52] = 1e100, [-1e100, 1e100]
    small = np.where(np.arange(150) < 20, 1e-3, 1.0)[:, None] * two
    return {
        "collinear": np.c_[walk, walk @ [1.0, -2.0]],
        "constant": np.c_[two[:, 0], 0 * two[:, 0]],
        "jump": jump,
        "far": far,
        "a thousandth": small,
    }


@pytest.mark.parametrize("name", extremes())
def test_no_label_is_refused_and_no_forecast_runs_away(name):
    y = extremes()[name]
    model, spread = Joint(y_dim=y.shape[1]), y[:20].std(0, ddof=1)
    location, scale = np.median(y[:20], 0), np.where(spread > 0, spread, 1.0)
    prior = prior_of(model, [(location.tolist(), scale.tolist())])
    state = moca.init(prior, 10)
    for t in range(len(y)):
        state, info = moca.step(model, state, prior, observed(model, Batch(None, tensor(y)), t))
        assert info.ok.all()
        mean, before = info.predictive.mean()[0].numpy(), np.vstack([location, y[:t]])
        assert (mean >= before.min(0) - (REACH + 1e-9) * scale).all()
        assert (mean <= before.max(0) + (REACH + 1e-9) * scale).all()


def tensor(y):
    return torch.tensor(y[None])
