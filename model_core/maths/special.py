"""Distribution functions, and parts of gamma functions in closed form: differences of lgamma lose
digits of large arguments.
"""

from __future__ import annotations

import math

from model_core.maths.ops import (
    exp,
    fma,
    half_erfc,
    log,
    log1p,
    maximum,
    minimum,
    sqrt,
    where,
)

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
ROOT_2_PI = math.sqrt(2 * math.pi)
ROOT_HALF = math.sqrt(0.5)  # argument of erfc in that of the normal
FARTHEST = 1e150  # whose square does not overflow
COUNT_SHIFTS = 24  # steps of a recurrence in the shape


def student_t_norm(half: float) -> tuple[float, float, float]:
    """Log density at zero of Student's t of `2 half` degrees of freedom, half >= 1/4.

    The first two are `n` and `f` of the density `n + log(f) / 2`, whose logarithm may be one of a
    product; the last is `1 / (2 half)`. With a = half it is `lgamma(a + 1/2) - lgamma(a) -
    log(2 pi a) / 2`, by the asymptotic series at `a + 8` and the recurrence of the gamma function.
    """
    a = half
    p = (a * (a + 1.0)) * ((a + 2.0) * (a + 3.0))
    p = p * (((a + 4.0) * (a + 5.0)) * ((a + 6.0) * (a + 7.0)))
    q = ((a + 0.5) * (a + 1.5)) * ((a + 2.5) * (a + 3.5))
    q = q * (((a + 4.5) * (a + 5.5)) * ((a + 6.5) * (a + 7.5)))
    ratio = p / q
    b = a + 8.0
    both = 1.0 / (a * b)
    x = a * both
    w = x * x
    series = fma(w, -5461 / 425984.0, 691 / 180224.0)
    series = fma(w, series, -31 / 18432.0)
    series = fma(w, series, 17 / 14336.0)
    series = fma(w, series, -1 / 640.0)
    series = fma(w, series, 1 / 192.0)
    series = fma(w, series, -0.125) * x
    return series - HALF_LOG_2PI, ratio * ratio * (b * b * both), 0.5 * b * both


def stirling_error(x: float) -> float:
    """`lgamma(x)` less Stirling's formula; below 16 by the recurrence of the gamma function."""
    small = x < 16.0
    b = where(small, x + 16.0, x)
    inverse = 1.0 / b
    w = inverse * inverse
    series = inverse * (1 / 12 - w * (1 / 360 - w * (1 / 1260 - w * (1 / 1680))))
    y = where(small, x, 1.0)
    s = y * (y + 15.0)  # factors in pairs: (y + k) (y + 15 - k)
    p = (s * (s + 14.0)) * ((s + 26.0) * (s + 36.0))
    p = p * (((s + 44.0) * (s + 50.0)) * ((s + 54.0) * (s + 56.0)))
    near = (b - 0.5) * log(b) - 16.0 - log(p)
    return series + where(small, near - (y - 0.5) * log(y), 0.0)


def student_t_table(half: float) -> tuple[float, ...]:
    """What `student_t` needs of the degrees of freedom, beside half of them and the log norm."""
    a = 0.5 / half
    b = a * ((half + 0.5) / (half + 1.0))
    c = b * ((half + 1.5) / (half + 2.0))
    d = c * ((half + 2.5) / (half + 3.0))
    e = d * ((half + 3.5) / (half + 4.0))
    hill = 2.0 * half + 9.5
    square = 48.0 * hill * hill
    slope = ROOT_HALF / square
    return a, b, c, d, e, hill, square + 100.0, slope, ROOT_HALF + 3.0 * slope


def student_t(
    t: float, half: float, norm: float, a: float, b: float, c: float, d: float, e: float,
    hill: float, hill_b: float, slope: float, level: float,
) -> tuple[float, float, float]:  # fmt: skip
    """CDF of Student's t, to 2e-10 for a degree of freedom and more, density, `1 / (1 + t^2 / df)`.

    norm: log density at zero. The last ones are of `student_t_table`.

    The tail is `I_x(df/2, 1/2) / 2` with `x = df / (df + t^2)`. `I_x(a, b) = I_x(a+1, b) +
    x^a (1-x)^b / (a B(a, b))` moves `df` up by 2 at a time, five times; there Hill's normalising
    expansion (Hill 1970, *CACM* algorithm 395) is exact enough. The first term is `2 |t| / df`
    densities.
    """
    t = minimum(maximum(t, -FARTHEST), FARTHEST)
    ratio = t * t * a
    x = 1.0 / (1.0 + ratio)
    more = log1p(ratio)
    density = student_t_density(more, half, norm)
    bent = student_t_bent(more, hill, hill_b, slope, level)
    # Of the side of t, so that a small lower tail is as exact as it is small.
    tail = half_erfc(bent) + abs(t) * density * student_t_series(x, a, b, c, d, e)
    return where(t < 0, tail, 1.0 - tail), density, x


def student_t_density(more: float, half: float, norm: float) -> float:
    """Density of Student's t; more: `log(1 + t^2 / df)`."""
    return exp(norm - (half + 0.5) * more)


def student_t_bent(more: float, hill: float, hill_b: float, slope: float, level: float) -> float:
    """Hill's normal quantile over `sqrt(2)`, of ten degrees of freedom more."""
    y = hill * more
    poly = ((-0.4 * y - 3.3) * y - 24.0) * y - 85.5
    bend = y + poly / (hill_b + 0.8 * y * y)
    return (level + bend * slope) * sqrt(y)


def student_t_series(x: float, a: float, b: float, c: float, d: float, e: float) -> float:
    """Terms of the recurrence, in densities times `|t|`; x: `1 / (1 + t^2 / df)`."""
    return (((e * x + d) * x + c) * x + b) * x + a


def peizer_pratt(k: float, shape: float, p: float, q: float) -> float:
    """Approximate CDF of a negative binomial at a large count (Peizer and Pratt 1968, *JASA* 63).

    p, q: probabilities that add up to one; `p` is the rate's share of rate and shape.
    """
    n = shape + k
    # k + 2/3 - (n + 1/3) p, without the large terms where p is nearly 1
    d = where(q < 0.5, 1 / 3 - shape + (n + 1 / 3) * q, k + 2 / 3 - (n + 1 / 3) * p)
    d = d + 0.02 * (q / (k + 1.0) - p / shape + (q - 0.5) / (n + 1.0))
    above = q * _bend((k + 0.5) / (n * p))
    spread = 1.0 + above + p * _bend((shape - 0.5) / (n * q))
    z = d * sqrt(maximum(spread / ((n + 1 / 6) * p * q), 0.0))
    tail = half_erfc(abs(z) * ROOT_HALF)
    return where(z < 0, tail, 1.0 - tail)


def _bend(x: float) -> float:
    x = maximum(x, 1e-12)
    near = abs(1.0 - x) < 1e-4
    safe = where(near, 0.5, x)
    apart = 1.0 - safe
    exact = (1.0 - safe * safe + 2.0 * safe * log(safe)) / (apart * apart)
    return where(near, (1.0 - x) / 3.0, exact)
