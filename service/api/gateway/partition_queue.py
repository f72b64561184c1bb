"""Group commit of one partition: all queued commands go into the next append to the log.

An idle queue appends at once; commands that arrive during an append wait for the next one.
There are no timers. An append whose outcome is unknown is repeated with the same number before
anything later is sent, so its effect happens once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import NamedTuple

import redis

from service import tasks, wire
from service.observability import metrics
from service.problems import MemoryShort, OutcomeUnknown, PartitionFull, RedisUnavailable
from service.settings import Settings
from service.store import append
from service.store.append import Appended, Appender, Queued, entry_of

log = logging.getLogger(__name__)

ENTRY_OVERHEAD = 64  # incarnation and array headers of an entry
FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 0.2  # many repeats go together in one pipeline
_ingest = metrics.STAGE_DURATION.labels("ingest")


class Pending:
    """A command in flight: queued, sent, acknowledged, answered."""

    __slots__ = (
        "acknowledged",
        "count",
        "deadline",
        "future",
        "number",
        "partition",
        "payload",
        "read_only",
        "sent",
        "since",
    )

    def __init__(
        self,
        number: int,
        partition: int,
        payload: bytes,
        count: int,
        deadline_s: float,
        read_only: bool,
    ) -> None:
        self.number, self.partition = number, partition
        self.payload, self.count, self.read_only = payload, count, read_only
        self.future: asyncio.Future[wire.Outcome] = asyncio.get_running_loop().create_future()
        self.since = time.monotonic()
        self.deadline = self.since + deadline_s
        self.sent = False
        self.acknowledged = 0.0  # time; 0: not yet

    def fail(self, error: Exception) -> None:
        """Answer with an error, unless it is answered or cancelled."""
        if not self.future.done():
            self.future.set_exception(error)


class Access(NamedTuple):
    """Shared by all partition queues of a process."""

    appender: Appender
    incarnation: str
    settings: Settings


class PartitionQueue:
    """The commands of one partition, in order. One append is under way at a time."""

    def __init__(self, partition: int, access: Access) -> None:
        self._partition, self._access = partition, access
        self._waiting: deque[Pending] = deque()
        self._batch: list[Pending] = []
        self._batch_no = 0
        # Owns the connection while an append is under way; no request ever cancels it.
        self._task: asyncio.Task[None] | None = None
        self.failing_since = 0.0  # 0: not failing

    def put(self, pending: Pending) -> None:
        """Queue a command; it is sent with the next append."""
        self._waiting.append(pending)
        if self._task is None:
            self._begin()

    def give_up(self, reason: str) -> None:
        """Fail all commands that are not acknowledged. The append itself is still retried."""
        for pending in self._batch:
            pending.fail(OutcomeUnknown(f"{reason}; send it again with the same Idempotency-Key"))
        while self._waiting:
            self._waiting.popleft().fail(RedisUnavailable(f"{reason}; nothing was accepted"))

    async def close(self) -> None:
        """Stop, and fail the commands that are not acknowledged."""
        self.give_up("the service is stopping")
        await tasks.end(self._task)

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._ended)

    async def _run(self) -> None:
        self._batch = self._take()
        while self._batch:
            appended = await self._append()
            if appended is None:
                self._batch = []
            elif appended.entry is not None:
                self._acknowledge()
            elif appended.waiting < 0:
                self._fail_batch()
            else:
                self._shed(appended.waiting)
            if not self._batch:
                self._batch = self._take()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:  # a defect: fail the waiting commands
            log.error("sending to partition %d failed", self._partition, exc_info=error)
            self.give_up("internal error")
        elif self._waiting:  # queued after the last batch was taken
            self._begin()

    def _take(self) -> list[Pending]:
        """Take the commands that fit in one entry, without those that were cancelled."""
        batch: list[Pending] = []
        room = append.MAX_ENTRY_BYTES - ENTRY_OVERHEAD
        while self._waiting:
            pending = self._waiting[0]
            if not pending.future.done():
                room -= len(pending.payload)
                if room < 0 and batch:
                    break
                batch.append(pending)
            self._waiting.popleft()
        return batch

    async def _append(self) -> Appended | None:
        """Append the batch, retrying until it succeeds; None when it was refused for memory."""
        access, pause_s = self._access, FIRST_PAUSE_S
        self._batch_no += 1  # never reused for another batch, even if this one fails
        count = 0
        commands: list[Queued] = []
        for pending in self._batch:
            pending.sent = True
            count += pending.count
            commands.append(Queued(pending.number, pending.count, pending.payload))
        payload, sums = entry_of(self._partition, access.incarnation, commands)
        repeated = False
        metrics.APPEND_COMMANDS.observe(len(self._batch))
        while True:
            try:
                appended = await access.appender.append(
                    self._partition, self._batch_no, count, payload, sums, repeated
                )
                self.failing_since = 0.0
                return appended
            except redis.OutOfMemoryError:
                if not self.failing_since:  # else an earlier try may have been applied
                    self._refuse(self._batch, MemoryShort("the store's memory is full"))
                    return None
            except (redis.RedisError, OSError):
                pass
            self.failing_since = self.failing_since or time.monotonic()
            metrics.REPEATED_APPENDS.inc()
            repeated = True
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _fail_batch(self) -> None:
        """Fail a batch that may have been appended and cannot be retried."""
        log.error("partition %d: the record of appended batches is damaged", self._partition)
        for pending in self._batch:
            pending.fail(OutcomeUnknown("send it again with the same Idempotency-Key"))
        self._batch = []

    def _acknowledge(self) -> None:
        now = time.monotonic()
        for pending in self._batch:
            pending.acknowledged = now
        metrics.observe_all(_ingest, [now - pending.since for pending in self._batch])
        self._batch = []

    def _shed(self, waiting: int) -> None:
        """Keep the commands for which a full partition still has room; refuse the rest."""
        room = self._access.settings.max_pending - waiting
        accepted: list[Pending] = []
        for i, pending in enumerate(self._batch):
            room -= pending.count
            if room < 0 or i == len(self._batch) - 1:  # refuse at least one, or _run never ends
                detail = f"the queue of this stream's partition is full: {waiting} observations"
                self._refuse(self._batch[i:], PartitionFull(detail))
                break
            accepted.append(pending)
        self._batch = accepted

    def _refuse(self, refused: list[Pending], error: MemoryShort | PartitionFull) -> None:
        for pending in refused:
            metrics.LOAD_SHED.labels(error.reason).inc()
            pending.fail(error)
