"""ALPaCA with a mixture prior: each regime is of one of M typical regimes, which a fleet taught.

A regime draws its type `m` with probability `pi_m`, then its weights and noise from the prior of
that type (`N(K_m, sigma^2 P_m)` on features that all types share). Given the labels of the regime
the posterior is a mixture of M of ALPaCA's (see `regression`), each updated alone, with weights

    p(y) = sum_m pi_m prod_o p_m(y_o),    pi_m' = w pi_m p_m(y) / p(y) + (1 - w) pi_m,

for an inlier responsibility `w` of the label. With M = 1 it is ALPaCA.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from model_core.components import Choice, Normal, StudentT
from model_core.upm import lattice
from model_core.upm.alpaca import Alpaca, AlpacaStats, NoisePrior
from model_core.upm.base import OUTLIER_SPREAD, Starts, Stats, tree_map
from model_core.upm.learned import Learned
from model_core.upm.regression import NoisyStats, absorb, noise_before

TOGETHER = 1 << 20  # residuals of the types whose lattices run at once: larger arrays are slower


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
    kind: str = "alpaca-mixture"
    symmetric: tuple[str, ...] = ("cov",)

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
        phi = self.required(phi)
        location = torch.einsum("bsmny,bn->bsmy", stats.mean, phi)
        projected = torch.einsum("bsmij,bj->bsmi", stats.cov, phi)
        spread = 1 + torch.einsum("bsmi,bi->bsm", projected, phi)
        return Choice(self._of_types(location, spread, stats), stats.log_weight)

    def outlier(self, prior: Stats, phi: Tensor | None) -> Choice:
        """The prior predictive with ten times its squared scales."""
        wide = self.predictive(prior, phi)
        widened = wide.parts._replace(scale=wide.parts.scale * OUTLIER_SPREAD**0.5)
        return wide._replace(parts=widened)

    def update(self, stats: Stats, phi: Tensor | None, y: Tensor, weight: Tensor) -> Stats:
        """Absorb one row in every regression, and weigh them by how well they forecast it."""
        types = stats.log_weight.shape[1:]
        folded = tree_map(lambda t: t.flatten(1, 2), stats)
        rows = self.required(phi)[:, None, None]
        share = weight.unsqueeze(-1).expand(-1, *types)
        label = (y - self.y_offset) / self.y_scale
        read = absorb(
            folded.mean, folded.cov, rows, label.unsqueeze(1), share.flatten(1).unsqueeze(-1)
        )
        location, spread, error, mean, cov = (
            value.reshape(len(y), *types, *value.shape[2:]) for value in read
        )
        predictives = self._of_types(location.squeeze(-2), spread.squeeze(-1), stats)
        density = predictives.joint_log_density(y[:, None, None])
        log_posterior = torch.log_softmax(stats.log_weight + density, -1)
        log_weight = torch.logaddexp(
            torch.log(share) + log_posterior, torch.log1p(-share) + stats.log_weight
        )
        new = stats._replace(log_weight=log_weight, mean=mean, cov=cov)
        if self.noise_prior is None:
            return new
        return new._replace(
            alpha=stats.alpha + 0.5 * share.unsqueeze(-1),
            beta=stats.beta + 0.5 * error.squeeze(-2).square(),
        )

    def every_start(
        self, prior: Stats, phi: Tensor | None, y: Tensor, weight: Tensor, longest: int | None
    ) -> Starts:
        """By the lattice of every type: `O(M T^2 n)`."""
        together = max(1, TOGETHER // (y.numel() * y.shape[1]))
        parts = []
        for m in range(0, self.parts, together):
            some = tree_map(lambda t, m=m: t[:, :, m : m + together], prior)
            variances = self.noise_variance
            noise = None if variances is None else variances[m : m + together]
            parts.append(self._densities(some, noise, phi, y, weight, longest))
        density = torch.cat(parts, 1)
        # Beside the best type, so that sums of many stay exact.
        lead = density - density.detach().amax(1, keepdim=True)
        evidence = (weight[:, None, None] * lead).triu()
        weights = prior.log_weight.mT.unsqueeze(-1) + evidence.cumsum(-1) - evidence
        return Starts(torch.logsumexp(torch.log_softmax(weights, 1) + density, 1))

    def _densities(
        self,
        prior: Stats,
        noise: Tensor | None,
        phi: Tensor | None,
        y: Tensor,
        weight: Tensor,
        longest: int | None,
    ) -> Tensor:
        """Log densities (B, M, T, T) by [s, t] of the types of a prior; noise: known variances."""
        size = prior.log_weight.shape[-1]

        def repeated(value: Tensor) -> Tensor:
            """(B M, ...)."""
            return value.repeat_interleave(size, 0)

        first = tree_map(lambda t: t.flatten(0, 2), prior)
        label = repeated((y - self.y_offset) / self.y_scale)
        absorbed = repeated(weight)
        features = repeated(self.required(phi))
        predicted = lattice.predict(first.mean, first.cov, features, label, absorbed, longest)
        location = label.unsqueeze(1) - predicted.residual
        alpha = None
        if noise is not None:
            variance = noise.repeat(len(y), 1)[:, None, None]
        else:
            share = absorbed.unsqueeze(1).expand_as(predicted.spread).triu().unsqueeze(-1)
            squares = share * predicted.residual.square() / predicted.spread.unsqueeze(-1)
            alone = NoisyStats(*(part.unsqueeze(1) for part in first[1:]))
            stats = noise_before(alone, share, squares)
            variance = stats.beta / stats.alpha
            alpha = stats.alpha
        predictives = self._components(location, predicted.spread, variance, alpha)
        density = predictives.joint_log_density(repeated(y).unsqueeze(1))
        return density.reshape(len(y), size, *density.shape[1:])

    def draw(self, stats: Stats, phi: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """One function of each hypothesis: of a type drawn first (see `Regression.draw`)."""
        chances = zip(stats.log_weight.exp(), generators, strict=True)
        chosen = torch.stack(
            [torch.multinomial(p, 1, generator=generator) for p, generator in chances]
        )
        functions = []
        for m in range(self.parts):
            mean, cov, *noise = (part[:, :, m] for part in stats[1:])
            one = NoisyStats(mean, cov, *noise) if noise else AlpacaStats(mean, cov)
            functions.append(self.alone(m).draw(one, phi, generators))
        drawn = torch.stack(functions, 2)
        at = chosen[..., None, None].expand(-1, -1, -1, *drawn.shape[3:])
        return drawn.gather(2, at).squeeze(2)

    def _of_types(self, location: Tensor, spread: Tensor, stats: Stats) -> Normal | StudentT:
        """Predictives of the types; location: (B, S, M, y), spread: (B, S, M)."""
        if self.noise_variance is not None:
            return self._components(location, spread, self.noise_variance, None)
        return self._components(location, spread, stats.beta / stats.alpha, stats.alpha)

    def _components(
        self, location: Tensor, spread: Tensor, variance: Tensor, alpha: Tensor | None
    ) -> Normal | StudentT:
        """In the units of the labels; variance: (..., y) of the noise, alpha: where unknown."""
        scale = (spread.unsqueeze(-1) * variance).sqrt() * self.y_scale
        location = location * self.y_scale + self.y_offset
        if alpha is None:
            return Normal(location, scale)
        return StudentT((2 * alpha).expand_as(location), location, scale)
