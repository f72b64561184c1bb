"""Segmentation in hindsight: what is retained, by a filter that knows its location and scale."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from model_core import readout
from model_core.readout import Readout
from model_core.stream import seasons, warmup
from model_core.stream.local import LocalPipeline, LocalSeries
from model_core.stream.rows import Floats, RowLayout
from model_core.stream.segmentation import Segment, best, confirmed, lasting, regimes
from model_core.stream.slab import Past, Slab
from model_core.stream_settings import StreamSettings
from model_core.table import SEQ

UNCOMPILED = 512  # observations that are segmented of a model without a kernel: about a second
TICK = 16  # observations between signs of life
SERIES = 512  # of a kernel, which steps them in few calls
T = TypeVar("T")


def starts(
    slab: Slab, past: Past, settings: StreamSettings, first: int
) -> Generator[None, None, list[int]]:
    """Starts of the best segmentation of observations by a filter of them alone.

    The first is included. first: position of the first of them. Yields where it can be left for a
    while.
    """
    seen = past.seen
    units = warmup.units(slab.model, seen, settings)
    location, scale = warmup.given(slab.model, settings) or units[:2]
    (row,) = slab.begin([location], [scale], [units.resolution])
    try:
        lines: list[Readout] = []
        while len(lines) < seen.rows:
            yield
            at = len(lines)
            count = 1 if not at else SERIES if slab.in_series else TICK
            lines += slab.replay(row, past.part(at, at + count))
            if not at:
                resume(slab, row, first)
        start = lines[-1].best_start if len(lines) > 1 else first
        if seen.rows in past.overrides:
            own = slab.restate(row, past.overrides[seen.rows])
            start = readout.of_row(slab.layout, own, first, seen.hazard[-1]).best_start
    finally:
        slab.remove(row)
    pointers = {first + i: line.born_previous_start for i, line in enumerate(lines)}
    path = best(pointers.get, start, first, first + seen.rows)
    return [segment.start for segment in path]


def resume(slab: Slab, row: int, first: int) -> None:
    """Have a filter learn, after its first observation, that it was at position `first`."""
    own = slab.row(row)
    own.head[SEQ] = first + 1
    slab.put(row, own)


def outcome(steps: Generator[None, None, T]) -> T:
    """Do all of something at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def segments(pipeline: LocalPipeline, row: int) -> list[Segment]:
    """Regimes of what is retained of a series, in hindsight as well.

    Of a model without a kernel only the last `UNCOMPILED` are segmented anew.
    """
    path = pipeline.path(row)
    series = pipeline.series[row]
    if not path:
        return []
    history = pipeline.settings.history
    most = history if pipeline.slab.in_series else min(UNCOMPILED, history)
    rows = known_now(series, pipeline.layout, most)
    first = series.seq - len(rows)
    past = pipeline.past(pipeline.slab, rows)
    again = outcome(starts(pipeline.slab, past, series.settings, first))
    return regimes(path, confirmed(series.events.values()), lasting(again, series.seq))


def known_now(series: LocalSeries, layout: RowLayout, most: int) -> Floats:
    """The last retained rows, less the seasons that are known now."""
    rows = series.retained.last(most).copy()
    if series.season_state is not None:
        met = rows[:, layout.offset]
        now = seasons.known_now(series.season, series.season_state, series.seq, met)
        rows[:, layout.offset] = now
    return rows
