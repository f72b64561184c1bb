"""Counts whose rate may jump by a large factor, and stay there.

A regime's rate follows a mixture of gammas, one around the stream's location `m` and one a factor
away from it on either side,

    y ~ Poisson(rate),    rate ~ sum_k pi_k Gamma(a, r_k),    r_k = a / (c_k m).

After labels whose inlier responsibilities add up to `N`, and they with their counts to `A - a`,

    p(rate | data) = sum_k w_k Gamma(A, r_k + N),    w_k ~ pi_k r_k^a (r_k + N)^-A,

so the predictive is a mixture of negative binomials. An outlier is drawn from the prior predictive
with other `pi`. Under a single gamma the predictive of a count far above `m` is so much smaller
than that of any wider outlier that a regime of such counts would look like outliers for ever.

The two gammas far off are rare, since the means of all forecasts contain theirs; for outliers twice
as probable as for regimes, so that one strange count is rather an outlier where the hazard is as
large as the outlier rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from model_core.components import Blend, NegativeBinomial
from model_core.upm.base import UnderlyingModel


class CountStats(NamedTuple):
    """Shape `A` of the gammas and exposure `N`, both (B, S, 1)."""

    shape: Tensor
    exposure: Tensor


@dataclass(frozen=True)
class Poisson(UnderlyingModel):
    """Counts with an unknown rate under a mixture of gammas.

    `factors` (ascending) are the means of the gammas in locations, `shape` is that of all.
    Their probabilities in a new regime and in outliers add up to one.
    """

    shape: float = 0.5
    factors: tuple[float, ...] = (0.01, 1.0, 100.0)
    weights: tuple[float, ...] = (0.01, 0.98, 0.01)
    outlier_weights: tuple[float, ...] = (0.02, 0.96, 0.02)
    hazard: float = 0.01
    outlier_rate: float = 0.01
    exchangeable = True
    kind: str = "poisson"
    label: str = "count"
    needs_scale: bool = True

    def prior(self, location: Tensor, scale: Tensor) -> CountStats:
        """Nothing seen."""
        shape = torch.full_like(location.unsqueeze(1), self.shape)
        return CountStats(shape, torch.zeros_like(shape))

    def context(self, location: Tensor, scale: Tensor) -> Tensor:
        """The location (B, 1), which the gammas of every hypothesis start from."""
        return location.clone()

    def encode(self, x: Tensor | None, context: Tensor) -> Tensor:
        """The location (B, 1)."""
        return context

    def predictive(self, stats: CountStats, phi: Tensor | None) -> Blend:
        """Negative binomials with the posterior's shape and means."""
        return self._blend(stats, self.required(phi), self.weights)

    def outlier(self, prior: CountStats, phi: Tensor | None) -> Blend:
        """The prior predictive, more often far off."""
        return self._blend(prior, self.required(phi), self.outlier_weights)

    def update(
        self, stats: CountStats, phi: Tensor | None, y: Tensor, weight: Tensor
    ) -> CountStats:
        """Add the counts and the exposure."""
        w = weight.unsqueeze(-1)
        return CountStats(stats.shape + w * y.unsqueeze(1), stats.exposure + w)

    def _blend(self, stats: CountStats, location: Tensor, weights: tuple[float, ...]) -> Blend:
        factors = location.new_tensor(self.factors)
        shape = stats.shape.unsqueeze(-1)
        start = self.shape / (factors * location[:, None, :, None])
        rate = start + stats.exposure.unsqueeze(-1)
        # In terms of the least: a shape of 1e12 times a logarithm would leave no digits.
        least = start[..., -1:]
        seen = shape * torch.log1p((start - least) / (least + stats.exposure.unsqueeze(-1)))
        pi = location.new_tensor([math.log(each) for each in weights])
        log_weight = torch.log_softmax(pi - self.shape * torch.log(factors) - seen, -1)
        return Blend(NegativeBinomial(shape, shape / rate), log_weight)
