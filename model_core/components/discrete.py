"""Families of counts, of zeros and ones, and of classes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from model_core import special
from model_core.components.base import Family, average


class _NegativeBinomial(NamedTuple):
    shape: Tensor
    rate: Tensor


class NegativeBinomial(_NegativeBinomial, Family):
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


class Bernoulli(_Bernoulli, Family):
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


class _Categorical(NamedTuple):
    log_probability: Tensor


class Categorical(_Categorical, Family):
    """One of J classes: log probabilities (B, M, J). Labels are class indices (B, M, 1)."""

    support = "class"

    def log_density(self, value: Tensor) -> Tensor:
        """Log probability of the class; -inf of an index that is none."""
        classes = torch.arange(self.log_probability.shape[-1], device=value.device)
        chosen = value == classes
        found = torch.where(chosen, self.log_probability, 0.0).sum(-1, keepdim=True)
        return torch.where(chosen.any(-1, keepdim=True), found, -torch.inf)

    def cdf(self, value: Tensor) -> Tensor:
        """Probability of the classes up to an index."""
        classes = torch.arange(self.log_probability.shape[-1], device=value.device)
        return (self.log_probability.exp() * (classes <= value)).sum(-1, keepdim=True)

    def mean(self) -> Tensor:
        """Probabilities (B, M, J): the mean of the indicator of each class."""
        return self.log_probability.exp()

    def variance(self) -> Tensor:
        """`p (1 - p)` of each indicator."""
        p = self.log_probability.exp()
        return p * (1 - p)

    def covariance(self) -> Tensor:
        """Of the indicators (B, M, J, J)."""
        p = self.log_probability.exp()
        return torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)

    def within(self, log_weight: Tensor) -> Tensor:
        """With what is beside the diagonal."""
        p = self.log_probability.exp()
        between = torch.einsum("bm,bmi,bmj->bij", log_weight.exp(), p, p)
        return torch.diag_embed(average(log_weight, p)) - between

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Class indices (B, M, 1)."""
        p = self.log_probability.exp()
        flat = torch.multinomial(p.reshape(-1, p.shape[-1]), 1, generator=generator)
        return flat.reshape(*p.shape[:-1], 1).double()
