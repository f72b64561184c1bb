"""What a family of predictive distributions offers, and how its components are put together."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from itertools import chain, islice
from typing import Any, Protocol, Self

from model_core.lazy import Tensor, torch
from model_core.maths.special import ROOT_2_PI


class Components(Protocol):
    """One distribution for each (stream, component); `y` and `value` broadcast against it.

    Parameters are (B, M, ...), all else that is per output (B, M, d).
    """

    @property
    def support(self) -> str:
        """What labels are: real, positive, count, binary or class."""
        ...

    @property
    def family(self) -> str:
        """Name of the family: those of one name have the same parameters."""
        ...

    def log_density(self, value: Tensor) -> Tensor:
        """Log density or mass of each output dimension alone."""
        ...

    def joint_log_density(self, value: Tensor) -> Tensor:
        """Log density or mass (B, M) of all outputs together, at values (B, 1, d) or (B, M, d)."""
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

    def width(self) -> Tensor:
        """Standard deviation (B, M, d) of a normal whose peak is as high; the variance may not
        exist.
        """
        ...

    def covariance(self) -> Tensor:
        """Covariance (B, M, d, d); inf on the diagonal where a variance does not exist."""
        ...

    def within(self, log_weight: Tensor) -> Tensor:
        """Average covariance (B, d, d) with weights (B, M), without one for each component."""
        ...

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One draw (B, M, d) of each."""
        ...

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same family, all its tensors changed in shape alike."""
        ...

    def shifted(self, by: Tensor) -> Self:
        """Distributions of labels that are larger by `by` (B,); of families with a location."""
        ...

    def marginals(self, weight: Tensor) -> tuple[Tensor, Components]:
        """Mixture of each output alone, from weights (B, M): weights (B, M, d, k) and a family.

        Each component is an average of k, or k is 1; parameters are (B, M, d or 1, k or 1).
        """
        ...

    def table(self) -> tuple[Tensor, ...]:
        """Tensors, shaped as the parameters, that `evaluate` needs; costly parts done once."""
        ...

    def evaluate(self, value: Tensor, table: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """CDF and density of each output dimension at values, of the distributions in a table."""
        ...

    def parameters(self) -> tuple[Tensor, ...]:
        """The tensors that make it."""
        ...

    def rebuilt(self, *parameters: Tensor) -> Self:
        """The same family with other tensors."""
        ...

    def named(self) -> dict[str, Tensor]:
        """Parameters (B, M, ...) by name, from which a client can rebuild each component."""
        ...


class Family:
    """What every NamedTuple of parameters shares; outputs are independent unless it says so."""

    @property
    def family(self) -> str:
        """Name of the family."""
        return type(self).__name__

    @classmethod
    def stated(cls, *parameters: Tensor) -> Self:
        """Of the parameters that equations state: by default these."""
        return cls(*parameters)

    def parameters(self) -> tuple[Tensor, ...]:
        """The tensors that make it, those of families that it is made of in their places."""
        own: Any = self
        parts = (part.parameters() if isinstance(part, Family) else (part,) for part in own)
        return tuple(chain(*parts))

    def rebuilt(self, *parameters: Tensor) -> Self:
        """The same family with other tensors."""
        own: Any = self
        left = iter(parameters)
        parts = [
            part.rebuilt(*islice(left, len(part.parameters())))
            if isinstance(part, Family)
            else next(left)
            for part in own
        ]
        return type(self)(*parts)

    def named(self) -> dict[str, Tensor]:
        """The fields of the tuple."""
        own: Any = self
        fields: dict[str, Tensor] = own._asdict()
        return fields

    def joint_log_density(self, value: Tensor) -> Tensor:
        """Sum over independent outputs, of those that are not missing."""
        own: Any = self
        joint: Tensor = own.log_density(value).masked_fill(torch.isnan(value), 0.0).sum(-1)
        return joint

    def width(self) -> Tensor:
        """Of a peak at the mean."""
        own: Any = self
        width: Tensor = torch.exp(-own.log_density(own.mean())) / ROOT_2_PI
        return width

    def covariance(self) -> Tensor:
        """Diagonal."""
        own: Any = self
        return torch.diag_embed(own.variance())

    def within(self, log_weight: Tensor) -> Tensor:
        """Diagonal: that of many outputs and components would not fit into memory."""
        own: Any = self
        return torch.diag_embed(average(log_weight, own.variance()))

    def shifted(self, by: Tensor) -> Self:
        """Distributions of labels that are larger by `by` (B,); of families with a location."""
        own: Any = self
        fields = own._asdict().items()
        moved = {name: part.shifted(by) for name, part in fields if isinstance(part, Family)}
        if not moved:
            moved["loc"] = own.loc + by.reshape(-1, *[1] * (own.loc.dim() - 1))
        shifted: Self = own._replace(**moved)
        return shifted

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Self:
        """With what was computed of its tensors and kept."""
        new = self.rebuilt(*map(change, self.parameters()))
        vars(new).update({name: change(kept) for name, kept in vars(self).items()})
        return new

    def marginals(self, weight: Tensor) -> tuple[Tensor, Any]:
        """Itself."""
        own: Any = self
        share = weight.unsqueeze(-1).expand_as(own.mean())
        return share.unsqueeze(-1), self.mapped(lambda p: p.unsqueeze(-1))

    def table(self) -> tuple[Tensor, ...]:
        """The parameters."""
        return self.parameters()

    def evaluate(self, value: Tensor, table: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """CDF and density, one after the other."""
        own: Any = self.rebuilt(*table)
        return own.cdf(value), own.log_density(value).exp()


class Together(Family):
    """What is of all outputs together: all that is per output is that of the marginals."""

    @abstractmethod
    def each_output(self) -> Any:
        """Each output alone."""

    def marginals(self, weight: Tensor) -> tuple[Tensor, Any]:
        """Those of each output."""
        marginals: tuple[Tensor, Any] = self.each_output().marginals(weight)
        return marginals

    def log_density(self, value: Tensor) -> Tensor:
        """Log density of each output alone."""
        density: Tensor = self.each_output().log_density(value)
        return density

    def cdf(self, value: Tensor) -> Tensor:
        """Cumulative probability of each output alone."""
        cumulative: Tensor = self.each_output().cdf(value)
        return cumulative

    def mean(self) -> Tensor:
        """Of each output."""
        mean: Tensor = self.each_output().mean()
        return mean

    def variance(self) -> Tensor:
        """Of each output; inf where one does not exist."""
        variance: Tensor = self.each_output().variance()
        return variance


def join(first: Components, second: Components) -> Components:
    """Components of two mixtures side by side (same family, batch and dimension)."""
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return first.rebuilt(*(torch.cat((a, b), 1) for a, b in pairs))


def average(log_weight: Tensor, value: Tensor) -> Tensor:
    """Average (B, d) of values (B, M, d) with weights (B, M)."""
    # A component of weight 0 may have an infinite moment; it must not make a nan.
    weight = log_weight.exp().unsqueeze(-1)
    return torch.where(weight > 0, weight * value, 0.0).sum(1)
