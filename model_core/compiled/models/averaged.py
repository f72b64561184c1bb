"""`upm.averaged.Averaged`: level, line or autoregression in each regime, heavy tails and a walk.

Lines of the statistics, of P parts: mean (d, P, 2), precision (d, P, 3), alpha (1), beta and log
weight (d, P), the origin (1). Lines of `params`: those of `student_t`; the shares of the parts
(d P), what is believed of labels (d), the walk's weight and the lead that it had (1), the second
feature and `f' Lambda^-1 f` (d P each). Other models share it, with more statistics after these and
perhaps a learned last part, of which there is only the log weight here: noise is that of all parts.
"""

from __future__ import annotations

import math

import numpy as np

from model_core.compiled import LABEL, LABELLED, arithmetic, mixture
from model_core.compiled.belief import CHANCE, MASS, SHARE
from model_core.compiled.jit import Floats, compiled, either, inlined, whole
from model_core.compiled.models import student_t, walk
from model_core.compiled.ops import maths
from model_core.compiled.step import Functions, Model, Noise, RowStep
from model_core.maths.regression import TAILS
from model_core.maths.walk import TAILS as TAILS_OF_WALK
from model_core.upm import averaged
from model_core.upm.averaged import LAG, LINE, NORMAL, REACH, UNIT
from model_core.upm.base import FARTHEST

KINDS = averaged.Averaged.kinds
# Mean size of a Student-t of TAILS degrees of freedom, as all have that are skewed.
SIZE = 2 * math.exp(math.lgamma(TAILS / 2 + 0.5) - math.lgamma(TAILS / 2))
SIZE *= math.sqrt(TAILS / math.pi) / (TAILS - 1)
NOTHING = -700.0  # log weight of a part that the walk has not
_REGRESSION = maths("regression")


def of(model: averaged.Averaged) -> tuple[Model, Functions]:
    """Sizes and functions of a model."""
    d = model.y_dim
    noise = noise_of(model)
    sizes = Model(
        outputs=d, kept=lines_of(d, noise), params=params_of(d, noise), spare=mixture.FIELDS,
        spares=noise.parts, noise=noise,
    )  # fmt: skip
    return sizes, Functions(predict, student_t.score, learn, remember, student_t.summarise)


def noise_of(model: averaged.Averaged, own: int = 0) -> Noise:
    """Noise of all parts; own: 1 where the last one is learned."""
    return Noise(len(model.skews), NORMAL, own, np.array(model.skews))


@either
def lines_of(outputs: int, noise: Noise) -> int:
    """Lines of the statistics."""
    parts = noise.parts - noise.own
    return (6 * parts + noise.parts) * outputs + 2


@either
def shares_of(outputs: int, noise: Noise) -> int:
    """First line of the shares of the parts."""
    return student_t.lines_of(outputs, noise)


@either
def believed_of(outputs: int, noise: Noise) -> int:
    """First line of what is believed of labels; that of the walk follows them."""
    return shares_of(outputs, noise) + noise.parts * outputs


@either
def seconds_of(outputs: int, noise: Noise) -> int:
    """First line of the second features; the variances follow."""
    return believed_of(outputs, noise) + outputs + 1


@either
def params_of(outputs: int, noise: Noise) -> int:
    """Lines of `params`."""
    return seconds_of(outputs, noise) + 2 * (noise.parts - noise.own) * outputs


@compiled
def predict(step: RowStep) -> float:
    """Average of the parts, and the walk."""
    model = step.model
    context = step.context
    params = step.params
    regress(model.outputs, model.noise, context, step.own, params)
    return complete(model.outputs, model.noise, context, params)


@compiled
def regress(d: int, noise: Noise, context: Floats, own: Floats, params: Floats) -> None:
    """Fill half the degrees of freedom, locations, squared scales and log weights.

    Of a learned last part there is the log weight alone.
    """
    every = noise.parts
    parts = every - noise.own
    size = parts * d
    alpha, origin = own[5 * size], own[(6 * parts + every) * d + 1]
    first, second, n = student_t.before_locations(d, noise), seconds_of(d, noise), whole(alpha)
    arithmetic.copy(alpha, params[2 * d])
    for k in range(every * d):
        arithmetic.copy(own[6 * size + 1 + k], params[first + 3 * every * d + k])
    for o in range(d):
        lag = context[1 + 4 * d + o]
        for part in range(parts):
            k, to, kind = o * parts + part, first + o * every + part, KINDS[part]
            u = params[second + k]
            arithmetic.fill(u, lag if kind == LAG else 0.0)
            if kind == LINE:
                for i in range(n):
                    u[i] = 0.0 if origin[i] < 0 else (context[0] - origin[i]) / UNIT
            u[n - 1] = 0.0  # an outlier is of the level's prior
            beta, variance = own[5 * size + 1 + k], params[second + size + k]
            level, slope = own[2 * k], own[2 * k + 1]
            at = 2 * size + 3 * k
            a, b, c = own[at], own[at + 1], own[at + 2]
            loc, square = params[to], params[to + every * d]
            for i in range(n):
                loc[i], variance[i] = _REGRESSION.forecast(
                    level[i], slope[i], a[i], b[i], c[i], u[i]
                )
            for i in range(n):
                square[i] = _REGRESSION.squared_scale(alpha[i], beta[i], variance[i])


@compiled
def complete(d: int, noise: Noise, context: Floats, params: Floats) -> float:
    """Bounds, the walk and what follows, once there are the regressions of all parts.

    Returns the walk's weight.
    """
    _bound(d, noise, context, params)
    _walk(d, noise, context, params)
    student_t.finish(d, noise, params)
    return float(params[believed_of(d, noise) + d, 0])


@compiled
def _bound(outputs: int, noise: Noise, context: Floats, params: Floats) -> None:
    """Locations near the labels' range, but for the outliers'; freedom of heavy tails."""
    d, parts, first = outputs, noise.parts, student_t.before_locations(outputs, noise)
    half, heavy = params[2 * d], params[2 * d + student_t.FREEDOM]
    n = whole(half)
    for i in range(n):
        heavy[i] = half[i] if half[i] < 0.5 * TAILS else 0.5 * TAILS
    for o in range(d):
        least, most = bounds(outputs, o, context)
        for k in range(o * parts, (o + 1) * parts):
            loc = params[first + k]
            for i in range(n - 1):
                loc[i] = max(least, min(most, loc[i]))


@inlined
def bounds(outputs: int, output: int, context: Floats) -> tuple[float, float]:
    """Least and greatest forecast of an output."""
    location, scale = context[1 + output], context[1 + outputs + output]
    least, most = context[1 + 2 * outputs + output], context[1 + 3 * outputs + output]
    return location + scale * (least - REACH), location + scale * (most + REACH)


@compiled
def _walk(outputs: int, noise: Noise, context: Floats, params: Floats) -> None:
    """The walk's forecast in the column before the last, whose first part is all of it."""
    d, parts = outputs, noise.parts
    size, first, at = parts * d, student_t.before_locations(d, noise), whole(params[0]) - 2
    kept = context[1 + 5 * d :]
    params[believed_of(d, noise) + d, 0] = kept[walk.WEIGHT]
    for group in range(2 * d, first, student_t.FREEDOM):
        params[group, at] = 0.5 * TAILS_OF_WALK
    for o in range(d):
        scale = context[1 + d + o]
        loc = context[1 + o] + scale * walk.location(kept, d, o)
        square = scale * scale * walk.square(kept, d, o)
        for k in range(o * parts, (o + 1) * parts):
            params[first + k, at] = loc
            params[first + size + k, at] = square
            params[first + 3 * size + k, at] = 0.0 if k % parts == 0 else NOTHING


@compiled
def believe(
    d: int, noise: Noise, number: Floats, log_score: float, params: Floats, work: Floats
) -> float:
    """Keep what is believed of each output, by all parts; returns the score with the walk."""
    chance = work[CHANCE]
    for o in range(d):
        expected, learned = expect(d, noise, o, number, chance, work[MASS], work[SHARE], params)
        keep_belief(d, noise, o, number, chance, expected, learned, params)
    return score_with_walk(d, noise, log_score, params)


@compiled
def score_with_walk(d: int, noise: Noise, log_score: float, params: Floats) -> float:
    """Log score of the answer; the walk's lead before that of the hypotheses is kept."""
    last = believed_of(d, noise) + d
    first = student_t.before_locations(d, noise) + 4 * noise.parts * d
    n, density, weight = whole(params[0]), 0.0, params[last, 0]
    for o in range(d):
        density += params[first + o, n - 2]
    params[last, 1] = density - log_score
    return arithmetic.logaddexp(math.log1p(-weight) + log_score, math.log(weight) + density)


@compiled
def expect(
    outputs: int,
    noise: Noise,
    output: int,
    number: Floats,
    chance: Floats,
    mass: Floats,
    inlier: Floats,
    params: Floats,
) -> tuple[float, float]:
    """Sums over the hypotheses of one output's forecast, and of the share that parts learn.

    chance, mass: (W) weights of the sums. inlier: responsibilities. Fills the shares of the parts.
    """
    d, parts = outputs, noise.parts
    size, first = parts * d, student_t.before_locations(d, noise)
    n = whole(chance) - 2  # nor walk, nor outliers
    weights, heavy_before = student_t.weights_of(d, noise), parts - noise.own
    y, evidence = number[LABEL + output], params[first + 4 * size + output]
    spare, expected, learned = params[output], 0.0, 0.0  # its means are not needed any more
    for k in range(output * parts, (output + 1) * parts):
        loc, square, log_weight = params[first + k], params[first + size + k], first + 3 * size
        density, each = params[first + 2 * size + k], params[shares_of(d, noise) + k]
        part = k - output * parts
        tails = TAILS if noise.normal <= part < heavy_before else 0.0
        skew = noise.skews[part]
        offset = SIZE * (skew - 1.0 / skew)  # of its mean, in scales
        _share(y, inlier, loc, square, density, params[log_weight + k], evidence, tails, skew, each)
        weight, posterior = params[weights + k], params[weights + size + k]
        expected += _expected(chance, weight, loc, square, offset, n)
        for i in range(n):
            product = mass[i] * posterior[i] * (each[i] if each[i] < 1.0 else 1.0)
            spare[i] = product if mass[i] > 0 else 0.0
        learned += arithmetic.total(spare, n)
    return expected, learned


@compiled
def keep_belief(
    d: int,
    noise: Noise,
    output: int,
    number: Floats,
    chance: Floats,
    expected: float,
    learned: float,
    params: Floats,
) -> None:
    """Keep what is believed of an output's label in `params`, and after it the forecast.

    expected, learned: sums by `expect`, with the weights `chance` in the mixture.
    """
    everything, y = 0.0, number[LABEL + output]
    for i in range(whole(chance) - 2):  # hypotheses alone: neither the walk nor outliers
        everything += chance[i]
    forecast = expected / everything
    believed = forecast + learned * (y - forecast)
    if learned >= 0.5:
        believed = y - (y - forecast) * (1.0 - learned)
    row = believed_of(d, noise) + output
    params[row, 0] = believed
    params[row, 1] = forecast


@compiled
def _expected(
    chance: Floats, weight: Floats, loc: Floats, square: Floats, offset: float, n: int
) -> float:
    """Sum of a part's means with weights; offset: of the means from the locations, in scales."""
    total = 0.0
    for i in range(n):
        if chance[i] > 0:
            mean = loc[i] + (offset * math.sqrt(square[i]) if offset != 0.0 else 0.0)
            total += chance[i] * weight[i] * mean
    return total


@compiled
def _share(
    y: float,
    share: Floats,
    loc: Floats,
    square: Floats,
    density: Floats,
    log_weight: Floats,
    evidence: Floats,
    tails: float,
    skew: float,
    out: Floats,
) -> None:
    """How much of a label a part learns; density: with its log weight; tails: 0 for a normal."""
    below, above = skew * skew, 1.0 / (skew * skew)
    for i in range(whole(share)):
        out[i] = _REGRESSION.share_of(share[i], density[i] - log_weight[i] - evidence[i])
    if tails == 0.0:
        return
    for i in range(whole(share)):
        error = y - loc[i]
        side = below if error < 0 else above
        out[i] *= _REGRESSION.precision(side * (error * error) / square[i], 1.0) * side


@compiled
def learn(step: RowStep, log_score: float) -> float:
    """Conjugate update of the parts, and of their probabilities."""
    model = step.model
    number = step.number
    params = step.params
    work = step.work
    log_score = believe(model.outputs, model.noise, number, log_score, params, work)
    update(model.outputs, model.noise, number, step.context[0], work[SHARE], step.own, params)
    return log_score


@compiled
def update(
    d: int,
    noise: Noise,
    number: Floats,
    now: float,
    share: Floats,
    own: Floats,
    params: Floats,
) -> None:
    """Conjugate update of all parts but a learned last one, and of the probabilities of all.

    Each part learns its share; see `expect`.
    """
    every, shares = noise.parts, shares_of(d, noise)
    parts = every - noise.own
    size = parts * d
    alpha, origin = own[5 * size], own[(6 * parts + every) * d + 1]
    first, second, n = student_t.before_locations(d, noise), seconds_of(d, noise), whole(share)
    counted, left = params[0], params[d]  # means and variances are not needed any more
    log_shares(share, counted, left)
    for o in range(d):
        evidence, y = params[first + 4 * every * d + o], number[LABEL + o]
        for part in range(parts):
            k, of_all = o * parts + part, o * every + part
            u, variance = params[second + k], params[second + size + k]
            loc, beta = params[first + of_all], own[5 * size + 1 + k]
            each = params[shares + of_all]
            for i in range(n):
                beta[i] += _REGRESSION.scatter(each[i], y - loc[i], variance[i])
            at = 2 * size + 3 * k
            _absorb(y, loc, each, u, own[2 * k], own[2 * k + 1], own[at : at + 3])
        for k in range(o * every, (o + 1) * every):
            density = params[first + 2 * every * d + k]
            reweigh(density, evidence, counted, left, own[6 * size + 1 + k])
    for i in range(n):
        alpha[i] += 0.5 * share[i]
    for i in range(n):
        origin[i] = now if origin[i] < 0 and share[i] > 0 else origin[i]


@compiled
def _absorb(
    y: float, loc: Floats, share: Floats, u: Floats, level: Floats, slope: Floats, precision: Floats
) -> None:
    n, a, b, c = whole(share), precision[0], precision[1], precision[2]
    for i in range(n):
        a[i], b[i], c[i] = _REGRESSION.counted(a[i], b[i], c[i], u[i], share[i])
    for i in range(n):
        level[i], slope[i] = _REGRESSION.moved(
            level[i], slope[i], a[i], b[i], c[i], u[i], share[i] * (y - loc[i])
        )


@compiled
def log_shares(share: Floats, counted: Floats, left: Floats) -> None:
    """Log of the share of a label that counts, and of what is left of one."""
    for i in range(whole(share)):
        counted[i] = arithmetic.log(share[i])
        left[i] = arithmetic.log(1.0 - share[i])


@compiled
def reweigh(
    density: Floats, evidence: Floats, counted: Floats, left: Floats, log_weight: Floats
) -> None:
    """`log(w exp(density - evidence) + (1 - w) exp(log_weight))`, by `log_shares` of w."""
    for i in range(whole(counted)):
        log_weight[i] = arithmetic.logaddexp(
            counted[i] + density[i] - evidence[i], left[i] + log_weight[i]
        )


@compiled
def remember(step: RowStep) -> float:
    """Time, the range and the lag of believed labels, and the walk."""
    model = step.model
    advance(model.outputs, model.noise, step.number, step.context, step.params)
    return 0.0


@compiled
def advance(d: int, noise: Noise, number: Floats, context: Floats, params: Floats) -> None:
    """Time, the range and the lag of believed labels, and the walk."""
    line = believed_of(d, noise)
    walk.advance(d, number, context, 1 + 5 * d, params[line + d, 1])
    context[0] += 1.0
    if number[LABELLED] == 0:
        return
    for o in range(d):
        believed = params[line + o, 0]
        value = (believed - context[1 + o]) / context[1 + d + o]
        if math.isfinite(believed):
            value = min(max(value, -FARTHEST), FARTHEST)
        context[1 + 2 * d + o] = min(context[1 + 2 * d + o], value)
        context[1 + 3 * d + o] = max(context[1 + 3 * d + o], value)
        context[1 + 4 * d + o] = value
