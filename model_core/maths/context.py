"""What models keep of a stream for all its hypotheses alike, in the stream's own units.

Location and scale are those of its warm-up.
"""

from __future__ import annotations

from model_core.maths.ops import maximum, minimum, sqrt, where

FARTHEST = 1e6  # scales from the location beyond which a lag or an input counts as that far
LAG_REACH = 2.0  # scales that a lag may lie beyond the two labels before it
FAR = 3.0  # standard deviations within which errors count for their dependence
BEFORE = 20.0  # errors of the stream's scale, none like its neighbour, seen before the first
APART = 5.0  # the same, none like that of another output; where these are few
FEW = 8  # outputs
EACH_APART = 5.0  # more of them for each output beyond
LEAST_APART = 1e-6  # of a correlation from 1
MEMORY = 0.98  # most of the distances of lag and trend from the level that a label keeps
LAGS_BEFORE = 5.0  # lags at a deviation from the level, whose labels kept nothing; trends: BEFORE
SURE = 3.0  # standard errors by which the trend's share is believed to be smaller


def bounded(value: float, least: float, most: float) -> float:
    """Within bounds."""
    return maximum(minimum(value, most), least)


def in_units(value: float, location: float, scale: float) -> float:
    """In a stream's own units; within bounds, for a covariance loses their squares times 2e-16.

    What is infinite stays so, and its step is refused.
    """
    finite = value - value == 0.0
    return where(finite, bounded((value - location) / scale, -FARTHEST, FARTHEST), value)


def lag_of(value: float, one: float, two: float) -> float:
    """Lag after a label; one, two: the labels before it.

    It follows its label no farther than `LAG_REACH` beyond these. A single outlier, which no
    hypothesis learns from, would else be a lever on the forecast of the next label; a jump that
    lasts is followed in full one label later.
    """
    return bounded(value, minimum(one, two) - LAG_REACH, maximum(one, two) + LAG_REACH)


def age_of(time: float, origin: float, unit: float) -> float:
    """Time since a regime's first label, in units; 0 before it, where the origin is below 0."""
    return where(origin < 0, 0.0, maximum(time - origin, 0.0) / unit)


def standard(error: float, variance: float) -> float:
    """Error in standard deviations, within `FAR` of them."""
    return bounded(error / sqrt(variance), -FAR, FAR)


def watched(
    variance: float, squares: float, products: float, last: float, error: float, seen: float
) -> tuple[float, float, float, float]:
    """The four numbers of errors in a row after one more; see `upm.joint`.

    Their running variance, sums of their squares and of products of neighbours, in standard
    deviations, and the last one. error: in the stream's units. seen: errors before it.
    """
    z = standard(error, variance)
    moved = (minimum(error * error, FAR**2 * variance) - variance) / (BEFORE + seen)
    return variance + moved, squares + z * z, products + z * last, z


def apart_of(outputs: int) -> float:
    """Errors, none like that of another output, that correlations of so many outputs begin with.

    Errors of many outputs lie near a plane, which those to come leave, until they are several times
    as many as these.
    """
    return maximum(APART, APART + EACH_APART * (outputs - FEW))


def correlation(products: float, squares: float, others: float, apart: float) -> float:
    """Correlation of the errors of two outputs, by sums of their products and squares.

    squares, others: of `watched`, in which `BEFORE` is counted. With `apart` in its place the
    correlations of all outputs are those of a positive definite matrix.
    """
    less = BEFORE - apart
    both = (squares - less) * (others - less)
    return products / sqrt(both) * (1.0 - LEAST_APART)


def memory(
    lags: float, both: float, trends: float, by_lag: float, by_trend: float
) -> tuple[float, float]:
    """Shares of the lag's and of the trend's distance from the level that a label keeps.

    Of products of distances, sums: lags', lags' and trends', trends'; labels' and lags', labels'
    and trends'. By least squares; of the trend's as much as is certain within `SURE` standard
    errors, which a shift that is not found yet leaves near nothing.
    """
    determinant = lags * trends - both * both
    share = lags * by_trend - both * by_lag - SURE * sqrt(lags * determinant)
    of_trend = bounded(share / determinant, 0.0, MEMORY)
    return bounded((by_lag - of_trend * both) / lags, 0.0, MEMORY - of_trend), of_trend


def independent_share(correlation: float) -> float:
    """Independent observations among as many whose neighbours are correlated, r >= 0."""
    return (1.0 - correlation) / (1.0 + correlation)
