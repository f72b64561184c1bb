"""`moca bench serve`: throughput and CPU of the service, beside a bare FastAPI echo endpoint.

Single observations and the echo are measured in one run, alternating, by the same closed-loop
generator; the ratio of their throughputs says what the service costs whatever the machine. Lists
of observations and replays follow in the same rounds.
"""

from __future__ import annotations

import os
import statistics
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from model_core.upm.builtin import BUILTIN
from service.bench.lists import ListLoad, Lists, replay_s
from service.bench.processes import BenchError, BenchServer, echo_server, moca_server
from service.bench.results import interval, rounds_of, table
from service.bench.slices import (
    PRIMING,
    Side,
    delete,
    job_for,
    observations,
    prime,
    put_streams,
    slice_of,
)

QUIET_CORES = 0.2  # what others may use before the result says so
WARM_S = 0.5  # unmeasured load before the first slice of each
ALL = "all"
DEFAULT = "the default model"
SINGLE = "single observations"
PARTS = ("worker", "api", "store")  # processes of a service
ECHO = "echo"


@dataclass
class ServePlan:
    """What is measured: see `bench_serve`."""

    seconds: float
    connections: int
    streams: int
    rounds: int
    lists: int
    replay: int

    def check(self) -> None:
        """Raise BenchError for what cannot be measured."""
        if (
            self.connections < 1
            or self.streams < self.connections
            or self.rounds < 1
            or self.seconds <= 0
            or min(self.lists, self.replay) < 0
        ):
            raise BenchError(
                "expected connections >= 1, streams >= connections, rounds >= 1, seconds > 0, and "
                f"lists and replay >= 0; got {self}"
            )

    @property
    def slice_s(self) -> float:
        """Seconds of one slice."""
        return self.seconds / (2 * self.rounds)


@dataclass
class ServeBench:
    """Result of `bench_serve` for one model; lists and replays are empty where not wanted."""

    connections: int
    streams: int
    model: str
    service: Side = field(default_factory=Side)
    echo: Side = field(default_factory=Side)
    lists: list[Lists] = field(default_factory=list)
    replay_rows: int = 0
    replay_s: list[float] = field(default_factory=list)

    def ratios(self) -> list[float]:
        """Throughput of the service over the echo's, one per pair of neighbouring slices."""
        pairs = zip(self.service.reports, self.echo.reports, strict=True)
        return [service.rate / echo.rate for service, echo in pairs]

    def ratio(self) -> float:
        """Median ratio."""
        return statistics.median(self.ratios())

    def summary(self) -> dict[str, Any]:
        """All values, with their intervals over the rounds."""
        return {
            "model": self.model,
            "connections": self.connections,
            "streams": self.streams,
            "service": self.service.summary(),
            "echo": self.echo.summary(),
            "ratio": rounds_of(self.ratios()),
            "lists": [lists.summary() for lists in self.lists],
            "replay": {"rows": self.replay_rows, "seconds": rounds_of(self.replay_s)},
        }


def bench_serve(
    *,
    url: str | None = None,
    seconds: float = 30.0,
    connections: int = 32,
    streams: int = 500,
    rounds: int = 3,
    workers: int = 1,
    models: Sequence[str] | None = None,
    lists: int = 0,
    replay: int = 0,
    console: Console | None = None,
) -> list[ServeBench]:
    """Measure the service at `url`, or one started here, beside the echo; print and return it.

    seconds: time under measured load of single observations for each model, shared by `rounds`
    slices of the service and as many of the echo in turn. models: names; all built-in ones if
    "all"; `gaussian`, or the default of the service at `url`, if None. lists: length of lists of
    one stream and of many, which are loaded for as long as a slice each; replay: rows of a replay
    in each round; 0: none.
    """
    plan = ServePlan(seconds, connections, streams, rounds, lists, replay)
    plan.check()
    if url is not None:
        job_for(BenchServer(url, None), [], connections)  # refuses an address it cannot load
    chosen = _models(models, url)
    console = console or Console()
    results = []
    with ExitStack() as stack:
        echo = stack.enter_context(echo_server())
        console.print("starting the service" if url is None else f"measuring {url}")
        if url is None:
            mine = stack.enter_context(moca_server(workers, ["--default-model", chosen[0]]))
        else:
            mine = BenchServer(url, None)
        for model in chosen:
            by_default = model == (chosen[0] if url is None else DEFAULT)
            results.append(_measure(plan, mine, echo, model, by_default, console))
    for line in report_lines(results):
        console.print(line, highlight=False)
    return results


def _models(models: Sequence[str] | None, url: str | None) -> list[str]:
    if not models:
        return ["gaussian" if url is None else DEFAULT]
    return list(BUILTIN) if ALL in models else list(models)


def _measure(
    plan: ServePlan,
    mine: BenchServer,
    echo: BenchServer,
    model: str,
    by_default: bool,
    console: Console,
) -> ServeBench:
    """Prime streams of a model, warm both servers, then measure in turn."""
    prefix = f"bench-{uuid.uuid4().hex[:8]}"
    names = [f"{prefix}-{number}" for number in range(max(plan.streams, plan.lists))]
    singles = names[: plan.streams]
    listed = names[: plan.lists]
    result = ServeBench(plan.connections, plan.streams, model, replay_rows=plan.replay)
    with ExitStack() as stack:
        if mine.pid is None:
            stack.callback(delete, mine.url, names)
        if not by_default or model == "categorical":
            put_streams(mine, names, model)
        console.print(f"{model}: priming {len(names)} streams with {PRIMING} observations each")
        prime(mine, names, plan.connections, model)
        loads = [
            ListLoad(mine, model, streams, plan.lists)
            for streams in (listed[:1], listed)
            if streams
        ]
        result.lists = [load.result for load in loads]
        echo_job = job_for(echo, ["/echo"] * plan.connections, plan.connections)
        targets = [observations(name) for name in singles]
        service_job = job_for(mine, targets, plan.connections, model)
        for server, job in ((echo, echo_job), (mine, service_job)):
            slice_of(server, job, WARM_S, Side())
        for number in range(plan.rounds):
            console.print(f"round {number + 1} of {plan.rounds}: {plan.slice_s:g} s each")
            slice_of(mine, service_job, plan.slice_s, result.service)
            slice_of(echo, echo_job, plan.slice_s, result.echo)
            for load in loads:
                load.run(plan.slice_s)
            if plan.replay:
                result.replay_s.append(_replay(mine, model, plan.replay))
    return result


def _replay(server: BenchServer, model: str, rows: int) -> float:
    try:
        return replay_s(server, None if model == DEFAULT else model, rows)
    finally:
        if server.pid is None:
            delete(server.url, ["replay"])


def report_lines(results: Sequence[ServeBench]) -> list[Table | str]:
    """Return what is printed: a table of each kind of load, with a line for each model."""
    lines: list[Table | str] = [_singles(results), _cpu(results)]
    shares = [
        [1e-4 * side.generator_us() * side.rate() for side in (result.service, result.echo)]
        for result in results
    ]
    beside, bare = (statistics.median(result[i] for result in shares) for i in range(2))
    lines.append(
        "Medians (10 % - 90 % of the rounds). The generator took "
        f"{beside:.0f} % of a core beside the service, {bare:.0f} % beside the echo."
    )
    if any(result.lists for result in results):
        lines.append(_lists(results))
    if any(result.replay_s for result in results):
        replays = table("moca replay, from start to end, with a plot", "model", "rows", "seconds")
        for result in results:
            replays.add_row(result.model, f"{result.replay_rows:,}", str(interval(result.replay_s)))
        lines.append(replays)
    others = [cores for result in results for cores in result.service.other_cores]
    others += [cores for result in results for cores in result.echo.other_cores]
    if others and statistics.median(others) > QUIET_CORES:
        lines.append(
            f"Not a quiet machine: other processes used {statistics.median(others):.1f} of "
            f"{os.cpu_count()} cores meanwhile."
        )
    for result in results:
        for name, side in (("service", result.service), (ECHO, result.echo)):
            if side.errors():
                lines.append(f"{result.model}: {name} failures: {side.errors()}")
    return lines


def _singles(results: Sequence[ServeBench]) -> Table:
    first = results[0]
    title = (
        f"{SINGLE}, {first.connections} connections in closed loop, {first.streams} streams, "
        "beside a bare echo"
    )
    shown = table(title, "model", "per s", "echo/s", "ratio", "p50 ms", "p99 ms")
    for result in results:
        latency = [f"{result.service.latency_ms(quantile):.2f}" for quantile in ("p50", "p99")]
        rates = [f"{side.rate():,.0f}" for side in (result.service, result.echo)]
        shown.add_row(result.model, *rates, str(interval(result.ratios())), *latency)
    return shown


def _cpu(results: Sequence[ServeBench]) -> Table:
    """CPU time of a request, of which the echo's says how fast the machine is."""
    parts = (*PARTS, ECHO)
    shown = table("CPU time of a request", "model", *(f"{part} us" for part in parts))
    for result in results:
        cpu = result.service.cpu_us() | result.echo.cpu_us()
        shown.add_row(result.model, *(f"{cpu[part]:.0f}" if part in cpu else "?" for part in parts))
    return shown


def _lists(results: Sequence[ServeBench]) -> Table:
    length = next(lists.length for result in results for lists in result.lists)
    title = f"lists of {length:,}, one after the other; us: CPU for an observation"
    parts = [f"{part} us" for part in PARTS]
    shown = table(title, "model", "list of", "per s", *parts, "per core-s of the worker")
    for result in results:
        for lists in result.lists:
            us = [
                f"{statistics.median(lists.us[part]):.1f}" if part in lists.us else "?"
                for part in PARTS
            ]
            rates = lists.worker_rates()
            core = str(interval(rates)) if rates else "?"
            rate = f"{statistics.median(lists.per_s):,.0f}"
            shown.add_row(result.model, lists.of, rate, *us, core)
    return shown
