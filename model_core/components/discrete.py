"""Families of counts, of zeros and ones, and of classes."""

from __future__ import annotations

from typing import NamedTuple, Self

from model_core.components.base import Components, average
from model_core.lazy import Tensor, torch
from model_core.maths.families import EXACT_COUNTS
from model_core.tensor_ops import maths
from model_core.transfer import on_host

_FAMILIES = maths("families")
_SPECIAL = maths("special")


class _NegativeBinomial(NamedTuple):
    shape: Tensor
    rate: Tensor


class NegativeBinomial(_NegativeBinomial, Components):
    """Counts with mean `rate` and variance `rate + rate^2 / shape`."""

    support = "count"

    def log_density(self, value: Tensor) -> Tensor:
        """Log mass at a count; -inf below zero."""
        k = value.clamp(min=1)
        error = _SPECIAL.stirling_error(k)
        log_mass = _FAMILIES.negative_binomial_log_mass(k, error, self.shape, self.rate)
        at_zero = _FAMILIES.negative_binomial_log_zero(self.shape, self.rate)
        return torch.where(value < 0, -torch.inf, torch.where(value < 1, at_zero, log_mass))

    def cdf(self, value: Tensor) -> Tensor:
        """Cumulative probability: summed below 64, beyond by a normal good to 5e-6."""
        value = (value + 0 * (self.shape + self.rate)).floor()
        small = value < EXACT_COUNTS
        index = torch.where(small, value, 0.0).clamp(min=0).long()
        # On a device, room for any: to look at the largest would have the host wait.
        counts = int(index.max().item()) + 1 if on_host(index) else EXACT_COUNTS
        table = self._small_counts(counts).expand(*value.shape, -1)
        below = table.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        if not (on_host(small) and bool(small.all())):
            large = _FAMILIES.negative_binomial_large(value, self.shape, self.rate)
            below = torch.where(small, below, large)
        return torch.where(value < 0, 0.0, below)

    def _small_counts(self, counts: int) -> Tensor:
        """Cumulative probabilities (..., counts) of 0, 1, ..., by the recurrence of the masses."""
        k = torch.arange(1, counts, dtype=self.shape.dtype, device=self.shape.device)
        zero = 0 * (self.shape + self.rate)  # of the shape of both
        shape = (self.shape + zero).unsqueeze(-1)
        rate = (self.rate + zero).unsqueeze(-1)
        grow = torch.log(_FAMILIES.negative_binomial_growth(k, shape, rate / (shape + rate)))
        first = _FAMILIES.negative_binomial_log_zero(shape, rate)
        log_mass = torch.cat((first, first + grow.cumsum(-1)), -1)
        return log_mass.exp().cumsum(-1).clamp(max=1.0)

    def mean(self) -> Tensor:
        """Rate."""
        return self.rate

    def variance(self) -> Tensor:
        """Mean plus squared mean over shape."""
        variance: Tensor = _FAMILIES.negative_binomial_variance(self.shape, self.rate)
        return variance

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Poisson draw of a gamma draw."""
        gamma = torch._standard_gamma(self.shape, generator=generator)
        drawn: Tensor = torch.poisson(gamma * self.rate / self.shape, generator=generator)
        return drawn


class _Bernoulli(NamedTuple):
    probability: Tensor


class Bernoulli(_Bernoulli, Components):
    """One with this probability, else zero."""

    support = "binary"

    def log_density(self, value: Tensor) -> Tensor:
        """Log mass at zero or one."""
        mass: Tensor = _FAMILIES.bernoulli_log_mass(value, self.probability)
        return mass

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
        variance: Tensor = _FAMILIES.bernoulli_variance(self.probability)
        return variance

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Zeros and ones."""
        return torch.bernoulli(self.probability, generator=generator)


class _Categorical(NamedTuple):
    log_probability: Tensor


class Categorical(_Categorical, Components):
    """One of J classes: log probabilities (B, M, J). Labels are class indices (B, M, 1)."""

    support = "class"

    @classmethod
    def stated(cls, *parameters: Tensor) -> Self:
        """Of numbers that are proportional to the probabilities."""
        (counts,) = parameters
        return cls(torch.log(counts) - torch.log(counts.sum(-1, keepdim=True)))

    def log_density(self, value: Tensor) -> Tensor:
        """Log probability of the class; -inf of an index that is none."""
        classes = torch.arange(self.log_probability.shape[-1], device=value.device)
        chosen = value == classes
        density = torch.where(chosen, self.log_probability, 0.0).sum(-1, keepdim=True)
        return torch.where(chosen.any(-1, keepdim=True), density, -torch.inf)

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
