"""Conjugate models: they need no training. Murphy, *Conjugate Bayesian analysis* (2007).

`weight` of an update is the inlier responsibility of the observation under each hypothesis; it
counts as that fraction of an observation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from model_core.components import Bernoulli, Categorical, Lomax, StudentT
from model_core.upm.base import UnderlyingModel

OUTLIER_SPREAD = 10.0  # squared scale (or dispersion) of an outlier, in those of the prior


class GaussianStats(NamedTuple):
    """Normal-inverse-gamma: mean (B, S, d), kappa and alpha (B, S, 1), beta (B, S, d)."""

    mean: Tensor
    kappa: Tensor
    alpha: Tensor
    beta: Tensor


@dataclass(frozen=True)
class Gaussian(UnderlyingModel):
    """Unknown mean and variance, independent per dimension; Student-t predictives.

    `kappa`, `alpha` and `beta` are those of a series with location 0 and scale 1.
    """

    y_dim: int = 1
    kappa: float = 0.3
    alpha: float = 2.0
    beta: float = 1.0
    hazard: float = 0.01
    outlier_rate: float = 0.01
    exchangeable = True
    kind: str = "gaussian"
    needs_scale: bool = True

    def prior(self, location: Tensor, scale: Tensor) -> GaussianStats:
        """Prior centred on the location, its expected variance in units of the scale."""
        mean = location.unsqueeze(1)
        ones = torch.ones_like(mean[..., :1])
        beta = self.beta * scale.unsqueeze(1).square()
        return GaussianStats(mean, self.kappa * ones, self.alpha * ones, beta)

    def predictive(self, stats: GaussianStats, phi: Tensor | None) -> StudentT:
        """Student-t with `2 alpha` degrees of freedom (Murphy, eq. 110)."""
        mean, kappa, alpha, beta = stats
        scale = (beta * (kappa + 1) / (alpha * kappa)).sqrt()
        return StudentT((2 * alpha).expand_as(mean), mean, scale)

    def outlier(self, prior: GaussianStats, phi: Tensor | None) -> StudentT:
        """The prior predictive with ten times its squared scale."""
        wide = self.predictive(prior, phi)
        return wide._replace(scale=wide.scale * OUTLIER_SPREAD**0.5)

    def update(
        self, stats: GaussianStats, phi: Tensor | None, y: Tensor, weight: Tensor
    ) -> GaussianStats:
        """Conjugate update with a weighted observation (Murphy, eq. 86-89 for n = weight)."""
        mean, kappa, alpha, beta = stats
        w = weight.unsqueeze(-1)
        error = y.unsqueeze(1) - mean
        gain = w / (kappa + w)
        return GaussianStats(
            mean + gain * error,
            kappa + w,
            alpha + 0.5 * w,
            beta + 0.5 * kappa * gain * error.square(),
        )


class GammaStats(NamedTuple):
    """Gamma over a rate: shape and rate (B, S, 1)."""

    shape: Tensor
    rate: Tensor


@dataclass(frozen=True)
class Exponential(UnderlyingModel):
    """Positive durations with an unknown rate; Lomax predictives.

    `shape` is the prior's, above 2 so that a variance exists: its predictive mean is the stream's
    location.
    """

    shape: float = 2.5
    hazard: float = 0.01
    outlier_rate: float = 0.01
    exchangeable = True
    kind: str = "exponential"
    label: str = "positive"
    needs_scale: bool = True

    def prior(self, location: Tensor, scale: Tensor) -> GammaStats:
        """Gamma over the rate, under which a duration's mean is the location."""
        shape = torch.full_like(location.unsqueeze(1), self.shape)
        return GammaStats(shape, (shape - 1) * location.unsqueeze(1))

    def predictive(self, stats: GammaStats, phi: Tensor | None) -> Lomax:
        """Gamma-exponential: `p(y) = shape rate^shape / (rate + y)^(shape + 1)`."""
        return Lomax(stats.shape, stats.rate)

    def outlier(self, prior: GammaStats, phi: Tensor | None) -> Lomax:
        """The prior predictive with ten times its scale, which is its spread."""
        wide = self.predictive(prior, phi)
        return wide._replace(scale=wide.scale * OUTLIER_SPREAD)

    def update(
        self, stats: GammaStats, phi: Tensor | None, y: Tensor, weight: Tensor
    ) -> GammaStats:
        """Count the events and add up the time."""
        w = weight.unsqueeze(-1)
        return GammaStats(stats.shape + w, stats.rate + w * y.unsqueeze(1))


class BetaStats(NamedTuple):
    """Beta over a probability: pseudo-counts of ones and zeros (B, S, 1)."""

    ones: Tensor
    zeros: Tensor


@dataclass(frozen=True)
class BernoulliModel(UnderlyingModel):
    """Zeros and ones with an unknown probability; uniform prior. Neither is ever an outlier."""

    ones: float = 1.0
    zeros: float = 1.0
    hazard: float = 0.01
    exchangeable = True
    kind: str = "bernoulli"
    label: str = "binary"

    def prior(self, location: Tensor, scale: Tensor) -> BetaStats:
        """Beta(ones, zeros) for every stream."""
        like = location.unsqueeze(1)
        return BetaStats(torch.full_like(like, self.ones), torch.full_like(like, self.zeros))

    def predictive(self, stats: BetaStats, phi: Tensor | None) -> Bernoulli:
        """Beta-Bernoulli: the posterior mean."""
        return Bernoulli(stats.ones / (stats.ones + stats.zeros))

    def update(self, stats: BetaStats, phi: Tensor | None, y: Tensor, weight: Tensor) -> BetaStats:
        """Count the one or the zero."""
        w, y = weight.unsqueeze(-1), y.unsqueeze(1)
        return BetaStats(stats.ones + w * y, stats.zeros + w * (1 - y))


class DirichletStats(NamedTuple):
    """Dirichlet over probabilities: pseudo-counts of the classes (B, S, J)."""

    counts: Tensor


@dataclass(frozen=True)
class CategoricalModel(UnderlyingModel):
    """Class indices with unknown probabilities; uniform prior. None is ever an outlier."""

    classes: int = 2
    concentration: float = 1.0
    hazard: float = 0.01
    exchangeable = True
    kind: str = "categorical"
    label: str = "class"

    def prior(self, location: Tensor, scale: Tensor) -> DirichletStats:
        """The same pseudo-count of every class for every stream."""
        shape = len(location), 1, self.classes
        return DirichletStats(location.new_full(shape, self.concentration))

    def predictive(self, stats: DirichletStats, phi: Tensor | None) -> Categorical:
        """Dirichlet-categorical: the posterior mean."""
        counts = stats.counts
        return Categorical(torch.log(counts) - torch.log(counts.sum(-1, keepdim=True)))

    def update(
        self, stats: DirichletStats, phi: Tensor | None, y: Tensor, weight: Tensor
    ) -> DirichletStats:
        """Count the class; y: (B, 1) index."""
        seen = y.unsqueeze(1) == torch.arange(self.classes, device=y.device)
        return DirichletStats(stats.counts + weight.unsqueeze(-1) * seen)
