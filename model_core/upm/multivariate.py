"""Several outputs with a full covariance. Murphy, *Conjugate Bayesian analysis* (2007), sec. 9.

`joint` has regimes of these, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from model_core.components import MultivariateStudentT
from model_core.lazy import Tensor, torch
from model_core.upm.base import (
    ClosedForm,
    Floats,
    Stats,
    Summed,
    log_gamma,
    of_arrays,
    spread_out,
)
from model_core.upm.conjugate import Gaussian


def student_t(df: Tensor, location: Tensor, psi: Tensor, spread: Tensor) -> MultivariateStudentT:
    """Student-t of all outputs with the scale matrix `psi spread`.

    df: (..., 1). location: (..., d). psi: (..., d, d). spread: (...). A row whose psi is not
    positive definite is nan, so that its step is refused and no other's.
    """
    factor, failed = torch.linalg.cholesky_ex(psi)
    scale = torch.where(failed > 0, torch.nan, spread).sqrt()
    return MultivariateStudentT(df, location, factor * scale[..., None, None])


def grown(psi: Tensor, error: Tensor, gain: Tensor, lacking: Tensor | None = None) -> Tensor:
    """`psi + gain e e' + lacking`, positive definite.

    psi: (..., d, d). error: (..., d). gain: (...), 0 leaves psi as it is. psi only grows, so it is
    never below the prior's. Rounding could still make it indefinite where observations are
    collinear and far larger than the scale; it is at most a few eps of the diagonal a step, and the
    diagonal is raised by more than that.
    """
    outputs = error.shape[-1]
    after = psi + gain[..., None, None] * (error.unsqueeze(-1) * error.unsqueeze(-2))
    if lacking is not None:
        after = after + lacking
    rounding = outputs * (outputs + 3) * torch.finfo(error.dtype).eps * (gain > 0)
    diagonal = rounding.unsqueeze(-1) * after.diagonal(dim1=-2, dim2=-1)
    return after + torch.diag_embed(diagonal)


class MultivariateStats(NamedTuple):
    """Normal-inverse-Wishart: mean (B, S, d), kappa and nu (B, S, 1), scale psi (B, S, d, d)."""

    mean: Tensor
    kappa: Tensor
    nu: Tensor
    psi: Tensor


@dataclass(frozen=True)
class Multivariate(Summed, ClosedForm):
    """Unknown mean and covariance of all outputs together; multivariate Student-t predictives.

    `kappa`, `alpha` and `beta` mean what they do for the `Gaussian`: before any observation each
    output alone is predicted as there, and with one output so it is ever after. Outputs are
    uncorrelated until the observations say otherwise.
    """

    y_dim: int = 2
    kappa: float = Gaussian.kappa
    alpha: float = Gaussian.alpha
    beta: float = Gaussian.beta
    exchangeable = True
    outliers = True
    kind = "multivariate"
    symmetric = ("psi",)

    def fresh(self, location: Floats, scale: Floats) -> tuple[Stats, Floats]:
        """Centred on the location; expected covariance diagonal, in units of the scale.

        `nu = 2 alpha + d - 1` leaves every output `2 alpha` degrees of freedom.
        """
        mean = location[:, None]
        ones = np.ones_like(mean[..., :1])
        psi = (2 * self.beta * scale[:, None] ** 2)[..., None] * np.eye(self.y_dim)
        nu = (2 * self.alpha + self.y_dim - 1) * ones
        return of_arrays(MultivariateStats, mean, self.kappa * ones, nu, psi), location[:, :0]

    def predictive(self, stats: MultivariateStats, phi: Tensor | None) -> MultivariateStudentT:
        """Student-t, `nu - d + 1` degrees of freedom, scale `psi (kappa + 1) / (kappa df)`."""
        mean, kappa, nu, psi = stats
        df = nu - (self.y_dim - 1)
        return student_t(df, mean, psi, ((kappa + 1) / (kappa * df)).squeeze(-1))

    def update(
        self, stats: MultivariateStats, phi: Tensor | None, y: Tensor, weight: Tensor
    ) -> MultivariateStats:
        """Conjugate update with a weighted observation (Murphy, sec. 9, for n = weight)."""
        mean, kappa, nu, psi = stats
        w = weight.unsqueeze(-1)
        error = y.unsqueeze(1) - mean
        gain = w / (kappa + w)
        psi = grown(psi, error, (kappa * gain).squeeze(-1))
        return MultivariateStats(mean + gain * error, kappa + w, nu + w, psi)

    def natural(self, stats: Stats, prior: Stats) -> Stats:
        """Kappa times the mean's distance from the prior's, and psi about the prior's mean."""
        error = stats.mean - prior.mean
        moved = stats.kappa * error
        return stats._replace(mean=moved, psi=stats.psi + _outer(error, moved))

    def from_natural(self, stats: Stats, prior: Stats) -> Stats:
        """Mean, and psi about it, symmetric to the bit."""
        error = stats.mean / stats.kappa
        half = 0.5 * (stats.psi - _outer(error, stats.mean))
        return stats._replace(mean=prior.mean + error, psi=half + np.swapaxes(half, -1, -2))

    def log_evidence(self, stats: Stats, context: Floats) -> float:
        """Of the normal-inverse-Wishart (Murphy, eq. 266)."""
        half = 0.5 * stats.nu.item()
        _, log_scale = np.linalg.slogdet(stats.psi[0, 0])
        # A factor of 2 for each degree of freedom is linear in the labels.
        gammas = log_gamma(half - 0.5 * np.arange(self.y_dim)).sum()
        log_precision = self.y_dim * math.log(stats.kappa.item())
        return float(gammas - half * log_scale - 0.5 * log_precision)

    def count(self, stats: Stats, prior: Stats) -> float:
        """By the degrees of freedom."""
        return float((stats.nu - prior.nu).item())

    def spread(self, stored: Stats, prior: Stats) -> Stats:
        """By the means' distances from the location, in units of each output's noise."""
        noise = np.diagonal(stored.psi, axis1=-2, axis2=-1) / (stored.nu - (self.y_dim - 1))
        distances = ((stored.mean - prior.mean) ** 2 / noise).mean(-1, keepdims=True)
        kappa = spread_out(self.kappa, distances)
        return prior._replace(kappa=np.minimum(prior.kappa, kappa))


def _outer(one: Floats, other: Floats) -> Floats:
    return one[..., :, None] * other[..., None, :]
