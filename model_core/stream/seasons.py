"""Seasons of a series: its filter sees labels less their season, and answers are of the labels.

Which season a label met is kept with its observation. Where a season is found or given up, the
filter begins anew with the last labels less the season that is known then. By default a series has
no state of seasons until one is found: it searches after set numbers of observations, in the labels
that are retained then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from model_core import readout
from model_core.codec import StreamRow
from model_core.stream import columns, memory, season, warmup
from model_core.stream.columns import Columns, Floats
from model_core.stream.resolution import renewed, renewed_hold, renewed_of
from model_core.stream.series import Series, State
from model_core.stream.slab import Past, Refused, Slab
from model_core.stream.state import SeasonPeriods
from model_core.stream.warmup import Units
from model_core.table import PREVIOUS, RUN_LENGTH, SEQ
from model_core.upm.base import UnderlyingModel


class Anew(NamedTuple):
    """The last observations, after a filter began anew with them.

    previous: where the best path before a regime that starts at each of them starts.
    """

    offsets: Floats
    previous: list[int]


def next_search(model: UnderlyingModel, series: Series, seq: int) -> int | None:
    """Observations, more than `seq`, after which a series looks for its first seasons; None: never.

    It looks where its settings say nothing of seasons. With `seasonal` on it learns them from its
    first label, and searches for none.
    """
    searching = series.season_state is None and series.settings.seasonal is None
    return season.next_search(seq, series.search_phase) if searching and model.seasonal else None


def next_look(model: UnderlyingModel, series: Series, seq: int) -> int | None:
    """Observations, more than `seq`, after which season or scale are looked at; None: never."""
    if not model.rescaled:
        return None
    look = warmup.next_look(seq, model.y_dim)
    search = next_search(model, series, seq)
    return look if search is None else min(search, look)


def learn(series: State, state: Floats, labels: Sequence[Sequence[float]]) -> bool:
    """Take in the labels of the last observations, no more than were `foreseen`.

    Returns whether seasons were found or given up.
    """
    series.season, moved = learned(series.season, state, labels, series.seq)
    return moved


def learned(
    periods: SeasonPeriods | None,
    state: Floats,
    labels: Sequence[Sequence[float]] | Floats,
    seq: int,
) -> tuple[SeasonPeriods | None, bool]:
    """As `learn`, of a series that is at `seq` and had these periods; returns them as they are."""
    before = season.next_update(state)
    moved = season.observe(state, labels)
    if moved:
        periods = SeasonPeriods(season.periods(state), seq)
    elif season.next_update(state) != before and periods is not None:  # these may drift
        periods = periods._replace(periods=season.periods(state))
    return periods, moved


def ahead(state: Floats | None, count: int, outputs: int) -> Floats:
    """Seasons (count, d) of coming labels, as they are known now."""
    return np.zeros((count, outputs)) if state is None else season.coming(state, count)


def foreseen(state: Floats | None, count: int, outputs: int) -> Floats:
    """Seasons (n, d) of coming labels, `count` at most: known until seasons are looked at."""
    return ahead(state, count if state is None else min(count, season.left(state)), outputs)


def known_now(periods: SeasonPeriods | None, state: Floats, seq: int, met: Floats) -> Floats:
    """Seasons of the last labels as they are known now, at `seq`; met: as they were met.

    Observations since the filter last began anew are as they were met.
    """
    offsets = met.copy()
    if periods is not None:
        now = season.offsets(state, len(met))
        begin = len(met) - len(now)
        end = max(periods.since - (seq - len(met)), begin)
        offsets[begin:end] = now[: end - begin]
    return offsets


def begin_anew(slab: Slab, series: Series, past: Past, tick: Callable[[], object]) -> Anew | None:
    """Begin the filter of a series anew, with its last observations less the seasons of now.

    The regimes that it finds among these are known, no events. The regime that the filter before
    believed in goes on where the new one begins. tick: is called while the work goes on. None:
    there are none, or the new filter refuses one, and the series goes on with the one before.
    """
    if not past.seen.rows:
        return None
    state = series.state
    seasons = series.season_state
    row = series.row
    most = min(season.REPLAYED, past.seen.rows)
    offsets = np.zeros((most, slab.model.y_dim))
    if seasons is not None:
        offsets = season.offsets(seasons, most)
    past = past.last(len(offsets))
    seen = past.seen._replace(offset=offsets)
    base = state.seq - seen.rows
    joined = state.best_start
    while joined > base:  # back on the best path, to the regime in which the new filter begins
        joined = past.previous[joined - base]
    joined = max(joined, 0)
    units = _units(slab.model, state, seen, seasons is not None)
    before = slab.row(row)
    slab.begin_anew(row, *units)
    watch = state.watch._replace(settled=max(state.track.settled - base, 0))  # as it counts
    try:
        # With its errors, by which its first forecasts are corrected.
        lines = []
        for line in slab.replay(row, past._replace(seen=seen), lambda: watch, summarised=True):
            tick()
            lines.append(line)
    except Refused:
        slab.put(row, before)
        return None
    now = slab.row(row)._replace(ranks=before.ranks)  # what is replayed was ranked before
    _move(now, base, joined)
    memory.carry(slab.layout, before.head, now.head, base)
    slab.put(row, now)
    last = lines[-1]
    # The regime that the new filter believes in counts as confirmed: it raises no event.
    began = now.seq - 1 - last.event_run_length
    track = state.track
    start = max(track.confirmed_start, began if began > base else joined)
    state.location, state.scale, state.resolution = units
    settled = max(track.settled, start)
    state.track = track._replace(
        confirmed_start=start,
        before_start=track.before_start if start == track.confirmed_start else start,
        before_totals=None,
        confirmed_totals=last.start_totals,
        settled=settled,
        since=settled,
    )
    state.best_start = _position(last.best_start, base, joined)
    belief = readout.of_row(slab.layout, now, settled, seen.hazard[-1])
    state.map_run_length = belief.map_run_length
    state.changed_probability = belief.changed_probability
    state.evidence = belief.evidence
    previous = [_position(line.born_previous_start, base, joined) for line in lines]
    previous[0] = max(past.previous[0], 0)  # before a regime that starts where this filter began
    return Anew(offsets, previous)


def _units(model: UnderlyingModel, state: State, seen: Columns, seasonal: bool) -> Units:
    """Of a filter that begins anew with these observations.

    seasonal: it does so for a season. Else it has outgrown its scale: that is of the last labels,
    as in a warm-up, of a vector for the outputs that have.
    """
    location = state.location or []
    scale = state.scale or []
    settings = state.settings
    held = renewed_hold(model, seen.y, state.resolution)
    values = columns.values(model, warmup.updates(seen, held) if held else seen)
    several = model.y_dim > 1
    chosen = [True] * len(scale)
    if not seasonal:
        if several and values:
            chosen = warmup.outlived(np.array(values), location, scale, state.resolution)
        values = values[-max(settings.warmup, 2) :]
    known = warmup.given(model, settings) is not None
    if not known and (several or warmup.varied(values, 1)):
        location, scale = warmup.anew(model, values, settings, (location, scale), chosen)
    if several and not seasonal:
        return Units(location, scale, renewed_of(model, values, scale, state.resolution, chosen))
    return Units(location, scale, renewed(model, seen.y, scale, state.resolution))


def _position(position: int, base: int, joined: int) -> int:
    """Position in a series of a start in a filter that began at `base` of it.

    joined: start of the regime that goes on there.
    """
    return position + base if position > 0 else joined


def _move(own: StreamRow, base: int, joined: int) -> None:
    """Move a filter that began at `base` of a series to positions of the series."""
    length = own.lines[RUN_LENGTH]
    length[length == own.seq - 1] += base - joined
    previous = own.lines[PREVIOUS]
    there = np.where(previous == 0, joined, previous + base)
    own.lines[PREVIOUS] = np.where(previous < 0, previous, there)
    own.head[SEQ] += base
