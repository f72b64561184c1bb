"""`upm.joint.Joint`: independent outputs as in `averaged`, or a vector autoregression.

Lines of the statistics: those of `averaged`, then of the vector autoregressions `M`, `Lambda`,
`psi` and `nu` (see `wishart`) of each in turn, and the log choice (1 + V). Lines of `params`: those
of `averaged`; then, for each of the three (the independent outputs and both vector
autoregressions), the label's log density with the log choice, the probability given the label, the
share that it learns (until `learn` its lead: log density over the average of all), and the weight
in the forecast; the log of the label's density by all; lines to work in, two and one for each
output; and a block of `wishart` for each vector autoregression.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from model_core.compiled import LABEL, LABELLED, arithmetic, mixture
from model_core.compiled.arithmetic import INF
from model_core.compiled.belief import CHANCE, EACH, MASS, SHARE
from model_core.compiled.jit import Floats, call, compiled, either, inlined, whole
from model_core.compiled.models import averaged, student_t, wishart
from model_core.compiled.models.wishart import HALF, LOCATION, SQUARE
from model_core.compiled.ops import maths
from model_core.compiled.step import Functions, Model, Noise, RowStep
from model_core.maths.regression import TAILS
from model_core.upm import joint
from model_core.upm.base import FARTHEST
from model_core.upm.joint import BEFORE, CERTAIN, FAR, TOGETHER, WATCHED

_REGRESSION, _SPECIAL = maths("regression"), maths("special")
CHOICES = 1 + TOGETHER
# First lines after those of `averaged`; the first four are of each of the three.
DENSITY, LIKELIHOOD, LEARNED, WEIGHT = range(0, 4 * CHOICES, CHOICES)
EVIDENCE, ONE, OTHER, MEANS = range(4 * CHOICES, 4 * CHOICES + 4)
NORMAL = 1  # vector autoregressions, the first, whose noise is normal


class Places(NamedTuple):
    """First lines of the statistics of the vector autoregressions; of `params` after `averaged`'s.

    block: lines of a block.
    """

    matrix: int
    inverse: int
    psi: int
    nu: int
    choice: int
    more: int
    blocks: int
    block: int


@either
def places_of(d: int, noise: Noise) -> Places:
    """By the number of outputs."""
    p = d + 1
    matrix = averaged.lines_of(d, noise)
    inverse = matrix + TOGETHER * p * d
    psi = inverse + TOGETHER * p * p
    nu = psi + TOGETHER * d * d
    more = averaged.params_of(d, noise)
    blocks, block = more + MEANS + d, wishart.block_of(d, p).end
    return Places(matrix, inverse, psi, nu, nu + TOGETHER, more, blocks, block)


def of(model: joint.Joint) -> tuple[Model, Functions]:
    """Sizes and functions of a model."""
    noise = averaged.noise_of(model)
    at = places_of(model.y_dim, noise)
    sizes = Model(
        outputs=model.y_dim,
        kept=at.choice + CHOICES,
        params=at.blocks + TOGETHER * at.block,
        spare=mixture.FIELDS,
        spares=noise.parts + TOGETHER,
        noise=noise,
    )
    return sizes, Functions(predict, score, learn, remember, summarise)


@compiled
def predict(step: RowStep) -> float:
    """All three, and the walk."""
    model = step.model
    context = step.context
    own = step.own
    params = step.params
    d, noise = model.outputs, model.noise
    averaged.regress(d, noise, context, own, params)
    beside = averaged.complete(d, noise, context, params)
    at, p, n = places_of(d, noise), d + 1, whole(own[0])
    for j in range(TOGETHER):
        block = params[at.blocks + j * at.block :]
        wishart.forecast(
            d, p, context, own[at.matrix + j * p * d :], own[at.inverse + j * p * p :],
            own[at.psi + j * d * d :], own[at.nu + j], INF if j < NORMAL else TAILS, block,
        )  # fmt: skip
        for o in range(d):
            loc = block[LOCATION + o]
            least, most = averaged.bounds(d, o, context)
            for i in range(n):
                loc[i] = max(least, min(most, loc[i]))
    for k in range(CHOICES):
        weight = params[at.more + WEIGHT + k]
        arithmetic.exp_of(own[at.choice + k], 0.0, weight, n)
        # The walk and the outliers are independent for certain.
        for i in range(n - 2, n):
            weight[i] = 1.0 if k == 0 else 0.0
    return beside


@compiled
def score(step: RowStep) -> float:
    """Log density of all outputs by all three; the share by the sums over errors in a row."""
    model = step.model
    number = step.number
    context = step.context
    params = step.params
    d, noise, density = model.outputs, model.noise, step.work[EACH]
    at, n = places_of(d, noise), whole(density)
    student_t.log_density(d, noise, number, params, density)
    walk_density, astray = density[n - 2], density[n - 1]
    more = params[at.more : at.blocks]
    choice = step.own[at.choice : at.choice + CHOICES]
    arithmetic.add(density, choice[0], more[DENSITY])
    for j in range(TOGETHER):
        together = more[DENSITY + 1 + j]
        wishart.score(d, d + 1, number, params[at.blocks + j * at.block :], together)
        arithmetic.add(together, choice[1 + j], together)
    likelihood = more[LIKELIHOOD : LIKELIHOOD + CHOICES]
    student_t.explain(more[DENSITY : DENSITY + CHOICES], more[ONE], density, likelihood)
    arithmetic.copy(density, more[EVIDENCE])
    for k in range(CHOICES):
        own_density, prior, lead = more[DENSITY + k], choice[k], more[LEARNED + k]
        for i in range(n):
            lead[i] = own_density[i] - prior[i] - density[i]
    # The walk and the outliers are independent for certain.
    density[n - 2] = walk_density
    density[n - 1] = astray
    watched = context[context.shape[0] - WATCHED * d :]
    r = 0.0
    for o in range(d):
        r = max(r, watched[2 * d + o] / watched[d + o])
    return (1.0 - r) / (1.0 + r)


@compiled
def learn(step: RowStep, log_score: float) -> float:
    """Conjugate update of all, and of their probabilities."""
    model = step.model
    number = step.number
    context = step.context
    own = step.own
    params = step.params
    work = step.work
    d, noise, share = model.outputs, model.noise, work[SHARE]
    at, p = places_of(d, noise), d + 1
    more = params[at.more : at.blocks]
    _share(d, at, share, params)
    _believe(d, noise, at, number, params, work)
    log_score = averaged.score_with_walk(d, noise, log_score, params)
    averaged.update(d, noise, number, context[0], more[LEARNED], own, params)
    for j in range(TOGETHER):
        wishart.learn(
            d, p, number, context, more[LEARNED + 1 + j], params[at.blocks + j * at.block :],
            own[at.matrix + j * p * d :], own[at.inverse + j * p * p :],
            own[at.psi + j * d * d :], own[at.nu + j],
        )  # fmt: skip
    averaged.log_shares(share, more[ONE], more[OTHER])
    for k in range(CHOICES):
        choice = own[at.choice + k]
        averaged.reweigh(more[DENSITY + k], more[EVIDENCE], more[ONE], more[OTHER], choice)
    return log_score


@compiled
def _share(d: int, at: Places, share: Floats, params: Floats) -> None:
    """How much of a label each of the three learns."""
    n = whole(share)
    for k in range(CHOICES):
        out = params[at.more + LEARNED + k]
        for i in range(n):
            out[i] = min(_REGRESSION.share_of(share[i], out[i]), CERTAIN)
        if k > NORMAL:
            square = params[at.blocks + (k - 1) * at.block + SQUARE]
            for i in range(n):
                out[i] *= _REGRESSION.precision(square[i], float(d))


@compiled
def _believe(
    d: int, noise: Noise, at: Places, number: Floats, params: Floats, work: Floats
) -> None:
    """What is believed of the label, and the forecasts."""
    n, chance, mass = whole(work[CHANCE]) - 2, work[CHANCE], work[MASS]
    more = params[at.more : at.blocks]
    before, after = more[ONE], more[OTHER]
    arithmetic.multiply(chance, more[WEIGHT], before)
    arithmetic.multiply(mass, more[LIKELIHOOD], after)
    for o in range(d):
        expected, learned = averaged.expect(
            d, noise, o, number, before, after, more[LEARNED], params
        )
        for j in range(TOGETHER):
            loc, weight = params[at.blocks + j * at.block + LOCATION + o], more[WEIGHT + 1 + j]
            likelihood, share = more[LIKELIHOOD + 1 + j], more[LEARNED + 1 + j]
            for i in range(n):
                if chance[i] > 0:
                    expected += chance[i] * weight[i] * loc[i]
                if mass[i] > 0:
                    learned += mass[i] * likelihood[i] * share[i]
        averaged.keep_belief(d, noise, o, number, chance, expected, learned, params)


@compiled
def remember(step: RowStep) -> float:
    """The errors, then as independent outputs."""
    model = step.model
    number = step.number
    context = step.context
    params = step.params
    line = averaged.believed_of(model.outputs, model.noise)
    _watch(model.outputs, line, number, params, context)
    averaged.advance(model.outputs, model.noise, number, context, params)
    return 0.0


@compiled
def _watch(d: int, line: int, number: Floats, params: Floats, context: Floats) -> None:
    """What is known of errors; before the time moves on. line: of what is believed of labels."""
    watched = context[context.shape[0] - WATCHED * d :]
    for o in range(d):
        if number[LABELLED] == 0:
            watched[3 * d + o] = 0.0  # what follows has no neighbour
            continue
        location, scale, variance = context[1 + o], context[1 + d + o], watched[o]
        error = _in_units(number[LABEL + o], location, scale)
        error -= _in_units(params[line + o, 1], location, scale)
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


@compiled
def summarise(step: RowStep, levels: Floats, spare: Floats, out: Floats) -> float:
    """Moments, and each output's mixture of Student-t."""
    model = step.model
    chance = step.work[CHANCE]
    params = step.params
    d, noise = model.outputs, model.noise
    at, n = places_of(d, noise), whole(chance)
    more = params[at.more : at.blocks]
    student_t.describe(d, noise, params)
    for o in range(d):
        mean = more[MEANS + o]
        arithmetic.multiply(more[WEIGHT], params[o], mean)
        for j in range(TOGETHER):
            loc = params[at.blocks + j * at.block + LOCATION + o]
            arithmetic.add_product(more[WEIGHT + 1 + j], loc, mean)
        _variances(d, at, o, params)
    mixture.moments(chance, more[MEANS : MEANS + d], params[d : 2 * d], n, out)
    for a in range(d):
        for b in range(a):
            total = _beside(d, at, a, b, chance, params)
            out[d + a * d + b] += total
            out[d + b * d + a] += total
    for o in range(d):
        arithmetic.multiply(chance, more[WEIGHT], more[ONE])
        count = student_t.gather(d, noise, o, more[ONE], params, spare)
        for j in range(TOGETHER):
            block = params[at.blocks + j * at.block :]
            half, loc = block[HALF], block[LOCATION + o]
            square = block[wishart.block_of(d, d + 1).squares + o]
            arithmetic.multiply(chance, more[WEIGHT + 1 + j], more[ONE])
            for i in range(n):
                least, factor, _ = _SPECIAL.student_t_norm(half[i])
                more[OTHER, i] = least + 0.5 * arithmetic.log(factor)
            count = student_t.append(count, more[ONE], loc, square, half, more[OTHER], 1.0, spare)
        call(step.marginal, d, o, mixture.STUDENT_T, step.number, levels, spare, count, out)
    return 0.0


@compiled
def _variances(d: int, at: Places, o: int, params: Floats) -> None:
    """Turn an output's variances by independent outputs into those of hypotheses."""
    more = params[at.more : at.blocks]
    own, mean = more[WEIGHT], more[MEANS + o]
    first, variance = params[o], params[d + o]
    n = whole(mean)
    for i in range(n):
        apart = first[i] - mean[i]
        variance[i] = own[i] * (variance[i] + apart * apart) if own[i] > 0 else 0.0
    for j in range(TOGETHER):
        block, weight = params[at.blocks + j * at.block :], more[WEIGHT + 1 + j]
        loc, half = block[LOCATION + o], block[HALF]
        square = block[wishart.block_of(d, d + 1).squares + o]
        for i in range(n):
            apart = loc[i] - mean[i]
            within = square[i] * half[i] / (half[i] - 1.0) if half[i] > 1.0 else INF
            variance[i] += weight[i] * (within + apart * apart) if weight[i] > 0 else 0.0


@compiled
def _beside(d: int, at: Places, a: int, b: int, chance: Floats, params: Floats) -> float:
    """Average covariance of two outputs within hypotheses."""
    more, n = params[at.more : at.blocks], whole(chance)
    share, spare = more[ONE], more[OTHER]
    left, right = more[MEANS + a], more[MEANS + b]
    for i in range(n):
        between = (params[a, i] - left[i]) * (params[b, i] - right[i])
        spare[i] = chance[i] * (more[WEIGHT, i] * between)
    total = arithmetic.total(spare, n)
    for j in range(TOGETHER):
        block = params[at.blocks + j * at.block :]
        one, other = block[LOCATION + a], block[LOCATION + b]
        arithmetic.multiply(chance, more[WEIGHT + 1 + j], share)
        for i in range(n):
            spare[i] = share[i] * ((one[i] - left[i]) * (other[i] - right[i]))
        total += arithmetic.total(spare, n)
        total += wishart.covariance(d, d + 1, a, b, share, block, spare)
    return total
