"""ALPaCA with a mixture prior: each regime is of one of M typical regimes, which a fleet taught.

A regime draws its type with the prior probability of that, then its weights and noise from the
prior of that type, on features that all types share: docs/mathematics.md, "A mixture prior". The
posterior is a mixture of M of ALPaCA's, each updated alone, as a hypothesis is. With M = 1 it is
ALPaCA.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from model_core.components import Choice
from model_core.upm.alpaca import Alpaca, AlpacaStats, NoisePrior
from model_core.upm.base import Densities, Stats, mixed
from model_core.upm.learned import Learned
from model_core.upm.regression import NoisyStats


class MixtureStats(NamedTuple):
    """M regressions in each hypothesis.

    log_weight: (B, S, M) log probabilities of the types. mean: (B, S, M, n, y). cov:
    (B, S, M, n, n), in noise variances.
    """

    log_weight: Tensor
    mean: Tensor
    cov: Tensor


class NoisyMixtureStats(NamedTuple):
    """The same with noise of unknown variance; alpha, beta: (B, S, M, y) of the inverse gamma."""

    log_weight: Tensor
    mean: Tensor
    cov: Tensor
    alpha: Tensor
    beta: Tensor


@dataclass(frozen=True, kw_only=True)
class AlpacaMixture(Learned):
    """A mixture of M of ALPaCA's predictives.

    log_weight: (M,), whose exponentials sum to one. prior_mean: (M, n, y). prior_cov: (M, n, n).
    The noise has the known variances `noise_variance` (M, y), or a `noise_prior` of (M, y). names:
    of the typical regimes.
    """

    log_weight: Tensor
    prior_mean: Tensor
    prior_cov: Tensor
    noise_variance: Tensor | None = None
    noise_prior: NoisePrior | None = None
    names: tuple[str, ...] = ()
    kind = "alpaca-mixture"
    outliers = True
    symmetric = ("cov",)

    def __post_init__(self) -> None:
        if (self.noise_variance is None) == (self.noise_prior is None):
            raise ValueError("expected one of noise_variance and noise_prior")
        if len(self.names) not in (0, len(self.log_weight)):
            raise ValueError(f"expected {len(self.log_weight)} names, got {len(self.names)}")

    @property
    def parts(self) -> int:  # type: ignore[override]
        """Number of types."""
        return len(self.log_weight)

    @property
    def typical(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the typical regimes, numbers from 1 unless they have others."""
        return self.names or tuple(str(m + 1) for m in range(self.parts))

    def types(self, stats: Stats) -> Tensor:
        """Log probabilities (B, S, M) of the typical regimes."""
        log_weight: Tensor = stats.log_weight
        return log_weight

    def alone(self, m: int) -> Alpaca:
        """The regression of one type."""
        noise = self.noise_prior
        return Alpaca(
            encoder=self.encoder,
            prior_mean=self.prior_mean[m],
            prior_cov=self.prior_cov[m],
            noise_variance=None if self.noise_variance is None else self.noise_variance[m],
            noise_prior=None if noise is None else NoisePrior(noise.alpha[m], noise.beta[m]),
            x_offset=self.x_offset,
            x_scale=self.x_scale,
            y_offset=self.y_offset,
            y_scale=self.y_scale,
            lags=self.lags,
        )

    def prior(self, location: Tensor, scale: Tensor) -> MixtureStats | NoisyMixtureStats:
        """The meta-learned prior, the same for every stream."""

        def shared(parameter: Tensor) -> Tensor:
            return parameter.expand(len(location), 1, *parameter.shape)

        log_weight = shared(self.log_weight)
        mean = shared(self.prior_mean)
        cov = shared(self.prior_cov)
        if self.noise_prior is None:
            return MixtureStats(log_weight, mean, cov)
        alpha = shared(self.noise_prior.alpha)
        return NoisyMixtureStats(log_weight, mean, cov, alpha, shared(self.noise_prior.beta))

    def predictive(self, stats: Stats, phi: Tensor | None) -> Choice:
        """Mixture of Gaussians (paper, app. A), or of Student-t."""
        each = [alone.predictive(own, phi) for alone, own in self._types(stats)]
        stacked = (
            torch.stack(parts, 2) for parts in zip(*(p.parameters() for p in each), strict=True)
        )
        return Choice(each[0].rebuilt(*stacked), stats.log_weight)

    def update(self, stats: Stats, phi: Tensor | None, y: Tensor, weight: Tensor) -> Stats:
        """Absorb one row in every regression, and weigh them by how well they forecast it."""
        learned = [alone.learned(own, phi, y, weight) for alone, own in self._types(stats)]
        densities, after = zip(*learned, strict=True)
        density = torch.stack(densities, -1)
        log_posterior = torch.log_softmax(stats.log_weight + density, -1)
        log_weight = mixed(weight.unsqueeze(-1), log_posterior, stats.log_weight)
        stacked = (torch.stack(parts, 2) for parts in zip(*after, strict=True))
        return type(stats)(log_weight, *stacked)

    def every_start(
        self, prior: Stats, phi: Tensor | None, y: Tensor, weight: Tensor, longest: int | None
    ) -> Densities:
        """By the lattice of every type: `O(M T^2 n)`."""
        each = [
            alone.every_start(own, phi, y, weight, longest).label
            for alone, own in self._types(prior)
        ]
        density = torch.stack(each, 1)
        # Beside the best type, so that sums of many stay exact.
        lead = density - density.detach().amax(1, keepdim=True)
        evidence = (weight[:, None, None] * lead).triu()
        weights = prior.log_weight.mT.unsqueeze(-1) + evidence.cumsum(-1) - evidence
        return Densities(torch.logsumexp(torch.log_softmax(weights, 1) + density, 1))

    def draw(self, stats: Stats, phi: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """One function of each hypothesis: of a type drawn first (see `Regression.draw`)."""
        chances = zip(stats.log_weight.exp(), generators, strict=True)
        chosen = torch.stack(
            [torch.multinomial(p, 1, generator=generator) for p, generator in chances]
        )
        functions = [alone.draw(own, phi, generators) for alone, own in self._types(stats)]
        drawn = torch.stack(functions, 2)
        at = chosen[..., None, None].expand(-1, -1, -1, *drawn.shape[3:])
        return drawn.gather(2, at).squeeze(2)

    def _types(self, stats: Stats) -> list[tuple[Alpaca, AlpacaStats | NoisyStats]]:
        """The regression of each type, with its statistics."""
        kind = AlpacaStats if self.noise_prior is None else NoisyStats
        return [
            (self.alone(m), kind(*(part[:, :, m] for part in stats[1:]))) for m in range(self.parts)
        ]
