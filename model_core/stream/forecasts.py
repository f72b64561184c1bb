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
from model_core.stream.slab import Slab
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
    paths = _Paths(slab, row, len(coming.elapsed))
    generator = torch.Generator(slab.device).manual_seed(seed)
    steps = horizon.drawn(slab.model, *paths.held(), coming, len(offsets), generator, paths.advance)
    summaries = []
    labels = []
    for (mixture, y), offset in zip(steps, offsets.tolist(), strict=True):
        predicted, applied = summarised(slab, row, mixture.shifted(offset), levels)
        summaries.append(predicted)
        labels.append(moved(y + offset if offset else y, applied))
    return summaries, torch.stack(labels, 1)


class _Paths:
    """Copies of a row, one for each path, stepped as any rows are: by a kernel, if it has one."""

    def __init__(self, slab: Slab, row: int, count: int) -> None:
        regimes = slab.layout.regimes
        self._slab = Slab(
            slab.model, slab.max_hypotheses, (), slab.device, expected=count, regimes=regimes
        )
        own = slab.row(row)
        (order,) = horizon.order(slab.state(row)).cpu().numpy()
        own.lines[:, : len(order)] = own.lines[:, order]
        self._rows = [self._slab.add(own) for _ in range(count)]

    def held(self) -> tuple[FilterState, Prior]:
        """States and priors of all paths, good until the next step."""
        return self._slab.batch(self._rows)

    def advance(self, state: FilterState, prior: Prior, coming: Inputs) -> FilterState:
        """Step all paths by a label each; an `Advance`."""
        seen = columns.of_inputs(coming)
        most = self._slab.step_rows
        for at in range(0, len(self._rows), most):
            rows = self._rows[at : at + most]
            watched = [NOTHING_WATCHED] * len(rows)
            self._slab.step(rows, seen.part(slice(at, at + most)), watched, (), False)
        return self.held()[0]
