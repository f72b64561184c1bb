"""What the service would say of a series: the same filter, warm-up and events, without a server."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from model_core import belief as beliefs
from model_core import filter as moca
from model_core import warmup
from model_core.defaults import Defaults
from model_core.events import Event, Reading, Track, track
from model_core.filter import FilterState, Info, Inputs, Prior
from model_core.upm.base import UnderlyingModel
from training.data.base import Batch

Rows = Sequence[Sequence[float]]  # labels [T][d], nan where missing


class Settings(NamedTuple):
    """How streams are filtered; hazard and outlier rate are the model's unless given."""

    defaults: Defaults = Defaults()
    hazard: float | None = None
    outlier_rate: float | None = None


class Followed(NamedTuple):
    """What became of one series.

    events: each change of an event with the position at which it happened. changed:
    `changed_probability` after each observation; nan while warming up. served: starts of the
    segmentation of the retained history, without the first.
    """

    events: list[tuple[int, Event]]
    changed: list[float]
    served: Sequence[int] = ()

    def confirmed(self) -> list[int]:
        """Starts of the events that are confirmed at the end, each where it lies by then."""
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
    """Events of several series of one length, as streams of the service would have them."""
    found = [warm(model, rows, settings.defaults.warmup) for rows in series]
    tracks, events = [Track() for _ in series], [list[tuple[int, Event]]() for _ in series]
    changed = [[math.nan] * len(rows) for rows in series]
    y = torch.tensor(series, dtype=torch.float64)
    prior = prior_of(model, [(location, scale) for location, scale, _ in found])
    pointers = _Pointers()
    for t, (state, info) in enumerate(run(model, prior, y, settings)):
        pointers.add(state, info)
        confirmed = torch.tensor([each.confirmed_start for each in tracks])
        mass = beliefs.mass_below(state.belief, t - confirmed).tolist()
        for i, reading in enumerate(_readings(state, t)):
            if t >= found[i][2]:
                changed[i][t] = mass[i]
            tracks[i], moved = track(tracks[i], reading, settings.defaults.confirm_after)
            events[i] += [(t, event) for event in moved]
    first = max(0, y.shape[1] - settings.defaults.history)
    return [
        # A stream that never came out of its warm-up has no events, and is one segment.
        Followed(events[i], changed[i], pointers.starts(i, first))
        if found[i][2] <= len(rows)
        else Followed([], changed[i])
        for i, rows in enumerate(series)
    ]


def segmentation(model: UnderlyingModel, rows: Rows, settings: Settings) -> list[int]:
    """Starts of the best segmentation of a whole series, without the first.

    Viterbi over the hypotheses that are not pruned.

    Location and scale are those of all labels.
    """
    labels = [row for row in rows if all(map(math.isfinite, row))]
    prior = prior_of(model, [warmup.estimate(labels, model)])
    pointers = _Pointers()
    for state, info in run(model, prior, torch.tensor([rows], dtype=torch.float64), settings):
        pointers.add(state, info)
    return pointers.starts(0)


class _Pointers:
    """Back pointers of the best path of several streams (Viterbi)."""

    def __init__(self) -> None:
        self._previous: list[list[int]] = []  # [t][stream]: where the regime before t starts
        self._last: list[int] = []  # [stream]: where the last regime of the best path starts

    def add(self, state: FilterState, info: Info) -> None:
        """Take in a step."""
        best = state.belief.score.argmax(-1, keepdim=True)
        run_length = state.belief.run_length.gather(-1, best).squeeze(-1)
        self._last = (len(self._previous) - run_length).tolist()
        self._previous.append(info.born_previous_start.tolist())

    def starts(self, stream: int, first: int = 0) -> list[int]:
        """Starts of the best segmentation, those after `first`."""
        found, start = [], self._last[stream] if self._last else 0
        while start > first:
            found.append(start)
            start = self._previous[start][stream]
        return found[::-1]


def warm(
    model: UnderlyingModel, rows: Iterable[Sequence[float]], warmup_labels: int
) -> tuple[list[float], list[float], int]:
    """Location, scale, and the number of observations after which they are known."""
    values: list[Sequence[float]] = []
    t = -1
    for t, row in enumerate(rows):
        if all(map(math.isfinite, row)):
            values.append(row)
        if warmup.complete(values, model.y_dim, warmup_labels, t + 1):
            return *warmup.estimate(values, model), t + 1
    return *warmup.estimate(values, model), t + 2


def prior_of(model: UnderlyingModel, found: list[tuple[list[float], list[float]]]) -> Prior:
    """Prior of streams with these locations and scales."""
    location, scale = (torch.tensor(each, dtype=torch.float64) for each in zip(*found, strict=True))
    return moca.make_prior(model, location, scale)


def _readings(state: FilterState, t: int) -> list[Reading]:
    """What each stream's belief says after observation `t`."""
    belief = state.belief
    best, slot = belief.log_prob.max(-1)
    rows = torch.arange(len(slot))
    columns = (
        (t - belief.run_length[rows, slot]).tolist(),
        best.exp().tolist(),
        belief.previous_start[rows, slot].tolist(),
        state.totals.tolist(),
        state.totals_at_start[rows, slot].tolist(),
    )
    return [Reading(t, None, *each) for each in zip(*columns, strict=True)]
