"""Commands that take long: worked at in slices, between the batches of other partitions.

A rerun goes through thousands of observations. Its partition waits for it, as the log's order
demands; all others go on. A job is an ordinary batch of one command whose steps are taken a few at
a time. One thread does everything, one thing at a time.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Collection

from service.observability.tracing import Tracer
from service.wire import BACKGROUND
from service.worker.batch import CommandBatch
from service.worker.streams.registry import Engine
from service.worker.streams.task import LogItem
from service.worker.timing import Stages

SLICE_S = 0.01  # what all others wait for at a time


def is_background(item: LogItem) -> bool:
    """Whether a command is a job of its own."""
    return item.task is not None and isinstance(item.task.command, BACKGROUND)


class BackgroundJob:
    """One command under way."""

    def __init__(self, item: LogItem, engine: Engine, tracer: Tracer | None) -> None:
        tasks = [item.task] if item.task else []
        self.item = item
        self.batch = CommandBatch(engine, tasks)
        self.stages = Stages(tasks, tracer)
        self._steps = self.batch.steps()

    def advance(self) -> bool:
        """Work for a slice; True when the command is applied. Raises what it raises."""
        end = time.monotonic() + SLICE_S
        while time.monotonic() < end:
            if self.step():
                return True
        return False

    def step(self) -> bool:
        """Take one step; True when there was none left."""
        try:
            next(self._steps)
        except StopIteration:
            return True
        return False

    def cancel(self) -> None:
        """End it where it is; its stream is as it was."""
        self._steps.close()


class BackgroundJobs:
    """Those of one worker, at most one for each partition; they take turns."""

    def __init__(self, engine: Engine, tracer: Tracer | None) -> None:
        self._engine = engine
        self._tracer = tracer
        self._jobs: OrderedDict[int, BackgroundJob] = OrderedDict()

    @property
    def partitions(self) -> Collection[int]:
        """Partitions that have one."""
        return self._jobs.keys()

    def __contains__(self, partition: object) -> bool:
        return partition in self._jobs

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def take(self, received: dict[int, list[LogItem]]) -> None:
        """Make jobs of what takes long in `received`, of commands by partition; they go from it."""
        for partition, items in list(received.items()):
            if items and is_background(items[0]):
                self._jobs[partition] = BackgroundJob(items[0], self._engine, self._tracer)
                del received[partition]

    def next(self) -> tuple[int, BackgroundJob]:
        """The job whose turn it is."""
        partition, job = next(iter(self._jobs.items()))
        self._jobs.move_to_end(partition)
        return partition, job

    def end(self, partition: int) -> None:
        """Drop the job of a partition, done or not, if there is one."""
        if (job := self._jobs.pop(partition, None)) is not None:
            job.cancel()
