"""Positive durations with a shape: a conjugate model, all of it. Its formulas: docs/mathematics.md.

Under one shape `k` durations are gamma and the prior of their rate is, too. The prior of the shape
is a grid: what a regime says of each of its points are the same three sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from model_core.components import Positive, PositiveFunctions
from model_core.lazy import Tensor, torch
from model_core.maths.ops import exp, log, log1p, maximum, where
from model_core.maths.special import ROOT_2_PI, stirling_error
from model_core.upm.base import OUTLIER_SPREAD, Floats, Stats, of_arrays
from model_core.upm.conjugate import Conjugate, Equations, Numbers

LARGEST_SHAPE = 16  # as many masses does `reached` add up
TINY = 1e-300  # whose logarithm is still finite

# --- predictive of one shape: a gamma whose rate is one, `y / scale` of a beta prime --------------


def log_density(y: float, shape: float, tail: float, scale: float) -> float:
    """`s^(k - 1) (1 - s)^a a (a + 1) ... (a + k - 1) / ((k - 1)! (y + scale))`; else -inf.

    Of a label above zero, with `s = y / (y + scale)` and a whole shape.
    """
    ratio = maximum(y / scale, TINY)
    rising = _four_factors(1.0, tail, shape, tail)
    rising = _four_factors(5.0, rising, shape, tail)
    rising = _four_factors(9.0, rising, shape, tail)
    rising = _four_factors(13.0, rising, shape, tail)
    shares = (shape - 1.0) * log1p(1.0 / ratio) + tail * log1p(ratio)
    return where(y > 0.0, log(rising / (scale * (1.0 + ratio))) - shares, -math.inf)


def _four_factors(j: float, rising: float, shape: float, tail: float) -> float:
    """Times `(a + j) / j` of the next four j, those below the shape; loops become no vectors."""
    first = _factor(j, shape, tail) * _factor(j + 1.0, shape, tail)
    return rising * first * _factor(j + 2.0, shape, tail) * _factor(j + 3.0, shape, tail)


def _factor(j: float, shape: float, tail: float) -> float:
    return where(shape > j, (tail + j) * (1.0 / j), 1.0)


def reached(y: float, shape: float, tail: float, scale: float) -> tuple[float, float, float]:
    """CDF, density and its derivative.

    Of a whole shape the upper tail is the sum of so many masses of a negative binomial, the last of
    which is the density but for a factor.
    """
    inverse = 1.0 / (scale + y)
    share = 1.0 / (1.0 + scale / y)
    first = exp(-tail * log1p(y / scale))
    masses: Numbers = (0.0 * first, first, first)
    masses = _four_masses(0.0, masses, share, shape, tail)
    masses = _four_masses(4.0, masses, share, shape, tail)
    masses = _four_masses(8.0, masses, share, shape, tail)
    beyond, last, _ = _four_masses(12.0, masses, share, shape, tail)
    density = last * (tail + shape - 1.0) * inverse
    slope = (shape - 1.0) / maximum(y, TINY) - (tail + shape) * inverse
    return 1.0 - beyond, density, density * slope


def _four_masses(j: float, masses: Numbers, share: float, shape: float, tail: float) -> Numbers:
    """Four masses from the j-th on, those below the shape; loops become no vectors.

    masses: sum so far, last mass in it, j-th mass.
    """
    masses = _mass(j, masses, share, shape, tail)
    masses = _mass(j + 1.0, masses, share, shape, tail)
    masses = _mass(j + 2.0, masses, share, shape, tail)
    return _mass(j + 3.0, masses, share, shape, tail)


def _mass(j: float, masses: Numbers, share: float, shape: float, tail: float) -> Numbers:
    beyond, last, mass = masses
    counts = shape > j
    following = mass * (share * (tail + j) * (1.0 / (j + 1.0)))
    return beyond + where(counts, mass, 0.0), where(counts, mass, last), following


def mean(shape: float, tail: float, scale: float) -> float:
    """`scale shape / (tail - 1)`; inf for `tail <= 1`."""
    return where(tail > 1.0, scale * shape / (tail - 1.0), math.inf)


def variance(shape: float, tail: float, scale: float) -> float:
    """`mean^2 (shape + tail - 1) / (shape (tail - 2))`; inf for `tail <= 2`."""
    centre = mean(shape, tail, scale)
    spread = centre * centre * (shape + tail - 1.0) / (shape * (tail - 2.0))
    return where(tail > 2.0, spread, math.inf)


def width(shape: float, tail: float, scale: float) -> float:
    """The peak is at `scale (shape - 1) / (tail + 1)`."""
    _, height, _ = reached(scale * (shape - 1.0) / (tail + 1.0), shape, tail, scale)
    return 1.0 / (ROOT_2_PI * height)


class _BetaPrime(NamedTuple):
    shape: Tensor
    tail: Tensor
    scale: Tensor


class BetaPrime(_BetaPrime, Positive):
    """Gamma durations of a whole shape whose rate is gamma; `tail` and `scale` are the rate's.

    The mean exists for `tail > 1`, the variance for `tail > 2`.
    """

    functions = PositiveFunctions(log_density, reached, mean, variance, width)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Ratio of two gamma draws."""
        above = torch._standard_gamma(self.shape, generator=generator)
        below = torch._standard_gamma(self.tail, generator=generator)
        drawn: Tensor = self.scale * above / below
        return drawn


# --- the model ------------------------------------------------------------------------------------


class DurationStats(NamedTuple):
    """Sums over labels, of weights, of these times labels and times their logs: (B, S, 1)."""

    counted: Tensor
    total: Tensor
    logs: Tensor


def predictive(stats: Numbers, part: Numbers, location: float) -> Numbers:
    """Shape, tail, scale and log weight under one shape.

    part: `k`, `log Gamma(k)`, log of its probability, shape `a` of the rate's prior. The mean of a
    regime, `k` over its rate, has one prior whatever `k`: its own mean is the location.
    """
    counted, total, logs = stats
    shape, log_gamma, log_weight, prior = part
    tail = prior + shape * counted
    start = (prior - 1.0) * location / shape
    scale = start + total
    # The evidence, by Stirling's formula: terms of the size of `counted log(counted)` are left out.
    explained = shape * (counted * (log(tail / scale) - 1.0) + logs) - counted * log_gamma
    explained = explained + (prior - 0.5) * log(tail) + stirling_error(tail)
    return shape + 0.0 * counted, tail, scale, log_weight + explained - prior * log1p(total / start)


def wide(parameters: Numbers, part: Numbers) -> Numbers:
    """The prior predictive with ten times its scale, which is its spread."""
    shape, tail, scale, log_weight = parameters
    return shape, tail, scale * OUTLIER_SPREAD, log_weight


def update(stats: Numbers, y: float, weight: float) -> Numbers:
    """Add up."""
    counted, total, logs = stats
    return counted + weight, total + weight * y, logs + weight * log(maximum(y, TINY))


@dataclass(frozen=True)
class Gamma(Conjugate):
    """Positive durations with an unknown rate and an unknown shape, one of `shapes`.

    These are whole numbers. `prior_shape` is that of the prior of the rate, above 2 so that a
    variance exists.
    """

    shapes: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0)
    prior_shape: float = 2.5
    kind = "gamma"
    label = "positive"
    takes_zero = False
    equations = Equations(predictive, update, wide)
    statistics = DurationStats
    family = BetaPrime

    def __post_init__(self) -> None:
        if any(not 1 <= shape <= LARGEST_SHAPE or shape % 1 for shape in self.shapes):
            raise ValueError(
                f"expected shapes of 1 to {LARGEST_SHAPE}, whole numbers, got {self.shapes}"
            )

    @property
    def mixture(self) -> tuple[tuple[float, ...], ...]:
        """Of each shape; see `predictive`."""
        log_weight = -math.log(len(self.shapes))
        return tuple((k, math.lgamma(k), log_weight, self.prior_shape) for k in self.shapes)

    def fresh(self, location: Floats, scale: Floats) -> tuple[Stats, Floats]:
        """Nothing seen."""
        nothing = np.zeros_like(location[:, None])
        return of_arrays(DurationStats, nothing, nothing, nothing), location

    def log_evidence(self, stats: DurationStats, context: Floats) -> float:
        """Of the grid of shapes, each with a gamma over the rate; see `predictive`."""
        counted, total, logs = (value.item() for value in stats)
        each = []
        for shape, log_shape, log_weight, prior in self.mixture:
            tail = prior + shape * counted
            start = (prior - 1.0) * context.item() / shape
            rate = prior * math.log(start) - tail * math.log(start + total)
            each.append(log_weight + math.lgamma(tail) + rate + shape * logs - counted * log_shape)
        return float(np.logaddexp.reduce(each))

    def count(self, stats: DurationStats, prior: DurationStats) -> float:
        """Of the weights."""
        return float(stats.counted.item())
