"""Inputs of a step from a stream's settings: hazards, outlier rate, time elapsed."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence

import numpy as np

from model_core.filter import Inputs
from model_core.stream import columns
from model_core.stream.columns import Columns
from model_core.stream.slab import Past, Slab
from model_core.stream.state import seasons_of
from model_core.stream_settings import Hazard
from model_core.upm.base import UnderlyingModel
from service.problems import TimeBackwards
from service.wire import (
    Head,
    Observation,
    Record,
    numbers,
    stored_records,
    timestamps,
)
from service.wire.commands import LOWER, UPPER

LONGEST_ELAPSED = 1e15  # steps: more than all of RFC 3339's years have of the least interval


def record_of(
    seq: int,
    seen: Observation,
    elapsed: float,
    supervision: float | None,
    rates: tuple[Hazard | None, float],
    accepted_ms: int | None,
) -> Record:
    """Record of an observation that is about to be applied.

    supervision: stated before it came. rates: as of `effective_rates`.
    """
    hazard, outlier_rate = rates
    record = Record(
        seq=seq,
        y=seen.y,
        x=seen.x,
        time=seen.time,
        elapsed=elapsed,
        changepoint=supervision if seen.changepoint is None else seen.changepoint,
        hazard=hazard,
        outlier_rate=outlier_rate,
        accepted_ms=accepted_ms if seen.time is None else None,
    )
    return record if seen.planned is None else record.exclude(seen.planned)


def coming(
    model: UnderlyingModel, head: Head, elapsed: float, x: list[float] | None = None
) -> Record:
    """Record of a stream's next observation, which has no label yet."""
    rates = columns.effective_rates(model, head.settings)
    return record_of(head.seq, Observation(x=x), elapsed, head.pending_supervision, rates, None)


def columns_of(model: UnderlyingModel, rows: Sequence[Record | bytes]) -> Columns:
    """Observations as a filter takes them; rows: records, or as they are stored."""
    count = len(rows)
    y = np.empty((count, model.y_dim))
    x = np.zeros((count, model.x_dim))
    rates = np.empty((count, len(stored_records.RATES)))
    offset = np.zeros((count, model.y_dim))
    hazards: list[Hazard | None] = []
    for run in stored_records.runs_of([*rows]):
        own = slice(len(hazards), len(hazards) + len(run))
        if isinstance(run, list):
            y[own] = [label_of(record, model.y_dim) for record in run]
            blank = [0.0] * model.x_dim
            x[own] = [record.x or blank for record in run]
            rates[own] = [
                (record.elapsed, record.changepoint, math.nan, record.outlier_rate)
                for record in run
            ]
            offset[own] = seasons_of([record.offset for record in run], model.y_dim)
            hazards += [record.hazard for record in run]
            continue
        y[own], inputs, rates[own], seasons = stored_records.columns_of(run, model.y_dim)
        if inputs.shape[1]:
            x[own] = inputs
        if seasons is not None:
            offset[own] = seasons
        hazards += [None if hazard != hazard else hazard for hazard in rates[own, 2].tolist()]
    elapsed, changepoint, _, outlier_rate = rates.T
    table = columns.hazard_table(model, hazards)
    return Columns(y, x, elapsed, changepoint, outlier_rate, table, offset)


def past_of(
    model: UnderlyingModel,
    records: Sequence[Record],
    last: list[tuple[int, float]] | None = None,
) -> Past:
    """Records as what counts as applied; last: override of the belief after them, if any."""
    made = [*(record.belief_override for record in records), last]
    overrides = {at: belief for at, belief in enumerate(made) if belief}
    previous = [record.previous_start for record in records]
    times = [record.time for record in records]
    return Past(columns_of(model, records), previous, overrides, times)


def recall_errors(
    slab: Slab, row: int, records: Sequence[Record], outlying: Container[int]
) -> None:
    """Have a row learn the errors of what records were answered, after it was replayed.

    outlying: places of the records whose labels are outliers.
    """
    known = [
        (
            numbers(own.y),
            at in outlying,
            own.uncorrected,
            [own.quantiles[LOWER], own.quantiles[UPPER]],
        )
        for at, own in enumerate(records)
        if own.y is not None and own.uncorrected is not None and own.quantiles is not None
    ]
    if known:
        y, strange, medians, intervals = map(np.array, zip(*known, strict=True))
        slab.recall(row, y, strange, medians, intervals)


def inputs(slab: Slab, records: Sequence[Record]) -> Inputs:
    """Tensors of one observation of each stream, where the slab is."""
    seen = columns_of(slab.model, records)
    return columns.inputs_of(slab.model, columns.packed(slab.model, seen), slab.device)


def label_of(record: Record, outputs: int) -> list[float]:
    """Label of so many outputs; nan where one is missing."""
    if type(record.y) is float:  # a third of the time
        return [record.y]
    return numbers(record.y) or [math.nan] * outputs


def elapsed(seen: Observation, interval: float | None, last: float | None) -> float:
    """Steps since the observation before: as stated, else by its time, else one.

    interval: seconds in a step, None where times do not count. last: when that one was.
    """
    if seen.elapsed is not None:
        return seen.elapsed
    if interval is None or seen.time is None or last is None:
        return 1.0
    return min(max(0.0, timestamps.seconds(seen.time) - last) / interval, LONGEST_ELAPSED)


def check(
    observations: Sequence[Observation], first: int, interval: float | None, last: float | None
) -> None:
    """Raise TimeBackwards where one is from before the one before it, and times count."""
    if interval is None:
        return
    for i, seen in enumerate(observations, first):
        if seen.time is None:
            continue
        now = timestamps.seconds(seen.time)
        if last is not None and now < last and seen.elapsed is None:
            where = "" if len(observations) == 1 and first == 0 else f"observations[{i}]."
            raise TimeBackwards(
                f"{where}time: {last - now:g} s before the previous observation; give "
                "`elapsed`, or post in order",
                field="time",
            )
        last = now
