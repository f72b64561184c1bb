"""`upm.conjugate.Exponential`: positive durations with an unknown rate.

Rows of `params`: mean, variance, shape and scale of the Lomax distribution.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from model_core.compiled import LABEL, LABELLED, arithmetic, mixture, step
from model_core.compiled.arithmetic import INF
from model_core.compiled.jit import Floats, compiled, implements
from model_core.compiled.models.student_t import TOLERANCE
from model_core.upm import conjugate
from model_core.upm.conjugate import OUTLIER_SPREAD


class Exponential(NamedTuple):
    """Rows of the statistics: shape, rate."""

    rows: int = 2
    kept: int = 2
    params: int = 4
    statistics: int = 2
    parts: int = 1
    outliers: int = 1
    spare: int = mixture.FIELDS


def of(model: conjugate.Exponential) -> Exponential | None:
    """Dimensions of a model; None where not all predictives have a variance."""
    return Exponential() if model.shape > 2 else None


@implements(step.predict, Exponential)
def predict(
    model: Exponential,
    number: Floats,
    context: Floats,
    location: Floats,
    own: Floats,
    params: Floats,
) -> None:
    """Lomax; an outlier has ten times the scale."""
    arithmetic.copy(own[0], params[2])
    arithmetic.copy(own[1], params[3])
    params[3, own.shape[1] - 1] *= OUTLIER_SPREAD


@implements(step.score, Exponential)
def score(model: Exponential, number: Floats, own: Floats, params: Floats, each: Floats) -> None:
    """Log density of the label; -inf below zero."""
    _score(number[LABEL], params[2], params[3], each)


@compiled
def _score(y: float, shape: Floats, scale: Floats, each: Floats) -> None:
    if y < 0:
        arithmetic.fill(each, -INF)
        return
    for i in range(each.shape[0]):
        each[i] = arithmetic.log(shape[i] / scale[i])
    for i in range(each.shape[0]):
        each[i] -= (shape[i] + 1.0) * arithmetic.log1p(y / scale[i])


@implements(step.learn, Exponential)
def learn(
    model: Exponential,
    number: Floats,
    context: Floats,
    share: Floats,
    own: Floats,
    params: Floats,
) -> None:
    """Count the events and add up the time."""
    y = number[LABEL]
    for i in range(share.shape[0]):
        own[0, i] += share[i]
    for i in range(share.shape[0]):
        own[1, i] += share[i] * y


@implements(step.remember, Exponential)
def remember(model: Exponential, number: Floats, params: Floats, context: Floats) -> None:
    """Nothing."""


@implements(step.summarise, Exponential)
def summarise(
    model: Exponential,
    number: Floats,
    chance: Floats,
    params: Floats,
    levels: Floats,
    spare: Floats,
    out: Floats,
) -> None:
    """As any mixture of Lomax distributions."""
    label = number[LABEL] if number[LABELLED] > 0 else np.nan
    _summarise(label, chance, params, levels, spare, out)


@compiled
def _summarise(
    label: float, chance: Floats, params: Floats, levels: Floats, spare: Floats, out: Floats
) -> None:
    mean, variance, shape, scale, n = params[0], params[1], params[2], params[3], 0
    for i in range(chance.shape[0]):
        mean[i] = scale[i] / (shape[i] - 1.0)
        variance[i] = mean[i] * mean[i] * shape[i] / (shape[i] - 2.0)
        if chance[i] > mixture.NEGLIGIBLE:
            spare[mixture.WEIGHT, n] = chance[i]
            spare[mixture.SHAPE, n] = shape[i]
            spare[mixture.INVERSE, n] = 1.0 / scale[i]
            n += 1
    mixture.moments(chance, params[:1], params[1:2], chance.shape[0], out)
    out[2] = mixture.sums(label, spare, n, mixture.LOMAX)[0] if label == label else np.nan
    out[3] = out[2]
    mixture.quantiles(levels, out[0], TOLERANCE, spare, n, mixture.LOMAX, out[4:])
