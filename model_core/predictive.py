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
        each = self.components.joint_log_density(y.unsqueeze(1))
        return torch.logsumexp(self.log_weight + each, -1)

    def mean(self) -> Tensor:
        """Mean (B, d); of classes their probabilities (B, J)."""
        return average(self.log_weight, self.components.mean())

    def covariance(self) -> Tensor:
        """Covariance (B, d, d); inf where a variance does not exist."""
        means = self.components.mean()
        centred = means - average(self.log_weight, means).unsqueeze(1)
        weight = self.log_weight.exp().unsqueeze(-1)
        between = torch.einsum("bmi,bmj->bij", weight * centred, centred)
        within = average(self.log_weight, self.components.covariance().flatten(2))
        return between + within.reshape(between.shape)

    def cdf(self, value: Tensor) -> Tensor:
        """Marginal cumulative probabilities (B, d) at values (B, d)."""
        return average(self.log_weight, self.components.cdf(value.unsqueeze(1)))

    def quantile(self, levels: Tensor, tolerance: float = quantiles.TOLERANCE) -> Tensor:
        """Marginal quantiles (B, Q, d) at levels (Q,) strictly between 0 and 1; none of classes.

        `tolerance` is the size of the last Newton step of a continuous one, in scales of the
        narrowest component; the error is about its square.
        """
        if self.components.support == "class":
            raise ValueError("classes have no order, hence no quantiles")
        weight, alone = self.components.marginals(self.log_weight.exp())
        if alone.support in ("real", "positive"):
            return quantiles.continuous(weight, alone, levels, tolerance)
        return quantiles.count(weight, alone, levels)

    def sample(self, draws: int, generator: torch.Generator | None = None) -> Tensor:
        """Draws (B, draws, d)."""
        chosen = torch.multinomial(self.log_weight.exp(), draws, True, generator=generator)
        rows = torch.arange(len(chosen), device=chosen.device).unsqueeze(-1)
        picked = [each[rows, chosen] for each in self.components.parameters()]
        return self.components.rebuilt(*picked).sample(generator)
