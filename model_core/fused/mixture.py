"""Mixtures of distributions of one family, of one output: distribution function and quantiles.

What `predictive`, `quantiles` and `special` compute. A component is a place of a vector: weight,
location, squared scale, half the degrees of freedom (of a normal anything), log density at zero.
"""

from __future__ import annotations

import triton.language as tl

from model_core.fused import arithmetic
from model_core.fused.jit import compiled

INF = arithmetic.INF
HALLEY_STEPS = tl.constexpr(12)
BRACKET_STEPS = tl.constexpr(200)
NEWTON_STEPS = tl.constexpr(40)  # in a bracket; then it is halved
NEAR = tl.constexpr(1e-12)  # of a tail, below which the normal's quantile is not worth taking
TOLERANCE = tl.constexpr(1e-4)  # of a quantile's last step, in scales
STUDENT_T, NORMAL = tl.constexpr(0), tl.constexpr(1)  # families


@compiled
def norm_of(half: tl.tensor, FAMILY: tl.constexpr) -> tl.tensor:
    """Log density at zero of components of scale 1."""
    if FAMILY == NORMAL:
        norm = tl.full(half.shape, -arithmetic.HALF_LOG_2PI, tl.float64)
    else:
        norm = arithmetic.student_t_norm(half)
    return norm


@compiled
def variance(square: tl.tensor, half: tl.tensor, FAMILY: tl.constexpr) -> tl.tensor:
    """Variance of each component, inf where it has none."""
    if FAMILY == STUDENT_T:
        exists = half > 1.0
        inside = square * half / tl.where(exists, half - 1.0, 1.0)
        square = tl.where(exists, inside, INF)
    return square


@compiled
def log_density(
    y: tl.tensor, loc: tl.tensor, square: tl.tensor, half: tl.tensor, FAMILY: tl.constexpr
) -> tl.tensor:
    """Log density of a label under each component."""
    error = y - loc
    if FAMILY == NORMAL:
        rest = 0.5 * (error * error / square)
    else:
        rest = (half + 0.5) * arithmetic.log1p(error * error / (square * 2.0 * half))
    return norm_of(half, FAMILY) - 0.5 * tl.log(square) - rest


@compiled
def sums(
    x: tl.tensor,
    weight: tl.tensor,
    loc: tl.tensor,
    square: tl.tensor,
    half: tl.tensor,
    norm: tl.tensor,
    FAMILY: tl.constexpr,
) -> tl.tensor:
    """Distribution function, density and its derivative at x."""
    inverse = 1.0 / tl.sqrt(square)
    t = tl.minimum(tl.maximum((x - loc) * inverse, -1e150), 1e150)
    if FAMILY == NORMAL:
        tail = arithmetic.half_erfc(tl.abs(t) * arithmetic.ROOT_HALF)
        density = tl.exp(norm - 0.5 * t * t) * inverse
        derivative = -density * inverse * t
    else:
        tail, density, derivative = student_t(t, inverse, half, norm)
    cdf = tl.sum(tl.where(weight > 0, weight * tl.where(t < 0, tail, 1.0 - tail), 0.0), 0)
    total = tl.sum(tl.where(weight > 0, weight * density, 0.0), 0)
    return cdf, total, tl.sum(tl.where(weight > 0, weight * derivative, 0.0), 0)


@compiled
def student_t(t: tl.tensor, inverse: tl.tensor, half: tl.tensor, norm: tl.tensor) -> tl.tensor:
    """Upper tail at `|t|`, density and its derivative at t, as `special.student_t`."""
    a = 0.5 / half
    b = a * ((half + 0.5) / (half + 1.0))
    c = b * ((half + 1.5) / (half + 2.0))
    d = c * ((half + 2.5) / (half + 3.0))
    e = d * ((half + 3.5) / (half + 4.0))
    ratio = t * t * a
    u = 1.0 / (1.0 + ratio)
    more = arithmetic.log1p(ratio)
    density = tl.exp(norm - (half + 0.5) * more)
    series = (((e * u + d) * u + c) * u + b) * u + a
    hill = 2.0 * half + 9.5
    y = hill * more
    poly = ((-0.4 * y - 3.3) * y - 24.0) * y - 85.5
    hills = 48.0 * hill * hill
    bend = y + poly / (hills + 100.0 + 0.8 * y * y)
    slope = arithmetic.ROOT_HALF / hills
    level = arithmetic.ROOT_HALF + 3.0 * slope
    tail = arithmetic.half_erfc((level + bend * slope) * tl.sqrt(y))
    tail = tail + tl.abs(t) * density * series
    density = density * inverse
    return tail, density, -density * inverse * (2.0 * half + 1.0) * t * u * a


@compiled
def scales(
    weight: tl.tensor, loc: tl.tensor, square: tl.tensor, norm: tl.tensor, centre: tl.tensor
) -> tl.tensor:
    """Spread around the mean, and the scale of the narrowest component."""
    scale = tl.exp(-norm) * tl.sqrt(square) / arithmetic.ROOT_2_PI
    between = tl.sum(weight * (loc - centre) * (loc - centre), 0)
    within = tl.sum(weight * scale, 0)
    narrowest = tl.min(tl.where(weight > 0, scale, INF), 0)
    return tl.sqrt(between + within * within), narrowest


@compiled
def quantile(
    level: tl.tensor,
    normal: tl.tensor,
    centre: tl.tensor,
    spread: tl.tensor,
    small: tl.tensor,
    weight: tl.tensor,
    loc: tl.tensor,
    square: tl.tensor,
    half: tl.tensor,
    norm: tl.tensor,
    FAMILY: tl.constexpr,
) -> tl.tensor:
    """Quantile at a level; `normal` is that of the standard normal, `small` the last step.

    Halley's method for `ndtri(F(x)) = normal`; where that does not arrive, Newton's in a bracket.
    """
    start = centre + spread * normal
    x = start
    # 1: goes on, 0: has arrived, as has what is not finite, 2: does not arrive
    left = tl.where(arithmetic.finite(start) & arithmetic.finite(small), 1, 0)
    step = 0
    while (left == 1) & (step < HALLEY_STEPS):
        cdf, density, derivative = sums(x, weight, loc, square, half, norm, FAMILY)
        usual = (cdf > NEAR) & (cdf < 1.0 - NEAR) & (density > 0)
        some = tl.where(usual, density, 1.0)
        z = arithmetic.ndtri(tl.where(usual, cdf, 0.5))
        slope = some * arithmetic.ROOT_2_PI * tl.exp(0.5 * z * z)
        bend = z * slope * slope + derivative / some * slope
        newton = (z - normal) / slope
        move = newton / tl.maximum(1.0 - 0.5 * newton * bend / slope, 0.5)
        x = tl.where(usual, x - move, x)
        left = tl.where(usual, tl.where(tl.abs(move) < small, 0, 1), 2)
        step += 1
    if left != 0:
        x = in_bracket(level, start, spread, 1e-3 * small, weight, loc, square, half, norm, FAMILY)
    return x


@compiled
def in_bracket(
    level: tl.tensor,
    start: tl.tensor,
    spread: tl.tensor,
    small: tl.tensor,
    weight: tl.tensor,
    loc: tl.tensor,
    square: tl.tensor,
    half: tl.tensor,
    norm: tl.tensor,
    FAMILY: tl.constexpr,
) -> tl.tensor:
    """Newton's method kept inside a bracket, as `quantiles._newton`."""
    x = start
    low = start * 0.0 - INF
    high = start * 0.0 + INF
    limit = 4.0 * spread
    going = 1
    step = 0
    while (going == 1) & (step < BRACKET_STEPS):
        cdf, density, _ = sums(x, weight, loc, square, half, norm, FAMILY)
        excess = cdf - level
        low = tl.where(excess < 0, x, low)
        high = tl.where(excess > 0, x, high)
        move = tl.minimum(tl.maximum(-excess / tl.maximum(density, 1e-300), -limit), limit)
        new = x + move
        new = tl.where(new == x, x - tl.where(excess > 0, limit, -limit), new)
        bounded = arithmetic.finite(low) & arithmetic.finite(high)
        middle = tl.where(bounded, 0.5 * (low + high), x)
        met = tl.abs(excess) < 2e-15 * level
        shut = bounded & ((middle == low) | (middle == high))
        near = tl.abs(move) < small
        halve = bounded & ((new <= low) | (new >= high) | (step >= NEWTON_STEPS))
        after = tl.where(halve, middle, new)
        x = tl.where(met, x, tl.where(shut, high, tl.where(near, x + move, after)))
        going = tl.where(met | shut | near, 0, 1)
        limit = limit * 2.0
        step += 1
    return x
