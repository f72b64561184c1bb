"""Which partitions a worker owns: leases, their renewal, and an even share among the living."""

from __future__ import annotations

import faulthandler
import logging
import threading
import time
from collections.abc import Callable
from math import ceil
from typing import NamedTuple

import redis

from service.observability import metrics
from service.store.log import Lease, Log

logger = logging.getLogger(__name__)
REARM = 0.1  # of the time after which a hanging loop is ended: between two settings of its alarm
STOP_WAIT_S = 2.0
AGAIN_S = 0.2  # after a renewal that failed
LOOKS = 4  # of the thread that renews, in the time that a lease lasts
HANGING = 7  # looks in a row without a tick: a loop that hangs until its leases end


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

    def held(self) -> dict[int, Lease]:
        """Leases that are ours, as far as we know."""
        with self._lock:
            return dict(self._held)

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
        leases = list(self.held().values())
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
        if (held := len(self.held())) != self._said:
            logger.info("owns %d partitions", held)
            self._said = held


def share(partitions: int, workers: int) -> int:
    """Most partitions one of several living workers should own."""
    return ceil(partitions / max(workers, 1))
