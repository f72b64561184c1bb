"""`moca bench serve --overload K`: K times the capacity in open loop, and the recovery from it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import uuid
from contextlib import ExitStack
from dataclasses import dataclass

import msgspec
from rich.console import Console

from service.bench.load import quantiles
from service.bench.open_loop import OpenJob, Requests
from service.bench.processes import BenchError, Server, moca_server
from service.bench.slices import (
    Side,
    delete,
    job_for,
    observations,
    prime,
    slice_of,
    wait_until_compiled,
)

CAPACITY_S = 8.0
CAPACITY_CONNECTIONS = 64
OPEN_CONNECTIONS = 4000  # of the generator, at most; it needs as many as requests are in flight
CALM_S = 15.0  # time at half the capacity, after the overload
BIN_S = 0.5
NORMAL_S = 0.25  # 99 % of a half second faster than this, and nothing shed: recovered
SHED = 429


@dataclass
class Phase:
    """Requests due in one phase, by what became of them."""

    seconds: float
    accepted_s: list[float]  # latencies
    shed_s: list[float]
    failed: dict[int, int]
    served: int = 0  # answers that came before the end of the phase

    @property
    def rate(self) -> float:
        """Requests served per second."""
        return self.served / self.seconds

    def latency_ms(self, shed: bool = False) -> dict[str, float]:
        """Quantiles of the latency of requests that were accepted, or shed."""
        return quantiles(self.shed_s if shed else self.accepted_s)


@dataclass
class OverloadBench:
    """Result of `bench_overload`."""

    capacity: float  # requests per second in closed loop
    factor: float
    overload: Phase
    calm: Phase
    recovery_s: float  # from the end of the overload
    late_s: float  # the most that the generator was behind its schedule

    @property
    def goodput(self) -> float:
        """Share of the capacity that was served under overload."""
        return self.overload.rate / self.capacity


def bench_overload(
    *,
    urls: list[str] | None = None,
    factor: float = 3.0,
    seconds: float = 30.0,
    streams: int = 500,
    workers: int = 1,
    model: str = "gaussian",
    capacity: float | None = None,
    console: Console | None = None,
) -> OverloadBench:
    """Measure capacity, overload the service by `factor`, then halve the capacity; print it.

    `urls` are the APIs of one running service; without, one is started here. `capacity` skips its
    measurement.
    """
    if factor <= 0 or seconds < 1 or streams < 1:
        raise BenchError(
            "expected a factor > 0, seconds >= 1 and streams >= 1; got "
            f"{factor:g}, {seconds:g} and {streams}"
        )
    console = console or Console()
    names = [f"bench-{uuid.uuid4().hex[:8]}-{number}" for number in range(streams)]
    with ExitStack() as stack:
        if urls is None:
            servers = [stack.enter_context(moca_server(workers, ["--default-model", model]))]
        else:
            servers = [Server(url, None) for url in urls]
            stack.callback(delete, urls[0], names)
        prime(servers[0], names, min(8, streams))
        wait_until_compiled(servers[0])
        if capacity is None:
            capacity = _capacity(servers[0], names)
        console.print(f"capacity: {capacity:,.0f} observations/s", highlight=False)
        phases = [(factor * capacity, seconds), (capacity / 2, CALM_S)]
        requests = _generate(servers, names, phases)
    result = evaluate(requests, capacity, factor, seconds)
    for line in report_lines(result):
        console.print(line, highlight=False)
    return result


def _capacity(server: Server, names: list[str]) -> float:
    """Return the throughput in closed loop, with fewer connections until nothing is shed."""
    job = job_for(server, [observations(name) for name in names], CAPACITY_CONNECTIONS)
    slice_of(server, job, CAPACITY_S / 4, Side())  # warms up
    while True:
        side = Side()
        slice_of(server, job, CAPACITY_S, side)
        if not side.errors() or job.connections == 1:
            return side.reports[0].rate
        job.connections //= 2


def _generate(
    servers: list[Server], names: list[str], phases: list[tuple[float, float]]
) -> Requests:
    """Run the generator in its own process."""
    targets = [observations(name) for name in names]
    most = OPEN_CONNECTIONS // len(servers)
    job = OpenJob([job_for(server, targets, most) for server in servers], phases)
    with tempfile.TemporaryFile() as found:  # more than a pipe holds
        done = subprocess.run(
            [sys.executable, "-c", "from service.bench.open_loop import main; main()"],
            input=msgspec.json.encode(job),
            stdout=found,
            stderr=subprocess.PIPE,
            timeout=sum(seconds for _, seconds in phases) + 300,
            check=False,
        )
        if done.returncode:
            raise BenchError(f"the load generator failed:\n{done.stderr.decode()[-2000:]}")
        found.seek(0)
        return msgspec.json.decode(found.read(), type=Requests)


def evaluate(
    requests: Requests, capacity: float, factor: float, overload_s: float
) -> OverloadBench:
    """Return what requests came to that were due under overload and after it."""
    return OverloadBench(
        capacity,
        factor,
        _phase(requests, 0.0, overload_s),
        _phase(requests, overload_s, overload_s + CALM_S),
        _recovery_s(requests, overload_s),
        requests.late_s,
    )


def _phase(requests: Requests, begin_s: float, end_s: float) -> Phase:
    found = Phase(end_s - begin_s, [], [], {})
    for due_s, latency_s, status in zip(
        requests.due_s, requests.latency_s, requests.status, strict=True
    ):
        if not begin_s <= due_s < end_s:
            continue
        if status == SHED:
            found.shed_s.append(latency_s)
        elif 200 <= status < 300:
            found.accepted_s.append(latency_s)
            found.served += due_s + latency_s < end_s
        else:
            found.failed[status] = found.failed.get(status, 0) + 1
    return found


def _recovery_s(requests: Requests, overload_s: float) -> float:
    """Return the time from the overload's end to the first normal half second."""
    for number in range(int(CALM_S / BIN_S)):
        begin_s = overload_s + number * BIN_S
        part = _phase(requests, begin_s, begin_s + BIN_S)
        fast = part.latency_ms().get("p99", float("inf")) < 1e3 * NORMAL_S
        if fast and not part.shed_s and not part.failed:
            return number * BIN_S
    return float("inf")


def report_lines(result: OverloadBench) -> list[str]:
    """Return what is printed."""
    lines = []
    for name, phase in (
        (f"{result.factor:g} x capacity", result.overload),
        ("0.5 x capacity", result.calm),
    ):
        accepted, shed = phase.latency_ms(), phase.latency_ms(shed=True)
        lines.append(
            f"{name}, {phase.seconds:g} s: served {phase.rate:,.0f}/s, {_latency(accepted)}; "
            f"shed {len(phase.shed_s) / phase.seconds:,.0f}/s, {_latency(shed)}; "
            f"failed {phase.failed or 0}"
        )
    lines.append(f"goodput: {100 * result.goodput:.0f} % of the capacity")
    lines.append(f"recovered {result.recovery_s:g} s after the overload")
    lines.append(f"the generator was at most {1e3 * result.late_s:.0f} ms late")
    return lines


def _latency(quantile: dict[str, float]) -> str:
    return ", ".join(f"{name} {ms:.0f} ms" for name, ms in quantile.items()) or "none"
