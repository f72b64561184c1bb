"""`upm.conjugate.CategoricalModel`: class indices; none is ever an outlier.

Rows of `params`: probabilities of the classes (J), and the sum of the counts.
"""

from __future__ import annotations

from typing import NamedTuple

from model_core.compiled import LABEL, arithmetic, step
from model_core.compiled.arithmetic import INF
from model_core.compiled.jit import Floats, compiled, implements
from model_core.upm import conjugate


class Categorical(NamedTuple):
    """Rows of the statistics: counts of the classes (J)."""

    classes: int
    rows: int
    kept: int
    params: int
    statistics: int = 1
    parts: int = 1
    outliers: int = 0
    spare: int = 1


def of(model: conjugate.CategoricalModel) -> Categorical:
    """Dimensions of a model."""
    return Categorical(model.classes, model.classes, model.classes, model.classes + 1)


@implements(step.predict, Categorical)
def predict(
    model: Categorical,
    number: Floats,
    context: Floats,
    location: Floats,
    own: Floats,
    params: Floats,
) -> None:
    """Posterior mean."""
    _predict(model.classes, own, params)


@compiled
def _predict(classes: int, own: Floats, params: Floats) -> None:
    total = params[classes]
    arithmetic.fill(total, 0.0)
    for j in range(classes):
        for i in range(total.shape[0]):
            total[i] += own[j, i]
    for j in range(classes):
        for i in range(total.shape[0]):
            params[j, i] = own[j, i] / total[i]


@implements(step.score, Categorical)
def score(model: Categorical, number: Floats, own: Floats, params: Floats, each: Floats) -> None:
    """Log probability of the class; -inf of an index that is none."""
    y = number[LABEL]
    j = int(y) if 0 <= y < model.classes else 0
    arithmetic.fill(each, -INF)
    if j == y:
        for i in range(each.shape[0]):
            each[i] = arithmetic.log(own[j, i]) - arithmetic.log(params[model.classes, i])


@implements(step.learn, Categorical)
def learn(
    model: Categorical,
    number: Floats,
    context: Floats,
    share: Floats,
    own: Floats,
    params: Floats,
) -> None:
    """Count the class."""
    j = int(number[LABEL])
    for i in range(share.shape[0]):
        own[j, i] += share[i]


@implements(step.remember, Categorical)
def remember(model: Categorical, number: Floats, params: Floats, context: Floats) -> None:
    """Nothing."""


@implements(step.summarise, Categorical)
def summarise(
    model: Categorical,
    number: Floats,
    chance: Floats,
    params: Floats,
    levels: Floats,
    spare: Floats,
    out: Floats,
) -> None:
    """Probabilities of the classes."""
    for j in range(model.classes):
        out[j] = arithmetic.dot(chance, params[j], chance.shape[0])
