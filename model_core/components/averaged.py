"""A weighted average of Student-t distributions as the predictive of one hypothesis."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from model_core.components.base import Family
from model_core.components.real import StudentT


class _StudentAverage(NamedTuple):
    df: Tensor
    loc: Tensor
    scale: Tensor
    log_weight: Tensor


class StudentAverage(_StudentAverage, Family):
    """`sum_k w_k t(y; df_k, loc_k, scale_k)`; parameters (B, M, d, k).

    Each output has weights of its own, which sum to one over k.
    """

    support = "real"

    def _each(self) -> StudentT:
        return StudentT(self.df, self.loc, self.scale)

    def log_density(self, value: Tensor) -> Tensor:
        """Log density of each dimension."""
        each = self._each().log_density(value.unsqueeze(-1))
        return torch.logsumexp(self.log_weight + each, -1)

    def cdf(self, value: Tensor) -> Tensor:
        """Cumulative probability of each dimension, to 2e-10."""
        return (self.log_weight.exp() * self._each().cdf(value.unsqueeze(-1))).sum(-1)

    def marginals(self, weight: Tensor) -> tuple[Tensor, StudentT]:
        """The k of each component side by side: (B, M k, d)."""
        full = weight[..., None, None] * self.log_weight.exp(), self.df, self.loc, self.scale
        share, *rest = (each.transpose(-1, -2).flatten(1, 2) for each in full)
        return share, StudentT(*rest)

    def mean(self) -> Tensor:
        """Average of the locations."""
        return (self.log_weight.exp() * self.loc).sum(-1)

    def variance(self) -> Tensor:
        """Variance within plus variance between; inf where one does not exist."""
        weight, between = self.log_weight.exp(), self.loc - self.mean().unsqueeze(-1)
        return (weight * (self._each().variance() + between.square())).sum(-1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """A draw of one of the k."""
        weight = self.log_weight.exp().flatten(0, -2)
        chosen = torch.multinomial(weight, 1, generator=generator)
        drawn = self._each().sample(generator).flatten(0, -2)
        return drawn.gather(-1, chosen).reshape(self.loc.shape[:-1])
