"""`upm.robust_averaged.RobustAveraged`: as `averaged`, with noise of heavy tails and bounds."""

from __future__ import annotations

import math
from typing import NamedTuple

from model_core.compiled import LABEL, LABELLED, arithmetic, mixture, step
from model_core.compiled.belief import CHANCE, MASS, SHARE
from model_core.compiled.jit import Floats, compiled, implements, whole
from model_core.compiled.models import averaged, student_t
from model_core.upm import robust_averaged
from model_core.upm.averaged import KINDS
from model_core.upm.base import FARTHEST
from model_core.upm.robust_averaged import REACH, TAILS

PARTS = 2 * KINDS
GROUPS = 2  # of degrees of freedom: normal noise, heavy tails


class RobustAveraged(NamedTuple):
    """As `averaged.Averaged`. `params` ends with a row to work in and believed labels (d)."""

    outputs: int
    rows: int
    kept: int
    params: int
    statistics: int = 6
    parts: int = PARTS
    outliers: int = 1
    spare: int = mixture.FIELDS


def of(model: robust_averaged.RobustAveraged) -> RobustAveraged:
    """Dimensions of a model."""
    d, kept = model.y_dim, averaged.rows_of(model.y_dim, PARTS)
    params = student_t.rows_of(d, PARTS, GROUPS) + 1 + d
    return RobustAveraged(d, kept + 2 * PARTS * d, kept, params)


@implements(step.predict, RobustAveraged)
def predict(
    model: RobustAveraged,
    number: Floats,
    context: Floats,
    location: Floats,
    own: Floats,
    params: Floats,
) -> None:
    """Average of six Student-t."""
    averaged.regress(model.outputs, PARTS, GROUPS, context, own, params)
    _bound(model.outputs, context, params)
    student_t.finish(model.outputs, PARTS, GROUPS, params)


@compiled
def _bound(outputs: int, context: Floats, params: Floats) -> None:
    """Locations near the labels' range, but for the outliers'; freedom of heavy tails."""
    d, first = outputs, 2 * outputs + student_t.FREEDOM * GROUPS
    half, heavy = params[2 * d], params[2 * d + student_t.FREEDOM]
    n = whole(half)
    for i in range(n):
        heavy[i] = half[i] if half[i] < 0.5 * TAILS else 0.5 * TAILS
    for o in range(d):
        location, scale = context[1 + o], context[1 + d + o]
        least = location + scale * (context[1 + 2 * d + o] - REACH)
        most = location + scale * (context[1 + 3 * d + o] + REACH)
        for k in range(o * PARTS, (o + 1) * PARTS):
            loc = params[first + k]
            for i in range(n - 1):
                loc[i] = max(least, min(most, loc[i]))


@implements(step.score, RobustAveraged)
def score(model: RobustAveraged, number: Floats, own: Floats, params: Floats, each: Floats) -> None:
    """Log density of all outputs."""
    student_t.log_density(model.outputs, PARTS, GROUPS, number, params, each)


@implements(step.believe, RobustAveraged)
def believe(model: RobustAveraged, number: Floats, work: Floats, params: Floats) -> None:
    """`w y + (1 - w) m` in the last rows of `params`."""
    _believe(model.outputs, number, work, params)


@compiled
def _believe(outputs: int, number: Floats, work: Floats, params: Floats) -> None:
    d, size = outputs, PARTS * outputs
    first, n = 2 * d + student_t.FREEDOM * GROUPS, whole(work[CHANCE])
    chance, mass, whole_chance = work[CHANCE], work[MASS], 0.0
    weak = params[params.shape[0] - d - 1]
    for i in range(n - 1):
        whole_chance += chance[i]
    for o in range(d):
        y, evidence = number[LABEL + o], params[first + 4 * size + o]
        forecast, share = 0.0, 0.0
        for k in range(o * PARTS, (o + 1) * PARTS):
            loc, log_weight = params[first + k], params[first + 3 * size + k]
            square, density = params[first + size + k], params[first + 2 * size + k]
            tails = TAILS if k % PARTS >= KINDS else 0.0
            averaged.shares(y, work[SHARE], loc, square, density, log_weight, evidence, tails, weak)
            for i in range(n - 1):
                if chance[i] > 0:
                    forecast += chance[i] * arithmetic.exp(log_weight[i]) * loc[i]
                if mass[i] > 0:
                    share += mass[i] * arithmetic.exp(density[i] - evidence[i]) * weak[i]
        forecast /= whole_chance
        believed = forecast + share * (y - forecast)
        if share >= 0.5:
            believed = y - (y - forecast) * (1.0 - share)
        params[params.shape[0] - d + o, 0] = believed


@implements(step.learn, RobustAveraged)
def learn(
    model: RobustAveraged,
    number: Floats,
    context: Floats,
    share: Floats,
    own: Floats,
    params: Floats,
) -> None:
    """Conjugate update of the six, and of their probabilities."""
    d, weak = model.outputs, params[params.shape[0] - model.outputs - 1]
    # Means and variances are not needed any more.
    averaged.update(
        d, PARTS, GROUPS, number, context[0], share, weak, own, params, params[0], params[d]
    )


@implements(step.remember, RobustAveraged)
def remember(model: RobustAveraged, number: Floats, params: Floats, context: Floats) -> None:
    """Time, and the range and the lag of believed labels."""
    _remember(model.outputs, number, params, context)


@compiled
def _remember(outputs: int, number: Floats, params: Floats, context: Floats) -> None:
    context[0] += 1.0
    if number[LABELLED] == 0:
        return
    d = outputs
    for o in range(d):
        believed = params[params.shape[0] - d + o, 0]
        value = (believed - context[1 + o]) / context[1 + d + o]
        if math.isfinite(believed):
            value = min(max(value, -FARTHEST), FARTHEST)
        context[1 + 2 * d + o] = min(context[1 + 2 * d + o], value)
        context[1 + 3 * d + o] = max(context[1 + 3 * d + o], value)
        context[1 + 4 * d + o] = value


@implements(step.summarise, RobustAveraged)
def summarise(
    model: RobustAveraged,
    number: Floats,
    chance: Floats,
    params: Floats,
    levels: Floats,
    spare: Floats,
    out: Floats,
) -> None:
    """As any mixture of Student-t."""
    student_t.summarise(model.outputs, PARTS, GROUPS, number, chance, params, levels, spare, out)
