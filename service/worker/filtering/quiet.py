"""Quiet observations: plain numbers of streams at rest, stepped and entered as columns.

A stream is at rest while nothing is awaited or stated, and until its season, its scale or the start
of its last change is looked at again. Nearly all observations find it so and leave it so: they move
no event and raise no alarm. One that does is entered as any other, by the step that was made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf, isfinite, nan
from typing import NamedTuple

import numpy as np

from model_core import readout
from model_core.readout import Readout
from model_core.stream import explained
from model_core.stream.columns import Columns
from model_core.stream.events import Watch
from model_core.stream.slab import AT_ONCE, Slab, Step, Stepped, SummaryRow
from model_core.stream_settings import Hazard
from service.wire import Envelope, Observation, QuietAnswers, Record, StoredAnswer
from service.wire.answers import LOWER, MEDIAN, SUMMARY_NUMBERS, UPPER, quiet_row
from service.worker.filtering.pipeline import advance_head, measure
from service.worker.streams import answers, calibration_metrics, step_inputs
from service.worker.streams.stream import Stream
from service.worker.streams.validation import plain_number


class Rest(NamedTuple):
    """What the next observations of a stream at rest have in common.

    until: position of the first that has to be looked at. suspected: start of the event under
    suspicion. alarm: least anomaly of an alarm.
    """

    slab: Slab
    model: str
    until: float
    watch: Watch
    suspected: int | None
    hazard: Hazard | None
    outlier_rate: float
    alarm: float


class Run(NamedTuple):
    """Plain numbers that come to a stream at rest, before `until`.

    envelope: of their command. full: whether answers have details.
    """

    stream: Stream
    rest: Rest
    seen: Sequence[Observation]
    envelope: Envelope
    full: bool


class Entered(NamedTuple):
    """Answers to the quiet observations of a run, and what the next one gave, if it was alone."""

    applied: int
    answers: Sequence[QuietAnswers | StoredAnswer]
    step: Step | None = None


def rest_of(stream: Stream) -> Rest | None:
    """What is common to the next observations of a stream; None where it is not at rest."""
    slab = stream.slab
    head = stream.head
    if slab is None or head is None or not slab.in_series or slab.model.label != "real":
        return None
    if head.x_dim != 0 or head.y_dim != 1 or head.settings.interval is not None:
        return None
    if head.deleted or not head.warm or stream.broken or stream.unserved or stream.buffer:
        return None
    stated = head.pending_supervision is not None or head.belief_override is not None
    if stated or head.pending or stream.ahead is not None:
        return None
    track = head.track
    if head.season is not None or stream.season_state is not None or head.settings.regimes:
        return None
    if track.event is not None and not head.settings.threshold:
        return None  # it is confirmed by time
    until = stream.next_look - 1.0 if slab.model.seasonal else inf
    if track.last_event is not None:
        until = min(until, explained.next_due(track.last_event, head.seq))
    hazard, outlier_rate = step_inputs.effective_rates(slab.model, head.settings)
    alarm = head.settings.anomaly_alarm
    return Rest(
        slab,
        head.settings.model,
        until,
        head.watch,
        None if track.event is None else track.event.start,
        hazard,
        outlier_rate,
        inf if alarm is None else alarm,
    )


def plain(seen: Observation) -> bool:
    """Whether an observation is a number that every stream of one takes, and nothing else."""
    if not plain_number(seen):
        return False
    return seen.elapsed is None and seen.changepoint is None and not seen.pending


def run_of(
    stream: Stream,
    seen: Sequence[Observation],
    envelope: Envelope,
    full: bool,
    known: bool = False,
) -> Run | None:
    """The first of these observations, as far as the stream is at rest, and they are plain.

    known: whether they are known to be plain.
    """
    rest = stream.rest
    if rest is None:
        rest = stream.rest = rest_of(stream)
        if rest is None:
            return None
    left = rest.until - stream.live().seq
    if left < 1:
        return None
    if len(seen) > 1:
        seen = seen[: int(min(left, AT_ONCE))]
    if not known and not all(map(plain, seen)):
        return None
    return Run(stream, rest, seen, envelope, full)


def advance(slab: Slab, runs: Sequence[Run]) -> list[Entered]:
    """Step distinct streams of a slab by their runs; enter the quiet observations of each.

    The row of a run of several is left before the first that is not quiet.
    """
    before = {run.stream.row: slab.read([run.stream.row]) for run in runs if len(run.seen) > 1}
    stepped = _stepped(slab, runs)
    lines = readout.rows(stepped.table)
    anomalies = stepped.anomaly.tolist()
    at = 0
    quiet: list[range] = []
    for run in runs:
        end = at + len(run.seen)
        moved = (i for i in range(at, end) if not _quiet(run, i - at, lines[i], anomalies[i]))
        quiet.append(range(at, next(moved, end)))
        at = end
    assert stepped.predicted is not None
    values: Iterator[list[float]] = iter(())
    encoded: dict[bool, bytes] = {}  # rows of numbers, with details or without
    chosen = [i for own in quiet for i in own]
    if chosen:
        model = runs[0].rest.model
        measure(model, [lines[i] for i in chosen])
        predicted = stepped.predicted.rows(chosen)
        calibration_metrics.measure(predicted, [model] * len(chosen))
        rows = answers.quiet_rows(predicted, stepped, chosen)
        values = iter(rows.tolist())
        for full in {run.full for run in runs}:
            encoded[full] = rows[:, : None if full else SUMMARY_NUMBERS].tobytes()
    entered: list[Entered] = []
    place = 0  # in `chosen`
    for run, own in zip(runs, quiet, strict=True):
        step = None
        if len(own) < len(run.seen):
            if len(run.seen) == 1:
                forecast = SummaryRow(stepped.predicted, own.stop)
                step = Step(lines[own.stop], forecast, anomalies[own.stop])
            else:
                row = run.stream.row
                slab.write([row], before[row])
                if own:
                    _stepped(slab, [run._replace(seen=run.seen[: len(own)])])
        records = [
            _enter(run, seen, lines[i], numbers)
            for seen, i, numbers in zip(run.seen, own, values)  # noqa: B905  # to its end
        ]
        given = _answers(run, records, lines[own.start : own.stop], encoded, place) if own else []
        place += len(own)
        entered.append(Entered(len(own), given, step))
    return entered


def _answers(
    run: Run,
    records: Sequence[Record],
    lines: Sequence[Readout],
    encoded: Mapping[bool, bytes],
    place: int,
) -> list[QuietAnswers | StoredAnswer]:
    """Answers to the quiet observations of a run, whose numbers are at a place of those encoded."""
    first = records[0].seq
    if not first or run.rest.slab.model.typical:  # no change before it; typical regimes by name
        pairs = zip(records, lines, strict=True)
        return [answers.of_record(record, line, run.full) for record, line in pairs]
    size = quiet_row(run.full).size
    rows = encoded[run.full][size * place : size * (place + len(records))]
    return [QuietAnswers(first, rows)]


def _stepped(slab: Slab, runs: Sequence[Run]) -> Stepped:
    """Steps of the rows of streams, by one observation after the other of each."""
    owners = [run for run in runs for _ in run.seen]
    count = len(owners)
    labels = [seen.y for run in runs for seen in run.seen]
    seen = Columns(
        y=np.array(labels, dtype=np.float64)[:, None],
        x=np.empty((count, 0)),
        elapsed=np.ones(count),
        changepoint=np.full(count, nan),
        outlier_rate=np.array([run.rest.outlier_rate for run in owners]),
        hazard=step_inputs.hazard_table(slab.model, [run.rest.hazard for run in owners]),
        offset=np.zeros(count),
    )
    rows = [run.stream.row for run in owners]
    return slab.stepped(rows, seen, [run.rest.watch for run in owners])


def _quiet(run: Run, at: int, line: Readout, anomaly: float) -> bool:
    """Whether the step by an observation of a run was taken, moves no event and alarms nobody."""
    rest = run.rest
    start = run.stream.live().seq + at - line.event_run_length
    if rest.suspected is None:
        still = start <= rest.watch.settled
    else:
        still = start == rest.suspected and line.evidence < rest.watch.threshold
    return still and line.ok and anomaly < rest.alarm


def _enter(run: Run, seen: Observation, line: Readout, numbers: list[float]) -> Record:
    """Enter a quiet observation into its stream; returns its record.

    numbers: `QuietNumbers` of the step, which all exist but for the variance.
    """
    stream = run.stream
    rest = run.rest
    head = stream.live()
    mean, lower, median, upper, changed_probability, evidence, anomaly, *details = numbers
    variance, log_score, changepoint_probability, recent_change_probability, *_ = details
    record = Record(
        seq=head.seq,
        y=seen.y,
        x=seen.x,
        time=seen.time,
        elapsed=1.0,
        changepoint=None,
        hazard=rest.hazard,
        outlier_rate=rest.outlier_rate,
        log_score=log_score,
        changed_probability=changed_probability,
        evidence=evidence,
        changepoint_probability=changepoint_probability if head.seq else None,
        recent_change_probability=recent_change_probability,
        map_run_length=line.map_run_length,
        mean=[mean],
        quantiles={LOWER: [lower], MEDIAN: [median], UPPER: [upper]},
        previous_start=line.born_previous_start,
        variance=[[variance]] if isfinite(variance) else None,
        anomaly=anomaly,
        regime=line.regime,
        accepted_ms=run.envelope.time_ms if seen.time is None else None,
    )
    head.read(line)
    advance_head(head, record, record.log_score)
    head.seq += 1
    stream.put(record)
    return record
