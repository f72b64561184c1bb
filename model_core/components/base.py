"""What a family of predictive distributions offers, and how its components are put together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from itertools import chain, islice
from typing import Any, Self

from model_core.lazy import Tensor, torch
from model_core.maths.special import ROOT_2_PI


class Components(ABC):
    """One distribution for each (stream, component); `y` and `value` broadcast against it.

    A family is a NamedTuple of its parameters, tensors (B, M, ...) or families again, and this.
    Parameters are (B, M, ...), all else that is per output (B, M, d). Outputs are independent
    unless a family says so.
    """

    _asdict: Callable[[], dict[str, Any]]  # as every NamedTuple has them
    _replace: Callable[..., Self]

    @property
    @abstractmethod
    def support(self) -> str:
        """What labels are: real, positive, count, binary or class."""

    @abstractmethod
    def log_density(self, value: Tensor) -> Tensor:
        """Log density or mass of each output dimension alone."""

    @abstractmethod
    def cdf(self, value: Tensor) -> Tensor:
        """`P(Y <= value)` of each output dimension."""

    @abstractmethod
    def mean(self) -> Tensor:
        """Mean (B, M, d)."""

    @abstractmethod
    def variance(self) -> Tensor:
        """Variance (B, M, d); inf where it does not exist."""

    @abstractmethod
    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One draw (B, M, d) of each."""

    @property
    def family(self) -> str:
        """Name of the family: those of one name have the same parameters."""
        return type(self).__name__

    @classmethod
    def stated(cls, *parameters: Tensor) -> Self:
        """Of the parameters that equations state: by default these."""
        return cls(*parameters)

    def parameters(self) -> tuple[Tensor, ...]:
        """The tensors that make it, those of families that it is made of in their places."""
        parts = self._asdict().values()
        return tuple(
            chain(*(own.parameters() if isinstance(own, Components) else (own,) for own in parts))
        )

    def rebuilt(self, *parameters: Tensor) -> Self:
        """The same family with other tensors."""
        left = iter(parameters)
        parts = [
            own.rebuilt(*islice(left, len(own.parameters())))
            if isinstance(own, Components)
            else next(left)
            for own in self._asdict().values()
        ]
        return type(self)(*parts)

    def named(self) -> dict[str, Tensor]:
        """Parameters (B, M, ...) by name, from which a client can rebuild each component."""
        return self._asdict()

    def joint_log_density(self, value: Tensor) -> Tensor:
        """Log density or mass (B, M) of all outputs together, at values (B, 1, d) or (B, M, d).

        Of those that are not missing.
        """
        return self.log_density(value).masked_fill(torch.isnan(value), 0.0).sum(-1)

    def width(self) -> Tensor:
        """Standard deviation (B, M, d) of a normal whose peak is as high, at the mean.

        The variance may not exist.
        """
        return torch.exp(-self.log_density(self.mean())) / ROOT_2_PI

    def within(self, log_weight: Tensor) -> Tensor:
        """Average covariance (B, d, d) with weights (B, M), without one for each component.

        Those of many outputs and components would not fit into memory.
        """
        return torch.diag_embed(average(log_weight, self.variance()))

    def shifted(self, by: Tensor) -> Self:
        """Distributions of labels that are larger by `by` (d,); of families with a location."""
        fields = self._asdict()
        moved: dict[str, Any] = {
            name: part.shifted(by) for name, part in fields.items() if isinstance(part, Components)
        }
        if not moved:
            moved["loc"] = fields["loc"] + by
        return self._replace(**moved)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same family, all its tensors changed in shape alike, as what was computed of them."""
        new = self.rebuilt(*map(change, self.parameters()))
        for name, kept in vars(self).items():
            if not isinstance(kept, Components):  # whose axes may be others
                vars(new)[name] = change(kept)
        return new

    def marginals(self, weight: Tensor) -> tuple[Tensor, Components]:
        """Mixture of each output alone, from weights (B, M): weights (B, M, d, k) and a family.

        Each component is an average of k, or k is 1; parameters are (B, M, d or 1, k or 1).
        """
        share = weight.unsqueeze(-1).expand_as(self.mean())
        return share.unsqueeze(-1), self.mapped(lambda p: p.unsqueeze(-1))

    def table(self) -> tuple[Tensor, ...]:
        """Tensors, shaped as the parameters, that `evaluate` needs; costly parts done once."""
        return self.parameters()

    def evaluate(self, value: Tensor, table: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """CDF and density of each output dimension at values, of the distributions in a table."""
        own = self.rebuilt(*table)
        return own.cdf(value), own.log_density(value).exp()


class Together(Components):
    """What is of all outputs together: all that is per output is that of the marginals."""

    @abstractmethod
    def each_output(self) -> Components:
        """Each output alone."""

    @cached_property
    def _marginals(self) -> Components:
        return self.each_output()  # costly, and wanted by all that is asked

    def marginals(self, weight: Tensor) -> tuple[Tensor, Components]:
        """Those of each output."""
        return self._marginals.marginals(weight)

    def log_density(self, value: Tensor) -> Tensor:
        """Log density of each output alone."""
        return self._marginals.log_density(value)

    def cdf(self, value: Tensor) -> Tensor:
        """Cumulative probability of each output alone."""
        return self._marginals.cdf(value)

    def mean(self) -> Tensor:
        """Of each output."""
        return self._marginals.mean()

    def variance(self) -> Tensor:
        """Of each output; inf where one does not exist."""
        return self._marginals.variance()


def join(first: Components, second: Components) -> Components:
    """Components of two mixtures side by side (same family, batch and dimension)."""
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return first.rebuilt(*(torch.cat((a, b), 1) for a, b in pairs))


def average(log_weight: Tensor, value: Tensor) -> Tensor:
    """Average (B, d) of values (B, M, d) with weights (B, M)."""
    # A component of weight 0 may have an infinite moment; it must not make a nan.
    weight = log_weight.exp().unsqueeze(-1)
    return torch.where(weight > 0, weight * value, 0.0).sum(1)
