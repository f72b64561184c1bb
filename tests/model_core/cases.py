"""Small instances of every model, each beside its reference, and how to run the filter on them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from model_core import filter as moca
from model_core.filter import FilterState, Info, Inputs, Prior
from model_core.upm import conjugate, multivariate
from model_core.upm.base import UnderlyingModel
from model_core.upm.mixed_poisson import MixedPoisson
from tests.model_core import reference
from tests.model_core.case import Case, irregular, tensor
from tests.model_core.learned_cases import lstm_case, pcoc_case
from tests.model_core.reference import Series
from tests.model_core.regression_cases import (
    alpaca_case,
    alpaca_mixture_case,
    autoregressive_case,
    averaged_case,
    fleet_case,
    joint_case,
    lagged_case,
    linear_case,
    noisy_alpaca_case,
    robust_averaged_case,
)


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


def mixed_poisson() -> Case:
    """Counts that jump by a factor of 60."""
    location, shape = np.array([2.5]), 0.8
    factors, weights, strange = (0.02, 0.9, 40.0), (0.2, 0.7, 0.1), (0.25, 0.35, 0.4)

    def draw(rng, steps):
        rate = np.where(np.arange(steps) < steps // 2, 2, 120)[:, None]
        return np.zeros((steps, 0)), rng.poisson(rate).astype(float)

    told = {"shape": shape, "factors": factors, "weights": weights, "outlier_weights": strange}
    truth = reference.MixedPoisson(location, shape, factors, weights, strange)
    model = MixedPoisson(**told)
    return Case("mixed-poisson", model, location, np.ones(1), truth, draw)


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


CASES = [
    gaussian(1),
    gaussian(3),
    multivariate_case(),
    poisson(),
    mixed_poisson(),
    bernoulli(),
    categorical(),
    exponential(),
    alpaca_case(1),
    alpaca_case(2),
    noisy_alpaca_case(1),
    noisy_alpaca_case(2),
    alpaca_mixture_case(1),
    alpaca_mixture_case(2, noisy=True),
    lagged_case(1),
    lagged_case(0),
    linear_case(),
    autoregressive_case("autoregressive-lags", order=2, y_dim=2),
    autoregressive_case("autoregressive-all", order=2, trend=True, season=5),
    averaged_case(1),
    averaged_case(2),
    pcoc_case(),
    lstm_case(),
]
# What these remember of labels depends on the belief: no window has a likelihood of its own. They
# are beside a whole filter in `test_robust_averaged` and `test_joint`; see `test_fleet`, too.
BELIEVING = [
    robust_averaged_case(1),
    robust_averaged_case(2),
    joint_case(2),
    fleet_case(2),
    fleet_case(0),
]
EVERY = [*CASES, *BELIEVING]
BY_NAME = {case.name: case for case in EVERY}


def series(
    case: Case, seed: int, steps: int, hazard: float | tuple[float, ...] = 0.1, **told
) -> Series:
    """Random observations and their inputs of a step: a number, or one for each step.

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
