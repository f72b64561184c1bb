"""Many machines, simulated: does a plan of workers and shards of the store hold its latency?

    python deploy/trial/simulate.py --rate 1000000 --workers 256 --shards 80

Each worker takes what waits in its partitions, a batch of it at most, computes, and commits each
partition to its shard of the store, which serves one commit after the other. Observations come as
a Poisson process, over partitions as streams hash to them; some streams are busier than others.
Some workers may die: their partitions wait until the lease ends and go to the others. A commit
publishes one message to each API process that has an observation in it; with --plain a message goes
to every other primary over the cluster's bus, else to no other. Times of compute and commit are
straight lines in the number of observations, measured on one machine; docs/deployment.md has them,
and the results of the plans.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

Floats = NDArray[np.float64]
BIN_S = 1.0  # of the course that is printed
IDLE_S = 0.001  # a worker that found nothing looks again
AT = (0.25, 0.75)  # where in its interval each half of what came in it counts


class Plan(NamedTuple):
    """What is simulated; times in seconds, sizes in observations."""

    rate: float
    partitions: int
    workers: int
    shards: int
    streams: int
    zipf: float  # the nth busiest stream has n ** -zipf of the busiest one's observations
    batch: int  # what a worker takes at most
    compute: tuple[float, float]  # of a batch, and of each observation in it
    commit: tuple[float, float]  # of a partition's commit in the shard, and of each observation
    apis: int  # processes, each with a share of all observations
    plain: bool  # whether messages go to every primary
    publish: float  # of a message, with its delivery to the process that hears it
    bus: tuple[float, float]  # of a message over the bus, where it is sent and where it arrives
    kill: int  # workers that die
    kill_at: float
    lease: float
    duration: float
    seed: int = 0


class Done(NamedTuple):
    """Observations that were answered at `at`, `delay` after they came."""

    at: float
    delay: float
    count: float


@dataclass
class Partition:
    """What waits, as (from, to, count) of when it came; later arrivals are not drawn yet."""

    number: int
    share: float
    since: float = 0.0
    waiting: list[tuple[float, float, int]] = field(default_factory=list)

    def arrive(self, now: float, rate: float, rng: np.random.Generator) -> None:
        """Draw what came since the last time."""
        count = int(rng.poisson(rate * self.share * (now - self.since)))
        if count:
            self.waiting.append((self.since, now, count))
        self.since = now

    def take(self, room: int) -> list[tuple[float, float, int]]:
        """The oldest that wait, at most `room` of them."""
        taken = []
        while self.waiting and room:
            first, last, count = self.waiting.pop(0)
            part = min(count, room)
            split = first + (last - first) * part / count
            if part < count:
                self.waiting.insert(0, (split, last, count - part))
            taken.append((first, split, part))
            room -= part
        return taken


class Outcome(NamedTuple):
    """done: one row (at, delay, count) each. waiting: at the end. Busy: shares of the time.

    published, bus: messages a second in all, and of those over the bus that arrive at one primary.
    """

    done: Floats
    waiting: int
    worker_busy: float
    shard_busy: float
    published: float
    bus: float

    def between(self, start: float, end: float) -> Floats:
        """What was answered then."""
        return self.done[(self.done[:, 0] >= start) & (self.done[:, 0] < end)]


class Simulation:
    """The state of a plan under way."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.rng = plan, np.random.default_rng(plan.seed)
        partitions = [Partition(i, share) for i, share in enumerate(self._shares())]
        self.owned = [partitions[w :: plan.workers] for w in range(plan.workers)]
        self.free = [0.0] * plan.shards  # when each has nothing to do any more
        self.done: list[Done] = []
        self.worker_busy = self.shard_busy = 0.0
        self.published = 0.0
        self.heard = 0.0  # messages over the bus so far, and how many of them each shard has taken
        self.taken = [0.0] * plan.shards

    def _shares(self) -> list[float]:
        """Share (partitions,) of the load, of streams that hash anywhere."""
        plan = self.plan
        busy = np.arange(1.0, plan.streams + 1) ** -plan.zipf
        where = self.rng.integers(plan.partitions, size=plan.streams)
        found = np.bincount(where, busy, minlength=plan.partitions)
        return [float(each) for each in found / found.sum()]

    def run(self) -> Outcome:
        """To the end; the same seed gives the same outcome."""
        plan = self.plan
        turns = [(float(self.rng.random()) * 0.01, w) for w in range(plan.workers)]
        heapq.heapify(turns)
        killed = plan.kill == 0
        while turns and turns[0][0] < plan.duration:
            now, worker = heapq.heappop(turns)
            if not killed and now >= plan.kill_at + plan.lease:
                killed = True
                self._hand_over()
            if worker >= plan.kill or now < plan.kill_at:
                heapq.heappush(turns, (self._turn(worker, now), worker))
        for each in (p for mine in self.owned for p in mine):
            each.arrive(plan.duration, plan.rate, self.rng)
        waiting = sum(c for mine in self.owned for p in mine for _, _, c in p.waiting)
        workers, shards = plan.workers * plan.duration, plan.shards * plan.duration
        busy = self.worker_busy / workers, self.shard_busy / shards
        messages = self.published / plan.duration, self.heard / plan.duration
        return Outcome(np.array(self.done).reshape(-1, 3), waiting, *busy, *messages)

    def _turn(self, worker: int, now: float) -> float:
        """One round of a worker; when its next one begins."""
        plan, room = self.plan, self.plan.batch
        taken: list[tuple[Partition, list[tuple[float, float, int]]]] = []
        for each in self.owned[worker]:
            each.arrive(now, plan.rate, self.rng)
            if mine := each.take(room):
                taken.append((each, mine))
                room -= sum(count for _, _, count in mine)
        if not taken:
            return now + IDLE_S
        computed = now + plan.compute[0] + plan.compute[1] * (plan.batch - room)
        self.worker_busy += computed - now
        return max(self._commit(each, mine, computed) for each, mine in taken)

    def _commit(
        self, partition: Partition, taken: list[tuple[float, float, int]], now: float
    ) -> float:
        """When a partition's commit is done."""
        plan, shard = self.plan, partition.number % self.plan.shards
        count = sum(count for _, _, count in taken)
        spent = plan.commit[0] + plan.commit[1] * count + self._publish(shard, count)
        self.shard_busy += spent
        end = self.free[shard] = max(self.free[shard], now) + spent
        for first, last, count in taken:
            for at in AT:
                came = first + (last - first) * at
                self.done.append(Done(end, end - came, count / len(AT)))
        return end

    def _publish(self, shard: int, count: int) -> float:
        """Time of a shard for the messages of a commit, and those of others since its last one."""
        plan = self.plan
        messages = plan.apis * (1 - (1 - 1 / plan.apis) ** count)
        self.published += messages
        spent = plan.publish * messages
        if not plan.plain or plan.shards == 1:
            return spent
        arrived = self.heard - self.taken[shard]
        self.heard += messages
        self.taken[shard] = self.heard
        return spent + plan.bus[0] * messages * (plan.shards - 1) + plan.bus[1] * arrived

    def _hand_over(self) -> None:
        """Partitions of the dead go to the living."""
        plan, gone = self.plan, []
        for worker in range(plan.kill):
            gone += self.owned[worker]
            self.owned[worker] = []
        for i, each in enumerate(gone):
            self.owned[plan.kill + i % (plan.workers - plan.kill)].append(each)


def quantiles(done: Floats, *q: float) -> list[float]:
    """Of the delays, by how many observations had them; nan where there are none."""
    if not len(done):
        return [float("nan")] * len(q)
    done = done[done[:, 1].argsort()]
    cumulative = done[:, 2].cumsum() / done[:, 2].sum()
    return [float(done[np.searchsorted(cumulative, each), 1]) for each in q]


def table(plan: Plan, found: Outcome) -> Table:
    """The course of it, second by second."""
    shown = Table("second", "answered / s", "p50 ms", "p99 ms", box=SIMPLE_HEAD)
    for start in np.arange(0, plan.duration, BIN_S):
        part = found.between(start, start + BIN_S)
        p50, p99 = quantiles(part, 0.5, 0.99)
        rate = part[:, 2].sum() / BIN_S
        shown.add_row(f"{start:g}", f"{rate:,.0f}", f"{1e3 * p50:.1f}", f"{1e3 * p99:.1f}")
    return shown


def main(
    rate: Annotated[float, typer.Option(help="Observations per second.")] = 1e6,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes, one core each.")] = 256,
    shards: Annotated[int, typer.Option(min=1, help="Primaries of the Redis Cluster.")] = 80,
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions.")] = 1024,
    streams: Annotated[int, typer.Option(min=1, help="Streams.")] = 1_000_000,
    zipf: Annotated[float, typer.Option(min=0, help="Skew of the stream rates.")] = 0.5,
    batch: Annotated[int, typer.Option(min=1, help="Maximum observations per batch.")] = 512,
    compute_us: Annotated[
        tuple[float, float], typer.Option(help="Time of a batch, and per observation.")
    ] = (1900.0, 150.0),
    commit_us: Annotated[
        tuple[float, float], typer.Option(help="Time of a commit in a shard, and per observation.")
    ] = (100.0, 35.0),
    apis: Annotated[int, typer.Option(min=1, help="API processes.")] = 90,
    plain: Annotated[
        bool, typer.Option(help="Publish to every primary instead of sharded.")
    ] = False,
    publish_us: Annotated[float, typer.Option(help="Time of a message, and per delivery.")] = 11.0,
    bus_us: Annotated[
        tuple[float, float], typer.Option(help="Time of a message sent over the bus, and received.")
    ] = (1.4, 3.0),
    kill: Annotated[int, typer.Option(min=0, help="Workers that fail.")] = 0,
    kill_at: Annotated[float, typer.Option(help="Time of the failure, in seconds.")] = 3.0,
    lease: Annotated[
        float, typer.Option(help="Seconds until their partitions are taken over.")
    ] = 5.0,
    duration: Annotated[float, typer.Option(help="Simulated seconds.")] = 15.0,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
) -> None:
    """Simulate a plan and print its course."""
    if kill >= workers or workers > partitions:
        raise typer.BadParameter("expected at least one live worker, and a partition for each")
    compute, commit, bus = [(a / 1e6, b / 1e6) for a, b in (compute_us, commit_us, bus_us)]
    size = rate, partitions, workers, shards, streams, zipf, batch
    died = kill, kill_at, lease
    messages = apis, plain, publish_us / 1e6, bus
    plan = Plan(*size, compute, commit, *messages, *died, duration, seed)
    found, console = Simulation(plan).run(), Console()
    console.print(table(plan, found))
    console.print(
        f"workers {found.worker_busy:.0%} busy, shards {found.shard_busy:.0%}; "
        f"{found.waiting:,} observations wait at the end"
    )
    console.print(
        f"{found.published:,.0f} messages / s; {found.bus:,.0f} / s over the bus to each primary; "
        f"{apis * partitions // shards:,} subscribed channels at each, over {apis} connections"
    )


if __name__ == "__main__":
    typer.run(main)
