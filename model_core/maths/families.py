"""Families of predictive distributions, of one output: densities, tails and moments.

`y` is the label. Parameters are as the models of `upm.conjugate` state them. Families of positive
labels are in `components.positive`.
"""

from __future__ import annotations

from model_core.maths.ops import exp, log, log1p, maximum, minimum, where
from model_core.maths.special import (
    COUNT_SHIFTS,
    FARTHEST,
    HALF_LOG_2PI,
    peizer_pratt,
    stirling_error,
)

EXACT_COUNTS = 64  # counts below are summed one by one


def student_t_log_density(
    error: float, precision: float, half: float, norm: float, factor: float, inverse: float
) -> float:
    """Log density of Student's t; error: label less location. precision: 1 / squared scale.

    half: of the degrees of freedom. norm, factor, inverse: see `special.student_t_norm`.
    """
    far = error * error * precision * inverse
    return _student_t_at(far, precision, half, factor) + norm


def _student_t_at(far: float, precision: float, half: float, factor: float) -> float:
    """Less the norm; far: squared error in scales, for each degree of freedom."""
    # One logarithm for those of the norm and of the scale.
    return 0.5 * log(factor * precision) - (half + 0.5) * log1p(far)


def skewed_t_log_density(
    error: float,
    precision: float,
    skew: float,
    half: float,
    norm: float,
    factor: float,
    inverse: float,
) -> float:
    """Log density of a Student-t whose scale is `skew` times as large above the mode, and below it
    as much smaller (Fernandez and Steel 1998, *JASA* 93).
    """
    square = skew * skew
    far = error * error * precision * inverse * where(error < 0, square, 1.0 / square)
    height = log(2.0 / (skew + 1.0 / skew))
    return _student_t_at(far, precision, half, factor) + (norm + height)


def negative_binomial_log_mass(y: float, error: float, shape: float, rate: float) -> float:
    """Log mass at a count of at least 1, whose `special.stirling_error` is `error`.

    As exact for large counts and shapes as for small: with Stirling's formula the large terms
    cancel on paper and its errors remain (Loader 2000, *Fast and accurate computation of binomial
    probabilities*). Differences of lgamma lose 0.03 at a shape of 1e13.
    """
    over = y - rate
    total = y + shape
    value = shape * log1p(over / (shape + rate)) - y * log1p(shape * over / (total * rate))
    value = value + (0.5 * log(shape / (total * y)) - HALF_LOG_2PI)
    return value + stirling_error(total) - stirling_error(shape) - error


def negative_binomial_log_zero(shape: float, rate: float) -> float:
    """Log mass at zero."""
    return -shape * log1p(rate / shape)


def negative_binomial_growth(y: float, shape: float, share: float) -> float:
    """Mass at a count of at least 1 in that at the count before; share: `rate / (shape + rate)`."""
    return (y - 1.0 + shape) * share / y


def negative_binomial_large(y: float, shape: float, rate: float) -> float:
    """CDF at a large count, to 5e-6.

    `P(Y <= k) = I_q(shape, k + 1)` with `q = shape / (shape + rate)`; the recurrence of
    `special.student_t` moves the shape up to where Peizer and Pratt's normal is good.
    """
    k = minimum(maximum(y, 0.0), FARTHEST)
    both = shape + rate
    q = shape / both
    log_mass = negative_binomial_log_mass(k + 1.0, stirling_error(k + 1.0), shape, rate)
    term = exp(log_mass) * (k + 1.0) / shape
    total = 0.0 * term
    for j in range(COUNT_SHIFTS):
        total = total + term
        term = term * q * ((shape + j + k + 1.0) / (shape + j + 1.0))
    total = total + peizer_pratt(k, shape + COUNT_SHIFTS, rate / both, q)
    return minimum(maximum(total, 0.0), 1.0)


def negative_binomial_variance(shape: float, rate: float) -> float:
    """Mean plus squared mean over shape."""
    return rate + rate * rate / shape


def bernoulli_log_mass(y: float, probability: float) -> float:
    """Log mass at zero or one."""
    return log(where(y > 0.5, probability, 1.0 - probability))


def bernoulli_variance(probability: float) -> float:
    """`p (1 - p)`."""
    return probability * (1.0 - probability)
