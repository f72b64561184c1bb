"""A weighted average of Student-t distributions as the predictive of one hypothesis."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from model_core import special
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

    def table(self) -> tuple[Tensor, ...]:
        """Weight, location, scale and what depends on the degrees of freedom, of each k in turn."""
        own = special.student_t_table(self.df, special.student_t_norm(self.df))
        full = torch.stack((self.log_weight.exp(), self.loc, self.scale, *own))
        return full.movedim(-1, 0).flatten(0, 1).unbind()

    def evaluate(self, value: Tensor, table: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """CDF and density at values."""
        parts = self.log_weight.shape[-1]
        size = len(table) // parts
        cdf = density = torch.zeros_like(table[0])
        for i in range(0, len(table), size):
            weight, loc, scale, *rest = table[i : i + size]
            below, at = special.student_t((value - loc) / scale, tuple(rest))
            cdf, density = cdf + weight * below, density + weight * at / scale
        return cdf, density

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
