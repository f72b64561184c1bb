"""The worker: owns partitions, reads their logs, applies commands, commits. One thread of work."""

from __future__ import annotations

import faulthandler
import gc
import logging
import random
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from itertools import chain
from math import ceil, inf
from operator import itemgetter
from typing import NamedTuple

import redis

from model_core.transfer import out_of_memory
from service.observability import metrics
from service.observability.tracing import Tracer, open_tracer
from service.settings import Settings
from service.store.connection import connect
from service.store.log import Commit, Lease, Log, Offset, Verdict
from service.store.streams import Store
from service.wire import BACKGROUND, grouped
from service.worker.batch import CommandBatch
from service.worker.commit import Committer, PartitionCommits, Stages, refused
from service.worker.self_test import rehearse
from service.worker.streams.answers import gathered
from service.worker.streams.registry import STATES_BYTES, Engine
from service.worker.streams.stream import NO_PLACES, Changes, Stream, places_of
from service.worker.streams.task import LogItem, RowsTask, decode_entries, in_reach

logger = logging.getLogger(__name__)
READ_ENTRIES = 64  # of each partition at a time: 16 MiB at most
CAREFUL = 2  # failed attempts: then one by one, each on trial
IDLE_MS = 100  # longest wait for work, so that leases and signals are looked at
BACKOFF_S = 0.2
MAINTAIN_S = 1.0  # longest time between looks at who has which partitions
RETURN_S = 1.0  # for so long after partitions were lost the other workers count as before
MEASURE_S = 10.0  # between looks at all streams for gauges, which are scraped every 15 s
REPEAT_S = 60.0  # between two log lines of a store that is away, once no partition is held
HURRY_S = 5.0  # for so long after partitions were lost it is BACKOFF_S: others lost theirs as well
SLICE_S = 0.01  # of a command that takes long: what all others wait for at a time
REARM = 0.1  # of the time after which a hanging loop is ended: between two settings of its alarm
STOP_WAIT_S = 2.0
AGAIN_S = 0.2  # after a renewal that failed
LOOKS = 4  # of the thread that renews, in the time that a lease lasts
HANGING = 7  # looks in a row without a tick: a loop that hangs until its leases end
# New containers until the youngest are collected: more than a batch makes, so that a collection
# seldom meets what is needed until its end.
YOUNG = 10_000
DUE = 3  # collections of the youngest after which the rest is frozen: some 10 ms of work
# Least time between full collections of everything. With 100,000 streams one takes most of a
# second, and few objects wait for it.
THAW_S = 86_400.0


class Silence(NamedTuple):
    """Looks in a row since the loop ticked, at `ticked`; the last of them, `at`."""

    looks: int
    ticked: float
    at: float


class Leases:
    """Leases of one worker, renewed by a thread of its own while the worker's loop ticks.

    hang_s: the process ends where the loop has not ticked for so long, with the place where it
    hangs on standard error and status 1, so that the supervisor restarts it; 0: never.
    """

    def __init__(self, connect: Callable[[], Log], ttl_ms: int, hang_s: float = 0.0) -> None:
        self._connect = connect
        self._ttl_s = ttl_ms / 1000
        self._hang_s = hang_s
        self._rearm = float("inf")
        self._lock = threading.Lock()
        self._held: dict[int, Lease] = {}
        self._lost: set[int] = set()
        self.trial: Lease | None = None  # under which a command is applied alone
        self._silent = Silence(0, 0.0, 0.0)
        self._said = 0  # how many are held, as last logged
        self._ticked = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew_for_ever, name="renew", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        if self._hang_s:
            self._rearm = 0.0
            self.tick()
        self._thread.start()

    def stop(self) -> None:
        """Renew no more."""
        if self._hang_s:
            faulthandler.cancel_dump_traceback_later()
        self._stop.set()
        self._thread.join(STOP_WAIT_S)  # it may wait for a store that hangs
        self._say()

    def tick(self) -> None:
        """Say that the worker's loop is alive."""
        self._ticked = time.monotonic()
        if self._ticked > self._rearm:
            pause_s = REARM * self._hang_s
            self._rearm = self._ticked + pause_s
            # In a thread of its own that needs nothing of Python: it ends a loop that hangs in C.
            # The thread before it is waited for, tens of milliseconds where cores are busy.
            faulthandler.dump_traceback_later(self._hang_s + pause_s, exit=True)

    def hold(self, lease: Lease) -> None:
        """Renew a lease from now on."""
        with self._lock:
            self._held[lease.partition] = lease
            self._lost.discard(lease.partition)
        metrics.OWNED_PARTITIONS.set(len(self._held))

    def drop(self, partition: int) -> Lease | None:
        """Renew a lease no longer; returns it."""
        with self._lock:
            lease = self._held.pop(partition, None)
        metrics.OWNED_PARTITIONS.set(len(self._held))
        return lease

    def lost(self) -> set[int]:
        """Partitions whose renewal was refused since the last call."""
        with self._lock:
            lost = self._lost
            self._lost = set()
            return lost & self._held.keys()

    def _renew_for_ever(self) -> None:
        log: Log | None = None
        every_s = pause_s = self._ttl_s / LOOKS
        while not self._stop.wait(pause_s):
            pause_s = every_s
            self._say()
            try:
                log = log or self._connect()
                self._look(log)
            except redis.RedisError as error:
                logger.warning("could not renew leases: %s", error)
                log = None
                pause_s = min(AGAIN_S, every_s)
                self._silent = Silence(0, 0.0, 0.0)

    def _look(self, log: Log) -> None:
        """Renew what is held, unless the loop hangs.

        Such a one must lose its partitions: others can do its work, it cannot.
        """
        now = time.monotonic()
        before = self._silent
        same = before.ticked == self._ticked and now - before.at < 2 * self._ttl_s / LOOKS
        self._silent = Silence(before.looks + 1 if same else 1, self._ticked, now)
        if now - self._ticked > self._ttl_s:
            self._hangs(log)
            return
        with self._lock:
            leases = list(self._held.values())
        kept = log.renew(leases)
        gone = {lease for lease, ok in zip(leases, kept, strict=True) if not ok}
        with self._lock:
            self._lost |= {x.partition for x in gone if self._held.get(x.partition) == x}

    def _hangs(self, log: Log) -> None:
        """Report that the command on trial hangs, once that is certain.

        A loop is silent after a pause of the whole process, too, but then these looks paused as
        well. One that waits for the store is no evidence, so the store has to answer here.
        """
        log.client.ping()
        trial = self.trial
        if self._silent.looks == HANGING and trial is not None:
            logger.error("watchdog: the command on trial in partition %d hangs", trial.partition)
            log.release(trial, clean=False, verdict="failed")

    def _say(self) -> None:
        if (held := len(self._held)) != self._said:
            logger.info("owns %d partitions", held)
            self._said = held


def share(partitions: int, workers: int) -> int:
    """Most partitions one of several living workers should own."""
    return ceil(partitions / max(workers, 1))


class Collector:
    """Takes the collector of this process over.

    A full collection visits every container there is: with 100,000 streams it stops the worker for
    hundreds of milliseconds. What outlives a look at the garbage is therefore frozen, and visited
    no more. It still ends with its last reference, as nearly all of a worker's objects do; cycles
    among what was frozen wait for a thaw, in an idle moment.
    """

    def __init__(self) -> None:
        """Freeze all there is: what torch and others loaded is permanent."""
        gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
        self._thawed = time.monotonic()
        self.tend()

    @property
    def due(self) -> bool:
        """Whether so much is new that the next look at it should not wait."""
        _, young, old = gc.get_count()
        return young >= DUE or old > 0

    def tend(self) -> None:
        """Collect what came since the last time, and freeze the rest of it."""
        gc.collect()
        gc.freeze()

    def rest(self) -> None:
        """Nothing waits for this process: collect everything, if that was long ago."""
        if time.monotonic() - self._thawed >= THAW_S:
            gc.unfreeze()
            self.tend()
            self._thawed = time.monotonic()


def is_background(item: LogItem) -> bool:
    """Whether a command is a job of its own."""
    return item.task is not None and isinstance(item.task.command, BACKGROUND)


class Job:
    """Commands that are applied and committed together, in steps.

    One that takes long is worked at in slices between those of other partitions: a rerun goes
    through thousands of observations. Its partition waits for it, as the log's order demands; all
    others go on. One thread does everything, one thing at a time.
    """

    def __init__(
        self, items: dict[int, list[LogItem]], engine: Engine, tracer: Tracer | None
    ) -> None:
        """items: by partition."""
        tasks = [item.task for own in items.values() for item in own if item.task]
        self.items = items
        self.batch = CommandBatch(engine, tasks)
        self.stages = Stages(tasks, tracer)
        self._steps = self.batch.steps()

    def advance(self, slice_s: float = inf) -> bool:
        """Work for so long; True when the commands are applied. Raises what they raise."""
        end = time.monotonic() + slice_s
        for _ in self._steps:
            self.batch.engine.tick()
            if time.monotonic() >= end:
                return False
        return True

    def cancel(self) -> None:
        """End it where it is; its streams are as they were."""
        self._steps.close()


class Worker:
    """One worker process."""

    def __init__(self, settings: Settings, worker_id: str | None = None, sharing: int = 0) -> None:
        """Connect; sharing: workers of one machine's service, this one among them."""
        self.settings = settings
        self.id = worker_id or f"worker-{secrets.token_hex(6)}"
        self.log = self._log()
        self.client = self.log.client
        self._tracer = open_tracer(settings, "worker")
        self._committer = Committer(self.log)
        self.engine = Engine(settings, Store(self.client), sharing)
        self.leases = Leases(self._log, settings.lease_ttl_ms, settings.worker_hang_s)
        self.engine.tick = self.leases.tick
        self._jobs: OrderedDict[int, Job] = OrderedDict()  # by partition; in turns
        self.engine.busy = self._jobs
        self.collector: Collector | None = None  # of a process that does nothing else
        self.offsets: dict[int, Offset] = {}
        self._commits: dict[int, PartitionCommits] = {}
        self._blame = True
        self._busy: set[int] = set()  # partitions of the batch under way
        self._stopping = False
        self._maintained = 0.0
        self._measured = 0.0
        self._hurry_until = 0.0
        self._quiet_until = 0.0
        self._living = 1  # workers, as of the last heartbeat
        self._usual = 1  # and as of the last quiet time

    def _log(self) -> Log:
        assert self.settings.redis_url is not None, "a worker needs a Redis URL"
        client = connect(self.settings.redis_url)
        return Log(client, self.id, self.settings.lease_ttl_ms, self.settings.partitions)

    def stop(self, *_: object) -> None:
        """Finish the batch under way, hand everything over, and return from `run`."""
        self._stopping = True

    def run(self) -> None:
        """Work until stopped."""
        rehearse(self.client, self.settings)
        self.leases.start()
        while not self._stopping:
            self._turn()
        self._hand_over()
        self.leases.stop()
        self._committer.close()
        if self._tracer is not None:
            self._tracer.close()

    # --- one turn -----------------------------------------------------------------------------

    def _turn(self) -> None:
        self.leases.tick()
        try:
            self._tick()
        except Exception as error:
            if isinstance(error, redis.RedisError) or out_of_memory(error):
                # Infrastructure errors: do not count an attempt against the commands. A store may
                # be away for hours, or its disk full, which lines would fill.
                now = time.monotonic()
                if self.offsets or now > self._quiet_until:
                    logger.warning("restarting: %s: %s", type(error).__name__, error)
                    self._quiet_until = now + REPEAT_S
                self._lose(set(self.offsets), blame=False)
            else:
                logger.exception("partitions %s failed; retrying", sorted(self._busy))
                self._lose(set(self._busy), blame=True)

    def _tick(self) -> None:
        for partition in self.leases.lost():
            logger.warning("partition %d was taken over", partition)
            self._disown(partition)
            self._hurry()  # unless somebody has it by now: leases end while a store hangs
        self._keep_house()
        if not self.offsets:
            time.sleep(IDLE_MS / 1000)
            return
        at = self.offsets.copy()
        for partition in self._jobs:
            at.pop(partition, None)
        # The commit goes out with the read, and is answered before it.
        wait_ms = 0 if self._jobs else IDLE_MS
        self.log.begin_read(at, READ_ENTRIES, wait=wait_ms > 0)
        self._settle()
        entries = self.log.end_read(wait_ms)
        received = {
            p: in_reach(decode_entries(p, at[p], e), is_background)
            for p, e in entries.items()
            if p in self.offsets
        }
        loaded = self._in_room(received)
        self._begin_jobs(loaded)
        if loaded:
            self._work(loaded)
        elif not self._jobs:  # it has waited, and nothing came
            gathered.enter()
            if self.collector is not None:
                self.collector.rest()
        if self._jobs:
            self._settle()
            self._advance()

    def _keep_house(self) -> None:
        """Look at leases, memory and garbage, as far as it is time."""
        now = time.monotonic()
        every_s = MAINTAIN_S if now > self._hurry_until else BACKOFF_S
        if now - self._maintained > min(every_s, self.settings.lease_ttl_ms / 4000):
            self._maintained = now
            self._maintain()
        elif self.collector is not None and self.collector.due:
            self._settle()  # no batch is under way, whose objects would be kept
            self.collector.tend()

    def _in_room(self, received: dict[int, list[LogItem]]) -> dict[int, list[LogItem]]:
        """The first items of each partition whose streams fit into memory, which are loaded."""
        self._busy = set(received)
        kept = received
        lists = {p: [x.task.names for x in items if x.task] for p, items in received.items()}
        if not self.engine.holds((p, names) for p, own in lists.items() for names in own):
            self.engine.applying = ()
            kept = {}
            part_bytes = self.engine.room.for_states // (2 * len(received))
            for partition, own in lists.items():
                names = list(dict.fromkeys(chain.from_iterable(own)))
                late = set(names[self.engine.load_first(partition, names, part_bytes) :])
                items = received[partition]
                kept[partition] = _before(items, late) if late else items
        self._busy = set()
        return kept

    def _work(self, items: dict[int, list[LogItem]]) -> None:
        """Apply commands of several partitions, and begin to commit each partition."""
        self._busy = set(items)
        job = Job(items, self.engine, self._tracer)
        job.advance()
        self._applied(job)

    def _begin_jobs(self, received: dict[int, list[LogItem]]) -> None:
        """Make jobs of what takes long in `received`, of commands by partition; they go from it."""
        for partition, items in list(received.items()):
            if items and is_background(items[0]):
                own = {partition: items[:1]}
                self._jobs[partition] = Job(own, self.engine, self._tracer)
                del received[partition]

    def _advance(self) -> None:
        """Work a little at one of the jobs."""
        partition, job = next(iter(self._jobs.items()))
        self._jobs.move_to_end(partition)
        self._busy = {partition}
        if job.advance(SLICE_S):
            self._end_job(partition)
            self._applied(job)
        self._busy = set()

    def _end_job(self, partition: int) -> None:
        """Drop the job of a partition, done or not, if there is one."""
        if (job := self._jobs.pop(partition, None)) is not None:
            job.cancel()

    def _applied(self, job: Job) -> None:
        """Begin to commit what was applied.

        The commit is under way when this returns; reading goes on from where it will lead.
        """
        job.stages.computed()
        self._settle()
        of_partition = job.batch.places()
        items = {p: own for p, own in job.items.items() if p in self.offsets and own}
        touched = {p: of_partition.get(p, NO_PLACES) for p in items}
        changes = self.engine.changes(touched)
        commits = [
            self._commits[p].commit(self.offsets[p], items[p], own) for p, own in changes.items()
        ]
        self._submit(commits, job.stages)
        self.engine.committing = job.batch.lists
        self._busy = set()

    def _commit(self, commits: list[Commit]) -> None:
        """Commit, and wait for it."""
        self._settle()
        kept = [commit for commit in commits if commit.partition in self.offsets]
        self._submit(kept, Stages([], None))
        self._settle()

    def _submit(self, commits: list[Commit], stages: Stages) -> None:
        for commit in commits:
            self.offsets[commit.partition] = commit.new
        self._committer.submit(commits, stages)

    def _settle(self) -> None:
        """Wait for the in-flight commit and handle its results."""
        invalid = {}
        busy = self._busy
        self._busy = busy | self._committer.partitions
        results = self._committer.settle()
        self._busy = busy
        for commit, result in results:
            p = commit.partition
            if result == "OK" or p not in self.offsets:
                continue
            if result not in ("FENCED", "ALREADY"):
                invalid[p] = result
                continue
            # Not ours any more, or done before: what we hold in memory is not to be trusted.
            metrics.FENCED_COMMITS.inc(result == "FENCED")
            logger.warning("lost ownership of partition %d (%s)", p, result)
            self._disown(p)
            self._hurry()
        if invalid:  # after handling every result: the other partitions have moved on
            self._busy |= set(invalid)  # beside those that have moved on in memory alone
            raise RuntimeError(f"invalid commits, by partition: {invalid}")

    # --- ownership ----------------------------------------------------------------------------

    def _maintain(self) -> None:
        """Keep an even share of the partitions."""
        self._settle()
        fair_share = share(self.settings.partitions, self._count_workers())
        self.log.give_back()
        self.engine.ahead_ms = self.log.ahead_ms
        for partition in list(self.offsets)[fair_share:]:
            self._release(partition)
        free = [p for p in range(self.settings.partitions) if p not in self.offsets]
        # In random order: workers that start together should not race for the same ones.
        random.shuffle(free)
        for partition in free:
            if len(self.offsets) >= fair_share:
                break
            lease = self.log.acquire(partition, self._blame)
            if lease is not None:
                self._take(lease)
        self._blame = True
        self._make_room()
        metrics.CHANGED_MODELS.set(self.engine.catalogue.notice())
        if self._maintained - self._measured > MEASURE_S:
            self._measured = self._maintained
            self.engine.measure()
        gathered.enter()
        if self.collector is not None:
            self.collector.tend()

    def _hurry(self) -> None:
        """Share the partitions anew at once, and soon again until all workers are back."""
        self._maintained = 0.0
        self._hurry_until = time.monotonic() + HURRY_S

    def _count_workers(self) -> int:
        """Workers to share with: those that lost the store as well are back in a moment.

        Without them the first to return would take all partitions, and hand half over at once.
        """
        try:
            self._living = len(self.log.heartbeat())
        except redis.OutOfMemoryError:  # a full store takes no heartbeat, but must be worked off
            logger.warning("the store's memory is full")
        now = time.monotonic()
        if now > self._hurry_until:
            self._usual = self._living
        recent = now < self._hurry_until - HURRY_S + RETURN_S
        return max(self._living, self._usual) if recent else self._living

    def _take(self, lease: Lease) -> None:
        self.leases.hold(lease)
        self.offsets[lease.partition] = lease.offset
        keep_s = 2 * self.settings.request_deadline_s
        self._commits[lease.partition] = PartitionCommits(
            lease, keep_s, self.settings.max_results_bytes, self.settings.feed_events
        )
        if lease.attempts >= CAREFUL or lease.trials:
            self._one_by_one(lease)

    def _one_by_one(self, lease: Lease) -> None:
        """Apply what waits command by command, and row by row, so that a guilty one is known.

        It is set aside.
        """
        p = lease.partition
        logger.warning(
            "partition %d failed %d times; applying its commands one by one",
            p,
            lease.attempts,
        )
        self._busy = {p}
        entries = self.log.read({p: lease.offset}, READ_ENTRIES, 0).get(p, [])
        items = decode_entries(p, lease.offset, entries)
        items = [one for item in items for one in item.singly()]
        if lease.guilty and items and items[0].task:
            self._set_aside(lease, items.pop(0))
        for item in items:
            self.leases.tick()
            if p in self.offsets:
                self._try(lease, item)

    def _try(self, lease: Lease, item: LogItem) -> None:
        """Apply one command alone, named in the store meanwhile, in case it ends this process."""
        p = lease.partition
        task = item.task
        assert not isinstance(task, RowsTask)
        if task is not None and not self.log.begin_trial(lease, task.entry, task.index):
            self._disown(p)
            return
        self.leases.trial = lease if task is not None else None
        self._work({p: [item]})
        self.leases.trial = None  # its commit is the store's work
        self._settle()

    def _set_aside(self, lease: Lease, item: LogItem) -> None:
        """Answer a command that is not applied, and its repeats; keep it for an operator."""
        aside, record = refused(self.engine.store, item)
        p = lease.partition
        self._commit([self._commits[p].commit(self.offsets[p], [aside], Changes(record))])

    def _disown(self, partition: int) -> None:
        """Drop a partition that another worker has; what was on trial here is innocent."""
        lease = self.leases.drop(partition)
        self._forget(partition)
        self.log.give_up([lease] if lease is not None else [])

    def _forget(self, partition: int) -> None:
        """Drop a partition that is not ours any more, and all that was not committed."""
        self._end_job(partition)
        self.offsets.pop(partition, None)
        self._commits.pop(partition, None)
        self.leases.drop(partition)
        self.engine.forget(partition)

    def _lose(self, partitions: set[int], blame: bool) -> None:
        """Give partitions up after a failure and try again a little later."""
        partitions = partitions | self._committer.abandon()
        self._blame = blame
        self._busy = set()
        self._hurry()
        self.leases.trial = None
        leases = [self.leases.drop(partition) for partition in partitions]
        for partition in partitions:
            self._forget(partition)
        verdict: Verdict = "failed" if blame else "innocent"
        self.log.give_up((lease for lease in leases if lease is not None), verdict)
        time.sleep(BACKOFF_S)

    def _release(self, partition: int) -> None:
        """Hand a partition over: its states are written first."""
        self._end_job(partition)
        self._settle()
        streams = self.engine.of_partition(partition)
        self._keep(partition, [s for s in streams if s.alive])
        lease = self.leases.drop(partition)
        self._forget(partition)
        if lease is not None:
            self.log.release(lease, clean=True)

    def _keep(self, partition: int, streams: Sequence[Stream]) -> None:
        """Checkpoint streams and commit their heads, without moving the offset."""
        filtered = [(stream, stream.slab.row_bytes) for stream in streams if stream.slab]
        for group in grouped(filtered, itemgetter(1), STATES_BYTES):
            if partition not in self.offsets:
                return
            own = [stream for stream, _ in group]
            self.engine.checkpoint(own)
            changes = self.engine.changes({partition: places_of(own)})[partition]
            effects, pushed, _ = changes  # commits of batches have taken all entries of the feed
            if effects or pushed.streams:
                at = self.offsets[partition]
                token = self._commits[partition].lease.token
                self._commit([Commit(partition, token, at, at, 0, effects, pushed)])

    def _make_room(self) -> None:
        """Evict the streams used longest ago where there are too many."""
        for partition, streams in self.engine.crowded(self._jobs).items():
            self._keep(partition, streams)
            for stream in streams:
                if self.engine.streams.get((partition, stream.name)) is stream:
                    self.engine.evict(stream)
        self.engine.drop_empty_slabs()

    def _hand_over(self) -> None:
        try:
            self._settle()
        except (redis.RedisError, RuntimeError) as error:
            logger.warning("the last commit failed: %s", error)
            self._lose(set(self.offsets), blame=False)
        try:
            for partition in list(self.offsets):
                self.leases.tick()
                self._release(partition)
            self.log.leave()
        except redis.RedisError as error:
            logger.warning("not all leases were released: %s", error)
            self._lose(set(self.offsets), blame=False)
        gathered.enter()  # also how long the last commits took


def _before(items: list[LogItem], late: Collection[str]) -> list[LogItem]:
    """What comes before the first command, or row, of one of these streams."""
    before: list[LogItem] = []
    for item in items:
        part = item.before(late)
        if part is not None:
            before.append(part)
        if part is not item:
            break
    return before
