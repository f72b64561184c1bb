"""Offline simulation of the service on a series: the same pipeline, over all of it at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from model_core.stream import hindsight
from model_core.stream.events import Event
from model_core.stream.local import LocalPipeline
from model_core.stream.rows import Observation
from model_core.stream.series import NOTHING
from model_core.stream.settings import rules
from model_core.stream.slab import NOT_FINITE, Refused
from model_core.stream_settings import DEFAULTS, StreamSettings
from model_core.summary import Summary, stacked
from model_core.upm.base import UnderlyingModel

Floats = NDArray[np.float64]


class Followed(NamedTuple):
    """Events, segmentation and answers of one series of T observations.

    events: each state change of an event with its position. pipeline: as the series left it.
    log_score, changed, recent, anomaly, evidence: (T,) log score (nan without a label, as the
    anomaly), `changed_probability`, `recent_change_probability`, `anomaly` and `evidence`, all nan
    in the warm-up. summary: of the predictives (T rows), empty unless quantiles were wanted.
    """

    events: list[tuple[int, Event]]
    pipeline: LocalPipeline
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
) -> Followed:
    """Events and answers of a series, as of a stream of the service.

    y: (T,) or (T, d) labels, nan where missing; one that the filter refuses counts as missing.
    levels: of the quantiles of predictives; without any these are not summarised. inputs: of a
    model that takes some, (T, x_dim). elapsed: (T,) time since the observation before, in units of
    the hazard; without it 1.
    """
    pipeline = begun(model, settings, levels)
    seen = observations(y, inputs, elapsed)
    taken = pipeline.take_series(0, seen)
    while len(taken) < len(seen):
        refused = seen[len(taken)]
        if all(map(math.isnan, refused.y)):
            raise Refused(NOT_FINITE)
        seen[len(taken)] = refused._replace(y=(math.nan,) * model.y_dim)
        taken += pipeline.take_series(0, seen[len(taken) :])
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
        log_score=numbers[0],
        changed=numbers[1],
        recent=numbers[2],
        anomaly=numbers[3],
        evidence=numbers[4],
        summary=summary,
    )


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
