"""`upm.conjugate.BernoulliModel`: zeros and ones; neither is ever an outlier.

Rows of `params`: mean and variance of each hypothesis, and the probability of a zero.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from model_core.compiled import LABEL, LABELLED, arithmetic, mixture, step
from model_core.compiled.counts import ROUNDING
from model_core.compiled.jit import Floats, compiled, implements
from model_core.upm import conjugate


class Bernoulli(NamedTuple):
    """Rows of the statistics: ones, zeros."""

    rows: int = 2
    kept: int = 2
    params: int = 3
    statistics: int = 2
    parts: int = 1
    outliers: int = 0
    spare: int = 0


def of(model: conjugate.BernoulliModel) -> Bernoulli:
    """Dimensions of a model."""
    return Bernoulli()


@implements(step.predict, Bernoulli)
def predict(
    model: Bernoulli,
    number: Floats,
    context: Floats,
    location: Floats,
    own: Floats,
    params: Floats,
) -> None:
    """Posterior mean."""
    for i in range(own.shape[1]):
        p = own[0, i] / (own[0, i] + own[1, i])
        params[0, i] = p
        params[1, i] = p * (1.0 - p)
        params[2, i] = 1.0 - p


@implements(step.score, Bernoulli)
def score(model: Bernoulli, number: Floats, own: Floats, params: Floats, each: Floats) -> None:
    """Log mass at zero or one."""
    chosen = params[0] if number[LABEL] > 0.5 else params[2]
    for i in range(each.shape[0]):
        each[i] = arithmetic.log(chosen[i])


@implements(step.learn, Bernoulli)
def learn(
    model: Bernoulli, number: Floats, context: Floats, share: Floats, own: Floats, params: Floats
) -> None:
    """Count the one or the zero."""
    y = number[LABEL]
    for i in range(share.shape[0]):
        own[0, i] += share[i] * y
    for i in range(share.shape[0]):
        own[1, i] += share[i] * (1.0 - y)


@implements(step.remember, Bernoulli)
def remember(model: Bernoulli, number: Floats, params: Floats, context: Floats) -> None:
    """Nothing."""


@implements(step.summarise, Bernoulli)
def summarise(
    model: Bernoulli,
    number: Floats,
    chance: Floats,
    params: Floats,
    levels: Floats,
    spare: Floats,
    out: Floats,
) -> None:
    """Mean, variance, probabilities up to the label and below it, quantiles."""
    label = number[LABEL] if number[LABELLED] > 0 else np.nan
    _summarise(label, chance, params, levels, out)


@compiled
def _summarise(label: float, chance: Floats, params: Floats, levels: Floats, out: Floats) -> None:
    n = chance.shape[0]
    mixture.moments(chance, params[:1], params[1:2], n, out)
    zero, everything = arithmetic.dot(chance, params[2], n), arithmetic.total(chance, n)
    for k in range(2):
        value = label - k
        reached = 0.0 if value < 0 else (zero if value < 1 else everything)
        out[2 + k] = reached if label == label else np.nan
    for k in range(levels.shape[1]):
        out[4 + k] = 0.0 if zero - levels[0, k] + ROUNDING >= 0 else 1.0
