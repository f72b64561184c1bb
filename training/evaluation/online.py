"""Offline simulation of the service on a series: the same filter, warm-up and events."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from model_core import filter as moca
from model_core import readout, warmup
from model_core.defaults import Defaults
from model_core.events import Event, Track, track
from model_core.filter import FilterState, Info, Inputs, Prior
from model_core.readout import Readout
from model_core.upm.base import UnderlyingModel
from training.data.base import Batch

Rows = Sequence[Sequence[float]]  # labels [T][d], nan where missing


class Settings(NamedTuple):
    """Settings of the filter; hazard and outlier rate are by default the model's."""

    defaults: Defaults = Defaults()
    hazard: float | None = None
    outlier_rate: float | None = None


class Followed(NamedTuple):
    """Events and segmentation of one series.

    events: each state change of an event with its position. changed:
    `changed_probability` after each observation; nan while warming up. served: starts of the
    segmentation of the retained history, without the first.
    """

    events: list[tuple[int, Event]]
    changed: list[float]
    served: Sequence[int] = ()

    def confirmed(self) -> list[int]:
        """Latest starts of the events that are confirmed at the end."""
        starts = {event.id: event.start for _, event in self.events if event.state == "confirmed"}
        return sorted(set(starts.values()))


def run(
    model: UnderlyingModel, prior: Prior, y: Tensor, settings: Settings
) -> Iterator[tuple[FilterState, Info]]:
    """Filter labels (B, T, d), nan where missing, step by step."""
    state = moca.init(prior, settings.defaults.max_hypotheses)
    for t in range(y.shape[1]):
        inputs = observed(model, Batch(None, y), t)
        if settings.hazard is not None:
            hazard = torch.full_like(inputs.hazard[:, :1], settings.hazard)
            inputs = inputs._replace(hazard=hazard)
        if settings.outlier_rate is not None:
            rate = torch.full_like(inputs.elapsed, settings.outlier_rate)
            inputs = inputs._replace(outlier_rate=rate)
        state, info = moca.step(model, state, prior, inputs)
        yield state, info


def observed(model: UnderlyingModel, batch: Batch, t: int) -> Inputs:
    """Observation `t` of every sequence."""
    y = batch.y[:, t]
    labelled = torch.isfinite(y).all(-1)
    hazard = model.hazard
    table = [hazard] if isinstance(hazard, float) else list(hazard)
    ones = torch.ones(len(y), dtype=torch.float64)
    return Inputs(
        x=None if batch.x is None else batch.x[:, t],
        y=torch.where(labelled.unsqueeze(-1), y, 0.0),
        labelled=labelled,
        hazard=torch.tensor(table, dtype=torch.float64).expand(len(y), -1),
        elapsed=ones,
        changepoint=ones * math.nan,
        outlier_rate=ones * model.outlier_rate,
    )


def follow(model: UnderlyingModel, series: Sequence[Rows], settings: Settings) -> list[Followed]:
    """Events of several series of one length, as of streams of the service."""
    warmups = [warm(model, rows, settings.defaults.warmup) for rows in series]
    tracks = [Track() for _ in series]
    events = [list[tuple[int, Event]]() for _ in series]
    changed = [[math.nan] * len(rows) for rows in series]
    y = torch.tensor(series, dtype=torch.float64)
    prior = prior_of(model, [(location, scale) for location, scale, _ in warmups])
    pointers = _Pointers()
    for t, (state, info) in enumerate(run(model, prior, y, settings)):
        confirmed = torch.tensor([one.confirmed_start for one in tracks])
        readouts = _readouts(state, info, confirmed)
        pointers.add(readouts)
        for i, told in enumerate(readouts):
            if t >= warmups[i][2]:
                changed[i][t] = told.changed_probability
            reading = told.reading(t)
            tracks[i], moved = track(tracks[i], reading, settings.defaults.confirm_after)
            events[i] += [(t, event) for event in moved]
    first = max(0, y.shape[1] - settings.defaults.history)
    return [
        # A stream that never finished its warm-up has no events, and is one segment.
        Followed(events[i], changed[i], pointers.starts(i, first))
        if warmups[i][2] <= len(rows)
        else Followed([], changed[i])
        for i, rows in enumerate(series)
    ]


def segmentation(model: UnderlyingModel, rows: Rows, settings: Settings) -> list[int]:
    """Starts of the best segmentation of a whole series, without the first.

    Viterbi over the hypotheses that are not pruned; location and scale are those of all labels.
    """
    labels = [row for row in rows if all(map(math.isfinite, row))]
    prior = prior_of(model, [warmup.estimate(labels, model)])
    pointers = _Pointers()
    for state, info in run(model, prior, torch.tensor([rows], dtype=torch.float64), settings):
        pointers.add(_readouts(state, info, torch.zeros(1, dtype=torch.int64)))
    return pointers.starts(0)


class _Pointers:
    """Back pointers of the best path of several streams (Viterbi)."""

    def __init__(self) -> None:
        self._previous: list[list[int]] = []  # [t][stream]: where the regime before t starts
        self._last: list[int] = []  # [stream]: where the last regime of the best path starts

    def add(self, readouts: list[Readout]) -> None:
        """Add a step."""
        self._last = [each.best_start for each in readouts]
        self._previous.append([each.born_previous_start for each in readouts])

    def starts(self, stream: int, first: int = 0) -> list[int]:
        """Starts of the best segmentation, those after `first`."""
        starts = []
        start = self._last[stream] if self._last else 0
        while start > first:
            starts.append(start)
            start = self._previous[start][stream]
        return starts[::-1]


def warm(
    model: UnderlyingModel, rows: Iterable[Sequence[float]], warmup_labels: int
) -> tuple[list[float], list[float], int]:
    """Location, scale, and the number of observations of the warm-up."""
    values: list[Sequence[float]] = []
    t = -1
    for t, row in enumerate(rows):
        if all(map(math.isfinite, row)):
            values.append(row)
        if warmup.complete(values, model.y_dim, warmup_labels, t + 1):
            return *warmup.estimate(values, model), t + 1
    return *warmup.estimate(values, model), t + 2


def prior_of(model: UnderlyingModel, moments: list[tuple[list[float], list[float]]]) -> Prior:
    """Prior of streams with these locations and scales."""
    location = torch.tensor([location for location, _ in moments], dtype=torch.float64)
    scale = torch.tensor([scale for _, scale in moments], dtype=torch.float64)
    return moca.make_prior(model, location, scale)


def _readouts(state: FilterState, info: Info, confirmed: Tensor) -> list[Readout]:
    """Readouts after a step; events of these evaluations are confirmed in time, by no threshold."""
    never = torch.zeros(len(confirmed), dtype=torch.float64)
    return readout.rows(readout.table(state, info, confirmed, never, recent_window=1))
