"""The averaged model with noise of heavy tails among what it averages, and bounded forecasts.

Beside the level, the line and the autoregression of `averaged`, whose noise is normal, a level and
an autoregression with noise of heavy tails: a Student-t of `TAILS` degrees of freedom at most, as a
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
from typing import ClassVar

import torch
from torch import Tensor

from model_core.components import Blend, SkewedT
from model_core.upm import averaged, walk
from model_core.upm.averaged import Averaged, AveragedStats
from model_core.upm.base import Beside, in_units

NORMAL = len(averaged.KINDS)  # parts, the first ones, whose noise is normal
HEAVY = (averaged.LEVEL, averaged.LAG)  # those after them, with heavy tails
TAILS = 3.0  # degrees of freedom, at most, of noise of heavy tails
MOST_ODDS = 1e4  # at most, of a label being no outlier of a part
SKEW = 1.75  # of noise that is longer on one side: the sides differ by a factor of 3
ONE_SIDED = 0.1  # prior weight of a part with such noise
FAR_AHEAD = 50.0  # of a part's log density before the others'; more changes nothing
REACH = 3.0  # scales that a forecast may lie outside the range of the labels


@dataclass(frozen=True)
class RobustAveraged(Averaged):
    """Level, line or autoregression in each regime, with normal, heavy-tailed or skewed noise.

    Features are (B, 1 + 3 d): time, lag, least and greatest forecast. alpha: TAILS / 2 at least.
    """

    kinds = (*averaged.KINDS, *HEAVY, averaged.LEVEL, averaged.LEVEL)
    parts = len(kinds)
    heavy: ClassVar[tuple[bool, ...]] = (False,) * NORMAL + (True,) * (parts - NORMAL)
    skews: ClassVar[tuple[float, ...]] = (*[1.0] * (parts - 2), SKEW, 1 / SKEW)
    kind: str = "robust-averaged"
    partial: bool = True
    believes: bool = True

    def share(self, stats: AveragedStats, phi: Tensor | None, y: Tensor, weight: Tensor) -> Tensor:
        """By the parts that explain the label: (B, S, d)."""
        w = weight[..., None, None]
        read = self._explained(stats, self.required(phi), y, w)
        return (read.told.exp() * read.shares.clamp(max=1)).sum(-1)

    def context(self, location: Tensor, scale: Tensor) -> Tensor:
        """Time, location, scale, least and greatest label and the lag as believed, and the walk.

        (B, 3 + 10 d); from the least label on in the stream's units.
        """
        batch, outputs = location.shape
        rest = location.new_zeros(batch, 3 * outputs)
        time = location.new_zeros(batch, 1)
        return torch.cat((time, location, scale, rest, walk.begin(location)), -1)

    def beside(self, context: Tensor) -> Beside:
        """The random walk."""
        _, location, scale, *_, kept = self._parts(context)
        found = walk.forecast(kept)
        df, loc, width = found.df[:, :1], location + scale * found.loc, scale * found.scale
        one = torch.ones_like(df)
        each = [t[:, None, :, None].expand(-1, -1, -1, self.parts) for t in (df, loc, width, one)]
        equal = torch.full_like(each[1], -math.log(self.parts))
        return Beside(walk.weight(kept), Blend(SkewedT(*each), equal))

    def judge(
        self, context: Tensor, y: Tensor, labelled: Tensor, lead: Tensor, expected: Tensor
    ) -> Tensor:
        """The walk one label later."""
        *rest, kept = self._parts(context)
        value = in_units(y, rest[1], rest[2])
        return torch.cat((*rest, walk.advance(kept, value, labelled, lead)), -1)

    def remember(self, context: Tensor, y: Tensor, labelled: Tensor) -> Tensor:
        """One observation later; y: the label as it is believed."""
        time, location, scale, least, most, lag, kept = self._parts(context)
        there = labelled.unsqueeze(-1) & ~torch.isnan(y)
        value = torch.where(there, in_units(y, location, scale), lag)
        range_ = torch.minimum(least, value), torch.maximum(most, value)
        return torch.cat((time + 1, location, scale, *range_, value, kept), -1)

    def encode(self, x: Tensor | None, context: Tensor) -> Tensor:
        """Time, the lag, least and greatest forecast."""
        time, location, scale, least, most, lag, _ = self._parts(context)
        bounds = location + scale * (least - REACH), location + scale * (most + REACH)
        return torch.cat((time, lag, *bounds), -1)

    def _bounded(self, found: Tensor, phi: Tensor) -> Tensor:
        least, most = phi[:, None, 1 + self.y_dim :, None].chunk(2, 2)
        return torch.maximum(least, torch.minimum(most, found))

    def _shares(self, w: Tensor, lead: Tensor, z: Tensor) -> Tensor:
        odds = (w / (1 - w)).clamp(max=MOST_ODDS) * lead.clamp(max=FAR_AHEAD).exp()
        skew = z.new_tensor(self.skews)
        side = torch.where(z < 0, skew, 1 / skew).square()
        heavy = ((TAILS + 1) / (TAILS + z.square() * side)).clamp(max=1) * side
        tails = torch.tensor(self.heavy, device=z.device)
        return odds / (1 + odds) * torch.where(tails, heavy, 1.0)

    def _log_weights(self) -> list[float]:
        skews = self.skews[: len(self.kinds)]
        each = [1.0 if skew == 1 else ONE_SIDED for skew in skews]
        return [math.log(weight / sum(each)) for weight in each]

    def _components(self, stats: AveragedStats, found: Tensor, scale: Tensor) -> SkewedT:
        tails = torch.tensor(self.heavy, device=found.device)
        df = self._freedom(stats)
        df = torch.where(tails, df.clamp(max=TAILS), df)
        return SkewedT(df, found, scale, df.new_tensor(self.skews).expand_as(df))

    def _freedom(self, stats: AveragedStats) -> Tensor:
        """Degrees of freedom of the parts with normal noise, (B, S, 1 or d, 1 or parts)."""
        return (2 * stats.alpha).unsqueeze(-1)

    def _parts(self, context: Tensor) -> tuple[Tensor, ...]:
        d = self.y_dim
        return torch.tensor_split(context, [1, *(1 + k * d for k in range(1, 6))], -1)
