"""Small instances of the regressions, each beside its reference."""

from __future__ import annotations

import dataclasses

import numpy as np

from model_core.encoder import Mlp
from model_core.upm import alpaca, averaged, joint, linear, robust_averaged
from model_core.upm.alpaca_mixture import AlpacaMixture
from model_core.upm.fleet import Fleet
from tests.model_core import regressions
from tests.model_core.case import Case, Draw, irregular, tensor


def alpaca_case(y_dim: int, features: int = 5) -> Case:
    """Irregular weights, the same wherever the tests run; scaled inputs and labels."""
    sizes = [2, 6, features]
    layers = [
        (irregular(b, a, seed=b), irregular(b, seed=a))
        for a, b in zip(sizes[:-1], sizes[1:], strict=True)
    ]
    x_scaling = irregular(2, seed=1), 1.2 + 0.5 * irregular(2, seed=2)
    y_scaling = irregular(y_dim, seed=3), 1.2 + 0.5 * irregular(y_dim, seed=4)
    mean, factor = (
        0.3 * irregular(features, y_dim, seed=5),
        0.5 * irregular(features, features, seed=6),
    )
    noise = 0.25 + 0.1 * irregular(y_dim, seed=7)
    truth = regressions.Alpaca(layers, mean, factor, noise, x_scaling, y_scaling)
    weights, biases = ([tensor(a) for a in each] for each in zip(*layers, strict=True))
    model = alpaca.Alpaca(
        encoder=Mlp(tuple(weights), tuple(biases), "relu", "tanh"),
        prior_mean=tensor(mean),
        prior_cov=tensor(factor @ factor.T),
        noise_variance=tensor(noise),
        x_offset=tensor(x_scaling[0]),
        x_scale=tensor(x_scaling[1]),
        y_offset=tensor(y_scaling[0]),
        y_scale=tensor(y_scaling[1]),
        hazard=0.1,
    )

    def draw(rng, steps):
        x = rng.normal(size=(steps, 2))
        return x, y_scaling[0] + y_scaling[1] * rng.normal(size=(steps, y_dim))

    return Case(f"alpaca-{y_dim}", model, np.zeros(y_dim), np.ones(y_dim), truth, draw)


def noisy_alpaca_case(y_dim: int, features: int = 5) -> Case:
    """The same with noise of unknown variance."""
    known = alpaca_case(y_dim, features)
    alpha, beta = np.linspace(1.8, 2.4, y_dim), np.linspace(0.3, 0.5, y_dim)
    model = dataclasses.replace(
        known.model,
        noise_variance=None,
        noise_prior=alpaca.NoisePrior(tensor(alpha), tensor(beta)),
    )
    truth = regressions.NoisyAlpaca(known.reference, regressions.Noise(alpha, beta))
    return known._replace(name=f"alpaca-unknown-{y_dim}", model=model, reference=truth)


def alpaca_mixture_case(y_dim: int, features: int = 4, *, noisy: bool = False) -> Case:
    """Three types, whose means, covariances and noise differ; labels of one after the other."""
    plain = noisy_alpaca_case(y_dim, features) if noisy else alpaca_case(y_dim, features)
    known = plain.reference.known if noisy else plain.reference
    assert isinstance(known, regressions.Alpaca)
    size, chance = 3, np.array([0.5, 0.3, 0.2])
    mean = 0.8 * irregular(size, features, y_dim, seed=21)
    factor = 0.4 * irregular(size, features, features, seed=22)
    noise = 0.25 + 0.1 * irregular(size, y_dim, seed=23)
    alpha, beta = 2.0 + 0.1 * irregular(size, y_dim, seed=24), noise
    truths = [
        known._replace(prior_mean=mean[m], factor=factor[m], noise=noise[m]) for m in range(size)
    ]
    if noisy:
        truths = [
            regressions.NoisyAlpaca(one, regressions.Noise(alpha[m], beta[m]))
            for m, one in enumerate(truths)
        ]
    model = AlpacaMixture(
        encoder=plain.model.encoder,
        log_weight=tensor(np.log(chance)),
        prior_mean=tensor(mean),
        prior_cov=tensor(factor @ factor.swapaxes(-1, -2)),
        noise_variance=None if noisy else tensor(noise),
        noise_prior=alpaca.NoisePrior(tensor(alpha), tensor(beta)) if noisy else None,
        x_offset=plain.model.x_offset,
        x_scale=plain.model.x_scale,
        y_offset=plain.model.y_offset,
        y_scale=plain.model.y_scale,
        hazard=0.1,
    )
    offset, scale = known.y_scaling

    def draw(rng, steps):
        x = rng.normal(size=(steps, 2))
        m = np.where(np.arange(steps) < steps // 2, 0, 2)
        fitted = np.einsum("tn,tny->ty", known.features(x), mean[m])
        return x, offset + scale * (fitted + 0.5 * rng.normal(size=(steps, y_dim)))

    truth = regressions.AlpacaMixture(np.log(chance), truths)
    name = f"alpaca-mixture{'-unknown' * noisy}-{y_dim}"
    return Case(name, model, np.zeros(y_dim), np.ones(y_dim), truth, draw)


def lagged_case(x_dim: int, lags: int = 2, y_dim: int = 2) -> Case:
    """Labels before as inputs, with others or alone; the labels go round in a circle."""
    sizes = [x_dim + lags * y_dim, 6, 4]
    layers = [
        (0.6 * irregular(b, a, seed=b), 0.3 * irregular(b, seed=a))
        for a, b in zip(sizes[:-1], sizes[1:], strict=True)
    ]
    x_scaling = irregular(x_dim, seed=1), 1.2 + 0.5 * irregular(x_dim, seed=2)
    y_scaling = irregular(y_dim, seed=3), 1.2 + 0.5 * irregular(y_dim, seed=4)
    mean, factor = 0.3 * irregular(4, y_dim, seed=5), 0.5 * irregular(4, 4, seed=6)
    noise = 0.25 + 0.1 * irregular(y_dim, seed=7)
    own = np.zeros(sizes[0]), np.ones(sizes[0])
    plain = regressions.Alpaca(layers, mean, factor, noise, own, y_scaling)
    weights, biases = ([tensor(a) for a in each] for each in zip(*layers, strict=True))
    model = alpaca.Alpaca(
        encoder=Mlp(tuple(weights), tuple(biases), "relu", "tanh"),
        prior_mean=tensor(mean),
        prior_cov=tensor(factor @ factor.T),
        noise_variance=tensor(noise),
        x_offset=tensor(x_scaling[0]),
        x_scale=tensor(x_scaling[1]),
        y_offset=tensor(y_scaling[0]),
        y_scale=tensor(y_scaling[1]),
        lags=lags,
        hazard=0.1,
    )

    def draw(rng, steps):
        angle = np.arange(steps)[:, None] + np.arange(y_dim)
        turned = np.where(np.arange(steps)[:, None] < steps // 2, np.sin(angle), np.cos(2 * angle))
        y = y_scaling[0] + y_scaling[1] * (turned + 0.3 * rng.normal(size=(steps, y_dim)))
        return rng.normal(size=(steps, x_dim)), y

    truth = regressions.Lagged(plain, x_scaling, lags)
    return Case(f"alpaca-lags-{x_dim}", model, np.zeros(y_dim), np.ones(y_dim), truth, draw)


def linear_case(y_dim: int = 2, x_dim: int = 2) -> Case:
    y_scaling = irregular(y_dim, seed=8), 1.2 + 0.5 * irregular(y_dim, seed=9)
    x_scaling = irregular(x_dim, seed=10), 1.2 + 0.5 * irregular(x_dim, seed=11)
    model = linear.Linear(y_dim=y_dim, x_dim=x_dim, level=2.5, slope=0.8, alpha=1.7, beta=1.2)
    noise = regressions.Noise(np.array(1.7), np.array(1.2))
    variances = np.array([2.5] + [0.8] * x_dim)
    truth = regressions.Linear(y_scaling, x_scaling, variances, noise)
    weights = irregular(x_dim, y_dim, seed=12)

    def draw(rng, steps):
        x = x_scaling[0] + x_scaling[1] * rng.normal(size=(steps, x_dim))
        sign = np.where(np.arange(steps) < steps // 2, 1, -2)[:, None]
        return x, y_scaling[0] + sign * (x @ weights) + 0.3 * rng.normal(size=(steps, y_dim))

    location, scale = (np.concatenate(pair) for pair in zip(y_scaling, x_scaling, strict=True))
    return Case("linear", model, location, scale, truth, draw)


def autoregressive_case(
    name: str, order: int, y_dim: int = 1, trend: bool = False, season: int = 0
) -> Case:
    location, scale = irregular(y_dim, seed=13), 1.2 + 0.5 * irregular(y_dim, seed=14)
    priors = {"level": 2.5, "lag": 0.4, "slope": 0.9, "swing": 0.3, "alpha": 1.7, "beta": 1.2}
    sizes = {"order": order, "y_dim": y_dim, "trend": trend, "season": season}
    model = linear.Autoregressive(**sizes, **priors)
    sines = min(season - 1, 6) if season else 0
    variances = [2.5] + [0.4 / y_dim] * (order * y_dim) + [0.3] * sines + [0.9] * trend
    noise = regressions.Noise(np.array(1.7), np.array(1.2))
    truth = regressions.Autoregressive(
        (location, scale), np.array(variances), noise, order, season, trend
    )

    def draw(rng, steps):
        time = np.arange(steps)[:, None]
        level = np.where(time < steps // 2, 0.1 * time, 3 + np.sin(2 * time))
        return np.zeros((steps, 0)), location + scale * (rng.normal(size=(steps, y_dim)) + level)

    return Case(name, model, location, scale, truth, draw)


def averaged_case(y_dim: int) -> Case:
    """A level, then a line through a walk."""
    location, scale, told = _averaged(y_dim)
    model = averaged.Averaged(y_dim=y_dim, **told)
    noise = regressions.Noise(np.array(told["alpha"]), np.array(told["beta"]))
    seconds = 1.0, told["slope"], told["autoregression"]
    truth = regressions.Averaged((location, scale), told["kappa"], seconds, noise)
    return Case(f"averaged-{y_dim}", model, location, scale, truth, _walking(location, scale))


def robust_averaged_case(y_dim: int) -> Case:
    """The same series."""
    location, scale, told = _averaged(y_dim)
    model = robust_averaged.RobustAveraged(y_dim=y_dim, **told)
    draw = _walking(location, scale)
    return Case(f"robust-averaged-{y_dim}", model, location, scale, None, draw)


def joint_case(y_dim: int) -> Case:
    """The same series with an output that follows the first."""
    location, scale, told = _averaged(y_dim)
    walking = _walking(location, scale)

    def draw(rng, steps):
        x, y = walking(rng, steps)
        y[1:, -1] = location[-1] + scale[-1] * (0.9 * (y[:-1, 0] - location[0]) / scale[0])
        y[:, -1] += 0.3 * scale[-1] * rng.normal(size=steps)
        return x, y

    return Case(f"joint-{y_dim}", joint.Joint(y_dim=y_dim, **told), location, scale, None, draw)


def fleet_case(x_dim: int, lags: int = 2, y_dim: int = 2) -> Case:
    """The same series; what was learned is of inputs and of labels before, or of these alone."""
    location, scale, told = _averaged(y_dim)
    sizes = [x_dim + lags * y_dim, 6, 4]
    layers = [
        (tensor(0.6 * irregular(b, a, seed=b)), tensor(0.3 * irregular(b, seed=a)))
        for a, b in zip(sizes[:-1], sizes[1:], strict=True)
    ]
    linear = tensor(irregular(y_dim, sizes[0], seed=17)), tensor(irregular(y_dim, seed=18))
    features = sizes[-1] + y_dim
    factor = 0.5 * irregular(features, features, seed=6)
    model = Fleet(
        y_dim=y_dim,
        encoder=Mlp(*zip(*layers, strict=True), "relu", "tanh", linear),
        x_offset=tensor(irregular(x_dim, seed=1)),
        x_scale=tensor(1.2 + 0.5 * irregular(x_dim, seed=2)),
        prior_mean=tensor(0.3 * irregular(features, y_dim, seed=5)),
        prior_cov=tensor(factor @ factor.T),
        noise_alpha=tensor(np.linspace(1.8, 2.4, y_dim)),
        noise_beta=tensor(np.linspace(0.3, 0.5, y_dim)),
        lags=lags,
        chance=0.4,
        **told,
    )
    walking = _walking(location, scale)

    def draw(rng, steps):
        return rng.normal(size=(steps, x_dim)), walking(rng, steps)[1]

    return Case(f"fleet-{x_dim}", model, location, scale, None, draw)


def _averaged(y_dim: int) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
    location, scale = irregular(y_dim, seed=15), 1.2 + 0.5 * irregular(y_dim, seed=16)
    told = {"kappa": 0.7, "slope": 4.0, "autoregression": 9.0, "alpha": 1.8, "beta": 0.6}
    return location, scale, told


def _walking(location: np.ndarray, scale: np.ndarray) -> Draw:
    def draw(rng, steps):
        time, noise = np.arange(steps)[:, None], rng.normal(size=(steps, len(location)))
        late = 0.3 * time + 0.5 * noise.cumsum(0)
        return np.zeros((steps, 0)), location + scale * np.where(time < steps // 2, noise, late)

    return draw
