"""A level, a line or an autoregression within each regime, averaged by their evidence.

Each regime follows one of three Bayesian regressions on features `f = (1, u)`: a level (`u = 0`), a
line (`u` is the time since the regime's first label, in tens of observations) or an autoregression
of order one (`u` is the stream's lag: the label before as location and scale have it, see `lags`).
For each of them

    y ~ N(k' f, sigma^2),    k | sigma^2 ~ N((location, 0), sigma^2 Lambda_0^-1),
    sigma^2 ~ InverseGamma(alpha, beta),

with `Lambda_0 = diag(kappa, slope or autoregression)`; so the predictive is a Student-t of
`2 alpha` degrees of freedom, mean `k' f` and squared scale `(1 + f' Lambda^-1 f) beta / alpha`. A
hypothesis's predictive is the average of the three, weighted by their posterior probabilities in
the regime (Bayesian model averaging: Hoeting et al. 1999, *Statistical Science* 14).

The update keeps the mean `k` and the precision `Lambda`, whose sums of squares lose nothing in long
runs; for an inlier responsibility `w` of the label

    Lambda' = Lambda + w f f',   k' = k + w Lambda'^-1 f e,   e = y - k' f,
    alpha' = alpha + w / 2,      beta' = beta + w e^2 / (2 (1 + w f' Lambda^-1 f)),
    pi' = w pi p(y) / sum(pi p(y)) + (1 - w) pi.

Outputs share alpha. A model that takes labels with missing outputs (`averaged@2`) learns nothing of
a missing one: `w` is 0 there, but that beta grows with alpha.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from model_core.components import Blend, SkewedT, StudentT
from model_core.upm import lags
from model_core.upm.base import UnderlyingModel
from model_core.upm.conjugate import OUTLIER_SPREAD

LEVEL, LINE, LAG = range(3)  # what a part regresses on beside the constant
KINDS = (LEVEL, LINE, LAG)
UNIT = 10.0  # observations in which the line's slope is measured


class AveragedStats(NamedTuple):
    """Regressions in each hypothesis, three or more.

    mean: (B, S, d, P, 2) `k`, of P parts. precision: (B, S, d, P, 3) `Lambda` as its entries 00,
    01, 11. alpha: (B, S, 1). beta, log_weight: (B, S, d, P). origin: (B, S, 1) time of the
    regime's first label, -1 before it.
    """

    mean: Tensor
    precision: Tensor
    alpha: Tensor
    beta: Tensor
    log_weight: Tensor
    origin: Tensor


class Reading(NamedTuple):
    """What the parts say of a label; all (B, S, d, P).

    error: of their forecasts. variance: `f' Lambda^-1 f`. told: log probabilities given the label.
    shares: of it that they learn.
    """

    error: Tensor
    variance: Tensor
    told: Tensor
    shares: Tensor


@dataclass(frozen=True)
class Averaged(UnderlyingModel):
    """Level, line or autoregression in each regime; outputs are independent.

    All constants are those of a series with location 0 and scale 1. `beta / (alpha - 1)`, the
    expected variance in a regime, is below 1: the scale holds what is between regimes, too.
    """

    y_dim: int = 1
    kappa: float = 1.0
    slope: float = 10.0
    autoregression: float = 16.0
    alpha: float = 2.0
    beta: float = 0.7
    hazard: float = 0.01
    outlier_rate: float = 0.01
    kinds: ClassVar[tuple[int, ...]] = KINDS
    parts = len(kinds)
    kind: str = "averaged"
    needs_scale: bool = True

    def prior(self, location: Tensor, scale: Tensor) -> AveragedStats:
        """Prior centred on the location."""
        level = location[:, None, :, None].expand(-1, -1, -1, len(self.kinds))
        each = 1.0, self.slope, self.autoregression
        second = level.new_tensor([each[kind] for kind in self.kinds]).expand_as(level)
        log_weight = level.new_tensor(self._log_weights())
        first, nothing = torch.full_like(level, self.kappa), torch.zeros_like(level)
        beta = self.beta * scale[:, None, :, None].square().expand_as(level)
        one = torch.ones_like(location[:, None, :1])
        return AveragedStats(
            torch.stack((level, nothing), -1),
            torch.stack((first, nothing, second), -1),
            self.alpha * one,
            beta.clone(),
            log_weight.expand_as(level).clone(),
            -one,
        )

    def context(self, location: Tensor, scale: Tensor) -> Tensor:
        """Time, location, scale, the two labels before and the lag: (B, 1 + 5 d)."""
        return lags.begin(location, scale, 1)

    def remember(self, context: Tensor, y: Tensor, labelled: Tensor) -> Tensor:
        """One observation later; a missing label leaves the lag as it is."""
        return lags.advance(context, y, labelled)

    def encode(self, x: Tensor | None, context: Tensor) -> Tensor:
        """Time and the lag (B, 1 + d)."""
        return torch.cat(lags.read(context, self.y_dim), -1)

    def predictive(self, stats: AveragedStats, phi: Tensor | None) -> Blend:
        """Average of the parts' forecasts."""
        found, scale, _ = self._forecast(stats, self.required(phi))
        return Blend(self._components(stats, found, scale), stats.log_weight)

    def outlier(self, prior: AveragedStats, phi: Tensor | None) -> Blend:
        """The level's prior predictive with ten times its squared scale."""
        found, variance = _regression(prior, torch.zeros_like(prior.beta))
        scale = _scale(prior, variance) * OUTLIER_SPREAD**0.5
        return Blend(self._components(prior, found, scale), prior.log_weight)

    def update(
        self, stats: AveragedStats, phi: Tensor | None, y: Tensor, weight: Tensor
    ) -> AveragedStats:
        """Conjugate update of the three, and of their probabilities."""
        phi = self.required(phi)
        read = self._explained(stats, phi, y, weight[..., None, None])
        return self._learned(stats, phi, y, weight, read)

    def _learned(
        self, stats: AveragedStats, phi: Tensor, y: Tensor, weight: Tensor, read: Reading
    ) -> AveragedStats:
        u, w = self._second(stats, phi), weight[..., None, None]
        error, variance, told, each = read
        square = torch.stack((torch.ones_like(u), u, u.square()), -1)
        precision = stats.precision + each.unsqueeze(-1) * square
        gain = torch.stack(_solve(precision, u), -1)
        fresh = (stats.origin < 0) & (weight.unsqueeze(-1) > 0)
        grown = each * error.square() / (1 + each * variance)
        # Outputs share alpha; of a missing one the expected variance stays as it is.
        grown = torch.where(_missing(y), w * stats.beta / stats.alpha.unsqueeze(-1), grown)
        return AveragedStats(
            stats.mean + (each * error).unsqueeze(-1) * gain,
            precision,
            stats.alpha + 0.5 * weight.unsqueeze(-1),
            stats.beta + 0.5 * grown,
            torch.logaddexp(torch.log(w) + told, torch.log1p(-w) + stats.log_weight),
            torch.where(fresh, phi[:, None, :1], stats.origin),
        )

    def _forecast(self, stats: AveragedStats, phi: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Location and scale of the predictives, and `f' Lambda^-1 f`; all (B, S, d, parts)."""
        found, variance = _regression(stats, self._second(stats, phi))
        return self._bounded(found, phi), _scale(stats, variance), variance

    def _explained(self, stats: AveragedStats, phi: Tensor, y: Tensor, w: Tensor) -> Reading:
        """What the parts say of labels; w: (B, S, 1, 1) inlier responsibility.

        A missing output tells nothing, and nothing is learned from it.
        """
        found, scale, variance = self._forecast(stats, phi)
        missing = _missing(y)
        value = torch.where(missing, found, y[:, None, :, None])
        density = self._components(stats, found, scale).log_density(value)
        told = torch.log_softmax(stats.log_weight + density.masked_fill(missing, 0.0), -1)
        error = value - found
        each = self._shares(w, told - stats.log_weight, error / scale)
        return Reading(error, variance, told, torch.where(missing, 0.0, each))

    def _bounded(self, found: Tensor, phi: Tensor) -> Tensor:
        """Locations that are believed; phi: (B, n)."""
        return found

    def _shares(self, w: Tensor, lead: Tensor, z: Tensor) -> Tensor:
        """Of a label, of which each part learns.

        w: (B, S, 1, 1) inlier responsibility. lead: log density over the average of all parts. z:
        error in scales.
        """
        return w

    def _log_weights(self) -> list[float]:
        """Log prior probabilities of the parts."""
        return [-math.log(len(self.kinds))] * len(self.kinds)

    def _components(self, stats: AveragedStats, found: Tensor, scale: Tensor) -> StudentT | SkewedT:
        """Forecasts of the parts at locations and scales (B, S, d, parts)."""
        return StudentT((2 * stats.alpha).unsqueeze(-1), found, scale)

    def _second(self, stats: AveragedStats, phi: Tensor) -> Tensor:
        """The features besides the constant (B, S, d, parts)."""
        time, last = phi[:, None, :1], phi[:, None, 1 : 1 + self.y_dim]
        age = torch.where(stats.origin < 0, 0.0, (time - stats.origin) / UNIT)
        full = stats.beta[..., 0]
        each = torch.zeros_like(full), age.expand_as(full), last.expand_as(full)
        return torch.stack([each[kind] for kind in self.kinds], -1)


def _missing(y: Tensor) -> Tensor:
    """Which outputs (B, 1, d, 1) of labels (B, d) are missing."""
    return torch.isnan(y)[:, None, :, None]


def _regression(stats: AveragedStats, u: Tensor) -> tuple[Tensor, Tensor]:
    """`k' f` and `f' Lambda^-1 f`; both (B, S, d, parts), as `u`."""
    first, second = _solve(stats.precision, u)
    return stats.mean[..., 0] + stats.mean[..., 1] * u, (first + u * second).clamp(min=0)


def _scale(stats: AveragedStats, variance: Tensor) -> Tensor:
    return (stats.beta / stats.alpha.unsqueeze(-1) * (1 + variance)).sqrt()


def _solve(precision: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """`Lambda^-1 (1, u)`, its two entries."""
    a, b, c = precision.unbind(-1)
    # Rounding may not take the determinant to zero, where u hardly varies.
    determinant = torch.maximum(a * c - b.square(), 1e-14 * a * c)
    return (c - b * u) / determinant, (a * u - b) / determinant
