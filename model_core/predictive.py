"""The predictive mixture over run lengths, which answers are read off, in the labels' units."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from model_core import quantiles
from model_core.components import Components, average


class Mixture(NamedTuple):
    """`sum_m w_m p_m(y)` for B streams: log_weight (B, M), rows sum to one."""

    log_weight: Tensor
    components: Components

    def log_prob(self, y: Tensor) -> Tensor:
        """Log density (B,) of labels (B, d), over all outputs jointly."""
        each = self.components.log_density(y.unsqueeze(1)).sum(-1)
        return torch.logsumexp(self.log_weight + each, -1)

    def mean(self) -> Tensor:
        """Mean (B, d)."""
        return average(self.log_weight, self.components.mean())

    def covariance(self) -> Tensor:
        """Covariance (B, d, d); inf where a variance does not exist."""
        means = self.components.mean()
        centred = means - average(self.log_weight, means).unsqueeze(1)
        weight = self.log_weight.exp().unsqueeze(-1)
        between = torch.einsum("bmi,bmj->bij", weight * centred, centred)
        return between + torch.diag_embed(average(self.log_weight, self.components.variance()))

    def cdf(self, value: Tensor) -> Tensor:
        """Marginal cumulative probabilities (B, d) at values (B, d)."""
        return average(self.log_weight, self.components.cdf(value.unsqueeze(1)))

    def quantile(self, levels: Tensor, tolerance: float = quantiles.TOLERANCE) -> Tensor:
        """Marginal quantiles (B, Q, d) at levels (Q,) strictly between 0 and 1.

        `tolerance` is the size of the last Newton step of a continuous one, in scales of the
        narrowest component; the error is about its square.
        """
        if self.components.support == "real":
            return quantiles.continuous(self.log_weight, self.components, levels, tolerance)
        return quantiles.count(self.log_weight, self.components, levels)

    def sample(self, draws: int, generator: torch.Generator | None = None) -> Tensor:
        """Draws (B, draws, d)."""
        chosen = torch.multinomial(self.log_weight.exp(), draws, True, generator=generator)
        picked = [
            each.gather(1, chosen.unsqueeze(-1).expand(-1, -1, each.shape[-1]))
            for each in self.components.parameters()
        ]
        return self.components.rebuilt(*picked).sample(generator)
