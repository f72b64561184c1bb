"""ALPaCA: Bayesian linear regression on learned features (Harrison et al. 2018; MOCA, sec. 4).

We keep `(K, P)`, the posterior mean and `Lambda^-1`, not the paper's `(Q, Lambda^-1)`: in float32
the natural parameters lose eight units of the mean over 20,000 steps, the gain form 6e-3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from model_core.components import Normal
from model_core.encoder import Encoder
from model_core.upm.base import UnderlyingModel
from model_core.upm.conjugate import OUTLIER_SPREAD


class AlpacaStats(NamedTuple):
    """mean: (B, S, n, y) posterior mean `K`; cov: (B, S, n, n) `Lambda^-1`, in noise variances."""

    mean: Tensor
    cov: Tensor


@dataclass(frozen=True, kw_only=True)
class Alpaca(UnderlyingModel):
    """Known noise, Gaussian predictives `N(K' phi, (1 + phi' P phi) sigma^2)` (paper, eq. 9).

    prior_mean: (n, y). prior_cov: (n, n). noise_variance: (y,). Inputs and labels are scaled by
    `(value - offset) / scale`; all answers are in the units of the labels.
    """

    encoder: Encoder
    prior_mean: Tensor
    prior_cov: Tensor
    noise_variance: Tensor
    x_offset: Tensor
    x_scale: Tensor
    y_offset: Tensor
    y_scale: Tensor
    hazard: float = 0.01
    outlier_rate: float = 0.0
    kind: str = "alpaca"
    symmetric: tuple[str, ...] = ("cov",)

    @property
    def x_dim(self) -> int:  # type: ignore[override]
        """Numbers in an input."""
        return len(self.x_offset)

    @property
    def y_dim(self) -> int:  # type: ignore[override]
        """Number of outputs."""
        return self.prior_mean.shape[1]

    def prior(self, location: Tensor, scale: Tensor) -> AlpacaStats:
        """The meta-learned prior, the same for every stream."""
        batch = location.shape[0]
        return AlpacaStats(
            self.prior_mean.expand(batch, 1, -1, -1), self.prior_cov.expand(batch, 1, -1, -1)
        )

    def encode(self, x: Tensor | None, context: Tensor) -> Tensor:
        """Features (B, n) of scaled inputs."""
        return self.encoder((self.required(x) - self.x_offset) / self.x_scale)

    def predictive(self, stats: AlpacaStats, phi: Tensor | None) -> Normal:
        """Predictive of each hypothesis, in the units of the labels."""
        features = self.required(phi)
        mean = torch.einsum("bsny,bn->bsy", stats.mean, features)
        spread = 1 + torch.einsum("bn,bsnm,bm->bs", features, stats.cov, features)
        scale = (spread.unsqueeze(-1) * self.noise_variance).sqrt()
        return Normal(mean * self.y_scale + self.y_offset, scale * self.y_scale)

    def outlier(self, prior: AlpacaStats, phi: Tensor | None) -> Normal:
        """The prior predictive with ten times its variance."""
        wide = self.predictive(prior, phi)
        return wide._replace(scale=wide.scale * OUTLIER_SPREAD**0.5)

    def update(
        self, stats: AlpacaStats, phi: Tensor | None, y: Tensor, weight: Tensor
    ) -> AlpacaStats:
        """Rank-1 update in gain form; noise variance `sigma^2 / weight`, so 0 changes nothing."""
        features = self.required(phi)
        label = ((y - self.y_offset) / self.y_scale).unsqueeze(1)
        v = torch.einsum("bsnm,bm->bsn", stats.cov, features)
        shrink = (weight / (1 + weight * (v @ features.unsqueeze(-1)).squeeze(-1)))[..., None, None]
        error = label - torch.einsum("bsny,bn->bsy", stats.mean, features)
        return AlpacaStats(
            stats.mean + shrink * v.unsqueeze(-1) * error.unsqueeze(-2),
            stats.cov - shrink * (v.unsqueeze(-1) * v.unsqueeze(-2)),
        )
