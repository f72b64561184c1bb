"""Several outputs: independent, or a vector autoregression, by their evidence in each regime.

Each regime follows one of three. Either its outputs are independent, each as in `averaged`.
Or all follow a vector autoregression of order one, with normal noise of a full
covariance or with noise of heavy tails: with features `f = (1, lag)` of all outputs,

    y ~ N(M' f, Sigma),    M | Sigma ~ MatrixNormal(M_0, Lambda_0^-1, Sigma),
    Sigma ~ InverseWishart(psi, nu),

so the predictive is a Student-t of all outputs, `nu - d + 1` degrees of freedom, location `M' f`
and scale matrix `psi (1 + f' Lambda^-1 f) / (nu - d + 1)`. `M_0` is a random walk, which
forecasts most vectors well: shrinkage towards it is that of Litterman (1986, *Journal
of Business & Economic Statistics* 4). Heavy tails have `TAILS` degrees of freedom at most. The
update with a share `g` of a label is that of regressions,

    Lambda' = Lambda + g f f',    M' = M + g Lambda'^-1 f e',    e = y - M' f,
    psi' = psi + g e e' / (1 + g f' Lambda^-1 f),    nu' = nu + g,

and `g` is found as in `averaged`: the part's own odds of an inlier, times `(TAILS + d) /
(TAILS + z^2)` at most one where tails are heavy.

Of a label that some outputs are missing from, the others tell. Their density is the marginal one,
and the vector autoregressions learn from what is expected of the missing ones: `e` is the error
that the others lead to, and to `psi'` is added `g` times the scale matrix of what is missing given
the others, without which `psi` would shrink (Dempster, Laird & Rubin 1977, *JRSS B* 39).

What counts towards changes. Each hypothesis takes its errors for independent in time. Where those
of all hypotheses' forecast are not, no model of these is right, and long stretches of errors of one
sign are taken for changes. So a label's log likelihood counts for run lengths (not for forecasts)
only by the share of independent observations among dependent ones (Bayley & Hammersley 1946,
*Supplement to the JRSS* 8),

    share = (1 - r) / (1 + r),    r = max(0, largest over outputs of b_o / a_o),

with `a`, `b` sums of squares and of products of neighbours of the errors, in their running
standard deviation and within `FAR` of it. The forecasts are averaged with random walks, as in
`averaged`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from model_core.components import Blend, MultivariateStudentT
from model_core.components.either import Either
from model_core.lazy import Tensor, torch
from model_core.maths.regression import TAILS
from model_core.tensor_ops import maths
from model_core.upm import wishart
from model_core.upm.averaged import Averaged, AveragedStats
from model_core.upm.base import Beside, Floats, Stats, in_units, of_arrays

_REGRESSION = maths("regression")
TOGETHER = 2  # vector autoregressions: normal noise, heavy tails
# Share of a label at most: what is left, and is divided by, is not zero.
CERTAIN = 1e12 / (1 + 1e12)
FAR = 3.0  # standard deviations within which errors count
BEFORE = 20.0  # errors of the stream's scale, none like its neighbour, seen before the first
WATCHED = 4  # numbers of each output: running variance, `a`, `b` and the last error


class JointStats(NamedTuple):
    """Statistics of both; V = `TOGETHER`, p = 1 + d features.

    mean to origin: of independent outputs, see `AveragedStats`. matrix: (B, S, V, p, d) `M`.
    inverse: (B, S, V, p, p) `Lambda`. psi: (B, S, V, d, d). nu: (B, S, V). log_choice:
    (B, S, 1 + V) of the three, whose exponentials sum to one.
    """

    mean: Tensor
    precision: Tensor
    alpha: Tensor
    beta: Tensor
    log_weight: Tensor
    origin: Tensor
    matrix: Tensor
    inverse: Tensor
    psi: Tensor
    nu: Tensor
    log_choice: Tensor

    @property
    def alone(self) -> AveragedStats:
        """Of independent outputs."""
        return AveragedStats(*self[:6])


class _JointReading(NamedTuple):
    """What the three say of a label.

    errors: (B, S, V, d) of the vector autoregressions, expected ones of missing outputs.
    missing_scale: (B, S, V, d, d) scale matrix of the missing outputs given the others; None: none
    is missing. solved: (B, S, V, p) `Lambda^-1 f`. variance: (B, S, V) `f' Lambda^-1 f`.
    log_posterior: (B, S, 1 + V) log probabilities of the three given the label. shares:
    (B, S, 1 + V) of the label that each learns; within the first its parts have their own.
    """

    errors: Tensor
    missing_scale: Tensor | None
    solved: Tensor
    variance: Tensor
    log_posterior: Tensor
    shares: Tensor


@dataclass(frozen=True)
class Joint(Averaged):
    """Independent outputs or a vector autoregression in each regime.

    Constants are those of `averaged`; `autoregression` and `beta` serve the vectors, too.
    """

    y_dim: int = 2
    kind: str = "joint"
    symmetric: tuple[str, ...] = ("inverse", "psi")
    parts = Averaged.parts + TOGETHER

    def fresh(self, location: Floats, scale: Floats) -> Stats:
        """Random walks about the location; the three are equally probable."""
        batch, d = location.shape
        shape = batch, 1, TOGETHER
        matrix = np.empty((*shape, 1 + d, d))
        matrix[..., 0, :] = location[:, None, None]
        matrix[..., 1:, :] = _diagonal(scale)[:, None, None]
        features = np.diag([self.kappa] + d * [self.autoregression])
        psi = _diagonal(2 * self.beta * scale**2)
        return of_arrays(
            JointStats,
            *super().fresh(location, scale),
            matrix,
            np.broadcast_to(features, (*shape, 1 + d, 1 + d)),
            np.broadcast_to(psi[:, None, None], (*shape, d, d)),
            np.full(shape, 2 * self.alpha + d - 1),
            np.full((batch, 1, 1 + TOGETHER), -math.log(1 + TOGETHER)),
        )

    def fresh_context(self, location: Floats, scale: Floats) -> Floats:
        """That of `averaged`, then `WATCHED` numbers of each output: (B, 3 + 14 d)."""
        one = np.ones_like(location)
        nothing = np.zeros_like(location)
        watched = one, BEFORE * one, nothing, nothing
        return np.hstack((super().fresh_context(location, scale), *watched))

    def beside(self, context: Tensor) -> Beside:
        """The random walks."""
        weight, components = self._alone.beside(self._split(context)[0])
        assert isinstance(components, Blend)
        return Beside(weight, self._independent(components))

    def judge(
        self, context: Tensor, y: Tensor, labelled: Tensor, lead: Tensor, expected: Tensor
    ) -> Tensor:
        """The walks one label later, and what is known of errors."""
        own, watched = self._split(context)
        time, location, scale, *_ = self._parts(own)
        variance, squares, products, last = watched.chunk(WATCHED, -1)
        error = in_units(y, location, scale) - in_units(expected, location, scale)
        z = (error / variance.sqrt()).clamp(-FAR, FAR)
        moved = (torch.minimum(error.square(), FAR**2 * variance) - variance) / (BEFORE + time)
        learned = torch.cat((variance + moved, squares + z.square(), products + z * last, z), -1)
        # What follows a missing label has no neighbour.
        unlearned = torch.cat((variance, squares, products, torch.zeros_like(last)), -1)
        there = labelled.unsqueeze(-1) & ~torch.isnan(y)
        watched = torch.where(there.repeat(1, WATCHED), learned, unlearned)
        return torch.cat((super().judge(own, y, labelled, lead, expected), watched), -1)

    def remember(self, context: Tensor, y: Tensor, labelled: Tensor) -> Tensor:
        """One observation later; y: the label as it is believed."""
        own, watched = self._split(context)
        return torch.cat((super().remember(own, y, labelled), watched), -1)

    def encode(self, x: Tensor | None, context: Tensor) -> Tensor:
        """Time, the lag, least and greatest forecast."""
        return super().encode(x, self._split(context)[0])

    def evidence_share(self, context: Tensor) -> Tensor:
        """`(1 - r) / (1 + r)`, (B, 1)."""
        _, squares, products, _ = self._split(context)[1].chunk(WATCHED, -1)
        r = (products / squares).amax(-1, keepdim=True).clamp(min=0)
        return (1 - r) / (1 + r)

    def predictive(self, stats: JointStats, phi: Tensor | None) -> Either:  # type: ignore[override]
        """Of independent outputs, and Student-t of all together."""
        phi = self.required(phi)
        together, _, _ = self._together(stats, phi)
        return Either(self._alone.predictive(stats.alone, phi), together, stats.log_choice)

    def outlier(self, prior: JointStats, phi: Tensor | None) -> Either:  # type: ignore[override]
        """Outputs are independent, each as in `averaged`."""
        return self._independent(self._alone.outlier(prior.alone, phi))

    def share(  # type: ignore[override]
        self, stats: JointStats, phi: Tensor | None, y: Tensor, weight: Tensor
    ) -> Tensor:
        """By the parts that explain the label: (B, S, d)."""
        read = self._read(stats, self.required(phi), y, weight)
        alone = self._alone.share(stats.alone, phi, y, read.shares[..., 0])
        chances = read.log_posterior.exp()
        together = (chances[..., 1:] * read.shares[..., 1:]).sum(-1, keepdim=True)
        return chances[..., :1] * alone + together

    def update(  # type: ignore[override]
        self, stats: JointStats, phi: Tensor | None, y: Tensor, weight: Tensor
    ) -> JointStats:
        """Conjugate update of all, and of their probabilities."""
        phi = self.required(phi)
        read = self._read(stats, phi, y, weight)
        alone = self._alone.update(stats.alone, phi, y, read.shares[..., 0])
        share = read.shares[..., 1:]
        f = _features(phi, self.y_dim)
        error = read.errors
        gain = share / (1 + share * read.variance)
        lacking = read.missing_scale
        if lacking is not None:
            lacking = (share / (1 + read.variance))[..., None, None] * lacking
        w = weight.unsqueeze(-1)
        kept = torch.log1p(-w) + stats.log_choice
        return JointStats(
            *alone,
            stats.matrix + gain[..., None, None] * read.solved.unsqueeze(-1) * error.unsqueeze(-2),
            stats.inverse + share[..., None, None] * (f.unsqueeze(-1) * f.unsqueeze(-2)),
            wishart.grown(stats.psi, error, gain, lacking),
            stats.nu + share,
            torch.logaddexp(torch.log(w) + read.log_posterior, kept),
        )

    @property
    def _alone(self) -> Averaged:
        """The model of independent outputs."""
        return Averaged(
            self.y_dim, self.kappa, self.slope, self.autoregression, self.alpha, self.beta
        )

    def _together(
        self, stats: JointStats, phi: Tensor
    ) -> tuple[MultivariateStudentT, Tensor, Tensor]:
        """Predictives of the vector autoregressions, `Lambda^-1 f` and `f' Lambda^-1 f`."""
        f = _features(phi, self.y_dim).expand(*stats.nu.shape, -1)
        factor, failed = torch.linalg.cholesky_ex(stats.inverse)
        solved = torch.cholesky_solve(f.unsqueeze(-1), factor).squeeze(-1)
        variance = (f * solved).sum(-1).clamp(min=0)
        location = self._bounded((f.unsqueeze(-2) @ stats.matrix).squeeze(-2).mT, phi).mT
        df = stats.nu - (self.y_dim - 1)
        spread = torch.where(failed > 0, torch.nan, (1 + variance) / df)
        heavy = df[..., 1:].clamp(max=TAILS)
        df = torch.cat((df[..., :1], heavy), -1).unsqueeze(-1)
        return wishart.student_t(df, location, stats.psi, spread), solved, variance

    def _read(self, stats: JointStats, phi: Tensor, y: Tensor, weight: Tensor) -> _JointReading:
        together, solved, variance = self._together(stats, phi)
        value = y[:, None, None]
        independent = self._alone.predictive(stats.alone, phi).joint_log_density(y.unsqueeze(1))
        vectors = together.joint_log_density(value)
        density = torch.cat((independent.unsqueeze(-1), vectors), -1)
        log_posterior = torch.log_softmax(stats.log_choice + density, -1)
        error, square, missing_scale = together.explain(value)
        outputs = (~torch.isnan(value)).sum(-1)
        heavy = _REGRESSION.precision(square[..., 1:], outputs)
        lead = log_posterior - stats.log_choice
        share = _REGRESSION.share_of(weight.unsqueeze(-1), lead).clamp(max=CERTAIN)
        one = torch.ones_like(heavy)
        shares = share * torch.cat((one, one, heavy), -1)
        # Gradients of what nothing is learned from are zero, whatever is made of the zero.
        shares = torch.where(share > 0, shares, 0.0)
        return _JointReading(error, missing_scale, solved, variance, log_posterior, shares)

    def _independent(self, alone: Blend) -> Either:
        """Either of which the outputs are independent, for certain."""
        loc = alone.mean().unsqueeze(-2)
        shape = *loc.shape[:2], TOGETHER, self.y_dim
        unit = torch.eye(self.y_dim, dtype=loc.dtype, device=loc.device)
        factor = unit.expand(*shape, self.y_dim)
        df = loc.new_full((*shape[:3], 1), TAILS)
        never = loc.new_full((*shape[:2], TOGETHER), -torch.inf)
        choice = torch.cat((torch.zeros_like(never[..., :1]), never), -1)
        return Either(alone, MultivariateStudentT(df, loc.expand(shape), factor), choice)

    def _split(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Context of `averaged`, and what is watched."""
        watched = WATCHED * self.y_dim
        return context[..., :-watched], context[..., -watched:]


def _diagonal(values: Floats) -> Floats:
    """Diagonal matrices (B, d, d) of values (B, d)."""
    return values[..., None] * np.eye(values.shape[-1])


def _features(phi: Tensor, outputs: int) -> Tensor:
    """`f` (B, 1, 1, p) of phi (B, n): one, and the lag."""
    lag = phi[:, None, None, 1 : 1 + outputs]
    return torch.cat((torch.ones_like(lag[..., :1]), lag), -1)
