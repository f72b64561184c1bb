"""Forecasts of a series whose filter runs: predictives of the labels to come, and paths of them."""

from __future__ import annotations

from collections.abc import Sequence

from model_core import correction, horizon, summary
from model_core.filter import FilterState, Inputs, Prior
from model_core.lazy import Tensor, torch
from model_core.predictive import Mixture
from model_core.stream import columns
from model_core.stream.columns import Floats
from model_core.stream.events import NOTHING_WATCHED
from model_core.stream.slab import Slab, SlabMemory
from model_core.summary import Summary
from model_core.transfer import to_device

MEDIAN = 0.5
PATHS = 256  # drawn where labels feed back
MAX_HORIZON = 10_000  # labels to come
MAX_DRAWN = 10_000_000  # numbers of paths


def summarised(
    slab: Slab, row: int, mixture: Mixture, levels: Sequence[float]
) -> tuple[Summary, Floats]:
    """Summaries of mixtures of labels to come of a series, corrected by its errors so far.

    levels: of quantiles, rising. Also the corrections (B, d, 3), see `correction`.
    """
    count = len(mixture.log_weight)
    nothing = torch.full((count, mixture.outputs), torch.nan, dtype=torch.float64)
    predicted = summary.of_mixture(mixture, nothing, levels)
    if MEDIAN in levels:  # corrected in place
        return predicted, slab.corrected([row] * count, predicted, levels)
    medians = summary.of_mixture(mixture, nothing, [MEDIAN])
    applied = slab.corrected([row] * count, medians, [MEDIAN])
    correction.apply(predicted.numbers, applied)
    return predicted, applied


def moved(drawn: Tensor, applied: Floats) -> Tensor:
    """Draws (..., d) that are moved and scaled as corrections (..., d, 3) say."""
    if not applied.shape[-2]:  # of other labels than real numbers
        return drawn
    median, by, scale = to_device(applied, drawn.device).unbind(-1)
    return median + by + scale * (drawn - median)


def ahead(
    slab: Slab, row: int, coming: Inputs, offsets: Floats, levels: Sequence[float]
) -> list[Summary]:
    """Summaries of the next labels, of a model whose labels are exchangeable; as `summarised`.

    coming: inputs of the first of them. offsets: (T,) their seasons. The last label counts for each
    of them as for the next one.
    """
    state = slab.state(row)
    prior = slab.prior(row)
    steps = horizon.mixtures(slab.model, state, prior, coming, len(offsets))
    return [
        summarised(slab, row, mixture.shifted(offset), levels)[0]
        for mixture, offset in zip(steps, offsets.tolist(), strict=True)
    ]


def drawn(
    slab: Slab, row: int, coming: Inputs, offsets: Floats, levels: Sequence[float], seed: int
) -> tuple[list[Summary], Tensor]:
    """Draw paths (N, T, d) of the next labels, samples of their joint predictive, corrected.

    Returns the summaries of each label alone, too. coming: inputs of the first of them, a row for
    each path. offsets: (T,) seasons.
    """
    count = len(coming.elapsed)
    room = SlabMemory(expected=count)
    regimes = slab.layout.regimes
    copies = Slab(slab.model, slab.max_hypotheses, (), slab.device, regimes, room)
    own = slab.row(row)
    (order,) = horizon.order(slab.state(row)).cpu().numpy()
    own.lines[:, : len(order)] = own.lines[:, order]
    rows = [copies.add(own) for _ in range(count)]

    def advance(state: FilterState, prior: Prior, observed: Inputs) -> FilterState:
        """Step the copies as any rows are: by a kernel, if the model has one."""
        seen = columns.of_inputs(observed)
        for at in range(0, count, copies.step_rows):
            part = slice(at, at + copies.step_rows)
            nothing = [NOTHING_WATCHED] * len(rows[part])
            copies.step(rows[part], seen.part(part), nothing, (), False)
        return copies.batch(rows)[0]  # good until the next step

    generator = torch.Generator(slab.device).manual_seed(seed)
    held = copies.batch(rows)
    steps = horizon.drawn(slab.model, held, coming, len(offsets), generator, advance)
    summaries = []
    labels = []
    for (mixture, y), offset in zip(steps, offsets.tolist(), strict=True):
        predicted, applied = summarised(slab, row, mixture.shifted(offset), levels)
        summaries.append(predicted)
        labels.append(moved(y + offset if offset else y, applied))
    return summaries, torch.stack(labels, 1)
