"""Mixtures of real or of positive labels: moments, distribution function, quantiles.

What `predictive` and `quantiles` compute. `components` is (FIELDS, M), a column for each
component of one output's mixture.

Promised: the cumulative probability of a quantile is the level to 1e-10, and of levels below 0.1
to 1e-9 of the level; a label's cumulative probability is exact to 2e-10.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from numba.extending import overload

from model_core.compiled import arithmetic, single
from model_core.compiled.arithmetic import INF
from model_core.compiled.jit import (
    OPTIONS,
    Floats,
    compiled,
    inlined,
    regrouped,
    state_at,
    widest,
)
from model_core.compiled.ops import maths
from model_core.maths import counterpart
from model_core.maths.special import FARTHEST, ROOT_2_PI
from model_core.table import LANES

# Numbers in single precision that the widest vectors hold: components are filled up to whole ones.
SINGLE_LANES = 2 * LANES
_FAMILIES, _SPECIAL = maths("families"), maths("special")
NEGLIGIBLE = 1e-18  # weight of a component that is left out of quantiles
HEAVY = 1e-5  # weight of a component that quantiles need in double precision
LARGELY = 0.995  # of the mixture: if the heavy ones are less, all are taken for heavy
IN_TAILS = 1e-3  # level, of either side, beyond which all of them are needed so
HALLEY_STEPS = 12
SINGLE_STEPS = 4  # of them in single precision, at most
BRACKET_STEPS = 200
NEWTON_STEPS = 40  # in a bracket; then it is halved
NEAR = 1e-12  # of a tail, below which the normal's quantile of it is not worth taking
ARRIVED = 1e-3  # how far the normal's quantiles may still be apart before a last step
# Of the length of a last step: one as short leads to where the next is the last one; and how far
# sums of what weighs little are known beside the place that they are of.
ALMOST, ASIDE = 120.0, 10.0

# Families of real labels; one of positive labels is an instance of its class in `components`, of
# the lines at which components and `params` have its parameters.
STUDENT_T, NORMAL = range(2)

# Fields of a component of real labels. Of a Student-t TERM and what follows up to LEVEL are of
# `maths.special.student_t_table`, INVERSE is 1 / scale below the mode, ABOVE that above it, SIDE
# twice the weight that lies below it. Of a normal: weight, mean, 1 / standard deviation and log
# density at zero. SCALE is the standard deviation of a normal whose peak is as high.
LOC, SKEW, WEIGHT, INVERSE, HALF, NORM, TERM = range(7)
HILL, HILL_B, SLOPE, LEVEL, ABOVE, SIDE, SCALE = range(11, 18)
# Numbers at one place: distance of the mode in scales, log(1 + t^2 / df) and the inverse of what
# that is the logarithm of, density and tail.
DISTANCE, MORE, NEARNESS, DENSITY, TAIL = range(18, 23)
SINGLES = 23  # first of the same fields in single precision, from WEIGHT to SIDE, and numbers
FIELDS = SINGLES + TAIL + 1
# Of positive labels: weight, mean as LOC, parameters from `PARAMETERS` on, and SCALE.
PARAMETERS = INVERSE
LARGEST = single.Single(1e15)  # whose square does not overflow


@compiled
def prepare(components: Floats, heavy: int, light: int) -> tuple[int, int]:
    """Fill heavy and light components of real labels up to whole vectors.

    heavy: how many there are, the first columns. light: the first column of the others, up to the
    last one. Returns both as they are then. If the heavy ones are less than `LARGELY`, all are.
    """
    if arithmetic.total(components[WEIGHT], heavy) < LARGELY:
        return gathered(components, heavy, light), components.shape[1]
    end, begin = _padded(heavy), light & -SINGLE_LANES
    _repeat(components, 0, heavy, end)
    _repeat(components, light, begin, light)
    return end, begin


@compiled
def gathered(components: Floats, heavy: int, light: int) -> int:
    """Put the light components behind the heavy ones, filled up; returns how many there are."""
    n = heavy + components.shape[1] - light
    for k in range(TERM + 1):
        row = components[k if k < TERM else SCALE]
        for i in range(heavy, n):
            row[i] = row[i - heavy + light]
    end: int = _padded(n)
    _repeat(components, 0, n, end)
    return end


@inlined
def _padded(count: int) -> int:
    return (count + SINGLE_LANES - 1) & -SINGLE_LANES


@compiled
def _repeat(components: Floats, which: int, first: int, end: int) -> None:
    """Fill columns with copies of a component, of no weight."""
    for k in range(TERM + 1):
        row = components[k if k < TERM else SCALE]
        for i in range(first, end):
            row[i] = row[which] if k != WEIGHT else 0.0


@compiled
def weigh(components: Floats, heavy: int, light: int, unit: float) -> None:
    """Fill the fields of Student-t: of all in single precision, of the heavy ones in double.

    unit: of lengths in single precision.
    """
    _weigh_in_single(components, 0, heavy, unit)
    _weigh_in_single(components, light, components.shape[1], unit)
    _weigh_exactly(components, 0, heavy)


@compiled
def _weigh_in_single(components: Floats, first: int, end: int, unit: float) -> None:
    """Fill the fields of some Student-t in single precision."""
    widest()
    # Lines are cut one by one: those of a cut through all of them would have no known stride.
    n = (end - first) & -SINGLE_LANES
    singles = components[SINGLES:].view(np.float32)
    for k in (SKEW, WEIGHT, INVERSE, HALF, NORM):
        values, out = components[k][first:], singles[k][first:]
        by = unit if k == INVERSE else 1.0
        for i in range(n):
            out[i] = values[i] * by
    skew, inverse = singles[SKEW][first:], singles[INVERSE][first:]
    above, weight = singles[ABOVE][first:], singles[WEIGHT][first:]
    side, half = singles[SIDE][first:], singles[HALF][first:]
    a, b = singles[TERM][first:], singles[TERM + 1][first:]
    c, d = singles[TERM + 2][first:], singles[TERM + 3][first:]
    e, hill = singles[TERM + 4][first:], singles[HILL][first:]
    hill_b, slope = singles[HILL_B][first:], singles[SLOPE][first:]
    level = singles[LEVEL][first:]
    for i in range(n):
        side[i] = weight[i] * (single.TWO / (single.ONE + skew[i] * skew[i]))
        above[i] = inverse[i] / skew[i]
        inverse[i] *= skew[i]
    for i in range(n):
        a[i], b[i], c[i], d[i], e[i], hill[i], hill_b[i], slope[i], level[i] = (
            single.student_t_table(half[i])
        )


@compiled
def _weigh_exactly(components: Floats, first: int, end: int) -> None:
    """Fill the fields of some Student-t in double precision."""
    widest()
    n = (end - first) & -SINGLE_LANES
    weight, side = components[WEIGHT][first:], components[SIDE][first:]
    skew, half = components[SKEW][first:], components[HALF][first:]
    inverse, above = components[INVERSE][first:], components[ABOVE][first:]
    a, b = components[TERM][first:], components[TERM + 1][first:]
    c, d = components[TERM + 2][first:], components[TERM + 3][first:]
    e, hill = components[TERM + 4][first:], components[HILL][first:]
    hill_b, slope = components[HILL_B][first:], components[SLOPE][first:]
    level = components[LEVEL][first:]
    for i in range(n):
        side[i] = weight[i] * (2.0 / (1.0 + skew[i] * skew[i]))
        above[i] = inverse[i] / skew[i]
        inverse[i] *= skew[i]
    for i in range(n):
        a[i], b[i], c[i], d[i], e[i], hill[i], hill_b[i], slope[i], level[i] = (
            _SPECIAL.student_t_table(half[i])
        )


@compiled
def spread(components: Floats, heavy: int, light: int, centre: float) -> float:
    """Width of the mixture around its mean, by the components' SCALE."""
    between, within = _spread_of(components, 0, heavy, centre)
    between_light, within_light = _spread_of(components, light, components.shape[1], centre)
    within += within_light
    return math.sqrt(between + between_light + within * within)


@regrouped
def _spread_of(components: Floats, first: int, end: int, centre: float) -> tuple[float, float]:
    """Sums over some components: weighted squared distances from the mean, weighted SCALE."""
    widest()
    # Rows are cut: an index that does not begin at 0 might be one from the end.
    weight, loc = components[WEIGHT][first:], components[LOC][first:]
    scale = components[SCALE][first:]
    between, within = 0.0, 0.0
    for i in range(end - first):
        apart = loc[i] - centre
        between += weight[i] * (apart * apart)
        within += weight[i] * scale[i]
    return between, within


def sums(
    x: float, components: Floats, heavy: int, light: int, family: Any
) -> tuple[float, float, float]:
    """CDF, density and its derivative of a mixture, in double precision.

    Of the first `heavy` components, and of those from column `light` on.
    """
    raise NotImplementedError  # compiled as `_sums_by` says


@overload(sums, jit_options={"fastmath": {"reassoc"}, **OPTIONS}, strict=False)  # type: ignore[untyped-decorator]
def _sums_by(x: float, components: Floats, heavy: int, light: int, family: Any) -> Any:
    if isinstance(family, numba.types.Integer):
        return _real_sums
    reached = counterpart(family.instance_class.functions.reached, maths)

    def positive(
        x: float, components: Floats, heavy: int, light: int, family: Any
    ) -> tuple[float, float, float]:
        weight, y = components[WEIGHT], max(x, 0.0)
        cdf, density, derivative = 0.0, 0.0, 0.0
        for i in range(heavy):
            f, p, q = reached(y, *state_at(components, family, i))
            cdf += weight[i] * f
            density += weight[i] * p
            derivative += weight[i] * q
        return cdf, density, derivative

    return positive


def _real_sums(
    x: float, components: Floats, heavy: int, light: int, family: int
) -> tuple[float, float, float]:
    if family == NORMAL:
        return _normal_sums(x, components, heavy)
    cdf, density, derivative = _double_sums(x, components, 0, heavy)
    if light < components.shape[1]:
        f, p, q = _double_sums(x, components, light, components.shape[1])
        cdf += f
        density += p
        derivative += q
    return cdf, density, derivative


@compiled
def cdf(x: float, unit: float, components: Floats, heavy: int, light: int, family: int) -> float:
    """Of real labels; light components of Student-t count in single precision, see `quantiles`."""
    reached: float = sums(x, components, heavy, components.shape[1], family)[0]
    if light < components.shape[1]:
        reached += _single_sums(x, 1.0 / unit, components, light, components.shape[1])[0]
    return reached


@regrouped
def _normal_sums(x: float, components: Floats, n: int) -> tuple[float, float, float]:
    widest()
    weight, loc, inverse = components[WEIGHT], components[LOC], components[INVERSE]
    norm = components[NORM]
    cdf, density, derivative = 0.0, 0.0, 0.0
    for i in range(n):
        z = (x - loc[i]) * inverse[i]
        z = z if z > -1e150 else -1e150
        z = z if z < 1e150 else 1e150
        p = weight[i] * inverse[i] * arithmetic.exp(norm[i] - 0.5 * (z * z))
        cdf += weight[i] * _SPECIAL.normal_cdf(z)
        density += p
        derivative -= p * z * inverse[i]
    return cdf, density, derivative


@regrouped
def _double_sums(x: float, components: Floats, first: int, end: int) -> tuple[float, float, float]:
    """Of Student-t from the first on; loops are short as in `single`."""
    widest()
    n = (end - first) & -SINGLE_LANES  # they are filled up
    weight, side = components[WEIGHT][first:], components[SIDE][first:]
    loc, half = components[LOC][first:], components[HALF][first:]
    inverse, above = components[INVERSE][first:], components[ABOVE][first:]
    norm, hill = components[NORM][first:], components[HILL][first:]
    a, b = components[TERM][first:], components[TERM + 1][first:]
    c, d = components[TERM + 2][first:], components[TERM + 3][first:]
    e, hill_b = components[TERM + 4][first:], components[HILL_B][first:]
    slope, level = components[SLOPE][first:], components[LEVEL][first:]
    distance, more = components[DISTANCE][first:], components[MORE][first:]
    near, height = components[NEARNESS][first:], components[DENSITY][first:]
    tail = components[TAIL][first:]
    for i in range(n):
        error, left, right = x - loc[i], inverse[i], above[i]
        t = error * (left if error < 0 else right)
        t = t if t > -FARTHEST else -FARTHEST
        t = t if t < FARTHEST else FARTHEST
        ratio = t * t * a[i]
        distance[i] = t
        more[i], near[i] = arithmetic.log1p_and_inverse(ratio)
    for i in range(n):
        height[i] = _SPECIAL.student_t_density(more[i], half[i], norm[i])
        tail[i] = _SPECIAL.student_t_bent(more[i], hill[i], hill_b[i], slope[i], level[i])
    for i in range(n):
        tail[i] = arithmetic.half_erfc(tail[i])
    cdf, density, derivative = 0.0, 0.0, 0.0
    for i in range(n):
        t = distance[i]
        series = _SPECIAL.student_t_series(near[i], a[i], b[i], c[i], d[i], e[i])
        beyond = tail[i] + abs(t) * height[i] * series
        below, left, right = side[i], inverse[i], above[i]
        share = below if t < 0 else 2.0 * weight[i] - below
        narrow = left if t < 0 else right
        p = share * height[i] * narrow
        reached = share * beyond
        cdf += reached if t < 0 else weight[i] - reached
        density += p
        derivative -= p * narrow * (2.0 * half[i] + 1.0) * t * near[i] * a[i]
    return cdf, density, derivative


@regrouped
def _single_sums(
    x: float, per_unit: float, components: Floats, first: int, end: int
) -> tuple[float, float, float]:
    """Of components from the first on, as `_double_sums`.

    per_unit: `1 / unit` of lengths in single precision; in a loop that may be regrouped a product
    with a quotient would become a division.
    """
    widest()
    n = (end - first) & -SINGLE_LANES
    singles = components[SINGLES:].view(np.float32)
    loc = components[LOC][first:]
    weight, side = singles[WEIGHT][first:], singles[SIDE][first:]
    inverse, above = singles[INVERSE][first:], singles[ABOVE][first:]
    half, norm = singles[HALF][first:], singles[NORM][first:]
    a, b = singles[TERM][first:], singles[TERM + 1][first:]
    c, d = singles[TERM + 2][first:], singles[TERM + 3][first:]
    e, hill = singles[TERM + 4][first:], singles[HILL][first:]
    hill_b, slope = singles[HILL_B][first:], singles[SLOPE][first:]
    level = singles[LEVEL][first:]
    distance, more = singles[DISTANCE][first:], singles[MORE][first:]
    near, height = singles[NEARNESS][first:], singles[DENSITY][first:]
    tail = singles[TAIL][first:]
    for i in range(n):
        distance[i] = (x - loc[i]) * per_unit
    for i in range(n):
        error, left, right = distance[i], inverse[i], above[i]
        t = error * (left if error < single.ZERO else right)
        t = t if t > -LARGEST else -LARGEST
        t = t if t < LARGEST else LARGEST
        ratio = t * t * a[i]
        distance[i] = t
        more[i], near[i] = single.log1p_and_inverse(ratio)
    for i in range(n):
        height[i] = single.exp(norm[i] - (half[i] + single.HALF) * more[i])
        tail[i] = single.student_t_bent(more[i], hill[i], hill_b[i], slope[i], level[i])
    for i in range(n):
        tail[i] = single.half_erfc(tail[i])
    cdf, density, derivative = single.ZERO, single.ZERO, single.ZERO
    for i in range(n):
        t = distance[i]
        series = (((e[i] * near[i] + d[i]) * near[i] + c[i]) * near[i] + b[i]) * near[i] + a[i]
        beyond = tail[i] + abs(t) * height[i] * series
        below, left, right = side[i], inverse[i], above[i]
        share = below if t < single.ZERO else single.TWO * weight[i] - below
        narrow = left if t < single.ZERO else right
        p = share * height[i] * narrow
        reached = share * beyond
        cdf += reached if t < single.ZERO else weight[i] - reached
        density += p
        derivative -= p * narrow * (single.TWO * half[i] + single.ONE) * t * near[i] * a[i]
    return float(cdf), float(density) * per_unit, float(derivative) * (per_unit * per_unit)


@inlined
def _halley(normal: float, cdf: float, density: float, derivative: float) -> tuple[float, float]:
    """How far beyond the quantile x is by Halley's method, and `ndtri(F(x)) - normal`.

    cdf to derivative: of `sums` at x. nan where there is no quantile of the normal.
    """
    if not (NEAR < cdf < 1.0 - NEAR and density > 0):
        return np.nan, np.nan
    at = arithmetic.ndtri(cdf)
    slope = density * ROOT_2_PI * math.exp(0.5 * at * at)
    bend = at * slope * slope + derivative / density * slope
    newton = (at - normal) / slope
    return newton / max(1.0 - 0.5 * newton * bend / slope, 0.5), at - normal


@compiled
def _by_bracket(
    level: float,
    start: float,
    spread: float,
    small: float,
    components: Floats,
    heavy: int,
    light: int,
    family: Any,
    least: float,
) -> float:
    """Newton's method kept inside a bracket, as `quantiles._newton`."""
    x, low, high = start, least, INF
    for step in range(BRACKET_STEPS):
        cdf, density, _ = sums(x, components, heavy, light, family)
        excess = cdf - level
        low = x if excess < 0 else low
        high = x if excess > 0 else high
        limit = 4.0 * spread * 2.0**step
        move = min(max(-excess / max(density, 1e-300), -limit), limit)
        new = x + move
        if new == x:
            new = x - (limit if excess > 0 else -limit)
        middle = 0.5 * (low + high)
        bounded = math.isfinite(middle)
        if abs(excess) < 2e-15 * level:
            return x
        if bounded and middle in (low, high):
            return high
        if abs(move) < small:
            return x + move
        x = middle if bounded and (new <= low or new >= high or step >= NEWTON_STEPS) else new
    return x


@compiled
def _search(
    start: float,
    level: float,
    normal: float,
    per_unit: float,
    small: float,
    components: Floats,
    heavy: int,
    light: int,
) -> tuple[float, float, float, float, float]:
    """Where a quantile of Student-t is, in single precision, with sums of the light components.

    Returns where, for which place the three sums are, and those. The light ones, which hardly move
    it, are evaluated once.
    """
    x, mass, density, derivative = start, arithmetic.total(components[WEIGHT], heavy), 0.0, 0.0
    for _ in range(SINGLE_STEPS):
        cdf, density, derivative = _single_sums(x, per_unit, components, 0, heavy)
        move, _ = _halley(normal, cdf / mass, density / mass, derivative / mass)
        if math.isnan(move):
            x, density = start, math.nan
            break
        x -= move
        density -= move * derivative
        if abs(move) < ALMOST * small:
            break
    end = components.shape[1]
    if light == end:
        return x, x, 0.0, 0.0, 0.0
    at = x
    cdf_beside, density_beside, derivative_beside = _single_sums(
        x, per_unit, components, light, end
    )
    # The heavy ones have arrived, but for the light ones: their sums are known there.
    move, _ = _halley(
        normal, level * mass + cdf_beside, density + density_beside, derivative + derivative_beside
    )
    if not math.isnan(move):
        x -= move
    return x, at, cdf_beside, density_beside, derivative_beside


@compiled
def quantiles(
    levels: Floats,
    centre: float,
    spread: float,
    unit: float,
    tolerance: float,
    components: Floats,
    heavy: int,
    light: int,
    family: Any,
    least: float,
    out: Floats,
) -> None:
    """Quantiles at levels (2, Q), which stand over the normal's; centre: the mixture's mean.

    Solves `ndtri(F(x)) = normal`, of a mixture close to a normal almost a line, by Halley's method;
    where that fails by Newton's. tolerance: the last step, in scales of the narrowest component.
    least: what no label is below, 0 or -inf. heavy: how many components, the first ones, count in
    double precision. light: column from which those of Student-t are that need not. unit: of
    lengths in single precision, see `weigh`; 0 where nothing is stated so.
    """
    end = components.shape[1]
    narrowest = arithmetic.smallest(components[SCALE], heavy)
    if light < end:
        of_light = arithmetic.smallest(components[SCALE, light:], end - light)
        narrowest = min(narrowest, of_light)
    small = tolerance * narrowest
    exact = light == end
    per_unit = 1.0 / unit if unit > 0.0 else 0.0
    at, cdf_beside, density_beside, derivative_beside = 0.0, 0.0, 0.0, 0.0
    for k in range(levels.shape[1]):
        level, normal = levels[0, k], levels[1, k]
        # From 0, of positive labels, no step leads anywhere.
        start = centre + spread * normal if least < 0.0 else -centre * math.log1p(-level)
        if not exact and not IN_TAILS <= level <= 1.0 - IN_TAILS:
            _weigh_exactly(components, light, end)
            exact = True
        x, arrived = start, False
        if unit > 0.0:
            x, at, cdf_beside, density_beside, derivative_beside = _search(
                start, level, normal, per_unit, small, components, heavy, light
            )
        for _ in range(HALLEY_STEPS):
            cdf, density, derivative = sums(x, components, heavy, light if exact else end, family)
            if not exact:
                if not abs(x - at) < ASIDE * small:
                    at = x
                    cdf_beside, density_beside, derivative_beside = _single_sums(
                        x, per_unit, components, light, end
                    )
                by = x - at
                cdf += cdf_beside + by * (density_beside + 0.5 * by * derivative_beside)
                density += density_beside + by * derivative_beside
                derivative += derivative_beside
            move, apart = _halley(normal, cdf, density, derivative)
            if math.isnan(move):
                break
            x = max(x - move, least)
            # The error that is left is of third order. Steps are small as well where a positive
            # value is all but 0, however far it has to go.
            if abs(move) < small and abs(apart) < ARRIVED:
                arrived = True
                break
        if not arrived:
            if not exact:
                _weigh_exactly(components, light, end)
                exact = True
            # Its error is of the second order only.
            fine = 1e-3 * small
            x = _by_bracket(level, start, spread, fine, components, heavy, light, family, least)
        out[k] = x


@compiled
def moments(weight: Floats, means: Floats, variances: Floats, n: int, out: Floats) -> None:
    """Mean (d) and covariance (d, d) into `out`; means, variances (d, M) of the components.

    inf on the diagonal where a variance does not exist.
    """
    outputs = means.shape[0]
    for o in range(outputs):
        out[o] = arithmetic.dot(weight, means[o], n)
    for o in range(outputs):
        for p in range(o, outputs):
            value = 0.0
            for i in range(n):
                value += weight[i] * ((means[o, i] - out[o]) * (means[p, i] - out[p]))
            out[outputs + o * outputs + p] = value
            out[outputs + p * outputs + o] = value
        out[outputs + o * outputs + o] += _average(weight, variances[o], n)


@compiled
def _average(weight: Floats, values: Floats, n: int) -> float:
    """Average with weights; a value of weight 0 may be infinite."""
    average = arithmetic.dot(weight, values, n)
    if math.isfinite(average):
        return average
    average = 0.0
    for i in range(n):
        average += weight[i] * values[i] if weight[i] > 0 else 0.0
    return average
