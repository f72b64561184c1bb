"""Predictive distributions of single hypotheses: the families that mixtures are made of.

Parameters are (B, M, d): stream, mixture component, output dimension; the outputs of one
component are independent. Everything is in the units of the labels.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from model_core import special


class Components(Protocol):
    """One distribution for each (stream, component); `y` and `value` broadcast against it."""

    support: str  # real | count | binary

    def log_density(self, value: Tensor) -> Tensor:
        """Log density or mass of each output dimension."""
        ...

    def cdf(self, value: Tensor) -> Tensor:
        """`P(Y <= value)` of each output dimension."""
        ...

    def mean(self) -> Tensor:
        """Mean (B, M, d)."""
        ...

    def variance(self) -> Tensor:
        """Variance (B, M, d); inf where it does not exist."""
        ...

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One draw of each."""
        ...

    def table(self) -> tuple[Tensor, ...]:
        """Tensors, shaped as the parameters, that `evaluate` needs; costly parts done once."""
        ...

    def evaluate(self, value: Tensor, table: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """CDF and density at values, of the distributions in a table."""
        ...

    def parameters(self) -> tuple[Tensor, ...]:
        """The tensors that make it."""
        ...

    def rebuilt(self, *parameters: Tensor) -> Self:
        """The same family with other tensors."""
        ...


class _Family:
    """What every NamedTuple of parameters shares."""

    def parameters(self) -> tuple[Tensor, ...]:
        return tuple(self)  # type: ignore[arg-type]

    def rebuilt(self, *parameters: Tensor) -> Self:
        return type(self)(*parameters)

    def table(self) -> tuple[Tensor, ...]:
        return self.parameters()

    def evaluate(self, value: Tensor, table: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        own: Any = self.rebuilt(*table)
        return own.cdf(value), own.log_density(value).exp()


class _StudentT(NamedTuple):
    df: Tensor
    loc: Tensor
    scale: Tensor


class StudentT(_StudentT, _Family):
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


class Normal(_Normal, _Family):
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


class _NegativeBinomial(NamedTuple):
    shape: Tensor
    rate: Tensor


class NegativeBinomial(_NegativeBinomial, _Family):
    """Counts with mean `rate` and variance `rate + rate^2 / shape`."""

    support = "count"

    def log_density(self, value: Tensor) -> Tensor:
        """Log mass at a count; -inf below zero."""
        return special.negative_binomial_log_mass(value, self.shape, self.rate)

    def cdf(self, value: Tensor) -> Tensor:
        """Cumulative probability: exact sums, an approximation (1e-5) for large counts."""
        return special.negative_binomial_cdf(value, self.shape, self.rate)

    def mean(self) -> Tensor:
        """Rate."""
        return self.rate

    def variance(self) -> Tensor:
        """Mean plus squared mean over shape."""
        return self.rate + self.rate.square() / self.shape

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Poisson draw of a gamma draw."""
        gamma = torch._standard_gamma(self.shape, generator=generator)
        drawn: Tensor = torch.poisson(gamma * self.rate / self.shape, generator=generator)
        return drawn


class _Bernoulli(NamedTuple):
    probability: Tensor


class Bernoulli(_Bernoulli, _Family):
    """One with this probability, else zero."""

    support = "binary"

    def log_density(self, value: Tensor) -> Tensor:
        """Log mass at zero or one."""
        p = self.probability
        return torch.where(value > 0.5, torch.log(p), torch.log1p(-p))

    def cdf(self, value: Tensor) -> Tensor:
        """Zero below 0, `1 - p` below 1, then one."""
        p = self.probability
        one = torch.ones_like(p)
        return torch.where(value < 0, 0 * one, torch.where(value < 1, 1 - p, one))

    def mean(self) -> Tensor:
        """Probability of a one."""
        return self.probability

    def variance(self) -> Tensor:
        """`p (1 - p)`."""
        return self.probability * (1 - self.probability)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Zeros and ones."""
        return torch.bernoulli(self.probability, generator=generator)


def join(first: Components, second: Components) -> Components:
    """Components of two mixtures side by side (same family, batch and dimension)."""
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return first.rebuilt(*(torch.cat((a, b), 1) for a, b in pairs))


def average(log_weight: Tensor, value: Tensor) -> Tensor:
    """Average (B, d) of values (B, M, d) with weights (B, M)."""
    # A component of weight 0 may have an infinite moment; it must not make a nan.
    weight = log_weight.exp().unsqueeze(-1)
    return torch.where(weight > 0, weight * value, 0.0).sum(1)
