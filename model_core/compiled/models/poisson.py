"""`upm.poisson.Poisson`: counts with an unknown rate.

Rows of `params`: mean, variance, shape; then of each part: mean, log weight, log mass of the label
with it. The last column is the outliers'.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from model_core.compiled import LABEL, LABELLED, arithmetic, counts, mixture, step
from model_core.compiled.jit import Floats, compiled, implements
from model_core.compiled.models.student_t import fold
from model_core.upm import poisson

FIRST = 3


class Poisson(NamedTuple):
    """Rows of the statistics: shape, exposure; then the prior's shape and of each part three.

    factors, log_weights, outlier_log_weights: (k) tuples.
    """

    rows: int
    kept: int
    params: int
    statistics: int
    parts: int
    outliers: int
    spare: int
    shape: float
    factors: tuple[float, ...]
    log_weights: tuple[float, ...]
    outlier_log_weights: tuple[float, ...]


def of(model: poisson.Poisson) -> Poisson:
    """Dimensions of a model."""
    parts = len(model.factors)
    logs = (tuple(map(math.log, each)) for each in (model.weights, model.outlier_weights))
    return Poisson(
        2, 2, FIRST + 3 * parts, 2, parts, 1, counts.FIELDS, model.shape, model.factors, *logs
    )


@implements(step.predict, Poisson)
def predict(
    model: Poisson,
    number: Floats,
    context: Floats,
    location: Floats,
    own: Floats,
    params: Floats,
) -> None:
    """Negative binomials of the posterior's shape and means; outliers have other weights."""
    last = len(model.factors) - 1
    least = model.shape / (model.factors[last] * context[0])
    for k in range(len(model.factors)):
        _predict_part(
            model.shape / (model.factors[k] * context[0]),
            least,
            model.shape * math.log(model.factors[k]),
            model.log_weights[k],
            model.outlier_log_weights[k],
            own,
            params[FIRST + k],
            params[FIRST + model.parts + k],
        )
    arithmetic.copy(own[0], params[2])
    _normalise(model.parts, params)


@compiled
def _predict_part(
    start: float,
    least: float,
    log_prior: float,
    log_weight: float,
    outlier: float,
    own: Floats,
    mean: Floats,
    logs: Floats,
) -> None:
    shape, exposure = own[0], own[1]
    for i in range(shape.shape[0]):
        mean[i] = shape[i] / (start + exposure[i])
    for i in range(shape.shape[0]):
        seen = shape[i] * arithmetic.log1p((start - least) / (least + exposure[i]))
        logs[i] = log_weight - log_prior - seen
    logs[shape.shape[0] - 1] += outlier - log_weight


@compiled
def _normalise(parts: int, params: Floats) -> None:
    """Log weights that sum to one."""
    logs, total = params[FIRST + parts : FIRST + 2 * parts], params[0]
    fold(logs, params[1], total)
    for k in range(parts):
        for i in range(total.shape[0]):
            logs[k, i] -= total[i]


@implements(step.score, Poisson)
def score(model: Poisson, number: Floats, own: Floats, params: Floats, each: Floats) -> None:
    """Log mass of the label."""
    _score(model.parts, number[LABEL], params, each)


@compiled
def _score(parts: int, y: float, params: Floats, each: Floats) -> None:
    masses = params[FIRST + 2 * parts :]
    for k in range(parts):
        counts.log_masses(y, params[2], params[FIRST + k], masses[k])
        for i in range(each.shape[0]):
            masses[k, i] += params[FIRST + parts + k, i]
    fold(masses, params[0], each)


@implements(step.learn, Poisson)
def learn(
    model: Poisson, number: Floats, context: Floats, share: Floats, own: Floats, params: Floats
) -> None:
    """Add the counts and the exposure."""
    y = number[LABEL]
    for i in range(share.shape[0]):
        own[0, i] += share[i] * y
    for i in range(share.shape[0]):
        own[1, i] += share[i]


@implements(step.remember, Poisson)
def remember(model: Poisson, number: Floats, params: Floats, context: Floats) -> None:
    """Nothing."""


@implements(step.summarise, Poisson)
def summarise(
    model: Poisson,
    number: Floats,
    chance: Floats,
    params: Floats,
    levels: Floats,
    spare: Floats,
    out: Floats,
) -> None:
    """As any mixture of negative binomials."""
    label = number[LABEL] if number[LABELLED] > 0 else np.nan
    _summarise(model.parts, label, chance, params, levels, spare, out)


@compiled
def _summarise(
    parts: int,
    label: float,
    chance: Floats,
    params: Floats,
    levels: Floats,
    spare: Floats,
    out: Floats,
) -> None:
    shape, mean, variance, columns = params[2], params[0], params[1], chance.shape[0]
    arithmetic.fill(mean, 0.0)
    arithmetic.fill(variance, 0.0)
    n = 0
    for k in range(parts):
        rate, logs = params[FIRST + k], params[FIRST + parts + k]
        for i in range(columns):
            mean[i] += arithmetic.exp(logs[i]) * rate[i]
    for k in range(parts):
        rate, logs = params[FIRST + k], params[FIRST + parts + k]
        for i in range(columns):
            own = rate[i] + rate[i] * rate[i] / shape[i]
            own += (rate[i] - mean[i]) * (rate[i] - mean[i])
            variance[i] += arithmetic.exp(logs[i]) * own
        for i in range(columns):
            weight = chance[i] * math.exp(logs[i])
            if weight > mixture.NEGLIGIBLE:
                spare[counts.WEIGHT, n] = weight
                spare[counts.SHAPE, n] = shape[i]
                spare[counts.RATE, n] = rate[i]
                n += 1
    mixture.moments(chance, params[:1], params[1:2], columns, out)
    counts.summarise(label, levels, spare, n, out)
