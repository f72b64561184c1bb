"""`moca bench serve`: single-observation REST throughput beside a bare FastAPI echo endpoint.

Both are measured in one run, alternating, by the same closed-loop generator; the ratio of their
throughputs says what the service costs whatever the machine.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import uuid
from contextlib import ExitStack
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from service.bench.load import Job, Report
from service.bench.processes import (
    BenchError,
    Server,
    cpu_seconds,
    echo_server,
    machine_busy_s,
    moca_server,
)
from service.client import Client, Problem

PRIMING = 32  # observations each stream gets first, so that the filter runs and not the warm-up
BODIES = 8  # different labels that a connection sends in turn
QUIET_CORES = 0.2  # what others may use before the result says so
WARM_S = 0.5  # unmeasured load before the first slice of each


@dataclass
class Side:
    """All slices of one server."""

    reports: list[Report] = field(default_factory=list)
    server_us: list[dict[str, float]] = field(default_factory=list)  # CPU per request by role
    other_cores: list[float] = field(default_factory=list)  # used by everything else meanwhile

    def rate(self) -> float:
        """Median throughput, requests per second."""
        return statistics.median(report.rate for report in self.reports)

    def latency_ms(self, name: str) -> float:
        """Median over the slices of one latency quantile."""
        return statistics.median(report.latency_ms.get(name, 0.0) for report in self.reports)

    def generator_us(self) -> float:
        """Median CPU time that the generator spends on a request, microseconds."""
        return statistics.median(report.generator_us for report in self.reports)

    def cpu_us(self) -> dict[str, float]:
        """Median CPU time of the server per request by role, microseconds; empty if unknown."""
        roles = {role for each in self.server_us for role in each}
        middle = {r: statistics.median(u.get(r, 0.0) for u in self.server_us) for r in roles}
        return dict(sorted(middle.items(), key=lambda pair: -pair[1]))

    def errors(self) -> dict[str, int]:
        """Failures of all slices by kind."""
        total: dict[str, int] = {}
        for report in self.reports:
            for kind, count in report.errors.items():
                total[kind] = total.get(kind, 0) + count
        return total


@dataclass
class ServeBench:
    """Result of `bench_serve`."""

    connections: int
    streams: int
    model: str
    service: Side = field(default_factory=Side)
    echo: Side = field(default_factory=Side)

    def ratios(self) -> list[float]:
        """Throughput of the service over the echo's, one per pair of neighbouring slices."""
        pairs = zip(self.service.reports, self.echo.reports, strict=True)
        return [service.rate / echo.rate for service, echo in pairs]

    def ratio(self) -> float:
        """Median ratio."""
        return statistics.median(self.ratios())


def bench_serve(
    *,
    url: str | None = None,
    seconds: float = 30.0,
    connections: int = 32,
    streams: int = 500,
    rounds: int = 3,
    workers: int = 1,
    model: str = "gaussian",
    console: Console | None = None,
) -> ServeBench:
    """Measure the service at `url`, or one started here, beside the echo; print and return it.

    `seconds` is the time under measured load, shared by `rounds` slices of the service and as
    many of the echo in turn. Each request is one observation; `streams` different streams, of
    `model` where the service is started here.
    """
    if connections < 1 or streams < connections or rounds < 1 or seconds <= 0:
        raise BenchError(
            "expected connections >= 1, streams >= connections, rounds >= 1 and seconds > 0; got "
            f"{connections}, {streams}, {rounds} and {seconds:g}"
        )
    if url is not None:
        job_for(Server(url, None), [], connections)  # refuses an address it cannot load
    console = console or Console()
    prefix = f"bench-{uuid.uuid4().hex[:8]}"
    names = [f"{prefix}-{number}" for number in range(streams)]
    with ExitStack() as stack:
        echo = stack.enter_context(echo_server())
        console.print("starting the service" if url is None else f"measuring {url}")
        if url is None:
            mine = stack.enter_context(moca_server(workers, ["--default-model", model]))
        else:
            mine = Server(url, None)
            stack.callback(delete, url, names)
        result = ServeBench(connections, len(names), model if url is None else "the default model")
        _measure(result, mine, echo, names, rounds, seconds, console)
    for line in report_lines(result):
        console.print(line, highlight=False)
    return result


def _measure(
    result: ServeBench,
    mine: Server,
    echo: Server,
    names: list[str],
    rounds: int,
    seconds: float,
    console: Console,
) -> None:
    """Prime the streams, warm both servers, then measure them in turn."""
    connections = result.connections
    slice_s = seconds / (2 * rounds)
    console.print(f"priming {len(names)} streams with {PRIMING} observations each")
    prime(mine, names, connections)
    echo_job = job_for(echo, ["/echo"] * connections, connections)
    service_job = job_for(mine, [observations(name) for name in names], connections)
    for server, job in ((echo, echo_job), (mine, service_job)):
        slice_of(server, job, WARM_S, Side())
    for number in range(rounds):
        console.print(f"round {number + 1} of {rounds}: {slice_s:g} s each")
        slice_of(mine, service_job, slice_s, result.service)
        slice_of(echo, echo_job, slice_s, result.echo)


def observations(name: str) -> str:
    """Return the path of a stream's observations."""
    return f"/v1/streams/{name}/observations"


def job_for(server: Server, targets: list[str], connections: int) -> Job:
    """Return a job of ready-made observations for a server."""
    where = urlsplit(server.url)
    if where.scheme != "http" or where.hostname is None:
        raise BenchError(f"expected an http:// address, got {server.url!r}")
    draw = random.Random(1)
    bodies = [f'{{"y": {draw.gauss(10.0, 1.0):.4f}}}' for _ in range(BODIES)]
    return Job(where.hostname, where.port or 80, targets, bodies, connections)


def prime(server: Server, names: list[str], connections: int) -> None:
    """Take every stream out of its warm-up; one list each."""
    job = job_for(server, [observations(name) for name in names], connections)
    draw = random.Random(2)
    rows = [{"y": round(draw.gauss(10.0, 1.0), 4)} for _ in range(PRIMING)]
    job.bodies, job.seconds = [msgspec.json.encode(rows).decode()], 0.0
    report = _generate(job)
    while set(report.errors) == {"429"} and job.connections > 1:  # too much at once for it
        job.connections //= 2
        report = _generate(job)
    if report.errors:
        raise BenchError(f"priming failed: {report.errors} of {report.requests} requests")


def slice_of(server: Server, job: Job, seconds: float, side: Side) -> None:
    """Load a server for a while, and add what came of it to its side."""
    job.seconds = seconds
    before, busy = cpu_seconds(server), machine_busy_s()
    report = _generate(job)
    after, busy_after = cpu_seconds(server), machine_busy_s()
    side.reports.append(report)
    used = {role: after[role] - before.get(role, 0.0) for role in after}
    if used:
        side.server_us.append({role: 1e6 * s / report.requests for role, s in used.items()})
    if used and busy is not None and busy_after is not None:
        others = busy_after - busy - sum(used.values()) - report.process_s
        side.other_cores.append(max(others, 0.0) / report.seconds)


def _generate(job: Job) -> Report:
    """Run the generator in its own process."""
    done = subprocess.run(
        [sys.executable, "-c", "from service.bench.load import main; main()"],
        input=msgspec.json.encode(job),
        capture_output=True,
        timeout=job.seconds + 300,
        check=False,
    )
    if done.returncode:
        raise BenchError(f"the load generator failed:\n{done.stderr.decode()[-2000:]}")
    report = msgspec.json.decode(done.stdout, type=Report)
    if not report.requests:
        raise BenchError("the load generator got no answer at all")
    return report


def delete(url: str, names: list[str]) -> None:
    """Leave nothing behind in somebody else's service."""
    with Client(url) as client:
        for name in names:
            try:
                client.delete_stream(name)
            except Problem as problem:
                if problem.status != 404:  # 404: it was never made
                    raise


def report_lines(result: ServeBench) -> list[Table | str]:
    """Return what is printed: the table, the ratio, and what the generator cost."""
    table = Table(
        title=f"single observations, {result.connections} connections in closed loop, "
        f"{result.streams} streams of {result.model}",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    for name in ("", "per s", "p50 ms", "p90 ms", "p99 ms", "server us", "generator us"):
        table.add_column(name, justify="right" if name else "left")
    for name, side in (("service", result.service), ("bare echo", result.echo)):
        latency = [f"{side.latency_ms(quantile):.2f}" for quantile in ("p50", "p90", "p99")]
        server = f"{sum(side.cpu_us().values()):.0f}" if side.server_us else "?"
        table.add_row(name, f"{side.rate():,.0f}", *latency, server, f"{side.generator_us():.0f}")
    each = ", ".join(f"{ratio:.2f}" for ratio in result.ratios())
    lines: list[Table | str] = [
        table,
        f"ratio service / echo: {result.ratio():.3f} (rounds: {each})",
    ]
    shares = [1e-4 * side.generator_us() * side.rate() for side in (result.service, result.echo)]
    lines.append(
        f"us: CPU per request. The generator took {shares[0]:.0f} % of a core beside the service, "
        f"{shares[1]:.0f} % beside the echo."
    )
    if roles := result.service.cpu_us():
        each = ", ".join(f"{role} {us:.0f}" for role, us in roles.items() if us >= 0.5)
        lines.append(f"service us by process: {each}")
    others = [*result.service.other_cores, *result.echo.other_cores]
    if others and statistics.median(others) > QUIET_CORES:
        lines.append(
            f"Not a quiet machine: other processes used {statistics.median(others):.1f} of "
            f"{os.cpu_count()} cores meanwhile."
        )
    for name, side in (("service", result.service), ("echo", result.echo)):
        if side.errors():
            lines.append(f"{name} failures: {side.errors()}")
    return lines
