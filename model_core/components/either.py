"""Outputs independent, or together: which of them has drawn a label is part of the distribution."""

from __future__ import annotations

from typing import NamedTuple, Self

from model_core.components.base import Components, Family
from model_core.components.blend import Blend
from model_core.components.real import MultivariateStudentT, SkewedT
from model_core.lazy import Tensor, torch


class _Either(NamedTuple):
    alone: Blend
    together: MultivariateStudentT
    log_choice: Tensor


class Either(_Either, Family):
    """`c_0 prod_o p_o(y_o) + sum_j c_j t_j(y)`, of Student-t.

    alone: each output's own average of k, with skews (B, M, d, k). together: J of all outputs, df
    (B, M, J, 1), loc (B, M, J, d), factor (B, M, J, d, d). log_choice: (B, M, 1 + J), whose
    exponentials sum to one. All that is per output is that of the marginals, each an average of
    k + J.
    """

    support = "real"

    def parameters(self) -> tuple[Tensor, ...]:
        """Those of outputs alone, then of outputs together, then the log choice."""
        return *self.alone.parameters(), *self.together.parameters(), self.log_choice

    def rebuilt(self, *parameters: Tensor) -> Self:
        """The same family with other tensors."""
        *alone, df, loc, factor, log_choice = parameters
        return type(self)(
            self.alone.rebuilt(*alone), self.together.rebuilt(df, loc, factor), log_choice
        )

    def shifted(self, by: Tensor) -> Self:
        """Both."""
        return self._replace(alone=self.alone.shifted(by), together=self.together.shifted(by))

    def named(self) -> dict[str, Tensor]:
        """Both families' by name; `weight` is within an output's average, `choice` beside it."""
        together = {f"joint_{name}": value for name, value in self.together.named().items()}
        return {**self.alone.named(), **together, "choice": self.log_choice.exp()}

    def marginals(self, weight: Tensor) -> tuple[Tensor, Components]:
        """The k + J of each component."""
        return self.each_output().marginals(weight)

    def each_output(self) -> Blend:
        """Each output alone."""
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

    def log_density(self, value: Tensor) -> Tensor:
        """Log density of each output alone."""
        return self.each_output().log_density(value)

    def joint_log_density(self, value: Tensor) -> Tensor:
        """Log density (B, M) of all outputs together."""
        independent = self.alone.joint_log_density(value).unsqueeze(-1)
        together = self.together.joint_log_density(value.unsqueeze(-2))
        return torch.logsumexp(self.log_choice + torch.cat((independent, together), -1), -1)

    def cdf(self, value: Tensor) -> Tensor:
        """Cumulative probability of each output alone."""
        return self.each_output().cdf(value)

    def mean(self) -> Tensor:
        """Average of the means."""
        return self.each_output().mean()

    def variance(self) -> Tensor:
        """Of each output; inf where one does not exist."""
        return self.each_output().variance()

    def covariance(self) -> Tensor:
        """Covariance within plus covariance between; inf where a variance does not exist."""
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

    def within(self, log_weight: Tensor) -> Tensor:
        """Average of the covariances."""
        weight = log_weight.exp()[..., None, None]
        return torch.where(weight > 0, weight * self.covariance(), 0.0).sum(1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """A draw of one of them."""
        choice = self.log_choice.exp().flatten(0, -2)
        chosen = torch.multinomial(choice, 1, generator=generator)
        drawn = torch.cat(
            (
                self.alone.sample(generator).unsqueeze(-2),
                self.together.sample(generator),
            ),
            -2,
        ).flatten(0, -3)
        picked = drawn.gather(1, chosen.unsqueeze(-1).expand(-1, -1, drawn.shape[-1]))
        return picked.reshape(self.log_choice.shape[:-1] + drawn.shape[-1:])
