"""Small instances of every model, each beside its reference, and how to run the filter on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from model_core import filter as moca
from model_core.encoder import Mlp
from model_core.filter import FilterState, Info, Inputs, Prior
from model_core.upm import alpaca, conjugate, linear, multivariate
from model_core.upm.base import UnderlyingModel
from tests.model_core import reference
from tests.model_core.case import Case, irregular, tensor
from tests.model_core.learned_cases import lstm_case, pcoc_case
from tests.model_core.reference import Series


def gaussian(y_dim: int) -> Case:
    location, scale = np.linspace(-1, 4, y_dim), np.linspace(2, 0.5, y_dim)
    kappa, alpha, beta = 0.4, 1.7, 1.2

    def draw(rng, steps):
        level = np.where(np.arange(steps) < steps // 2, 0, 3)[:, None]
        return np.zeros((steps, 0)), location + scale * (rng.normal(size=(steps, y_dim)) + level)

    model = conjugate.Gaussian(y_dim=y_dim, kappa=kappa, alpha=alpha, beta=beta)
    truth = reference.Gaussian(location, scale, kappa, alpha, beta)
    return Case(f"gaussian-{y_dim}", model, location, scale, truth, draw)


def poisson() -> Case:
    location, shape = np.array([6.5]), 1.3

    def draw(rng, steps):
        rate = np.where(np.arange(steps) < steps // 2, 2, 15)[:, None]
        return np.zeros((steps, 0)), rng.poisson(rate).astype(float)

    truth = reference.Poisson(location, shape)
    return Case("poisson", conjugate.Poisson(shape=shape), location, np.ones(1), truth, draw)


def bernoulli() -> Case:
    ones, zeros = 0.7, 1.4

    def draw(rng, steps):
        rate = np.where(np.arange(steps) < steps // 2, 0.1, 0.9)[:, None]
        return np.zeros((steps, 0)), (rng.random((steps, 1)) < rate).astype(float)

    model = conjugate.BernoulliModel(ones=ones, zeros=zeros)
    one = np.ones(1)
    return Case("bernoulli", model, 0 * one, one, reference.Bernoulli(ones, zeros), draw)


def multivariate_case(y_dim: int = 2) -> Case:
    """Correlated outputs, which turn round in the second half."""
    location, scale = np.linspace(-1, 4, y_dim), np.linspace(2, 0.5, y_dim)
    kappa, alpha, beta = 0.4, 1.7, 1.2
    mixing = np.eye(y_dim) + 0.8 * irregular(y_dim, y_dim, seed=8)

    def draw(rng, steps):
        late = (np.arange(steps) >= steps // 2)[:, None]
        level, noise = np.where(late, 2, 0), rng.normal(size=(steps, y_dim))
        drawn = np.where(late, noise @ mixing.T, noise @ mixing)
        return np.zeros((steps, 0)), location + scale * (level + drawn)

    model = multivariate.Multivariate(y_dim=y_dim, kappa=kappa, alpha=alpha, beta=beta)
    truth = reference.Multivariate(location, scale, kappa, alpha, beta)
    return Case(f"multivariate-{y_dim}", model, location, scale, truth, draw)


def categorical(classes: int = 3) -> Case:
    concentration, one = 0.8, np.ones(1)

    def draw(rng, steps):
        late = (np.arange(steps) >= steps // 2)[:, None]
        rare, other = (rng.random((steps, 1)) < 0.2), rng.integers(0, classes, (steps, 1))
        return np.zeros((steps, 0)), np.where(rare, other, np.where(late, classes - 1, 0)) * 1.0

    model = conjugate.CategoricalModel(classes=classes, concentration=concentration)
    truth = reference.Categorical(classes, concentration)
    return Case("categorical", model, 0 * one, one, truth, draw)


def exponential() -> Case:
    location, shape = np.array([3.2]), 2.3

    def draw(rng, steps):
        mean = np.where(np.arange(steps) < steps // 2, 1.5, 20)[:, None]
        return np.zeros((steps, 0)), rng.exponential(mean)

    truth = reference.Exponential(location, shape)
    model = conjugate.Exponential(shape=shape)
    return Case("exponential", model, location, np.ones(1), truth, draw)


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
    truth = reference.Alpaca(layers, mean, factor, noise, x_scaling, y_scaling)
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
    truth = reference.NoisyAlpaca(known.reference, reference.Noise(alpha, beta))
    return known._replace(name=f"alpaca-unknown-{y_dim}", model=model, reference=truth)


def linear_case(y_dim: int = 2, x_dim: int = 2) -> Case:
    y_scaling = irregular(y_dim, seed=8), 1.2 + 0.5 * irregular(y_dim, seed=9)
    x_scaling = irregular(x_dim, seed=10), 1.2 + 0.5 * irregular(x_dim, seed=11)
    model = linear.Linear(y_dim=y_dim, x_dim=x_dim, level=2.5, slope=0.8, alpha=1.7, beta=1.2)
    noise = reference.Noise(np.array(1.7), np.array(1.2))
    variances = np.array([2.5] + [0.8] * x_dim)
    truth = reference.Linear(y_scaling, x_scaling, variances, noise)
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
    noise = reference.Noise(np.array(1.7), np.array(1.2))
    truth = reference.Autoregressive(
        (location, scale), np.array(variances), noise, order, season, trend
    )

    def draw(rng, steps):
        time = np.arange(steps)[:, None]
        level = np.where(time < steps // 2, 0.1 * time, 3 + np.sin(2 * time))
        return np.zeros((steps, 0)), location + scale * (rng.normal(size=(steps, y_dim)) + level)

    return Case(name, model, location, scale, truth, draw)


CASES = [
    gaussian(1),
    gaussian(3),
    multivariate_case(),
    poisson(),
    bernoulli(),
    categorical(),
    exponential(),
    alpaca_case(1),
    alpaca_case(2),
    noisy_alpaca_case(1),
    noisy_alpaca_case(2),
    linear_case(),
    autoregressive_case("autoregressive-lags", order=2, y_dim=2),
    autoregressive_case("autoregressive-all", order=2, trend=True, season=5),
    pcoc_case(),
    lstm_case(),
]
BY_NAME = {case.name: case for case in CASES}


def series(
    case: Case, seed: int, steps: int, hazard: float | tuple[float, ...] = 0.1, **told
) -> Series:
    """Random observations, and what is told with them: a number, or one for each step.

    A hazard that is a tuple is a table by run length, the same at every step.
    """
    x, y = case.draw(np.random.default_rng(seed), steps)
    plain = {"labelled": True, "elapsed": 1.0, "changepoint": np.nan, "outlier_rate": 0.0}
    full = {name: np.resize(v, steps) for name, v in {**plain, **told}.items()}
    by_run_length = isinstance(hazard, tuple)
    table = np.tile(hazard, (steps, 1)) if by_run_length else np.resize(hazard, steps)
    return Series(x, y, hazard=table, **full)


def inputs(batch: list[Series], t: int) -> Inputs:
    """Step `t` of several streams; labels that are missing are nan."""
    x = tensor([each.x[t] for each in batch])
    labelled = torch.tensor([bool(each.labelled[t]) for each in batch])
    y = tensor([each.y[t] if each.labelled[t] else np.nan * each.y[t] for each in batch])
    elapsed, changepoint, rate = (
        tensor([getattr(each, name)[t] for each in batch])
        for name in ("elapsed", "changepoint", "outlier_rate")
    )
    tables = [np.atleast_1d(each.hazard[t]) for each in batch]
    longest = max(map(len, tables))
    hazard = tensor([np.pad(each, (0, longest - len(each)), "edge") for each in tables])
    told = hazard, elapsed, changepoint, rate
    return Inputs(x if x.shape[-1] else None, y, labelled, *told)


class Step(NamedTuple):
    """Input of one step and what came of it."""

    inputs: Inputs
    state: FilterState
    info: Info


def run(
    case: Case, batch: list[Series], max_hypotheses: int, state: FilterState | None = None
) -> list[Step]:
    """The filter over all steps of several streams of one length."""
    prior = case.prior(len(batch))
    return list(walk(case.model, prior, batch, max_hypotheses, state))


def walk(
    model: UnderlyingModel,
    prior: Prior,
    batch: list[Series],
    max_hypotheses: int,
    state: FilterState | None = None,
) -> Iterable[Step]:
    """Yield the steps of several streams one by one."""
    state = moca.init(prior, max_hypotheses) if state is None else state
    for t in range(len(batch[0].y)):
        now = inputs(batch, t)
        state, info = moca.step(model, state, prior, now)
        yield Step(now, state, info)


def by_start(state: FilterState, value: Tensor, row: int = 0) -> dict[int, float]:
    """Values (B, S) of one stream's hypotheses, by the position at which each starts."""
    alive = torch.isfinite(state.belief.log_prob[row])
    starts = state.seq[row] - 1 - state.belief.run_length[row]
    return dict(zip(starts[alive].tolist(), value[row, alive].tolist(), strict=True))
