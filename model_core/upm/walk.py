"""A random walk with momentum, which forecasts are averaged with; it has no vote on changes.

The label to come is expected at `l + phi c`: the last label `l` and the change `c` that led to it,
times the autoregression `phi = b / a` of changes, with noise of a Student-t of `TAILS` degrees of
freedom and squared scale `q / n`. They are learned and forgotten as `maths.walk.learned` has it, by
iteratively reweighted least squares; the change that leads to an outlier does not go on, and no
forecast runs away. The walk's weight `v` in the answer is what Bayes' rule makes of it beside the
hypotheses' mixture, with a fixed share (Herbster & Warmuth 1998, *Machine Learning* 32).

Why not a part of each regime: it explains any step and any drift, so it would hide their changes.
The state of a stream is (B, 2 + 5 d), in its units: `v`, `n`; `l`, `c`, `q`, `a`, `b`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from model_core.components import StudentT
from model_core.lazy import Tensor, torch
from model_core.maths.walk import FORGET, TAILS
from model_core.tensor_ops import maths

_WALK = maths("walk")
COLUMNS = 5  # for each output


def begin(streams: int, outputs: int) -> NDArray[np.float64]:
    """Before the first label, as if two errors of one scale were seen."""
    start = [0.5, 2.0, *np.repeat([0.0, 0.0, 2.0, 1.0, 0.0], outputs)]
    return np.tile(start, (streams, 1))


def weight(kept: Tensor) -> Tensor:
    """`v` (B, 1)."""
    return kept[:, :1]


def forecast(kept: Tensor) -> StudentT:
    """Of the label to come, (B, d) in the stream's units."""
    _, count, last, change, square, a, b = _parts(kept)
    loc: Tensor = _WALK.location(last, change, a, b)
    return StudentT(torch.full_like(loc, TAILS), loc, (square / count).sqrt())


def advance(kept: Tensor, y: Tensor, labelled: Tensor, outlying: Tensor, lead: Tensor) -> Tensor:
    """One observation later; y: (B, d) in the stream's units, anything where not `labelled` (B,).

    After a missing label there is no change that could go on, nor after one that is `outlying`
    (B,), of which nothing is learned but where it is; of a missing output, nan, nothing else is.
    lead: (B,) log density of the label by the walk less that by the hypotheses.
    """
    share, count, last, change, square, a, b = _parts(kept)
    missing = torch.isnan(y)
    y = torch.where(torch.isnan(y), last, y)
    counted = FORGET * count + 1
    latest, moved, *new = _WALK.learned(last, change, square, a, b, count, y)
    # The labels are counted for all outputs; without one its scale stays as it is.
    old = square / count * counted, a, b
    sums = [torch.where(missing, a, b) for a, b in zip(old, new, strict=True)]
    weight_ = _WALK.reweighed(share, lead.unsqueeze(-1))
    learned = torch.cat((weight_, counted, latest, moved, *sums), -1)
    there = torch.where(labelled.unsqueeze(-1), y, last)
    unlearned = torch.cat((share, count, there, torch.zeros_like(change), square, a, b), -1)
    return torch.where((labelled & ~outlying).unsqueeze(-1), learned, unlearned)


def _parts(kept: Tensor) -> tuple[Tensor, ...]:
    outputs = (kept.shape[-1] - 2) // COLUMNS
    return torch.split(kept, [1, 1, *[outputs] * COLUMNS], -1)
