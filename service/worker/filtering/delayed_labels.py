"""Labels that come later: their inputs wait for them, and what follows waits behind them.

A stream's own state stands before the first observation whose label is to come. What follows is
kept in the head, and answered from a second state that ran ahead without those labels: such an
answer is provisional. A label that comes in, or is given up because too many wait, moves the
stream's own state on, in order of `seq`, as far as labels are known.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from model_core.stream.columns import effective_rates
from model_core.stream.series import Taken
from model_core.stream.slab import Slab
from service.problems import NotAwaited, ServiceError
from service.wire import Head, Observation, Observe, PendingSettings, Record, timestamps
from service.worker.filtering.pipeline import StoredPipeline
from service.worker.streams import step_inputs
from service.worker.streams.answers import PendingAnswer
from service.worker.streams.registry import Engine
from service.worker.streams.stream import Ahead, Stream
from service.worker.streams.validation import check_position

Settled = Callable[[PendingAnswer], None]


def concerned(stream: Stream, command: Observe) -> bool:
    """Whether the command involves a pending label."""
    head = stream.head
    if head is not None and head.pending and not head.deleted:
        return True
    return any(seen.pending for seen in command.observations)


def awaited(head: Head, command: Observe) -> int | None:
    """Index among those pending of what a late label is for; None where it is a new observation.

    Raises SeqConflict, also of a label that was given up, and NotAwaited.
    """
    seq = command.seq
    if seq is None or seq >= head.next_seq or len(command.observations) != 1:
        return None
    index = seq - head.seq
    seen = command.observations[0]
    if index < 0 or not head.pending[index].pending:
        check_position(seq, head.next_seq)
    if seen.pending or (seen.x is not None and seen.x != head.pending[index].x):
        raise NotAwaited(
            f"the input of seq {seq} was posted with the observation: post the pending label "
            "without `x` and `pending`",
            field="x",
        )
    return index


def label(
    engine: Engine,
    stream: Stream,
    index: int,
    seen: Observation,
    settled: Settled,
    request: Observe,
) -> tuple[PendingAnswer, ServiceError | None]:
    """Take a late label in; answers for its observation, provisionally if others are before it."""
    head = stream.live()
    waiting = head.pending[index]
    changepoint = waiting.changepoint if seen.changepoint is None else seen.changepoint
    head.pending[index] = replace(waiting, y=seen.y, changepoint=changepoint, pending=False)
    if stream.ahead is not None and stream.ahead.count > index:
        stream.come_back()  # it went past without the label
    if index:
        return _run_ahead(engine, stream, index + 1, request), None
    done = _settle(engine, stream, settled, request)
    return done[0]


def append(
    engine: Engine, stream: Stream, seen: Observation, settled: Settled, request: Observe
) -> tuple[PendingAnswer, ServiceError | None]:
    """Take a new observation in; answers for it."""
    head = stream.live()
    if seen.pending and not head.settings.label_window:
        raise NotAwaited("pending labels are disabled: `label_window` is 0")
    head.pending.append(seen)
    if len(head.pending) > head.settings.label_window and head.pending[0].pending:
        head.pending[0] = replace(head.pending[0], pending=False)  # as what ran ahead has it
    done = _settle(engine, stream, settled, request)
    if not head.pending:
        return done[-1]
    return _run_ahead(engine, stream, len(head.pending), request), None


def newest(engine: Engine, stream: Stream) -> int:
    """Row of the state after everything that was posted."""
    count = len(stream.live().pending)
    if not count or stream.slab is None:
        return stream.row
    if stream.ahead is None or stream.ahead.count < count:
        _run_ahead(engine, stream, count)
    assert stream.ahead is not None
    return stream.ahead.row


def _settle(
    engine: Engine, stream: Stream, settled: Settled, request: Observe
) -> list[tuple[PendingAnswer, ServiceError | None]]:
    """Apply what waits for no label, in order; one that cannot be applied counts as missing."""
    head = stream.live()
    pipeline = StoredPipeline(engine)
    answers = list[tuple[PendingAnswer, ServiceError | None]]()
    while head.pending and not head.pending[0].pending:
        seen = head.pending.pop(0)
        record = _record(engine, stream, head.seq, seen)
        answer = PendingAnswer(head.settings.model, record, request)
        (refusal,) = pipeline.step([(stream, answer)])
        if refusal is not None:
            answer.record.y = None
            pipeline.step([(stream, answer)])
        _believe(stream.slab, stream.row, answer)
        settled(answer)
        answers.append((answer, refusal))
        if stream.ahead is not None and stream.ahead.count > 1:
            # What ran ahead went through the same observation: nothing waited before it.
            stream.ahead = stream.ahead._replace(count=stream.ahead.count - 1)
        else:
            stream.come_back()  # it is not ahead any more
    if answers and stream.season_state is not None:
        stream.come_back()  # it went ahead with the seasons of before
    head.pending_settings = (
        [settings for settings in head.pending_settings if settings.until > head.seq]
        if head.pending
        else []
    )
    return answers


def _run_ahead(
    engine: Engine, stream: Stream, count: int, request: Observe | None = None
) -> PendingAnswer:
    """Bring the state ahead after the first `count` that are pending; answers for the last."""
    StoredPipeline(engine).wake([stream])  # the very first may wait for its label
    head = stream.live()
    slab = stream.slab
    seq = head.seq + count - 1
    record = _record(engine, stream, seq, None)
    answer = PendingAnswer(head.settings.model, record, request)
    answer.provisional = True
    answer.taken = Taken(seq, season=head.season)
    if slab is None:  # in the warm-up there is nothing to say yet
        return answer
    if stream.ahead is None or stream.ahead.count >= count:
        stream.come_back()
        row = slab.add(slab.row(stream.row))
        stream.ahead = Ahead(row, 0)
    while stream.ahead.count < count:
        engine.tick()
        at = stream.ahead.count
        record = _record(engine, stream, head.seq + at, head.pending[at])
        seen = step_inputs.columns_of(slab.model, [record])
        own = [stream.ahead.row]
        watched = [head.watch]
        (step,) = slab.step(own, seen, watched, [answer.detail])
        if not step.readout.ok:  # it will count as missing
            missing = seen.unlabelled(0)
            (step,) = slab.step(own, missing, watched, [answer.detail])
        stream.ahead = stream.ahead._replace(count=at + 1)
        answer.record = record
        answer.enter(Taken(record.seq, step, record.offset, warm=True, season=head.season))
    _believe(slab, stream.ahead.row, answer)
    return answer


def _believe(slab: Slab | None, row: int, answer: PendingAnswer) -> None:
    """Add the belief after an observation, where its request names it and there is a filter."""
    request = answer.request
    if slab is not None and request is not None and request.belief and answer.taken is not None:
        answer.taken.belief = slab.belief(row)


def _record(engine: Engine, stream: Stream, seq: int, seen: Observation | None) -> Record:
    head = stream.live()
    seen = head.pending[seq - head.seq] if seen is None else seen
    kept = (settings for settings in head.pending_settings if seq < settings.until)
    settings = next(kept, None) or _current(engine, head)
    times = [own.time for own in head.pending[: max(0, seq - head.seq)] if own.time is not None]
    last_time = timestamps.seconds(times[-1]) if times else head.last_time
    elapsed = step_inputs.elapsed(seen, settings.interval, last_time)
    rates = settings.hazard, settings.outlier_rate
    supervision = head.pending_supervision if seq == head.seq else None
    record = step_inputs.record_of(seq, seen, elapsed, supervision, rates, head.updated_ms)
    record.offset = stream.offset(seq - head.seq)
    record.belief_override = head.belief_override if seq == head.seq else None
    return record


def keep_met(engine: Engine, head: Head) -> None:
    """Record the settings that pending observations arrived under, before they change."""
    kept = head.pending_settings
    if head.pending and (not kept or kept[-1].until < head.next_seq):
        kept.append(_current(engine, head))


def _current(engine: Engine, head: Head) -> PendingSettings:
    hazard, outlier_rate = effective_rates(engine.catalogue.of(head), head.settings)
    return PendingSettings(head.next_seq, hazard, outlier_rate, head.settings.interval)
