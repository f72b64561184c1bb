"""ALPaCA: Bayesian linear regression on learned features (Harrison et al. 2018; MOCA, sec. 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from model_core.encoder import Encoder
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
class Alpaca(Regression):
    """Gaussian predictives `N(K' phi, (1 + phi' P phi) sigma^2)` (paper, eq. 17), or Student-t.

    prior_mean: (n, y). prior_cov: (n, n). The noise has the known variances `noise_variance` (y,),
    or, beyond the paper, a `noise_prior`. Inputs and labels are scaled by
    `(value - offset) / scale`; all answers are in the units of the labels.
    """

    encoder: Encoder
    prior_mean: Tensor
    prior_cov: Tensor
    noise_variance: Tensor | None = None
    noise_prior: NoisePrior | None = None
    x_offset: Tensor
    x_scale: Tensor
    y_offset: Tensor
    y_scale: Tensor
    hazard: float = 0.01
    outlier_rate: float = 0.0
    kind: str = "alpaca"

    def __post_init__(self) -> None:
        if (self.noise_variance is None) == (self.noise_prior is None):
            raise ValueError("expected one of noise_variance and noise_prior")

    @property
    def x_dim(self) -> int:  # type: ignore[override]
        """Numbers in an input."""
        return len(self.x_offset)

    @property
    def y_dim(self) -> int:  # type: ignore[override]
        """Number of outputs."""
        return self.prior_mean.shape[1]

    def prior(self, location: Tensor, scale: Tensor) -> AlpacaStats | NoisyStats:
        """The meta-learned prior, the same for every stream."""
        batch = location.shape[0]
        mean = self.prior_mean.expand(batch, 1, -1, -1)
        cov = self.prior_cov.expand(batch, 1, -1, -1)
        if self.noise_prior is None:
            return AlpacaStats(mean, cov)
        alpha, beta = (each.expand(batch, 1, -1) for each in self.noise_prior)
        return NoisyStats(mean, cov, alpha, beta)

    def encode(self, x: Tensor | None, context: Tensor) -> Tensor:
        """Features (B, n) of scaled inputs."""
        return self.encoder((self.required(x) - self.x_offset) / self.x_scale)
