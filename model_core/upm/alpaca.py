"""ALPaCA: Bayesian linear regression on learned features (Harrison et al. 2018; MOCA, sec. 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from model_core.lazy import Tensor, torch
from model_core.transfer import on_host
from model_core.upm.base import Densities, Stats
from model_core.upm.learned import Learned
from model_core.upm.regression import NoisyStats, Regression


class AlpacaStats(NamedTuple):
    """mean: (B, S, n, y) posterior mean `K`; cov: (B, S, n, n) `Lambda^-1`, in noise variances."""

    mean: Tensor
    cov: Tensor


class NoisePrior(NamedTuple):
    """Inverse gamma over each output's noise variance, (y,); alpha > 1, so that a mean exists."""

    alpha: Tensor
    beta: Tensor


@dataclass(frozen=True, kw_only=True)
class Alpaca(Learned, Regression):
    """Gaussian predictives `N(K' phi, (1 + phi' P phi) sigma^2)` (paper, eq. 17), or Student-t.

    prior_mean: (n, y). prior_cov: (n, n). The noise has the known variances `noise_variance` (y,),
    or, beyond the paper, a `noise_prior`. All answers are in the units of the labels.

    partial: whether some outputs of a label may be missing, as in the training of a fleet. `P` then
    differs by output, which only `every_start` knows of.
    """

    prior_mean: Tensor
    prior_cov: Tensor
    noise_variance: Tensor | None = None
    noise_prior: NoisePrior | None = None
    partial: bool = False
    kind = "alpaca"
    recalls = True

    def __post_init__(self) -> None:
        if (self.noise_variance is None) == (self.noise_prior is None):
            raise ValueError("expected one of noise_variance and noise_prior")

    def prior(self, location: Tensor, scale: Tensor) -> AlpacaStats | NoisyStats:
        """The meta-learned prior, the same for every stream."""
        batch = location.shape[0]
        mean = self.prior_mean.expand(batch, 1, -1, -1)
        cov = self.prior_cov.expand(batch, 1, -1, -1)
        if self.noise_prior is None:
            return AlpacaStats(mean, cov)
        alpha, beta = (number.expand(batch, 1, -1) for number in self.noise_prior)
        return NoisyStats(mean, cov, alpha, beta)

    def every_start(
        self, prior: Stats, phi: Tensor | None, y: Tensor, weight: Tensor, longest: int | None
    ) -> Densities:
        """By lattice steps of both ends of a window: `O(T^2 n)`, times outputs where one lacks."""
        from model_core.upm import lattice  # torch: a second or more

        label = (y - self.y_offset) / self.y_scale
        present = ~torch.isnan(label)
        label = torch.where(present, label, 0.0)
        weight = weight.unsqueeze(-1)
        mean = prior.mean.squeeze(1)
        cov = prior.cov.squeeze(1)
        phi = self.required(phi)
        # On a device not even a look at whether one lacks is worth the wait.
        if self.partial and not (on_host(present) and bool(present.all())):
            weight = weight * present
            alone = [
                lattice.predict(
                    mean[..., o : o + 1],
                    cov,
                    phi,
                    label[..., o : o + 1],
                    weight[..., o],
                    longest,
                )
                for o in range(self.y_dim)
            ]
            residual = torch.cat([one.residual for one in alone], -1)
            spread = torch.stack([one.spread for one in alone], -1)
        else:
            residual, spread = lattice.predict(mean, cov, phi, label, weight.squeeze(-1), longest)
            spread = spread.unsqueeze(-1)
        stats = prior
        if self.noise_prior is not None:
            past = spread.new_ones(y.shape[1], y.shape[1]).triu().unsqueeze(-1)
            absorbed = weight.unsqueeze(1) * past
            squares = absorbed * residual.square() / spread
            # What the rows before it said, not it itself.
            count = absorbed.cumsum(-2) - absorbed
            total = squares.cumsum(-2) - squares
            stats = prior._replace(
                alpha=prior.alpha.unsqueeze(-2) + 0.5 * count,
                beta=prior.beta.unsqueeze(-2) + 0.5 * total,
            )
        location = label.unsqueeze(1) - residual
        predictive = self._components(location, spread, stats)
        density = predictive.log_density(torch.where(present, y, 0.0).unsqueeze(1))
        return Densities(density.masked_fill(~present.unsqueeze(1), 0.0).sum(-1))
