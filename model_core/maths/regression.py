"""Regressions of a label on `(1, u)` whose noise is a scale mixture; see `upm.averaged`.

The posterior is the mean, level and slope, and the precision `Lambda` with its entries `a` (00),
`b` (01) and `c` (11); the noise's variance is an inverse gamma of `alpha` and `beta`. Without `u`
`Lambda` is `a` alone. A label moves the mean by its share times its error times
`Lambda^-1 (1, u)`, by the precision after it.
"""

from __future__ import annotations

from model_core.maths.context import bounded
from model_core.maths.ops import exp, log, log1p, maximum, sqrt, where

SCALES = (1.0, 9.0, 100.0)  # of the noise's variance: usual, heavy and wild labels
# Gains of a trend, by an error of its forecast.
LEVEL_GAIN = 0.1
SLOPE_GAIN = 0.007
REACH = 3.0  # scales that a forecast may lie outside the range of the labels
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


def side(error: float, skew: float) -> float:
    """Precision of the side of a label, where noise is `skew` times as wide above."""
    square = skew * skew
    return where(error < 0, square, 1.0 / square)


def leads(
    error: float, skew: float, noise: float, variance: float, half: float, inverse: float
) -> tuple[float, float, float]:
    """Logs of powers in the densities of a label: leads of the heavy and of the wild scale before
    the usual one, and what that falls by from the location to the label.

    half: of the degrees of freedom. inverse: see `special.student_t_norm`.

    With `f` the squared error in squared scales of the noise and degrees of freedom, a Student-t of
    the scale c has the density of that of scale 1 times `sqrt((1 + v) / (c + v))` and a power of

        (1 + f / (c + v)) / (1 + f / (1 + v)) = 1 - (c - 1) f / ((c + v) (1 + v + f)).
    """
    first = SCALES[0] + variance
    far = error * error * side(error, skew) * inverse / noise
    share = far / (first + far)
    power = half + 0.5
    heavy = -power * log1p(-(SCALES[1] - 1.0) / (SCALES[1] + variance) * share)
    wild = -power * log1p(-(SCALES[2] - 1.0) / (SCALES[2] + variance) * share)
    return heavy, wild, power * log1p(far / first)


def explain(
    heavy_lead: float,
    wild_lead: float,
    fall: float,
    skew: float,
    noise: float,
    variance: float,
    norm: float,
    factor: float,
    usual: float,
    heavy: float,
    wild: float,
) -> tuple[float, float, float, float]:
    """Log density of a label, and the responsibilities of the `SCALES` for it, by its `leads`.

    norm, factor: see `special.student_t_norm`. usual, heavy, wild: shares of the scales, the last
    above 0. All are divided by the largest power, that of the largest scale: none overflows.
    """
    first = SCALES[0] + variance
    usual = usual * exp(-wild_lead)
    heavy = heavy * sqrt(first / (SCALES[1] + variance)) * exp(heavy_lead - wild_lead)
    wild = wild * sqrt(first / (SCALES[2] + variance))
    total = usual + heavy + wild
    height = 2.0 / (skew + 1.0 / skew)
    # One logarithm for those of the norm, of the scale and of the sum.
    peak = norm + 0.5 * log(factor * (total * total) / (noise * first)) + log(height)
    over = 1.0 / total
    return peak + wild_lead - fall, usual * over, heavy * over, wild * over


def precision(usual: float, heavy: float, wild: float) -> float:
    """Expected precision of the noise of a label, by the responsibilities of the `SCALES`."""
    return usual / SCALES[0] + heavy / SCALES[1] + wild / SCALES[2]


def counted(b: float, c: float, u: float, share: float) -> tuple[float, float]:
    """Precision after a share of a label, but for its entry 00, which counts the shares."""
    return b + share * u, c + share * (u * u)


def gain(share: float, variance: float) -> float:
    """Weight of an error after a share of its label; variance: `f' Lambda^-1 f` before it."""
    return share / (1.0 + share * variance)


def scatter(share: float, error: float, variance: float) -> float:
    """What a share of a label adds to beta."""
    # Not by `gain`: it rounds otherwise, which `joint` turns into other changes on long series.
    return 0.5 * (share * (error * error) / (1.0 + share * variance))


def bounds(location: float, scale: float, least: float, most: float) -> tuple[float, float]:
    """Least and greatest forecast that is believed; least, most: lags in the stream's units."""
    return location + scale * (least - REACH), location + scale * (most + REACH)


def believed(expected: float, y: float, share: float, outlying: bool) -> float:
    """What the lag takes a label for: the share of it that is not wild, and of an outlier nothing.

    Between the two from the nearer end: what is hardly believed, or hardly not, keeps its digits.
    """
    error = y - expected
    between = where(share < 0.5, expected + share * error, y - error * (1.0 - share))
    return where(outlying, expected, between)


def trend(least: float, most: float, level: float, slope: float) -> float:
    """Forecast of the trend, within the bounds of forecasts, in the stream's units."""
    return bounded(level + slope, least - REACH, most + REACH)


def followed(level: float, slope: float, value: float, before: float) -> tuple[float, float]:
    """Level and slope of a trend after a value; before: values it has seen, at least.

    Holt's exponential smoothing, whose next forecast is `level + slope`; at first the level is the
    mean.
    """
    forecast = level + slope
    error = value - forecast
    gain = maximum(1.0 / (before + 1.0), LEVEL_GAIN)
    return forecast + gain * error, slope + SLOPE_GAIN * error
