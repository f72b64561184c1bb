"""From a command to its committed outcome, for one API process.

A command is admitted, queued for its partition, appended to the log together with all others that
wait there, and answered when a worker has committed its outcome, or when its deadline passes. The
commands of one request and partition are a group: admitted at once and with one future, which is
done when the last of them has its result. A command by itself is a group of one. Observations of
many streams go together, as rows of one command (`wire.ObserveMany`), and have a result each.

Appends: an idle queue appends at once; commands that arrive during an append wait for the next one.
There are no timers. An append whose outcome is unknown is repeated with the same number before
anything later is sent, so its effect happens once.

Outcomes are stored in pieces whose ids follow on each other in each partition, and published as
they are stored: a message has those of all partitions that were committed together. It may be lost:
a disconnected subscriber loses them without an error. So pieces are read from the store after every
subscription, where an id does not follow on the one before, and where a message has the id alone,
as of a long piece.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, cast

import redis

from service import wire
from service.api.gateway.load_shedding import Overload, count_shed, shed
from service.api.gateway.store_monitor import StoreMonitor
from service.models.catalogue import Catalogue, choose_version
from service.observability import metrics, tracing
from service.problems import (
    BodyTooLarge,
    MemoryShort,
    NoAnswer,
    OutcomeUnknown,
    PartitionFull,
    ReadTimeout,
    RedisUnavailable,
    ServiceError,
    TooManyWaiting,
)
from service.settings import Settings
from service.store import keys
from service.store import log as logs
from service.store.keys import partition_of, partitions_of
from service.store.log import Appended, Appender, entry_of
from service.store.reads import AsyncStore
from service.store.shards import UNREACHABLE, AsyncStoreClient
from service.store.streams import UNREADABLE
from service.store.subscription import Subscriptions
from service.tasks import end, forget, is_cancelled
from service.wire import Id, rows, timestamps
from service.wire.event_entries import START

log = logging.getLogger(__name__)

SWEEP_S = 0.05  # an answer is so much later than its deadline, at most
NEEDS_MEMORY = (
    wire.Observe,
    wire.ObserveMany,
    wire.Configure,
    wire.Import,
    wire.SegmentHistory,
)  # refused when the store's memory is short
OBSERVATIONS = (wire.Observe, wire.ObserveMany)
LEAST_PATIENCE_S = 1.0  # per command, however long earlier commands of its request waited
GRACE_S = 3.0  # waiting requests fail once Redis has been unreachable for this long
LOOK_S = 3.0  # before a deadline outcomes are read for so long: a connection that hangs takes 2 s
ENTRY_OVERHEAD = 64  # incarnation and array headers of an entry
FIRST_PAUSE_S = 0.02  # before an append is repeated
LONGEST_PAUSE_S = 0.2  # many repeats go together in one pipeline
READ_PAUSE_S = 0.1  # after a read of outcomes that failed
REPEAT_S = 10.0  # between two log lines of such reads
PIECES_AT_ONCE = 64  # read of each partition
ALONE = (0,)  # places of a command by itself
LISTS = 8  # of streams, whose partitions are kept
MOST_UNITS = 1024  # observations of the rows of one command
ROWS_AT_ONCE = 128  # that are encoded or entered before the event loop does something else
STOPPING = "the service is stopping"
Result = wire.Outcome | ServiceError
_ingest = metrics.STAGE_DURATION.labels("ingest")
_reply = metrics.STAGE_DURATION.labels("reply")


class RowsResult(NamedTuple):
    """What rows of a command came to, by their places; of an outcome's rows those from `first` on.

    A command by itself is one row.
    """

    places: Sequence[int]
    result: Result
    first: int


class CommandGroup:
    """Commands of one request and partition in flight; the future is done with the last result.

    waiting: commands without a result of all groups, by number. size: commands, each row for
    itself. counted: whether its units count as waiting.
    """

    __slots__ = (
        "accepted_ms",
        "counted",
        "deadline",
        "deadline_ms",
        "future",
        "missing",
        "partition",
        "read_only",
        "since",
        "size",
        "units",
        "waiting",
    )

    def __init__(
        self,
        waiting: dict[int, PendingCommand],
        partition: int,
        size: int,
        deadline_s: float,
        read_only: bool,
        counted: bool,
    ) -> None:
        self.waiting = waiting
        self.partition = partition
        self.size = size
        self.missing = size  # commands without a result
        self.read_only = read_only
        self.counted = counted
        self.units = 0  # of its commands that wait for outcomes, once it is queued
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.since = time.monotonic()
        self.deadline = self.since + deadline_s
        self.accepted_ms = time.time_ns() // 1_000_000
        # Of reads; what changes a stream is applied however late.
        self.deadline_ms = self.accepted_ms + int(deadline_s * 1000) if read_only else 0


class PendingCommand:
    """A command in flight, or several as the rows of one: queued, sent, acknowledged, answered.

    places: of the rows among the group's commands. payload: the envelope, encoded.
    """

    __slots__ = (
        "_answered",
        "acknowledged",
        "envelope",
        "group",
        "missing",
        "number",
        "payload",
        "places",
        "results",
        "rows",
        "sent",
        "trace",
        "units",
    )

    def __init__(
        self,
        group: CommandGroup,
        places: Sequence[int],
        envelope: wire.Envelope,
        payload: bytes,
        trace: tracing.Sent | None,
    ) -> None:
        self.group = group
        self.places = places
        self.number = envelope.number
        self.envelope = envelope
        self.payload = payload
        self.trace = trace
        self.units = wire.units(envelope.command)
        self.rows = len(places)  # that are sent
        self.missing = self.rows  # without a result
        self.results: list[RowsResult] = []
        self.sent = False
        self.acknowledged = 0.0  # time; 0: not yet
        self._answered = bytearray()  # of each row, whether it has its result, once some have

    @property
    def done(self) -> bool:
        """Whether it has all results, or nobody waits for them any more."""
        return not self.missing or self.group.future.done()

    def answer(self, outcome: wire.Outcome, now_s: float) -> None:
        """Answer with an outcome, of some rows or all; not to be called once it is done."""
        # This may overtake the append's own acknowledgement.
        self.acknowledged = self.acknowledged or now_s
        self._enter(outcome.row, outcome.row + rows.count_of(outcome), outcome)
        if not self.missing:
            self.group.units -= self.units
            self._finish()

    def fail(self, error: ServiceError) -> None:
        """Answer with an error what has no result. Others of the group are not affected."""
        if not self.done:
            self._enter(0, len(self.places), error)
            self._finish()

    def cut(self, room: int, error: ServiceError) -> int:
        """Keep the first rows, of at most so many observations; answer the others with an error.

        Returns the number of those that are kept: none of a command that has no rows.
        """
        command = self.envelope.command
        kept = rows.fitting(command, room) if isinstance(command, wire.ObserveMany) else 0
        if kept:
            self.envelope.command = rows.chosen(cast(wire.ObserveMany, command), range(kept))
            self.units = wire.units(self.envelope.command)
            self.payload = wire.encode(self.envelope)
        if not kept:
            self.rows = 0
            self.fail(error)
            return 0
        self._enter(kept, self.rows, error)
        self.rows = kept
        return kept

    def _enter(self, first: int, stop: int, result: Result) -> None:
        """Enter the result of rows, but of those that have one: a piece may come twice."""
        if stop - first == self.missing == len(self.places):  # all at once, nearly always
            self.results.append(RowsResult(self.places, result, 0))
            self.group.missing -= self.missing
            self.missing = 0
            return
        self._answered = self._answered or bytearray(len(self.places))
        at = self._answered.find(0, first, stop)
        while at >= 0:
            end = self._answered.find(1, at, stop)
            end = stop if end < 0 else end
            self._answered[at:end] = b"\1" * (end - at)
            self.results.append(RowsResult(self.places[at:end], result, at - first))
            self.missing -= end - at
            self.group.missing -= end - at
            at = self._answered.find(0, end, stop)

    def _finish(self) -> None:
        group = self.group
        group.waiting.pop(self.number, None)
        if self.trace is not None:
            self.trace.end(self.acknowledged)
        if not group.missing:
            group.future.set_result(None)


class RequestPatience:
    """Deadline of each command of a multi-command request: an outage counts once for all of them.

    A request of few commands ends by its deadline in all. The total time of a list that is answered
    normally is not limited: each command has half the deadline, in which another worker takes over,
    however long those before it took. A wait longer than a quarter of the deadline is an outage.
    """

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._waited_s = 0.0
        self._outages_s = 0.0

    @property
    def left_s(self) -> float:
        """Deadline of the next command."""
        normally_s = max(self._deadline_s - self._waited_s, self._deadline_s / 2)
        left_s = min(normally_s, self._deadline_s - self._outages_s)
        return max(left_s, min(LEAST_PATIENCE_S, self._deadline_s))

    def spend(self, waited_s: float) -> None:
        """Count a command's wait."""
        self._waited_s += waited_s
        if waited_s > self._deadline_s / 4:
            self._outages_s += waited_s


class Gateway:
    """Appends commands to the log and waits for their outcomes, for one API process."""

    def __init__(
        self,
        settings: Settings,
        appender: Appender,
        replies: Replies,
        monitor: StoreMonitor,
        catalogue: Catalogue,
        overload: Overload,
        gathered: metrics.Gathered,
    ) -> None:
        self._settings = settings
        self._replies = replies
        self._monitor = monitor
        self._catalogue = catalogue
        self._overload = overload
        self._queues = [
            PartitionQueue(p, appender, settings.max_pending, gathered)
            for p in range(settings.partitions)
        ]
        self._next_number = 0
        self._under_way = 0  # commands of requests that have not all their results
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self.failure: BaseException | None = None  # exception that ended a permanent task

    def start(self, *others: Coroutine[Any, Any, None]) -> None:
        """Start the permanent tasks: replies, deadlines, store health, and `others`.

        `/livez` reports one that ends.
        """
        loop = asyncio.get_running_loop()
        own = [self._replies.listen(), self._replies.fetch(), self._sweep(), self._monitor.watch()]
        for coroutine in [*own, *others]:
            task = loop.create_task(coroutine)
            task.add_done_callback(self._report)
            self._tasks.append(task)

    def stop(self) -> None:
        """Fail the commands that wait, and refuse those that would follow them."""
        self._stopping = True
        for pending in list(self._replies.pending.values()):
            pending.fail(_unanswered(pending, STOPPING))

    async def close(self) -> None:
        """Stop, and end the permanent tasks."""
        await end(*self._tasks)
        for queue in self._queues:
            queue.close()
        self.stop()

    def partition(self, stream: str) -> int:
        """Return a stream's partition."""
        return partition_of(stream, self._settings.partitions)

    def partitions(self, streams: Iterable[str]) -> list[int]:
        """Return the partition of each of many streams."""
        return partitions_of(streams, self._settings.partitions)

    def waves(self, streams: tuple[str, ...]) -> Waves | None:
        """Return the places of streams by partition, each by itself; None where one is repeated.

        Of a client's next request they are known then: nearly all are for the same streams.
        """
        return _waves_of(streams, self._settings.partitions)

    def patience(self) -> RequestPatience:
        """Return the patience of a new request of several commands."""
        return RequestPatience(self._settings.request_deadline_s)

    async def submit(
        self, command: wire.Command, begun: bool = False, patience: RequestPatience | None = None
    ) -> wire.Outcome:
        """Append a command, to be applied at most once, and return its outcome."""
        pending = self.begin(command, begun, patience)
        try:
            await pending.group.future
        except BaseException:
            self._end(pending.group, (pending,), patience)
            raise
        return self.end(pending, patience)

    def begin(
        self, command: wire.Command, begun: bool = False, patience: RequestPatience | None = None
    ) -> PendingCommand:
        """Have a command appended; once the future of its group is done, it is to be ended."""
        partition = self.partition(command.stream)
        self.admit(partition, command, begun)
        group = self._group(partition, command, 1, patience)
        (pending,) = self._encode(group, command, ALONE, self._canary_version(command))
        self._under_way += group.size
        self._send(group, (pending,))
        return pending

    def end(self, pending: PendingCommand, patience: RequestPatience | None = None) -> wire.Outcome:
        """Return the outcome of a command that was begun, or raise its error."""
        self._end(pending.group, (pending,), patience)
        ((_, result, _),) = pending.results
        if isinstance(result, ServiceError):
            raise result
        return result

    async def submit_rows(
        self,
        partition: int,
        command: wire.ObserveMany,
        begun: bool = False,
        patience: RequestPatience | None = None,
    ) -> list[RowsResult]:
        """Append rows of one partition, each to be applied at most once.

        They are admitted together, or the refusal of all is raised. Each row has one result; an
        error is that of its own row. `begun`: an earlier part of the request was accepted already.
        `patience`: the deadlines of a request that submits several times.
        """
        self.admit(partition, command, begun)
        group = self._group(partition, command, len(command.streams), patience)
        in_flight: list[PendingCommand] = []
        self._under_way += group.size
        try:
            for choice, places in self._parts(command):
                part = rows.chosen(command, places)
                in_flight += self._encode(group, part, places, choice)
                if len(places) >= ROWS_AT_ONCE:
                    await asyncio.sleep(0)
            self._send(group, in_flight)
            await group.future
        finally:
            self._end(group, in_flight, patience)
        return [result for pending in in_flight for result in pending.results]

    def _group(
        self,
        partition: int,
        first: wire.Command | wire.ObserveMany,
        count: int,
        patience: RequestPatience | None,
    ) -> CommandGroup:
        """Return a new group for commands of the kind of the first."""
        deadline_s = self._settings.request_deadline_s if patience is None else patience.left_s
        observes = isinstance(first, OBSERVATIONS)  # nearly always
        read_only = not observes and isinstance(first, wire.READ_ONLY)
        # Background ones do not delay other commands.
        counted = observes or not isinstance(first, wire.BACKGROUND)
        waiting = self._replies.pending
        return CommandGroup(waiting, partition, count, deadline_s, read_only, counted)

    def _send(self, group: CommandGroup, commands: Sequence[PendingCommand]) -> None:
        """Queue a group's commands."""
        self._queues[group.partition].put(commands)
        group.units = sum([pending.units for pending in commands if pending.missing])
        if group.counted:
            self._overload.add(group.partition, group.units, group.since)

    def _parts(self, command: wire.ObserveMany) -> Iterator[tuple[str | None, Sequence[int]]]:
        """Yield the places of rows that may go together, and their canary's choice."""
        by_choice: defaultdict[str | None, Sequence[int]] = defaultdict(list)
        if self._monitor.canaries:
            for row in range(len(command.streams)):
                choice = self._canary_version(rows.row_of(command, row, []))
                cast(list[int], by_choice[choice]).append(row)
        else:
            by_choice[None] = range(len(command.streams))
        counts = command.counts
        most_units = min(MOST_UNITS, self._settings.max_pending)
        for choice, places in by_choice.items():
            if counts is None:
                for at in range(0, len(places), most_units):
                    yield choice, places[at : at + most_units]
            else:
                for part in wire.grouped(places, counts.__getitem__, most_units):
                    yield choice, part

    def _encode(
        self,
        group: CommandGroup,
        command: wire.Command | wire.ObserveMany,
        places: Sequence[int],
        choice: str | None,
    ) -> list[PendingCommand]:
        """Return a command, whose rows are at some places of its group, to be queued.

        Its halves, where it is too large for an entry; a row that is so alone has failed.
        """
        number = self._next_number
        self._next_number += 1
        request_trace = tracing.current.get()
        trace = None
        if request_trace is not None:
            trace = tracing.Sent(request_trace, command, group.partition)
        envelope = wire.Envelope(
            number=number,
            time_ms=group.accepted_ms,
            deadline_ms=group.deadline_ms,
            default_model=self._settings.default_model,
            command=command,
            chosen=choice,
            trace=None if trace is None else trace.place,
            quiet_days=self._monitor.quiet_days,
            planned=self._planned(command, group.accepted_ms),
        )
        payload = wire.encode(envelope)
        too_large = len(payload) > logs.MAX_ENTRY_BYTES - ENTRY_OVERHEAD
        if too_large and isinstance(command, wire.ObserveMany) and len(places) > 1:
            half = len(places) // 2
            first = rows.chosen(command, range(half))
            second = rows.chosen(command, range(half, len(places)))
            return [
                *self._encode(group, first, places[:half], choice),
                *self._encode(group, second, places[half:], choice),
            ]
        pending = PendingCommand(group, places, envelope, payload, trace)
        if too_large:
            limit = logs.MAX_ENTRY_BYTES
            detail = f"the command is too large: {len(payload)} bytes, at most {limit}"
            pending.fail(BodyTooLarge(detail))
        else:
            group.waiting[number] = pending
        return [pending]

    def _end(
        self,
        group: CommandGroup,
        commands: Sequence[PendingCommand],
        patience: RequestPatience | None,
    ) -> None:
        """Remove a group that has its results, or that nobody waits for any more."""
        self._under_way -= group.size
        for pending in commands if group.missing else ():
            group.waiting.pop(pending.number, None)
            if pending.missing and pending.trace is not None:
                pending.trace.end(pending.acknowledged)
        if group.units and group.counted:  # of those that have no outcome
            self._overload.drop(group.partition, group.units)
        if patience is not None:
            patience.spend(time.monotonic() - group.since)

    def _canary_version(self, command: wire.Command) -> str | None:
        """Return the canary's choice of model version, for a command that may create its stream."""
        canaries = self._monitor.canaries
        if not canaries or not isinstance(command, wire.Observe | wire.Configure):
            return None
        name = wire.settings_of(command).get("model") or self._settings.default_model
        if name not in canaries:
            return None
        versions = self._catalogue.usable(name)
        return choose_version(canaries[name], name, command.stream, versions)

    def _planned(
        self, command: wire.Command | wire.ObserveMany, accepted_ms: int
    ) -> list[wire.PlannedSpan] | None:
        """Return the windows of the calendar that observations of a command are in, if any."""
        calendar = self._monitor.calendar
        if not calendar.windows or not isinstance(command, OBSERVATIONS):
            return None
        if isinstance(command, wire.ObserveMany):
            stated = command.times or [None]
        else:
            stated = wire.times_of(command.observations)
        times = [
            accepted_ms / 1000 if time is None else timestamps.seconds(time) for time in stated
        ]
        return calendar.spans(times) or None

    def admit(
        self,
        partition: int,
        command: wire.Command | wire.ObserveMany,
        begun: bool = False,
    ) -> None:
        """Refuse a command, or rows, that this process has no room for.

        A request for several partitions asks for all of them before it submits anything, as
        `begun`: its own commands are no backlog to it.
        """
        if self._stopping:
            raise RedisUnavailable(f"{STOPPING}; nothing was accepted")
        waiting = self._under_way
        # One of more commands than may wait goes alone.
        if waiting and waiting + rows.rows_of(command) > self._settings.max_waiting:
            shed(TooManyWaiting(f"limit of {self._settings.max_waiting} waiting requests reached"))
        if self._monitor.memory_short and isinstance(command, NEEDS_MEMORY):
            shed(MemoryShort("the store's memory is nearly full; reads and deletes still work"))
        since = self._queues[partition].failing_since or self._monitor.down_since
        if since and time.monotonic() - since > GRACE_S:
            raise RedisUnavailable("the store cannot be reached; nothing was accepted")
        if not begun:
            self._overload.admit(partition, time.monotonic())

    def _report(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.failure = task.exception()
            log.error("a gateway task ended", exc_info=self.failure)

    async def _sweep(self) -> None:
        """Fail commands at their deadline, and those of queues that have failed for too long.

        Outcomes that no message has brought are read before that: no answer waits for a store.
        """
        while True:
            await asyncio.sleep(SWEEP_S)
            now = time.monotonic()
            for queue in self._queues:
                if queue.failing_since and now - queue.failing_since > GRACE_S:
                    queue.give_up("the store cannot be reached")
            soon: set[int] = set()
            for pending in list(self._replies.pending.values()):
                group = pending.group
                if group.deadline <= now:
                    waited = f"no answer within {group.deadline - group.since:g} s"
                    pending.fail(_unanswered(pending, waited))
                elif group.deadline - now < LOOK_S and pending.sent:
                    soon.add(group.partition)
            if soon:
                self._replies.fall_behind(soon)


def _unanswered(pending: PendingCommand, why: str) -> ServiceError:
    """Map a timed-out command to an error by its delivery stage."""
    if not pending.sent:
        return RedisUnavailable(f"{why}; nothing was accepted")
    if pending.group.read_only:
        return ReadTimeout(f"{why}; nothing was changed")
    if pending.acknowledged:
        return NoAnswer(
            f"{why}; accepted and applied at most once, outcome not known yet: send it "
            "again with the same Idempotency-Key to get its answer"
        )
    return OutcomeUnknown(f"{why}; send it again with the same Idempotency-Key")


class PartitionQueue:
    """The commands of one partition, in order. One append is under way at a time.

    What waits is taken right before the next pipeline goes out, so that it goes in one entry.
    """

    def __init__(
        self, partition: int, appender: Appender, max_pending: int, gathered: metrics.Gathered
    ) -> None:
        self._partition = partition
        self._gathered = gathered
        self._appender = appender
        self._max_pending = max_pending
        self._waiting: deque[PendingCommand] = deque()
        self._due = False  # the appender will ask for what waits
        self._batch: list[PendingCommand] = []  # being appended
        self._batch_no = 0
        self._count = 0  # observations of the batch
        self._entry = b"", b""  # of the batch: payload and checksums
        self._pause_s = FIRST_PAUSE_S
        self._again: asyncio.TimerHandle | None = None
        self._closed = False
        self.failing_since = 0.0  # 0: not failing

    def put(self, commands: Sequence[PendingCommand]) -> None:
        """Queue commands; they are sent with the next append."""
        self._waiting.extend(commands)
        self._ask()

    def give_up(self, reason: str) -> None:
        """Fail all commands that are not acknowledged. The append itself is still retried."""
        for pending in self._batch:
            pending.fail(OutcomeUnknown(f"{reason}; send it again with the same Idempotency-Key"))
        while self._waiting:
            self._waiting.popleft().fail(RedisUnavailable(f"{reason}; nothing was accepted"))

    def close(self) -> None:
        """Stop, and fail the commands that are not acknowledged."""
        self._closed = True
        self.give_up(STOPPING)
        if self._again is not None:
            self._again.cancel()

    def _ask(self) -> None:
        """Have the appender call for what waits, unless it will, or an append is under way."""
        if self._waiting and not self._due and not self._batch:
            self._due = True
            self._appender.before_next(self._begin)

    def _begin(self) -> None:
        self._due = False
        if self._closed:
            return
        try:
            self._batch = self._take()
            if self._batch:
                self._append()
        except Exception:
            self._break()
            raise

    def _take(self) -> list[PendingCommand]:
        """Take the commands that fit in one entry, without those that were cancelled."""
        batch: list[PendingCommand] = []
        room = logs.MAX_ENTRY_BYTES - ENTRY_OVERHEAD
        while self._waiting:
            pending = self._waiting[0]
            if not pending.done:
                room -= len(pending.payload)
                if room < 0 and batch:
                    break
                batch.append(pending)
            self._waiting.popleft()
        return batch

    def _append(self) -> None:
        """Append the batch, retrying until it succeeds."""
        self._batch_no += 1  # never reused for another batch, even if this one fails
        self._count = 0
        for pending in self._batch:
            pending.sent = True
            self._count += pending.units
        self._entry = entry_of(self._partition, self._appender.incarnation, self._batch)
        self._pause_s = FIRST_PAUSE_S
        self._gathered.add(metrics.APPEND_COMMANDS, len(self._batch))
        self._try(False)

    def _try(self, repeated: bool) -> None:
        payload, sums = self._entry
        self._appender.append(
            self._partition, self._batch_no, self._count, payload, sums, repeated
        ).add_done_callback(self._ended)

    def _ended(self, trial: asyncio.Future[Appended]) -> None:
        """Handle what an append came to, and go on with what waits."""
        if self._closed:
            forget(trial)
            return
        try:
            self._settle(trial)
        except Exception:
            self._break()
            raise
        finally:
            self._ask()

    def _settle(self, trial: asyncio.Future[Appended]) -> None:
        error = trial.exception()
        # While failing, an earlier try may have been applied, although the memory is full now.
        if isinstance(error, redis.OutOfMemoryError) and not self.failing_since:
            self._refuse(self._batch, MemoryShort("the store's memory is full"))
            self._batch = []
            return
        if isinstance(error, UNREACHABLE):
            self.failing_since = self.failing_since or time.monotonic()
            metrics.REPEATED_APPENDS.inc()
            self._again = trial.get_loop().call_later(self._pause_s, self._try, True)
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            return
        appended = trial.result()
        self.failing_since = 0.0
        if appended.entry is not None:
            self._acknowledge()
        elif appended.waiting < 0:  # it may have been appended, and cannot be repeated
            log.error("partition %d: the record of appended batches is damaged", self._partition)
            for pending in self._batch:
                pending.fail(OutcomeUnknown("send it again with the same Idempotency-Key"))
            self._batch = []
        else:
            self._shed(appended.waiting)
            if self._batch:
                self._append()

    def _break(self) -> None:
        """Fail what waits after a defect, which is raised."""
        self.give_up("internal error")
        self._batch = []

    def _acknowledge(self) -> None:
        now = time.monotonic()
        for pending in self._batch:
            pending.acknowledged = now
        self._gathered.add(_ingest, *[now - pending.group.since for pending in self._batch])
        self._batch = []

    def _shed(self, waiting: int) -> None:
        """Keep the commands, and rows, for which a full partition still has room; refuse others."""
        room = self._max_pending - waiting
        error = PartitionFull(
            f"the queue of this stream's partition is full: {waiting} observations"
        )
        fits = 0
        while fits < len(self._batch) and self._batch[fits].units <= room:
            room -= self._batch[fits].units
            fits += 1
        # At least one is refused, or the same batch would be tried for ever.
        fits = min(fits, len(self._batch) - 1)
        accepted = self._batch[:fits]
        first = self._batch[fits]
        refused = first.rows
        kept = first.cut(room, error)
        if kept:
            accepted.append(first)
        count_shed(error, refused - kept)
        self._refuse(self._batch[fits + 1 :], error)
        self._batch = accepted

    def _refuse(
        self, refused: Sequence[PendingCommand], error: MemoryShort | PartitionFull
    ) -> None:
        count_shed(error, sum(pending.rows for pending in refused))
        for pending in refused:
            pending.fail(error)


class ReadTo:
    """How far one partition's pieces are read: to an id without a gap, and a run of later ones.

    With the run, one read closes a gap, although pieces go on to come while it is under way.
    """

    def __init__(self) -> None:
        self.id = START
        self._later: tuple[Id, Id] | None = None

    def hear(self, id_: Id) -> bool:
        """Note a piece that came; return whether nothing before it is missing."""
        if id_ <= self.id or id_ == _next(self.id):
            self.id = max(self.id, id_)
            return True
        first = self._later[0] if self._later and id_ == _next(self._later[1]) else id_
        self._later = first, id_
        return False

    def read(self, id_: Id) -> None:
        """Note that all pieces to this one were read from the store."""
        self.id = max(self.id, id_)
        if self._later and self._later[0] <= _next(self.id):
            self.id = max(self.id, self._later[1])
            self._later = None


def _next(id_: Id) -> Id:
    return Id(id_.ms, id_.number + 1)


class Replies:
    """Commands that wait for an outcome, by number, and how far each partition's are read."""

    def __init__(
        self,
        client: AsyncStoreClient,
        store: AsyncStore,
        incarnation: str,
        partitions: int,
        overload: Overload,
        gathered: metrics.Gathered,
    ) -> None:
        self._store = store
        self._gathered = gathered
        self._incarnation = incarnation
        self._overload = overload
        self.pending: dict[int, PendingCommand] = {}
        self._read_to = [ReadTo() for _ in range(partitions)]
        self._behind: set[int] = set()  # partitions that have pieces in the store alone
        self._some_behind = asyncio.Event()
        self._partitions = {keys.results(p, incarnation): p for p in range(partitions)}
        channels = [*self._partitions]
        self._subscriptions = Subscriptions(client, channels, self._receive, self._resume)
        self.subscribed = self._subscriptions.complete

    def resolve(self, partition: int, outcomes: Iterable[wire.Outcome]) -> int:
        """Deliver outcomes to the commands that wait; returns how many have all theirs by that."""
        now = time.monotonic()
        replies_s: list[float] = []  # since the append
        waits_s: list[float] = []  # in all, of what counted as waiting
        units = 0
        for outcome in outcomes:
            pending = self.pending.get(outcome.number)
            if pending is None or pending.done:
                continue
            pending.answer(outcome, now)
            if not pending.missing:
                replies_s.append(now - pending.acknowledged)
                if pending.group.counted:
                    waits_s.append(now - pending.group.since)
                    units += pending.units
        if waits_s:
            self._overload.complete(partition, units, waits_s, now)
        self._gathered.add(_reply, *replies_s)
        return len(replies_s)

    async def read(self, partitions: Iterable[int]) -> None:
        """Read what these partitions have in the store beyond what is read."""
        missing = set(partitions)
        while missing:
            after = {p: self._read_to[p].id for p in missing}
            pieces = await self._store.results(self._incarnation, after, PIECES_AT_ONCE)
            for partition, row in pieces.items():
                for id_, blob in row:
                    count = self.resolve(partition, self._decoded(id_, blob))
                    metrics.RECOVERED_REPLIES.inc(count)
                    self._read_to[partition].read(id_)
                if len(row) < PIECES_AT_ONCE:
                    missing.discard(partition)

    async def listen(self) -> None:
        """Listen until cancelled, subscribing again whenever a connection is lost."""
        await self._subscriptions.listen()

    async def fetch(self) -> None:
        """Read pieces that messages do not have, until cancelled."""
        quiet_until_s = 0.0
        while not is_cancelled():
            await self._some_behind.wait()
            self._some_behind.clear()
            behind = self._behind
            self._behind = set()
            try:
                await self.read(behind)
            except UNREACHABLE as error:
                now_s = time.monotonic()
                if now_s >= quiet_until_s:  # ten fail in a second while the store is away
                    quiet_until_s = now_s + REPEAT_S
                    log.warning("replies: cannot read outcomes: %s", error)
                await asyncio.sleep(READ_PAUSE_S)
                self.fall_behind(behind)

    def fall_behind(self, partitions: Iterable[int]) -> None:
        """Have what these partitions have in the store read by `fetch`."""
        self._behind.update(partitions)
        self._some_behind.set()

    def _receive(self, channel: str, message: bytes) -> None:
        """Deliver the pieces of a message, which may be of several partitions.

        Its first line has partition, id and length of each; the length of a long one is 0.
        """
        said, _, blobs = message.partition(b"\n")
        words = said.split(b" ")
        try:
            pieces = [
                (self._read_to[int(partition)], int(partition), Id.parse(place), int(length))
                for partition, place, length in zip(
                    words[::3], words[1::3], words[2::3], strict=True
                )
            ]
        except (ValueError, IndexError):
            log.exception("replies: ignored a malformed message")
            return
        behind: list[int] = []
        at = 0
        for read_to, partition, id_, length in pieces:
            if length:
                outcomes = self._decoded(id_, blobs[at : at + length])
                at += length
                self.resolve(partition, outcomes)
                complete = read_to.hear(id_)
            else:
                complete = id_ <= read_to.id
            if not complete:
                behind.append(partition)
        if behind:
            self.fall_behind(behind)

    def _decoded(self, id_: Id, blob: bytes) -> list[wire.Outcome]:
        """Outcomes of a piece; none of one that is damaged: their requests may be repeated."""
        try:
            return wire.decode_results(wire.checked(blob, "results", self._incarnation, id_))
        except UNREADABLE as error:
            owner = self._incarnation
            log.error("replies: cannot read the stored results %s of %r: %s", id_, owner, error)
            metrics.CORRUPT_STATES.inc()
            return []

    async def _resume(self, channels: Sequence[str]) -> None:
        """Read what was published before these channels were subscribed."""
        partitions = {self._partitions[channel] for channel in channels}
        last = await self._store.last_results(self._incarnation, partitions)
        for partition in partitions:
            # A store that was rolled back counts from an earlier id again.
            if last[partition] < self._read_to[partition].id:
                self._read_to[partition] = ReadTo()
        await self.read(partitions)


# --- rows of many streams -------------------------------------------------------------------------

# Streams go side by side, the rows of each one after another: in waves, of which the next is
# submitted when all of the one before are answered. The rows of one wave and partition go together;
# partitions do not wait for each other.

R = TypeVar("R")  # what a request has of a row
Group = Sequence[int]  # places of one stream in a request, which go together: a row
Waves = Mapping[int, Sequence[Group]]  # by partition
Following = Callable[[Sequence[R], RowsResult], list[R]]
CommandOf = Callable[[Sequence[R]], wire.ObserveMany]


@lru_cache(LISTS)
def _waves_of(streams: tuple[str, ...], partitions: int) -> Waves | None:
    if len(set(streams)) < len(streams):
        return None
    waves: defaultdict[int, list[Group]] = defaultdict(list)
    partition_of = partitions_of(streams, partitions)
    for group, partition in zip(zip(range(len(streams))), partition_of, strict=True):
        waves[partition].append(group)
    return waves


async def submit_waves(
    gateway: Gateway,
    waves: Mapping[int, Sequence[R]],
    command_of: CommandOf[R],
    following: Following[R],
) -> None:
    """Submit the first row of each stream of a request, by partition, and those that follow.

    following: takes some results of a wave, and returns the next rows of their streams. Each
    partition is admitted once, before any row is queued; a refusal is the result of its first wave.
    """
    commands = await _first_commands(waves, command_of)
    refusals: dict[int, ServiceError] = {}
    for partition, command in commands.items():
        try:
            gateway.admit(partition, command)
        except ServiceError as error:
            refusals[partition] = error

    async def submit(partition: int, wave: Sequence[R]) -> None:
        patience = gateway.patience()
        command = commands[partition]
        refusal = refusals.get(partition)
        while wave:
            try:
                if refusal is not None:
                    raise refusal
                results = await gateway.submit_rows(partition, command, True, patience)
            except ServiceError as error:
                results = [RowsResult(range(len(wave)), error, 0)]
            refusal = None
            wave = await _entered(wave, results, following)
            command = command_of(wave) if wave else command

    await asyncio.gather(*(submit(partition, wave) for partition, wave in waves.items()))


async def _first_commands(
    waves: Mapping[int, Sequence[R]], command_of: CommandOf[R]
) -> dict[int, wire.ObserveMany]:
    """Return the command of the first rows of each partition."""
    commands = {}
    for partition, wave in waves.items():
        commands[partition] = command_of(wave)
        if len(wave) >= ROWS_AT_ONCE:
            await asyncio.sleep(0)
    return commands


async def _entered(
    wave: Sequence[R], results: Sequence[RowsResult], following: Following[R]
) -> list[R]:
    """Enter the results of a wave; returns the next one."""
    later: list[R] = []
    entered = 0
    for result in results:
        later += following(wave, result)
        entered += len(result.places)
        if entered >= ROWS_AT_ONCE:
            entered = 0
            await asyncio.sleep(0)
    return later
