"""Several outputs: independent, or a vector autoregression, by their evidence in each regime.

Each regime follows one of two. Either its outputs are independent, each as in `averaged`. Or all
follow a vector autoregression of order one: with features `f = (1, lag)` of all outputs and the
scales `c` of the noise that `averaged` has,

    y | c ~ N(M' f, c Sigma),    M | Sigma ~ MatrixNormal(M_0, Lambda_0^-1, Sigma),
    Sigma ~ InverseWishart(psi, nu),

whose shares are the average of the outputs'. So the predictive is a mixture of Student-t of all
outputs, `nu - d + 1` degrees of freedom, location `M' f` and scale matrices
`psi (c + v) / (nu - d + 1)`, `v = f' Lambda^-1 f`. `M_0` is a random walk, which forecasts most
vectors well: shrinkage towards it is that of Litterman (1986, *Journal of Business & Economic
Statistics* 4). The update is that of regressions, with `w = sum_c r_c / c` and `e = y - M' f`,

    Lambda' = Lambda + w f f',    M' = M + w Lambda'^-1 f e',
    psi' = psi + w e e' / (1 + w v),    nu' = nu + 1.

Of a label that some outputs are missing from, the others tell. Their density is the marginal one,
and the vector autoregression learns from what is expected of the missing ones: `e` is the error
that the others lead to, and to `psi'` is added the noise's scale matrix of what is missing given
the others, without which `psi` would shrink (Dempster, Laird & Rubin 1977, *JRSS B* 39).

What counts towards changes. Each hypothesis takes its errors for independent in time. Where those
of all hypotheses' forecast are not, no model of these is right, and long stretches of errors of one
sign are taken for changes. So a label's log likelihood counts for run lengths (not for forecasts)
only by the share of independent observations among dependent ones (Bayley & Hammersley 1946,
*Supplement to the JRSS* 8),

    share = (1 - r) / (1 + r),    r = max(0, largest over outputs of b_o / a_o),

with `a`, `b` sums of squares and of products of neighbours of the errors, in their running
standard deviation and within `maths.context.FAR` of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from model_core.components import Blend, Either, MultivariateStudentT
from model_core.labels import LARGEST
from model_core.lazy import Tensor, torch
from model_core.maths.context import BEFORE
from model_core.maths.regression import SCALES
from model_core.tensor_ops import maths
from model_core.upm.averaged import Averaged, AveragedStats, normalised
from model_core.upm.base import Beside, Floats, Reading, Stats, mixed, of_arrays
from model_core.upm.multivariate import Posterior, Vectors, grown, student_t

_CONTEXT = maths("context")
_REGRESSION = maths("regression")
_VECTORS = Vectors()
WATCHED = 4  # numbers of each output: running variance, `a`, `b` and the last error


class JointStats(NamedTuple):
    """Statistics of both; p = 1 + d features.

    mean to origin: of independent outputs, see `AveragedStats`. matrix: (B, S, p, d) `M`. inverse:
    (B, S, p, p) `Lambda`. psi: (B, S, d, d). nu: (B, S, 1). log_choice: (B, S, 2) of the two, whose
    exponentials sum to one.
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

    @property
    def together(self) -> Posterior:
        """Of the vector autoregression; arrays."""
        return Posterior(self.matrix, self.inverse, self.psi, self.nu)


class _JointReading(NamedTuple):
    """What the two make of a label.

    error: (B, S, d) of the vector autoregression, the expected one of missing outputs.
    missing_scale: (B, S, d, d) scale matrix of the noise of the missing outputs given the others;
    None: none is missing. solved: (B, S, p) `Lambda^-1 f`. variance: (B, S) `f' Lambda^-1 f`.
    log_posterior: (B, S, 2) log probabilities given the label. responsibilities: (B, S, 3) of the
    scales of the noise under the vector autoregression.
    """

    error: Tensor
    missing_scale: Tensor | None
    solved: Tensor
    variance: Tensor
    log_posterior: Tensor
    responsibilities: Tensor


@dataclass(frozen=True)
class Joint(Averaged):
    """Independent outputs or a vector autoregression in each regime.

    Constants are those of `averaged`; `autoregression` and `beta` serve the vectors, too.
    """

    y_dim: int = 2
    kind = "joint"
    symmetric = ("inverse", "psi")
    parts = Averaged.parts + len(SCALES)

    def fresh(self, location: Floats, scale: Floats) -> tuple[Stats, Floats]:
        """A random walk about the location; the two are equally probable.

        The context is that of `averaged`, then `WATCHED` numbers of each output: (B, 3 + 19 d).
        """
        alone, context = super().fresh(location, scale)
        batch, d = location.shape
        matrix = np.empty((batch, 1, 1 + d, d))
        matrix[..., 0, :] = location[:, None]
        matrix[..., 1:, :] = _diagonal(scale)[:, None]
        features = np.diag([self.kappa] + d * [self.autoregression])
        psi = _diagonal(2 * self.beta * scale**2)
        stats = of_arrays(
            JointStats,
            *alone,
            matrix,
            np.broadcast_to(features, (batch, 1, 1 + d, 1 + d)),
            psi[:, None],
            np.full((batch, 1, 1), 2 * self.alpha + d - 1),
            np.full((batch, 1, 2), -math.log(2)),
        )
        one = np.ones_like(location)
        nothing = np.zeros_like(location)
        return stats, np.hstack((context, one, BEFORE * one, nothing, nothing))

    def remember(
        self, context: Tensor, y: Tensor, labelled: Tensor, reading: Reading | None = None
    ) -> Tensor:
        """That of `averaged`, and the errors of the hypotheses' forecast."""
        assert reading is not None
        own, watched = self._split(context)
        time, location, scale, *_ = self._parts(own)
        numbers = watched.chunk(WATCHED, -1)
        expected = _CONTEXT.in_units(reading.expected, location, scale)
        error = _CONTEXT.in_units(y, location, scale) - expected
        learned = torch.cat(_CONTEXT.watched(*numbers, error, time), -1)
        # What follows a missing label has no neighbour.
        unlearned = torch.cat((*numbers[:-1], torch.zeros_like(error)), -1)
        there = labelled.unsqueeze(-1) & ~torch.isnan(y)
        watched = torch.where(there.repeat(1, WATCHED), learned, unlearned)
        return torch.cat((super().remember(own, y, labelled, reading), watched), -1)

    def encode(self, x: Tensor | None, context: Tensor) -> Tensor:
        """As `averaged`."""
        return super().encode(x, self._split(context)[0])

    def evidence_share(self, context: Tensor) -> Tensor:
        """`(1 - r) / (1 + r)`, (B, 1)."""
        _, squares, products, _ = self._split(context)[1].chunk(WATCHED, -1)
        r = (products / squares).amax(-1, keepdim=True).clamp(min=0)
        share: Tensor = _CONTEXT.independent_share(r)
        return share

    def predictive(self, stats: JointStats, phi: Tensor | None) -> Either:  # type: ignore[override]
        """Of independent outputs, and Student-t of all together, one for each scale."""
        phi = self.required(phi)
        together, _, _ = self._together(stats, phi)
        alone = self._alone.predictive(stats.alone, phi)
        vector = stats.log_choice[..., 1:] + self._vector_shares(phi).log()
        return Either(alone, together, torch.cat((stats.log_choice[..., :1], vector), -1))

    def outlier(self, prior: JointStats, phi: Tensor | None) -> Either:  # type: ignore[override]
        """Outputs are independent, each as in `averaged`."""
        alone = self._alone.outlier(prior.alone, phi)
        return self._independent(alone, 2 * prior.alpha)

    def beside(self, context: Tensor) -> Beside:
        """The random walks."""
        weight, components = self._alone.beside(self._split(context)[0])
        assert isinstance(components, Blend)
        df = components.parts.df[:, :, 0, :1]
        return Beside(weight, self._independent(components, df))

    def read(  # type: ignore[override]
        self, stats: JointStats, phi: Tensor | None, y: Tensor, weight: Tensor
    ) -> Tensor:
        """Responsibilities of the scales for each output, whichever it follows."""
        reading = self._read(stats, self.required(phi), y)
        alone = self._alone.read(stats.alone, phi, y, weight)
        chances = reading.log_posterior.exp()
        vector = weight.unsqueeze(-1) * reading.responsibilities
        together = vector.repeat(1, 1, self.y_dim)
        return chances[..., :1] * alone + chances[..., 1:] * together

    def update(  # type: ignore[override]
        self, stats: JointStats, phi: Tensor | None, y: Tensor, weight: Tensor
    ) -> JointStats:
        """Conjugate update of both, and of their probabilities."""
        phi = self.required(phi)
        reading = self._read(stats, phi, y)
        alone = self._alone.update(stats.alone, phi, y, weight)
        share = weight * _REGRESSION.precision(*reading.responsibilities.unbind(-1))
        solved = reading.solved.unsqueeze(-1)
        f = _features(phi, self.y_dim)
        error = reading.error
        gain = _REGRESSION.gain(share, reading.variance)
        lacking = reading.missing_scale
        if lacking is not None:
            lacking = weight[..., None, None] * lacking
        return JointStats(
            *alone,
            stats.matrix + gain[..., None, None] * solved * error.unsqueeze(2),
            stats.inverse + share[..., None, None] * (f.unsqueeze(-1) * f.unsqueeze(-2)),
            grown(stats.psi, error, gain, lacking),
            stats.nu + weight.unsqueeze(-1),
            mixed(weight.unsqueeze(-1), reading.log_posterior, stats.log_choice),
        )

    def tempered(self, stats: Stats, prior: Stats, most: float) -> Stats:
        """Both by the same share of the labels, and the choice between them."""
        together = _VECTORS.tempered(stats.together, prior.together, most)
        share = _VECTORS.share(stats.together, prior.together, most)
        log_choice = prior.log_choice + share * (stats.log_choice - prior.log_choice)
        alone = super().tempered(stats.alone, prior.alone, most)
        return of_arrays(JointStats, *alone, *together, normalised(log_choice))

    def pooled(
        self, one: Stats, other: Stats, prior: Stats, context: Floats
    ) -> tuple[float, Stats]:
        """The two averaged."""
        alone = super().pooled(one.alone, other.alone, prior.alone, context)
        together = _VECTORS.pooled(one.together, other.together, prior.together, context)
        log_choice = one.log_choice + other.log_choice - prior.log_choice
        log_choice = log_choice + np.array([alone[0], together[0]])
        both = of_arrays(JointStats, *alone[1], *together[1], normalised(log_choice))
        return float(np.logaddexp.reduce(log_choice, -1).item()), both

    @property
    def _alone(self) -> Averaged:
        """The model of independent outputs."""
        return Averaged(
            self.y_dim,
            self.kappa,
            self.slope,
            self.autoregression,
            self.smoothness,
            self.alpha,
            self.beta,
        )

    def _together(
        self, stats: JointStats, phi: Tensor
    ) -> tuple[MultivariateStudentT, Tensor, Tensor]:
        """Predictives by scale of the noise, `Lambda^-1 f` and `f' Lambda^-1 f`."""
        f = _features(phi, self.y_dim).expand(*stats.nu.shape[:2], -1)
        factor, failed = torch.linalg.cholesky_ex(stats.inverse)
        solved = torch.cholesky_solve(f.unsqueeze(-1), factor).squeeze(-1)
        variance = (f * solved).sum(-1).clamp(min=0)
        location = self._bounded((f.unsqueeze(-2) @ stats.matrix).mT, phi).mT
        df = stats.nu - (self.y_dim - 1)
        certain = torch.where(failed > 0, torch.nan, variance)
        scales = df.new_tensor(SCALES)
        spread = _REGRESSION.squared_scale(1 / df, certain.unsqueeze(-1), scales)
        shape = *spread.shape, self.y_dim
        together = student_t(
            df.unsqueeze(-1).expand(*spread.shape, 1),
            location.expand(shape),
            stats.psi.unsqueeze(2),
            spread,
        )
        return together, solved, variance

    def _read(self, stats: JointStats, phi: Tensor, y: Tensor) -> _JointReading:
        together, solved, variance = self._together(stats, phi)
        independent = self._alone.predictive(stats.alone, phi).joint_log_density(y.unsqueeze(1))
        vectors = together.joint_log_density(y[:, None, None]) + self._vector_shares(phi).log()
        density = torch.stack((independent, torch.logsumexp(vectors, -1)), -1)
        usual = together.rebuilt(*(p[:, :, 0] for p in together.parameters()))
        error, missing_scale = usual.explain(y.unsqueeze(1))
        if missing_scale is not None:
            missing_scale = missing_scale / (1 + variance)[..., None, None]
            # Beyond any label the square of what is expected would overflow.
            error = error.clamp(-LARGEST, LARGEST)
        return _JointReading(
            error,
            missing_scale,
            solved,
            variance,
            torch.log_softmax(stats.log_choice + density, -1),
            torch.softmax(vectors, -1),
        )

    def _vector_shares(self, phi: Tensor) -> Tensor:
        """Shares (B, 1, 3) of the scales of the noise of all outputs together."""
        return self._shares_of(phi).mean(1, keepdim=True)

    def _independent(self, alone: Blend, df: Tensor) -> Either:
        """Either of which the outputs are independent, for certain; df: (B, M, 1), any."""
        many = len(SCALES)
        loc = alone.mean().unsqueeze(-2)
        shape = *loc.shape[:2], many, self.y_dim
        unit = torch.eye(self.y_dim, dtype=loc.dtype, device=loc.device)
        factor = unit.expand(*shape, self.y_dim)
        never = loc.new_full((*shape[:2], many), -torch.inf)
        choice = torch.cat((torch.zeros_like(never[..., :1]), never), -1)
        freedom = df.unsqueeze(-1).expand(*shape[:3], 1)
        return Either(alone, MultivariateStudentT(freedom, loc.expand(shape), factor), choice)

    def _split(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Context of `averaged`, and what is watched."""
        watched = WATCHED * self.y_dim
        return context[..., :-watched], context[..., -watched:]


def _diagonal(values: Floats) -> Floats:
    """Diagonal matrices (B, d, d) of values (B, d)."""
    return values[..., None] * np.eye(values.shape[-1])


def _features(phi: Tensor, outputs: int) -> Tensor:
    """`f` (B, 1, p) of phi (B, n): one, and the lag."""
    lag = phi[:, None, 1 : 1 + outputs]
    return torch.cat((torch.ones_like(lag[..., :1]), lag), -1)
