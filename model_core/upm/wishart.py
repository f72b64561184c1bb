"""An unknown covariance of all outputs, inverse Wishart: what `multivariate` and `joint` share."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from model_core.components import MultivariateStudentT
from model_core.lazy import Tensor, torch
from model_core.upm.base import Floats, Summed, log_gamma


class Posterior(NamedTuple):
    """Of a regression of d outputs on p features, matrix-normal-inverse-Wishart; arrays.

    matrix: (..., p, d) its mean. inverse: (..., p, p) `Lambda`. psi: (..., d, d). nu: (..., 1).
    """

    matrix: Any
    inverse: Any
    psi: Any
    nu: Any


class Vectors(Summed):
    """Regimes of such regressions."""

    def natural(self, stats: Posterior, prior: Posterior) -> Posterior:
        """Lambda times the mean's distance from the prior's, and psi about the prior's mean."""
        error = stats.matrix - prior.matrix
        moved = stats.inverse @ error
        return stats._replace(matrix=moved, psi=stats.psi + np.swapaxes(error, -1, -2) @ moved)

    def from_natural(self, stats: Posterior, prior: Posterior) -> Posterior:
        """Mean, and psi about it, symmetric to the bit."""
        error = np.linalg.solve(stats.inverse, stats.matrix)
        half = 0.5 * (stats.psi - np.swapaxes(error, -1, -2) @ stats.matrix)
        return stats._replace(matrix=prior.matrix + error, psi=half + np.swapaxes(half, -1, -2))

    def log_evidence(self, stats: Posterior, context: Floats) -> float:
        """Of the matrix-normal-inverse-Wishart (Murphy, eq. 266, for one feature)."""
        outputs = stats.psi.shape[-1]
        half = 0.5 * stats.nu.item()
        _, log_precision = np.linalg.slogdet(stats.inverse[0, 0])
        _, log_scale = np.linalg.slogdet(stats.psi[0, 0])
        # A factor of 2 for each degree of freedom is linear in the labels.
        gammas = log_gamma(half - 0.5 * np.arange(outputs)).sum()
        return float(gammas - half * log_scale - 0.5 * outputs * log_precision)

    def count(self, stats: Posterior, prior: Posterior) -> float:
        """By the degrees of freedom."""
        return float((stats.nu - prior.nu).item())


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
