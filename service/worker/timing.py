"""Where the time of a batch goes: metrics of its stages, and spans of the commands with a trace."""

from __future__ import annotations

import time
from collections.abc import Sequence

from service.observability import metrics
from service.observability.tracing import Tracer, known_place
from service.store.log import Commit
from service.worker.streams.task import Task

_queue = metrics.STAGE_DURATION.labels("queue")
_compute = metrics.STAGE_DURATION.labels("compute")
_commit = metrics.STAGE_DURATION.labels("commit")
MS = 1_000_000
NS = 1_000_000_000


class Stages:
    """One batch; `tracer` is None where no traces are asked for."""

    def __init__(self, tasks: Sequence[Task], tracer: Tracer | None) -> None:
        self._tracer = tracer
        self._began = time.monotonic()
        now_ms = time.time() * 1000
        waited = [max(0.0, now_ms - task.envelope.time_ms) / 1000 for task in tasks]
        metrics.observe_all(_queue, waited)
        self._traced = [t for t in tasks if known_place(t.envelope.trace)] if tracer else []

    def computed(self) -> None:
        """The batch is applied."""
        now = time.monotonic()
        _compute.observe(now - self._began)
        if self._traced:
            now_ns = time.time_ns()
            began_ns = now_ns - int((now - self._began) * NS)
            for task in self._traced:
                self._span(task, "queue", min(task.envelope.time_ms * MS, began_ns), began_ns)
                self._span(task, "compute", began_ns, now_ns)

    def committed(self, began: float, commits: Sequence[Commit], results: Sequence[str]) -> None:
        """Its commits, begun at `began` of the monotonic clock, have their results."""
        now = time.monotonic()
        _commit.observe(now - began)
        if self._traced:
            now_ns = time.time_ns()
            result_of = {c.partition: result for c, result in zip(commits, results, strict=True)}
            for task in self._traced:
                if task.partition in result_of:
                    began_ns = now_ns - int((now - began) * NS)
                    self._span(task, "commit", began_ns, now_ns, result_of[task.partition])

    def _span(self, task: Task, name: str, from_ns: int, to_ns: int, result: str = "") -> None:
        assert self._tracer is not None
        kind = "CONSUMER" if name == "queue" else "INTERNAL"
        attributes: dict[str, str | int] = {"moca.result": result} if result else {}
        if name == "compute":
            attributes = {"moca.status": task.status}
        self._tracer.span(name, kind, task.envelope.trace, from_ns, attributes).end(to_ns)
