"""Weighted averages of distributions, as the predictive of one hypothesis."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple, Self

from model_core.components.base import Components, Together
from model_core.components.real import MultivariateStudentT, SkewedT
from model_core.lazy import Tensor, torch


class _OfParts(Components):
    """An average of `parts` that are of one family of independent outputs."""

    parts: Any

    @property
    def support(self) -> str:
        """That of the family."""
        support: str = self.parts.support
        return support

    @property
    def family(self) -> str:
        """With that of what is averaged."""
        return f"{super().family} of {self.parts.family}"


class _Blend(NamedTuple):
    parts: Any  # with one more axis
    log_weight: Tensor


class Blend(_Blend, _OfParts):
    """`sum_k w_k p_k(y)`; log weights (B, M, d, k), and parameters of `parts` that broadcast to it.

    Each output has weights of its own, which sum to one over k.
    """

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

    def shifted(self, by: Tensor) -> Self:
        """Those of the family: of all k of an output alike."""
        return self._replace(parts=self.parts.shifted(by.unsqueeze(-1)))

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


class _OneOf(Together):
    """One of k distributions draws all outputs of a label.

    log_choice: (B, M, k), whose exponentials sum to one over k.
    """

    log_choice: Tensor

    @abstractmethod
    def drawn(self, generator: torch.Generator | None) -> Tensor:
        """A draw (B, M, k, d) of each of the k."""

    @abstractmethod
    def covariance(self) -> Tensor:
        """Covariance (B, M, d, d) of all outputs; inf where a variance does not exist."""

    def within(self, log_weight: Tensor) -> Tensor:
        """Average of the covariances."""
        weight = log_weight.exp()[..., None, None]
        return torch.where(weight > 0, weight * self.covariance(), 0.0).sum(1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """A draw of one of the k."""
        choice = self.log_choice.exp().flatten(0, -2)
        chosen = torch.multinomial(choice, 1, generator=generator)
        drawn = self.drawn(generator).flatten(0, -3)
        picked = drawn.gather(1, chosen.unsqueeze(-1).expand(-1, -1, drawn.shape[-1]))
        return picked.reshape(self.log_choice.shape[:-1] + drawn.shape[-1:])


class _Choice(NamedTuple):
    parts: Any  # with one more axis before the outputs
    log_choice: Tensor


class Choice(_Choice, _OneOf, _OfParts):
    """`sum_k c_k prod_o p_ko(y_o)`.

    parts: parameters (B, M, k, d). log_choice: (B, M, k). A `Blend` has weights for each output;
    here the outputs of a label are of the same k.
    """

    def named(self) -> dict[str, Tensor]:
        """Those of the family, and the probability `choice` of each k."""
        return {**self.parts.named(), "choice": self.log_choice.exp()}

    def each_output(self) -> Blend:
        """Each output alone, an average of k."""
        own = self.parts.rebuilt(*(p.mT for p in self.parts.parameters()))
        outputs = self.parts.mean().shape[-1]
        return Blend(own, self.log_choice.unsqueeze(-2).expand(-1, -1, outputs, -1))

    def joint_log_density(self, value: Tensor) -> Tensor:
        """Log density (B, M) of all outputs together."""
        densities = self.parts.joint_log_density(value.unsqueeze(-2))
        return torch.logsumexp(self.log_choice + densities, -1)

    def covariance(self) -> Tensor:
        """Covariance within plus covariance between."""
        choice = self.log_choice.exp().unsqueeze(-1)
        centred = self.parts.mean() - self.mean().unsqueeze(-2)
        between = torch.einsum("bmki,bmkj->bmij", choice * centred, centred)
        # What has no weight may have no variance; it must not make a nan.
        within = torch.where(choice > 0, choice * self.parts.variance(), 0.0).sum(-2)
        return between + torch.diag_embed(within)

    def drawn(self, generator: torch.Generator | None) -> Tensor:
        """Of the parts."""
        drawn: Tensor = self.parts.sample(generator)
        return drawn


class _Either(NamedTuple):
    alone: Blend
    together: MultivariateStudentT
    log_choice: Tensor


class Either(_Either, _OneOf):
    """`c_0 prod_o p_o(y_o) + sum_j c_j t_j(y)`, of Student-t: outputs independent, or together.

    alone: each output's own average of k, with skews (B, M, d, k). together: J of all outputs, df
    (B, M, J, 1), loc (B, M, J, d), factor (B, M, J, d, d). log_choice: (B, M, 1 + J).
    """

    support = "real"

    def named(self) -> dict[str, Tensor]:
        """Both families' by name; `weight` is within an output's average, `choice` beside it."""
        together = {f"joint_{name}": value for name, value in self.together.named().items()}
        return {**self.alone.named(), **together, "choice": self.log_choice.exp()}

    def each_output(self) -> Blend:
        """Each output alone, an average of k + J."""
        own: SkewedT = self.alone.parts
        together = self.together
        shape = self.alone.log_weight.shape
        loc = together.loc.mT
        scale = torch.linalg.vector_norm(together.factor, dim=-1).mT
        df = together.df.squeeze(-1).unsqueeze(-2).expand_as(loc)
        one = torch.ones_like(loc)

        def joined(alone: Tensor, joint: Tensor) -> Tensor:
            return torch.cat((alone.expand(shape), joint), -1)

        first = self.log_choice[..., None, :1]
        others = self.log_choice[..., None, 1:]
        weights = torch.cat((first + self.alone.log_weight, others.expand_as(loc)), -1)
        marginals = SkewedT(
            joined(own.df, df),
            joined(own.loc, loc),
            joined(own.scale, scale),
            joined(own.skew, one),
        )
        return Blend(marginals, weights)

    def joint_log_density(self, value: Tensor) -> Tensor:
        """Log density (B, M) of all outputs together."""
        independent = self.alone.joint_log_density(value).unsqueeze(-1)
        together = self.together.joint_log_density(value.unsqueeze(-2))
        return torch.logsumexp(self.log_choice + torch.cat((independent, together), -1), -1)

    def covariance(self) -> Tensor:
        """Covariance within plus covariance between."""
        choice = self.log_choice.exp()
        mean = self.mean()
        means = torch.cat((self.alone.mean().unsqueeze(-2), self.together.loc), -2)
        centred = means - mean.unsqueeze(-2)
        between = torch.einsum("bmj,bmjx,bmjy->bmxy", choice, centred, centred)
        shared = choice[..., 1:, None, None]
        # What has no weight may have no variance; it must not make a nan.
        parts = torch.where(shared > 0, shared * self.together.covariance(), 0.0).sum(-3)
        own = choice[..., :1]
        diagonal = torch.where(own > 0, own * self.alone.variance(), 0.0)
        return between + parts + torch.diag_embed(diagonal)

    def drawn(self, generator: torch.Generator | None) -> Tensor:
        """Of independent outputs, then of all together."""
        alone = self.alone.sample(generator).unsqueeze(-2)
        return torch.cat((alone, self.together.sample(generator)), -2)
