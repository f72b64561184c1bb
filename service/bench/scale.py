"""`moca bench scale`: rate, memory and housekeeping of one worker with many streams.

The same service is loaded with few and with many streams in turn, so that a machine that slows
down slows both. What a stream takes is the growth between both numbers of streams, divided by
their difference: what the processes hold without any is not in it.
"""

from __future__ import annotations

import math
import random
import statistics
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx
import msgspec
from rich.console import Console
from rich.progress import track
from rich.table import Table

from service.bench.load import Job
from service.bench.processes import BenchError, Server, memory_bytes, moca_server
from service.bench.results import table
from service.bench.slices import (
    REQUEST_S,
    Side,
    job_for,
    observations,
    samples,
    slice_of,
    wait_until_compiled,
)

PATH = "/v1/observations"
FEW = 1_000  # streams, which any number of them is compared with
PRIMING = 24  # observations that each stream begins with: the warm-up, and a few that are filtered
BEGUN = 40  # streams begun by one request
BEGINNERS = 2  # such requests at a time
PART = 100  # streams in one measured request, an observation of each
CONNECTIONS = 4
LIMIT_S = 1200.0  # for beginning streams; those that are there by then are measured
PAUSE_S = 0.2  # before what was shed is sent again
EXPIRY_S = 62  # until the store has forgotten the outcomes of what was posted
REFRESH_S = 3.0  # within this the service looks at the store's memory again
WARM_S = 4.0
PROBE_S = 3.0
SHED = 429
HOUSEKEEPING = "moca_housekeeping_seconds"
APPLIED = "moca_observations_total applied"
Row = dict[str, object]  # of a bulk request


@dataclass
class Held:
    """Memory at some time, in bytes, with so many streams."""

    streams: int
    worker: int
    store: int


@dataclass
class Housekeeping:
    """A worker's housekeeping within some time."""

    share: float  # of a core
    longest_s: float  # bound that the longest round kept to; inf: beyond the histogram's last


@dataclass
class ScaleBench:
    """Result of `bench_scale`. Rates are observations applied per second, one of each slice."""

    model: str
    few: int
    streams: int
    begun_per_s: float = 0.0
    few_rates: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)  # with few streams, then with all
    busy: Housekeeping | None = None  # under load
    idle: Housekeeping | None = None
    probe_ms: dict[str, float] = field(default_factory=dict)  # latency of one request at a time

    def ratio(self) -> float:
        """Median over the rounds of the rate with all streams over that with few."""
        pairs = zip(self.rates, self.few_rates, strict=True)
        return statistics.median(many / few for many, few in pairs)

    def summary(self) -> dict[str, object]:
        """Everything measured, and what it comes to."""
        return {
            **asdict(self),
            "rate_ratio": self.ratio(),
            "worker_bytes_per_stream": self.per_stream("worker"),
            "store_bytes_per_stream": self.per_stream("store"),
        }

    def per_stream(self, part: str) -> float:
        """Bytes that a stream takes of `worker` or `store`."""
        before, after = self.held
        grown = getattr(after, part) - getattr(before, part)
        return float(grown / (after.streams - before.streams))


def bench_scale(
    *,
    streams: int = 100_000,
    seconds: float = 30.0,
    rounds: int = 3,
    model: str = "gaussian",
    console: Console | None = None,
) -> ScaleBench:
    """Begin `streams` streams of a service started here, and measure it; print and return it.

    `seconds` is the time under measured load, in `rounds` slices with few streams and as many
    with all.
    """
    if streams < 2 * PART or rounds < 1 or seconds <= 0:
        raise BenchError(
            f"expected streams >= {2 * PART}, rounds >= 1 and seconds > 0; got {streams}, "
            f"{rounds} and {seconds:g}"
        )
    console = console or Console()
    prefix = f"bench-{uuid.uuid4().hex[:8]}"
    names = [f"{prefix}-{number}" for number in range(streams)]
    result = ScaleBench(model, min(FEW, streams // 2), streams)
    with moca_server(1, ["--default-model", model]) as server:
        _fill(result, server, names, console)
        _load(result, server, names[: result.streams], seconds / (2 * rounds), rounds, console)
        _probe(result, server, names[: result.few])
    for line in report_lines(result):
        console.print(line, highlight=False)
    return result


def _fill(result: ScaleBench, server: Server, names: list[str], console: Console) -> None:
    """Begin the few streams, then the others; memory is taken after each."""
    begin(server, names[: result.few], console, "first streams")
    _warm(server, names[: result.few])
    result.held.append(_held(server, result.few))
    began = time.monotonic()
    done = begin(server, names[result.few :], console, "streams", LIMIT_S)
    result.begun_per_s = done / (time.monotonic() - began)
    result.streams = result.few + done
    for _ in track(range(EXPIRY_S), "until outcomes expire", console=console, transient=True):
        time.sleep(1.0)
    result.held.append(_held(server, result.streams))


def begin(
    server: Server, names: Sequence[str], console: Console, what: str, limit_s: float = math.inf
) -> int:
    """Post the first observations of streams; returns of how many, within the limit."""
    end = time.monotonic() + limit_s
    with (
        httpx.Client(base_url=server.url, timeout=REQUEST_S, trust_env=False) as client,
        ThreadPoolExecutor(BEGINNERS) as pool,
    ):

        def begin_some(some: Sequence[str]) -> int:
            if time.monotonic() > end:
                return 0
            _post(client, [row for name in some for row in _first_rows(name)])
            return len(some)

        groups = [names[i : i + BEGUN] for i in range(0, len(names), BEGUN)]
        begun = list(
            track(
                pool.map(begin_some, groups),
                f"beginning {len(names):,} {what}",
                total=len(groups),
                console=console,
                transient=True,
            )
        )
    if 0 in begun:  # those begun are the first ones: groups are taken in order
        console.print(f"{sum(begun):,} streams were begun within {limit_s:g} s", highlight=False)
    return sum(begun)


def _first_rows(name: str) -> list[Row]:
    draw = random.Random(name)
    return [{"stream": name, "y": round(draw.gauss(10.0, 1.0), 4)} for _ in range(PRIMING)]


def _post(client: httpx.Client, rows: list[Row]) -> None:
    """Post items until each is applied; what is shed is sent again."""
    give_up = time.monotonic() + REQUEST_S
    while rows:
        answer = client.post(
            PATH, content=msgspec.json.encode(rows), headers={"content-type": "application/json"}
        )
        if answer.status_code not in (200, SHED):
            raise BenchError(f"expected 200, got {answer.status_code}: {answer.text[:300]}")
        if answer.status_code == 200:
            rows = _shed(rows, msgspec.json.decode(answer.content))
        if rows:
            if time.monotonic() > give_up:
                raise BenchError(f"{len(rows)} observations were shed for {REQUEST_S:g} s")
            time.sleep(PAUSE_S)


def _shed(rows: list[Row], items: list[dict[str, Any]]) -> list[Row]:
    """Those that were shed, and those of the same streams after them."""
    left: list[Row] = []
    streams: set[object] = set()
    for row, item in zip(rows, items, strict=True):
        if item["status"] == 200:
            continue
        if row["stream"] not in streams and item["status"] != SHED:
            raise BenchError(f"an observation was refused: {item}")
        streams.add(row["stream"])
        left.append(row)
    return left


def _warm(server: Server, names: Sequence[str]) -> None:
    """Have kernels compiled and buffers grown before memory is first taken."""
    wait_until_compiled(server)
    slice_of(server, _job(server, names), WARM_S, Side())


def _job(server: Server, names: Sequence[str]) -> Job:
    """A job whose connections go through all streams, each from a place of its own."""
    draw = random.Random(3)
    job = job_for(server, [PATH] * CONNECTIONS, CONNECTIONS)
    job.staggered = True
    job.bodies = [
        msgspec.json.encode(
            [{"stream": name, "y": round(draw.gauss(10.0, 1.0), 4)} for name in names[i : i + PART]]
        ).decode()
        for i in range(0, len(names) - PART + 1, PART)
    ]
    return job


def _load(
    result: ScaleBench,
    server: Server,
    names: list[str],
    slice_s: float,
    rounds: int,
    console: Console,
) -> None:
    """Load few and all streams in turn."""
    few, many = _job(server, names[: result.few]), _job(server, names)
    slice_of(server, many, slice_s / 2, Side())  # unmeasured
    spent: list[Housekeeping] = []
    for _ in track(range(rounds), "measuring", console=console, transient=True):
        result.few_rates.append(_rate(server, few, slice_s))
        before, began = _rounds(server), time.monotonic()
        result.rates.append(_rate(server, many, slice_s))
        spent.append(_between(before, _rounds(server), time.monotonic() - began))
    result.busy = Housekeeping(
        statistics.fmean(each.share for each in spent), max(each.longest_s for each in spent)
    )


def _rate(server: Server, job: Job, slice_s: float) -> float:
    """Observations applied per second: under load some may be shed."""
    side, before = Side(), samples(server)[APPLIED]
    slice_of(server, job, slice_s, side)
    if set(side.errors()) - {str(SHED)}:
        raise BenchError(f"requests failed under load: {side.errors()}")
    return (samples(server)[APPLIED] - before) / side.reports[0].seconds


def _probe(result: ScaleBench, server: Server, names: Sequence[str]) -> None:
    """Latency of single observations, one at a time, beside all the streams at rest."""
    before, began = _rounds(server), time.monotonic()
    side = Side()
    slice_of(server, job_for(server, [observations(n) for n in names], 1), PROBE_S, side)
    result.probe_ms = side.reports[0].latency_ms
    result.idle = _between(before, _rounds(server), time.monotonic() - began)


def _held(server: Server, streams: int) -> Held:
    time.sleep(REFRESH_S)
    by_role = memory_bytes(server)
    return Held(
        streams, by_role.get("worker", 0), int(samples(server)["moca_redis_used_memory_bytes"])
    )


def _rounds(server: Server) -> dict[str, float]:
    """Housekeeping of the service's worker so far."""
    return {k: v for k, v in samples(server).items() if k.startswith(HOUSEKEEPING)}


def _between(before: dict[str, float], after: dict[str, float], seconds: float) -> Housekeeping:
    """What was spent between two readings of the histogram."""
    spent = {name: value - before.get(name, 0.0) for name, value in after.items()}
    count = spent.get(f"{HOUSEKEEPING}_count", 0.0)
    bounds = {
        float(name.split()[1]): value
        for name, value in spent.items()
        if name.startswith(f"{HOUSEKEEPING}_bucket")
    }
    longest_s = min((bound for bound, n in bounds.items() if n >= count), default=math.inf)
    return Housekeeping(spent.get(f"{HOUSEKEEPING}_sum", 0.0) / seconds, longest_s)


def report_lines(result: ScaleBench) -> list[Table | str]:
    """Return what is printed."""
    title = f"{result.model}, one worker, bulk requests of {PART} streams"
    loads = table(title, "streams", "observations/s", "worker MiB", "store MiB")
    rows = zip((result.few_rates, result.rates), result.held, strict=True)
    for rates, held in rows:
        mib = [f"{size / (1 << 20):,.0f}" for size in (held.worker, held.store)]
        loads.add_row(f"{held.streams:,}", f"{statistics.median(rates):,.0f}", *mib)
    each = ", ".join(
        f"{many / few:.2f}" for many, few in zip(result.rates, result.few_rates, strict=True)
    )
    lines: list[Table | str] = [
        loads,
        f"ratio of the rates: {result.ratio():.3f} (rounds: {each})",
        f"a stream takes {result.per_stream('worker'):,.0f} bytes of the worker and "
        f"{result.per_stream('store'):,.0f} of the store, with {PRIMING} observations",
        f"{result.begun_per_s:,.0f} streams begun per second, {PRIMING} observations each",
    ]
    for name, spent in (("under load", result.busy), ("at rest", result.idle)):
        if spent is not None:
            longest = f"at most {1e3 * spent.longest_s:g}"
            if math.isinf(spent.longest_s):
                longest = "more than 1,000"
            lines.append(
                f"housekeeping {name}: {100 * spent.share:.2f} % of a core, longest round "
                f"{longest} ms of CPU"
            )
    latency = ", ".join(f"{name} {ms:.1f} ms" for name, ms in result.probe_ms.items())
    lines.append(f"single observations at rest: {latency}")
    return lines
