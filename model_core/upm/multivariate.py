"""Several outputs with a full covariance. Murphy, *Conjugate Bayesian analysis* (2007), sec. 9."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from model_core.components import MultivariateStudentT
from model_core.hazard import BY_STREAM
from model_core.lazy import Tensor
from model_core.upm import wishart
from model_core.upm.base import OUTLIER_SPREAD, ClosedForm, Floats, Stats, of_arrays
from model_core.upm.conjugate import Gaussian

_VECTORS = wishart.Vectors()


class MultivariateStats(NamedTuple):
    """Normal-inverse-Wishart: mean (B, S, d), kappa and nu (B, S, 1), scale psi (B, S, d, d)."""

    mean: Tensor
    kappa: Tensor
    nu: Tensor
    psi: Tensor


@dataclass(frozen=True)
class Multivariate(ClosedForm):
    """Unknown mean and covariance of all outputs together; multivariate Student-t predictives.

    `kappa`, `alpha` and `beta` mean what they do for the `Gaussian`: before any observation each
    output alone is predicted as there, and with one output so it is ever after. Outputs are
    uncorrelated until the observations say otherwise.
    """

    y_dim: int = 2
    kappa: float = Gaussian.kappa
    alpha: float = Gaussian.alpha
    beta: float = Gaussian.beta
    hazard: float | tuple[float, ...] = BY_STREAM
    outlier_rate: float = 0.01
    exchangeable = True
    kind: str = "multivariate"
    needs_scale: bool = True
    symmetric: tuple[str, ...] = ("psi",)
    recalls: bool = True

    def fresh(self, location: Floats, scale: Floats) -> Stats:
        """Centred on the location; expected covariance diagonal, in units of the scale.

        `nu = 2 alpha + d - 1` leaves every output `2 alpha` degrees of freedom.
        """
        mean = location[:, None]
        ones = np.ones_like(mean[..., :1])
        psi = (2 * self.beta * scale[:, None] ** 2)[..., None] * np.eye(self.y_dim)
        return of_arrays(
            MultivariateStats,
            mean,
            self.kappa * ones,
            (2 * self.alpha + self.y_dim - 1) * ones,
            psi,
        )

    def predictive(self, stats: MultivariateStats, phi: Tensor | None) -> MultivariateStudentT:
        """Student-t, `nu - d + 1` degrees of freedom, scale `psi (kappa + 1) / (kappa df)`."""
        mean, kappa, nu, psi = stats
        df = nu - (self.y_dim - 1)
        return wishart.student_t(df, mean, psi, ((kappa + 1) / (kappa * df)).squeeze(-1))

    def outlier(self, prior: MultivariateStats, phi: Tensor | None) -> MultivariateStudentT:
        """The prior predictive with ten times its scale matrix."""
        wide = self.predictive(prior, phi)
        return wide._replace(factor=wide.factor * OUTLIER_SPREAD**0.5)

    def update(
        self, stats: MultivariateStats, phi: Tensor | None, y: Tensor, weight: Tensor
    ) -> MultivariateStats:
        """Conjugate update with a weighted observation (Murphy, sec. 9, for n = weight)."""
        mean, kappa, nu, psi = stats
        w = weight.unsqueeze(-1)
        error = y.unsqueeze(1) - mean
        gain = w / (kappa + w)
        psi = wishart.grown(psi, error, (kappa * gain).squeeze(-1))
        return MultivariateStats(mean + gain * error, kappa + w, nu + w, psi)

    def tempered(self, stats: Stats, prior: Stats, most: float) -> Stats:
        """As of a regression on one feature, which is 1."""
        return _of_posterior(_VECTORS.tempered(_posterior(stats), _posterior(prior), most))

    def pooled(
        self, one: Stats, other: Stats, prior: Stats, context: Floats
    ) -> tuple[float, Stats]:
        """As of a regression on one feature, which is 1."""
        factor, both = _VECTORS.pooled(
            _posterior(one), _posterior(other), _posterior(prior), context
        )
        return factor, _of_posterior(both)

    def spread(self, stored: Stats, prior: Stats) -> Stats:
        """By the means' distances from the location, in units of each output's noise."""
        noise = np.diagonal(stored.psi, axis1=-2, axis2=-1) / (stored.nu - (self.y_dim - 1))
        distances = ((stored.mean - prior.mean) ** 2 / noise).mean(-1, keepdims=True)
        kappa = (1 + distances.shape[1]) / (1 / self.kappa + distances.sum(1, keepdims=True))
        return prior._replace(kappa=np.minimum(prior.kappa, kappa))


def _posterior(stats: Stats) -> wishart.Posterior:
    mean, kappa, nu, psi = stats
    return wishart.Posterior(mean[..., None, :], kappa[..., None], psi, nu)


def _of_posterior(posterior: wishart.Posterior) -> MultivariateStats:
    matrix, inverse, psi, nu = posterior
    stats: MultivariateStats = of_arrays(
        MultivariateStats, matrix[..., 0, :], inverse[..., 0], nu, psi
    )
    return stats
