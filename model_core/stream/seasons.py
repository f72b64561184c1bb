"""Seasons of a series: its filter sees labels less their season, and answers are of the labels.

Which season a label met is kept with its observation. Where a season is found or given up, the
filter begins anew with the last labels less the season that is known then. By default a series has
no state of seasons until one is found: it searches after set numbers of observations, in the labels
that are retained then.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from model_core import season
from model_core.stream.state import SeasonPeriods, State
from model_core.upm.base import UnderlyingModel

Floats = NDArray[np.float64]


def next_search(
    model: UnderlyingModel, seasonal: bool | None, seq: int, phase: float
) -> int | None:
    """Observations, more than `seq`, after which a series without seasons looks for one.

    seasonal: as of the settings. phase: of its searches. None: it never does.
    """
    if seasonal is not None or not model.seasonal:
        return None
    return season.next_search(seq, phase)


def search(series: State, labels: Floats) -> Floats | None:
    """Look for seasons in the last labels of a series without any; returns their state, if any."""
    state = season.searched(labels)
    if state is not None:
        series.season = SeasonPeriods(season.periods(state), series.seq)
    return state


def learn(series: State, state: Floats, y: float) -> bool:
    """Take in the label of the last observation; returns whether seasons were found or given up."""
    moved = season.observe(state, y)
    if moved:
        series.season = SeasonPeriods(season.periods(state), series.seq)
    elif series.season is not None and series.season.periods:  # these may drift
        periods = season.periods(state)
        if periods != series.season.periods:
            series.season = series.season._replace(periods=periods)
    return moved


def offset(state: Floats | None, ahead: int = 0) -> float:
    """Season of the next label, or of one that comes so many observations later."""
    return 0.0 if state is None else season.offset(state, ahead)


def foreseen(state: Floats, labels: Iterable[float]) -> list[float]:
    """Seasons of coming labels, up to the first after which the filter begins anew."""
    state = state.copy()
    offsets = []
    for label in labels:
        offsets.append(season.offset(state))
        if season.observe(state, label):
            break
    return offsets


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
