"""Where the time of a batch goes: metrics of its stages, and spans of the commands with a trace."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from service.observability import metrics
from service.observability.tracing import Tracer, span_at
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
        # Those with a trace, and the span that theirs are below.
        self._traced: list[tuple[Task, Any]] = []
        for task in tasks if tracer is not None else ():
            parent = span_at(task.envelope.trace) if task.envelope.trace else None
            if parent is not None:
                self._traced.append((task, parent))

    def computed(self) -> None:
        """The batch is applied."""
        now = time.monotonic()
        _compute.observe(now - self._began)
        if self._traced:
            now_ns = time.time_ns()
            began_ns = now_ns - int((now - self._began) * NS)
            for task, parent in self._traced:
                accepted_ns = min(task.envelope.time_ms * MS, began_ns)
                status = {"moca.status": task.status}
                self._span("queue", "CONSUMER", parent, accepted_ns, began_ns, {})
                self._span("compute", "INTERNAL", parent, began_ns, now_ns, status)

    def committed(self, began: float, commits: Sequence[Commit], results: Sequence[str]) -> None:
        """Its commits, begun at `began` of the monotonic clock, have their results."""
        now = time.monotonic()
        _commit.observe(now - began)
        if self._traced:
            now_ns = time.time_ns()
            result_of = {c.partition: result for c, result in zip(commits, results, strict=True)}
            began_ns = now_ns - int((now - began) * NS)
            for task, parent in self._traced:
                if task.partition in result_of:
                    result = {"moca.result": result_of[task.partition]}
                    self._span("commit", "INTERNAL", parent, began_ns, now_ns, result)

    def _span(
        self,
        name: str,
        kind: str,
        parent: Any,
        from_ns: int,
        to_ns: int,
        attributes: Mapping[str, str | int],
    ) -> None:
        assert self._tracer is not None
        self._tracer.span(name, kind, parent, from_ns, attributes).end(to_ns)
