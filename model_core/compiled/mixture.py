"""Mixtures of real or of positive labels: moments, distribution function, quantiles.

What `predictive` and `quantiles` compute. `components` is (FIELDS, M), a column for each
component of one output's mixture.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from numba.extending import overload

from model_core.compiled import arithmetic, single
from model_core.compiled.arithmetic import INF
from model_core.compiled.jit import OPTIONS, Floats, compiled, inlined, padded, regrouped, state_at
from model_core.compiled.ops import maths
from model_core.maths.special import FARTHEST, ROOT_2_PI
from model_core.table import LANES

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
def complete(components: Floats, n: int) -> int:
    """Fill n components of real labels up to whole vectors; returns how many there are.

    INVERSE has squared scales. Those that are `HEAVY` come first.
    """
    weight, inverse, first, last = components[WEIGHT], components[INVERSE], 0, n - 1
    while first < last:
        if weight[first] > HEAVY:
            first += 1
        elif weight[last] <= HEAVY:
            last -= 1
        else:
            for k in range(TERM):
                row = components[k]
                row[first], row[last] = row[last], row[first]
    filled: int = padded(n)
    for k in range(TERM):
        for i in range(n, filled):
            components[k, i] = components[k, 0] if k != WEIGHT else 0.0
    norm, scale = components[NORM], components[SCALE]
    for i in range(filled):
        square = inverse[i]
        inverse[i] = 1.0 / np.sqrt(square)
        scale[i] = inverse[i] * square * (arithmetic.exp(-norm[i]) / ROOT_2_PI)
    return filled


@compiled
def weigh(components: Floats, n: int, unit: float) -> int:
    """Fill the fields of Student-t: of all in single precision, of the heavy ones in double.

    unit: of lengths in single precision. Returns how many are heavy, whole vectors.
    """
    heavy = 0
    while heavy < n and components[WEIGHT, heavy] > HEAVY:
        heavy += 1
    heavy = padded(heavy)
    if arithmetic.total(components[WEIGHT], heavy) < LARGELY:
        heavy = n
    singles = components[SINGLES:].view(np.float32)
    for k in (SKEW, WEIGHT, INVERSE, HALF, NORM):
        values, out = components[k], singles[k]
        by = unit if k == INVERSE else 1.0
        for i in range(n & -LANES):
            out[i] = values[i] * by
    skew, inverse, above = singles[SKEW], singles[INVERSE], singles[ABOVE]
    weight, side, half = singles[WEIGHT], singles[SIDE], singles[HALF]
    for i in range(n & -LANES):
        side[i] = weight[i] * (single.TWO / (single.ONE + skew[i] * skew[i]))
        above[i] = inverse[i] / skew[i]
        inverse[i] *= skew[i]
    for i in range(n & -LANES):
        (
            singles[TERM, i],
            singles[TERM + 1, i],
            singles[TERM + 2, i],
            singles[TERM + 3, i],
            singles[TERM + 4, i],
            singles[HILL, i],
            singles[HILL_B, i],
            singles[SLOPE, i],
            singles[LEVEL, i],
        ) = single.student_t_table(half[i])
    _weigh_exactly(components, 0, heavy)
    return heavy


@compiled
def _weigh_exactly(components: Floats, first: int, end: int) -> None:
    """Fill the fields of some Student-t in double precision."""
    n = (end - first) & -LANES
    weight, side = components[WEIGHT, first:], components[SIDE, first:]
    skew, half = components[SKEW, first:], components[HALF, first:]
    inverse, above = components[INVERSE, first:], components[ABOVE, first:]
    table = components[TERM : LEVEL + 1, first:]
    for i in range(n):
        side[i] = weight[i] * (2.0 / (1.0 + skew[i] * skew[i]))
        above[i] = inverse[i] / skew[i]
        inverse[i] *= skew[i]
    for i in range(n):
        (
            table[0, i],
            table[1, i],
            table[2, i],
            table[3, i],
            table[4, i],
            table[5, i],
            table[6, i],
            table[7, i],
            table[8, i],
        ) = _SPECIAL.student_t_table(half[i])


@regrouped
def spread(components: Floats, n: int, centre: float) -> float:
    """Width of the mixture around its mean, by the components' SCALE."""
    weight, loc, scale = components[WEIGHT], components[LOC], components[SCALE]
    between, within = 0.0, 0.0
    for i in range(n):
        between += weight[i] * (loc[i] - centre) ** 2
        within += weight[i] * scale[i]
    return math.sqrt(between + within * within)


def sums(
    x: float, unit: float, components: Floats, count: int, n: int, family: Any
) -> tuple[float, float, float]:
    """CDF, density and its derivative of a mixture.

    count: components of a Student-t that count in double precision. unit: of lengths in which the
    others are stated in single precision, see `quantiles`.
    """
    raise NotImplementedError  # compiled as `_sums_by` says


@overload(sums, jit_options={"fastmath": {"reassoc"}, **OPTIONS}, strict=False)  # type: ignore[untyped-decorator]
def _sums_by(x: float, unit: float, components: Floats, count: int, n: int, family: Any) -> Any:
    if isinstance(family, numba.types.Integer):
        return _real_sums
    reached = getattr(_FAMILIES, f"{family.instance_class.name}_reached")

    def positive(
        x: float, unit: float, components: Floats, count: int, n: int, family: Any
    ) -> tuple[float, float, float]:
        weight, y = components[WEIGHT], max(x, 0.0)
        cdf, density, derivative = 0.0, 0.0, 0.0
        for i in range(n):
            f, p, q = reached(y, *state_at(components, family, i))
            cdf += weight[i] * f
            density += weight[i] * p
            derivative += weight[i] * q
        return cdf, density, derivative

    return positive


def _real_sums(
    x: float, unit: float, components: Floats, count: int, n: int, family: int
) -> tuple[float, float, float]:
    if family == NORMAL:
        return _normal_sums(x, components, n)
    cdf, density, derivative = _double_sums(x, components, count)
    if count < n:
        f, p, q = _single_sums(x, unit, components, count, n)
        cdf += f
        density += p
        derivative += q
    return cdf, density, derivative


@regrouped
def _normal_sums(x: float, components: Floats, n: int) -> tuple[float, float, float]:
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
def _double_sums(x: float, components: Floats, count: int) -> tuple[float, float, float]:
    """Of the first components, which are Student-t; loops are short as in `single`."""
    n = count & -LANES  # it is filled up
    weight, side, loc = components[WEIGHT], components[SIDE], components[LOC]
    inverse, above, half, norm = (
        components[INVERSE],
        components[ABOVE],
        components[HALF],
        components[NORM],
    )
    a, b, c = components[TERM], components[TERM + 1], components[TERM + 2]
    d, e = components[TERM + 3], components[TERM + 4]
    hill, hill_b = components[HILL], components[HILL_B]
    slope, level = components[SLOPE], components[LEVEL]
    distance, more, near = components[DISTANCE], components[MORE], components[NEARNESS]
    height, tail = components[DENSITY], components[TAIL]
    for i in range(n):
        error, left, right = x - loc[i], inverse[i], above[i]
        t = error * (left if error < 0 else right)
        t = t if t > -FARTHEST else -FARTHEST
        t = t if t < FARTHEST else FARTHEST
        ratio = t * t * a[i]
        distance[i] = t
        near[i] = 1.0 / (1.0 + ratio)
        more[i] = arithmetic.log1p(ratio)
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
    x: float, unit: float, components: Floats, first: int, end: int
) -> tuple[float, float, float]:
    """Of components from the first on, as `_double_sums`."""
    n = (end - first) & -LANES
    loc = components[LOC, first:]
    singles = components[SINGLES:].view(np.float32)[:, first:]
    weight, side, inverse, above = singles[WEIGHT], singles[SIDE], singles[INVERSE], singles[ABOVE]
    half, norm = singles[HALF], singles[NORM]
    a, b, c = singles[TERM], singles[TERM + 1], singles[TERM + 2]
    d, e = singles[TERM + 3], singles[TERM + 4]
    hill, hill_b, slope, level = singles[HILL], singles[HILL_B], singles[SLOPE], singles[LEVEL]
    distance, more, near = singles[DISTANCE], singles[MORE], singles[NEARNESS]
    height, tail = singles[DENSITY], singles[TAIL]
    by = 1.0 / unit
    for i in range(n):
        distance[i] = (x - loc[i]) * by
    for i in range(n):
        error, left, right = distance[i], inverse[i], above[i]
        t = error * (left if error < single.ZERO else right)
        t = t if t > -LARGEST else -LARGEST
        t = t if t < LARGEST else LARGEST
        ratio = t * t * a[i]
        distance[i] = t
        near[i] = single.ONE / (single.ONE + ratio)
        more[i] = single.log1p(ratio)
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
    return float(cdf), float(density) / unit, float(derivative) / (unit * unit)


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
    n: int,
    family: Any,
    least: float,
) -> float:
    """Newton's method kept inside a bracket, as `quantiles._newton`."""
    x, low, high = start, least, INF
    for step in range(BRACKET_STEPS):
        cdf, density, _ = sums(x, 1.0, components, n, n, family)
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
    unit: float,
    small: float,
    components: Floats,
    heavy: int,
    n: int,
) -> tuple[float, float, float, float, float]:
    """Where a quantile of Student-t is, in single precision, with sums of the light components.

    Returns where, for which place the three sums are, and those. The light ones, which hardly move
    it, are evaluated once.
    """
    x, mass, density, derivative = start, arithmetic.total(components[WEIGHT], heavy), 0.0, 0.0
    for _ in range(SINGLE_STEPS):
        cdf, density, derivative = _single_sums(x, unit, components, 0, heavy)
        move, _ = _halley(normal, cdf / mass, density / mass, derivative / mass)
        if math.isnan(move):
            x, density = start, math.nan
            break
        x -= move
        density -= move * derivative
        if abs(move) < ALMOST * small:
            break
    if heavy == n:
        return x, x, 0.0, 0.0, 0.0
    at = x
    cdf_beside, density_beside, derivative_beside = _single_sums(x, unit, components, heavy, n)
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
    tolerance: float,
    components: Floats,
    heavy: int,
    n: int,
    family: Any,
    least: float,
    out: Floats,
) -> None:
    """Quantiles at levels (2, Q), which stand over the normal's; centre: the mixture's mean.

    Solves `ndtri(F(x)) = normal`, of a mixture close to a normal almost a line, by Halley's method;
    where that fails by Newton's. tolerance: the last step, in scales of the narrowest component.
    least: what no label is below, 0 or -inf. heavy: of Student-t, of which `spread` is the unit in
    single precision, how many components count in double precision; else 0.
    """
    small = tolerance * arithmetic.smallest(components[SCALE], n)
    exact = heavy if heavy > 0 else n
    at, cdf_beside, density_beside, derivative_beside = 0.0, 0.0, 0.0, 0.0
    for k in range(levels.shape[1]):
        level, normal = levels[0, k], levels[1, k]
        # From 0, of positive labels, no step leads anywhere.
        start = centre + spread * normal if least < 0.0 else -centre * math.log1p(-level)
        if exact < n and not IN_TAILS <= level <= 1.0 - IN_TAILS:
            _weigh_exactly(components, exact, n)
            exact = n
        x, arrived = start, False
        if heavy > 0:
            x, at, cdf_beside, density_beside, derivative_beside = _search(
                start, level, normal, spread, small, components, heavy, n
            )
        for _ in range(HALLEY_STEPS):
            cdf, density, derivative = sums(x, spread, components, exact, exact, family)
            if exact < n:
                if not abs(x - at) < ASIDE * small:
                    at = x
                    cdf_beside, density_beside, derivative_beside = _single_sums(
                        x, spread, components, exact, n
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
            if exact < n:
                _weigh_exactly(components, exact, n)
                exact = n
            # Its error is of the second order only.
            fine = 1e-3 * small
            x = _by_bracket(level, start, spread, fine, components, n, family, least)
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
