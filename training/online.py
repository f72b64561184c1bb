"""Offline simulation of the service on a series: the same pipeline, over all of it at once.

Series are stepped by the model's compiled kernel where it has one, else by the eager filter; both
give the same numbers but for rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from model_core.events import Event
from model_core.stream import hindsight
from model_core.stream.pipeline import NOTHING, Pipeline
from model_core.stream.rows import Observation
from model_core.stream.series import Refused, Taken
from model_core.stream.settings import Chosen, rules
from model_core.stream_settings import DEFAULTS, StreamSettings
from model_core.summary import Summary
from model_core.upm.base import UnderlyingModel

Rows = Sequence[Sequence[float]]  # labels [T][d], nan where missing


class SeriesAnswers(NamedTuple):
    """Numbers that the service answers of each observation of a series; nan while warming up.

    log_score, changed, recent, anomaly: (T,) log score (nan without a label, as the anomaly),
    `changed_probability`, `recent_change_probability` and `anomaly`. summary: of the predictives
    (T rows), empty unless quantiles were wanted. warmup: observations
    of the warm-up.
    """

    log_score: NDArray[np.float64]
    changed: NDArray[np.float64]
    recent: NDArray[np.float64]
    anomaly: NDArray[np.float64]
    summary: Summary
    warmup: int


class Followed(NamedTuple):
    """Events and segmentation of one series.

    events: each state change of an event with its position. changed:
    `changed_probability` after each observation; nan while warming up. served: starts of the
    segmentation of the retained history, without the first. answers: all other numbers. seasons:
    periods of the seasons that are known from a position on, where these change.
    """

    events: list[tuple[int, Event]]
    changed: list[float]
    served: Sequence[int] = ()
    answers: SeriesAnswers | None = None
    seasons: Sequence[tuple[int, tuple[int, ...]]] = ()

    def confirmed(self) -> list[int]:
        """Latest starts of the events that are confirmed at the end."""
        starts = {event.id: event.start for _, event in self.events if event.state == "confirmed"}
        return sorted(set(starts.values()))


def follow(
    model: UnderlyingModel,
    series: Sequence[Rows],
    settings: StreamSettings = DEFAULTS,
    levels: Sequence[float] = (),
) -> list[Followed]:
    """Events and answers of several series of one length, as of streams of the service.

    levels: of the quantiles of predictives; without any these are not summarised.
    """
    pipeline = _pipeline(model, settings, len(series), levels)
    observed = [[Observation(tuple(map(float, row))) for row in rows] for rows in series]
    if pipeline.filters.in_series:
        taken = [_through(pipeline, row, observations) for row, observations in enumerate(observed)]
    else:
        taken = _together(pipeline, observed)
    return [_followed(pipeline, row, steps) for row, steps in enumerate(taken)]


def _pipeline(
    model: UnderlyingModel, settings: StreamSettings, series: int, levels: Sequence[float] = ()
) -> Pipeline:
    wanted = rules(Chosen(None, None, model), model, settings)
    return Pipeline(model, wanted, [0.0] * series, levels, provisional=False)


def _through(pipeline: Pipeline, row: int, observed: list[Observation]) -> list[Taken]:
    """Take the observations of one series; what the filter refuses counts as missing."""
    taken: list[Taken] = []
    while len(taken) < len(observed):
        try:
            for step in pipeline.observe_series(row, observed[len(taken) :]):
                taken.append(step)
        except Refused:
            observed[len(taken)] = pipeline.unlabelled(observed[len(taken)])
    return taken


def _together(pipeline: Pipeline, observed: list[list[Observation]]) -> list[list[Taken]]:
    """The same of all series, which step together."""
    taken: list[list[Taken]] = [[] for _ in observed]
    rows = range(len(observed))
    for seen in zip(*observed, strict=True):
        for row, step in zip(rows, pipeline.observe(rows, seen), strict=True):
            if step is None:
                (step,) = pipeline.observe([row], [pipeline.unlabelled(seen[row])])
            if step is None:
                raise Refused("an observation without a label: the model's numbers are not finite")
            taken[row].append(step)
    return taken


def _followed(pipeline: Pipeline, row: int, taken: Sequence[Taken]) -> Followed:
    """What came of one series."""
    numbers = np.full((4, len(taken)), np.nan)
    for t, step in enumerate(taken):
        if step.readout is not None:
            line = step.readout
            numbers[:, t] = (
                step.log_score,
                line.changed_probability,
                line.recent_change_probability,
                step.anomaly,
            )
    log_score, changed, recent, strange = numbers
    width = max((len(step.numbers) for step in taken), default=0)
    rows = [step.numbers if len(step.numbers) else np.full(width, np.nan) for step in taken]
    model = pipeline.model
    summary = Summary(np.array(rows).reshape(len(taken), width), model.y_dim, model.label)
    warmup = sum(step.readout is None for step in taken)
    answers = SeriesAnswers(log_score, changed, recent, strange, summary, warmup)
    if warmup == len(taken):
        # A stream that never finished its warm-up has no events, and is one segment.
        return Followed([], changed.tolist(), answers=answers)
    events = [(moved.seq, moved.event) for step in taken for moved in step.moved]
    served = [segment.start for segment in pipeline.segments(row)[1:]]
    pairs = pairwise([(), *(step.periods for step in taken)])
    seasons = [(t + 1, new) for t, (old, new) in enumerate(pairs) if new != old]
    return Followed(events, changed.tolist(), served, answers, seasons)


def segmentation(
    model: UnderlyingModel, rows: Rows, settings: StreamSettings = DEFAULTS
) -> list[int]:
    """Starts of the best segmentation of a whole series, without the first.

    Viterbi over the hypotheses that are not pruned; location and scale are those of all labels.
    """
    pipeline = _pipeline(model, settings, 1)
    seen = [Observation(tuple(map(float, row))) for row in rows]
    retained = [pipeline.layout.row(observation, 0.0, NOTHING) for observation in seen]
    return hindsight.starts(pipeline, np.array(retained))[1:]
