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

from model_core.compiled import arithmetic
from model_core.compiled.arithmetic import INF
from model_core.compiled.jit import OPTIONS, Floats, compiled, inlined, padded, state_at
from model_core.compiled.ops import maths
from model_core.maths.special import ROOT_2_PI
from model_core.table import LANES

_FAMILIES, _SPECIAL = maths("families"), maths("special")
NEGLIGIBLE = 1e-18  # weight of a component that is left out of quantiles
HEAVY = 1e-5  # weight of a component that the search for quantiles begins with
LARGELY = 0.99  # of the mixture: less is no beginning
HALLEY_STEPS = 12
BRACKET_STEPS = 200
NEWTON_STEPS = 40  # in a bracket; then it is halved
NEAR = 1e-12  # of a tail, below which the normal's quantile of it is not worth taking
ARRIVED = 1e-3  # how far the normal's quantiles may still be apart before a last step

# Families of real labels; one of positive labels is an instance of its class in `components`, of
# the lines at which components and `params` have its parameters.
STUDENT_T, NORMAL, SKEWED_T = range(3)

# Fields of a Student-t; TERM and what follows up to LEVEL are of `maths.special.student_t_table`.
WEIGHT, LOC, INVERSE, HALF, NORM, SKEW, TERM = range(7)
HILL, HILL_B, SLOPE, LEVEL, SCALE, FIELDS = range(11, 17)  # SCALE of all families
# Of positive labels: weight, mean as LOC, parameters from `PARAMETERS` on, and SCALE.
PARAMETERS = INVERSE
# Of a normal: weight, mean, 1 / standard deviation and log density at zero, likewise.


@compiled
def complete(components: Floats, n: int, family: int) -> int:
    """Finish n components of squared scales INVERSE, filled up to whole vectors; returns how many.

    Of real labels. Those that the search for quantiles begins with come first.
    """
    weight, inverse, first, last = components[WEIGHT], components[INVERSE], 0, n - 1
    while first < last:
        if weight[first] > HEAVY:
            first += 1
        elif weight[last] <= HEAVY:
            last -= 1
        else:
            for k in range(WEIGHT, TERM):
                row = components[k]
                row[first], row[last] = row[last], row[first]
    filled: int = padded(n)
    for k in range(WEIGHT, TERM):
        for i in range(n, filled):
            components[k, i] = components[k, 0] if k > WEIGHT else 0.0
    for i in range(filled):
        inverse[i] = 1.0 / np.sqrt(inverse[i])
    if family != NORMAL:
        for i in range(filled):
            (
                components[TERM, i],
                components[TERM + 1, i],
                components[TERM + 2, i],
                components[TERM + 3, i],
                components[TERM + 4, i],
                components[HILL, i],
                components[HILL_B, i],
                components[SLOPE, i],
                components[LEVEL, i],
            ) = _SPECIAL.student_t_table(components[HALF, i])
    return filled


@inlined
def _student_t(
    x: float, loc: float, inverse: float, half: float, norm: float,
    a: float, b: float, c: float, d: float, e: float,
    hill: float, hill_b: float, slope: float, level: float,
) -> tuple[float, float, float]:  # fmt: skip
    """CDF, density and its derivative of one."""
    t = (x - loc) * inverse
    cdf, density, u = _SPECIAL.student_t(t, half, norm, a, b, c, d, e, hill, hill_b, slope, level)
    density *= inverse
    return cdf, density, -density * inverse * (2.0 * half + 1.0) * t * u * a


# Only these sums may be regrouped, which is what makes loops that sum three things into vectors.
# The functions they call keep their order. A state holds nothing of them: quantiles alone do.
_SUMMED = {"fastmath": {"reassoc"}, **OPTIONS}


def sums(x: float, components: Floats, n: int, family: Any) -> tuple[float, float, float]:
    """CDF, density and its derivative of a mixture."""
    raise NotImplementedError  # compiled as `_sums_by` says


@overload(sums, jit_options=_SUMMED, strict=False)  # type: ignore[untyped-decorator]
def _sums_by(x: float, components: Floats, n: int, family: Any) -> Any:
    if isinstance(family, numba.types.Integer):
        return lambda x, components, n, family: _real_sums(x, components, n, family)
    reached = getattr(_FAMILIES, f"{family.instance_class.name}_reached")

    def positive(x: float, components: Floats, n: int, family: Any) -> tuple[float, float, float]:
        weight, y = components[WEIGHT], max(x, 0.0)
        cdf, density, derivative = 0.0, 0.0, 0.0
        for i in range(n):
            f, p, q = reached(y, *state_at(components, family, i))
            cdf += weight[i] * f
            density += weight[i] * p
            derivative += weight[i] * q
        return cdf, density, derivative

    return positive


@numba.njit(**_SUMMED)  # type: ignore[untyped-decorator]
def _real_sums(x: float, components: Floats, n: int, family: int) -> tuple[float, float, float]:
    weight, loc, inverse, half = components[0], components[1], components[2], components[3]
    norm, skew, a, b, c = components[4], components[5], components[6], components[7], components[8]
    d, e, hill, hill_b = components[9], components[10], components[11], components[12]
    slope, level = components[13], components[14]
    cdf, density, derivative = 0.0, 0.0, 0.0
    if family == STUDENT_T:
        for i in range(n & -LANES):  # it is filled up
            f, p, q = _student_t(
                x, loc[i], inverse[i], half[i], norm[i], a[i], b[i], c[i], d[i], e[i],
                hill[i], hill_b[i], slope[i], level[i],
            )  # fmt: skip
            cdf += weight[i] * f
            density += weight[i] * p
            derivative += weight[i] * q
    elif family == SKEWED_T:
        for i in range(n & -LANES):
            error, gamma = x - loc[i], skew[i]
            narrow = inverse[i] * (gamma if error < 0 else 1.0 / gamma)
            # The tail on its side, of a Student-t around 0.
            tail, p, q = _student_t(
                -abs(error), 0.0, narrow, half[i], norm[i], a[i], b[i], c[i], d[i], e[i],
                hill[i], hill_b[i], slope[i], level[i],
            )  # fmt: skip
            below = 2.0 / (1.0 + gamma * gamma)  # twice the probability below the mode
            side = weight[i] * (below if error < 0 else 2.0 - below)
            cdf += side * tail if error < 0 else weight[i] - side * tail
            density += side * p
            derivative += side * (q if error < 0 else -q)
    else:
        for i in range(n):
            z = (x - loc[i]) * inverse[i]
            z = z if z > -1e150 else -1e150
            z = z if z < 1e150 else 1e150
            p = weight[i] * inverse[i] * arithmetic.exp(norm[i] - 0.5 * (z * z))
            cdf += weight[i] * _SPECIAL.normal_cdf(z)
            density += p
            derivative -= p * z * inverse[i]
    return cdf, density, derivative


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
        cdf, density, _ = sums(x, components, n, family)
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
def quantiles(
    levels: Floats,
    centre: float,
    tolerance: float,
    components: Floats,
    n: int,
    family: Any,
    least: float,
    out: Floats,
) -> None:
    """Quantiles at levels (2, Q), which stand over the normal's; centre: the mixture's mean.

    Solves `ndtri(F(x)) = normal`, of a mixture close to a normal almost a line, by Halley's method;
    where that fails by Newton's. tolerance: the last step, in scales of the narrowest component.
    The first step is by the leading components alone, if they are almost all of the mixture.
    least: what no label is below, 0 or -inf; of positive labels SCALE is filled.
    """
    between, within, scales, leading = 0.0, 0.0, components[SCALE], 0
    positive = least == 0.0
    if not positive:  # of normals whose peaks are as high as those of the components
        inverse, norm = components[INVERSE], components[NORM]
        for i in range(n):
            scales[i] = arithmetic.exp(-norm[i]) / (inverse[i] * ROOT_2_PI)
    for i in range(n):
        between += components[WEIGHT, i] * (components[LOC, i] - centre) ** 2
        within += components[WEIGHT, i] * scales[i]
    spread = math.sqrt(between + within * within)
    small = tolerance * arithmetic.smallest(scales, n)
    while leading < n and components[WEIGHT, leading] > HEAVY:
        leading += 1
    leading = padded(leading)
    mass = arithmetic.total(components[WEIGHT], leading)
    for k in range(levels.shape[1]):
        level, normal = levels[0, k], levels[1, k]
        start, count, part = centre + spread * normal, n, 1.0
        if positive:  # from 0 no step leads anywhere
            start = -centre * math.log1p(-level)
        elif leading < n and mass > LARGELY:
            count, part = leading, mass
        x, arrived = start, False
        for _ in range(HALLEY_STEPS + int(count < n)):
            cdf, density, derivative = sums(x, components, count, family)
            move, apart = _halley(normal, cdf / part, density / part, derivative / part)
            if count < n:  # once
                x = x - move if math.isfinite(move) else x
                count, part = n, 1.0
                continue
            if math.isnan(move):
                break
            x = max(x - move, least)
            # The error that is left is of third order. Steps are small as well where a positive
            # value is all but 0, however far it has to go.
            if abs(move) < small and abs(apart) < ARRIVED:
                arrived = True
                break
        if not arrived:
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
