"""Predictives that are Student-t, or averages of several of them, of independent outputs.

Rows of `params` for `d` outputs of `P` parts: means and variances (d each); half the degrees of
freedom and what log densities at zero are made of (FREEDOM), for the parts of normal noise, for
the others, if there are any, and of each output's last part if it has its own; then d P each:
locations, squared scales, log densities of the label (with the log weight), log weights; and of
several parts the label's log densities together (d), the weights and the probabilities of the parts
given the label (d P each). The last column is the prior's.
"""

from __future__ import annotations

import math

import numpy as np

from model_core.compiled import LABEL, LABELLED, arithmetic, mixture
from model_core.compiled.arithmetic import INF
from model_core.compiled.belief import CHANCE, EACH
from model_core.compiled.jit import Floats, call, compiled, either, inlined, whole
from model_core.compiled.ops import maths
from model_core.compiled.step import Noise, RowStep
from model_core.maths.conjugate import OUTLIER_SPREAD

_FAMILIES, _SPECIAL = maths("families"), maths("special")
# Rows of what depends on the degrees of freedom alone: half of them; the log density at zero with
# unit scale, less half the logarithm of the next row until `describe` adds it; 1 / degrees. See
# there for what stands in the last two after it.
HALF, NORM, FACTOR, INVERSE, FREEDOM = range(5)
TOLERANCE = 5e-4  # of a quantile's last step, in scales; its error is of the third order


@either
def _shared(noise: Noise) -> int:
    """Groups of FREEDOM that all outputs share."""
    return 1 if noise.normal + noise.own == noise.parts else 2


@either
def before_locations(outputs: int, noise: Noise) -> int:
    """First row of the locations."""
    return 2 * outputs + FREEDOM * (_shared(noise) + outputs * noise.own)


@either
def lines_of(outputs: int, noise: Noise) -> int:
    """Lines of `params`."""
    several = outputs + 2 * outputs * noise.parts if noise.parts > 1 else 0
    return before_locations(outputs, noise) + 4 * outputs * noise.parts + several


@inlined
def weights_of(outputs: int, noise: Noise) -> int:
    """First row of the weights of several parts; those given the label follow."""
    return before_locations(outputs, noise) + outputs + 4 * outputs * noise.parts


@inlined
def freedom_of(outputs: int, noise: Noise, k: int) -> int:
    """First row of FREEDOM of a part, counted over all outputs."""
    parts, group = noise.parts, 0
    if k % parts >= parts - noise.own:
        group = _shared(noise) + k // parts
    elif k % parts >= noise.normal:
        group = 1
    return 2 * outputs + FREEDOM * group


@compiled
def add_norms(outputs: int, noise: Noise, params: Floats) -> None:
    """Fill what depends on the degrees of freedom alone, once their halves are there."""
    for first in range(2 * outputs, before_locations(outputs, noise), FREEDOM):
        half, norm, factor = params[first + HALF], params[first + NORM], params[first + FACTOR]
        inverse = params[first + INVERSE]
        for i in range(whole(half)):
            norm[i], factor[i], inverse[i] = _SPECIAL.student_t_norm(half[i])


@compiled
def finish(outputs: int, noise: Noise, params: Floats) -> None:
    """Norms, weights and the outliers' scales, once the rest is there."""
    add_norms(outputs, noise, params)
    parts, n = noise.parts, whole(params[0])
    squares = before_locations(outputs, noise) + outputs * parts
    for k in range(outputs * parts):
        params[squares + k, n - 1] *= OUTLIER_SPREAD
    if parts > 1:
        at = weights_of(outputs, noise)
        for k in range(outputs * parts):
            arithmetic.exp_of(params[squares + 2 * outputs * parts + k], 0.0, params[at + k], n)


@compiled
def densities(
    y: float, freedom: Floats, loc: Floats, square: Floats, skew: float, out: Floats
) -> None:
    """Log densities of one label, by the rows of `params`; freedom: those of FREEDOM."""
    half, norm, factor, inverse = freedom[HALF], freedom[NORM], freedom[FACTOR], freedom[INVERSE]
    for i in range(whole(out)):
        out[i] = _FAMILIES.skewed_t_log_density(
            y - loc[i], 1.0 / square[i], skew, half[i], norm[i], factor[i], inverse[i]
        )


@compiled
def _highest(rows: Floats, out: Floats) -> None:
    arithmetic.copy(rows[0], out)
    for k in range(1, rows.shape[0]):
        own = rows[k]
        for i in range(whole(out)):
            out[i] = own[i] if own[i] > out[i] else out[i]


@compiled
def fold(densities: Floats, top: Floats, out: Floats) -> None:
    """Fill `out` with the log of the sum of a few rows' exponentials, `top` with the highest."""
    n = whole(out)
    _highest(densities, top)
    arithmetic.fill(out, 0.0)
    for k in range(densities.shape[0]):
        own = densities[k]
        for i in range(n):
            out[i] += arithmetic.exp(own[i] - top[i])
    for i in range(n):
        out[i] = top[i] + arithmetic.log(out[i])


@compiled
def explain(densities: Floats, top: Floats, out: Floats, told: Floats) -> None:
    """As `fold`, and each row's share of the sum into `told`."""
    n = whole(out)
    _highest(densities, top)
    arithmetic.fill(out, 0.0)
    for k in range(densities.shape[0]):
        own, share = densities[k], told[k]
        for i in range(n):
            share[i] = arithmetic.exp(own[i] - top[i])
        arithmetic.add(out, share, out)
    for k in range(densities.shape[0]):
        share = told[k]
        for i in range(n):
            share[i] /= out[i]
    for i in range(n):
        out[i] = top[i] + arithmetic.log(out[i])


@compiled
def log_density(outputs: int, noise: Noise, number: Floats, params: Floats, each: Floats) -> None:
    """Fill the label's log densities, of every part and together."""
    parts = noise.parts
    first, size = before_locations(outputs, noise), outputs * parts
    arithmetic.fill(each, 0.0)
    for o in range(outputs):
        for k in range(o * parts, o * parts + parts):
            loc, square = params[first + k], params[first + size + k]
            own, at = params[first + 2 * size + k], freedom_of(outputs, noise, k)
            freedom, skew = params[at : at + FREEDOM], noise.skews[k - o * parts]
            densities(number[LABEL + o], freedom, loc, square, skew, own)
            if parts == 1:
                arithmetic.add(each, own, each)
            else:
                arithmetic.add(own, params[first + 3 * size + k], own)
        if parts > 1:
            at = first + 2 * size + o * parts
            together = params[first + 4 * size + o]
            told = weights_of(outputs, noise) + (outputs + o) * parts
            own, top = params[at : at + parts], params[o]  # its mean comes later
            explain(own, top, together, params[told : told + parts])
            arithmetic.add(each, together, each)


@compiled
def score(step: RowStep) -> float:
    """Log density of all outputs; of all of which it counts for run lengths."""
    model = step.model
    log_density(model.outputs, model.noise, step.number, step.params, step.work[EACH])
    return 1.0


@compiled
def describe(outputs: int, noise: Noise, params: Floats) -> None:
    """Fill norms, means and variances of each hypothesis; inf where a variance does not exist.

    FACTOR and INVERSE become the variance and the mean size, with unit scale.
    """
    n = whole(params[0])
    for first in range(2 * outputs, before_locations(outputs, noise), FREEDOM):
        half, norm = params[first + HALF], params[first + NORM]
        factor, size = params[first + FACTOR], params[first + INVERSE]
        for i in range(n):
            norm[i] += 0.5 * arithmetic.log(factor[i])
        for i in range(n):
            factor[i] = half[i] / (half[i] - 1.0)
        for i in range(n):
            size[i] = arithmetic.exp(norm[i]) * 2.0 * half[i] / (half[i] - 0.5)
    parts, at = noise.parts, weights_of(outputs, noise)
    first, every = before_locations(outputs, noise), outputs * parts
    for o in range(outputs):
        mean, variance = params[o], params[outputs + o]
        arithmetic.fill(mean, 0.0)
        arithmetic.fill(variance, 0.0)
        for k in range(o * parts, o * parts + parts):
            loc, square = params[first + k], params[first + every + k]
            weight = params[at + k if parts > 1 else o]
            size = params[freedom_of(outputs, noise, k) + INVERSE]
            skew = noise.skews[k - o * parts]
            for i in range(n):
                mean[i] += (weight[i] if parts > 1 else 1.0) * loc[i]
            if skew != 1.0:
                for i in range(n):
                    offset = size[i] * (skew - 1.0 / skew)
                    mean[i] += weight[i] * (offset * math.sqrt(square[i]))
        for k in range(o * parts, o * parts + parts):
            loc, square = params[first + k], params[first + every + k]
            weight = params[at + k if parts > 1 else o]
            group, skew = freedom_of(outputs, noise, k), noise.skews[k - o * parts]
            within, size = params[group + FACTOR], params[group + INVERSE]
            if skew == 1.0:
                for i in range(n):
                    apart = loc[i] - mean[i]
                    share = weight[i] if parts > 1 else 1.0
                    variance[i] += share * (apart * apart + square[i] * within[i])
                continue
            wide = skew * skew - 1.0 + 1.0 / (skew * skew)
            for i in range(n):
                offset = size[i] * (skew - 1.0 / skew)
                apart = loc[i] + offset * math.sqrt(square[i]) - mean[i]
                inside = wide * within[i] - offset * offset
                variance[i] += weight[i] * (apart * apart + square[i] * inside)
        for group in range(_shared(noise)):
            half = params[2 * outputs + FREEDOM * group + HALF]
            for i in range(n):
                variance[i] = variance[i] if half[i] > 1.0 else INF
        if noise.own:
            last = (o + 1) * parts - 1
            half = params[freedom_of(outputs, noise, last) + HALF]
            weight = params[at + last if parts > 1 else o]
            for i in range(n):
                # One of no weight does not count.
                counts = parts == 1 or weight[i] != 0.0
                variance[i] = variance[i] if half[i] > 1.0 or not counts else INF


@compiled
def gather(
    outputs: int,
    noise: Noise,
    output: int,
    chance: Floats,
    params: Floats,
    out: Floats,
) -> int:
    """The first components of one output's mixture; returns how many have a weight."""
    parts, first, n = noise.parts, before_locations(outputs, noise), 0
    size, share = outputs * parts, out[mixture.TAIL]  # filled later
    weights = weights_of(outputs, noise)
    for k in range(output * parts, output * parts + parts):
        loc, square = params[first + k], params[first + size + k]
        weight = params[weights + k if parts > 1 else output]
        at, skew = freedom_of(outputs, noise, k), noise.skews[k - output * parts]
        half, norm = params[at + HALF], params[at + NORM]
        for i in range(whole(chance)):
            share[i] = chance[i] * weight[i] if parts > 1 else chance[i]
        n = append(n, share, loc, square, half, norm, skew, out)
    return n


@compiled
def append(
    n: int,
    share: Floats,
    loc: Floats,
    square: Floats,
    half: Floats,
    norm: Floats,
    skew: float,
    out: Floats,
) -> int:
    """Add to n components those that have a weight `share`; returns how many there are.

    norm: the log density at zero with unit scale. `marginal` follows the last ones.
    """
    for i in range(whole(loc)):
        if share[i] > mixture.NEGLIGIBLE:
            out[mixture.WEIGHT, n] = share[i]
            out[mixture.LOC, n] = loc[i]
            out[mixture.INVERSE, n] = square[i]
            out[mixture.HALF, n] = half[i]
            out[mixture.NORM, n] = norm[i]
            out[mixture.SKEW, n] = skew
            n += 1
    return n


@compiled
def summarise(step: RowStep, levels: Floats, spare: Floats, out: Floats) -> float:
    """Mean, covariance, the label's cumulative probability (twice) and quantiles."""
    model = step.model
    chance = step.work[CHANCE]
    params = step.params
    outputs, noise = model.outputs, model.noise
    describe(outputs, noise, params)
    mixture.moments(chance, params[:outputs], params[outputs : 2 * outputs], chance.shape[0], out)
    for o in range(outputs):
        n = gather(outputs, noise, o, chance, params, spare)
        call(step.marginal, outputs, o, mixture.STUDENT_T, step.number, levels, spare, n, out)
    return 0.0


@compiled
def marginal(
    outputs: int,
    output: int,
    family: int,
    number: Floats,
    levels: Floats,
    components: Floats,
    n: int,
    out: Floats,
) -> float:
    """One output's cumulative probability at the label (twice) and quantiles, after its mean.

    components: the n first of its mixture, see `append`.
    """
    first, count = outputs + outputs * outputs, levels.shape[1]
    centre, filled, heavy = out[output], mixture.complete(components, n), 0
    spread = mixture.spread(components, filled, centre)
    if family == mixture.STUDENT_T:
        heavy = mixture.weigh(components, filled, spread)
    cdf = np.nan
    if number[LABELLED] > 0:
        y = number[LABEL + output]
        cdf = mixture.sums(y, spread, components, heavy, filled, family)[0]
    out[first + output] = cdf
    out[first + outputs + output] = cdf
    at = first + 2 * outputs + output * count
    mixture.quantiles(
        levels, centre, spread, TOLERANCE, components, heavy, filled, family, -INF,
        out[at : at + count],
    )  # fmt: skip
    return 0.0
