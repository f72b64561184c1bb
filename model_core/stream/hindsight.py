"""Segmentation in hindsight: what is retained, by a filter that knows its location and scale."""

from __future__ import annotations

import torch

from model_core.segmentation import Segment, best, in_hindsight
from model_core.stream import seasons
from model_core.stream.filters import Filters
from model_core.stream.pipeline import Pipeline
from model_core.stream.rows import OFFSET, Floats
from model_core.stream.series import SeriesState

UNCOMPILED = 512  # observations that are segmented of a model without a kernel: about a second


def segments(pipeline: Pipeline, row: int) -> list[Segment]:
    """Regimes of what is retained of a series.

    Of a model without a kernel only the last `UNCOMPILED` are segmented anew.
    """
    online = pipeline.segments(row)
    series = pipeline.series[row]
    if not online:
        return []
    history = pipeline.rules.history
    most = history if pipeline.filters.in_series else min(UNCOMPILED, history)
    rows = known_now(series, most)
    first = series.seq - len(rows)
    return in_hindsight(online, first, series.seq, starts(pipeline, rows, first), series.seq)


def starts(pipeline: Pipeline, rows: Floats, first: int = 0) -> list[int]:
    """Starts of the best segmentation of rows by a filter of them alone, the first included.

    first: position of the first of them.
    """
    filters = Filters(pipeline.model, 1, pipeline.rules.max_hypotheses, ())
    filters.begin(0, *(pipeline.given() or pipeline.estimated(pipeline.layout.values(rows))))
    lines = pipeline.replayed(filters, rows[:1], 0)
    state = filters.state(0)  # which learns that it was not the first of its series
    filters.put(0, state._replace(seq=torch.full_like(state.seq, first + 1)))
    lines += pipeline.replayed(filters, rows[1:], 0)
    pointers = {first + i: line.born_previous_start for i, line in enumerate(lines)}
    start = lines[-1].best_start if len(lines) > 1 else first
    return [segment.start for segment in best(pointers.get, start, first, first + len(rows))]


def known_now(series: SeriesState, most: int) -> Floats:
    """The last retained rows, less the seasons that are known now."""
    rows = series.retained.last(most).copy()
    if series.season_state is not None:
        met = rows[:, OFFSET]
        rows[:, OFFSET] = seasons.known_now(series.season, series.season_state, series.seq, met)
    return rows
