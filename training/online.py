"""Offline simulation of the service on a series: the same pipeline, over all of it at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from model_core.stream import hindsight
from model_core.stream.events import Event, Watch
from model_core.stream.local import LocalPipeline
from model_core.stream.rows import Observation
from model_core.stream.series import NOTHING, Taken
from model_core.stream.settings import rules
from model_core.stream.slab import NOT_FINITE, Refused
from model_core.stream_settings import DEFAULTS, StreamSettings
from model_core.summary import Summary, stacked
from model_core.upm.base import UnderlyingModel

Floats = NDArray[np.float64]


class StartBelief(NamedTuple):
    """What is believed of a change's start, given a change, where its event's interval is read.

    seq: position after whose observation that is. confirmed_at to coverage: as of the event.
    start, probability: (n,) of each possible start.
    """

    seq: int
    confirmed_at: int
    earliest: int
    latest: int
    coverage: float
    start: NDArray[np.int64]
    probability: Floats

    def rank(self, start: int, draw: float) -> float:
        """Probability of an earlier start, and of this one times a draw from [0, 1).

        Over changes that the belief is right about it is uniform; without the draw it would not be,
        as there are few starts.
        """
        earlier = self.probability[self.start < start].sum()
        return float(earlier + draw * self.probability[self.start == start].sum())


class Followed(NamedTuple):
    """Events, segmentation and answers of one series of T observations.

    events: each state change of an event with its position. pipeline: as the series left it.
    starts: see `follow`.
    log_score, changed, recent, anomaly, evidence: (T,) log score (nan without a label, as the
    anomaly), `changed_probability`, `recent_change_probability`, `anomaly` and `evidence`, all nan
    in the warm-up. summary: of the predictives (T rows), empty unless quantiles were wanted.
    """

    events: list[tuple[int, Event]]
    pipeline: LocalPipeline
    starts: list[StartBelief]
    log_score: Floats
    changed: Floats
    recent: Floats
    anomaly: Floats
    evidence: Floats
    summary: Summary

    def confirmed(self) -> list[int]:
        """Latest starts of the events that are confirmed at the end."""
        starts = {event.id: event.start for _, event in self.events if event.state == "confirmed"}
        return sorted(set(starts.values()))

    def segmented(self) -> list[int]:
        """Starts of the regimes of the retained history in hindsight, without the first."""
        return [segment.start for segment in hindsight.segments(self.pipeline, 0)[1:]]


def follow(
    model: UnderlyingModel,
    y: ArrayLike,
    settings: StreamSettings = DEFAULTS,
    levels: Sequence[float] = (),
    inputs: ArrayLike | None = None,
    elapsed: ArrayLike | None = None,
    starts_from: float = math.inf,
) -> Followed:
    """Events and answers of a series, as of a stream of the service.

    y: (T,) or (T, d) labels, nan where missing; one that the filter refuses counts as missing.
    levels: of the quantiles of predictives; without any these are not summarised. inputs: of a
    model that takes some, (T, x_dim). elapsed: (T,) time since the observation before, in units of
    the hazard; without it 1. starts_from: position from which on beliefs about starts are kept.
    """
    pipeline = begun(model, settings, levels)
    seen = observations(y, inputs, elapsed)
    taken: list[Taken] = []
    starts: list[StartBelief] = []
    while len(taken) < len(seen):
        first = len(taken)
        watch = pipeline.series[0].watch
        coming = seen[first : int(min(len(seen), max(starts_from, first + 1)))]
        taken += pipeline.take_series(0, coming)
        if len(taken) == first + len(coming):
            if first >= starts_from:
                starts += _starts(pipeline, watch, taken[-1])
            continue
        refused = seen[len(taken)]
        if all(map(math.isnan, refused.y)):
            raise Refused(NOT_FINITE)
        seen[len(taken)] = refused._replace(y=(math.nan,) * model.y_dim)
    numbers = np.full((5, len(taken)), np.nan)
    for t, step in enumerate(taken):
        if step.readout is not None:
            numbers[:, t] = (
                step.log_score,
                step.readout.changed_probability,
                step.readout.recent_change_probability,
                step.anomaly,
                step.readout.evidence,
            )
    events = [(moved.seq, moved.event) for step in taken for moved in step.moved]
    summary = stacked([step.numbers for step in taken], model.y_dim, model.label)
    return Followed(
        events=events,
        pipeline=pipeline,
        starts=starts,
        log_score=numbers[0],
        changed=numbers[1],
        recent=numbers[2],
        anomaly=numbers[3],
        evidence=numbers[4],
        summary=summary,
    )


def _starts(pipeline: LocalPipeline, watch: Watch, step: Taken) -> list[StartBelief]:
    """What is believed of the start of an event whose interval a step reads; watch: before it."""
    line = step.readout
    if line is None or not line.coverage:
        return []
    interval = (step.seq - line.longest, step.seq - line.shortest, line.coverage)
    belief = pipeline.slab.belief(pipeline.series[0].row)
    start = step.seq - np.array(belief.run_length)
    beliefs = []
    for moved in step.moved:
        event = moved.event
        if (event.earliest, event.latest, event.coverage) == interval:
            confirmed_at = step.seq if event.confirmed_at is None else event.confirmed_at
            later = start > (watch.settled if event.start > watch.settled else watch.since)
            chances = np.array(belief.probability)[later]
            own = (start[later], chances / chances.sum())
            beliefs.append(StartBelief(step.seq, confirmed_at, *interval, *own))
    return beliefs


def observations(
    y: ArrayLike, inputs: ArrayLike | None = None, elapsed: ArrayLike | None = None
) -> list[Observation]:
    """Labels (T, d) or (T,), inputs and times as a pipeline takes them; as of `follow`."""
    labels = np.asarray(y, np.float64)
    count = len(labels)
    x = np.empty((count, 0)) if inputs is None else np.asarray(inputs, np.float64)
    passed = np.ones(count) if elapsed is None else np.asarray(elapsed, np.float64)
    rows = zip(labels.reshape(count, -1).tolist(), x.tolist(), passed.tolist(), strict=True)
    return [Observation(tuple(label), tuple(own), units) for label, own, units in rows]


def begun(
    model: UnderlyingModel, settings: StreamSettings, levels: Sequence[float] = (), count: int = 1
) -> LocalPipeline:
    """The pipeline of so many streams that are none yet."""
    # An alarm on an anomaly has moments, which may not be summed up; its number says enough.
    wanted = rules(model, settings._replace(anomaly_alarm=None))
    pipeline = LocalPipeline(model, wanted, [0.0] * count, levels, provisional=False)
    pipeline.explains = False
    return pipeline


def segmentation(
    model: UnderlyingModel, y: ArrayLike, settings: StreamSettings = DEFAULTS
) -> list[int]:
    """Starts of the best segmentation of a whole series, as of `follow`, without the first.

    Viterbi over the hypotheses that are not pruned; location and scale are those of all labels.
    """
    pipeline = begun(model, settings)
    retained = [pipeline.layout.row(seen, (), NOTHING) for seen in observations(y)]
    past = pipeline.past(pipeline.slab, np.array(retained))
    starts = hindsight.starts(pipeline.slab, past, pipeline.settings, 0)
    return hindsight.outcome(starts)[1:]
