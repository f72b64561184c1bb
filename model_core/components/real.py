"""Families of real labels."""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from model_core import special
from model_core.components.base import Family


class _StudentT(NamedTuple):
    df: Tensor
    loc: Tensor
    scale: Tensor


class StudentT(_StudentT, Family):
    """Student-t with `df` degrees of freedom; the variance exists for `df > 2`."""

    support = "real"

    @cached_property
    def _log_norm(self) -> Tensor:
        return special.student_t_norm(self.df)  # costly, and wanted by all that is asked

    def log_density(self, value: Tensor) -> Tensor:
        """Log density of each dimension."""
        z = (value - self.loc) / self.scale
        norm = self._log_norm - torch.log(self.scale)
        return norm - 0.5 * (self.df + 1) * torch.log1p(z.square() / self.df)

    def cdf(self, value: Tensor) -> Tensor:
        """Cumulative probability of each dimension, to 2e-10."""
        return self.evaluate(value, self.table())[0]

    def table(self) -> tuple[Tensor, ...]:
        """Location, scale, and what depends on the degrees of freedom alone."""
        return self.loc, self.scale, *special.student_t_table(self.df, self._log_norm)

    def evaluate(self, value: Tensor, table: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """CDF and density at values."""
        loc, scale, *rest = table
        cdf, density = special.student_t((value - loc) / scale, tuple(rest))
        return cdf, density / scale

    def mean(self) -> Tensor:
        """Location."""
        return self.loc

    def variance(self) -> Tensor:
        """`scale^2 df / (df - 2)`; inf for `df <= 2`."""
        variance = self.scale.square() * self.df / (self.df - 2)
        return torch.where(self.df > 2, variance, torch.inf)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Normal over the root of a chi-square."""
        chi2 = 2 * torch._standard_gamma(0.5 * self.df, generator=generator)
        normal = torch.randn(
            self.loc.shape, generator=generator, dtype=self.loc.dtype, device=self.loc.device
        )
        return self.loc + self.scale * normal * (self.df / chi2).sqrt()


class _Normal(NamedTuple):
    loc: Tensor
    scale: Tensor


class Normal(_Normal, Family):
    """Gaussian with standard deviation `scale`."""

    support = "real"

    def log_density(self, value: Tensor) -> Tensor:
        """Log density of each dimension."""
        z = (value - self.loc) / self.scale
        return -0.5 * z.square() - torch.log(self.scale) - 0.5 * math.log(2 * math.pi)

    def cdf(self, value: Tensor) -> Tensor:
        """Cumulative probability of each dimension."""
        cumulative: Tensor = torch.special.ndtr((value - self.loc) / self.scale)
        return cumulative

    def mean(self) -> Tensor:
        """Location."""
        return self.loc

    def variance(self) -> Tensor:
        """Squared scale."""
        return self.scale.square()

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One draw of each."""
        normal = torch.randn(
            self.loc.shape, generator=generator, dtype=self.loc.dtype, device=self.loc.device
        )
        return self.loc + self.scale * normal
