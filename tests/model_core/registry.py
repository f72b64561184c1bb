"""Small instances of every model: built on demand, by name, each beside its reference.

Contracts are tests over `NAMES`, or over `PROVEN`, the models whose windows have a likelihood.
Weights are the same wherever the tests run: no library's generator decides them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from model_core import filter as moca
from model_core.encoder import Mlp
from model_core.filter import Prior
from model_core.upm import conjugate, linear, lstm, pcoc
from model_core.upm.alpaca import Alpaca, NoisePrior
from model_core.upm.alpaca_mixture import AlpacaMixture
from model_core.upm.averaged import Averaged
from model_core.upm.base import UnderlyingModel
from model_core.upm.conjugate import Poisson
from model_core.upm.fleet import Fleet
from model_core.upm.gamma import Gamma
from model_core.upm.joint import Joint
from model_core.upm.multivariate import Multivariate
from tests.model_core import references
from tests.model_core.references import Reference

Draw = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]


class Case(NamedTuple):
    """A model, one stream's location and scale, the reference, and labels it may well see.

    reference: of windows, None where a window has no likelihood of its own.
    """

    name: str
    model: UnderlyingModel
    location: np.ndarray
    scale: np.ndarray
    reference: Reference | None
    draw: Draw

    def prior(self, batch: int = 1) -> Prior:
        location = tensor(np.tile(self.location, (batch, 1)))
        return moca.make_prior(self.model, location, tensor(np.tile(self.scale, (batch, 1))))


def tensor(value) -> Tensor:
    return torch.as_tensor(np.asarray(value), dtype=torch.float64)


def irregular(*shape: int, seed: int) -> np.ndarray:
    """Numbers of both signs, of variance about one."""
    return 1.4 * np.sin(seed + 12.9898 * np.arange(np.prod(shape)) ** 1.5).reshape(shape)


def covariance(factor: Tensor) -> Tensor:
    """`S S'`, symmetric to the bit as an artifact's is: half of it is stored."""
    square = factor @ factor.mT
    return 0.5 * (square + square.mT)


def make(name: str, model: UnderlyingModel, draw: Draw, location=None, scale=None) -> Case:
    """A case beside the reference of its model's class; location and scale default to 0 and 1."""
    location = np.zeros(model.scaled) if location is None else np.asarray(location)
    scale = np.ones(model.scaled) if scale is None else np.asarray(scale)
    reference = references.of(model, location, scale)
    return Case(name, model, location, scale, reference, draw)


def halves(steps: int) -> np.ndarray:
    """Whether a step (T, 1) is of the second regime."""
    return (np.arange(steps) >= steps // 2)[:, None]


def without_inputs(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((len(y), 0)), y.astype(float)


# --- conjugate ------------------------------------------------------------------------------------


def gaussian(y_dim: int = 1) -> Case:
    location, scale = np.linspace(-1, 4, y_dim), np.linspace(2, 0.5, y_dim)

    def draw(rng, steps):
        level = np.where(halves(steps), 3, 0)
        return without_inputs(location + scale * (rng.normal(size=(steps, y_dim)) + level))

    model = conjugate.Gaussian(y_dim=y_dim, kappa=0.4, alpha=1.7, beta=1.2)
    return make(f"gaussian-{y_dim}", model, draw, location, scale)


def multivariate_case(y_dim: int = 2) -> Case:
    """Correlated outputs, which turn round in the second half."""
    location, scale = np.linspace(-1, 4, y_dim), np.linspace(2, 0.5, y_dim)
    mixing = np.eye(y_dim) + 0.8 * irregular(y_dim, y_dim, seed=8)

    def draw(rng, steps):
        noise, late = rng.normal(size=(steps, y_dim)), halves(steps)
        mixed = np.where(late, 2 + noise @ mixing.T, noise @ mixing)
        return without_inputs(location + scale * mixed)

    model = Multivariate(y_dim=y_dim, kappa=0.4, alpha=1.7, beta=1.2)
    return make(f"multivariate-{y_dim}", model, draw, location, scale)


def poisson() -> Case:
    """Counts that jump by a factor of 60."""
    factors, weights, strange = (0.02, 0.9, 40.0), (0.2, 0.7, 0.1), (0.25, 0.35, 0.4)

    def draw(rng, steps):
        return without_inputs(rng.poisson(np.where(halves(steps), 120, 2)))

    model = Poisson(shape=0.8, factors=factors, weights=weights, outlier_weights=strange)
    return make("poisson", model, draw, [2.5])


def bernoulli() -> Case:
    def draw(rng, steps):
        return without_inputs(rng.random((steps, 1)) < np.where(halves(steps), 0.9, 0.1))

    return make("bernoulli", conjugate.BernoulliModel(ones=0.7, zeros=1.4), draw)


def categorical(classes: int = 3) -> Case:
    def draw(rng, steps):
        rare, other = rng.random((steps, 1)) < 0.2, rng.integers(0, classes, (steps, 1))
        return without_inputs(np.where(rare, other, np.where(halves(steps), classes - 1, 0)))

    model = conjugate.CategoricalModel(classes=classes, concentration=0.8)
    return make("categorical", model, draw)


def exponential() -> Case:
    def draw(rng, steps):
        return without_inputs(rng.exponential(np.where(halves(steps), 20, 1.5)))

    return make("exponential", conjugate.Exponential(shape=2.3), draw, [3.2])


def gamma() -> Case:
    """Durations that become more regular."""

    def draw(rng, steps):
        shape = np.where(halves(steps), 9.0, 1.5)
        return without_inputs(rng.gamma(shape, 4.0 / shape))

    return make("gamma", Gamma(shapes=(1.0, 3.0, 11.0), prior_shape=2.3), draw, [3.2])


# --- regressions ----------------------------------------------------------------------------------


def network(*sizes: int, last: str = "identity", linear: int = 0) -> Mlp:
    """Irregular layers with ReLU between them, and features linear in the inputs."""
    pairs = list(pairwise(sizes))
    weights = tuple(tensor(0.8 * irregular(b, a, seed=a + b)) for a, b in pairs)
    biases = tuple(tensor(0.3 * irregular(b, seed=b)) for b in sizes[1:])
    shares = tensor(irregular(linear, sizes[0], seed=17)), tensor(irregular(linear, seed=18))
    return Mlp(weights, biases, "relu", last, shares if linear else None)


def scaling(x_dim: int, y_dim: int) -> dict[str, Tensor]:
    """Of inputs and labels, as models with an encoder have it."""
    return {
        "x_offset": tensor(irregular(x_dim, seed=1)),
        "x_scale": tensor(1.2 + 0.5 * irregular(x_dim, seed=2)),
        "y_offset": tensor(irregular(y_dim, seed=3)),
        "y_scale": tensor(1.2 + 0.5 * irregular(y_dim, seed=4)),
    }


def noise_prior(y_dim: int, size: tuple[int, ...] = ()) -> NoisePrior:
    one = torch.ones(*size, 1, dtype=torch.float64)
    alpha, beta = tensor(np.linspace(1.8, 2.4, y_dim)), tensor(np.linspace(0.3, 0.5, y_dim))
    spread = tensor(1 + 0.1 * irregular(*size, 1, seed=23)) if size else one
    return NoisePrior(alpha * spread, beta * spread)


def alpaca_case(
    y_dim: int = 1, features: int = 5, *, x_dim: int = 2, lags: int = 0, noisy: bool = False
) -> Case:
    """lags: labels before that are inputs, with others or alone; labels go round in a circle."""
    scaled, factor = scaling(x_dim, y_dim), tensor(0.5 * irregular(features, features, seed=6))
    model = Alpaca(
        encoder=network(x_dim + lags * y_dim, 6, features, last="tanh"),
        prior_mean=tensor(0.3 * irregular(features, y_dim, seed=5)),
        prior_cov=covariance(factor),
        noise_variance=None if noisy else tensor(0.25 + 0.1 * irregular(y_dim, seed=7)),
        noise_prior=noise_prior(y_dim) if noisy else None,
        lags=lags,
        hazard=0.1,
        **scaled,
    )
    offset, scale = scaled["y_offset"].numpy(), scaled["y_scale"].numpy()

    def draw(rng, steps):
        noise = rng.normal(size=(steps, y_dim))
        angle = np.arange(steps)[:, None] + np.arange(y_dim)
        circle = np.where(halves(steps), np.cos(2 * angle), np.sin(angle)) + 0.3 * noise
        return rng.normal(size=(steps, x_dim)), offset + scale * (circle if lags else noise)

    name = f"alpaca-lags-{x_dim}" if lags else f"alpaca{'-unknown' * noisy}-{y_dim}"
    return make(name, model, draw)


def alpaca_mixture_case(y_dim: int = 1, features: int = 4, *, noisy: bool = False) -> Case:
    """Three types, whose means, covariances and noise differ; labels of one after the other."""
    plain, size = alpaca_case(y_dim, features), 3
    factor = tensor(0.4 * irregular(size, features, features, seed=22))
    mean, noise = 0.8 * irregular(size, features, y_dim, seed=21), irregular(size, y_dim, seed=23)
    model = AlpacaMixture(
        encoder=plain.model.encoder,
        log_weight=tensor([0.5, 0.3, 0.2]).log(),
        prior_mean=tensor(mean),
        prior_cov=covariance(factor),
        noise_variance=None if noisy else tensor(0.25 + 0.1 * noise),
        noise_prior=noise_prior(y_dim, (size,)) if noisy else None,
        hazard=0.1,
        **scaling(2, y_dim),
    )
    offset, scale = model.y_offset.numpy(), model.y_scale.numpy()

    def draw(rng, steps):
        x, noise = rng.normal(size=(steps, 2)), rng.normal(size=(steps, y_dim))
        phi = plain.reference.features(x, None)
        fitted = np.where(halves(steps), phi @ mean[2], phi @ mean[0])
        return x, offset + scale * (fitted + 0.5 * noise)

    return make(f"alpaca-mixture{'-unknown' * noisy}-{y_dim}", model, draw)


def linear_case(y_dim: int = 2, x_dim: int = 2) -> Case:
    location = irregular(y_dim + x_dim, seed=8)
    scale, weights = 1.2 + 0.5 * irregular(y_dim + x_dim, seed=9), irregular(x_dim, y_dim, seed=12)

    def draw(rng, steps):
        x = location[y_dim:] + scale[y_dim:] * rng.normal(size=(steps, x_dim))
        fitted = np.where(halves(steps), -2, 1) * (x @ weights)
        return x, location[:y_dim] + fitted + 0.3 * rng.normal(size=(steps, y_dim))

    model = linear.Linear(y_dim=y_dim, x_dim=x_dim, level=2.5, slope=0.8, alpha=1.7, beta=1.2)
    return make("linear", model, draw, location, scale)


def autoregressive_case(name: str, **sizes) -> Case:
    model = linear.Autoregressive(
        **sizes, level=2.5, lag=0.4, slope=0.9, swing=0.3, alpha=1.7, beta=1.2
    )
    location, scale = of_outputs(model.y_dim)

    def draw(rng, steps):
        time = np.arange(steps)[:, None]
        level = np.where(halves(steps), 3 + np.sin(2 * time), 0.1 * time)
        return without_inputs(location + scale * (rng.normal(size=(steps, model.y_dim)) + level))

    return make(name, model, draw, location, scale)


# --- whose memory depends on the belief: a whole filter is beside them, see `loops` ---------------

PRIORS = {"kappa": 0.7, "slope": 40.0, "autoregression": 9.0, "alpha": 2.8, "beta": 1.6}


def of_outputs(y_dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Locations and scales."""
    return irregular(y_dim, seed=15), 1.2 + 0.5 * irregular(y_dim, seed=16)


def walking(y_dim: int, x_dim: int = 0, follows: bool = False) -> Draw:
    """A level, then a line through a walk. follows: the last output does so to the first."""
    location, scale = of_outputs(y_dim)

    def draw(rng, steps):
        time, noise = np.arange(steps)[:, None], rng.normal(size=(steps, y_dim))
        z = np.where(halves(steps), 0.3 * time + 0.5 * noise.cumsum(0), noise)
        if follows:
            z[1:, -1] = 0.9 * z[:-1, 0]
            z[:, -1] += 0.3 * rng.normal(size=steps)
        return rng.normal(size=(steps, x_dim)), location + scale * z

    return draw


def averaged_case(y_dim: int) -> Case:
    model = Averaged(y_dim=y_dim, **PRIORS)
    return make(f"averaged-{y_dim}", model, walking(y_dim), *of_outputs(y_dim))


def joint_case(y_dim: int = 2) -> Case:
    draw = walking(y_dim, follows=True)
    return make(f"joint-{y_dim}", Joint(y_dim=y_dim, **PRIORS), draw, *of_outputs(y_dim))


def fleet_case(x_dim: int, lags: int = 2, y_dim: int = 2) -> Case:
    """What was learned is of inputs and of labels before, or of these alone."""
    features, scaled = 4 + y_dim, scaling(x_dim, y_dim)
    factor, noise = tensor(0.5 * irregular(features, features, seed=6)), noise_prior(y_dim)
    model = Fleet(
        y_dim=y_dim,
        encoder=network(x_dim + lags * y_dim, 6, 4, last="tanh", linear=y_dim),
        x_offset=scaled["x_offset"],
        x_scale=scaled["x_scale"],
        prior_mean=tensor(0.3 * irregular(features, y_dim, seed=5)),
        prior_cov=covariance(factor),
        noise_alpha=noise.alpha,
        noise_beta=noise.beta,
        lags=lags,
        chance=0.4,
        **PRIORS,
    )
    return make(f"fleet-{x_dim}", model, walking(y_dim, x_dim), *of_outputs(y_dim))


# --- learned otherwise ----------------------------------------------------------------------------


def pcoc_case(classes: int = 3, features: int = 4) -> Case:
    """Classes whose means and frequencies move between regimes."""
    size, scaled = (classes, features), scaling(3, 1)
    model = pcoc.Pcoc(
        encoder=network(3, 5, features),
        prior_mean=tensor(irregular(*size, seed=8)),
        prior_precision=tensor(np.exp(0.5 * irregular(*size, seed=9))),
        noise_variance=tensor(np.exp(0.5 * irregular(*size, seed=10))),
        dirichlet=tensor(np.exp(irregular(classes, seed=11))),
        x_offset=scaled["x_offset"],
        x_scale=scaled["x_scale"],
        hazard=0.1,
    )

    def draw(rng, steps):
        late, two = halves(steps), rng.integers(2, size=(steps, 1))
        y = np.where(late, rng.integers(classes, size=(steps, 1)), two)
        return np.where(late, 1 - y, y) + rng.normal(size=(steps, 3)), y.astype(float)

    return make(f"pcoc-{classes}", model, draw)


def lstm_case(y_dim: int = 2, features: int = 3, hidden: int = 4) -> Case:
    scaled = scaling(2, y_dim)
    model = lstm.Lstm(
        encoder=network(2, 6, features),
        weight_ih=tensor(irregular(4 * hidden, features + y_dim, seed=13)),
        weight_hh=tensor(irregular(4 * hidden, hidden, seed=14)),
        bias_ih=tensor(irregular(4 * hidden, seed=15)),
        bias_hh=tensor(irregular(4 * hidden, seed=16)),
        decoder=network(hidden + features, 5, 2 * y_dim),
        hazard=0.1,
        **scaled,
    )
    offset, scale = scaled["y_offset"].numpy(), scaled["y_scale"].numpy()

    def draw(rng, steps):
        return rng.normal(size=(steps, 2)), offset + scale * rng.normal(size=(steps, y_dim))

    return make(f"lstm-{y_dim}", model, draw)


BUILDERS: dict[str, Callable[[], Case]] = {
    "gaussian-1": gaussian,
    "gaussian-3": lambda: gaussian(3),
    "multivariate-2": multivariate_case,
    "poisson": poisson,
    "bernoulli": bernoulli,
    "categorical": categorical,
    "exponential": exponential,
    "gamma": gamma,
    "alpaca-1": alpaca_case,
    "alpaca-2": lambda: alpaca_case(2),
    "alpaca-unknown-1": lambda: alpaca_case(1, noisy=True),
    "alpaca-unknown-2": lambda: alpaca_case(2, noisy=True),
    "alpaca-mixture-1": alpaca_mixture_case,
    "alpaca-mixture-unknown-2": lambda: alpaca_mixture_case(2, noisy=True),
    "alpaca-lags-1": lambda: alpaca_case(2, 4, x_dim=1, lags=2),
    "alpaca-lags-0": lambda: alpaca_case(2, 4, x_dim=0, lags=2),
    "linear": linear_case,
    "autoregressive-lags": lambda: autoregressive_case("autoregressive-lags", order=2, y_dim=2),
    "autoregressive-all": lambda: autoregressive_case(
        "autoregressive-all", order=2, trend=True, season=5
    ),
    "pcoc-3": pcoc_case,
    "lstm-2": lstm_case,
    "averaged-1": lambda: averaged_case(1),
    "averaged-2": lambda: averaged_case(2),
    "joint-2": joint_case,
    "fleet-2": lambda: fleet_case(2),
    "fleet-0": lambda: fleet_case(0),
}
NAMES = tuple(BUILDERS)
BELIEVING = NAMES[-5:]
PROVEN = NAMES[:-5]


@cache
def case(name: str) -> Case:
    # Whichever test asks first: tensors made in inference mode would never have a gradient.
    with torch.inference_mode(False):
        return BUILDERS[name]()
