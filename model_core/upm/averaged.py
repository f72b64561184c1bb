"""A level, a line or an autoregression within each regime, averaged by their evidence.

Each regime follows one of several Bayesian regressions on features `f = (1, u)`: a level (`u = 0`),
a line (`u` is the time since the regime's first label, in tens of observations) or an
autoregression of order one (`u` is the stream's lag: the label before as it is believed). For each

    y ~ N(k' f, sigma^2),    k | sigma^2 ~ N((location, 0), sigma^2 Lambda_0^-1),
    sigma^2 ~ InverseGamma(alpha, beta),

with `Lambda_0 = diag(kappa, slope or autoregression)`; so the predictive is a Student-t of
`2 alpha` degrees of freedom, mean `k' f` and squared scale `(1 + f' Lambda^-1 f) beta / alpha`. A
hypothesis's predictive is the average of all, weighted by their posterior probabilities in the
regime (Bayesian model averaging: Hoeting et al. 1999, *Statistical Science* 14).

The update keeps the mean `k` and the precision `Lambda`, whose sums of squares lose nothing in long
runs; for a share `w` of the label that is learned

    Lambda' = Lambda + w f f',   k' = k + w Lambda'^-1 f e,   e = y - k' f,
    alpha' = alpha + w / 2,      beta' = beta + w e^2 / (2 (1 + w f' Lambda^-1 f)),
    pi' = w pi p(y) / sum(pi p(y)) + (1 - w) pi,

where alpha and pi learn the inlier responsibility of the regime. Outputs share alpha. Of a missing
output nothing is learned: `w` is 0 there, but that beta grows with alpha.

Beside the level, the line and the autoregression whose noise is normal, there are a level and an
autoregression with noise of heavy tails: a Student-t of `TAILS` degrees of freedom at most, as a
normal whose variance is drawn anew for each label. Given the label, the expected precision of that
variance is

    w_k = w min(1, (TAILS + 1) / (TAILS + z^2)),    z = (y - k' f) / predictive scale,

in place of the inlier responsibility `w` (iteratively reweighted least squares: Lange, Little &
Taylor 1989, *JASA* 84): a label far off moves these regressions little, and costs their regime
little evidence.

Then two levels with heavy tails that are longer on one side, see `components.SkewedT`: `z` is in
scales of the label's side, whose precision the label has. Durations, sizes and rates are often so,
and what is usual on their long side would else be taken for a change. A few labels on one side may
be anything: these have the prior weight `ONE_SIDED` beside the others' 1.

That `w` is a part's own, too: given the part, the odds of an inlier are those of its regime times
`p_k(y)` over the average density of all parts, and no more than `MOST_ODDS`. What only heavy tails
explain is an outlier to the rest, which would else take their scale from it.

The lag is the label as it is believed: `v y + (1 - v) m`, with the average `v` of these shares,
by the probabilities of hypotheses and parts given the label, and the forecast `m` of all
hypotheses together. So an outlier is no lever on the next forecast, and a jump
that lasts is followed as soon as it is believed.

Answers are averaged with a random walk, by how each has forecast the stream; see `walk`.

No regression is believed farther than `REACH` scales outside the range of the believed labels: one
that was learned from labels close together may lead anywhere when they jump.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from model_core.components import Blend, SkewedT
from model_core.hazard import BY_STREAM
from model_core.lazy import Tensor, torch
from model_core.maths.conjugate import OUTLIER_SPREAD
from model_core.maths.regression import TAILS
from model_core.tensor_ops import maths
from model_core.upm import walk
from model_core.upm.base import Beside, ClosedForm, Floats, Stats, in_units, of_arrays

_REGRESSION = maths("regression")
LEVEL, LINE, LAG = range(3)  # what a part regresses on beside the constant
KINDS = (LEVEL, LINE, LAG)
UNIT = 10.0  # observations in which the line's slope is measured
NORMAL = len(KINDS)  # parts, the first ones, whose noise is normal
HEAVY = (LEVEL, LAG)  # those after them, with heavy tails
SKEW = 1.75  # of noise that is longer on one side: the sides differ by a factor of 3
ONE_SIDED = 0.1  # prior weight of a part with such noise
REACH = 3.0  # scales that a forecast may lie outside the range of the labels


class AveragedStats(NamedTuple):
    """Regressions in each hypothesis, three or more.

    mean: (B, S, d, P, 2) `k`, of P parts. precision: (B, S, d, P, 3) `Lambda` as its entries 00,
    01, 11. alpha: (B, S, 1). beta, log_weight: (B, S, d, P). origin: (B, S, 1) time of the
    regime's first label, -1 before it.
    """

    mean: Tensor
    precision: Tensor
    alpha: Tensor
    beta: Tensor
    log_weight: Tensor
    origin: Tensor


class PartsReading(NamedTuple):
    """What the parts say of a label; all (B, S, d, P).

    error: of their forecasts. variance: `f' Lambda^-1 f`. log_posterior: log probabilities given
    the label. shares: of it that they learn.
    """

    error: Tensor
    variance: Tensor
    log_posterior: Tensor
    shares: Tensor


@dataclass(frozen=True)
class Averaged(ClosedForm):
    """Level, line or autoregression in each regime, with normal, heavy-tailed or skewed noise.

    Outputs are independent. Features are (B, 1 + 3 d): time, lag, least and greatest forecast.
    alpha: TAILS / 2 at least. All constants are those of a series with location 0 and scale 1.
    `beta / (alpha - 1)`, the expected variance in a regime, is below 1: the scale holds what is
    between regimes, too.
    """

    y_dim: int = 1
    kappa: float = 1.0
    slope: float = 10.0
    autoregression: float = 16.0
    alpha: float = 2.0
    beta: float = 0.7
    hazard: float | tuple[float, ...] = BY_STREAM
    outlier_rate: float = 0.01
    kinds: ClassVar[tuple[int, ...]] = (*KINDS, *HEAVY, LEVEL, LEVEL)
    parts = len(kinds)
    heavy: ClassVar[tuple[bool, ...]] = (False,) * NORMAL + (True,) * (parts - NORMAL)
    skews: ClassVar[tuple[float, ...]] = (*[1.0] * (parts - 2), SKEW, 1 / SKEW)
    kind: str = "averaged"
    partial: bool = True
    believes: bool = True
    needs_scale: bool = True

    def fresh(self, location: Floats, scale: Floats) -> Stats:
        """Prior centred on the location."""
        shape = (len(location), 1, self.y_dim, len(self.kinds))
        variances = np.array([1.0, self.slope, self.autoregression])
        mean = np.zeros((*shape, 2))
        mean[..., 0] = location[:, None, :, None]
        precision = np.zeros((*shape, 3))
        precision[..., 0] = self.kappa
        precision[..., 2] = variances[list(self.kinds)]
        one = np.ones((len(location), 1, 1))
        return of_arrays(
            AveragedStats,
            mean,
            precision,
            self.alpha * one,
            np.broadcast_to(self.beta * scale[:, None, :, None] ** 2, shape),
            np.broadcast_to(self._log_weights(), shape),
            -one,
        )

    def fresh_context(self, location: Floats, scale: Floats) -> Floats:
        """Time, location, scale, least and greatest label and the lag as believed, and the walk.

        (B, 3 + 10 d); from the least label on in the stream's units.
        """
        batch, outputs = location.shape
        nothing = np.zeros((batch, 3 * outputs))
        time = np.zeros((batch, 1))
        return np.hstack((time, location, scale, nothing, walk.begin(batch, outputs)))

    def beside(self, context: Tensor) -> Beside:
        """The random walk."""
        _, location, scale, *_, kept = self._parts(context)
        forecast = walk.forecast(kept)
        df = forecast.df[:, :1]
        loc = location + scale * forecast.loc
        width = scale * forecast.scale
        skew = torch.ones_like(df)

        def of_parts(value: Tensor) -> Tensor:
            return value[:, None, :, None].expand(-1, -1, -1, self.parts)

        alike = SkewedT(of_parts(df), of_parts(loc), of_parts(width), of_parts(skew))
        equal = torch.full_like(alike.loc, -math.log(self.parts))
        return Beside(walk.weight(kept), Blend(alike, equal))

    def judge(
        self, context: Tensor, y: Tensor, labelled: Tensor, lead: Tensor, expected: Tensor
    ) -> Tensor:
        """The walk one label later."""
        *before, kept = self._parts(context)
        value = in_units(y, before[1], before[2])
        return torch.cat((*before, walk.advance(kept, value, labelled, lead)), -1)

    def remember(self, context: Tensor, y: Tensor, labelled: Tensor) -> Tensor:
        """One observation later; y: the label as it is believed."""
        time, location, scale, least, most, lag, kept = self._parts(context)
        there = labelled.unsqueeze(-1) & ~torch.isnan(y)
        value = torch.where(there, in_units(y, location, scale), lag)
        least = torch.minimum(least, value)
        most = torch.maximum(most, value)
        return torch.cat((time + 1, location, scale, least, most, value, kept), -1)

    def encode(self, x: Tensor | None, context: Tensor) -> Tensor:
        """Time, the lag, least and greatest forecast."""
        time, location, scale, least, most, lag, _ = self._parts(context)
        lowest = location + scale * (least - REACH)
        highest = location + scale * (most + REACH)
        return torch.cat((time, lag, lowest, highest), -1)

    def predictive(self, stats: AveragedStats, phi: Tensor | None) -> Blend:
        """Average of the parts' forecasts."""
        location, scale, _ = self._forecast(stats, self.required(phi))
        return Blend(self._components(stats, location, scale), stats.log_weight)

    def outlier(self, prior: AveragedStats, phi: Tensor | None) -> Blend:
        """The level's prior predictive with ten times its squared scale."""
        location, variance = _regression(prior, torch.zeros_like(prior.beta))
        scale = _scale(prior, variance) * OUTLIER_SPREAD**0.5
        return Blend(self._components(prior, location, scale), prior.log_weight)

    def update(
        self, stats: AveragedStats, phi: Tensor | None, y: Tensor, weight: Tensor
    ) -> AveragedStats:
        """Conjugate update of the parts, and of their probabilities."""
        phi = self.required(phi)
        read = self._explained(stats, phi, y, weight[..., None, None])
        return self._learned(stats, phi, y, weight, read)

    def share(self, stats: AveragedStats, phi: Tensor | None, y: Tensor, weight: Tensor) -> Tensor:
        """By the parts that explain the label: (B, S, d)."""
        w = weight[..., None, None]
        read = self._explained(stats, self.required(phi), y, w)
        return (read.log_posterior.exp() * read.shares.clamp(max=1)).sum(-1)

    def _learned(
        self, stats: AveragedStats, phi: Tensor, y: Tensor, weight: Tensor, read: PartsReading
    ) -> AveragedStats:
        u = self._second(stats, phi)
        w = weight[..., None, None]
        error, variance, log_posterior, shares = read
        precision = _REGRESSION.counted(*stats.precision.unbind(-1), u, shares)
        mean = _REGRESSION.moved(*stats.mean.unbind(-1), *precision, u, shares * error)
        fresh = (stats.origin < 0) & (weight.unsqueeze(-1) > 0)
        grown = _REGRESSION.scatter(shares, error, variance)
        # Outputs share alpha; of a missing one the expected variance stays as it is.
        kept = 0.5 * w * stats.beta / stats.alpha.unsqueeze(-1)
        return AveragedStats(
            torch.stack(mean, -1),
            torch.stack(precision, -1),
            stats.alpha + 0.5 * weight.unsqueeze(-1),
            stats.beta + torch.where(_missing(y), kept, grown),
            torch.logaddexp(torch.log(w) + log_posterior, torch.log1p(-w) + stats.log_weight),
            torch.where(fresh, phi[:, None, :1], stats.origin),
        )

    def _forecast(self, stats: AveragedStats, phi: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Location and scale of the predictives, and `f' Lambda^-1 f`; all (B, S, d, parts)."""
        location, variance = _regression(stats, self._second(stats, phi))
        return self._bounded(location, phi), _scale(stats, variance), variance

    def _explained(self, stats: AveragedStats, phi: Tensor, y: Tensor, w: Tensor) -> PartsReading:
        """What the parts say of labels; w: (B, S, 1, 1) inlier responsibility.

        A missing output tells nothing, and nothing is learned from it.
        """
        location, scale, variance = self._forecast(stats, phi)
        missing = _missing(y)
        value = torch.where(missing, location, y[:, None, :, None])
        density = self._components(stats, location, scale).log_density(value)
        log_posterior = torch.log_softmax(stats.log_weight + density.masked_fill(missing, 0.0), -1)
        error = value - location
        shares = self._shares(w, log_posterior - stats.log_weight, error / scale)
        return PartsReading(error, variance, log_posterior, torch.where(missing, 0.0, shares))

    def _bounded(self, location: Tensor, phi: Tensor) -> Tensor:
        """Locations that are believed; phi: (B, n)."""
        least, most = phi[:, None, 1 + self.y_dim :, None].chunk(2, 2)
        return torch.maximum(least, torch.minimum(most, location))

    def _shares(self, w: Tensor, lead: Tensor, z: Tensor) -> Tensor:
        """Of a label, of which each part learns.

        w: (B, S, 1, 1) inlier responsibility. lead: log density over the average of all parts. z:
        error in scales.
        """
        skew = z.new_tensor(self.skews)
        side = torch.where(z < 0, skew, 1 / skew).square()
        heavy = _REGRESSION.precision(z.square() * side, 1.0) * side
        tails = torch.tensor(self.heavy, device=z.device)
        share: Tensor = _REGRESSION.share_of(w, lead)
        return share * torch.where(tails, heavy, 1.0)

    def _log_weights(self) -> list[float]:
        """Log prior probabilities of the parts."""
        skews = self.skews[: len(self.kinds)]
        chances = [1.0 if skew == 1 else ONE_SIDED for skew in skews]
        return [math.log(weight / sum(chances)) for weight in chances]

    def _components(self, stats: AveragedStats, location: Tensor, scale: Tensor) -> SkewedT:
        """Forecasts of the parts at locations and scales (B, S, d, parts)."""
        tails = torch.tensor(self.heavy, device=location.device)
        df = self._freedom(stats)
        df = torch.where(tails, df.clamp(max=TAILS), df)
        return SkewedT(df, location, scale, df.new_tensor(self.skews).expand_as(df))

    def _freedom(self, stats: AveragedStats) -> Tensor:
        """Degrees of freedom of the parts with normal noise, (B, S, 1 or d, 1 or parts)."""
        return (2 * stats.alpha).unsqueeze(-1)

    def _second(self, stats: AveragedStats, phi: Tensor) -> Tensor:
        """The features besides the constant (B, S, d, parts)."""
        time = phi[:, None, :1]
        last = phi[:, None, 1 : 1 + self.y_dim]
        age = torch.where(stats.origin < 0, 0.0, (time - stats.origin) / UNIT)
        full = stats.beta[..., 0]
        regressors = torch.zeros_like(full), age.expand_as(full), last.expand_as(full)
        return torch.stack([regressors[kind] for kind in self.kinds], -1)

    def _parts(self, context: Tensor) -> tuple[Tensor, ...]:
        d = self.y_dim
        return torch.tensor_split(context, [1, *(1 + k * d for k in range(1, 6))], -1)


def _missing(y: Tensor) -> Tensor:
    """Which outputs (B, 1, d, 1) of labels (B, d) are missing."""
    return torch.isnan(y)[:, None, :, None]


def _regression(stats: AveragedStats, u: Tensor) -> tuple[Tensor, Tensor]:
    """`k' f` and `f' Lambda^-1 f`; both (B, S, d, parts), as `u`."""
    location, variance = _REGRESSION.forecast(
        *stats.mean.unbind(-1), *stats.precision.unbind(-1), u
    )
    return location, variance


def _scale(stats: AveragedStats, variance: Tensor) -> Tensor:
    square: Tensor = _REGRESSION.squared_scale(stats.alpha.unsqueeze(-1), stats.beta, variance)
    return square.sqrt()
