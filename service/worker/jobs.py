"""Commands that take long: worked at in slices, between the batches of other partitions.

A rerun goes through thousands of observations. Its partition waits for it, as the log's order
demands; all others go on. A job is an ordinary batch of one command in a greenlet, which lets go
whenever the engine ticks. One thread does everything, one thing at a time.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from greenlet import getcurrent, greenlet

from service.tracing import Tracer
from service.wire import RERUNS
from service.worker.apply import Batch
from service.worker.engine import Engine
from service.worker.stages import Stages
from service.worker.task import Item

SLICE_S = 0.01  # what all others wait for at a time


def takes_long(item: Item) -> bool:
    """Whether a command is a job of its own."""
    return item.task is not None and isinstance(item.task.command, RERUNS)


class Job:
    """One command under way."""

    def __init__(self, item: Item, engine: Engine, tracer: Tracer | None) -> None:
        tasks = [item.task] if item.task else []
        self.item, self.batch, self.stages = item, Batch(engine, tasks), Stages(tasks, tracer)
        self._greenlet = greenlet(self.batch.apply)

    def advance(self) -> bool:
        """Work for a slice; True when the command is applied. Raises what it raises."""
        end = time.monotonic() + SLICE_S
        while not self._greenlet.dead and time.monotonic() < end:
            self._greenlet.switch()
        return bool(self._greenlet.dead)

    def cancel(self) -> None:
        """End it where it is; its stream is as it was."""
        self._greenlet.throw()


class Jobs:
    """Those of one worker, at most one for each partition; they take turns."""

    def __init__(self, engine: Engine, tracer: Tracer | None, tick: Callable[[], None]) -> None:
        self._engine, self._tracer, self._tick = engine, tracer, tick
        self._jobs: OrderedDict[int, Job] = OrderedDict()
        engine.tick = self.tick

    def __contains__(self, partition: object) -> bool:
        return partition in self._jobs

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def tick(self) -> None:
        """Give a sign of life; within a job, let the others go on."""
        self._tick()
        if (parent := getcurrent().parent) is not None:
            parent.switch()

    def take(self, found: dict[int, list[Item]]) -> None:
        """Make jobs of what takes long in `found`, of commands by partition; they go from it."""
        for partition, items in list(found.items()):
            if items and takes_long(items[0]):
                self._jobs[partition] = Job(items[0], self._engine, self._tracer)
                del found[partition]

    def next(self) -> tuple[int, Job]:
        """The job whose turn it is."""
        partition, job = next(iter(self._jobs.items()))
        self._jobs.move_to_end(partition)
        return partition, job

    def end(self, partition: int) -> None:
        """Drop the job of a partition, done or not, if there is one."""
        if (job := self._jobs.pop(partition, None)) is not None:
            job.cancel()
