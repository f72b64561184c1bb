"""Predictives that are Student-t, or averages of several of them, of independent outputs.

Rows of `params` for `d` outputs of `P` parts: means and variances (d each); half the degrees of
freedom and what follows from them (FREEDOM), of the parts that share them and then of each output's
last parts if these have their own; then locations (d P), squared scales (d P C, the kinds of a part
side by side), weights (d P; of one part first the log density of the label), and of each output a
line whose first C numbers are the shares of the kinds. The last column is the prior's.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from model_core.compiled import LABEL, arithmetic, mixture
from model_core.compiled.arithmetic import INF, maths
from model_core.compiled.belief import CHANCE, EACH
from model_core.compiled.jit import Floats, call, compiled, either, entry, inlined, linewise, whole
from model_core.compiled.step import Model, Noise, RowStep, pick
from model_core.upm.base import OUTLIER_SPREAD

_FAMILIES = maths("families")
_SPECIAL = maths("special")
# Rows of what depends on the degrees of freedom alone: half of them; the log density at zero with
# unit scale, less half the logarithm of the next row; 1 / degrees; where there are several parts
# the mean size. `describe` makes FACTOR the variance with unit scale.
HALF, NORM, FACTOR, INVERSE, SIZE, FREEDOM = range(6)
# Uniform numbers that a label is drawn by: of its hypothesis and of a kind that all outputs share;
# then of each output of its part, its side and its size.
HYPOTHESIS, SHARED, DRAWN = range(3)
PART, SIDE, RADIUS, ANGLE, OF_OUTPUT = range(5)
NORMAL = 1e9  # half the degrees of freedom of a normal: its distribution function to 1e-10


class Lines(NamedTuple):
    """First lines of `params` after those of the degrees of freedom, and how many there are."""

    locations: int
    squares: int
    weights: int
    shares: int
    end: int


@either
def lines_of(outputs: int, noise: Noise) -> Lines:
    """By the number of outputs."""
    parts = outputs * noise.parts
    locations = 2 * outputs + FREEDOM * (1 + outputs if noise.own > 0 else 1)
    squares = locations + parts
    weights = squares + parts * noise.kinds
    shares = weights + parts
    return Lines(locations, squares, weights, shares, shares + outputs)


@inlined
def freedom_of(outputs: int, noise: Noise, k: int) -> int:
    """First row of FREEDOM of a part, counted over all outputs."""
    group = 1 + k // noise.parts if k % noise.parts >= noise.parts - noise.own else 0
    return 2 * outputs + FREEDOM * group


@linewise
def finish(model: Model, params: Floats) -> None:
    """Fill what follows from the degrees of freedom, and means, once all else is there."""
    outputs = model.outputs
    noise = model.noise
    at = lines_of(outputs, noise)
    for first in range(2 * outputs, at.locations, FREEDOM):
        half = params[first + HALF]
        norm = params[first + NORM]
        factor = params[first + FACTOR]
        inverse = params[first + INVERSE]
        size = params[first + SIZE]
        for i in range(whole(half)):
            norm[i], factor[i], inverse[i] = _SPECIAL.student_t_norm(half[i])
        if noise.parts > 1:
            for i in range(whole(half)):
                height = arithmetic.exp(norm[i]) * math.sqrt(factor[i])
                size[i] = height * 2.0 * half[i] / (half[i] - 0.5)
    parts = noise.parts
    for o in range(outputs):
        mean = params[o]
        shares = params[at.shares + o]
        if parts == 1:
            arithmetic.copy(params[at.locations + o], mean)
            continue
        arithmetic.fill(mean, 0.0)
        for k in range(o * parts, o * parts + parts):
            loc = params[at.locations + k]
            weight = params[at.weights + k]
            arithmetic.add_product(weight, loc, mean)
            skew = noise.skews[k - o * parts]
            if skew != 1.0:
                size = params[freedom_of(outputs, noise, k) + SIZE]
                for c in range(noise.kinds):
                    square = params[at.squares + k * noise.kinds + c]
                    share = shares[c]
                    for i in range(whole(mean)):
                        offset = size[i] * (skew - 1.0 / skew)
                        mean[i] += weight[i] * (offset * share * math.sqrt(square[i]))


@compiled
def widen(model: Model, params: Floats) -> None:
    """Turn the prior's squared scales into those of outliers."""
    first = lines_of(model.outputs, model.noise).squares
    n = whole(params[0])
    for k in range(model.outputs * model.noise.parts * model.noise.kinds):
        params[first + k, n - 1] *= OUTLIER_SPREAD


@linewise
def _highest(rows: Floats, out: Floats) -> None:
    arithmetic.copy(rows[0], out)
    for k in range(1, rows.shape[0]):
        own = rows[k]
        for i in range(whole(out)):
            out[i] = own[i] if own[i] > out[i] else out[i]


@linewise
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


@linewise
def explain(densities: Floats, top: Floats, out: Floats, shares: Floats) -> None:
    """As `fold`, and each row's share of the sum into `shares`."""
    n = whole(out)
    _highest(densities, top)
    arithmetic.fill(out, 0.0)
    for k in range(densities.shape[0]):
        own = densities[k]
        share = shares[k]
        for i in range(n):
            share[i] = arithmetic.exp(own[i] - top[i])
        arithmetic.add(out, share, out)
    for k in range(densities.shape[0]):
        share = shares[k]
        for i in range(n):
            share[i] /= out[i]
    for i in range(n):
        out[i] = top[i] + arithmetic.log(out[i])


@entry
def score(step: RowStep) -> float:
    """Log density of all outputs, each of one part."""
    params = step.params
    outputs = step.model.outputs
    noise = step.model.noise
    each = step.work[EACH]
    first = lines_of(outputs, noise).locations
    arithmetic.fill(each, 0.0)
    for o in range(outputs):
        at = freedom_of(outputs, noise, o)
        half = params[at + HALF]
        norm = params[at + NORM]
        factor = params[at + FACTOR]
        inverse = params[at + INVERSE]
        own = params[first + 2 * outputs + o]
        loc = params[first + o]
        square = params[first + outputs + o]
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


@inlined
def drawn(half: float, noise: Floats) -> float:
    """A Student-t, by two of an output's numbers: Bailey 1994, *Mathematics of Computation* 62."""
    square = 2.0 * half * math.expm1(-math.log(noise[RADIUS]) / half)
    return math.sqrt(square) * math.cos(2.0 * math.pi * noise[ANGLE])


@entry
def draw(step: RowStep, noise: Floats) -> float:
    """Draw the label, of one of the hypotheses, the outliers or what is beside them."""
    draw_outputs(step, pick(step.work[CHANCE], noise[0, HYPOTHESIS]), noise[0])
    return 0.0


@compiled
def draw_outputs(step: RowStep, column: int, noise: Floats) -> None:
    """Draw each output alone, from a kind of a part of it."""
    params = step.params
    outputs = step.model.outputs
    model = step.model.noise
    at = lines_of(outputs, model)
    for o in range(outputs):
        own = noise[DRAWN + OF_OUTPUT * o : DRAWN + OF_OUTPUT * (o + 1)]
        left = own[PART]
        part = 0
        kind = 0
        for k in range(model.parts):
            of_part = params[at.weights + o * model.parts + k, column] if model.parts > 1 else 1.0
            for c in range(model.kinds):
                weight = of_part * (params[at.shares + o, c] if model.kinds > 1 else 1.0)
                if left >= 0.0 and weight > 0.0:
                    part = k
                    kind = c
                left -= weight
        k = o * model.parts + part
        skew = model.skews[part]
        size = drawn(params[freedom_of(outputs, model, k) + HALF, column], own)
        if skew != 1.0:
            size = abs(size)
            size = -size / skew if own[SIDE] * (1.0 + skew * skew) < 1.0 else size * skew
        square = params[at.squares + k * model.kinds + kind, column]
        step.number[LABEL + o] = params[at.locations + k, column] + math.sqrt(square) * size


@linewise
def describe(model: Model, params: Floats) -> None:
    """Fill the variances of each hypothesis; inf where one does not exist.

    One part weighs 1, as does one kind of it.
    """
    outputs = model.outputs
    noise = model.noise
    n = whole(params[0])
    at = lines_of(outputs, noise)
    for first in range(2 * outputs, at.locations, FREEDOM):
        half = params[first + HALF]
        factor = params[first + FACTOR]
        for i in range(n):
            factor[i] = half[i] / (half[i] - 1.0)
    parts = noise.parts
    for o in range(outputs):
        mean = params[o]
        variance = params[outputs + o]
        shares = params[at.shares + o]
        if noise.kinds == 1:
            shares[0] = 1.0
        arithmetic.fill(variance, 0.0)
        for k in range(o * parts, o * parts + parts):
            loc = params[at.locations + k]
            weight = params[at.weights + k]
            if parts == 1:
                arithmetic.fill(weight, 1.0)
            group = freedom_of(outputs, noise, k)
            skew = noise.skews[k - o * parts]
            within = params[group + FACTOR]
            size = params[group + SIZE]
            wide = skew * skew - 1.0 + 1.0 / (skew * skew)
            for i in range(n):
                apart = loc[i] - mean[i]
                variance[i] += weight[i] * (apart * apart)
            for c in range(noise.kinds):
                square = params[at.squares + k * noise.kinds + c]
                share = shares[c]
                for i in range(n):
                    variance[i] += weight[i] * (share * wide * (within[i] * square[i]))
                if skew == 1.0:
                    continue
                for i in range(n):
                    offset = size[i] * (skew - 1.0 / skew) * math.sqrt(square[i])
                    variance[i] += weight[i] * (share * (2.0 * (loc[i] - mean[i]) * offset))
        if noise.own < parts:
            half = params[2 * outputs + HALF]
            for i in range(n):
                variance[i] = variance[i] if half[i] > 1.0 else INF
        if noise.own > 0:
            last = (o + 1) * parts - 1
            half = params[freedom_of(outputs, noise, last) + HALF]
            weight = params[at.weights + last]
            for i in range(n):
                # One of no weight does not count.
                variance[i] = variance[i] if half[i] > 1.0 or weight[i] == 0.0 else INF


@compiled
def gather(
    model: Model,
    output: int,
    allowed: float,
    count: int,
    chance: Floats,
    params: Floats,
    components: Floats,
) -> int:
    """Merge the components of one output's mixture; returns how many there are.

    Arguments are as of `mixture.merge`; chance: of the hypotheses.
    """
    outputs = model.outputs
    noise = model.noise
    parts = noise.parts
    kinds = noise.kinds
    n = 0
    at = lines_of(outputs, noise)
    shares = params[at.shares + output]
    for k in range(output * parts, (output + 1) * parts):
        n = mixture.merge(
            allowed, count, chance, params[at.weights + k], params[at.locations + k],
            params[at.squares + k * kinds : at.squares + (k + 1) * kinds], shares,
            params[freedom_of(outputs, noise, k) + HALF], noise.skews[k - output * parts], n,
            components,
        )  # fmt: skip
    return n


@entry
def summarise(step: RowStep, levels: Floats, spare: Floats, out: Floats) -> float:
    """Mean, covariance, the label's cumulative probability (twice) and quantiles."""
    outputs = step.model.outputs
    params = step.params
    describe(step.model, params)
    mixture.moments(
        step.work[CHANCE], params[:outputs], params[outputs : 2 * outputs], whole(params[0]), out
    )
    each_output(step, levels, spare, out)
    return 0.0


@compiled
def each_output(step: RowStep, levels: Floats, spare: Floats, out: Floats) -> None:
    """What is of each output's mixture alone, after the moments."""
    model = step.model
    params = step.params
    chance = step.work[CHANCE]
    outputs = model.outputs
    noise = model.noise
    count = mixture.order(chance, params[freedom_of(outputs, noise, 0) + HALF], spare)
    allowed = mixture.allowed(levels, count * noise.parts)
    for o in range(outputs):
        n = gather(model, o, allowed, count, chance, params, spare)
        call(step.marginal, outputs, o, step.number, levels, spare, n, out)
