"""Observations on their way through the filter: warm-up, steps in batches, records and events."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from model_core.labels import LARGEST
from model_core.readout import Readout
from model_core.stream import columns, warmup
from model_core.stream.slab import Slab, Step
from model_core.stream.step import follow
from service.observability import metrics
from service.problems import LabelOutOfRange, NumericalFault, ServiceError
from service.wire import Event, Head, Record, latest, numbers, timestamps
from service.worker.filtering import alarm_threshold, events, seasons
from service.worker.streams import step_inputs
from service.worker.streams.answers import PendingAnswer
from service.worker.streams.registry import Engine
from service.worker.streams.series import by_slab, replay_buffers, through
from service.worker.streams.stream import Stream


def observe(
    engine: Engine, work: Sequence[tuple[Stream, PendingAnswer]]
) -> list[ServiceError | None]:
    """Apply one observation to each of several streams; fills in readouts and places."""
    failed: dict[int, ServiceError] = {}
    wake(engine, [stream for stream, _ in work])
    for slab, group in by_slab(pair for pair in work if pair[0].slab is not None):
        engine.tick()
        failed.update((id(answer), refusal) for answer, refusal in _advance(engine, slab, group))
    _warm_up(engine, [pair for pair in work if pair[0].slab is None])
    return [failed.get(id(answer)) for _, answer in work]


def _advance(
    engine: Engine, slab: Slab, group: list[tuple[Stream, PendingAnswer]]
) -> list[tuple[PendingAnswer, ServiceError]]:
    for stream, answer in group:
        answer.record.offset = stream.offset()
    rows = [stream.row for stream, _ in group]
    confirmed, thresholds = step_inputs.alarm_inputs([stream.live() for stream, _ in group])
    detailed = [answer.detailed for _, answer in group]
    seen = step_inputs.columns_of(slab.model, [answer.record for _, answer in group])
    steps = slab.step(rows, seen, confirmed, thresholds, detailed)
    faults: list[tuple[PendingAnswer, ServiceError]] = []
    for (stream, answer), step in zip(group, steps, strict=True):
        if not step.readout.ok:
            faults.append((answer, _fault(stream.live(), answer.record)))
        elif _apply(engine, stream, answer, step):
            _begin_anew(engine, stream, answer)
    _measure(group[0][1].model, [answer for _, answer in group])
    return faults


def observe_series(
    engine: Engine, stream: Stream, answers: Sequence[PendingAnswer], believed: bool = False
) -> tuple[int, ServiceError | None]:
    """Apply observations of one stream, one after the other, in few calls of its kernel.

    Returns how many were applied, and why the next one was not. believed: whether answers carry
    the belief after them.
    """
    done = 0
    while done < len(answers):
        records = seasons.foreseen(stream, [answer.record for answer in answers[done:]])
        coming = answers[done : done + len(records)]
        count = 0
        moved = False
        for answer, step in zip(coming, through(stream, records, believed), strict=True):
            if not step.readout.ok:
                break
            moved = _apply(engine, stream, answer, step)
            answer.belief = step.belief
            count += 1
        _measure(coming[0].model, coming[:count])
        done += count
        assert stream.slab is not None
        if moved:
            _begin_anew(engine, stream, answers[done - 1])
            if believed:
                answers[done - 1].belief = stream.slab.belief(stream.row)
        elif count < len(coming):
            return done, _fault(stream.live(), coming[count].record)
    return done, None


def _apply(engine: Engine, stream: Stream, answer: PendingAnswer, step: Step) -> bool:
    """Enter a step into its answer and the stream; returns whether its filter begins anew."""
    record = answer.record
    answer.enter(step)
    answer.event = publish_events(stream, track_events(stream, record, step.readout), record.time)
    if (raised := events.alarm(stream.live(), record, step.predictive)) is not None:
        stream.raise_anomaly(raised, record.time)
        metrics.ANOMALIES.labels(stream.live().settings.model).inc()
    advance_head(stream.live(), record, record.log_score)
    stream.put(record)
    if stream.slab is not None and alarm_threshold.uncalibrated(stream.live(), stream.slab):
        stream.ask_calibration()
    moved = seasons.observe(engine, stream, record)
    answer.season = stream.live().season
    return moved


def _begin_anew(engine: Engine, stream: Stream, answer: PendingAnswer) -> None:
    seasons.begin_anew(engine, stream)
    answer.season = stream.live().season


def wake(engine: Engine, streams: Iterable[Stream]) -> None:
    """Begin filtering where no warm-up is needed, or none any more."""
    ready = [stream for stream in streams if _needs_no_warmup(engine, stream)]
    if ready:
        _begin(engine, ready)


def _needs_no_warmup(engine: Engine, stream: Stream) -> bool:
    """Whether the stream's prior is known before its first label."""
    head = stream.live()
    if head.warm or head.y_dim is None:
        return False
    moments = warmup.given(engine.catalogue.of(head), head.stated)
    if moments is not None:
        head.location, head.scale = moments
    return moments is not None


def _begin(engine: Engine, streams: list[Stream]) -> None:
    """Start filters with a known location and scale, through the retained observations."""
    engine.begin(streams)
    for stream in streams:
        stream.live().warm = True
    for stream, record, readout in replay_buffers(streams, engine.tick):
        record.previous_start = readout.born_previous_start  # it stays as it was answered
        stream.put(record)
        publish_events(stream, track_events(stream, record, readout), record.time)


def _warm_up(engine: Engine, cold: list[tuple[Stream, PendingAnswer]]) -> None:
    """Answer from one regime, keep the records, begin where enough labels are there."""
    groups: dict[int, tuple[Slab, list[tuple[Stream, PendingAnswer]]]] = {}
    for stream, answer in cold:
        slab = engine.slab(stream.live())
        groups.setdefault(id(slab), (slab, []))[1].append((stream, answer))
    warm = []
    for slab, group in groups.values():
        model = slab.model
        _forecast(slab, group)
        for stream, answer in group:
            head = stream.live()
            record = answer.record
            advance_head(head, record, None)
            stream.buffer = [*stream.buffer, record]
            stream.put(record)
            seasons.warming_up(stream, record)
            answer.season = head.season
            labelled = [record for record in stream.buffer if record.y is not None]
            values = columns.values(model, step_inputs.columns_of(model, labelled))
            if warmup.complete(values, model.y_dim, head.settings.warmup, len(stream.buffer)):
                head.y_dim = head.y_dim or 1
                head.location, head.scale = warmup.estimated(model, values, head.stated)
                warm.append((stream, answer))
    _begin(engine, [stream for stream, _ in warm])
    for stream, answer in warm:
        answer.event = stream.live().track.event or stream.live().track.last_event


def _forecast(slab: Slab, group: list[tuple[Stream, PendingAnswer]]) -> None:
    """Predict the labels of streams that warm up, where two labels before them differ."""
    for stream, answer in group:
        answer.offset = answer.record.offset = stream.offset()
    steps = warmup.forecasts(
        slab,
        [step_inputs.columns_of(slab.model, stream.buffer) for stream, _ in group],
        [stream.live().stated for stream, _ in group],
        step_inputs.columns_of(slab.model, [answer.record for _, answer in group]),
        [answer.detailed for _, answer in group],
    )
    for (_, answer), step in zip(group, steps, strict=True):
        if step is None:
            answer.offset = answer.record.offset = 0.0
            continue
        answer.place = step.predictive
        if not math.isnan(step.readout.log_score):
            answer.record.log_score = step.readout.log_score


def publish_events(stream: Stream, moved: list[Event], time: str | None) -> Event | None:
    """Have events written and counted; returns the last of them. time: of the observation."""
    if not moved:
        return None
    stream.raise_events(moved, time)
    for event in moved:
        metrics.count_change(stream.live().settings.model, event, stream.name)
    return moved[-1]


def track_events(stream: Stream, record: Record, readout: Readout) -> list[Event]:
    """Enter a step's numbers into the head, and follow the events; returns those that moved."""
    head = stream.live()
    quantity = stream.slab is not None and stream.slab.model.label != "class"
    confirm_after = head.settings.confirm_after or 0
    moved = follow(head, readout, record.seq, confirm_after, head.threshold, quantity, record.time)
    head.regime = readout.regime
    head.pruned_mass = readout.pruned_mass
    head.pruned_mass_sum += readout.pruned_mass
    return moved


def _measure(model: str, answers: Sequence[PendingAnswer]) -> None:
    """Count what a step of one slab gave; its streams share their model."""
    readouts = [a.readout for a in answers if a.readout is not None]
    changes = [readout.changepoint_probability for readout in readouts]
    metrics.observe_all(metrics.CHANGEPOINT_PROBABILITY, changes)
    steps = metrics.Steps(
        [a.record.log_score for a in answers if a.record.log_score is not None],
        [readout.pruned_mass for readout in readouts],
        [readout.map_run_length for readout in readouts],
    )
    metrics.count_steps(model, steps)


def _fault(head: Head, record: Record) -> ServiceError:
    scaling = zip(numbers(record.y), head.location or [], head.scale or [], strict=False)
    if any(abs(y - location) > LARGEST * scale for y, location, scale in scaling):
        return LabelOutOfRange(
            f"y: more than {LARGEST:g} scales from the stream's location", field="y"
        )
    metrics.NUMERICAL_FAULTS.inc()
    return NumericalFault(
        f"the filter step at seq {record.seq} gave a non-finite number; the observation was "
        "not applied",
        seq=record.seq,
    )


def advance_head(head: Head, record: Record, score: float | None) -> None:
    """Move a head on by an observation; score: what it counts for, None in the warm-up."""
    head.seq += 1
    head.last_label = latest(head.last_label, record.y)
    head.pending_supervision = head.belief_override = None
    if record.time is not None:  # also where times do not count yet
        head.last_time = timestamps.seconds(record.time)
    if score is not None:
        head.log_score_sum += score
        head.scored += 1
