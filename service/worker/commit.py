"""What one partition commits: outcomes, what its streams changed, and how far the log is done."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence

from redis.exceptions import ResponseError

from service import wire
from service.observability import metrics
from service.problems import Quarantined
from service.store import keys
from service.store.log import Commit, Effect, Lease, Log, Offset
from service.store.streams import Store, UnreadablePart
from service.wire import IdempotencyRecord, Observe, Outcome
from service.wire.event_entries import Id
from service.worker.results import Outcomes, Results
from service.worker.streams.changes import Changes
from service.worker.streams.stream import Stream
from service.worker.streams.task import CommandTask, LogItem, Lost, key_field
from service.worker.timing import Stages

logger = logging.getLogger(__name__)


def commit_of(
    lease: Lease,
    expected: Offset,
    items: Sequence[LogItem],
    streams: Sequence[Stream],
    changes: Changes,
    results: Results,
    feed_events: int,
) -> Commit:
    """Commit of a partition's items, applied, and of the streams they touched.

    It writes outcomes, quarantined payloads, what the streams changed (`Engine.changes`: heads,
    tails, chunks, events, keys, changes of settings), entries of the feed, and the log's offset.
    The newest `feed_events` are kept in the feed. What has a payload is set aside.
    """
    p = lease.partition
    outcomes: Outcomes = {}
    aside: list[Effect] = []
    done = 0
    for item in items:
        task = item.task
        lost = item.lost
        if task is not None:
            outcomes.setdefault(task.incarnation, []).extend(task.outcomes())
            done += task.units
        if lost is not None:
            outcomes.setdefault(lost.incarnation, []).append(_unreadable(lost))
            done += lost.units
        if item.payload is not None:
            metrics.QUARANTINED_COMMANDS.inc()
            logger.error("quarantined %s, offset %s of partition %d", _name(item), item.offset, p)
            aside.append(("HSET", keys.quarantine(p), str(item.offset), item.payload))
    effects = results.effects(outcomes) + aside + changes.effects
    raised: list[tuple[Id, bytes]] = []
    for stream in streams:
        if stream.feed:
            raised += stream.feed
            stream.feed = ()
    if raised:
        parts = [part for id_, blob in sorted(raised) for part in (str(id_), blob)]  # as in the log
        effects.append(("FEED", keys.feed(p), feed_events, *parts))
    return Commit(p, lease.token, expected, items[-1].offset, done, effects, changes.pushed)


def refused(store: Store, item: LogItem) -> tuple[LogItem, list[Effect]]:
    """A command, or a row, that stopped its worker, answered so, and to be set aside.

    Also the effect that has repeats with its key answered alike, instead of stopping workers
    again. A command that is itself a repeat gets the answer of the first.
    """
    task = item.task
    assert isinstance(task, CommandTask)
    aside = item._replace(payload=wire.encode(task.alone()))
    task.refusal = Quarantined(
        "the command stopped its worker on every attempt; it was not applied"
    )
    task.finish()
    command = task.command
    if not isinstance(command, Observe) or command.key is None:
        return aside, []
    field = key_field(command.key, command.first)
    try:
        earlier = store.keyed(task.partition, command.stream, field)
    except (UnreadablePart, ResponseError) as error:
        logger.warning("cannot read the idempotency keys of %r: %s", command.stream, error)
        return aside, []
    if earlier is not None and earlier.digest == command.digest:
        task.repeat(earlier)
    if earlier is not None:
        return aside, []
    digest = command.digest or ""
    record = IdempotencyRecord(digest, task.envelope.time_ms, task.status, task.body, None, field)
    blob = wire.checksummed(wire.encode(record), "idempotency", command.stream)
    return aside, [("HSET", keys.idempotency(task.partition, command.stream), field, blob)]


def _name(item: LogItem) -> str:
    if item.lost:
        return f"command {item.lost.number} of {item.lost.incarnation}, damaged in the log"
    return f"a command for {item.task.streams[0]!r}" if item.task else "an entry"


def _unreadable(lost: Lost) -> Outcome:
    """Outcome of a command that was damaged in the log."""
    refusal = Quarantined("the command was damaged in the log; it was not applied", applied=0)
    return Outcome(lost.number, refusal.status, [refusal.render()], rows=lost.rows)


class Committer:
    """At most one round of commits is under way; the next is sent when it has ended."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._commits: list[Commit] = []
        self._stages = Stages([], None)
        self._began = 0.0
        self._results: Callable[[], list[str]] | None = None

    def submit(self, commits: list[Commit], stages: Stages) -> None:
        """Begin to commit what the stages are of; `settle` was called since the last time."""
        assert self._results is None, "a commit is under way"
        self._commits = commits
        self._stages = stages
        self._began = time.monotonic()
        self._results = list  # where this fails they count as under way, and are abandoned
        self._results = self._log.begin_commit(commits)

    def settle(self) -> list[tuple[Commit, str]]:
        """Wait for what is under way; returns each commit's result, nothing if nothing was.

        Raises what the commit raised: its outcome is then unknown; see `abandon`.
        """
        if self._results is None:
            return []
        wait = self._results
        self._results = list
        results = wait()
        self._results = None
        commits = self._commits
        self._stages.committed(self._began, commits, results)
        self._commits = []  # megabytes, after a large batch
        self._stages = Stages([], None)
        return list(zip(commits, results, strict=True))

    @property
    def partitions(self) -> set[int]:
        """Partitions whose commit is under way, or failed."""
        return set() if self._results is None else {c.partition for c in self._commits}

    def abandon(self) -> set[int]:
        """Wait and discard the result; return partitions whose commit outcome is unknown."""
        partitions = self.partitions
        if self._results is not None:
            with contextlib.suppress(Exception):
                self._results()
        self._results = None
        return partitions

    def close(self) -> None:
        """Wait for what is under way, and close the log."""
        self.abandon()
        self._log.close()
