"""The predictive mixture over run lengths, which answers are read off, in the labels' units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log
from typing import NamedTuple

from model_core import quantiles
from model_core.components import Components, average
from model_core.lazy import Tensor, torch
from model_core.transfer import on_host

LARGE = 4096  # outputs of all components of a row, from which on it is worth to leave some out
NEGLIGIBLE = 1e-16  # weight of a component, as a share of the lesser tail that is asked for


class Mixture(NamedTuple):
    """`sum_m w_m p_m(y)` for B streams: log_weight (B, M), rows sum to one."""

    log_weight: Tensor
    components: Components

    @property
    def outputs(self) -> int:
        """Numbers in a label."""
        return 1 if self.components.support == "class" else self.components.mean().shape[-1]

    def tensors(self) -> list[Tensor]:
        """Weights and parameters (B, ...)."""
        return [self.log_weight, *self.components.parameters()]

    def rows(self, chosen: slice | Tensor) -> Mixture:
        """Some of the streams."""
        weight, *parameters = (tensor[chosen] for tensor in self.tensors())
        return Mixture(weight, self.components.rebuilt(*parameters))

    def log_prob(self, y: Tensor) -> Tensor:
        """Log density (B,) of labels (B, d), over all outputs jointly."""
        densities = self.components.joint_log_density(y.unsqueeze(1))
        return torch.logsumexp(self.log_weight + densities, -1)

    def mean(self) -> Tensor:
        """Mean (B, d); of classes their probabilities (B, J)."""
        return average(self.log_weight, self.components.mean())

    def covariance(self) -> Tensor:
        """Covariance (B, d, d); inf where a variance does not exist."""
        means = self.components.mean()
        centred = means - average(self.log_weight, means).unsqueeze(1)
        weight = self.log_weight.exp().unsqueeze(-1)
        between = torch.einsum("bmi,bmj->bij", weight * centred, centred)
        return between + self.components.within(self.log_weight)

    def cdf(self, value: Tensor) -> Tensor:
        """Marginal cumulative probabilities (B, d) at values (B, d)."""
        if on_host(value) and self._large:
            rows = zip(self._heavy(NEGLIGIBLE), value.unsqueeze(1), strict=True)
            return torch.cat([row._cdf(at) for row, at in rows])
        return self._cdf(value)

    def _cdf(self, value: Tensor) -> Tensor:
        return average(self.log_weight, self.components.cdf(value.unsqueeze(1)))

    def quantile(self, levels: Tensor, tolerance: float = quantiles.TOLERANCE) -> Tensor:
        """Marginal quantiles (B, Q, d) at levels (Q,) strictly between 0 and 1; none of classes.

        `tolerance` is the size of the last Newton step of a continuous one, in scales of the
        narrowest component; the error is about its square. On a device steps are of a fixed number,
        and nan stands where they do not suffice.
        """
        if self.components.support == "class":
            raise ValueError("classes have no order, hence no quantiles")
        if on_host(levels) and self._large:
            least = NEGLIGIBLE * float(torch.minimum(levels, 1 - levels).min())
            return torch.cat([row._quantile(levels, tolerance) for row in self._heavy(least)])
        return self._quantile(levels, tolerance)

    def _quantile(self, levels: Tensor, tolerance: float) -> Tensor:
        weight, alone = self.components.marginals(self.log_weight.exp())
        if alone.support in ("real", "positive"):
            return quantiles.continuous(weight, alone, levels, tolerance)
        return quantiles.count(weight, alone, levels)

    @property
    def _large(self) -> bool:
        return self.components.mean()[0].numel() > LARGE

    def _heavy(self, least: float) -> Iterator[Mixture]:
        """Each row alone, without the components of less weight than `least`.

        Most hypotheses of many have next to no weight, and each costs as much as any other.
        """
        for row, log_weight in enumerate(self.log_weight):
            at = (log_weight.exp() > least).nonzero().squeeze(-1)
            kept = (parameter[row : row + 1, at] for parameter in self.components.parameters())
            yield Mixture(log_weight[at].unsqueeze(0), self.components.rebuilt(*kept))

    def shifted(self, by: Sequence[float]) -> Mixture:
        """Predictive of labels that are larger by a number each output; none: as it is.

        Of families with a location.
        """
        if not any(by):
            return self
        return Mixture(self.log_weight, self.components.shifted(self.log_weight.new_tensor(by)))

    def picked(self, draws: int, generator: torch.Generator | None = None) -> Components:
        """Components (B, draws) that are drawn by their weights."""
        chosen = torch.multinomial(self.log_weight.exp(), draws, True, generator=generator)
        rows = torch.arange(len(chosen), device=chosen.device).unsqueeze(-1)
        return self.components.rebuilt(
            *(each[rows, chosen] for each in self.components.parameters())
        )

    def sample(self, draws: int, generator: torch.Generator | None = None) -> Tensor:
        """Draws (B, draws, d)."""
        return self.picked(draws, generator).sample(generator)


def alike(picked: Sequence[Components]) -> Mixture:
    """Mixture (1, M) of all components (B, ...) of several, each of the same weight."""
    parameters = [
        torch.cat([own.flatten(0, 1) for own in parts]).unsqueeze(0)
        for parts in zip(*(components.parameters() for components in picked), strict=True)
    ]
    count = parameters[0].shape[1]
    weight = parameters[0].new_full((1, count), -log(count))
    return Mixture(weight, picked[0].rebuilt(*parameters))
