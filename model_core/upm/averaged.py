"""The default model: a level, an autoregression or a line in each regime, with noise of outliers.

Its formulas and why they are so: docs/mathematics.md, first section. Each output of each regime
follows one of six experts `j` (`EXPERTS`), regressions `k' f` on features `f` with the precision
`Lambda` of `k`, in those of the noise, whose scale is `c sigma_j^2` with `c` one of `SCALES`. What
an expert makes of a label and learns of it is in `maths.regression`; shares `omega` of the scales,
the lag and the trend are learned by the stream, in its context.

The mean and the precision are kept: their sums of squares lose nothing in long runs. Answers are
averaged with a random walk, which has no vote on changes; see `walk`.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from model_core.components import Blend, SkewedT
from model_core.lazy import Tensor, torch
from model_core.maths.regression import SCALES
from model_core.tensor_ops import maths
from model_core.transfer import constant
from model_core.upm import walk
from model_core.upm.base import (
    Beside,
    ClosedForm,
    Floats,
    Reading,
    Stats,
    log_gamma,
    mixed,
    of_arrays,
    spread_out,
    tree_map,
    widened,
)

_CONTEXT = maths("context")
_REGRESSION = maths("regression")
_SPECIAL = maths("special")
LEVEL, LAG, LINE, TREND = range(4)  # what an expert regresses on beside the constant
SKEW = 2.2  # of noise that is longer on one side: the sides differ by a factor of 5
UNIT = 10.0  # observations in which the line's slope is measured
SHARES = (0.94, 0.05, 0.01)  # of the scales of the noise, `omega_0`
SHARES_COUNT = 20.0  # labels that these stand for
LEAST_NOISE = 1e-12  # of the prior's, that rounding may leave of the noise of a stored regime


class Expert(NamedTuple):
    """What it regresses on, skew of its noise, prior weight."""

    feature: int
    skew: float
    weight: float


# A line fits what is new as well as a level does, a few labels on one side may be anything, and the
# trend soon is where a change led to. Levels first: see `AveragedStats`.
EXPERTS = (
    Expert(LEVEL, 1.0, 1.0),
    Expert(LEVEL, SKEW, 0.1),
    Expert(LEVEL, 1 / SKEW, 0.1),
    Expert(LAG, 1.0, 1.0),
    Expert(LINE, 1.0, 0.1),
    Expert(TREND, 1.0, 0.003),
)
LEVELS = sum(expert.feature == LEVEL for expert in EXPERTS)
SLOPED = EXPERTS[LEVELS:]  # with a second feature


class AveragedStats(NamedTuple):
    """Of J experts in each hypothesis, of which the last F have a second feature.

    level: (B, S, d, J), slope: (B, S, d, F), `k`. precision: (B, S, d, J), cross, slope_precision:
    (B, S, d, F), the entries 00, 01 and 11 of `Lambda`. alpha: (B, S, 1). beta, log_weight: (B, S,
    d, J). origin: (B, S, 1) time of the regime's first label, -1 before it.
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


class ExpertsReading(NamedTuple):
    """What the experts make of a label; (B, S, d, J) but for the last.

    error: of their forecasts. variance: `f' Lambda^-1 f`. log_posterior: log probabilities given
    the label. responsibilities: (B, S, d, J, 3) of the scales of the noise, 0 of missing outputs.
    """

    error: Tensor
    variance: Tensor
    log_posterior: Tensor
    responsibilities: Tensor


class Learned(NamedTuple):
    """What labels add to a prior, so that those of two regimes are a sum; arrays (1, 1, d, J, ...).

    precision: as of the statistics. moved: `Lambda` times the mean's distance from the prior's.
    squares: of errors from the prior's mean, halved. half_count: (1, 1, 1) half the labels.
    """

    precision: Floats
    moved: Floats
    squares: Floats
    half_count: Floats


@dataclass(frozen=True)
class Averaged(ClosedForm):
    """A level, an autoregression or a line in each regime, averaged by their evidence.

    Outputs are independent. Features are (B, 1 + 7 d): time, lag, least and greatest forecast,
    shares of the scales (3 of each output), trend. All constants are those of a series with
    location 0 and scale 1. `beta / (alpha - 1)`, the expected variance in a regime, is below 1: the
    scale holds what is between regimes, too.
    """

    y_dim: int = 1
    kappa: float = 0.2
    slope: float = 100.0
    autoregression: float = 4.0
    smoothness: float = 100.0
    alpha: float = 4.0
    beta: float = 2.1
    outlier_rate: float = field(default=0.001, kw_only=True)
    skews: ClassVar[tuple[float, ...]] = tuple(expert.skew for expert in EXPERTS)
    parts = len(skews) * len(SCALES)
    kind = "averaged"
    partial = True
    believes = True

    def fresh(self, location: Floats, scale: Floats) -> tuple[Stats, Floats]:
        """Prior centred on the location; see `_begun` for the context."""
        first = (len(location), 1, self.y_dim)
        every = np.ones((*first, len(EXPERTS)))
        sloped = np.ones((*first, len(SLOPED)))
        precisions = {LAG: self.autoregression, LINE: self.slope, TREND: self.smoothness}
        follows = [expert.feature == TREND for expert in SLOPED]
        weights = np.array([expert.weight for expert in EXPERTS])
        one = np.ones((len(location), 1, 1))
        stats = of_arrays(
            AveragedStats,
            location[:, None, :, None] * every,
            np.where(follows, scale[:, None, :, None], 0.0) * sloped,
            self.kappa * every,
            0.0 * sloped,
            np.array([precisions[expert.feature] for expert in SLOPED]) * sloped,
            self.alpha * one,
            self.beta * scale[:, None, :, None] ** 2 * every,
            np.log(weights / weights.sum()) * every,
            -one,
        )
        return stats, self._begun(location, scale)

    def _begun(self, location: Floats, scale: Floats) -> Floats:
        """Time, location, scale, least and greatest lag and the latest, labels by scale of noise.

        (B, 3 + 15 d); lags are in the stream's units. The labels (3 of each output) are those that
        the prior's shares stand for, and the responsibilities for those after them. Then level and
        slope of the trend, and the walk.
        """
        batch, outputs = location.shape
        nothing = np.zeros((batch, 3 * outputs))
        trend = np.zeros((batch, 2 * outputs))
        counts = np.tile(SHARES_COUNT * np.array(SHARES), (batch, outputs))
        time = np.zeros((batch, 1))
        begun = walk.begin(batch, outputs)
        return np.hstack((time, location, scale, nothing, counts, trend, begun))

    def beside(self, context: Tensor) -> Beside:
        """The random walk."""
        _, location, scale, *_, kept = self._parts(context)
        forecast = walk.forecast(kept)
        df = forecast.df[:, :1]
        loc = location + scale * forecast.loc
        width = scale * forecast.scale

        def of_parts(value: Tensor) -> Tensor:
            return value[:, None, :, None].expand(-1, 1, self.y_dim, self.parts)

        alike = SkewedT(of_parts(df), of_parts(loc), of_parts(width), of_parts(torch.ones_like(df)))
        equal = torch.full_like(alike.loc, -math.log(self.parts))
        return Beside(walk.weight(kept), Blend(alike, equal))

    def read(self, stats: AveragedStats, phi: Tensor | None, y: Tensor, weight: Tensor) -> Tensor:
        """Responsibilities of the scales for each output, whatever the expert: (B, S, 3 d)."""
        reading = self._explained(stats, self.required(phi), y)
        chances = reading.log_posterior.exp().unsqueeze(-1)
        average = (chances * reading.responsibilities).sum(-2)
        return (weight[..., None, None] * average).flatten(2)

    def remember(
        self, context: Tensor, y: Tensor, labelled: Tensor, reading: Reading | None = None
    ) -> Tensor:
        """Lag, shares, trend and walk after a label."""
        assert reading is not None
        time, location, scale, least, most, lag, counts, *trend, kept = self._parts(context)
        there = labelled.unsqueeze(-1) & ~torch.isnan(y)
        shares = reading.average.reshape(-1, self.y_dim, len(SCALES))
        outlying = reading.outlying
        not_wild = shares[..., :-1].sum(-1)
        believed = _REGRESSION.believed(reading.expected, y, not_wild, outlying.unsqueeze(-1))
        value = torch.where(there, _CONTEXT.in_units(believed, location, scale), lag)
        least = torch.minimum(least, value)
        most = torch.maximum(most, value)
        learned = torch.where(there.unsqueeze(-1), shares, 0.0).flatten(1)
        followed = _REGRESSION.followed(*trend, value, time)
        level, slope = (torch.where(there, *pair) for pair in zip(followed, trend, strict=True))
        scaled = _CONTEXT.in_units(y, location, scale)
        moved = walk.advance(kept, scaled, labelled, outlying, reading.lead)
        return torch.cat(
            (time + 1, location, scale, least, most, value, counts + learned, level, slope, moved),
            -1,
        )

    def encode(self, x: Tensor | None, context: Tensor) -> Tensor:
        """Time, the lag, least and greatest forecast, shares, the trend."""
        time, location, scale, least, most, lag, counts, level, slope, _ = self._parts(context)
        lowest, highest = _REGRESSION.bounds(location, scale, least, most)
        by_output = counts.reshape(-1, self.y_dim, len(SCALES))
        shares = by_output / by_output.sum(-1, keepdim=True)
        return torch.cat((time, lag, lowest, highest, shares.flatten(1), self.trend(context)), -1)

    def trend(self, context: Tensor) -> Tensor:
        """The trend's forecast (B, d), in the stream's units."""
        *_, least, most, _, _, level, slope, _ = self._parts(context)
        trend: Tensor = _REGRESSION.trend(least, most, level, slope)
        return trend

    def predictive(self, stats: AveragedStats, phi: Tensor | None) -> Blend:
        """Average of the experts' forecasts, one part for each scale of the noise."""
        phi = self.required(phi)
        return self._mixture(stats, phi, *self._forecast(stats, phi))

    def outlier(self, prior: AveragedStats, phi: Tensor | None) -> Blend:
        """The level's prior predictive with ten times its squared scale."""
        location, variance = _regression(prior, torch.zeros_like(prior.slope))
        return widened(self._mixture(prior, self.required(phi), location, variance))

    def update(
        self, stats: AveragedStats, phi: Tensor | None, y: Tensor, weight: Tensor
    ) -> AveragedStats:
        """Conjugate update of the experts, and of their probabilities."""
        phi = self.required(phi)
        return self._learned(stats, phi, y, weight, self._explained(stats, phi, y))

    def tempered(self, stats: Stats, prior: Stats, most: float) -> Stats:
        """All but what the trend's expert knows of its coefficients: the trend is another by then.

        A line begins where it began, with the slope it had.
        """
        learned = _learned_from(stats, prior)
        follows = np.array([expert.feature == TREND for expert in EXPERTS])[:, None]
        learned = learned._replace(
            precision=np.where(follows, 0.0, learned.precision),
            moved=np.where(follows, 0.0, learned.moved),
            squares=np.where(follows[:, 0], stats.beta - prior.beta, learned.squares),
        )
        share = min(1.0, 0.5 * most / max(float(learned.half_count.max()), 0.5 * most))
        log_weight = prior.log_weight + share * (stats.log_weight - prior.log_weight)
        return _after(tree_map(lambda part: share * part, learned), prior, normalised(log_weight))

    def pooled(
        self, one: Stats, other: Stats, prior: Stats, context: Floats
    ) -> tuple[float, Stats]:
        """The experts averaged, output by output."""
        learned = tree_map(operator.add, _learned_from(one, prior), _learned_from(other, prior))
        both = _after(learned, prior, prior.log_weight)
        factor = _log_evidence(both) + _log_evidence(prior)
        factor = factor - _log_evidence(one) - _log_evidence(other)
        log_weight = one.log_weight + other.log_weight - prior.log_weight + factor
        return float(np.logaddexp.reduce(log_weight, -1).sum()), both._replace(
            log_weight=normalised(log_weight)
        )

    def spread(self, stored: Stats, prior: Stats) -> Stats:
        """By the level's distances from the location; but for the trend's, all experts alike."""
        noise = stored.beta[..., 0] / stored.alpha
        distances = (stored.level[..., 0] - prior.level[..., 0]) ** 2 / noise
        kappa = spread_out(self.kappa, distances)
        follows = np.array([expert.feature == TREND for expert in EXPERTS])
        wider = np.minimum(prior.precision, kappa[..., None])
        return prior._replace(precision=np.where(follows, prior.precision, wider))

    def _learned(
        self,
        stats: AveragedStats,
        phi: Tensor,
        y: Tensor,
        weight: Tensor,
        reading: ExpertsReading,
    ) -> AveragedStats:
        u = self._second(stats, phi)
        w = weight[..., None, None]
        error = reading.error
        share = self._shares(reading, weight)
        precision = stats.precision + share
        cross, slope_precision = _REGRESSION.counted(
            stats.cross, stats.slope_precision, u, share[..., LEVELS:]
        )
        gain, slope_gain = _gains(precision, cross, slope_precision, u)
        moved = share * error
        fresh = (stats.origin < 0) & (weight.unsqueeze(-1) > 0)
        grown = _REGRESSION.scatter(share, error, reading.variance)
        # Outputs share alpha; of a missing one the expected variance stays as it is.
        kept = 0.5 * w * stats.beta / stats.alpha.unsqueeze(-1)
        return AveragedStats(
            stats.level + moved * gain,
            stats.slope + moved[..., LEVELS:] * slope_gain,
            precision,
            cross,
            slope_precision,
            stats.alpha + 0.5 * weight.unsqueeze(-1),
            stats.beta + torch.where(_missing(y), kept, grown),
            mixed(w, reading.log_posterior, stats.log_weight),
            torch.where(fresh, phi[:, None, :1], stats.origin),
        )

    def _forecast(self, stats: AveragedStats, phi: Tensor) -> tuple[Tensor, Tensor]:
        """Locations of the predictives and `f' Lambda^-1 f`, both (B, S, d, J)."""
        location, variance = _regression(stats, self._second(stats, phi))
        return self._bounded(location, phi), variance

    def _mixture(
        self, stats: AveragedStats, phi: Tensor, location: Tensor, variance: Tensor
    ) -> Blend:
        """Predictives by expert, and for each by scale of the noise; arguments by `_forecast`."""
        scales = constant(SCALES, location)
        noise = self._noise(stats, phi)
        square = _REGRESSION.squared_scale(noise.unsqueeze(-1), variance.unsqueeze(-1), scales)
        log_weight = stats.log_weight.unsqueeze(-1) + self._shares_of(phi).log()[:, None, :, None]
        skew = constant(self.skews, location)
        df, loc, skew = (
            value.expand_as(location).repeat_interleave(len(SCALES), -1)
            for value in (self._freedom(stats), location, skew)
        )
        return Blend(SkewedT(df, loc, square.flatten(-2).sqrt(), skew), log_weight.flatten(-2))

    def _explained(self, stats: AveragedStats, phi: Tensor, y: Tensor) -> ExpertsReading:
        """What the experts make of labels; a missing output tells nothing."""
        location, variance = self._forecast(stats, phi)
        missing = _missing(y)
        error = torch.where(missing, 0.0, y[:, None, :, None] - location)
        half = 0.5 * self._freedom(stats)
        skew = constant(self.skews, error)
        noise = self._noise(stats, phi)
        norm, factor, inverse = _SPECIAL.student_t_norm(half)
        density, *responsibilities = _REGRESSION.explain(
            *_REGRESSION.leads(error, skew, noise, variance, half, inverse),
            skew,
            noise,
            variance,
            norm,
            factor,
            *self._shares_of(phi)[:, None, :, None].unbind(-1),
        )
        evidence = stats.log_weight + density.masked_fill(missing, 0.0)
        return ExpertsReading(
            error,
            variance,
            torch.log_softmax(evidence, -1),
            torch.stack(responsibilities, -1).masked_fill(missing.unsqueeze(-1), 0.0),
        )

    def _shares(self, reading: ExpertsReading, weight: Tensor) -> Tensor:
        """Of a label, of which an expert learns (B, S, d, J); weight: (B, S)."""
        side = _REGRESSION.side(reading.error, constant(self.skews, reading.error))
        precision = _REGRESSION.precision(*reading.responsibilities.unbind(-1))
        share: Tensor = weight[..., None, None] * side * precision
        return share

    def _bounded(self, location: Tensor, phi: Tensor) -> Tensor:
        """Locations (B, S, d, J) that are believed; phi: (B, n)."""
        d = self.y_dim
        least, most = phi[:, None, 1 + d : 1 + 3 * d, None].chunk(2, 2)
        bounded: Tensor = _CONTEXT.bounded(location, least, most)
        return bounded

    def _shares_of(self, phi: Tensor) -> Tensor:
        """Shares (B, d, 3) of the scales of the noise."""
        first = 1 + 3 * self.y_dim
        shares = phi[:, first : first + self.y_dim * len(SCALES)]
        return shares.reshape(-1, self.y_dim, len(SCALES))

    def _freedom(self, stats: AveragedStats) -> Tensor:
        """Degrees of freedom (B, S, 1 or d, 1 or J)."""
        return (2 * stats.alpha).unsqueeze(-1)

    def _noise(self, stats: AveragedStats, phi: Tensor) -> Tensor:
        """Squared scale of the noise (B, S, d, J)."""
        return stats.beta / stats.alpha.unsqueeze(-1)

    def _second(self, stats: AveragedStats, phi: Tensor) -> Tensor:
        """The second features (B, S, d, F)."""
        time = phi[:, None, :1]
        d = self.y_dim
        lag = phi[:, None, 1 : 1 + d]
        trend = phi[:, None, 1 + 6 * d : 1 + 7 * d]
        age = _CONTEXT.age_of(time, stats.origin, UNIT)
        full = stats.beta[..., 0]
        features = {LAG: lag, LINE: age, TREND: trend}
        return torch.stack([features[expert.feature].expand_as(full) for expert in SLOPED], -1)

    def _parts(self, context: Tensor) -> tuple[Tensor, ...]:
        d = self.y_dim
        return torch.tensor_split(context, [1, *(1 + k * d for k in (1, 2, 3, 4, 5, 8, 9, 10))], -1)


def _learned_from(stats: Stats, prior: Stats) -> Learned:
    """What labels have added; arrays."""
    mean, precision = _whole(stats)
    before, least = _whole(prior)
    error = mean - before
    moved = _times(precision, error)
    squares = stats.beta - prior.beta + 0.5 * (moved * error).sum(-1)
    return Learned(precision - least, moved, squares, stats.alpha - prior.alpha)


def _after(learned: Learned, prior: Stats, log_weight: Any) -> Stats:
    """Statistics of a regime to come that begins with what labels have added."""
    before, least = _whole(prior)
    precision = least + learned.precision
    a, b, c = np.moveaxis(precision, -1, 0)
    covariance = np.stack((c, -b, a), -1) / (a * c - b * b)[..., None]
    error = _times(covariance, learned.moved)
    beta = prior.beta + learned.squares - 0.5 * (learned.moved * error).sum(-1)
    level, slope = np.moveaxis(before + error, -1, 0)
    return AveragedStats(
        level,
        slope[..., LEVELS:],
        a,
        b[..., LEVELS:],
        c[..., LEVELS:],
        prior.alpha + learned.half_count,
        np.maximum(beta, LEAST_NOISE * prior.beta),
        log_weight,
        -np.ones_like(prior.origin),
    )


def _whole(stats: Stats) -> tuple[Floats, Floats]:
    """Mean (1, 1, d, J, 2) and precision (1, 1, d, J, 3), those of levels with a slope of 0."""

    def filled(part: Floats, value: float) -> Floats:
        levels = np.full_like(stats.precision[..., :LEVELS], value)
        return np.concatenate((levels, part), -1)

    mean = np.stack((stats.level, filled(stats.slope, 0.0)), -1)
    entries = (stats.precision, filled(stats.cross, 0.0), filled(stats.slope_precision, 1.0))
    return mean, np.stack(entries, -1)


def _times(matrix: Floats, vector: Floats) -> Floats:
    """Product of symmetric matrices (..., 3), entries 00, 01, 11, and vectors (..., 2)."""
    a, b, c = np.moveaxis(matrix, -1, 0)
    level, slope = np.moveaxis(vector, -1, 0)
    return np.stack((a * level + b * slope, b * level + c * slope), -1)


def _log_evidence(stats: Stats) -> Floats:
    """Log normaliser (1, 1, d, J) of the experts' posteriors, but for what is linear in labels."""
    a, b, c = np.moveaxis(_whole(stats)[1], -1, 0)
    alpha = stats.alpha[..., None]
    factor: Floats = -0.5 * np.log(a * c - b * b) + log_gamma(alpha) - alpha * np.log(stats.beta)
    return factor


def normalised(log_weight: Floats) -> Floats:
    """Log weights whose exponentials sum to one."""
    total: Floats = np.logaddexp.reduce(log_weight, -1, keepdims=True)
    return log_weight - total


def _missing(y: Tensor) -> Tensor:
    """Which outputs (B, 1, d, 1) of labels (B, d) are missing."""
    return torch.isnan(y)[:, None, :, None]


def _regression(stats: AveragedStats, u: Tensor) -> tuple[Tensor, Tensor]:
    """`k' f` and `f' Lambda^-1 f`, both (B, S, d, J); u: second features (B, S, d, F)."""
    levels, sloped = stats.level.tensor_split([LEVELS], -1)
    known, precision = stats.precision.tensor_split([LEVELS], -1)
    location, variance = _REGRESSION.forecast(
        sloped, stats.slope, precision, stats.cross, stats.slope_precision, u
    )
    return torch.cat((levels, location), -1), torch.cat((1 / known, variance), -1)


def _gains(
    precision: Tensor, cross: Tensor, slope_precision: Tensor, u: Tensor
) -> tuple[Tensor, Tensor]:
    """`Lambda^-1 f`: of levels (B, S, d, J), and of slopes, as u (B, S, d, F)."""
    known, sloped = precision.tensor_split([LEVELS], -1)
    first, second = _REGRESSION.solve(sloped, cross, slope_precision, u)
    return torch.cat((1 / known, first), -1), second
