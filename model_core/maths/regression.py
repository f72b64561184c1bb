"""Regressions of a label on `(1, u)`, and how much of it each of several learns.

The posterior is the mean, level and slope, and the precision `Lambda` with its entries `a` (00),
`b` (01) and `c` (11); the noise's variance is an inverse gamma of `alpha` and `beta`. See
`upm.averaged` for the model, and `upm.joint` for what it shares.
"""

from __future__ import annotations

from model_core.maths.ops import exp, maximum, minimum

TAILS = 3.0  # degrees of freedom, at most, of noise of heavy tails
MOST_ODDS = 1e4  # at most, of a label being no outlier of a part
FAR_AHEAD = 50.0  # of a part's log density before the others'; more changes nothing
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


def squared_scale(alpha: float, beta: float, variance: float) -> float:
    """Of the predictive, a Student-t; variance: `f' Lambda^-1 f`."""
    return beta / alpha * (1.0 + variance)


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


def share_of(inlier: float, lead: float) -> float:
    """How much of a label is one of a part.

    inlier: the hypothesis's responsibility for it. lead: log density by the part over the average.
    """
    odds = minimum(inlier / (1.0 - inlier), MOST_ODDS) * exp(minimum(lead, FAR_AHEAD))
    return odds / (1.0 + odds)


def precision(far: float, outputs: float) -> float:
    """Expected precision of a label's own variance, at most one, where tails are heavy.

    far: squared distance in scales, of so many outputs. Lange, Little & Taylor 1989, *JASA* 84.
    """
    return minimum((TAILS + outputs) / (TAILS + far), 1.0)
