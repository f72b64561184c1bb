"""How good one-step forecasts are: log score, absolute error, CRPS, calibration, runaways.

Every series is measured in its own scale, that of its warm-up, and every column of a vector as a
series of its own. Observations of the warm-up are not scored.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from model_core.stream_settings import DEFAULTS
from model_core.upm.conjugate import Gaussian
from training.evaluation.online import warm
from training.evaluation.quality.baselines import Normal
from training.statistics import Estimate, bootstrap, coverage, distance

Floats = NDArray[np.float64]
# The CRPS is taken from these quantiles; the outer ones bound the 90 % interval.
LEVELS = (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)
RUNAWAY = 3.0  # standard deviations of the labels beyond their range
INTERVAL = 0.9
SHORTEST = 30  # labels after the warm-up, without which a series is not scored


class Forecast(NamedTuple):
    """Forecasts of one series: (T,) each, nan where none, and quantiles (T, Q) at `LEVELS`.

    All in the series' own units. pit: predictive probability of a label up to the one that came.
    """

    log_score: Floats
    mean: Floats
    pit: Floats
    quantiles: Floats


class SeriesScore(NamedTuple):
    """Means over one series, in its scale; runaway: see `runaway`. pit: (n,) of the scored ones."""

    log_score: float
    error: float
    crps: float
    runaway: float
    pit: Floats


class Score(NamedTuple):
    """Means over the series of a corpus.

    lead: log score less the last value's, median over series. relative_error, relative_crps: as
    shares of the last value's, geometric means over series. coverage: share of labels in 90 %
    intervals, pooled; lowest, highest: of any series. ks: of the pooled PITs from uniform.
    runaway: the largest of any series; runaways: number of series with more than `RUNAWAY`.
    """

    log_score: Estimate
    lead: float
    error: Estimate
    relative_error: Estimate
    crps: Estimate
    relative_crps: Estimate
    coverage: float
    lowest: float
    highest: float
    ks: float
    runaway: float
    runaways: int
    pit: Floats


def of_normal(y: Floats, normal: Normal) -> Forecast:
    """Forecasts of a baseline; y: (T,), nan where missing."""
    z = (y - normal.mean) / normal.sd
    log_score = -0.5 * z**2 - np.log(normal.sd) - 0.5 * math.log(2 * math.pi)
    quantiles = normal.mean[:, None] + normal.sd[:, None] * special.ndtri(LEVELS)
    pit = special.ndtr(z)
    return Forecast(log_score, normal.mean, pit, quantiles)


def first_scored(y: Floats) -> int:
    """Number of observations of the warm-up of a series (T,), nan where missing."""
    return warm(Gaussian(), y[:, None].tolist(), DEFAULTS.warmup)[2]


def scorable(y: Floats) -> bool:
    """Whether a series has enough labels after its warm-up."""
    return int(np.isfinite(y[first_scored(y) :]).sum()) >= SHORTEST


def score(y: Floats, forecast: Forecast, scale: float, first: int) -> SeriesScore:
    """Score forecasts of one series from position `first` on; y: (T,), nan where missing."""
    spread = float(np.nanstd(y))
    far = runaway(y, forecast.mean[first:], spread)
    at = np.flatnonzero(np.isfinite(y) & np.isfinite(forecast.log_score))
    at = at[at >= first]
    label = y[at]
    return SeriesScore(
        float(forecast.log_score[at].mean()) + math.log(scale),
        float(np.abs(label - forecast.mean[at]).mean()) / scale,
        float(crps(label, forecast.quantiles[at]).mean()) / scale,
        far,
        forecast.pit[at],
    )


def crps(label: Floats, quantiles: Floats) -> Floats:
    """Continuous ranked probability score (n,) of labels (n,) from quantiles (n, Q) at `LEVELS`.

    It is the integral of twice the quantile loss over all levels (Gneiting & Raftery 2007), here
    their mean over ten equally spaced ones.
    """
    error = label[:, None] - quantiles
    levels = np.array(LEVELS)
    mean: Floats = np.maximum(levels * error, (levels - 1) * error).mean(1)
    return 2 * mean


def runaway(y: Floats, mean: Floats, spread: float) -> float:
    """Largest distance of a predictive mean from the range of all labels, in their deviations."""
    known = mean[np.isfinite(mean)]
    if not len(known):
        return 0.0
    beyond = max(float(known.max() - np.nanmax(y)), float(np.nanmin(y) - known.min()), 0.0)
    return beyond / spread if beyond else 0.0


def pooled(
    scores: Sequence[SeriesScore], last_value: Sequence[SeriesScore], rng: np.random.Generator
) -> Score:
    """Scores of a corpus; last_value: of the same series."""
    pits = [each.pit for each in scores]
    inside = [covered(pit) for pit in pits]
    together = np.concatenate(pits)
    far = [each.runaway for each in scores]
    return Score(
        bootstrap([each.log_score for each in scores], rng),
        statistics.median(
            one.log_score - other.log_score for one, other in zip(scores, last_value, strict=True)
        ),
        bootstrap([each.error for each in scores], rng),
        _ratio([each.error for each in scores], [each.error for each in last_value], rng),
        bootstrap([each.crps for each in scores], rng),
        _ratio([each.crps for each in scores], [each.crps for each in last_value], rng),
        covered(together),
        min(inside),
        max(inside),
        distance(together),
        max(far),
        sum(distance > RUNAWAY for distance in far),
        together,
    )


def covered(pit: Floats) -> float:
    """Share of labels in their central 90 % interval."""
    return float(coverage(pit, [INTERVAL])[0])


def _ratio(values: Sequence[float], others: Sequence[float], rng: np.random.Generator) -> Estimate:
    """Geometric mean of ratios, without series that either forecasts without any error."""
    logs = [math.log(a / b) for a, b in zip(values, others, strict=True) if a > 0 and b > 0]
    if not logs:
        return Estimate(math.nan, math.nan, math.nan, 0)
    mean, low, high, count = bootstrap(logs, rng)
    return Estimate(math.exp(mean), math.exp(low), math.exp(high), count)
