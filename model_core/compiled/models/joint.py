"""`upm.joint.Joint`: independent outputs as in `averaged`, or a vector autoregression.

Rows of `own`: the vector autoregressions' statistics (see `Places`), then those of
`averaged`. Rows of `params`: those of `averaged`; then, for each of the three (the
independent outputs and both vector autoregressions), the label's log density with the log choice,
the probability given the label, the share that it learns (until `believe` its lead: log density
over the average of all), and the weight in the forecast; the log of the label's density by all; two
rows to work in. After them a block for each vector
autoregression, and rows to work in, of which the Cholesky factor of `Lambda` takes most.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from model_core.compiled import LABEL, LABELLED, arithmetic, mixture, step
from model_core.compiled.arithmetic import INF
from model_core.compiled.belief import CHANCE, MASS, SHARE, STATISTICS
from model_core.compiled.jit import Floats, Ints, compiled, implements, inlined, whole
from model_core.compiled.models import (
    averaged,
    multivariate,
    regression,
    student_t,
)
from model_core.compiled.models.averaged import NOISE, PARTS
from model_core.compiled.ops import maths
from model_core.upm import joint
from model_core.upm.averaged import FAR_AHEAD, TAILS
from model_core.upm.base import FARTHEST
from model_core.upm.joint import BEFORE, CERTAIN, FAR, TOGETHER, WATCHED

_SPECIAL = maths("special")
ALONE = 6  # leaves of independent outputs; those of the vector autoregressions follow
LEAVES = ALONE + 5
CHOICES = 1 + TOGETHER
# First rows after those of `averaged`; the first four are of each of the three.
DENSITY, TOLD, LEARNED, WEIGHT = range(0, 4 * CHOICES, CHOICES)
EVIDENCE, ONE, OTHER, BLOCKS = range(4 * CHOICES, 4 * CHOICES + 4)
# Rows of a block: `f' Lambda^-1 f`; squared scale of psi; half the degrees of freedom; half of
# `log det psi`; squared distance of the label in scales. Then locations (d), squared scales of the
# marginals (d), `Lambda^-1 f` (p), and the Cholesky factor of psi (d, d).
VARIANCE, SPREAD, HALF, DETERMINANT, SQUARE, LOCATION = range(6)
NORMAL = 1  # vector autoregressions, the first, whose noise is normal


class Places(NamedTuple):
    """First rows of the statistics of the vector autoregressions, whose `M` come first."""

    inverse: int
    psi: int
    nu: int
    choice: int
    end: int
    # Of the squared scales, `Lambda^-1 f` and the factor in a block, and its rows.
    square: int
    solved: int
    factor: int
    block: int


class Joint(NamedTuple):
    """Dimensions; `alone` rows of `params` are those of `averaged`."""

    outputs: int
    rows: int
    kept: int
    params: int
    alone: int
    at: Places
    statistics: int = LEAVES
    parts: int = PARTS + TOGETHER
    outliers: int = 1
    spare: int = mixture.FIELDS


def of(model: joint.Joint) -> Joint:
    """Dimensions of a model."""
    d = model.y_dim
    at = places_of(d)
    kept = at.end + averaged.rows_of(d, NOISE)
    alone = averaged.params_of(d, NOISE)
    params = alone + BLOCKS + TOGETHER * at.block + (d + 1) * (d + 1)
    return Joint(d, kept + 2 * PARTS * d, kept, params, alone, at)


def places_of(d: int) -> Places:
    """By the number of outputs."""
    p = d + 1
    inverse = TOGETHER * p * d
    psi = inverse + TOGETHER * p * p
    nu = psi + TOGETHER * d * d
    choice = nu + TOGETHER
    square, solved = LOCATION + d, LOCATION + 2 * d
    factor = solved + p
    return Places(inverse, psi, nu, choice, choice + CHOICES, square, solved, factor,
                  factor + d * d)  # fmt: skip


@implements(step.load, Joint)
def load(model: Joint, views: Ints, row: int, slot: int, number: Floats, own: Floats) -> None:
    """Those of the vector autoregressions first."""
    at = 0
    for leaf in range(STATISTICS + ALONE, STATISTICS + LEAVES):
        at += step.load_leaf(views, row, slot, leaf, LEAVES, own[at:])
    for leaf in range(STATISTICS, STATISTICS + ALONE):
        at += step.load_leaf(views, row, slot, leaf, LEAVES, own[at:])


@implements(step.store, Joint)
def store(model: Joint, views: Ints, row: int, slot: int, number: Floats, own: Floats) -> None:
    """As they were loaded."""
    at = 0
    for leaf in range(STATISTICS + ALONE, STATISTICS + LEAVES):
        at += step.store_leaf(views, row, leaf, LEAVES, own[at:])
    for leaf in range(STATISTICS, STATISTICS + ALONE):
        at += step.store_leaf(views, row, leaf, LEAVES, own[at:])


@implements(step.predict, Joint)
def predict(
    model: Joint, number: Floats, context: Floats, location: Floats, own: Floats, params: Floats
) -> None:
    """All three, and the walk."""
    averaged.forecast(model.outputs, context, own[model.at.end :], params[: model.alone])
    _forecast(model.outputs, model.at, context, own, params[model.alone :])


@compiled
def _forecast(d: int, at: Places, context: Floats, own: Floats, rest: Floats) -> None:
    """Blocks of the vector autoregressions, and the weights of the three."""
    p, n = d + 1, whole(own[0])
    factor = rest[BLOCKS + TOGETHER * at.block :]
    for j in range(TOGETHER):
        block = rest[BLOCKS + j * at.block : BLOCKS + (j + 1) * at.block]
        multivariate.factorise(p, own[at.inverse + j * p * p :], factor)
        _solve(d, context, factor, block[at.solved : at.solved + p], block[VARIANCE])
        _locate(d, context, own[j * p * d :], block[LOCATION : LOCATION + d])
        psi = own[at.psi + j * d * d : at.psi + (j + 1) * d * d]
        _spread(d, at, j >= NORMAL, own[at.nu + j], psi, block)
    for k in range(CHOICES):
        weight = rest[WEIGHT + k]
        arithmetic.exp_of(own[at.choice + k], 0.0, weight, n)
        # The walk and the outliers are independent for certain.
        for i in range(n - 2, n):
            weight[i] = 1.0 if k == 0 else 0.0


@compiled
def _spread(d: int, at: Places, heavy: bool, nu: Floats, psi: Floats, block: Floats) -> None:
    """Degrees of freedom, and scales of all outputs together and of each alone."""
    half, spread, variance = block[HALF], block[SPREAD], block[VARIANCE]
    n = whole(half)
    for i in range(n):
        half[i] = 0.5 * (nu[i] - (d - 1))
    for i in range(n):
        spread[i] = (1.0 + variance[i]) / (2.0 * half[i])
    if heavy:
        for i in range(n):
            half[i] = half[i] if half[i] < 0.5 * TAILS else 0.5 * TAILS
    for o in range(d):
        _multiply(psi[o * d + o], spread, block[at.square + o])
    multivariate.factorise(d, psi, block[at.factor :])
    multivariate.half_log_determinant(d, block[at.factor :], block[DETERMINANT])


@inlined
def _feature(d: int, context: Floats, a: int) -> float:
    """One, and the lag."""
    feature: float = 1.0 if a == 0 else context[4 * d + a]
    return feature


@compiled
def _solve(d: int, context: Floats, factor: Floats, solved: Floats, variance: Floats) -> None:
    """`Lambda^-1 f` and `f' Lambda^-1 f`, by the factor (p p, W) of `Lambda`."""
    p = d + 1
    for a in range(p):
        arithmetic.fill(solved[a], _feature(d, context, a))
        for b in range(a):
            _subtract(factor[a * p + b], solved[b], solved[a])
        _divide(solved[a], factor[a * p + a])
    arithmetic.fill(variance, 0.0)
    for a in range(p):
        regression.add_product(solved[a], solved[a], variance)
    for a in range(p - 1, -1, -1):
        for b in range(a + 1, p):
            _subtract(factor[b * p + a], solved[b], solved[a])
        _divide(solved[a], factor[a * p + a])


@compiled
def _subtract(left: Floats, right: Floats, out: Floats) -> None:
    for i in range(whole(out)):
        out[i] -= left[i] * right[i]


@compiled
def _divide(values: Floats, by: Floats) -> None:
    for i in range(whole(values)):
        values[i] /= by[i]


@compiled
def _locate(d: int, context: Floats, matrix: Floats, locations: Floats) -> None:
    """`M' f` within bounds."""
    n = whole(locations[0])
    for o in range(d):
        loc = locations[o]
        arithmetic.copy(matrix[o], loc)
        for a in range(1, d + 1):
            entry, feature = matrix[a * d + o], _feature(d, context, a)
            for i in range(n):
                loc[i] += feature * entry[i]
        least, most = averaged.bounds(d, o, context)
        for i in range(n):
            loc[i] = max(least, min(most, loc[i]))


@implements(step.mix, Joint)
def mix(model: Joint, rate: float, params: Floats, work: Floats) -> None:
    """As any, then with the walk."""
    averaged.mix_walk(rate, params[model.alone - 1, 0], work)


@implements(step.score, Joint)
def score(model: Joint, number: Floats, own: Floats, params: Floats, each: Floats) -> None:
    """Log density of all outputs."""
    student_t.log_density(model.outputs, NOISE, number, params[: model.alone], each)
    _explain(model.outputs, model.at, number, own[model.at.choice :], params[model.alone :], each)


@compiled
def _explain(
    d: int, at: Places, number: Floats, choice: Floats, rest: Floats, each: Floats
) -> None:
    """Log density by all three from that of independent outputs, in place.

    choice: rows of the log choice.
    """
    n = whole(each)
    walk_density, astray = each[n - 2], each[n - 1]
    student_t.add(each, choice[0], rest[DENSITY])
    for j in range(TOGETHER):
        block, density = rest[BLOCKS + j * at.block :], rest[DENSITY + 1 + j]
        locations, factor, spread = block[LOCATION:], block[at.factor :], block[SPREAD]
        residuals = rest[BLOCKS + TOGETHER * at.block :]
        multivariate.distances(d, number, locations, factor, residuals, density)
        square = block[SQUARE]
        for i in range(n):
            square[i] = density[i] / spread[i]
        multivariate.log_density(d, block[HALF], spread, block[DETERMINANT], density)
        student_t.add(density, choice[1 + j], density)
    told = rest[TOLD : TOLD + CHOICES]
    student_t.explain(rest[DENSITY : DENSITY + CHOICES], rest[ONE], each, told)
    arithmetic.copy(each, rest[EVIDENCE])
    for k in range(CHOICES):
        density, prior, lead = rest[DENSITY + k], choice[k], rest[LEARNED + k]
        for i in range(n):
            lead[i] = density[i] - prior[i] - each[i]
    # The walk and the outliers are independent for certain.
    each[n - 2] = walk_density
    each[n - 1] = astray


@implements(step.count, Joint)
def count(model: Joint, context: Floats) -> float:
    """`(1 - r) / (1 + r)` by the sums over errors and their neighbours."""
    return _count(model.outputs, context[context.shape[0] - WATCHED * model.outputs :])


@compiled
def _count(d: int, watched: Floats) -> float:
    r = 0.0
    for o in range(d):
        r = max(r, watched[2 * d + o] / watched[d + o])
    return (1.0 - r) / (1.0 + r)


@implements(step.believe, Joint)
def believe(model: Joint, number: Floats, work: Floats, params: Floats, log_score: float) -> float:
    """As independent outputs, by the probabilities of the three; fills what they learn."""
    alone, rest = params[: model.alone], params[model.alone :]
    _share(model.outputs, model.at, work[SHARE], rest)
    _believe(model.outputs, model.at, number, work, alone, rest)
    return averaged.score_with_walk(model.outputs, NOISE, work, alone, log_score)


@compiled
def _share(d: int, at: Places, share: Floats, rest: Floats) -> None:
    """How much of a label each of the three learns."""
    n = whole(share)
    for k in range(CHOICES):
        out = rest[LEARNED + k]
        for i in range(n):
            out[i] = arithmetic.exp(out[i] if out[i] < FAR_AHEAD else FAR_AHEAD)
        for i in range(n):
            odds = averaged.odds_of(share[i]) * out[i]
            odds = odds if odds < CERTAIN else CERTAIN
            out[i] = odds / (1.0 + odds)
        if k > NORMAL:
            square = rest[BLOCKS + (k - 1) * at.block + SQUARE]
            for i in range(n):
                heavy = (TAILS + d) / (TAILS + square[i])
                out[i] *= heavy if heavy < 1.0 else 1.0


@compiled
def _believe(d: int, at: Places, number: Floats, work: Floats, alone: Floats, rest: Floats) -> None:
    """What is believed of the label, and the forecasts."""
    n, chance, mass = whole(work[CHANCE]) - 2, work[CHANCE], work[MASS]
    before, after = rest[ONE], rest[OTHER]
    _multiply(chance, rest[WEIGHT], before)
    _multiply(mass, rest[TOLD], after)
    for o in range(d):
        expected, learned = averaged.expect(
            d, NOISE, o, number, before, after, rest[LEARNED], alone
        )
        for j in range(TOGETHER):
            loc, weight = rest[BLOCKS + j * at.block + LOCATION + o], rest[WEIGHT + 1 + j]
            told, share = rest[TOLD + 1 + j], rest[LEARNED + 1 + j]
            for i in range(n):
                if chance[i] > 0:
                    expected += chance[i] * weight[i] * loc[i]
                if mass[i] > 0:
                    learned += mass[i] * told[i] * share[i]
        averaged.keep_belief(d, o, number, chance, expected, learned, alone)


@compiled
def _multiply(left: Floats, right: Floats, out: Floats) -> None:
    for i in range(whole(out)):
        out[i] = left[i] * right[i]


@implements(step.learn, Joint)
def learn(
    model: Joint, number: Floats, context: Floats, share: Floats, own: Floats, params: Floats
) -> None:
    """Conjugate update of all, and of their probabilities."""
    d, alone, rest = model.outputs, params[: model.alone], params[model.alone :]
    averaged.learn_parts(d, NOISE, number, context[0], rest[LEARNED], own[model.at.end :], alone)
    for j in range(TOGETHER):
        _learn(d, model.at, j, number, context, own, rest)
    averaged.log_shares(share, rest[ONE], rest[OTHER])
    for k in range(CHOICES):
        choice = own[model.at.choice + k]
        averaged.reweigh(rest[DENSITY + k], rest[EVIDENCE], rest[ONE], rest[OTHER], choice)


@compiled
def _learn(
    d: int, at: Places, j: int, number: Floats, context: Floats, own: Floats, rest: Floats
) -> None:
    """Update one vector autoregression."""
    p, share = d + 1, rest[LEARNED + 1 + j]
    gain, product = rest[ONE], rest[OTHER]
    block, errors = rest[BLOCKS + j * at.block :], rest[BLOCKS + TOGETHER * at.block :]
    n, variance = whole(share), block[VARIANCE]
    for i in range(n):
        gain[i] = share[i] / (1.0 + share[i] * variance[i])
    for o in range(d):
        error, loc = errors[o], block[LOCATION + o]
        for i in range(n):
            error[i] = number[LABEL + o] - loc[i]
    for a in range(p):
        _multiply(gain, block[at.solved + a], product)
        for o in range(d):
            regression.add_product(product, errors[o], own[(j * p + a) * d + o])
    multivariate.scatter(d, errors, gain, own[at.psi + j * d * d :])
    _count_label(d, context, share, own[at.inverse + j * p * p :], own[at.nu + j])


@compiled
def _count_label(d: int, context: Floats, share: Floats, inverse: Floats, nu: Floats) -> None:
    """Update what a label changes wherever it lies."""
    p, n = d + 1, whole(share)
    for a in range(p):
        for b in range(p):
            square, entry = _feature(d, context, a) * _feature(d, context, b), inverse[a * p + b]
            for i in range(n):
                entry[i] += share[i] * square
    for i in range(n):
        nu[i] += share[i]


@implements(step.remember, Joint)
def remember(model: Joint, number: Floats, params: Floats, context: Floats) -> None:
    """The errors, then as independent outputs."""
    _watch(model.outputs, number, params[: model.alone], context)
    averaged.advance(model.outputs, number, params[: model.alone], context)


@compiled
def _watch(d: int, number: Floats, alone: Floats, context: Floats) -> None:
    """What is known of errors; before the time moves on."""
    watched = context[context.shape[0] - WATCHED * d :]
    row = averaged.believed_of(d, alone)
    for o in range(d):
        if number[LABELLED] == 0:
            watched[3 * d + o] = 0.0  # what follows has no neighbour
            continue
        location, scale, variance = context[1 + o], context[1 + d + o], watched[o]
        error = _in_units(number[LABEL + o], location, scale)
        error -= _in_units(alone[row + o, 1], location, scale)
        z = min(max(error / math.sqrt(variance), -FAR), FAR)
        moved = (min(error * error, FAR**2 * variance) - variance) / (BEFORE + context[0])
        watched[o] = variance + moved
        watched[d + o] += z * z
        watched[2 * d + o] += z * watched[3 * d + o]
        watched[3 * d + o] = z


@inlined
def _in_units(value: float, location: float, scale: float) -> float:
    held: float = min(max((value - location) / scale, -FARTHEST), FARTHEST)
    return held


@implements(step.summarise, Joint)
def summarise(
    model: Joint,
    number: Floats,
    chance: Floats,
    params: Floats,
    levels: Floats,
    spare: Floats,
    out: Floats,
) -> None:
    """Moments, and each output's mixture of Student-t."""
    d, alone, rest = model.outputs, params[: model.alone], params[model.alone :]
    student_t.describe(d, NOISE, alone)
    _moments(d, model.at, chance, alone, rest, spare[0], out)
    for o in range(d):
        n = _gather(d, model.at, o, chance, alone, rest, spare)
        mixture.tabulate(spare, n)
        student_t.marginal(d, o, mixture.SKEWED_T, number, levels, spare, n, out)


@compiled
def _moments(
    d: int, at: Places, chance: Floats, alone: Floats, rest: Floats, spare: Floats, out: Floats
) -> None:
    """Mean and covariance; inf on the diagonal where a variance does not exist."""
    means = rest[BLOCKS + TOGETHER * at.block :]
    for o in range(d):
        _multiply(rest[WEIGHT], alone[o], means[o])
        for j in range(TOGETHER):
            loc = rest[BLOCKS + j * at.block + LOCATION + o]
            regression.add_product(rest[WEIGHT + 1 + j], loc, means[o])
        _variances(d, at, o, alone, rest)
    mixture.moments(chance, means[:d], alone[d : 2 * d], whole(chance), out)
    for a in range(d):
        for b in range(a):
            total = _beside(d, at, a, b, chance, alone, rest, spare)
            out[d + a * d + b] += total
            out[d + b * d + a] += total


@compiled
def _variances(d: int, at: Places, o: int, alone: Floats, rest: Floats) -> None:
    """Turn an output's variances by independent outputs into those of hypotheses."""
    own, mean = rest[WEIGHT], rest[BLOCKS + TOGETHER * at.block + o]
    first, variance = alone[o], alone[d + o]
    n = whole(mean)
    for i in range(n):
        apart = first[i] - mean[i]
        variance[i] = own[i] * (variance[i] + apart * apart) if own[i] > 0 else 0.0
    for j in range(TOGETHER):
        block, weight = rest[BLOCKS + j * at.block :], rest[WEIGHT + 1 + j]
        loc, square, half = block[LOCATION + o], block[at.square + o], block[HALF]
        for i in range(n):
            apart = loc[i] - mean[i]
            within = square[i] * half[i] / (half[i] - 1.0) if half[i] > 1.0 else INF
            variance[i] += weight[i] * (within + apart * apart) if weight[i] > 0 else 0.0


@compiled
def _beside(
    d: int, at: Places, a: int, b: int, chance: Floats, alone: Floats, rest: Floats, spare: Floats
) -> float:
    """Average covariance of two outputs within hypotheses."""
    n, own, means = whole(chance), rest[WEIGHT], rest[BLOCKS + TOGETHER * at.block :]
    for i in range(n):
        spare[i] = own[i] * ((alone[a, i] - means[a, i]) * (alone[b, i] - means[b, i]))
    for j in range(TOGETHER):
        block, weight = rest[BLOCKS + j * at.block :], rest[WEIGHT + 1 + j]
        half, spread, product = block[HALF], block[SPREAD], rest[ONE]
        arithmetic.fill(product, 0.0)
        for c in range(b + 1):
            left, right = block[at.factor + a * d + c], block[at.factor + b * d + c]
            for i in range(n):
                product[i] += left[i] * right[i]
        left, right = block[LOCATION + a], block[LOCATION + b]
        for i in range(n):
            between = (left[i] - means[a, i]) * (right[i] - means[b, i])
            within = spread[i] * half[i] / (half[i] - 1.0) if half[i] > 1.0 else 0.0
            spare[i] += weight[i] * (between + within * product[i])
    return arithmetic.dot(chance, spare, n)


@compiled
def _gather(
    d: int, at: Places, o: int, chance: Floats, alone: Floats, rest: Floats, out: Floats
) -> int:
    """Components of one output that have a weight, filled up; returns how many."""
    share, norm = rest[ONE], rest[OTHER]
    _multiply(chance, rest[WEIGHT], share)
    count = student_t.gather_parts(d, NOISE, o, share, alone, out)
    for j in range(TOGETHER):
        block = rest[BLOCKS + j * at.block :]
        half, loc, square = block[HALF], block[LOCATION + o], block[at.square + o]
        _multiply(chance, rest[WEIGHT + 1 + j], share)
        for i in range(whole(half)):
            least, factor, _ = _SPECIAL.student_t_norm(half[i])
            norm[i] = least + 0.5 * arithmetic.log(factor)
        count = student_t.append(count, share, loc, square, half, norm, 1.0, out)
    return student_t.complete(count, out)
