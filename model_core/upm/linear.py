"""Regressions that need no training: on the inputs, and on a stream's own past.

Noise is unknown, so predictives are Student-t. Priors are those of a stream with location 0 and
scale 1: variances in units of the noise's. With all coefficients at their prior mean, 0, either is
a local level, the intercept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from model_core.lazy import Tensor, torch
from model_core.tensor_ops import maths
from model_core.transfer import constant
from model_core.upm import lags
from model_core.upm.base import ClosedForm, Floats, Reading, Stats, of_arrays
from model_core.upm.regression import NoisyStats, Regression

_CONTEXT = maths("context")
TREND_UNIT = 20.0  # observations over which a trend of one (prior) standard deviation moves as much
HARMONICS = 3  # at most, of a season


class TrendStats(NamedTuple):
    """NoisyStats, and the time (B, S, 1) of the first label absorbed, -1 before there is one."""

    mean: Tensor
    cov: Tensor
    alpha: Tensor
    beta: Tensor
    origin: Tensor


@dataclass(frozen=True)
class ZeroTraining(ClosedForm, Regression):
    """What both have: an intercept around the location, and coefficients around 0.

    `level` is the intercept's variance; of the noise's, `alpha` and `beta` are the inverse gamma's.
    """

    y_dim: int = 1
    level: float = 10.0
    alpha: float = 1.5
    beta: float = 0.5

    def _fresh(self, variances: Sequence[float], location: Floats, scale: Floats) -> Stats:
        """Independent coefficients of the given variances after the intercept."""
        batch = len(location)
        size = 1 + len(variances)
        mean = np.zeros((batch, 1, size, self.y_dim))
        mean[:, 0, 0] = location[:, : self.y_dim]
        cov = np.broadcast_to(np.diag([self.level, *variances]), (batch, 1, size, size))
        squared = scale[:, None, : self.y_dim] ** 2
        alpha = np.full_like(squared, self.alpha)
        return of_arrays(NoisyStats, mean, cov, alpha, self.beta * squared)


@dataclass(frozen=True)
class Linear(ZeroTraining):
    """Linear in the inputs, which are scaled by a stream's own location and scale.

    Location and scale are (B, y_dim + x_dim): of the labels, then of the inputs; scales above 0.
    `slope` is the prior variance of a coefficient of a scaled input.
    """

    x_dim: int = 1
    slope: float = 4.0
    kind = "linear"
    scales_inputs = True

    def fresh(self, location: Floats, scale: Floats) -> tuple[Stats, Floats]:
        """Intercept at the labels' location, slopes 0; location and scale of the inputs.

        The context (B, 2 x_dim) never changes.
        """
        units = np.hstack((location[:, self.y_dim :], scale[:, self.y_dim :]))
        return self._fresh([self.slope] * self.x_dim, location, scale), units

    def encode(self, x: Tensor | None, context: Tensor) -> Tensor:
        """One and the scaled inputs (B, 1 + x_dim)."""
        one = context.new_ones(len(context), 1)
        if self.x_dim == 0:
            return one
        location, scale = context.chunk(2, -1)
        return torch.cat((one, _CONTEXT.in_units(self.required(x), location, scale)), -1)


@dataclass(frozen=True)
class Autoregressive(ZeroTraining):
    """Linear in the last `order` labels, of all outputs, in time and in the phase of a season.

    Lags (see `lags`) are scaled by the stream's location and scale; where a label is missing the
    last one stands in for it (at the start, the location). Time and phase count observations. The
    trend starts with the regime: a hypothesis counts time from the first label it absorbed, so its
    prior is the same a million observations on, and its features grow no further than its run
    length.
    The season is a sum of at most `HARMONICS` sines. `lag`, `slope` and `swing` are prior variances
    of the coefficients: of all lags of one age together, of the trend, and of each sine.
    """

    order: int = 1
    trend: bool = False
    season: int = 0
    lag: float = 1.0
    slope: float = 1.0
    swing: float = 1.0
    kind = "autoregressive"

    def __post_init__(self) -> None:
        if self.order < 0:
            raise ValueError(f"order is {self.order}, expected at least 0")
        if self.season < 0 or self.season == 1:
            raise ValueError(f"season is {self.season}, expected 0 (none) or at least 2")

    @property
    def seasonal(self) -> bool:
        """Whether its streams look for seasons by default: not beside one that was stated."""
        return super().seasonal and not self.season

    def fresh(self, location: Floats, scale: Floats) -> tuple[Stats, Floats]:
        """Intercept at the location, all else 0; context as of `lags`."""
        context = lags.begin(location, scale, self.order)
        variances = [self.lag / self.y_dim] * (self.order * self.y_dim)
        variances += [self.swing] * len(self.sines())
        if not self.trend:
            return self._fresh(variances, location, scale), context
        stats = self._fresh([*variances, self.slope], location, scale)
        return of_arrays(TrendStats, *stats, np.full_like(location[:, None, :1], -1.0)), context

    def remember(
        self, context: Tensor, y: Tensor, labelled: Tensor, reading: Reading | None = None
    ) -> Tensor:
        """The label becomes the latest lag."""
        return lags.advance(context, y, labelled)

    def encode(self, x: Tensor | None, context: Tensor) -> Tensor:
        """One, lags, sines and, if there is a trend, the time: no hypothesis's own yet (B, m)."""
        time, latest = lags.read(context, self.y_dim)
        parts = [torch.ones_like(time), latest]
        if self.season:
            rates, shifts = constant(self.sines(), time).unbind(-1)
            # The remainder first: the sine of a large angle has lost digits.
            parts.append(torch.sin(rates * torch.remainder(time, self.season) + shifts))
        return torch.cat([*parts, time] if self.trend else parts, -1)

    def design(self, stats: Stats, phi: Tensor) -> Tensor:
        """Time relative to each hypothesis's first label; features (B, S, A, n) if a trend."""
        if not self.trend:
            return phi.unsqueeze(1)
        since = _CONTEXT.age_of(phi[:, None, :, -1], stats.origin, TREND_UNIT)
        shared = phi[:, None, :, :-1].expand(-1, since.shape[1], -1, -1)
        return torch.cat((shared, since.unsqueeze(-1)), -1)

    def begun(self, stats: Stats, phi: Tensor, weight: Tensor) -> Stats:
        """With the time of the first label, if there is a trend."""
        if not self.trend:
            return stats
        begins = (stats.origin < 0) & (weight > 0).unsqueeze(-1)
        return stats._replace(origin=torch.where(begins, phi[:, None, -1:], stats.origin))

    def _begun_anew(self, stats: Stats) -> Stats:
        """The trend starts with the regime."""
        return stats._replace(origin=-np.ones_like(stats.origin)) if self.trend else stats

    def sines(self) -> list[tuple[float, float]]:
        """Rate and phase of each; a sine that is 0 at every whole time is left out."""
        sines = []
        for k in range(1, min(HARMONICS, self.season // 2) + 1):
            rate = 2 * math.pi * k / self.season
            sines += [(rate, math.pi / 2)] if 2 * k == self.season else []
            sines += [(rate, math.pi / 2), (rate, 0.0)] if 2 * k != self.season else []
        return sines
