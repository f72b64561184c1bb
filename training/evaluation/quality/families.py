"""Simulated families: quiet series of unit scale, and the same with a shift.

Nothing was chosen on them. A quiet series has no change of level that a user would want to hear of;
drifts and seasons are quiet, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
SETTLED = 200  # observations of an autoregression before its first one
SEASON_NOISE = 0.5  # sd of the noise of seasonal series; season and noise together have 1
DRIFT = 0.002  # a step
OUTLIERS = 0.01  # share
OUTLIER_SIZE = 8.0
LOG_SD = 0.75  # of the logarithm
RATE = 4.0  # of counts
WALK_LENGTH = 400  # observations over which the sd of a walk is taken


class Family(NamedTuple):
    """A kind of quiet series.

    draw: (n,) values of one series. sd: the marginal standard deviation, which shifts are measured
    in; of outliers that of the others, of a walk the expected one within `WALK_LENGTH`.
    """

    name: str
    draw: Callable[[np.random.Generator, int], Floats]
    sd: float = 1.0

    def shifted(self, rng: np.random.Generator, n: int, at: int, by: float) -> Floats:
        """A series that shifts by so many standard deviations from position `at` on."""
        y = self.draw(rng, n)
        y[at:] += by * self.sd
        return y


def _normal(rng: np.random.Generator, n: int) -> Floats:
    return rng.normal(size=n)


def _t3(rng: np.random.Generator, n: int) -> Floats:
    return rng.standard_t(3, n) / math.sqrt(3)


def _lognormal(rng: np.random.Generator, n: int) -> Floats:
    variance = LOG_SD**2
    mean = math.exp(variance / 2)
    return (np.exp(LOG_SD * rng.normal(size=n)) - mean) / (mean * math.sqrt(math.expm1(variance)))


def _autoregression(coefficient: float, rng: np.random.Generator, n: int) -> Floats:
    noise = rng.normal(size=n + SETTLED) * math.sqrt(1 - coefficient**2)
    y = np.zeros(n + SETTLED)
    for t in range(1, n + SETTLED):
        y[t] = coefficient * y[t - 1] + noise[t]
    return y[SETTLED:]


def _walk(rng: np.random.Generator, n: int) -> Floats:
    return rng.normal(size=n).cumsum()


def _drift(rng: np.random.Generator, n: int) -> Floats:
    return rng.normal(size=n) + DRIFT * np.arange(n)


def _season(period: int, rng: np.random.Generator, n: int) -> Floats:
    height = math.sqrt(2 * (1 - SEASON_NOISE**2))
    return SEASON_NOISE * rng.normal(size=n) + height * np.sin(2 * np.pi * np.arange(n) / period)


def _counts(rng: np.random.Generator, n: int) -> Floats:
    return rng.poisson(RATE, n).astype(np.float64)


def _outliers(rng: np.random.Generator, n: int) -> Floats:
    y = rng.normal(size=n)
    signs = rng.choice((-OUTLIER_SIZE, OUTLIER_SIZE), n)
    return np.where(rng.random(n) < OUTLIERS, signs, y)


FAMILIES = (
    Family("normal", _normal),
    Family("1 % outliers", _outliers),
    Family("Student-t3", _t3),
    Family("lognormal", _lognormal),
    Family("counts", _counts, math.sqrt(RATE)),
    Family("AR(0.5)", partial(_autoregression, 0.5)),
    Family("AR(0.9)", partial(_autoregression, 0.9)),
    Family("random walk", _walk, math.sqrt(WALK_LENGTH / 6)),
    Family("slow drift", _drift),
    Family("season of 24", partial(_season, 24)),
    Family("season of 288", partial(_season, 288)),
)
