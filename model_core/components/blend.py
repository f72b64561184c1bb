"""A weighted average of distributions of one family as the predictive of one hypothesis."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from model_core.components.base import Components, Family
from model_core.lazy import Tensor, torch


class _Blend(NamedTuple):
    parts: Any  # of a family of independent outputs, with one more axis
    log_weight: Tensor


class Blend(_Blend, Family):
    """`sum_k w_k p_k(y)`; log weights (B, M, d, k), and parameters of `parts` that broadcast to it.

    Each output has weights of its own, which sum to one over k.
    """

    @property
    def support(self) -> str:
        """That of the family."""
        support: str = self.parts.support
        return support

    @property
    def family(self) -> str:
        """With that of what is averaged."""
        return f"{super().family} of {self.parts.family}"

    def parameters(self) -> tuple[Tensor, ...]:
        """Those of the family, then the log weights."""
        return *self.parts.parameters(), self.log_weight

    def rebuilt(self, *parameters: Tensor) -> Self:
        """The same family with other tensors."""
        return type(self)(self.parts.rebuilt(*parameters[:-1]), parameters[-1])

    def shifted(self, by: Tensor) -> Self:
        """All of the family."""
        return self._replace(parts=self.parts.shifted(by))

    def named(self) -> dict[str, Tensor]:
        """Those of the family, of the shape of the weights, and the weights."""
        shape = self.log_weight.shape
        parameters = {name: value.expand(shape) for name, value in self.parts.named().items()}
        return {**parameters, "weight": self.log_weight.exp()}

    def log_density(self, value: Tensor) -> Tensor:
        """Log density or mass of each dimension."""
        return torch.logsumexp(self.log_weight + self.parts.log_density(value.unsqueeze(-1)), -1)

    def cdf(self, value: Tensor) -> Tensor:
        """Cumulative probability of each dimension, as exact as the family's."""
        return self._average(self.parts.cdf(value.unsqueeze(-1)))

    def marginals(self, weight: Tensor) -> tuple[Tensor, Components]:
        """The k of each component."""
        return weight[..., None, None] * self.log_weight.exp(), self.parts

    def mean(self) -> Tensor:
        """Average of the means."""
        return self._average(self.parts.mean())

    def variance(self) -> Tensor:
        """Variance within plus variance between; inf where one does not exist."""
        between = self.parts.mean() - self.mean().unsqueeze(-1)
        return self._average(self.parts.variance() + between.square())

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """A draw of one of the k."""
        weight = self.log_weight.exp().flatten(0, -2)
        chosen = torch.multinomial(weight, 1, generator=generator)
        drawn = self.parts.sample(generator).flatten(0, -2)
        picked: Tensor = drawn.gather(-1, chosen).reshape(self.log_weight.shape[:-1])
        return picked

    def _average(self, value: Tensor) -> Tensor:
        weight = self.log_weight.exp()
        # One of weight 0 may have an infinite moment; it must not make a nan.
        return torch.where(weight > 0, weight * value, 0.0).sum(-1)
