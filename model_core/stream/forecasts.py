"""Forecasts of a series whose filter runs: predictives of the labels to come, and paths of them.

Of models that take no input. Where labels of a regime are exchangeable, each one's marginal is the
mixture after as many steps without a label: exact. Where a label feeds back into what follows
(lags, recurrent states), the mixture has no closed form: whole paths are drawn, each step of which
is learned from, so that they are draws of the joint predictive `p(y_t+1, ..., y_t+h | y_1..t)`,
switches to come included. A marginal is then the average, over the paths, of the predictives of a
step given the steps before.

Copies of the series' row are stepped, as any rows are: by a kernel, if the model has one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np

from model_core import correction
from model_core.codec import StreamRow
from model_core.stream import columns
from model_core.stream.columns import Columns, Floats
from model_core.stream.events import NOTHING_WATCHED
from model_core.stream.slab import NOT_FINITE, Refused, Slab, SlabMemory, known_of
from model_core.summary import Summary

PATHS = 256  # drawn where labels feed back
MAX_HORIZON = 10_000  # labels to come
MAX_DRAWN = 10_000_000  # numbers of paths
# Levels at which the predictives of paths are known, beside those of the forecast: the normal's at
# one and two standard deviations. Quantiles farther out take several times as long.
NODES = [NormalDist().cdf(score) for score in (-2.0, -1.0, 1.0, 2.0)]
HALVINGS = 24  # of what lies between the paths' quantiles


def ahead(
    slab: Slab, row: int, coming: Columns, offsets: Floats, levels: Sequence[float]
) -> Summary:
    """Summaries (T, ...) of the next labels, of a model whose labels are exchangeable, corrected.

    coming: the first of them. offsets: (T, d) their seasons. levels: of quantiles, rising. The last
    label counts for each of them as for the next one.

    Raises ValueError where labels are not exchangeable, Refused where numbers are not finite.
    """
    if not slab.model.exchangeable:
        raise ValueError(f"labels of a model of kind {slab.model.kind!r} are not exchangeable")
    predicted = _exact(slab, row, _following(coming, len(offsets)), known_of(levels))
    return corrected(slab, row, predicted, offsets, levels)[0]


def drawn(
    slab: Slab,
    row: int,
    coming: Columns,
    offsets: Floats,
    levels: Sequence[float],
    count: int,
    seed: int,
    tick: Callable[[], object] = lambda: None,
) -> tuple[Summary, Floats]:
    """Draw paths (N, T, d) of the next labels, samples of their joint predictive, corrected.

    Returns the summaries (T, ...) of each label alone, too. Arguments as of `ahead`. tick: is
    called with each label. Raises Refused.
    """
    steps, outputs = offsets.shape
    seen = _following(coming, steps)
    known = known_of(levels)
    exchangeable = slab.model.exchangeable
    nodes = [] if exchangeable else sorted({*known, *NODES})
    copies = _copies(slab, nodes, count)
    rows = _add(copies, slab.row(row), count)
    generator = np.random.default_rng(seed)
    paths = np.empty((count, steps, outputs))
    exact = _exact(slab, row, seen if exchangeable else seen.part([0]), known)
    marginals = [*exact.numbers]
    for at in range(steps):
        tick()
        packed = columns.packed(slab.model, seen.part([at] * count))
        paths[:, at], predicted = copies.drawn(rows, packed, generator)
        if predicted is not None and at > 0:
            marginals.append(_averaged(predicted, nodes, known))
    summaries = Summary(np.array(marginals), outputs, slab.model.label)
    summaries, applied = corrected(slab, row, summaries, offsets, levels)
    return summaries, moved(paths + offsets, applied)


def tried(
    slab: Slab, row: int, seen: Columns, offsets: Floats, levels: Sequence[float]
) -> tuple[Summary, Floats]:
    """Summaries (B, ...) of the next label with each of several inputs, as of `corrected`.

    Arguments as of `ahead`. Raises Refused.
    """
    predicted = slab.predicted(row, columns.packed(slab.model, seen), known_of(levels))
    if np.isnan(predicted.mean).any():
        raise Refused(NOT_FINITE)
    return corrected(slab, row, predicted, offsets, levels)


def moved(drawn: Floats, applied: Floats) -> Floats:
    """Draws (..., d) that are moved and scaled as corrections (..., d, 3) say."""
    if not applied.shape[-2]:  # of other labels than real numbers
        return drawn
    median, by, scale = np.moveaxis(applied, -1, 0)
    draws: Floats = median + by + scale * (drawn - median)
    return draws


def _copies(slab: Slab, levels: Sequence[float], count: int) -> Slab:
    """A slab for copies of a row, whose predictives are summarised at levels, if any."""
    room = SlabMemory(expected=count)
    regimes = slab.layout.regimes
    return Slab(slab.model, slab.max_hypotheses, levels, slab.device, regimes, room)


def _following(coming: Columns, steps: int) -> Columns:
    """An observation and those after it: a unit of time later each, of which nothing is stated."""
    hazard = columns.of_all(coming.hazard[0], steps)  # which may be long: a view
    seen = Columns(*(column.repeat(steps, 0) for column in coming._replace(hazard=hazard[:1])))
    seen.elapsed[1:] = 1.0
    seen.changepoint[1:] = np.nan
    return seen._replace(hazard=hazard)


def _exact(slab: Slab, row: int, seen: Columns, levels: Sequence[float]) -> Summary:
    """Predictives of labels, not corrected, each after as many steps without one; or Refused."""
    copies = _copies(slab, levels, 1)
    (copy,) = _add(copies, slab.row(row))
    rows = []
    for step in copies.through(copy, seen, lambda: NOTHING_WATCHED):
        if not step.readout.ok or step.predictive is None:
            raise Refused(NOT_FINITE)
        rows.append(step.predictive.numbers(()))
    return Summary(np.array(rows), slab.model.y_dim, slab.model.label)


def _add(copies: Slab, own: StreamRow, count: int = 1) -> list[int]:
    """Add a row so many times.

    With its hypotheses in order, so that a seed means the same whatever slots they are in; and as
    one that has made no error, so that nothing is corrected.
    """
    lines = copies.layout.ordered(own.lines)
    errors = correction.start(correction.outputs(copies.model))
    fresh = own._replace(lines=lines, errors=errors)
    return [copies.add(fresh) for _ in range(count)]


def corrected(
    slab: Slab, row: int, predicted: Summary, offsets: Floats, levels: Sequence[float]
) -> tuple[Summary, Floats]:
    """Summaries of the labels, with their seasons, by the errors of the series so far.

    predicted: at `known_of` these levels. Also the corrections (T, d, 3), see `correction`.
    """
    known = known_of(levels)
    summaries = predicted.shifted(offsets) if offsets.any() else predicted
    applied = slab.corrected([row] * len(offsets), summaries, correction.interval(known))
    return summaries.at([known.index(level) for level in levels]), applied


# --- averages over paths ------------------------------------------------------------------------


def _averaged(predicted: Summary, nodes: Sequence[float], levels: Sequence[float]) -> Floats:
    """Numbers of the summary, at levels, of the average of what is predicted on each path.

    predicted: (N, ...) at the nodes, the levels among them. Paths whose predictive is not finite do
    not count. Raises Refused where none is.
    """
    fine = np.isfinite(predicted.mean).all(1)
    if not fine.any():
        raise Refused(NOT_FINITE)
    predicted = predicted.rows(np.flatnonzero(fine))
    mean: Floats = predicted.mean.mean(0)
    if predicted.support == "class":
        return mean
    apart = predicted.mean - mean
    covariance = predicted.covariance.mean(0) + apart.T @ apart / len(apart)
    unknown = np.full(2 * len(mean), np.nan)  # cumulative probabilities of the label
    points = predicted.quantiles.transpose(2, 0, 1)
    wanted = [nodes.index(level) for level in levels] if points.shape[2] else []
    quantiles = average(points, np.array(nodes), wanted)
    return np.concatenate((mean, covariance.ravel(), unknown, quantiles.ravel()))


def average(points: Floats, nodes: Floats, wanted: Sequence[int]) -> Floats:
    """Quantiles (d, Q) of the average of N distributions, which are known by their own.

    points: (d, N, K) at the nodes (K,), rising. wanted: places of the levels among these. The log
    odds of a distribution function are lines between two points, and go on beyond the outermost.
    """
    odds = np.log(nodes) - np.log1p(-nodes)
    low = points[..., wanted].min(1)
    high = points[..., wanted].max(1)
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        upper = (points[:, :, None] <= middle[:, None, :, None]).sum(-1).clip(1, len(nodes) - 1)
        left = np.take_along_axis(points, upper - 1, 2)
        wide = np.take_along_axis(points, upper, 2) - left
        share = (middle[:, None] - left) / np.maximum(wide, np.finfo(float).tiny)
        at = odds[upper - 1] + share * (odds[upper] - odds[upper - 1])
        below = (0.5 + 0.5 * np.tanh(0.5 * at)).mean(1) < nodes[wanted]
        low = np.where(below, middle, low)
        high = np.where(below, high, middle)
    quantiles: Floats = high
    return quantiles
