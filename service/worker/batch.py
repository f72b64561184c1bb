"""Apply commands in log order: streams in batches, an observation or a series of each at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import cast

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from model_core.errors import OutOfRange, Unfit
from model_core.stream import beliefs
from model_core.stream.checks import Dimensions, check_label, check_observation
from model_core.stream.columns import effective_rates
from model_core.stream.slab import Step
from model_core.upm.base import UnderlyingModel
from service.observability import metrics
from service.problems import (
    Defect,
    KeyReused,
    ServiceError,
    UnknownModel,
    UnknownStream,
    unfit,
)
from service.wire import (
    AS_IT_IS,
    Answers,
    Envelope,
    Head,
    IdempotencyRecord,
    Ingest,
    NumberList,
    Observation,
    Observe,
    ObserveMany,
    Record,
    outputs_of,
    timestamps,
)
from service.wire.rows import Numbers
from service.worker.commands.dispatch import control, observed, usable
from service.worker.filtering import delayed_labels, quiet
from service.worker.filtering.pipeline import StoredPipeline
from service.worker.filtering.quiet import Coming, Entered, Wave
from service.worker.filtering.rewriting import marked, resampled
from service.worker.streams import alarm_period, answers, step_inputs
from service.worker.streams.answers import Filling, PendingAnswer, gathered
from service.worker.streams.registry import Engine
from service.worker.streams.stream import NO_PLACES, Stream, StreamKey, places_of
from service.worker.streams.task import BatchAnswers, CommandTask, RowsTask, Task, key_field
from service.worker.streams.validation import (
    check_details,
    check_position,
    check_sizes,
)

_applied = metrics.OBSERVATIONS.labels("applied")
Ints = NDArray[np.int64]


class StreamQueue:
    """The tasks of one stream, in log order, and how far the current list has come."""

    __slots__ = ("at", "stream", "tasks")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.tasks: deque[CommandTask] = deque()
        self.at = 0  # next observation of the first task


class CommandBatch:
    """Commands of several partitions that are applied and committed together."""

    def __init__(self, engine: Engine, tasks: Sequence[Task]) -> None:
        self.engine = engine
        self.tasks = tasks
        self.lists = [(task.partition, task.names) for task in tasks]
        self._places: dict[Task, Ints] = {}  # rows of their streams in the table
        self._distinct = False  # none of these comes twice
        self._queues: dict[StreamKey, StreamQueue] = {}  # of those for whom something waits
        # Whose idempotency records are to be kept, by stream and field.
        self._keyed: dict[tuple[StreamKey, bytes], CommandTask] = {}
        # The next observation of each of some streams, by which its row was stepped already.
        self._awake: list[tuple[StreamQueue, PendingAnswer, Step]] = []
        self.filling = Filling(engine.waiting_bytes)

    def steps(self) -> Generator[None, None, None]:
        """Run every command, and yield where a rerun can be left for a while, or given up.

        Afterwards each task has its outcome, and streams their changes.
        """
        taken = self.engine.take(self.lists)
        self._places = dict(zip(self.tasks, taken, strict=True))
        places = np.sort(np.concatenate([NO_PLACES, *taken]))
        self._distinct = not np.any(places[1:] == places[:-1])
        self._begin()
        waiting = [queue for queue in self._queues.values() if queue.tasks]
        while waiting:
            self.engine.tick()
            yield from self._round(waiting)
            waiting = [queue for queue in waiting if queue.tasks]
        _applied.inc(self.filling.count)
        self.filling.fill()
        for task in self.tasks:
            task.finish()
        self._remember()

    @cached_property
    def pipeline(self) -> StoredPipeline:
        """Moves streams that are awake."""
        return StoredPipeline(self.engine)

    def places(self) -> dict[int, Ints]:
        """Rows of the streams that the commands are for, by partition."""
        parts: dict[int, list[Ints]] = {}
        for task, places in self._places.items():
            parts.setdefault(task.partition, []).append(places)
        joined = {partition: np.concatenate(own) for partition, own in parts.items()}
        if self._distinct:
            return joined
        return {p: np.array([*dict.fromkeys(own.tolist())]) for p, own in joined.items()}

    def _begin(self) -> None:
        """Apply the rows that are quiet, as nearly all are; have all else wait for its turn.

        Such rows need no task, nor their streams a queue.
        """
        tasks = [
            task
            for task in self.tasks
            if isinstance(task, RowsTask) and _may_be_quiet(task.command, task.envelope)
        ]
        others: dict[RowsTask, list[int]] = {}  # rows that are not begun
        if tasks:
            places = np.concatenate([self._places[task] for task in tasks])
            columns = BatchAnswers(len(places))
            coming = _rows_of(tasks, places, columns)
            waves = quiet.waves_of(self.engine.table, coming, self._allowed(tasks, places))
            others = _left(tasks, coming.commands, waves)
        for task in self.tasks:
            if isinstance(task, RowsTask):
                for row in others.get(task, range(task.first, task.stop)):
                    self._wait(task.task(row))
            else:
                self._wait(task)
        if tasks:
            for runs, wave in waves:
                self._answer(tasks, columns, coming.counts[runs], runs, wave)
            self._enter_awake()

    def _allowed(self, tasks: Sequence[RowsTask], places: Ints) -> NDArray[np.bool_]:
        """Rows of commands whose streams none before them names, and whose keys are not known.

        Those that state a position are at it. places: of the streams of all the rows.
        """
        table = self.engine.table
        allowed = np.ones(len(places), dtype=bool)
        if not self._distinct:
            named: set[int] = set()
            first: list[bool] = []
            for task in self.tasks:
                own_places = self._places[task].tolist()
                if task in tasks:
                    first += [at not in named for at in own_places]
                named.update(own_places)
            allowed &= first
        if any(task.command.seqs for task in tasks):
            seqs = chain.from_iterable(task.of_rows(task.command.seqs) for task in tasks)
            stated = zip(seqs, table.streams_of(places), strict=True)
            allowed &= [seq is None or (own.alive and seq == own.seq) for seq, own in stated]
        if any(task.command.keys for task in tasks):
            keys = chain.from_iterable(task.of_rows(task.command.keys) for task in tasks)
            pairs = zip(keys, table.streams_of(places), strict=True)
            allowed &= [key is None or key_field(key) not in own.remembered for key, own in pairs]
        return allowed

    def _answer(
        self,
        tasks: Sequence[RowsTask],
        columns: BatchAnswers,
        counts: Ints,
        places: Ints,
        wave: Wave,
    ) -> None:
        """Step rows of commands, and answer those that are quiet; others become their next tasks.

        counts: observations of each row. places: of the rows in the columns of all.
        """
        entered = self._advance(wave)
        answering = entered.answering
        whole = entered.counts == counts
        alone = whole & (counts == 1)
        starts = entered.ends - entered.counts
        others = (~alone).nonzero()[0].tolist()
        if others:
            runs = alone.nonzero()[0]
            numbers = entered.numbers[starts[runs]]
            columns.enter(places[runs], answering, entered.firsts[runs], numbers)
        else:
            columns.enter(places, answering, entered.firsts, entered.numbers)
        seasons = {**entered.seasons, **entered.renewed}
        columns.seasons.update((int(places[run]), own) for run, own in seasons.items())
        for run in others:
            task = tasks[wave.commands[run]]
            row = task.row_at(int(places[run]))
            part = answering.layout.encoded(
                entered.numbers[starts[run] : starts[run] + entered.counts[run]], task.command.full
            )
            parts = entered.answers(run, part)
            if whole[run]:
                task.answers[row] = Answers(answering.model, task.command.full, [*parts])
            else:
                own = task.task(row)
                own.take(answering.model, parts, int(entered.counts[run]))
                self._wake(own, entered, run)
        if any(task.command.keys for task in tasks):
            self._keep_answers(tasks, places, wave)

    def _keep_answers(self, tasks: Sequence[RowsTask], places: Ints, wave: Wave) -> None:
        """Keep the answers to rows of a wave that have keys, and were quiet."""
        owners = wave.commands.tolist()
        for run, (owner, place) in enumerate(zip(owners, places.tolist(), strict=True)):
            task = tasks[owner]
            row = task.row_at(place)
            key = None if task.command.keys is None else task.command.keys[row]
            if key is not None and row not in task.tasks:
                digest = task.command.digests[row] if task.command.digests else None
                answers = task.quiet_answers(row)
                record = IdempotencyRecord(digest or "", task.envelope.time_ms, 200, [], answers)
                self._keep(wave.stream(run), key_field(key), record)

    def _wait(self, task: CommandTask) -> StreamQueue:
        key = (task.partition, task.command.stream)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = StreamQueue(self.engine.streams[key])
        queue.tasks.append(task)
        return queue

    def _wake(self, task: CommandTask, entered: Entered, run: int) -> None:
        """Go on with a row that is not all quiet, as a task before those of its stream that wait.

        run: of the row, among those that were entered as far as they were quiet.
        """
        queue = self._wait(task)
        queue.tasks.rotate(1)
        queue.at = int(entered.counts[run])
        command = task.command
        assert isinstance(command, Observe)
        if isinstance(command, Ingest):
            command = task.command = self._ingested(queue, task, command)
        if command.key is not None:
            self._claim(queue, task, key_field(command.key, command.first))
        if run in entered.steps:
            self._awaken(queue, command, entered.steps[run])

    def _claim(self, queue: StreamQueue, task: CommandTask, field: bytes) -> None:
        """Have a task be what a key of its stream stands for."""
        self._keyed[(task.partition, queue.stream.name), field] = task

    def _claimed(self, queue: StreamQueue, field: bytes) -> CommandTask | None:
        """The task of this batch that a key of a stream stands for."""
        return self._keyed.get(((queue.stream.partition, queue.stream.name), field))

    def _round(self, waiting: Sequence[StreamQueue]) -> Iterator[None]:
        """Apply what is next of each queue that has a command: first what is quiet."""
        tried = self._quiet_runs([queue for queue in waiting if _may_be_next(queue)])
        work = []
        for queue in waiting:
            if queue in tried:
                continue
            self.engine.tick()
            coming = yield from self._next(queue)
            if len(coming) == 1:
                work.append((queue, coming[0]))
            elif coming:
                self._series(queue, coming)
        if work:
            self._step(work)

    def _quiet_runs(self, queues: Sequence[StreamQueue]) -> set[StreamQueue]:
        """Apply the next observations of queues, as far as they are quiet.

        Returns those that were tried: at least one observation of each is applied, or refused.
        """
        if not queues:
            return set()
        tried = []
        waves = quiet.waves_of(self.engine.table, _next_of(queues), self._unknown(queues))
        for places, wave in waves:
            own = [queues[i] for i in places.tolist()]
            for queue in own:
                command = _observed(queue)
                if queue.at == 0 and command.key is not None:
                    self._claim(queue, queue.tasks[0], key_field(command.key, command.first))
            self._quiet(own, self._advance(wave))
            tried += own
        self._enter_awake()
        return {*tried}

    def _unknown(self, queues: Sequence[StreamQueue]) -> NDArray[np.bool_]:
        """Those of queues whose commands were begun, or have no key that is known."""
        unknown = np.ones(len(queues), dtype=bool)
        for i, queue in enumerate(queues):
            command = _observed(queue)
            if queue.at == 0 and command.key is not None:
                field = key_field(command.key, command.first)
                known = field in queue.stream.remembered or self._claimed(queue, field) is not None
                unknown[i] = not known
        return unknown

    def _quiet(self, queues: Sequence[StreamQueue], entered: Entered) -> None:
        """Take answers to the next observations of queues, as far as they were quiet."""
        model = entered.answering.model
        layout = entered.answering.layout
        fulls = {_observed(queue).full for queue in queues}
        answers = {full: layout.encoded(entered.numbers, full) for full in fulls}
        at = 0
        for run, (queue, count) in enumerate(zip(queues, entered.counts.tolist(), strict=True)):
            command = _observed(queue)
            if count:
                size = layout.row_bytes(command.full)
                part = answers[command.full][size * at : size * (at + count)]
                held = beliefs.of_room(entered.room[at : at + count]) if command.belief else None
                stream = queue.stream
                if held and stream in entered.anew and stream.slab is not None:
                    held[-1] = stream.slab.belief(stream.row)
                queue.tasks[0].take(model, entered.answers(run, part, held), count)
                queue.at += count
                at += count
            if run in entered.steps:
                self._awaken(queue, command, entered.steps[run])
            elif queue.at == len(command.observations):
                self._done(queue)

    def _advance(self, wave: Wave) -> Entered:
        """Step runs of streams of a slab; returns what was entered of them."""
        self.engine.tick()
        gathered.add(metrics.BATCH_SIZE, len(wave.places))
        entered = quiet.advance(wave, self.pipeline.look)
        self.filling.count += len(entered.numbers)
        return entered

    def _awaken(self, queue: StreamQueue, command: Observe, step: Step) -> None:
        """Take an observation that was none of the quiet ones, by its step: see `_enter_awake`."""
        stream = queue.stream
        stream.wake()
        seen = command.observations[queue.at : queue.at + 1]
        head = stream.live()
        (record,) = self._records(stream, head, seen, queue.tasks[0].envelope.time_ms)
        answer = PendingAnswer(head.settings.model, record, command)
        self._awake.append((queue, answer, step))

    def _enter_awake(self) -> None:
        """Have the observations count whose streams were awakened for them."""
        if not self._awake:
            return
        awake = self._awake
        self._awake = []
        work = [(queue.stream, answer) for queue, answer, _ in awake]
        failed = self.pipeline.enter_steps(work, [step for _, _, step in awake])
        for (queue, answer, _), refusal in zip(awake, failed, strict=True):
            self._entered(queue, [answer], refusal is None, refusal)

    def _step(self, work: list[tuple[StreamQueue, PendingAnswer]]) -> None:
        """Apply one observation to each of several streams."""
        gathered.add(metrics.BATCH_SIZE, len(work))
        failed = self.pipeline.step([(queue.stream, answer) for queue, answer in work])
        for (queue, answer), refusal in zip(work, failed, strict=True):
            self._entered(queue, [answer], refusal is None, refusal)

    def _series(self, queue: StreamQueue, coming: list[PendingAnswer]) -> None:
        """Apply several observations of one command, one after the other."""
        gathered.add(metrics.BATCH_SIZE, len(coming))
        believed = _observed(queue).belief
        applied, refusal = self.pipeline.step_series(queue.stream, coming, believed)
        self._entered(queue, coming, applied, refusal)

    def _entered(
        self,
        queue: StreamQueue,
        coming: Sequence[PendingAnswer],
        applied: int,
        refusal: ServiceError | None,
    ) -> None:
        """Have a queue's next observations count: so many were applied, the next one is refused."""
        task = queue.tasks[0]
        command = _observed(queue)
        stream = queue.stream
        task.publish(stream)
        if applied:
            taken = coming[0].taken
            slab = stream.slab
            if command.belief and len(coming) == 1 and slab is not None and taken is not None:
                taken.belief = slab.belief(stream.row)  # series have theirs
            task.take(coming[0].model, coming[:applied], applied)
            self.filling.add(*coming[:applied])
            seen = command.observations[queue.at : queue.at + applied]
            self._applied(stream, task.envelope, seen)
            queue.at += applied
        if refusal is not None:
            self._refuse(queue, refusal)
        elif queue.at == len(command.observations):
            self._done(queue)

    def _applied(self, stream: Stream, envelope: Envelope, seen: Sequence[Observation]) -> None:
        """Have observations count that were applied, or are about to be."""
        stream.touch(envelope.time_ms)
        alarm_period.follow(stream.live(), envelope, seen)

    def _next(self, queue: StreamQueue) -> Generator[None, None, list[PendingAnswer]]:
        """Run what comes before a queue's next observations; none when nothing is left.

        Several are of one command, and can be applied in one call.
        """
        while queue.tasks:
            task = queue.tasks[0]
            try:
                if queue.at == 0 and isinstance(task.received, Observe):
                    # From the command as received: a task may be applied again.
                    task.command = marked(queue.stream, task.received, task.envelope)
                if queue.at == 0 and isinstance(task.command, Ingest):
                    usable(queue.stream)
                    task.command = self._ingested(queue, task, task.command)
                if isinstance(task.command, Observe):
                    empty = not task.command.observations
                    if empty or (queue.at == 0 and self._is_repeat(queue, task, task.command)):
                        self._done(queue)
                        continue
                    if queue.at == 0 and delayed_labels.concerned(queue.stream, task.command):
                        self._delayed(queue, task, task.command)
                        continue
                    return self._observations(queue, task, task.command)
                yield from control(self.engine, queue.stream, task)
                task.publish(queue.stream)
                self._done(queue)
            except (ServiceError, Unfit) as refusal:
                self._refuse(queue, refusal)
        return []

    def _ingested(self, queue: StreamQueue, task: CommandTask, command: Ingest) -> Ingest:
        """The observations of a repeating writer that are new, without those of unfit labels.

        One bad label must not hold up the others: the writer gives up all that it sent with it.
        """
        if command.settings == AS_IT_IS and not queue.stream.alive:
            raise UnknownStream(f"there is no stream {queue.stream.name!r}")
        task.misfits = []
        model: UnderlyingModel | None = None

        def takes(seen: Observation) -> bool:
            nonlocal model
            if model is None:
                model = self.engine.catalogue.of(self._begun(queue, task, command))
            try:
                y = outputs_of(seen.y)
                if y:
                    check_label(y, model, len(y))
            except OutOfRange as misfit:
                task.misfits.append(misfit)
                metrics.OBSERVATIONS.labels("refused").inc()
                return False
            return True

        return resampled(queue.stream, command, takes)

    def _is_repeat(self, queue: StreamQueue, task: CommandTask, command: Observe) -> bool:
        """Whether this part of a keyed request was applied before."""
        if command.key is None:
            return False
        field = key_field(command.key, command.first)
        earlier = self._claimed(queue, field)
        stored = queue.stream.remembered.get(field)
        digest = stored.digest if stored is not None else None
        if earlier is not None and isinstance(earlier.command, Observe):
            digest = earlier.command.digest
        elif stored is None:
            self._claim(queue, task, field)
            return False
        if digest != command.digest:
            raise KeyReused(f"idempotency key {command.key!r} was used with another body")
        metrics.OBSERVATIONS.labels("duplicate").inc(len(command.observations))
        if earlier is not None:
            task.same_as = earlier
        elif stored is not None:
            task.repeat(stored)
        return True

    def _delayed(self, queue: StreamQueue, task: CommandTask, command: Observe) -> None:
        """Apply a list where labels are to come, on its own: answers depend on one another."""
        stream = queue.stream
        head = self._begun(queue, task, command)
        at = delayed_labels.awaited(head, command)
        seen_now = [*command.observations]
        if at is None:
            check_position(command.seq, head.next_seq)
        else:  # its input and time were checked when they came
            seen_now = [replace(seen_now[0], x=head.pending[at].x, time=None)]
        self._check(stream, head, seen_now, command.first)
        self._check_details(head, command)
        self._create(stream, head, task)
        # A label that comes late is none of a new observation.
        self._applied(stream, task.envelope, seen_now if at is None else [])
        for seen in command.observations:
            known = Dimensions(head.x_dim, head.y_dim)
            self._know(stream, known.after(seen.x, outputs_of(seen.y)))
            if at is None:
                answer, refusal = delayed_labels.append(
                    self.engine, stream, seen, self.filling.add, command
                )
            else:
                answer, refusal = delayed_labels.label(
                    self.engine, stream, at, seen, self.filling.add, command
                )
            task.publish(stream)
            if refusal is not None:
                raise refusal
            task.take(answer.model, [answer], 1)
            if answer.provisional:
                self.filling.add(answer)
        self._done(queue)

    def _begun(self, queue: StreamQueue, task: CommandTask, command: Observe) -> Head:
        """Head of a stream that can be observed, which may have to be created yet."""
        usable(queue.stream)
        labels = (len(outputs_of(seen.y)) for seen in command.observations if seen.y is not None)
        return observed(self.engine, queue.stream, task.envelope, command, next(labels, None))

    def _create(self, stream: Stream, head: Head, task: CommandTask) -> None:
        if not stream.alive:
            stream.create(head)
            stream.touch(task.envelope.time_ms)
        elif head is not stream.live():
            stream.restart(head)

    def _know(self, stream: Stream, known: Dimensions) -> None:
        """Enter the dimensions of a stream, after which its seasons can begin."""
        head = stream.live()
        before = head.y_dim
        head.x_dim, head.y_dim = known
        if head.y_dim != before:
            stream.begin_season()
            stream.resume_season()

    def _observations(
        self, queue: StreamQueue, task: CommandTask, command: Observe
    ) -> list[PendingAnswer]:
        """The queue's next observations, checked against its stream as it is now."""
        stream = queue.stream
        fits = queue.at == 0 and _fits(stream, task)
        if not (fits and _ordinary(stream, command)):
            head = self._begun(queue, task, command)
            if queue.at == 0:
                check_position(command.seq, head.seq)
                self._check(stream, head, [*command.observations], command.first, fits)
                self._check_details(head, command)
                self._create(stream, head, task)
        head = stream.live()
        coming = command.observations[queue.at : queue.at + self._at_once(queue, task, command)]
        if head.x_dim is None or head.y_dim is None:
            for seen in coming:
                known = Dimensions(head.x_dim, head.y_dim)
                self._know(stream, known.after(seen.x, outputs_of(seen.y)))
        model = head.settings.model
        records = self._records(stream, head, coming, task.envelope.time_ms)
        return [PendingAnswer(model, record, command) for record in records]

    def _at_once(self, queue: StreamQueue, task: CommandTask, command: Observe) -> int:
        """How many of a queue's next observations may be applied in one call."""
        stream = queue.stream
        slab = stream.slab
        if answers.detailed(command) or (slab is not None and not slab.in_series):
            return 1
        if slab is None:
            return self.pipeline.waiting(stream)
        if _may_be_quiet(command, task.envelope) and quiet.in_lists(stream, task.envelope):
            return 1
        return len(command.observations)

    def _records(
        self, stream: Stream, head: Head, coming: list[Observation], now_ms: int
    ) -> list[Record]:
        """Records of a stream's next observations, which were accepted at `now_ms`."""
        model = self.engine.model(stream, head)
        rates = effective_rates(model, head.settings)
        last_time = head.last_time
        supervision = head.pending_supervision
        records = []
        for seq, seen in enumerate(coming, head.seq):
            elapsed = step_inputs.elapsed(seen, head.settings.interval, last_time)
            records.append(step_inputs.record_of(seq, seen, elapsed, supervision, rates, now_ms))
            supervision = None
            if seen.time is not None:
                last_time = timestamps.seconds(seen.time)
        records[0].belief_override = head.belief_override
        return records

    def _check(
        self,
        stream: Stream,
        head: Head,
        observations: list[Observation],
        first: int,
        fits: bool = False,
    ) -> None:
        """Check a whole command first, so that a refusal leaves nothing of it applied.

        fits: whether its labels and inputs are known to be right.
        """
        dimensions = Dimensions(head.x_dim, head.y_dim)
        model = self.engine.model(stream, head)
        before = dimensions
        for i, seen in enumerate([] if fits else observations, first):
            alone = first == 0 and len(observations) == 1
            where = "" if alone else f"observations[{i}]."
            # The dimensions are given by the first input and label; what a label may be is not.
            y = outputs_of(seen.y)
            check_observation(seen.x, y, model, dimensions, where)
            dimensions = dimensions.after(seen.x, y)
        step_inputs.check(observations, first, head.settings.interval, head.last_time)
        if dimensions != before:
            check_sizes(self.engine, head, dimensions, head.settings.max_hypotheses)

    def _check_details(self, head: Head, command: Observe) -> None:
        """Refuse details that take too long; have torch imported, which computes components.

        Raises UnfitModel and NotInstalled.
        """
        if answers.detailed(command):
            check_details(head, command)
        if command.components:
            self.engine.need_torch()

    def _refuse(self, queue: StreamQueue, refusal: ServiceError | Unfit) -> None:
        task = queue.tasks[0]
        task.refusal = unfit(refusal) if isinstance(refusal, Unfit) else refusal
        if isinstance(task.command, Observe):
            count = len(task.command.observations) - task.applied
            metrics.OBSERVATIONS.labels("refused").inc(count)
        self._done(queue)

    def _done(self, queue: StreamQueue) -> None:
        queue.tasks.popleft()
        queue.at = 0

    def _remember(self) -> None:
        for (key, field), task in self._keyed.items():
            command = task.command
            assert isinstance(command, Observe)
            if isinstance(task.refusal, Defect | UnknownModel) and not task.applied:
                continue  # nothing was done, and what is wrong here may be mended meanwhile
            digest = command.digest or ""
            time_ms = task.envelope.time_ms
            record = IdempotencyRecord(digest, time_ms, task.status, task.body, task.answers)
            self._keep(self.engine.streams[key], field, record)

    def _keep(self, stream: Stream, field: bytes, record: IdempotencyRecord) -> None:
        """Keep what a request with a key was answered."""
        settings = self.engine.settings
        keep = settings.idempotency_keep_requests
        stream.remember(field, record, settings.idempotency_keep_s, keep)


def _ordinary(stream: Stream, command: Observe) -> bool:
    """Whether a command is as nearly all are: where its numbers fit it needs no other check."""
    if command.seq is not None or answers.detailed(command):
        return False
    interval = stream.live().settings.interval
    return interval is None and not (stream.broken or stream.unserved or stream.buffer)


def _fits(stream: Stream, task: CommandTask) -> bool:
    """Whether all of a command are known to be labels and inputs that its stream takes."""
    slab = stream.slab
    given = task.given
    if slab is None or given is None:
        return False
    model = slab.model
    head = stream.live()
    if (head.x_dim, head.y_dim) != (model.x_dim, model.y_dim):
        return False
    counts = np.array([len(given.y)])
    return bool(quiet.fitting(model, given, counts, counts == 0, counts.copy()).all())


def _rows_of(tasks: Sequence[RowsTask], places: Ints, columns: BatchAnswers) -> Coming:
    """What comes to the streams of all rows of commands, which are to be answered by columns.

    places: of these streams.
    """
    commands = np.arange(len(tasks)).repeat([len(task.names) for task in tasks])
    at = 0
    for task in tasks:
        task.columns = columns
        task.at = at
        at += len(task.names)
    labels = [task.labels for task in tasks]
    if None in labels:
        given = Numbers.joined([task.given for task in tasks])
        counts = np.concatenate([task.counts for task in tasks])
    else:
        given = Numbers.read(b"".join(cast(list[bytes], labels)), None, b"", None, None)
        counts = given.outputs
    ingested = [task.command.settings is not None for task in tasks]
    timed = np.array(ingested)[commands] if any(ingested) else None
    envelopes = [task.envelope for task in tasks]
    begun = np.zeros(len(counts), dtype=bool)
    return Coming(places, envelopes, commands, given, counts, begun, timed)


def _left(
    tasks: Sequence[RowsTask], commands: Ints, waves: Sequence[tuple[Ints, Wave]]
) -> dict[RowsTask, list[int]]:
    """Rows of commands that are in no wave; commands: of each row of all."""
    waiting = np.ones(len(commands), dtype=bool)
    for places, _ in waves:
        waiting[places] = False
    rows: dict[RowsTask, list[int]] = {task: [] for task in tasks}
    for place in waiting.nonzero()[0].tolist():
        task = tasks[commands[place]]
        rows[task].append(task.row_at(place))
    return rows


def _next_of(queues: Sequence[StreamQueue]) -> Coming:
    """What comes next to the streams of queues, which have commands of observations."""
    tasks = [queue.tasks[0] for queue in queues]
    commands = [_observed(queue) for queue in queues]
    for task, command in zip(tasks, commands, strict=True):
        if task.given is None and isinstance(command.observations, NumberList):
            task.given = Numbers.listed(command.observations)
    new = [i for i, task in enumerate(tasks) if task.given is None]
    given = Numbers.given([seen for i in new for seen in commands[i].observations])
    at = 0
    for i in new:
        end = at + len(commands[i].observations)
        tasks[i].given = given.part(slice(at, end))
        at = end
    begun = [queue.at > 0 for queue in queues]
    counts = [len(command.observations) for command in commands]
    if len(new) < len(queues) or any(begun):
        parts = []
        for i, queue in enumerate(queues):
            own = tasks[i].given
            assert own is not None
            parts.append(own.part(slice(queue.at, None)))
            counts[i] -= queue.at
        given = Numbers.joined(parts)
    believed = any(command.belief for command in commands)
    envelopes = [task.envelope for task in tasks]
    return Coming(
        places_of([queue.stream for queue in queues]),
        envelopes,
        np.arange(len(queues)),
        given,
        np.array(counts),
        np.array(begun),
        None,
        believed,
    )


def _observed(queue: StreamQueue) -> Observe:
    """The first command of a queue, which is one of observations."""
    command = queue.tasks[0].command
    assert isinstance(command, Observe)
    return command


def _may_be_next(queue: StreamQueue) -> bool:
    """Whether the next observations of a queue may be quiet, by their command."""
    task = queue.tasks[0]
    command = task.command
    stream = queue.stream
    if type(command) is not Observe or not command.observations:
        return False
    if stream.slab is None or not _may_be_quiet(command, task.envelope):
        return False
    return queue.at > 0 or command.seq is None or command.seq == stream.seq


def _may_be_quiet(command: Observe | ObserveMany, envelope: Envelope) -> bool:
    """Whether observations may be quiet: none is planned, and the usual answers are asked for.

    With the belief after each those of lists are, with all other details.
    """
    if envelope.planned is not None or answers.detailed(command):
        return False
    if isinstance(command, ObserveMany):
        return not command.belief and (command.settings is None or command.keys is None)
    return not command.belief or (command.full and len(command.observations) > 1)
