"""Load shedding by estimated wait, so that what is accepted stays fast under overload.

Two queues can grow without bound: commands that wait for the workers, and events that wait for
this process's own event loop. A `Backlog` estimates the first by Little's law, work waiting over
work completed per second, for the process and for each partition. A `LoopLimit` bounds the second:
while the loop is late again and again, it limits the requests in flight to what keeps it prompt.

Neither sheds on an estimate alone. A backlog counts as one once answers come late one after the
other; a loop as saturated once it has been late for a while. So a burst, a pause of the process
and a lone slow command pass. A stall out of a calm state is an outage, not overload: its commands
wait for the takeover, and shedding is suspended afterwards for as long as the stall lasted.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from functools import cache
from typing import NoReturn

from service.observability import metrics
from service.problems import ApiBusy, Overloaded, TooManyConnections, WaitTooLong
from service.settings import Settings

ADMIT_SHARE = 0.4  # of max_wait_s: longer estimated waits are refused; the rest is for variance
LATE_SHARE = 0.05  # of max_wait_s: an answer that took longer is late
LATE_IN_A_ROW = 5  # late answers that make a backlog
PERSIST_S = 0.05  # time that lateness must last
HOLD_S = 1.0  # time for which a backlog goes on to count as one after the last late answer
SMOOTHING_S = 1.0  # time constant of the completion rate
PAUSE_SHARE = 0.1  # of max_wait_s: a pause between answers that is longer than that, than
DUE_FACTOR = 2.0  # times what the work waiting explains, and than
USUAL_FACTOR = 1.5  # times the usual wait, is no sign of work; and
STALL_SHARE = 0.3  # of max_wait_s: one that was longer than that, too, is forgiven
WEIGHT = 0.05  # of one answer in the usual wait
LOOK_S = 0.1  # between checks for stalled partitions
LONGEST_RETRY_S = 30

TICK_S = 0.02  # between checks of the event loop
LAG_S = 0.02  # a later tick shows a busy loop
PROMPT_S = 0.005  # lag that is kept to from then on: a refusal waits for one or two rounds of it
FEWEST_IN_FLIGHT = 64  # never limited to fewer
GROWTH = 1.05  # of the limit, with each tick in time
RELEASE_S = 1.0  # without a refusal, the limit goes
_shed = cache(metrics.LOAD_SHED.labels)  # to find a metric costs more than to count


class Backlog:
    """Work waiting in one queue, in observations, and how long newcomers would wait."""

    def __init__(self, max_wait_s: float) -> None:
        self._late_s = max_wait_s * LATE_SHARE
        self._stall_s = max_wait_s * STALL_SHARE
        self._pause_s = max_wait_s * PAUSE_SHARE
        self._limit_s = max_wait_s * ADMIT_SHARE
        self._waiting = 0
        self._last_s = 0.0  # time of the last completion, or of the first arrival before any
        self._done = self._elapsed_s = 0.0  # decaying sums: their quotient is the completion rate
        self._due_s = 0.0  # expected time of the work waiting at the last completion
        self._late = 0  # late answers in a row
        self._late_since_s = 0.0
        self._congested_until_s = 0.0
        self._lenient_until_s = 0.0
        self._shed_s = -math.inf  # when the estimate was last over the limit
        self._overloaded = False  # whether it was so before the last completion

    def add(self, units: int, now_s: float) -> None:
        """Count accepted work."""
        if not self._waiting:  # idle time is no measure of the rate
            if now_s - self._last_s > SMOOTHING_S:
                self._restart(now_s)
            self._last_s = now_s
        self._waiting += units

    def drop(self, units: int) -> None:
        """Count work that ended without being done."""
        self._waiting -= units

    def complete(self, units: int, waits_s: Sequence[float], now_s: float, usual_s: float) -> float:
        """Count work done; return how long it had been stalled, usually 0.

        waits_s: of the commands of this work, whose answers came together.
        """
        self._waiting -= units
        gap_s = now_s - self._last_s
        usual_s = max(DUE_FACTOR * self._due_s, USUAL_FACTOR * usual_s)
        if gap_s > max(self._stall_s, usual_s) and not self._overloaded:
            self._restart(now_s)
            self._overloaded = True  # until known otherwise: one stall is forgiven, not the next
            self.forgive(now_s + gap_s)
        else:
            decay = math.exp(-gap_s / SMOOTHING_S)
            self._done = self._done * decay + units
            self._elapsed_s = self._elapsed_s * decay + gap_s
            self._last_s = now_s
            self._due_s = self._expected_s()
            if now_s > self._lenient_until_s and self._elapsed_s:
                self._overloaded = now_s - self._shed_s < HOLD_S
            gap_s = 0.0
        for waited_s in waits_s:
            if waited_s < self._late_s:
                self._late = 0
                continue
            if not self._late:
                self._late_since_s = now_s
            self._late += 1
            if self._congested(now_s):
                self._congested_until_s = now_s + HOLD_S
        return gap_s

    def forgive(self, until_s: float) -> None:
        """Shed nothing until a time: clients have waited for a stall to end."""
        self._lenient_until_s = max(self._lenient_until_s, until_s)

    def stalled(self, now_s: float, usual_s: float) -> int:
        """Return the work waiting if none of it moves, else 0."""
        usual_s = max(DUE_FACTOR * self._due_s, USUAL_FACTOR * usual_s)
        return self._waiting if now_s - self._last_s > max(self._pause_s, usual_s) else 0

    def wait_s(self, now_s: float, stalled: int = 0) -> float:
        """Return the estimated wait of a newcomer; 0 while there is no sign of a backlog.

        Work that is stalled waits for a takeover, and keeps no worker busy.
        """
        if self._late < LATE_IN_A_ROW and now_s >= self._congested_until_s:
            return 0.0  # nearly always
        if now_s < self._lenient_until_s or not self._congested(now_s):
            return 0.0
        pause_s = now_s - self._last_s
        if pause_s > max(self._pause_s, DUE_FACTOR * self._due_s) and not self._overloaded:
            return 0.0  # a stall: the backlog does not explain it
        wait_s = self._expected_s(stalled)
        if wait_s > self._limit_s:
            self._shed_s = now_s
        return wait_s

    def _congested(self, now_s: float) -> bool:
        """Whether answers are late again and again, or were until a moment ago."""
        late = self._late >= LATE_IN_A_ROW and now_s - self._late_since_s >= PERSIST_S
        return late or now_s < self._congested_until_s

    def _expected_s(self, stalled: int = 0) -> float:
        """Return the estimated time of the work waiting, by Little's law; 0 while unknown."""
        moving = max(self._waiting - stalled, 0)
        return moving * self._elapsed_s / self._done if self._elapsed_s else 0.0

    def _restart(self, now_s: float) -> None:
        """Reset the rate and the lateness."""
        self._last_s = now_s
        self._done = self._elapsed_s = self._due_s = 0.0
        self._late = 0
        self._congested_until_s = 0.0


class LoopLimit:
    """Bound on the requests in flight, kept while the event loop is saturated."""

    def __init__(self) -> None:
        self._limit = math.inf
        self._slow_since_s = 0.0  # 0: the last tick was in time
        self._refused_s = 0.0
        self._in_flight = 0

    def admits(self, in_flight: int, now_s: float) -> bool:
        """Whether one more request fits."""
        self._in_flight = in_flight
        if in_flight < self._limit:
            return True
        self._refused_s = now_s
        return False

    def tick(self, lag_s: float, now_s: float) -> None:
        """Adjust the limit to how late a tick of the event loop came."""
        if lag_s <= (LAG_S if self._limit == math.inf else PROMPT_S):
            self._slow_since_s = 0.0
            self._limit *= GROWTH
        else:
            self._slow_since_s = self._slow_since_s or now_s
            share = max(0.5, PROMPT_S / lag_s)
            if self._limit < math.inf:
                self._limit = max(self._limit * share, FEWEST_IN_FLIGHT)
            elif now_s - self._slow_since_s >= PERSIST_S:
                self._limit = max(self._in_flight * share, FEWEST_IN_FLIGHT)
        if now_s - self._refused_s > RELEASE_S and not self._slow_since_s:
            self._limit = math.inf


class Overload:
    """Decides whether one API process takes on more work."""

    def __init__(self, settings: Settings) -> None:
        self.enabled = settings.max_wait_s > 0
        self._limit_s = settings.max_wait_s * ADMIT_SHARE
        self._all = Backlog(settings.max_wait_s)
        self._each = [Backlog(settings.max_wait_s) for _ in range(settings.partitions)]
        self._loop = LoopLimit()
        self._usual_s = 0.0  # smoothed wait of answered commands
        self._stalled = 0
        self._looked_s = 0.0

    def add(self, partition: int, units: int, now_s: float) -> None:
        """Count work accepted for a partition."""
        self._all.add(units, now_s)
        self._each[partition].add(units, now_s)

    def drop(self, partition: int, units: int) -> None:
        """Count work that ended without an outcome."""
        self._all.drop(units)
        self._each[partition].drop(units)

    def complete(self, partition: int, units: int, waits_s: Sequence[float], now_s: float) -> None:
        """Count outcomes that came together. waits_s: of their commands."""
        usual_s = self._usual_s
        for waited_s in waits_s:
            self._usual_s += (waited_s - self._usual_s) * WEIGHT
        self._all.complete(units, waits_s, now_s, usual_s)
        stall_s = self._each[partition].complete(units, waits_s, now_s, usual_s)
        if stall_s:  # its worker has a backlog to work off, which is no overload either
            self._all.forgive(now_s + stall_s)

    def early(self, in_flight: int, now_s: float) -> Overloaded | None:
        """Return the refusal of a request of which only the head is read; None: go on."""
        if not self.enabled:
            return None
        if not self._loop.admits(in_flight, now_s):
            return ApiBusy(f"this API process is busy with {in_flight} requests")
        return self._refusal(self._all_wait_s(now_s))

    def admit(self, partition: int, now_s: float) -> None:
        """Refuse a command that would wait for too long."""
        if not self.enabled:
            return
        wait_s = max(self._all_wait_s(now_s), self._each[partition].wait_s(now_s))
        refusal = self._refusal(wait_s)
        if refusal is not None:
            shed(refusal)

    async def watch(self) -> None:
        """Measure the lag of the event loop, forever."""
        while True:
            due_s = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            now_s = time.monotonic()
            self._loop.tick(now_s - due_s, now_s)

    def _all_wait_s(self, now_s: float) -> float:
        """Return the estimated wait of a newcomer of any partition that is not stalled."""
        if now_s - self._looked_s > LOOK_S:
            self._looked_s = now_s
            self._stalled = sum(backlog.stalled(now_s, self._usual_s) for backlog in self._each)
        return self._all.wait_s(now_s, self._stalled)

    def _refusal(self, wait_s: float) -> WaitTooLong | None:
        if wait_s <= self._limit_s:
            return None
        return WaitTooLong(
            f"the estimated wait is {wait_s:.1f} s; nothing was accepted",
            min(math.ceil(wait_s), LONGEST_RETRY_S),
        )


def shed(error: Overloaded) -> NoReturn:
    """Refuse a request, and count it."""
    count_shed(error)
    raise error


def count_shed(error: Overloaded | TooManyConnections, requests: int = 1) -> None:
    """Count refused requests."""
    _shed(error.reason).inc(requests)
