"""`upm.robust_averaged.RobustAveraged`: as `averaged`, with heavy tails, bounds and a walk."""

from __future__ import annotations

import math
from typing import NamedTuple

from model_core.compiled import LABEL, LABELLED, arithmetic, belief, mixture, step
from model_core.compiled.belief import CHANCE, MASS, SHARE
from model_core.compiled.jit import Floats, compiled, implements, whole
from model_core.compiled.models import averaged, student_t, walk
from model_core.upm import robust_averaged
from model_core.upm.averaged import KINDS
from model_core.upm.base import FARTHEST
from model_core.upm.robust_averaged import REACH, TAILS
from model_core.upm.walk import TAILS as TAILS_OF_WALK

PARTS = 2 * KINDS
GROUPS = 2  # of degrees of freedom: normal noise, heavy tails


class RobustAveraged(NamedTuple):
    """As `averaged.Averaged`. `params` ends with a row to work in and believed labels (d).

    Then the walk's weight, and the lead that it had, in a row.
    """

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
    params = student_t.rows_of(d, PARTS, GROUPS) + 1 + d + 1
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
    """Average of six Student-t, and the walk."""
    averaged.regress(model.outputs, PARTS, GROUPS, context, own, params)
    _bound(model.outputs, context, params)
    _walk(model.outputs, context, params)
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


@compiled
def _walk(outputs: int, context: Floats, params: Floats) -> None:
    """The walk's forecast as all parts of the column before the last."""
    d, size = outputs, PARTS * outputs
    first, at = 2 * d + student_t.FREEDOM * GROUPS, whole(params[0]) - 2
    kept = context[1 + 5 * d :]
    params[params.shape[0] - 1, 0] = kept[walk.WEIGHT]
    for group in range(GROUPS):
        params[2 * d + student_t.FREEDOM * group, at] = 0.5 * TAILS_OF_WALK
    for o in range(d):
        scale = context[1 + d + o]
        loc = context[1 + o] + scale * walk.location(kept, d, o)
        square = scale * scale * walk.square(kept, d, o)
        for k in range(o * PARTS, (o + 1) * PARTS):
            params[first + k, at] = loc
            params[first + size + k, at] = square
            params[first + 3 * size + k, at] = -math.log(PARTS)


@implements(step.mix, RobustAveraged)
def mix(model: RobustAveraged, rate: float, params: Floats, work: Floats) -> None:
    """As any, then with the walk."""
    belief.mix(rate, work)
    chance, weight = work[CHANCE], params[params.shape[0] - 1, 0]
    n = whole(chance)
    everything = arithmetic.total(chance, n)
    for i in range(n):
        chance[i] *= 1.0 - weight
    chance[n - 2] = weight * everything


@implements(step.score, RobustAveraged)
def score(model: RobustAveraged, number: Floats, own: Floats, params: Floats, each: Floats) -> None:
    """Log density of all outputs."""
    student_t.log_density(model.outputs, PARTS, GROUPS, number, params, each)


@implements(step.believe, RobustAveraged)
def believe(
    model: RobustAveraged, number: Floats, work: Floats, params: Floats, log_score: float
) -> float:
    """`v y + (1 - v) m` in rows at the end of `params`; returns the score with the walk."""
    _believe(model.outputs, number, work, params)
    last, d, size = params.shape[0] - 1, model.outputs, PARTS * model.outputs
    first, n = 2 * d + student_t.FREEDOM * GROUPS + 4 * size, whole(work[CHANCE])
    density, weight = 0.0, params[last, 0]
    for o in range(d):
        density += params[first + o, n - 2]
    params[last, 1] = density - log_score
    return arithmetic.logaddexp(math.log1p(-weight) + log_score, math.log(weight) + density)


@compiled
def _believe(outputs: int, number: Floats, work: Floats, params: Floats) -> None:
    d, size = outputs, PARTS * outputs
    first, n = 2 * d + student_t.FREEDOM * GROUPS, whole(work[CHANCE])
    chance, mass, whole_chance = work[CHANCE], work[MASS], 0.0
    weak = params[params.shape[0] - d - 2]
    for i in range(n - 2):  # hypotheses alone: neither the walk nor outliers
        whole_chance += chance[i]
    for o in range(d):
        y, evidence = number[LABEL + o], params[first + 4 * size + o]
        forecast, share = 0.0, 0.0
        for k in range(o * PARTS, (o + 1) * PARTS):
            loc, log_weight = params[first + k], params[first + 3 * size + k]
            square, density = params[first + size + k], params[first + 2 * size + k]
            tails = TAILS if k % PARTS >= KINDS else 0.0
            averaged.shares(y, work[SHARE], loc, square, density, log_weight, evidence, tails, weak)
            for i in range(n - 2):
                if chance[i] > 0:
                    forecast += chance[i] * arithmetic.exp(log_weight[i]) * loc[i]
                if mass[i] > 0:
                    share += mass[i] * arithmetic.exp(density[i] - evidence[i]) * weak[i]
        forecast /= whole_chance
        believed = forecast + share * (y - forecast)
        if share >= 0.5:
            believed = y - (y - forecast) * (1.0 - share)
        params[params.shape[0] - 1 - d + o, 0] = believed


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
    d, weak = model.outputs, params[params.shape[0] - model.outputs - 2]
    # Means and variances are not needed any more.
    averaged.update(
        d, PARTS, GROUPS, number, context[0], share, weak, own, params, params[0], params[d]
    )


@implements(step.remember, RobustAveraged)
def remember(model: RobustAveraged, number: Floats, params: Floats, context: Floats) -> None:
    """Time, the range and the lag of believed labels, and the walk."""
    lead = params[params.shape[0] - 1, 1]
    walk.advance(model.outputs, number, context, 1 + 5 * model.outputs, lead)
    _remember(model.outputs, number, params, context)


@compiled
def _remember(outputs: int, number: Floats, params: Floats, context: Floats) -> None:
    context[0] += 1.0
    if number[LABELLED] == 0:
        return
    d = outputs
    for o in range(d):
        believed = params[params.shape[0] - 1 - d + o, 0]
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
