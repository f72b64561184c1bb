"""When a stream's events would have been confirmed, under many thresholds at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from model_core.sensitivity.regimes import Drawn, location_of
from model_core.stream import warmup
from model_core.stream.beliefs import Hypotheses
from model_core.stream.events import Reading, Track, track
from model_core.stream.filters import Filters
from model_core.stream_settings import DEFAULTS
from model_core.upm.base import UnderlyingModel

Floats = NDArray[np.float64]
Alarms = list[list[list[int]]]  # observations at which events were confirmed [threshold][series]


def watch(
    model: UnderlyingModel,
    drawn: Drawn,
    thresholds: Sequence[float],
    hazard: float | None = None,
    tick: Callable[[int], None] = lambda observations: None,
) -> Alarms:
    """Alarms of streams by default; hazard: None for the model's.

    tick: called with the number of observations done.
    """
    y = drawn.y.numpy()
    x = None if drawn.x is None else drawn.x.numpy()
    alarms: Alarms = []
    for so_far in follow(begun(model, y, x), y, thresholds, x=x, hazard=hazard):
        alarms = so_far
        tick(len(y))
    return alarms


def begun(model: UnderlyingModel, y: Floats, x: Floats | None = None) -> Filters:
    """Filters of series y (B, T, d), with location and scale of their first labels, as streams."""
    filters = Filters(model, len(y), DEFAULTS.max_hypotheses)
    if not model.needs_scale:
        for row in range(len(y)):
            filters.begin(row, [location_of(model)] * model.scaled, [1.0] * model.scaled)
        return filters
    first = y if x is None or not model.scales_inputs else np.concatenate((y, x), -1)
    for row, values in enumerate(first[:, : warmup.LONGEST].tolist()):
        (location, scale), _ = warmup.first(model, values, DEFAULTS.warmup)
        filters.begin(row, location, scale)
    return filters


def follow(
    filters: Filters,
    y: Floats,
    thresholds: Sequence[float] | Sequence[Sequence[float]],
    starts: Sequence[int] | None = None,
    *,
    x: Floats | None = None,
    hazard: Floats | float | None = None,
    outlier_rate: float | None = None,
) -> Iterator[Alarms]:
    """Filter series on through y (B, T, d); yields their alarms so far after each observation.

    thresholds, starts: as of `Watch`. hazard, outlier_rate: None for the model's.
    """
    watched = Watch(len(y), thresholds, starts)
    first = filters.seq
    steps = filters.together(y, x, hazard=hazard, outlier_rate=outlier_rate)
    for t, _ in enumerate(steps, first):
        watched.take(filters.beliefs, t)
        yield watched.confirmed


def wait(alarms: Sequence[int], change: int) -> float:
    """Observations of the new regime up to the first alarm in it; inf without one."""
    return min((t - change + 1 for t in alarms if t >= change), default=math.inf)


class Watch:
    """Events of each series under each threshold.

    An event that is relocated is confirmed again only where its new start is after the
    confirmation: it cannot be the same change. thresholds: those of all series, or those of each.
    starts: of the regimes that they begin in.
    """

    def __init__(
        self,
        series: int,
        thresholds: Sequence[float] | Sequence[Sequence[float]],
        starts: Sequence[int] | None = None,
    ) -> None:
        first = [0] * series if starts is None else list(starts)
        self.confirmed: Alarms = [[[] for _ in range(series)] for _ in thresholds]
        self._tracks = [[Track(start, start) for start in first] for _ in thresholds]
        self._starts = np.array([first for _ in thresholds], dtype=np.int64)
        self._open = np.zeros((len(thresholds), series), dtype=bool)
        columns = np.array(thresholds, dtype=np.float64).reshape(len(thresholds), -1)
        self._thresholds = np.broadcast_to(columns, (len(thresholds), series))

    def take(self, belief: Hypotheses, t: int) -> None:
        """Follow the beliefs after observation `t`, where there is anything to follow."""
        # Most thresholds have alarmed nowhere yet: their mass is that after the earliest start.
        earliest = self._starts.min(0)
        common = belief.mass_below(t - earliest)
        start = t - belief.likeliest
        at = np.argwhere((start > self._starts) | self._open | (common >= self._thresholds))
        if not len(at):
            return
        which, rows = at.T
        below = t - self._starts[which, rows]
        mass, suspect = belief.rows(rows).suspected(below, self._thresholds[which, rows])
        readings = zip(
            at.tolist(),
            (t - suspect.run_length).tolist(),
            suspect.probability.tolist(),
            suspect.previous_start.tolist(),
            mass.tolist(),
            strict=True,
        )
        for (threshold, row), likely, probability, previous, changed in readings:
            reading = Reading(
                seq=t,
                time=None,
                start=likely,
                probability=probability,
                previous_start=previous,
                totals=None,
                start_totals=None,
                changed_probability=changed,
            )
            self._follow(threshold, row, reading)

    def _follow(self, which: int, row: int, reading: Reading) -> None:
        before = self._tracks[which][row]
        after, _ = track(before, reading, 0, float(self._thresholds[which, row]))
        self._tracks[which][row] = after
        self._starts[which, row] = after.confirmed_start
        self._open[which, row] = after.event is not None
        last = before.last_event
        new = after.last_event
        if new is None or new.confirmed_at != reading.seq:
            return
        confirmed = self.confirmed[which][row]
        if last is None or last.id != new.id or new.start > confirmed[-1]:
            confirmed.append(reading.seq)
