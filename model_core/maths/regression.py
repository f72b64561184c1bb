"""Regressions of a label on `(1, u)` whose noise is a scale mixture; see `upm.averaged`.

The posterior is the mean, level and slope, and the precision `Lambda` with its entries `a` (00),
`b` (01) and `c` (11); the noise's variance is an inverse gamma of `alpha` and `beta`.
"""

from __future__ import annotations

from model_core.maths.ops import maximum, where

SCALES = (1.0, 9.0, 100.0)  # of the noise's variance: usual, heavy and wild labels
SINGULAR = 1e-14  # least determinant, as a share of what it is the difference to


def solve(a: float, b: float, c: float, u: float) -> tuple[float, float]:
    """`Lambda^-1 (1, u)`."""
    product = a * c
    # Rounding may not take the determinant to zero, where u hardly varies.
    determinant = maximum(product - b * b, SINGULAR * product)
    return (c - b * u) / determinant, (a * u - b) / determinant


def forecast(
    level: float, slope: float, a: float, b: float, c: float, u: float
) -> tuple[float, float]:
    """`k' f` and `f' Lambda^-1 f`."""
    first, second = solve(a, b, c, u)
    return level + slope * u, maximum(first + u * second, 0.0)


def squared_scale(noise: float, variance: float, scale: float) -> float:
    """Squared scale of the predictive, a Student-t, where the noise's variance has a scale.

    noise: `beta / alpha`. variance: `f' Lambda^-1 f`.
    """
    return noise * (scale + variance)


def precision(usual: float, heavy: float, wild: float) -> float:
    """Expected precision of the noise of a label, by the responsibilities of the `SCALES`."""
    return usual / SCALES[0] + heavy / SCALES[1] + wild / SCALES[2]


def side(error: float, skew: float) -> float:
    """Precision of the side of a label, where noise is `skew` times as wide above."""
    square = skew * skew
    return where(error < 0, square, 1.0 / square)


def counted(a: float, b: float, c: float, u: float, share: float) -> tuple[float, float, float]:
    """Precision after a share of a label."""
    return a + share, b + share * u, c + share * (u * u)


def moved(
    level: float, slope: float, a: float, b: float, c: float, u: float, weighted: float
) -> tuple[float, float]:
    """Mean after a label; the precision is that after it. weighted: its error times its share."""
    first, second = solve(a, b, c, u)
    return level + weighted * first, slope + weighted * second


def scatter(share: float, error: float, variance: float) -> float:
    """What a share of a label adds to beta."""
    return 0.5 * (share * (error * error) / (1.0 + share * variance))
