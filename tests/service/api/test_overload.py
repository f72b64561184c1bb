"""Load shedding by estimated wait, with simulated workers and a simulated clock."""

import math
from collections import deque

import pytest

from service.api.gateway.load_shedding import (
    FEWEST_IN_FLIGHT,
    LAG_S,
    PROMPT_S,
    TICK_S,
    Backlog,
    LoopLimit,
    Overload,
)
from service.problems import ApiBusy, WaitTooLong
from service.settings import Settings

MAX_WAIT_S = 1.0


class Simulation:
    """Workers that take all that waits in turns, as the real ones do, behind the real controller.

    `cost_s` for each observation and `turn_s` for each turn; a stalled worker ends no turn.
    """

    def __init__(self, cost_s, turn_s=0.001, workers=1, max_wait_s=MAX_WAIT_S, partitions=4):
        settings = Settings(max_wait_s=max_wait_s, partitions=partitions)
        self.control = Overload(settings)
        self.cost_s, self.turn_s, self.partitions = cost_s, turn_s, partitions
        self.waiting = [deque() for _ in range(workers)]
        self.turns = [(math.inf, [])] * workers
        self.stalls = {}  # worker: (from, to)
        self.accepted, self.shed = [], []  # (arrival, wait) and (arrival, refusal)
        self.served = []  # times

    def offer(self, now_s, partition=0, units=1):
        """One command arrives."""
        self.advance(now_s)
        try:
            self.control.admit(partition, now_s)
        except WaitTooLong as refusal:
            self.shed.append((now_s, refusal))
            return
        self.control.add(partition, units, now_s)
        worker = partition % len(self.waiting)
        self.waiting[worker].append((now_s, partition, units))
        if self.turns[worker][0] == math.inf:
            self.begin(worker, now_s)

    def begin(self, worker, now_s):
        batch = list(self.waiting[worker])
        self.waiting[worker].clear()
        if not batch:
            self.turns[worker] = (math.inf, [])
            return
        end_s = now_s + self.turn_s + self.cost_s * sum(units for _, _, units in batch)
        stalled, resumed = self.stalls.get(worker, (math.inf, math.inf))
        if end_s > stalled and now_s < resumed:
            end_s += resumed - max(now_s, stalled)
        self.turns[worker] = (end_s, batch)

    def advance(self, now_s):
        """Let turns end until now."""
        while True:
            worker = min(range(len(self.turns)), key=lambda each: self.turns[each][0])
            end_s, batch = self.turns[worker]
            if end_s > now_s:
                return
            together = {}
            for arrived_s, partition, units in batch:
                together.setdefault(partition, []).append((units, end_s - arrived_s))
                self.accepted.append((arrived_s, end_s - arrived_s))
                self.served.append(end_s)
            for partition, answered in together.items():
                waits = [wait for _, wait in answered]
                self.control.complete(partition, sum(n for n, _ in answered), waits, end_s)
            self.begin(worker, end_s)

    def load(self, rate, begin_s, end_s):
        """Commands for all partitions in turn, at a rate."""
        for number in range(int(rate * (end_s - begin_s))):
            self.offer(begin_s + number / rate, number % self.partitions)

    def waits(self, begin_s, end_s=math.inf):
        """Sorted waits of what was accepted in a time."""
        return sorted(wait for at, wait in self.accepted if begin_s <= at < end_s)


def p99(waits):
    return waits[int(0.99 * (len(waits) - 1))]


@pytest.mark.parametrize(
    ("capacity", "factor", "workers"), [(20, 3, 1), (200, 1.5, 2), (100, 10, 1), (500, 3, 2)]
)
def test_overload_keeps_waits_short_and_the_workers_busy(capacity, factor, workers):
    simulation = Simulation(workers / capacity, workers=workers)
    simulation.load(0.5 * capacity, 0, 5)
    assert not simulation.shed
    simulation.load(factor * capacity, 5, 20)
    simulation.load(0.5 * capacity, 20, 30)
    simulation.advance(60)
    # Few or sudden requests fill a turn of seconds before the first late answer is there.
    waits = simulation.waits(13 if factor == 10 or capacity == 20 else 5, 20)
    assert p99(waits) < MAX_WAIT_S
    assert sum(5 <= at < 20 for at in simulation.served) > 0.9 * 15 * capacity
    assert max(at for at, _ in simulation.shed) < 22, "shedding went on after the overload"
    assert p99(simulation.waits(23)) < 0.25


def test_nothing_is_shed_below_capacity_or_if_shedding_is_off():
    for capacity in (50, 400):
        simulation = Simulation(1 / capacity)
        simulation.load(0.9 * capacity, 0, 30)
        assert not simulation.shed
    simulation = Simulation(0.01, max_wait_s=0)
    simulation.load(300, 0, 10)
    assert not simulation.shed
    assert simulation.control.early(10**6, 10) is None


def test_a_burst_passes_though_lone_commands_are_slow():
    """Alone a command takes 5 ms, together 0.1 ms each: what was seen alone is not the rate."""
    simulation = Simulation(0.0001, turn_s=0.005)
    simulation.load(100, 0, 10)
    for number in range(3000):
        simulation.offer(10 + number * 1e-6, number % 4)
    simulation.load(100, 10.01, 15)
    assert not simulation.shed


@pytest.mark.parametrize(
    ("stall_s", "workers", "turn_s"), [(0.3, 1, 0.04), (0.7, 2, 0.001), (2, 1, 0.001), (5, 2, 0.04)]
)
def test_a_stall_is_waited_for(stall_s, workers, turn_s):
    """A takeover, or a pause of the process, at half the capacity: an outage, and no overload.

    With turns of 0.04 s, as on a busy machine, every answer is late.
    """
    simulation = Simulation(workers / 200, turn_s, workers)
    simulation.stalls[0] = (10, 10 + stall_s)
    simulation.load(100, 0, 30)
    assert not simulation.shed
    assert p99(simulation.waits(10 + 2.5 * stall_s + 0.5)) < 0.25 + 4 * turn_s


def test_a_stall_under_overload_does_not_open_the_gates():
    simulation = Simulation(1 / 200)
    simulation.stalls[0] = (10, 15)
    simulation.load(600, 0, 30)
    simulation.advance(60)
    assert len(simulation.waits(10.5, 15)) < 100
    assert p99(simulation.waits(17)) < MAX_WAIT_S


def test_a_lone_slow_command_sheds_nothing():
    simulation = Simulation(0.001)
    simulation.load(50, 0, 5)
    simulation.offer(5.0, units=3000)
    simulation.load(50, 5.001, 5.01)
    simulation.load(50, 9, 12)
    assert not simulation.shed


def test_a_hot_partition_is_shed_alone():
    simulation = Simulation(0.01, workers=2)
    for number in range(6000):
        simulation.offer(number / 300, 0)
        if not number % 10:
            simulation.offer(number / 300, 1)
    simulation.advance(60)
    shed = len(simulation.shed)
    assert 3500 < shed < 4500  # 300 a second came, 100 could be served
    assert max(wait for at, wait in simulation.accepted if at > 2) < MAX_WAIT_S
    assert len(simulation.accepted) == 6600 - shed
    assert min(wait for _, wait in simulation.accepted) < 0.02
    simulation.control.admit(1, 20)  # the other partition was never refused


def test_a_wait_over_two_fifths_of_the_limit_is_refused_and_retry_after_follows_it():
    control = Overload(Settings(partitions=1, max_wait_s=2.0))
    assert control._refusal(0.8) is None
    for wait_s, seconds in ((0.801, "1"), (4.2, "5"), (29.5, "30"), (300, "30")):
        assert control._refusal(wait_s).headers() == {"Retry-After": seconds}


def test_work_that_ends_without_being_done_does_not_count():
    control = Overload(Settings(partitions=1))
    control.add(0, 100, 0.0)
    control.drop(0, 100)
    control.add(0, 1, 9.0)
    control.complete(0, 1, [0.01], 9.01)
    assert control._all.wait_s(9.01) == 0
    assert control._all._waiting == control._each[0]._waiting == 0


def test_five_late_answers_in_a_row_are_a_backlog_until_a_second_after_the_last():
    backlog = Backlog(MAX_WAIT_S)  # answers that take 0.05 s are late
    backlog.add(100, 0.0)
    for at_s in (0.10, 0.15, 0.16, 0.17):
        backlog.complete(1, [0.05], at_s, 0.0)
    assert backlog.wait_s(0.17) == 0
    backlog.complete(1, [0.049], 0.175, 0.0)  # in time: the count begins anew
    for at_s in (0.20, 0.21, 0.22, 0.23, 0.24):
        backlog.complete(1, [0.05], at_s, 0.0)
    assert backlog.wait_s(0.24) == 0  # for less than 0.05 s
    backlog.complete(1, [0.05], 0.251, 0.0)
    assert backlog.wait_s(0.251) > MAX_WAIT_S
    backlog.complete(1, [0.01], 0.26, 0.0)
    assert backlog.wait_s(1.25) > MAX_WAIT_S
    assert backlog.wait_s(1.26) == 0


# --- the event loop -------------------------------------------------------------------------


def ticks(limit, lags, at_s=0.0, in_flight=0):
    """Let ticks come late; returns the time after them."""
    for lag_s in lags:
        at_s += TICK_S + lag_s
        limit.admits(in_flight, at_s)
        limit.tick(lag_s, at_s)
    return at_s


def test_a_pause_limits_nothing():
    limit = LoopLimit()
    ticks(limit, [0.001, 0.3, 0.001, 0.08, 0.001] * 20, in_flight=5000)
    assert limit.admits(5000, 9.0)


def test_a_loop_that_stays_late_is_limited_until_it_is_prompt_again():
    limit = LoopLimit()
    at_s = ticks(limit, [0.1] * 3, in_flight=1000)
    assert not limit.admits(1000, at_s)
    assert limit.admits(200, at_s)
    at_s = ticks(limit, [0.1] * 20, at_s, in_flight=1000)
    assert not limit.admits(FEWEST_IN_FLIGHT, at_s)
    assert limit.admits(FEWEST_IN_FLIGHT - 1, at_s)  # so little is always possible
    at_s = ticks(limit, [PROMPT_S] * 40, at_s, in_flight=1000)
    assert limit.admits(3 * FEWEST_IN_FLIGHT, at_s), "it does not grow"
    assert not limit.admits(1000, at_s)
    at_s = ticks(limit, [2 * PROMPT_S] * 10, at_s, in_flight=1000)
    assert not limit.admits(FEWEST_IN_FLIGHT, at_s), "it is kept as late as before"
    at_s = ticks(limit, [0.001] * 60, at_s)
    assert limit.admits(10**6, at_s)


def test_a_loop_that_is_a_little_late_is_not_limited():
    limit = LoopLimit()
    at_s = ticks(limit, [LAG_S] * 100, in_flight=5000)
    assert limit.admits(5000, at_s)


def test_early_refusals():
    control = Overload(Settings(partitions=1))
    assert control.early(10_000, 0.0) is None
    ticks(control._loop, [0.1] * 30, in_flight=10_000)
    refusal = control.early(10_000, 4.0)
    assert isinstance(refusal, ApiBusy)
    assert (refusal.status, refusal.headers()) == (429, {"Retry-After": "1"})
