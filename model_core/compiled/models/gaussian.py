"""`upm.conjugate.Gaussian`: mean and variance unknown, outputs independent."""

from __future__ import annotations

from typing import NamedTuple

from model_core.compiled import LABEL, mixture, step
from model_core.compiled.jit import Floats, compiled, implements, whole
from model_core.compiled.models import student_t
from model_core.upm import conjugate


class Gaussian(NamedTuple):
    """Rows of the statistics: mean (d), kappa, alpha, beta (d)."""

    outputs: int
    rows: int
    kept: int
    params: int
    statistics: int = 4
    parts: int = 1
    outliers: int = 1
    spare: int = mixture.FIELDS


def of(model: conjugate.Gaussian) -> Gaussian:
    """Dimensions of a model."""
    rows = 2 * model.y_dim + 2
    return Gaussian(model.y_dim, rows, rows, student_t.rows_of(model.y_dim, student_t.ALONE))


@implements(step.predict, Gaussian)
def predict(
    model: Gaussian,
    number: Floats,
    context: Floats,
    location: Floats,
    own: Floats,
    params: Floats,
) -> None:
    """Student-t with `2 alpha` degrees of freedom."""
    _predict(model.outputs, own, params)


@compiled
def _predict(outputs: int, own: Floats, params: Floats) -> None:
    kappa, alpha, half = own[outputs], own[outputs + 1], params[2 * outputs]
    n = whole(half)
    for i in range(n):
        half[i] = alpha[i]
    for o in range(outputs):
        loc, square = params[2 * outputs + 4 + o], params[3 * outputs + 4 + o]
        mean, beta = own[o], own[outputs + 2 + o]
        for i in range(n):
            loc[i] = mean[i]
            square[i] = beta[i] * (kappa[i] + 1.0) / (alpha[i] * kappa[i])
    student_t.finish(outputs, student_t.ALONE, params)


@implements(step.score, Gaussian)
def score(model: Gaussian, number: Floats, own: Floats, params: Floats, each: Floats) -> None:
    """Log density of all outputs."""
    student_t.log_density(model.outputs, student_t.ALONE, number, params, each)


@implements(step.learn, Gaussian)
def learn(
    model: Gaussian, number: Floats, context: Floats, share: Floats, own: Floats, params: Floats
) -> None:
    """Conjugate update with the responsibility as a fraction of an observation."""
    _learn(model.outputs, number, share, own)


@compiled
def _learn(outputs: int, number: Floats, share: Floats, own: Floats) -> None:
    kappa, alpha, n = own[outputs], own[outputs + 1], whole(share)
    for o in range(outputs):
        mean, beta, y = own[o], own[outputs + 2 + o], number[LABEL + o]
        for i in range(n):
            error = y - mean[i]
            gain = share[i] / (kappa[i] + share[i])
            beta[i] += 0.5 * kappa[i] * gain * (error * error)
            mean[i] += gain * error
    for i in range(n):
        kappa[i] += share[i]
    for i in range(n):
        alpha[i] += 0.5 * share[i]


@implements(step.remember, Gaussian)
def remember(model: Gaussian, number: Floats, params: Floats, context: Floats) -> None:
    """Nothing."""


@implements(step.summarise, Gaussian)
def summarise(
    model: Gaussian,
    number: Floats,
    chance: Floats,
    params: Floats,
    levels: Floats,
    spare: Floats,
    out: Floats,
) -> None:
    """As any mixture of Student-t."""
    student_t.summarise(model.outputs, student_t.ALONE, number, chance, params, levels, spare, out)
