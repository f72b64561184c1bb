"""Several outputs: independent, or with a covariance, by their evidence in each regime.

Formulas, and what was tried instead: docs/mathematics.md, `joint`. In each regime outputs are
independent, each as in `averaged`; or all have a mean `m` and a covariance, as in `multivariate`,
with the scales of the noise that `averaged` has: labels less `a u + b s` are around `f m`, with `u`
the lag, `s` the trend's forecast of `averaged` and `f = 1 - a - b`. `a` and `b` are two numbers of
the stream, as are its correlations: `psi` of a fresh regime is `2 beta D R D`, with the scales `D`
and the correlations `R` of the errors of all hypotheses' forecast. They hold for all hypotheses
alike, so statistics have `psi` less `2 beta D (R - I) D`, which is added where they forecast.

Of a label that some outputs are missing from, the others tell: their density is the marginal one.
The covariance learns from what is expected of the missing ones, to which the noise's scale matrix
of these, given the others, is added; without it `psi` would shrink (Dempster, Laird & Rubin 1977,
*JRSS B* 39).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from model_core.components import Blend, Either, MultivariateStudentT
from model_core.labels import LARGEST
from model_core.lazy import Tensor, torch
from model_core.maths.context import BEFORE, FEW, LAGS_BEFORE, apart_of
from model_core.maths.regression import SCALES
from model_core.tensor_ops import maths
from model_core.transfer import constant
from model_core.upm.averaged import Averaged, AveragedStats, normalised
from model_core.upm.base import Beside, Floats, Reading, Stats, mixed, of_arrays
from model_core.upm.multivariate import Multivariate, MultivariateStats, grown, student_t

_CONTEXT = maths("context")
_REGRESSION = maths("regression")
FREEDOM = 2.0  # more degrees of freedom of `Sigma` for each output beyond `FEW`
# Sums of products of distances from the level: of lags, of lags and trends, of trends, of labels
# and lags, of labels and trends.
DISTANCES = 5
WATCHED = 4  # numbers of each output: running variance, `a`, `b` and the last error


class JointStats(NamedTuple):
    """Statistics of both.

    level to origin: of independent outputs, see `AveragedStats`. centre (B, S, d), kappa, nu (B, S,
    1) and psi (B, S, d, d): of those together, `m` and so on, see `MultivariateStats`; psi as if
    outputs had been uncorrelated. log_choice: (B, S, 2) of the two, whose exponentials sum to one.
    """

    level: Tensor
    slope: Tensor
    precision: Tensor
    cross: Tensor
    slope_precision: Tensor
    alpha: Tensor
    beta: Tensor
    log_weight: Tensor
    origin: Tensor
    centre: Tensor
    kappa: Tensor
    nu: Tensor
    psi: Tensor
    log_choice: Tensor

    @property
    def alone(self) -> AveragedStats:
        """Of independent outputs."""
        return AveragedStats(*self[: len(AveragedStats._fields)])

    @property
    def together(self) -> MultivariateStats:
        """Of all together."""
        return MultivariateStats(*self[len(AveragedStats._fields) : -1])


class _JointReading(NamedTuple):
    """What the two make of a label.

    error: (B, S, d) of all together, the expected one of missing outputs. missing_scale: (B, S, d,
    d) scale matrix of the noise of the missing outputs given the others; None: none is missing.
    log_posterior: (B, S, 2) log probabilities given the label. responsibilities: (B, S, 3) of the
    scales of the noise of all together.
    """

    error: Tensor
    missing_scale: Tensor | None
    log_posterior: Tensor
    responsibilities: Tensor


@dataclass(frozen=True)
class Joint(Averaged):
    """Independent outputs, or outputs with a covariance, in each regime.

    Constants are those of `averaged`; `kappa`, `alpha` and `beta` serve both.
    """

    y_dim: int = 2
    kind = "joint"
    symmetric = ("psi",)
    parts = Averaged.parts + len(SCALES)

    def fresh(self, location: Floats, scale: Floats) -> tuple[Stats, Floats]:
        """The two are equally probable.

        The context is that of `averaged`, then `WATCHED` numbers of each output, sums of products
        of the errors of two, and sums of products of `DISTANCES`: (B, 8 + 19 d + d (d - 1) / 2).
        """
        alone, context = super().fresh(location, scale)
        together, _ = self._vectors.fresh(location, scale)
        batch, d = location.shape
        choice = np.full((batch, 1, 2), -math.log(2))
        one = np.ones_like(location)
        nothing = np.zeros_like(location)
        products = np.zeros((batch, d * (d - 1) // 2))
        watched = one, BEFORE * one, nothing, nothing, products
        distances = np.tile([LAGS_BEFORE, 0.0, BEFORE, 0.0, 0.0], (batch, 1))
        context = np.hstack((context, *watched, distances))
        return of_arrays(JointStats, *alone, *together, choice), context

    def remember(
        self, context: Tensor, y: Tensor, labelled: Tensor, reading: Reading | None = None
    ) -> Tensor:
        """That of `averaged`, and the errors of the hypotheses' forecast."""
        assert reading is not None
        own, watched, products, distances = self._split(context)
        time, location, scale, *_ = self._parts(own)
        numbers = watched.chunk(WATCHED, -1)
        expected = _CONTEXT.in_units(reading.expected, location, scale)
        error = _CONTEXT.in_units(y, location, scale) - expected
        learned = torch.cat(_CONTEXT.watched(*numbers, error, time), -1)
        # What follows a missing label has no neighbour.
        unlearned = torch.cat((*numbers[:-1], torch.zeros_like(error)), -1)
        there = labelled.unsqueeze(-1) & ~torch.isnan(y)
        watched = torch.where(there.repeat(1, WATCHED), learned, unlearned)
        z = watched[:, -self.y_dim :]
        one, two = _pairs(z)
        products = products + z[:, one] * z[:, two]
        shares, level = torch.tensor_split(reading.average, (len(SCALES) * self.y_dim,), -1)
        ends = torch.stack((y, *self._lag_and_trend(own)))
        label, lag, trend = torch.where(
            there, _CONTEXT.standard((ends - level) / scale, watched[:, : self.y_dim]), 0.0
        )
        crossed = (lag * lag, lag * trend, trend * trend, label * lag, label * trend)
        distances = distances + torch.stack(crossed, -1).mean(1)
        own = super().remember(own, y, labelled, reading._replace(average=shares))
        return torch.cat((own, watched, products, distances), -1)

    def encode(self, x: Tensor | None, context: Tensor) -> Tensor:
        """As `averaged`, then `f`, `a u + b s` (d) and `2 beta D (R - I) D` (d d)."""
        d = self.y_dim
        own, watched, products, distances = self._split(context)
        _, _, scale, *_ = self._parts(own)
        lag, trend = self._lag_and_trend(own)
        of_lag, of_trend = _CONTEXT.memory(*distances.chunk(DISTANCES, -1))
        squares = watched[:, d : 2 * d]
        one, two = _pairs(squares)
        apart = apart_of(d)
        correlation = _CONTEXT.correlation(products, squares[:, one], squares[:, two], apart)
        lower = context.new_zeros(len(context), d, d)
        lower[:, one, two] = 2 * self._vectors.beta * (scale[:, one] * scale[:, two]) * correlation
        kept = of_lag * lag + of_trend * trend
        added = (lower + lower.mT).flatten(1)
        return torch.cat((super().encode(x, own), 1 - of_lag - of_trend, kept, added), -1)

    def evidence_share(self, context: Tensor) -> Tensor:
        """`(1 - r) / (1 + r)`, (B, 1)."""
        _, squares, products, _ = self._split(context)[1].chunk(WATCHED, -1)
        r = (products / squares).amax(-1, keepdim=True).clamp(min=0)
        share: Tensor = _CONTEXT.independent_share(r)
        return share

    def predictive(self, stats: JointStats, phi: Tensor | None) -> Either:  # type: ignore[override]
        """Of independent outputs, and Student-t of all together, one for each scale."""
        phi = self.required(phi)
        together = self._together(stats, phi)
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
        """Responsibilities of the scales for each output, whichever it follows, and the mean."""
        reading = self._read(stats, self.required(phi), y)
        alone = self._alone.read(stats.alone, phi, y, weight)
        chances = reading.log_posterior.exp()
        vector = weight.unsqueeze(-1) * reading.responsibilities
        together = vector.repeat(1, 1, self.y_dim)
        shares = chances[..., :1] * alone + chances[..., 1:] * together
        return torch.cat((shares, stats.centre), -1)

    def update(  # type: ignore[override]
        self, stats: JointStats, phi: Tensor | None, y: Tensor, weight: Tensor
    ) -> JointStats:
        """Conjugate update of both, and of their probabilities."""
        phi = self.required(phi)
        reading = self._read(stats, phi, y)
        alone = self._alone.update(stats.alone, phi, y, weight)
        share = weight * _REGRESSION.precision(*reading.responsibilities.unbind(-1))
        error = reading.error
        feature = self._of_vectors(phi)[0]
        kappa = stats.kappa.squeeze(-1)
        gain = _REGRESSION.gain(share, feature**2 / kappa)
        lacking = reading.missing_scale
        if lacking is not None:
            lacking = weight[..., None, None] * lacking
        return JointStats(
            *alone,
            stats.centre + (gain * (feature / kappa)).unsqueeze(-1) * error,
            stats.kappa + (share * feature**2).unsqueeze(-1),
            stats.nu + weight.unsqueeze(-1),
            grown(stats.psi, error, gain, lacking),
            mixed(weight.unsqueeze(-1), reading.log_posterior, stats.log_choice),
        )

    def tempered(self, stats: Stats, prior: Stats, most: float) -> Stats:
        """Both by the same share of the labels, and the choice between them."""
        together = self._vectors.tempered(stats.together, prior.together, most)
        share = self._vectors.share(stats.together, prior.together, most)
        log_choice = prior.log_choice + share * (stats.log_choice - prior.log_choice)
        alone = super().tempered(stats.alone, prior.alone, most)
        return of_arrays(JointStats, *alone, *together, normalised(log_choice))

    def pooled(
        self, one: Stats, other: Stats, prior: Stats, context: Floats
    ) -> tuple[float, Stats]:
        """The two averaged."""
        alone = super().pooled(one.alone, other.alone, prior.alone, context)
        together = self._vectors.pooled(one.together, other.together, prior.together, context)
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

    @property
    def _vectors(self) -> Multivariate:
        """The model of outputs together, uncorrelated at first."""
        alpha = self.alpha + 0.5 * FREEDOM * max(0, self.y_dim - FEW)
        beta = self.beta * (alpha - 1) / (self.alpha - 1)  # the same expected covariance
        return Multivariate(self.y_dim, self.kappa, alpha, beta)

    def _together(self, stats: JointStats, phi: Tensor) -> MultivariateStudentT:
        """Predictives of all outputs together, one for each scale of the noise."""
        d = self.y_dim
        feature, kept, apart = self._of_vectors(phi)
        location = feature.unsqueeze(-1) * stats.centre + kept
        location = self._bounded(location.unsqueeze(-1), phi).mT
        df = stats.nu - (d - 1)
        variance = feature.unsqueeze(-1) ** 2 / stats.kappa
        spread = _REGRESSION.squared_scale(1 / df, variance, constant(SCALES, df))
        return student_t(
            df.unsqueeze(-1).expand(*spread.shape, 1),
            location.expand(*spread.shape, d),
            (stats.psi + apart).unsqueeze(2),
            spread,
        )

    def _read(self, stats: JointStats, phi: Tensor, y: Tensor) -> _JointReading:
        together = self._together(stats, phi)
        independent = self._alone.predictive(stats.alone, phi).joint_log_density(y.unsqueeze(1))
        vectors = together.joint_log_density(y[:, None, None]) + self._vector_shares(phi).log()
        density = torch.stack((independent, torch.logsumexp(vectors, -1)), -1)
        usual = together.rebuilt(*(p[:, :, 0] for p in together.parameters()))
        error, missing_scale = usual.explain(y.unsqueeze(1))
        if missing_scale is not None:
            variance = self._of_vectors(phi)[0] ** 2 / stats.kappa.squeeze(-1)
            missing_scale = missing_scale / (1 + variance)[..., None, None]
            # Beyond any label the square of what is expected would overflow.
            error = error.clamp(-LARGEST, LARGEST)
        return _JointReading(
            error,
            missing_scale,
            torch.log_softmax(stats.log_choice + density, -1),
            torch.softmax(vectors, -1),
        )

    def _lag_and_trend(self, own: Tensor) -> tuple[Tensor, Tensor]:
        """`u` and `s` (B, d), from the context of `averaged`."""
        _, location, scale, _, _, lag, *_ = self._parts(own)
        return location + scale * lag, location + scale * self.trend(own)

    def _of_vectors(self, phi: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`f` (B, 1), `a u + b s` (B, 1, d) and what is added to psi (B, 1, d, d)."""
        d = self.y_dim
        end = phi.shape[-1] - d * d
        places = (end - d - 1, end - d, end)
        _, feature, kept, apart = torch.tensor_split(phi, places, -1)
        return feature, kept.unsqueeze(1), apart.reshape(-1, 1, d, d)

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

    def _split(self, context: Tensor) -> tuple[Tensor, ...]:
        """Context of `averaged`, what is watched of each output, of two, and of distances."""
        d = self.y_dim
        of_distances = context.shape[-1] - DISTANCES
        of_two = of_distances - d * (d - 1) // 2
        return torch.tensor_split(context, (of_two - WATCHED * d, of_two, of_distances), -1)


def _pairs(like: Tensor) -> Tensor:
    """Outputs of each pair of those of a tensor (B, d), the later one first: (2, d (d - 1) / 2)."""
    outputs = like.shape[-1]
    return torch.tril_indices(outputs, outputs, -1, device=like.device)
