"""An unknown covariance of all outputs, inverse Wishart: what `multivariate` and `joint` share."""

from __future__ import annotations

from model_core.components import MultivariateStudentT
from model_core.lazy import Tensor, torch


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
