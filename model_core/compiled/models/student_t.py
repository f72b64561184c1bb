"""Predictives that are Student-t, or averages of several of them, of independent outputs.

Rows of `params` for `d` outputs of `P` parts: means and variances (d each); half the degrees of
freedom and what follows from them (FREEDOM), of the parts that share them and then of each output's
last parts if these have their own; then d P each: locations, squared scales, and of several parts
their weights, of one the log density of the label. The last column is the prior's.
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
from model_core.maths.special import ROOT_2_PI
from model_core.upm.base import OUTLIER_SPREAD

_FAMILIES, _SPECIAL = maths("families"), maths("special")
# Rows of what depends on the degrees of freedom alone: half of them; the log density at zero with
# unit scale, less half the logarithm of the next row until `describe` adds it; 1 / degrees; where
# there are several parts the mean size. `describe` makes FACTOR the variance with unit scale, and
# INVERSE the standard deviation of a normal whose peak is as high, with unit scale: WIDTH.
HALF, NORM, FACTOR, INVERSE, SIZE, FREEDOM = range(6)
WIDTH = INVERSE
TOLERANCE = 5e-4  # of a quantile's last step, in scales; its error is of the third order


@either
def before_locations(outputs: int, noise: Noise) -> int:
    """First row of the locations."""
    groups = 1 + outputs if noise.own > 0 else 1
    return 2 * outputs + FREEDOM * groups


@either
def lines_of(outputs: int, noise: Noise) -> int:
    """Lines of `params`."""
    return before_locations(outputs, noise) + 3 * outputs * noise.parts


@inlined
def weights_of(outputs: int, noise: Noise) -> int:
    """First row of the weights of several parts."""
    return before_locations(outputs, noise) + 2 * outputs * noise.parts


@inlined
def freedom_of(outputs: int, noise: Noise, k: int) -> int:
    """First row of FREEDOM of a part, counted over all outputs."""
    group = 1 + k // noise.parts if k % noise.parts >= noise.parts - noise.own else 0
    return 2 * outputs + FREEDOM * group


@compiled
def finish(outputs: int, noise: Noise, params: Floats) -> None:
    """Fill what follows from the degrees of freedom, and means, once all else is there."""
    for first in range(2 * outputs, before_locations(outputs, noise), FREEDOM):
        half, norm, factor = params[first + HALF], params[first + NORM], params[first + FACTOR]
        inverse, size = params[first + INVERSE], params[first + SIZE]
        for i in range(whole(half)):
            norm[i], factor[i], inverse[i] = _SPECIAL.student_t_norm(half[i])
        if noise.parts > 1:
            for i in range(whole(half)):
                height = arithmetic.exp(norm[i]) * math.sqrt(factor[i])
                size[i] = height * 2.0 * half[i] / (half[i] - 0.5)
    parts, first = noise.parts, before_locations(outputs, noise)
    squares, weights = first + outputs * parts, weights_of(outputs, noise)
    for o in range(outputs):
        mean = params[o]
        if parts == 1:
            arithmetic.copy(params[first + o], mean)
            continue
        arithmetic.fill(mean, 0.0)
        for k in range(o * parts, o * parts + parts):
            loc, square, weight = params[first + k], params[squares + k], params[weights + k]
            arithmetic.add_product(weight, loc, mean)
            skew = noise.skews[k - o * parts]
            if skew != 1.0:
                size = params[freedom_of(outputs, noise, k) + SIZE]
                for i in range(whole(mean)):
                    offset = size[i] * (skew - 1.0 / skew)
                    mean[i] += weight[i] * (offset * math.sqrt(square[i]))


@compiled
def widen(outputs: int, noise: Noise, params: Floats) -> None:
    """Turn the prior's squared scales into those of outliers."""
    first, n = before_locations(outputs, noise) + outputs * noise.parts, whole(params[0])
    for k in range(outputs * noise.parts):
        params[first + k, n - 1] *= OUTLIER_SPREAD


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
def explain(densities: Floats, top: Floats, out: Floats, shares: Floats) -> None:
    """As `fold`, and each row's share of the sum into `shares`."""
    n = whole(out)
    _highest(densities, top)
    arithmetic.fill(out, 0.0)
    for k in range(densities.shape[0]):
        own, share = densities[k], shares[k]
        for i in range(n):
            share[i] = arithmetic.exp(own[i] - top[i])
        arithmetic.add(out, share, out)
    for k in range(densities.shape[0]):
        share = shares[k]
        for i in range(n):
            share[i] /= out[i]
    for i in range(n):
        out[i] = top[i] + arithmetic.log(out[i])


@compiled
def score(step: RowStep) -> float:
    """Log density of all outputs, each of one part."""
    params = step.params
    outputs, noise, each = step.model.outputs, step.model.noise, step.work[EACH]
    first = before_locations(outputs, noise)
    arithmetic.fill(each, 0.0)
    for o in range(outputs):
        at = freedom_of(outputs, noise, o)
        half, norm, factor = params[at + HALF], params[at + NORM], params[at + FACTOR]
        inverse, own = params[at + INVERSE], params[first + 2 * outputs + o]
        loc, square = params[first + o], params[first + outputs + o]
        for i in range(whole(own)):
            own[i] = _FAMILIES.student_t_log_density(
                step.number[LABEL + o] - loc[i],
                1.0 / square[i],
                half[i],
                norm[i],
                factor[i],
                inverse[i],
            )
        arithmetic.add(each, own, each)
    return 1.0


@compiled
def describe(outputs: int, noise: Noise, params: Floats) -> None:
    """Fill norms, widths and variances of each hypothesis; inf where a variance does not exist."""
    n = whole(params[0])
    for first in range(2 * outputs, before_locations(outputs, noise), FREEDOM):
        half, norm, factor = params[first + HALF], params[first + NORM], params[first + FACTOR]
        for i in range(n):
            norm[i] += 0.5 * arithmetic.log(factor[i])
        for i in range(n):
            factor[i] = half[i] / (half[i] - 1.0)
        fill_widths(norm, params[first + WIDTH])
    parts, at = noise.parts, weights_of(outputs, noise)
    first, every = before_locations(outputs, noise), outputs * parts
    for o in range(outputs):
        mean, variance = params[o], params[outputs + o]
        arithmetic.fill(variance, 0.0)
        for k in range(o * parts, o * parts + parts):
            loc, square = params[first + k], params[first + every + k]
            weight = params[at + k if parts > 1 else o]
            group, skew = freedom_of(outputs, noise, k), noise.skews[k - o * parts]
            within, size = params[group + FACTOR], params[group + SIZE]
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
        if noise.own < parts:
            half = params[2 * outputs + HALF]
            for i in range(n):
                variance[i] = variance[i] if half[i] > 1.0 else INF
        if noise.own > 0:
            last = (o + 1) * parts - 1
            half = params[freedom_of(outputs, noise, last) + HALF]
            weight = params[at + last if parts > 1 else o]
            for i in range(n):
                # One of no weight does not count.
                counts = parts == 1 or weight[i] != 0.0
                variance[i] = variance[i] if half[i] > 1.0 or not counts else INF


@compiled
def fill_widths(norm: Floats, out: Floats) -> None:
    """WIDTH by the log density at zero with unit scale."""
    for i in range(whole(out)):
        out[i] = arithmetic.exp(-norm[i]) / ROOT_2_PI


@compiled
def gather(
    outputs: int,
    noise: Noise,
    output: int,
    chance: Floats,
    params: Floats,
    out: Floats,
) -> tuple[int, int]:
    """The components of one output's mixture; returns as `append`."""
    parts, first = noise.parts, before_locations(outputs, noise)
    heavy, light = 0, out.shape[1]
    size, share = outputs * parts, out[mixture.TAIL]  # filled later
    weights = weights_of(outputs, noise)
    for k in range(output * parts, output * parts + parts):
        loc, square = params[first + k], params[first + size + k]
        weight = params[weights + k if parts > 1 else output]
        at, skew = freedom_of(outputs, noise, k), noise.skews[k - output * parts]
        for i in range(whole(chance)):
            share[i] = chance[i] * weight[i] if parts > 1 else chance[i]
        heavy, light = append(
            heavy, light, share, loc, square, params[at + HALF], params[at + NORM],
            params[at + WIDTH], skew, out,
        )  # fmt: skip
    return heavy, light


@compiled
def append(
    heavy: int,
    light: int,
    share: Floats,
    loc: Floats,
    square: Floats,
    half: Floats,
    norm: Floats,
    width: Floats,
    skew: float,
    out: Floats,
) -> tuple[int, int]:
    """Add components that have a weight `share`: heavy ones to the first, light ones to the last.

    norm: the log density at zero with unit scale. Returns how many heavy ones there are and from
    which column on the light ones; `marginal` follows the last ones.
    """
    inverse, scale = out[mixture.DENSITY], out[mixture.NEARNESS]  # filled later
    n = whole(loc)
    for i in range(n):
        root = math.sqrt(square[i])
        inverse[i] = 1.0 / root
        scale[i] = root * width[i]
    for i in range(n):
        # Without branches, which no processor could predict; what is left out is written over.
        is_heavy = share[i] > mixture.HEAVY
        place = heavy if is_heavy else light - 1
        out[mixture.WEIGHT, place] = share[i]
        out[mixture.LOC, place] = loc[i]
        out[mixture.INVERSE, place] = inverse[i]
        out[mixture.HALF, place] = half[i]
        out[mixture.NORM, place] = norm[i]
        out[mixture.SKEW, place] = skew
        out[mixture.SCALE, place] = scale[i]
        heavy += 1 if is_heavy else 0
        light -= 1 if mixture.NEGLIGIBLE < share[i] <= mixture.HEAVY else 0
    return heavy, light


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
        heavy, light = gather(outputs, noise, o, chance, params, spare)
        call(
            step.marginal, outputs, o, mixture.STUDENT_T, step.number, levels, spare, heavy, light,
            out,
        )  # fmt: skip
    return 0.0


@compiled
def marginal(
    outputs: int,
    output: int,
    family: int,
    number: Floats,
    levels: Floats,
    components: Floats,
    heavy: int,
    light: int,
    out: Floats,
) -> float:
    """One output's cumulative probability at the label (twice) and quantiles, after its mean.

    components, heavy, light: its mixture, see `append`.
    """
    first, count = outputs + outputs * outputs, levels.shape[1]
    centre, unit = out[output], 0.0
    if family == mixture.STUDENT_T:
        heavy, light = mixture.prepare(components, heavy, light)
    else:
        heavy, light = mixture.gathered(components, heavy, light), components.shape[1]
    spread = mixture.spread(components, heavy, light, centre)
    if family == mixture.STUDENT_T:
        unit = spread
        mixture.weigh(components, heavy, light, unit)
    cdf = np.nan
    if number[LABELLED] > 0:
        cdf = mixture.cdf(number[LABEL + output], unit, components, heavy, light, family)
    out[first + output] = cdf
    out[first + outputs + output] = cdf
    at = first + 2 * outputs + output * count
    mixture.quantiles(
        levels, centre, spread, unit, TOLERANCE, components, heavy, light, family, -INF,
        out[at : at + count],
    )  # fmt: skip
    return 0.0
