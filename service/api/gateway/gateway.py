"""From a command to its committed outcome: admission, group commit, replies, deadlines."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any

import redis

from service import tasks, wire
from service.api.gateway.load_shedding import Overload, shed
from service.api.gateway.partition_queue import ENTRY_OVERHEAD, Access, PartitionQueue, Pending
from service.api.gateway.replies import Replies, bounded
from service.api.gateway.store_monitor import Monitor
from service.models.canary import chosen
from service.models.catalogue import Catalogue
from service.observability import metrics, tracing
from service.problems import (
    BodyTooLarge,
    MemoryShort,
    NoAnswer,
    OutcomeUnknown,
    ReadTimeout,
    RedisUnavailable,
    TooManyWaiting,
)
from service.store import append
from service.store.keys import partition_of

log = logging.getLogger(__name__)

SWEEP_S = 0.25
NEEDS_MEMORY = (
    wire.Observe,
    wire.Configure,
    wire.Import,
    wire.SegmentHistory,
)  # refused when the store's memory is short
LEAST_PATIENCE_S = 1.0  # per command, however long earlier commands of its request waited
GRACE_S = 3.0  # waiting requests fail once Redis has been unreachable for this long
LAST_READ_S = 1.0  # limit of the last read; it delays the next sweep


class Patience:
    """Deadline of each command of a multi-command request: an outage counts once for all of them.

    The total time of a list that is answered normally is not limited. A wait longer than a quarter
    of the deadline counts as an outage.
    """

    def __init__(self, deadline_s: float) -> None:
        self.left_s, self._normal_s = deadline_s, deadline_s / 4
        self._least_s = min(LEAST_PATIENCE_S, deadline_s)

    def spend(self, waited_s: float) -> None:
        """Subtract a command's wait, if it was an outage."""
        if waited_s > self._normal_s:
            self.left_s = max(self._least_s, self.left_s - waited_s)


class Gateway:
    """Appends commands to the log and waits for their outcomes, for one API process."""

    def __init__(
        self,
        access: Access,
        replies: Replies,
        monitor: Monitor,
        catalogue: Catalogue,
        overload: Overload,
    ) -> None:
        self._settings, self._catalogue = access.settings, catalogue
        self._replies, self._monitor = replies, monitor
        self._overload = overload
        self._queues = [PartitionQueue(p, access) for p in range(access.settings.partitions)]
        self._next = 0
        self._tasks: list[asyncio.Task[None]] = []
        self.failure: BaseException | None = None  # exception that ended a permanent task

    def start(self, *others: Coroutine[Any, Any, None]) -> None:
        """Start the permanent tasks: replies, deadlines, store health, and `others`.

        `/livez` reports one that ends.
        """
        listening = self._replies.listen(), self._replies.fetch()
        coroutines = (*listening, self._sweep(), self._monitor.watch(), *others)
        self._tasks = [self._start(coroutine) for coroutine in coroutines]

    async def close(self) -> None:
        """Stop, and fail the commands that still wait."""
        await tasks.end(*self._tasks)
        await asyncio.gather(*(queue.close() for queue in self._queues))
        for pending in list(self._replies.pending.values()):
            pending.fail(_unanswered(pending, "the service is stopping"))

    def partition(self, stream: str) -> int:
        """Return a stream's partition."""
        return partition_of(stream, self._settings.partitions)

    def admit(self, command: wire.Command) -> None:
        """Raise what `submit` would raise now; for requests of many commands, all `begun` then."""
        partition = self.partition(command.stream)
        self._admit(self._queues[partition], partition, command, False)

    async def submit(
        self, command: wire.Command, begun: bool = False, patience: Patience | None = None
    ) -> wire.Outcome:
        """Append a command, to be applied at most once, and return its outcome.

        `begun`: an earlier part of the request was accepted already. `patience`: the deadlines of
        a request with several commands.
        """
        partition = partition_of(command.stream, self._settings.partitions)
        queue = self._queues[partition]
        read_only = isinstance(command, wire.READ_ONLY)
        self._admit(queue, partition, command, begun)
        number, settings = self._next, self._settings
        self._next += 1
        deadline_s = settings.request_deadline_s if patience is None else patience.left_s
        now_ms = time.time_ns() // 1_000_000
        deadline_ms = now_ms + int(deadline_s * 1000) if read_only else 0
        trace = tracing.begin(command, partition)
        place = None if trace is None else trace.place
        payload = wire.encode(
            wire.Envelope(
                number,
                now_ms,
                deadline_ms,
                settings.default_model,
                command,
                self._chosen(command) if self._monitor.canaries else None,
                place,
            )
        )
        if len(payload) > append.MAX_ENTRY_BYTES - ENTRY_OVERHEAD:
            raise BodyTooLarge(
                f"the command is too large: {len(payload)} bytes, at most {append.MAX_ENTRY_BYTES}"
            )
        pending = Pending(number, partition, payload, wire.units(command), deadline_s, read_only)
        self._replies.pending[number] = pending
        queue.put(pending)
        counted = not isinstance(command, wire.BACKGROUND)  # which do not delay other commands
        if counted:
            self._overload.add(partition, pending.count, pending.since)
        outcome: wire.Outcome | None = None
        try:
            outcome = await pending.future
            return outcome
        finally:
            del self._replies.pending[number]
            now_s = time.monotonic()
            if counted and outcome is None:
                self._overload.drop(partition, pending.count)
            elif counted:
                self._overload.complete(partition, pending.count, now_s - pending.since, now_s)
            if patience is not None:
                patience.spend(now_s - pending.since)
            if trace is not None:
                trace.end(pending.acknowledged)

    def _chosen(self, command: wire.Command) -> str | None:
        """Return the canary's choice of model version, for a command that may create its stream."""
        canaries, name = self._monitor.canaries, self._settings.default_model
        if not isinstance(command, wire.Observe | wire.Configure):
            return None
        if isinstance(command, wire.Configure | wire.Ingest):
            name = command.settings.get("model") or name
        if name not in canaries:
            return None
        versions = self._catalogue.usable(name)
        return chosen(canaries[name], name, command.stream, versions)

    def _admit(
        self, queue: PartitionQueue, partition: int, command: wire.Command, begun: bool
    ) -> None:
        if len(self._replies.pending) >= self._settings.max_waiting:
            shed(TooManyWaiting(f"limit of {self._settings.max_waiting} waiting requests reached"))
        if self._monitor.memory_short and isinstance(command, NEEDS_MEMORY):
            shed(MemoryShort("the store's memory is nearly full; reads and deletes still work"))
        since = queue.failing_since or self._monitor.down_since
        if since and time.monotonic() - since > GRACE_S:
            raise RedisUnavailable("the store cannot be reached; nothing was accepted")
        if not begun:
            self._overload.admit(partition, time.monotonic())

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        task.add_done_callback(self._report)
        return task

    def _report(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.failure = task.exception()
            log.error("a gateway task ended", exc_info=self.failure)

    async def _sweep(self) -> None:
        """Fail commands past their deadline, and those of queues that have failed for too long."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now = time.monotonic()
            metrics.REQUESTS_WAITING.set(len(self._replies.pending))
            for queue in self._queues:
                if queue.failing_since and now - queue.failing_since > GRACE_S:
                    queue.give_up("the store cannot be reached")
            overdue = [
                pending for pending in self._replies.pending.values() if pending.deadline <= now
            ]
            if overdue:
                await self._expire(overdue)

    async def _expire(self, overdue: list[Pending]) -> None:
        try:
            await bounded(self._replies.recover(overdue), LAST_READ_S)
        except (redis.RedisError, OSError, TimeoutError) as error:
            log.warning("could not read outcomes before the deadline: %s", error)
        for pending in overdue:
            waited = f"no answer within {pending.deadline - pending.since:g} s"
            pending.fail(_unanswered(pending, waited))

    def patience(self) -> Patience:
        """Return the patience of a new request of several commands."""
        return Patience(self._settings.request_deadline_s)


def _unanswered(pending: Pending, why: str) -> Exception:
    """Map a timed-out command to an error by its delivery stage."""
    if not pending.sent:
        return RedisUnavailable(f"{why}; nothing was accepted")
    if pending.read_only:
        return ReadTimeout(f"{why}; nothing was changed")
    if pending.acknowledged:
        return NoAnswer(
            f"{why}; accepted and applied at most once, outcome not known yet: send it "
            "again with the same Idempotency-Key to get its answer"
        )
    return OutcomeUnknown(f"{why}; send it again with the same Idempotency-Key")
