"""What one partition commits: outcomes, what its streams changed, and how far the log is done."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
from redis.exceptions import ResponseError

from service import wire
from service.observability import metrics
from service.observability.tracing import Tracer, span_at
from service.problems import Quarantined
from service.store import keys
from service.store.log import Commit, Effect, Lease, Log, Offset
from service.store.shards import Argument
from service.store.streams import Store, UnreadablePart
from service.wire import IdempotencyRecord, Observe, Outcome
from service.worker.streams.answers import gathered
from service.worker.streams.stream import Changes
from service.worker.streams.task import CommandTask, LogItem, Task, key_field

logger = logging.getLogger(__name__)
FIRST = "1-1"
PIECE_BYTES = 64 << 10  # of outcomes that are published together, but for a longer one
Outcomes = dict[str, list[Outcome]]  # of the commands of each API process, by incarnation


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
    record = IdempotencyRecord(digest, task.envelope.time_ms, task.status, task.body, None)
    at = keys.text_of(field)
    blob = wire.checksummed(wire.encode(record), "idempotency", command.stream, at)
    return aside, [("HSET", keys.idempotency(task.partition, command.stream), field, blob)]


def _name(item: LogItem) -> str:
    if item.lost:
        return f"command {item.lost.number} of {item.lost.incarnation}, damaged in the log"
    return f"a command for {item.task.names[0]!r}" if item.task else "an entry"


class _Piece(NamedTuple):
    """Outcomes that are kept: their number, size, and when they may go."""

    number: int
    size: int
    end_s: float


class _Process:
    """Pieces for one API process that are still in the store, oldest first."""

    def __init__(self, partition: int, incarnation: str) -> None:
        self.key = keys.results(partition, incarnation)
        self.place = wire.place_of("results", incarnation)  # as far as all its pieces have it
        self.number = 0  # of the last piece
        self.size = 0
        self.pieces: deque[_Piece] = deque()

    def add(self, size: int, end_s: float) -> None:
        self.size += size
        self.pieces.append(_Piece(self.number, size, end_s))

    def trim(self, least: int, most_bytes: int, now_s: float) -> None:
        """Drop what is too old or too much, but for the `least` newest pieces."""
        while len(self.pieces) > least and (self.pieces[0].end_s < now_s or self.size > most_bytes):
            self.size -= self.pieces.popleft().size


class PartitionCommits:
    """What is committed of a partition under one lease.

    Outcomes are stored once, in pieces, and published as they are stored. Ids are EPOCH-1, EPOCH-2
    and so on: a process sees by them whether it missed a piece.
    """

    def __init__(self, lease: Lease, keep_s: float, most_bytes: int, feed_events: int) -> None:
        """Begin with nothing.

        keep_s, most_bytes: outcomes are kept so long, and so much of them, for each process.
        feed_events: kept in the feed, the newest.
        """
        self.lease = lease
        self._feed_events = feed_events
        self._keep_s = keep_s
        self._most_bytes = most_bytes
        self._inherited_until_s = time.monotonic() + keep_s  # what earlier leases left may be kept
        self._processes: dict[str, _Process] = {}
        self._look_s = self._inherited_until_s  # when to forget pieces of processes that are silent

    def commit(
        self,
        expected: Offset,
        items: Sequence[LogItem],
        changes: Changes,
    ) -> Commit:
        """Commit of the partition's items, applied, and of the streams they touched.

        It writes outcomes, quarantined payloads, what the streams changed (`Engine.changes`: heads,
        tails, chunks, events, keys, changes of settings, entries of the feed), and the log's
        offset. What has a payload is set aside. Commits have to be made in this order.
        """
        p = self.lease.partition
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
                text = "the command was damaged in the log; it was not applied"
                refusal = Quarantined(text, applied=0)
                own = Outcome(lost.number, refusal.status, [refusal.render()], rows=lost.rows)
                outcomes.setdefault(lost.incarnation, []).append(own)
                done += lost.units
            if item.payload is not None:
                metrics.QUARANTINED_COMMANDS.inc()
                logger.error(
                    "quarantined %s, offset %s of partition %d", _name(item), item.offset, p
                )
                aside.append(("HSET", keys.quarantine(p), str(item.offset), item.payload))
        effects = self.effects(outcomes) + aside + changes.effects
        if changes.feed:  # in the order of the log
            parts = [part for id_, blob in sorted(changes.feed) for part in (str(id_), blob)]
            effects.append(("FEED", keys.feed(p), self._feed_events, *parts))
        return Commit(
            p, self.lease.token, expected, items[-1].offset, done, effects, changes.pushed
        )

    def effects(self, outcomes: Outcomes) -> list[Effect]:
        """Effects that store and publish outcomes; commits have to be made in this order."""
        now_s = time.monotonic()
        if now_s >= self._look_s:
            self._look_s = now_s + self._keep_s
            for process in self._processes.values():  # but their numbers: one may only be idle
                process.trim(0, self._most_bytes, now_s)
        return [self._effect(incarnation, own, now_s) for incarnation, own in outcomes.items()]

    def _effect(self, incarnation: str, outcomes: Sequence[Outcome], now_s: float) -> Effect:
        process = self._processes.get(incarnation)
        if process is None:
            process = _Process(self.lease.partition, incarnation)
            self._processes[incarnation] = process
        epoch = self.lease.epoch
        stored: list[Argument] = []
        bodies = _bodies(outcomes)
        for body in bodies:
            process.number += 1
            id_ = f"{epoch}-{process.number}"
            stored += (id_, wire.checksummed_at(crc32(id_.encode(), process.place), body))
            process.add(len(body), now_s + self._keep_s)
        process.trim(len(bodies), self._most_bytes, now_s)
        number = process.pieces[0].number
        oldest = FIRST if number == 1 and now_s < self._inherited_until_s else f"{epoch}-{number}"
        return ("ANSWER", process.key, int(1000 * self._keep_s), oldest, *stored)


def _bodies(outcomes: Sequence[Outcome]) -> list[bytes]:
    """Encode outcomes in order, in pieces that are no longer than need be."""
    body = wire.encode(outcomes)
    if len(body) <= PIECE_BYTES or len(outcomes) == 1:
        return [body]
    pieces = wire.grouped([wire.encode(outcome) for outcome in outcomes], len, PIECE_BYTES)
    return [wire.encode([msgspec.Raw(outcome) for outcome in piece]) for piece in pieces]


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
        gathered.add(_queue, *waited)
        # Those with a trace, and the span that theirs are below.
        self._traced: list[tuple[Task, Any]] = []
        for task in tasks if tracer is not None else ():
            parent = span_at(task.envelope.trace) if task.envelope.trace else None
            if parent is not None:
                self._traced.append((task, parent))

    def computed(self) -> None:
        """The batch is applied."""
        now = time.monotonic()
        gathered.add(_compute, now - self._began)
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
        gathered.add(_commit, now - began)
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


class Committer:
    """At most one round of commits is under way; the next is sent when it has ended."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._commits: list[Commit] = []
        self._stages: Stages | None = None
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
        assert self._stages is not None
        self._stages.committed(self._began, commits, results)
        self._commits = []  # megabytes, after a large batch
        self._stages = None
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
