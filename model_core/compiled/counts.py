"""Mixtures of negative binomials: masses, distribution function, quantiles; as `special` has them.

`components` is (FIELDS, M), a column for each component; M is at least LANES.
"""

from __future__ import annotations

import math

import numpy as np

from model_core.compiled import arithmetic
from model_core.compiled.arithmetic import HALF_LOG_2PI, INF
from model_core.compiled.jit import LANES, Floats, compiled, flat, inlined
from model_core.quantiles import COUNT_STEPS
from model_core.special import COUNT_SHIFTS, EXACT_COUNTS

WEIGHT, SHAPE, RATE, RUNNING, CUMULATIVE = range(5)
FIELDS = CUMULATIVE + EXACT_COUNTS // LANES  # the last of `small_counts`
ROUNDING = 1e-12  # by which a sum of masses may miss a level that it meets


@inlined
def stirling_error(x: float) -> float:
    """`lgamma(x)` less Stirling's formula; below 16 by the recurrence of the gamma function."""
    small = x < 16.0
    b = x + 16.0 if small else x
    inverse = 1.0 / b
    w = inverse * inverse
    series = inverse * (1 / 12 - w * (1 / 360 - w * (1 / 1260 - w / 1680)))
    y = x if small else 1.0
    p = (y * (y + 1.0)) * ((y + 2.0) * (y + 3.0)) * ((y + 4.0) * (y + 5.0))
    p *= ((y + 6.0) * (y + 7.0)) * ((y + 8.0) * (y + 9.0)) * ((y + 10.0) * (y + 11.0))
    p *= ((y + 12.0) * (y + 13.0)) * ((y + 14.0) * (y + 15.0))
    near = (b - 0.5) * arithmetic.log(b) - 16.0 - arithmetic.log(p)
    return series + (near - (y - 0.5) * arithmetic.log(y) if small else 0.0)


@inlined
def log_mass(k: float, error: float, shape: float, rate: float) -> float:
    """Log mass at a count k >= 1; error: `stirling_error(k)`."""
    over, total = k - rate, k + shape
    value = shape * arithmetic.log1p(over / (shape + rate))
    value -= k * arithmetic.log1p(shape * over / (total * rate))
    value += 0.5 * arithmetic.log(shape / (total * k)) - HALF_LOG_2PI
    return value + stirling_error(total) - stirling_error(shape) - error


@compiled
def log_masses(y: float, shape: Floats, rate: Floats, out: Floats) -> None:
    """Log mass at a count under each component; -inf below zero."""
    if y < 0:
        out[:] = -INF
    elif y < 1:
        for i in range(out.shape[0]):
            out[i] = -shape[i] * arithmetic.log1p(rate[i] / shape[i])
    else:
        error = stirling_error(y)
        for i in range(out.shape[0]):
            out[i] = log_mass(y, error, shape[i], rate[i])


@compiled
def small_counts(components: Floats, n: int, counts: int, cumulative: Floats) -> None:
    """Cumulative probability of each of the first few counts."""
    weight, shape, rate = components[WEIGHT], components[SHAPE], components[RATE]
    running = components[RUNNING]
    for i in range(n):
        at_zero = arithmetic.exp(-shape[i] * arithmetic.log1p(rate[i] / shape[i]))
        running[i] = weight[i] * at_zero
    cumulative[0] = arithmetic.total(running, n)
    for k in range(1, counts):
        for i in range(n):
            running[i] *= (k - 1 + shape[i]) * rate[i] / (k * (shape[i] + rate[i]))
        cumulative[k] = cumulative[k - 1] + arithmetic.total(running, n)


@compiled
def cdf(value: float, components: Floats, n: int, cumulative: Floats) -> float:
    """Cumulative probability; cumulative: (EXACT_COUNTS) of `small_counts`."""
    value = float(np.floor(value))
    if value < 0:
        return 0.0
    if value < EXACT_COUNTS:
        return min(float(cumulative[int(value)]), 1.0)
    total = 0.0
    for i in range(n):
        total += components[WEIGHT, i] * _large(value, components[SHAPE, i], components[RATE, i])
    return total


@compiled
def _large(value: float, shape: float, rate: float) -> float:
    """`special._large`: the recurrence in the shape, then Peizer and Pratt's normal."""
    k = min(value, 1e150)
    q, p = shape / (shape + rate), rate / (shape + rate)
    term = math.exp(log_mass(k + 1.0, stirling_error(k + 1.0), shape, rate)) * (k + 1.0) / shape
    total = 0.0
    for j in range(COUNT_SHIFTS):
        total += term
        term = term * q * ((shape + j + k + 1.0) / (shape + j + 1.0))
    return min(max(total + _peizer_pratt(k, shape + COUNT_SHIFTS, p, q), 0.0), 1.0)


@compiled
def _peizer_pratt(k: float, shape: float, p: float, q: float) -> float:
    n = shape + k
    # k + 2/3 - (n + 1/3) p, without the large terms where p is nearly 1
    d = 1 / 3 - shape + (n + 1 / 3) * q if q < 0.5 else k + 2 / 3 - (n + 1 / 3) * p
    d += 0.02 * (q / (k + 1) - p / shape + (q - 0.5) / (n + 1))
    spread = 1 + q * _bend((k + 0.5) / (n * p)) + p * _bend((shape - 0.5) / (n * q))
    z = d * math.sqrt(max(spread / ((n + 1 / 6) * p * q), 0.0))
    tail = arithmetic.half_erfc(abs(z) * math.sqrt(0.5))
    return tail if z < 0 else 1.0 - tail


@compiled
def _bend(x: float) -> float:
    x = max(x, 1e-12)
    if abs(1 - x) < 1e-4:
        return (1 - x) / 3
    return (1 - x * x + 2 * x * math.log(x)) / ((1 - x) * (1 - x))


@compiled
def quantiles(
    levels: Floats,
    mean: float,
    variance: float,
    components: Floats,
    n: int,
    cumulative: Floats,
    out: Floats,
) -> None:
    """Smallest counts whose cumulative probabilities reach levels (2, Q)."""
    for j in range(levels.shape[1]):
        level = levels[0, j]
        k = 0
        while k < EXACT_COUNTS and cumulative[k] - level + ROUNDING < 0:
            k += 1
        out[j] = k
        if k == EXACT_COUNTS:
            out[j] = _search(level, levels[1, j], mean, variance, components, n, cumulative)


@compiled
def _search(
    level: float,
    normal: float,
    mean: float,
    variance: float,
    components: Floats,
    n: int,
    cumulative: Floats,
) -> float:
    """Outwards from a normal's quantile to a bracket, then false position and halving in turn."""
    low, high = EXACT_COUNTS - 1.0, INF
    below, above = cumulative[EXACT_COUNTS - 1] - level, 1.0 - level
    spread = math.sqrt(variance) if math.isfinite(variance) else mean
    x = max(float(np.floor(mean + spread * normal)), low + 1)
    for step in range(COUNT_STEPS):
        excess = cdf(x, components, n, cumulative) - level + ROUNDING
        if excess >= 0:
            high, above = x, excess
        else:
            low, below = x, excess
        far = float(np.floor(0.25 * spread + 1.0)) * 2.0**step
        if high == INF:
            x = low + far
            continue
        part = below / (below - above) if step % 2 else 0.5
        inside = float(np.floor(low + part * (high - low)))
        inside = min(max(inside, low + 1), high - 1)
        if not low < inside < high:  # floats may be far apart
            break
        x = max(inside, high - far) if step < 8 else inside
    return high


@compiled
def summarise(
    number: float,
    levels: Floats,
    components: Floats,
    n: int,
    out: Floats,
) -> None:
    """Probabilities up to the label and below it, and quantiles; mean and variance are there.

    number: the label, nan without one.
    """
    cumulative = flat(components[CUMULATIVE:], EXACT_COUNTS)
    small_counts(components, n, EXACT_COUNTS, cumulative)
    out[2] = np.nan if math.isnan(number) else cdf(number, components, n, cumulative)
    out[3] = np.nan if math.isnan(number) else cdf(number - 1.0, components, n, cumulative)
    quantiles(levels, out[0], out[1], components, n, cumulative, out[4:])
