"""Mixtures of negative binomials: masses, distribution function, quantiles.

`components` is (FIELDS, M), a column for each component; M is at least EXACT_COUNTS.
"""

from __future__ import annotations

import math

import numpy as np

from model_core.compiled import arithmetic, mixture
from model_core.compiled.arithmetic import INF, maths
from model_core.compiled.jit import Floats, compiled
from model_core.maths.families import EXACT_COUNTS
from model_core.quantiles import COUNT_STEPS

# As `mixture` has them, the family's parameters from its first place on.
WEIGHT = mixture.WEIGHT
SHAPE, RATE, SHARE, RUNNING, CUMULATIVE = range(mixture.PARAMETERS, mixture.PARAMETERS + 5)
FIELDS = mixture.SCALE + 1
_FAMILIES = maths("families")
_SPECIAL = maths("special")
ROUNDING = 1e-12  # by which a sum of masses may miss a level that it meets


@compiled
def log_masses(y: float, shape: Floats, rate: Floats, out: Floats) -> None:
    """Log mass at a count under each component; -inf below zero."""
    if y < 0:
        arithmetic.fill(out, -INF)
    elif y < 1:
        for i in range(out.shape[0]):
            out[i] = _FAMILIES.negative_binomial_log_zero(shape[i], rate[i])
    else:
        error = _SPECIAL.stirling_error(y)
        for i in range(out.shape[0]):
            out[i] = _FAMILIES.negative_binomial_log_mass(y, error, shape[i], rate[i])


@compiled
def small_counts(components: Floats, n: int, counts: int, cumulative: Floats) -> None:
    """Cumulative probability of each of the first few counts."""
    weight = components[WEIGHT]
    shape = components[SHAPE]
    rate = components[RATE]
    running = components[RUNNING]
    share = components[SHARE]
    for i in range(n):
        share[i] = rate[i] / (shape[i] + rate[i])
        running[i] = weight[i] * arithmetic.exp(
            _FAMILIES.negative_binomial_log_zero(shape[i], rate[i])
        )
    cumulative[0] = arithmetic.total(running, n)
    for k in range(1, counts):
        for i in range(n):
            running[i] *= _FAMILIES.negative_binomial_growth(k, shape[i], share[i])
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
        total += components[WEIGHT, i] * _FAMILIES.negative_binomial_large(
            value, components[SHAPE, i], components[RATE, i]
        )
    return total


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
        if k < EXACT_COUNTS:
            continue
        # Outwards from a normal's quantile to a bracket, then false position and halving in turn.
        low = EXACT_COUNTS - 1.0
        high = INF
        below = cumulative[EXACT_COUNTS - 1] - level
        above = 1.0 - level
        spread = math.sqrt(variance) if math.isfinite(variance) else mean
        x = max(float(np.floor(mean + spread * levels[1, j])), low + 1)
        for step in range(COUNT_STEPS):
            excess = cdf(x, components, n, cumulative) - level + ROUNDING
            if excess >= 0:
                high = x
                above = excess
            else:
                low = x
                below = excess
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
        out[j] = high


@compiled
def summarise(y: float, levels: Floats, components: Floats, n: int, out: Floats) -> None:
    """Cumulative probabilities at a label and below it, and quantiles, after mean and variance.

    y: nan where there is no label.
    """
    cumulative = components[CUMULATIVE]
    small_counts(components, n, EXACT_COUNTS, cumulative)
    for k in range(2):
        out[2 + k] = np.nan if math.isnan(y) else cdf(y - k, components, n, cumulative)
    quantiles(levels, out[0], out[1], components, n, cumulative, out[4:])
