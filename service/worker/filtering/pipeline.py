"""The pipeline of streams: observations become records, which their streams keep and commit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

import numpy as np

from model_core.labels import LARGEST
from model_core.readout import Readout
from model_core.stream import warmup
from model_core.stream.columns import Columns, Floats
from model_core.stream.events import Event
from model_core.stream.pipeline import Pipeline
from model_core.stream.series import Moved, Taken
from model_core.stream.slab import Detail, Past, Slab, Step
from model_core.stream.state import SeenLabels, kept_season
from service.observability import metrics
from service.problems import LabelOutOfRange, NumericalFault, ServiceError
from service.store.streams import UnreadablePart
from service.wire import Head, Record, latest, numbers, timestamps
from service.worker.streams import step_inputs
from service.worker.streams.answers import PendingAnswer, gathered
from service.worker.streams.registry import Engine, by_slab
from service.worker.streams.stream import Stream

Work = tuple[Stream, PendingAnswer]  # the next observation of a stream


class StoredMark(NamedTuple):
    """A stream in its warm-up."""

    head: Head
    buffer: Sequence[Record | bytes]
    season_state: Floats | None


class StoredPipeline(Pipeline[Stream, PendingAnswer, Sequence[Record], StoredMark]):
    """Moves the streams of a worker; what it changes waits for their next commit.

    The labels that a stream is searched for seasons in are the same when a record is applied once
    more after a crash: history is trimmed in commits alone, a commit trims what is older than
    `history` before its last observation, and the search looks back no further than that from a
    later one. Who has lost the partition may find less, but cannot commit it. Only after `history`
    was raised what is there depends on where the commits before ended; what was committed stands in
    any case.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    # --- steps ----------------------------------------------------------------------------------

    def step(self, work: Sequence[Work]) -> list[ServiceError | None]:
        """Apply one observation to each of several streams; returns why one was not."""
        self.wake([stream for stream, _ in work if stream.slab is None])
        refusals: dict[int, ServiceError] = {}
        cold = [pair for pair in work if pair[0].slab is None]
        for slab, group in by_slab(pair for pair in work if pair[0].slab is not None):
            self._engine.tick()
            taken = self.observe(slab, group, self._columns(slab, group), _details(group))
            gathered.add_readouts(group[0][1].model, _readouts(taken))
            refusals.update(_refusals(group, taken))
        for slab, group in by_slab(cold, self._engine.slab):
            taken = self.warm_up(slab, group, self._columns(slab, group), _details(group))
            refusals.update(_refusals(group, taken))
        return [refusals.get(id(answer)) for _, answer in work]

    def step_series(
        self, stream: Stream, answers: Sequence[PendingAnswer], believed: bool = False
    ) -> tuple[int, ServiceError | None]:
        """Apply observations of one stream, one after the other, in few calls of its kernel.

        During its warm-up at most `waiting` are taken. Returns how many were applied, and why the
        next one was not. believed: whether answers carry the belief after them.
        """
        work = [(stream, answer) for answer in answers]
        slab = stream.slab
        if slab is None:
            slab = self._engine.slab(stream.live())
            seen = self._columns(slab, work)
            taken = [*filter(None, self.warm_up(slab, work, seen))]
            if believed and stream.slab is not None and taken:
                taken[-1].belief = slab.belief(stream.row)
        else:
            seen = self._columns(slab, work)
            taken = self.observe_series(slab, stream, answers, seen, believed)
            gathered.add_readouts(answers[0].model, _readouts(taken))
        if len(taken) == len(answers):
            return len(taken), None
        return len(taken), _fault(stream.live(), answers[len(taken)].record)

    def enter_steps(self, work: Sequence[Work], steps: Sequence[Step]) -> list[ServiceError | None]:
        """Apply an observation of each of several streams that its row was stepped by already.

        Returns why one was not.
        """
        slabs = [slab for stream, _ in work if (slab := stream.slab) is not None]
        labels = [numbers(answer.record.y) for _, answer in work]
        pairs = zip(work, labels, strict=True)
        offsets = [stream.offset() or [0.0] * len(label) for (stream, _), label in pairs]
        taken = self.take_steps(work, slabs, steps, offsets, labels)
        for (_, answer), own in zip(work, taken, strict=True):
            gathered.add_readouts(answer.model, _readouts([own]))
        refusals = _refusals(work, taken)
        return [refusals.get(id(answer)) for _, answer in work]

    def waiting(self, stream: Stream) -> int:
        """One, too, where no warm-up is needed: the stream wakes with it."""
        head = stream.live()
        if warmup.given(self._engine.model(stream, head), head.settings) is not None:
            return 1
        return super().waiting(stream)

    def wake(self, streams: Iterable[Stream]) -> None:
        """Begin filtering where no warm-up is needed, or none any more."""
        ready = []
        for stream in streams:
            head = stream.live()
            if head.warm or head.y_dim is None:
                continue
            moments = warmup.given(self._engine.catalogue.of(head), head.settings)
            if moments is not None:
                head.location, head.scale = moments
                ready.append((stream, None))
        for slab, group in by_slab(ready, self._engine.slab):
            self.begin(slab, [stream for stream, _ in group])

    def begin(self, slab: Slab, chosen: Sequence[Stream]) -> list[list[Moved] | None]:
        """As any pipeline does; the records that waited are replayed."""
        moved = super().begin(slab, chosen)
        for stream, changed in zip(chosen, moved, strict=True):
            if changed is not None:
                head = stream.live()
                head.warm = True
                head.y_dim = head.y_dim or 1
                stream.buffer = ()
        return moved

    def _columns(self, slab: Slab, work: Sequence[Work]) -> Columns:
        return step_inputs.columns_of(slab.model, [answer.record for _, answer in work])

    # --- storage of observations ----------------------------------------------------------------

    def enter(self, stream: Stream, answer: PendingAnswer, taken: Taken) -> None:
        """Have the record written with the next commit."""
        head = stream.live()
        record = answer.record
        answer.enter(taken)
        advance_head(head, record, record.log_score if taken.warm else None)
        stream.tail.put(record)
        if record.excluded is not None:
            metrics.EXCLUDED.labels("planned").inc()
        if not taken.warm:
            stream.buffer = [*stream.buffer, record]

    def kept(self, stream: Stream, most: int | None = None) -> Sequence[Record]:
        """Records of the warm-up, or the last that are retained."""
        if most is None:
            return stream.buffered()
        self._engine.tick()
        try:
            return stream.tail.retained(stream.live(), self._engine.store, most)
        except UnreadablePart as error:
            # No request asked for them: the stream goes on with what it has.
            self._engine.note(stream, f"{error}; going on without it")
            return stream.tail.recent(stream.live())

    def past(self, slab: Slab, kept: Sequence[Record]) -> Past:
        """Records as a filter takes them."""
        return step_inputs.past_of(slab.model, kept)

    def waited(self, slab: Slab, chosen: Sequence[Stream]) -> list[Columns]:
        """By one table for all."""
        every = step_inputs.columns_of(
            slab.model, [*chain.from_iterable(stream.buffer for stream in chosen)]
        )
        ends = [*accumulate((len(stream.buffer) for stream in chosen), initial=0)]
        return [every.part(slice(start, end)) for start, end in pairwise(ends)]

    def correct(
        self,
        stream: Stream,
        kept: Sequence[Record],
        offsets: Floats | None,
        previous: Sequence[int],
    ) -> None:
        """Have the last records written anew."""
        if offsets is not None:
            last = kept[len(kept) - len(offsets) :]
            for record, offset in zip(last, offsets.tolist(), strict=True):
                record.offset = kept_season(offset)
                stream.tail.put(record)
            if not stream.live().warm:
                stream.buffer = kept
        for record, start in zip(kept[len(kept) - len(previous) :], previous, strict=True):
            record.previous_start = start
            stream.tail.put(record)

    def labels(self, asked: Sequence[tuple[Stream, int]]) -> list[SeenLabels | None]:
        """Those of the last records, fewer where `history` is shorter."""
        return self._labels([(stream, stream.first_of_last(most)) for stream, most in asked])

    def values(self, asked: Sequence[tuple[Stream, int]]) -> list[Floats | None]:
        """As `labels`; those that are known are not read again."""
        kept = self._engine.kept_labels
        known = []
        values: list[Floats | None] = []
        unknown: dict[int, tuple[Stream, int]] = {}
        for i, (stream, most) in enumerate(asked):
            first = stream.first_of_last(most)
            known.append(kept.take(stream.tail, first))
            first += len(known[-1])
            values.append(stream.recent(first))
            if values[-1] is None:
                unknown[i] = stream, first
        if unknown:
            for i, read in zip(unknown, self._labels([*unknown.values()]), strict=True):
                values[i] = None if read is None else read.y
        for i, (stream, _) in enumerate(asked):
            y = values[i]
            if y is not None:
                values[i] = y = np.concatenate((known[i], y)) if len(known[i]) else y
                kept.put(stream.tail, stream.seq, y)
        return values

    def _labels(self, asked: Sequence[tuple[Stream, int]]) -> list[SeenLabels | None]:
        """Those from positions on."""
        self._engine.tick()
        rows = [stream.last(first) for stream, first in asked]
        stored = self._engine.store.tails([last.span for last in rows])
        found: list[SeenLabels | None] = []
        for (stream, _), last, blobs in zip(asked, rows, stored, strict=True):
            try:
                found.append(stream.tail.labels(last, blobs, stream.outputs))
            except UnreadablePart as error:
                self._engine.note(stream, f"{error}; going on without it")
                found.append(None)
        return found

    def publish(self, stream: Stream, event: Event, time: str | None) -> bool:
        """Have an event written, told and counted."""
        model = stream.live().settings.model
        stream.raise_events([event], time)
        if event.kind == "anomaly":
            metrics.ANOMALIES.labels(model).inc()
        elif event.news:
            metrics.count_change(model, event, stream.name)
        return False

    def time(self, item: PendingAnswer) -> str | None:
        """As it was posted."""
        return item.record.time

    def named(self, stream: Stream, line: Readout) -> Readout:
        """By the names of now; what was answered before keeps those of then."""
        head = stream.live()
        if not head.regime_names:
            return line
        return line._replace(regime=head.named(line.regime), returned=head.named(line.returned))

    def mark(self, stream: Stream) -> StoredMark:
        """Its head, what waits and its season."""
        state = stream.season_state
        head = copy(stream.live())
        return StoredMark(head, stream.buffer, None if state is None else state.copy())

    def take_back(self, stream: Stream, mark: StoredMark) -> None:
        """Have nothing of its last record written."""
        head = stream.live()
        stream.tail.take_back(head.seq - 1)
        for name in head.__struct_fields__:
            setattr(head, name, getattr(mark.head, name))
        stream.buffer = mark.buffer
        stream.season_state = mark.season_state

    def tick(self) -> None:
        """Give a sign of life."""
        self._engine.tick()

    def begun_anew(self, stream: Stream, kept: Sequence[Record]) -> None:
        """Have all of it committed: observations alone do not lead to this state."""
        stream.come_back()
        for record in kept:
            stream.tail.put(record)
        stream.drop_hindsight()
        self._engine.commit_state(stream)


def _details(work: Sequence[Work]) -> list[Detail | None]:
    return [answer.detail for _, answer in work]


def _refusals(work: Sequence[Work], taken: Sequence[Taken | None]) -> dict[int, ServiceError]:
    """Why observations were refused, by the id of their answers."""
    return {
        id(answer): _fault(stream.live(), answer.record)
        for (stream, answer), own in zip(work, taken, strict=True)
        if own is None
    }


def _readouts(taken: Sequence[Taken | None]) -> list[Readout]:
    """What was read off the beliefs of those that were not refused."""
    return [own.readout for own in taken if own is not None and own.readout is not None]


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
    """Enter an observation into a head, but for its position; score: None in the warm-up."""
    head.last_label = latest(head.last_label, record.y)
    head.pending_supervision = head.belief_override = None
    if record.time is not None:  # also where times do not count yet
        head.last_time = timestamps.seconds(record.time)
    if score is not None:
        head.log_score_sum += score
        head.scored += 1
