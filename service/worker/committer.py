"""Commits in a thread of its own, so that the next batch is computed meanwhile."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor, wait

from service.redis.log import Commit, Log
from service.worker.stages import Stages


class Committer:
    """At most one round of commits is under way; the next is handed over when it has ended."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._commits: list[Commit] = []
        self._results: Future[list[str]] | None = None

    def submit(self, commits: list[Commit], stages: Stages) -> None:
        """Begin to commit what the stages are of; `settle` was called since the last time."""
        assert self._results is None, "a commit is under way"
        self._commits = commits
        self._results = self._pool.submit(self._run, commits, stages)

    def settle(self) -> list[tuple[Commit, str]]:
        """Wait for what is under way; returns each commit's result, nothing if nothing was.

        Raises what the commit raised: nobody knows then what took place; see `abandon`.
        """
        if self._results is None:
            return []
        results = self._results.result()
        self._results = None
        return list(zip(self._commits, results, strict=True))

    @property
    def partitions(self) -> set[int]:
        """Partitions whose commit is under way, or failed."""
        return set() if self._results is None else {c.partition for c in self._commits}

    def abandon(self) -> set[int]:
        """Wait, and forget how it went; returns the partitions that nobody knows about."""
        partitions = self.partitions
        if self._results is not None:
            wait([self._results])
        self._results = None
        return partitions

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown()

    def _run(self, commits: list[Commit], stages: Stages) -> list[str]:
        began = time.monotonic()
        results = self._log.commit(commits)
        stages.committed(began, commits, results)
        return results
