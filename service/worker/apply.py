"""Apply commands in log order: streams in batches, one observation of a stream at a time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from service import metrics, views
from service.errors import (
    CorruptState,
    Defect,
    KeyReused,
    ReadTimeout,
    SeqConflict,
    ServiceError,
    UnknownModel,
    UnknownStream,
)
from service.wire import (
    Configure,
    Delete,
    Head,
    IdempotencyRecord,
    Observation,
    Observe,
    Predict,
    Record,
    RunLength,
    StreamSettings,
)
from service.worker import answers, feeding, hazards, reads
from service.worker.answers import Answer, Filling
from service.worker.checks import (
    Known,
    check_label,
    check_observation,
    check_options,
    check_prior,
    check_settings,
    same_model,
)
from service.worker.engine import Engine
from service.worker.observing import observe
from service.worker.sizes import check_sizes
from service.worker.stream import Stream
from service.worker.task import Task


class Lane:
    """The tasks of one stream, in log order, and how far the current list has come."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.tasks: deque[Task] = deque()
        self.at = 0  # next observation of the first task
        self.keyed: dict[bytes, Task] = {}


class Batch:
    """Commands of several partitions that are applied and committed together."""

    def __init__(self, engine: Engine, tasks: list[Task], tick: Callable[[], None]) -> None:
        self.engine, self.tasks, self.tick = engine, tasks, tick
        self.lanes: dict[tuple[int, str], Lane] = {}
        self.filling = Filling()

    def apply(self) -> None:
        """Run every command; afterwards each task has its outcome and streams their changes."""
        for partition in {task.partition for task in self.tasks}:
            names = (t.command.stream for t in self.tasks if t.partition == partition)
            self.engine.load(partition, names)
        for task in self.tasks:
            key = (task.partition, task.command.stream)
            if key not in self.lanes:
                self.lanes[key] = Lane(self.engine.streams[key])
            self.lanes[key].tasks.append(task)
        while any(lane.tasks for lane in self.lanes.values()):
            self.tick()
            self._round()
        metrics.OBSERVATIONS.labels("applied").inc(self.filling.count)
        self.filling.fill()
        for task in self.tasks:
            task.finish()
        self._remember()

    def _round(self) -> None:
        work = []
        for lane in self.lanes.values():
            answer = self._next(lane)
            if answer is not None:
                work.append((lane, answer))
        if not work:
            return
        metrics.BATCH_SIZE.observe(len(work))
        failed = observe(self.engine, [(lane.stream, answer) for lane, answer in work])
        for (lane, answer), refusal in zip(work, failed, strict=True):
            task = lane.tasks[0]
            feeding.publish(lane.stream, task)
            if refusal is not None:
                self._refuse(lane, refusal)
                continue
            task.answers.append(answer)
            self.filling.add(answer)
            command = task.command
            assert isinstance(command, Observe)
            if command.belief and lane.stream.slab is not None:
                answer.belief = reads.belief(lane.stream)
            lane.stream.touch(task.envelope.time_ms)
            lane.at += 1
            if lane.at == len(command.observations):
                self._done(lane)

    def _next(self, lane: Lane) -> Answer | None:
        """Run what comes before a lane's next observation; None when nothing is left."""
        while lane.tasks:
            task = lane.tasks[0]
            try:
                if isinstance(task.command, Observe):
                    empty = not task.command.observations
                    if empty or (lane.at == 0 and self._known(lane, task, task.command)):
                        self._done(lane)
                        continue
                    return self._observation(lane, task, task.command)
                self._other(lane.stream, task)
                feeding.publish(lane.stream, task)
                self._done(lane)
            except ServiceError as refusal:
                self._refuse(lane, refusal)
        return None

    def _known(self, lane: Lane, task: Task, command: Observe) -> bool:
        """Whether this part of a keyed request was applied before."""
        if command.key is None:
            return False
        field = f"{command.key}\0{command.first}".encode()
        earlier, stored = lane.keyed.get(field), lane.stream.remembered.get(field)
        digest = stored.digest if stored is not None else None
        if earlier is not None and isinstance(earlier.command, Observe):
            digest = earlier.command.digest
        elif stored is None:
            task.field = field
            lane.keyed[field] = task
            return False
        if digest != command.digest:
            raise KeyReused(f"idempotency key {command.key!r} was used with another body")
        metrics.OBSERVATIONS.labels("duplicate").inc(len(command.observations))
        if earlier is not None:
            task.same_as = earlier
        elif stored is not None:
            task.status, task.body = stored.status, answers.repeat(stored.body)
        return True

    def _observation(self, lane: Lane, task: Task, command: Observe) -> Answer:
        """The lane's next observation, checked against its stream as it is now."""
        stream = lane.stream
        self._usable(stream)
        if lane.at == 0:
            current = stream.live().seq if stream.alive else 0
            if command.seq is not None and command.seq != current:
                detail = f"seq is {command.seq}, but the next observation is {current}"
                raise SeqConflict(detail, seq=current)
            head = stream.live() if stream.alive else self._fresh(stream, task, {})
            self._check(head, command.observations, command.first)
            if not stream.alive:
                stream.create(head)
                stream.touch(task.envelope.time_ms)
        head = stream.live()
        known = Known(head.x_dim, head.y_dim).after(command.observations[lane.at])
        head.x_dim, head.y_dim = known
        return Answer(stream.name, head.settings.model, self._record(head, command, lane.at))

    def _record(self, head: Head, command: Observe, at: int) -> Record:
        seen, model = command.observations[at], self.engine.catalogue.of(head)
        met = hazards.met(model, head.settings)
        return Record(head.seq, seen.y, seen.x, seen.time, seen.elapsed, seen.changepoint, *met)

    def _check(self, head: Head, observations: list[Observation], first: int) -> None:
        """Check a whole command first, so that a refusal leaves nothing of it applied."""
        known, model = Known(head.x_dim, head.y_dim), self.engine.catalogue.of(head)
        before = known
        for i, each in enumerate(observations, first):
            alone = first == 0 and len(observations) == 1
            where = "" if alone else f"observations[{i}]."
            # The dimensions are given by the first input and label; what a label may be is not.
            check_observation(each, where, known.x_dim, known.after(each).y_dim)
            check_label(each, where, model)
            known = known.after(each)
        if known != before:
            check_sizes(self.engine, head, known, head.settings.max_hypotheses)

    def _other(self, stream: Stream, task: Task) -> None:
        command = task.command
        late = task.envelope.deadline_ms and task.envelope.deadline_ms < time.time() * 1000
        if isinstance(command, Predict | RunLength) and late:
            raise ReadTimeout("its deadline passed before this read was reached")
        self._usable(stream, delete=isinstance(command, Delete))
        if isinstance(command, Configure):
            task.status = 200 if stream.alive else 201
            self._configure(stream, task, command)
            return
        if not stream.alive and stream.broken is None:
            raise UnknownStream(f"there is no stream {stream.name!r}")
        if isinstance(command, Delete):
            stream.delete(task.envelope.time_ms)
            task.status = 204
        elif isinstance(command, Predict):
            task.body = [reads.predictions(self.engine, stream, command)]
        elif isinstance(command, RunLength):
            task.body = [reads.run_length(stream)]

    def _usable(self, stream: Stream, delete: bool = False) -> None:
        if stream.broken is not None and not delete:
            raise CorruptState(stream.broken)

    def _configure(self, stream: Stream, task: Task, command: Configure) -> None:
        given = dict(command.settings)
        if not stream.alive:
            stream.create(self._fresh(stream, task, given))
        elif stream.live().seq == 0:
            # Nothing was learned yet: begin again, whatever changes.
            earlier = msgspec.to_builtins(stream.live().settings)
            stream.restart(self._fresh(stream, task, {**earlier, **given}))
        else:
            head = stream.live()
            if "model" in given and not same_model(given["model"], head.settings.model):
                given["model"] = self.engine.catalogue.resolve(given["model"])
            else:
                given["model"] = head.settings.model
            check_settings(head, given)
            size = given.pop("max_hypotheses", head.settings.max_hypotheses)
            if size > head.settings.max_hypotheses:
                known = Known(head.x_dim, head.y_dim)
                check_sizes(self.engine, head, known, size)
            head.settings = _settings({**msgspec.to_builtins(head.settings), **given})
            if size != head.settings.max_hypotheses:
                self.engine.resize(stream, size)
        stream.touch(task.envelope.time_ms)
        task.body = [msgspec.json.encode(views.summary(stream.name, stream.live()))]

    def _fresh(self, stream: Stream, task: Task, given: dict[str, Any]) -> Head:
        """Head of a stream's next life, before any observation."""
        catalogue, now = self.engine.catalogue, task.envelope.time_ms
        name = catalogue.resolve(given.get("model") or task.envelope.default_model)
        settings = _settings({**given, "model": name})
        check_options(settings)
        generation = stream.head.generation + 1 if stream.head is not None else 1
        head = Head(generation, settings, created_ms=now)
        head.x_dim, head.y_dim = catalogue.dimensions(name)
        known = check_prior(settings, catalogue.of(head), Known(head.x_dim, head.y_dim))
        check_sizes(self.engine, head, known, settings.max_hypotheses)
        head.x_dim, head.y_dim = known
        return head

    def _refuse(self, lane: Lane, refusal: ServiceError) -> None:
        task = lane.tasks[0]
        task.refusal = refusal
        if isinstance(task.command, Observe):
            count = len(task.command.observations) - len(task.answers)
            metrics.OBSERVATIONS.labels("refused").inc(count)
        self._done(lane)

    def _done(self, lane: Lane) -> None:
        lane.tasks.popleft()
        lane.at = 0

    def _remember(self) -> None:
        settings = self.engine.settings
        for task in self.tasks:
            command = task.command
            if task.field is None or not isinstance(command, Observe):
                continue
            if isinstance(task.refusal, Defect | UnknownModel) and not task.answers:
                continue  # nothing was done, and what is wrong here may be mended meanwhile
            record = IdempotencyRecord(
                command.digest or "", task.envelope.time_ms, task.status, task.body
            )
            stream = self.engine.streams[task.partition, command.stream]
            keep = settings.idempotency_keep_requests
            stream.remember(task.field, record, settings.idempotency_keep_s, keep)


def _settings(given: dict[str, Any]) -> StreamSettings:
    return msgspec.convert(given, StreamSettings)
