"""ALPaCA: Bayesian linear regression on learned features (Harrison et al. 2018; MOCA, sec. 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from model_core.upm import lattice
from model_core.upm.base import Starts, Stats
from model_core.upm.learned import Learned
from model_core.upm.regression import NoisyStats, Regression, noise_before


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
    """

    prior_mean: Tensor
    prior_cov: Tensor
    noise_variance: Tensor | None = None
    noise_prior: NoisePrior | None = None
    kind: str = "alpaca"

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
        alpha, beta = (each.expand(batch, 1, -1) for each in self.noise_prior)
        return NoisyStats(mean, cov, alpha, beta)

    def every_start(
        self, prior: Stats, phi: Tensor | None, y: Tensor, weight: Tensor, longest: int | None
    ) -> Starts:
        """By lattice steps of both ends of a window: `O(T^2 n)`."""
        label = (y - self.y_offset) / self.y_scale
        mean, cov = prior.mean.squeeze(1), prior.cov.squeeze(1)
        found = lattice.predict(mean, cov, self.required(phi), label, weight, longest)
        stats = prior
        if self.noise_prior is not None:
            absorbed = weight.unsqueeze(1).expand_as(found.spread).triu()
            squares = absorbed.unsqueeze(-1) * found.residual.square()
            stats = noise_before(prior, absorbed, squares / found.spread.unsqueeze(-1))
        each = self._components(label.unsqueeze(1) - found.residual, found.spread, stats)
        return Starts(each.joint_log_density(y.unsqueeze(1)))
