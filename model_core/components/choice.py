"""One of several distributions draws all outputs of a label: their average, with joint weights."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from model_core.components.base import Components, Family
from model_core.components.blend import Blend
from model_core.lazy import Tensor, torch


class _Choice(NamedTuple):
    parts: Any  # of a family of independent outputs, with one more axis before the outputs
    log_choice: Tensor


class Choice(_Choice, Family):
    """`sum_k c_k prod_o p_ko(y_o)`.

    parts: parameters (B, M, k, d). log_choice: (B, M, k), whose exponentials sum to one over k. A
    `Blend` has weights for each output; here the outputs of a label are of the same k. All that is
    per output is that of the marginals.
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
        """Those of the family, then the log choice."""
        return *self.parts.parameters(), self.log_choice

    def rebuilt(self, *parameters: Tensor) -> Self:
        """The same family with other tensors."""
        return type(self)(self.parts.rebuilt(*parameters[:-1]), parameters[-1])

    def shifted(self, by: Tensor) -> Self:
        """All of the family."""
        return self._replace(parts=self.parts.shifted(by))

    def named(self) -> dict[str, Tensor]:
        """Those of the family, and the probability `choice` of each k."""
        return {**self.parts.named(), "choice": self.log_choice.exp()}

    def marginals(self, weight: Tensor) -> tuple[Tensor, Components]:
        """The k of each component."""
        return self.each_output().marginals(weight)

    def each_output(self) -> Blend:
        """Each output alone."""
        own = self.parts.rebuilt(*(p.mT for p in self.parts.parameters()))
        outputs = self.parts.mean().shape[-1]
        return Blend(own, self.log_choice.unsqueeze(-2).expand(-1, -1, outputs, -1))

    def log_density(self, value: Tensor) -> Tensor:
        """Log density of each output alone."""
        return self.each_output().log_density(value)

    def joint_log_density(self, value: Tensor) -> Tensor:
        """Log density (B, M) of all outputs together."""
        return torch.logsumexp(self.log_choice + self.log_densities(value), -1)

    def log_densities(self, value: Tensor) -> Tensor:
        """Log density (B, M, k) of all outputs together under each k."""
        densities: Tensor = self.parts.joint_log_density(value.unsqueeze(-2))
        return densities

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
        choice = self.log_choice.exp().unsqueeze(-1)
        centred = self.parts.mean() - self.mean().unsqueeze(-2)
        between = torch.einsum("bmki,bmkj->bmij", choice * centred, centred)
        # What has no weight may have no variance; it must not make a nan.
        within = torch.where(choice > 0, choice * self.parts.variance(), 0.0).sum(-2)
        return between + torch.diag_embed(within)

    def within(self, log_weight: Tensor) -> Tensor:
        """Average of the covariances."""
        weight = log_weight.exp()[..., None, None]
        return torch.where(weight > 0, weight * self.covariance(), 0.0).sum(1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """A draw of one of the k."""
        choice = self.log_choice.exp().flatten(0, -2)
        chosen = torch.multinomial(choice, 1, generator=generator)
        drawn = self.parts.sample(generator).flatten(0, -3)
        picked = drawn.gather(1, chosen.unsqueeze(-1).expand(-1, -1, drawn.shape[-1]))
        one: Tensor = picked.reshape(self.log_choice.shape[:-1] + drawn.shape[-1:])
        return one
