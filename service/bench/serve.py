"""`moca bench serve`: throughput and CPU of the service, beside a bare FastAPI echo endpoint.

Single observations and the echo are loaded in turn by the same closed-loop generator; the ratio of
their throughputs says what the service costs whatever the machine. Lists of observations and
replays follow in the same rounds.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import msgspec
import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from moca_client import Client, Problem
from model_core.upm.builtin import BUILTIN
from service.bench.load import LoadJob, LoadReport
from service.bench.processes import (
    BenchServer,
    cpu_seconds,
    echo_server,
    machine_busy_s,
    moca_server,
)
from service.bench.report import BenchError, Rounds, show

ALL = "all"
DEFAULT = "the default model"
PRIMING = 32  # observations each stream gets first, so that the filter runs and not the warm-up
BODIES = 8  # different labels that a connection sends in turn
CLASSES = 4
REGIME = 250  # observations between shifts of a made-up series
WARM_S = 0.5  # unmeasured load before the first round
REQUEST_S = 120.0
REPLAY_LIMIT_S = 600.0
SINGLE = "single observations"
ECHO = "echo"


class ServePlan(NamedTuple):
    """What `bench_serve` measures of each model.

    seconds: time under load of single observations, shared by `rounds` slices of the service and
    as many of the echo; lists are loaded for as long as a slice each. lists: length of lists of one
    stream and of many. replay: rows of a replay in each round. 0: none of these.
    """

    seconds: float = 30.0
    connections: int = 32
    streams: int = 500
    rounds: int = 3
    lists: int = 0
    replay: int = 0

    @property
    def slice_s(self) -> float:
        """Seconds of one slice."""
        return self.seconds / (2 * self.rounds)


def bench_serve(
    plan: ServePlan,
    models: Sequence[str] | None = None,
    url: str | None = None,
    workers: int = 1,
    console: Console | None = None,
) -> dict[str, Rounds]:
    """Measure the service at `url`, or one started here, beside the echo; print and return it.

    models: names; all built-in ones if "all"; the service's default if None.
    """
    if plan.streams < plan.connections or min(plan.connections, plan.rounds, plan.seconds) <= 0:
        raise BenchError(
            "expected streams >= connections >= 1, rounds >= 1 and seconds > 0; "
            f"got {plan._asdict()}"
        )
    if url is not None and urlsplit(url).scheme != "http":
        raise BenchError(f"expected an http:// address, got {url!r}")
    console = console or Console()
    results = {}
    with ExitStack() as stack:
        echo = stack.enter_context(echo_server())
        console.print("starting the service" if url is None else f"measuring {url}")
        started = None if url else stack.enter_context(moca_server(workers))
        server = started or BenchServer(str(url), None)
        for model in list(BUILTIN) if models and ALL in models else models or [DEFAULT]:
            results[model] = _measure(plan, server, echo, model, console)
    for model, measures in results.items():
        title = f"{model}: {plan.connections} connections in closed loop, {plan.streams} streams"
        show(title, measures, console)
    return results


def _measure(
    plan: ServePlan, server: BenchServer, echo: BenchServer, model: str, console: Console
) -> Rounds:
    """Prime streams of a model, warm both servers, then measure in turn."""
    prefix = f"bench-{uuid.uuid4().hex[:8]}"
    names = [f"{prefix}-{number}" for number in range(max(plan.streams, plan.lists))]
    replayed = f"{prefix}-replay"
    measures: Rounds = {}
    with ExitStack() as stack:
        if server.pid is None:
            stack.callback(_delete, server, [*names, replayed])
        with Client(server.url) as client:
            for name in names:
                client.put_stream(name, _settings(model))
        console.print(f"{model}: priming {len(names)} streams with {PRIMING} observations each")
        _prime(server, names, plan.connections, model)
        numbers = rows_of(DEFAULT, BODIES)
        echo_job = _job(echo, ["/echo"] * plan.connections, numbers, plan.connections)
        targets = [_observations(name) for name in names[: plan.streams]]
        single_job = _job(server, targets, rows_of(model, BODIES), plan.connections)
        for warmed, job in ((echo, echo_job), (server, single_job)):
            _load(warmed, job, WARM_S)
        for number in range(plan.rounds):
            console.print(f"round {number + 1} of {plan.rounds}: {plan.slice_s:g} s each")
            single = _load(server, single_job, plan.slice_s)
            bare = _load(echo, echo_job, plan.slice_s)
            _add(measures, SINGLE, single, single.report.requests)
            _add(measures, ECHO, bare, bare.report.requests)
            ratio = single.report.rate / bare.report.rate
            measures.setdefault(f"{SINGLE}: per s, over the echo's", []).append(ratio)
            for what, job in _list_jobs(server, model, names[: plan.lists]).items():
                before = _applied(server)
                listed = _load(server, job, plan.slice_s)
                if listed.report.errors:
                    raise BenchError(f"{what} failed: {listed.report.errors}")
                _add(measures, what, listed, _applied(server) - before)
            if plan.replay:
                took_s = _replay_s(server, model, plan.replay, replayed)
                measures.setdefault(f"replay of {plan.replay:,} rows: s", []).append(took_s)
    return measures


def _add(measures: Rounds, what: str, load: Load, count: float) -> None:
    """Add what a slice of load cost for each of `count` requests or observations."""
    if count <= 0:
        raise BenchError(f"{what}: expected observations to be applied, got none")
    report = load.report
    values = {"per s": (count - sum(report.errors.values())) / report.seconds}
    values |= {f"CPU us, {role}": 1e6 * used_s / count for role, used_s in load.cpu_s.items()}
    if what in (SINGLE, ECHO):
        values |= {f"{name} ms": report.latency_ms[name] for name in ("p50", "p99")}
        values["CPU us, generator"] = 1e6 * report.cpu_s / count
        values["failures"] = float(sum(report.errors.values()))
    elif load.cpu_s.get("worker"):
        values["per s of the worker's CPU"] = count / load.cpu_s["worker"]
    if load.other_cores is not None:
        values["cores used by others"] = load.other_cores
    for name, value in values.items():
        measures.setdefault(f"{what}: {name}", []).append(value)


# --- load ----------------------------------------------------------------------------------------


class Load(NamedTuple):
    """What a server answered under load, and what that took.

    cpu_s: CPU time of the server by role; empty where it is unknown, and `other_cores` is None.
    """

    report: LoadReport
    cpu_s: dict[str, float]
    other_cores: float | None


def _load(server: BenchServer, job: LoadJob, seconds: float) -> Load:
    """Load a server for a while."""
    job.seconds = seconds
    before = cpu_seconds(server)
    busy_s = machine_busy_s()
    report = _generate(job)
    used = {role: at - before.get(role, 0.0) for role, at in cpu_seconds(server).items()}
    busy_after_s = machine_busy_s()
    if not used or busy_s is None or busy_after_s is None:
        return Load(report, used, None)
    others_s = busy_after_s - busy_s - sum(used.values()) - report.process_s
    return Load(report, used, max(others_s, 0.0) / report.seconds)


def _generate(job: LoadJob) -> LoadReport:
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
    report = msgspec.json.decode(done.stdout, type=LoadReport)
    if not report.requests:
        raise BenchError("the load generator got no answer at all")
    return report


def _job(
    server: BenchServer, targets: list[str], bodies: Sequence[object], connections: int
) -> LoadJob:
    """Return a job that posts bodies in turn."""
    where = urlsplit(server.url)
    texts = [msgspec.json.encode(body).decode() for body in bodies]
    return LoadJob(str(where.hostname), where.port or 80, targets, texts, connections)


def _list_jobs(server: BenchServer, model: str, names: Sequence[str]) -> dict[str, LoadJob]:
    """Return jobs of lists of one stream, and of as many streams as a list is long."""
    if not names:
        return {}
    length = len(names)
    rows = rows_of(model, length * BODIES)
    one = [rows[at : at + length] for at in range(0, len(rows), length)]
    many = [
        [{"stream": name, **row} for name, row in zip(names, part, strict=True)] for part in one
    ]
    return {
        f"lists of {length:,} of one stream": _job(server, [_observations(names[0])], one, 1),
        f"lists of {length:,} of as many streams": _job(server, ["/v1/observations"], many, 1),
    }


def _prime(server: BenchServer, names: Sequence[str], connections: int, model: str) -> None:
    """Take every stream out of its warm-up; one list each."""
    job = _job(server, [_observations(name) for name in names], [rows_of(model, PRIMING)], 1)
    job.connections = connections
    job.seconds = 0.0
    report = _generate(job)
    while set(report.errors) == {"429"} and job.connections > 1:  # too much at once for it
        job.connections //= 2
        report = _generate(job)
    if report.errors:
        raise BenchError(f"priming failed: {report.errors} of {report.requests} requests")


def _applied(server: BenchServer) -> float:
    """Return how many observations the server has applied, by its metrics."""
    answer = httpx.get(f"{server.url}/metrics", timeout=REQUEST_S, trust_env=False)
    if answer.is_success:
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples:
                if sample.name == "moca_observations_total" and "applied" in sample.labels.values():
                    return float(sample.value)
    raise BenchError("expected /metrics with counted observations: --lists 0 leaves it out")


def _delete(server: BenchServer, names: Sequence[str]) -> None:
    """Leave nothing behind in somebody else's service."""
    with Client(server.url) as client:
        for name in names:
            try:
                client.delete_stream(name)
            except Problem as problem:
                if problem.status != 404:  # 404: it was never made
                    raise


# --- observations --------------------------------------------------------------------------------


def _observations(name: str) -> str:
    return f"/v1/streams/{name}/observations"


def _settings(model: str) -> dict[str, Any]:
    named = {} if model == DEFAULT else {"model": model}
    return {**named, **({"classes": CLASSES} if model == "categorical" else {})}


def rows_of(model: str, count: int) -> list[dict[str, Any]]:
    """Observations of a series with shifts, such as the model takes; numbers if it is unknown."""
    draw = np.random.default_rng(1)
    level = 10.0 + 6.0 * ((np.arange(count) // REGIME) % 2)
    match model:
        case "poisson":
            return [{"y": int(y)} for y in draw.poisson(level)]
        case "exponential" | "gamma":
            return [{"y": round(float(y), 4)} for y in draw.exponential(level)]
        case "bernoulli":
            return [{"y": int(y)} for y in draw.random(count) < level / 20]
        case "categorical":
            return [{"y": int(y)} for y in draw.binomial(CLASSES - 1, level / 20)]
    y = (level[:, None] + draw.normal(size=(count, 2))).round(4)
    if model == "multivariate":
        return [{"y": both} for both in y.tolist()]
    if model == "linear":
        x = draw.normal(size=count).round(4).tolist()
        return [{"y": first, "x": [value]} for (first, _), value in zip(y.tolist(), x, strict=True)]
    return [{"y": first} for first, _ in y.tolist()]


def _replay_s(server: BenchServer, model: str, rows: int, stream: str) -> float:
    """Seconds that `moca replay` of so many rows takes, from its start to its end, with a plot."""
    with tempfile.TemporaryDirectory(prefix="moca-bench-") as folder:
        file = Path(folder) / "replay.csv"
        with file.open("w", newline="") as handle:
            writer = csv.writer(handle)
            observations = rows_of(model, rows)
            outputs = np.ravel(observations[0]["y"]).size
            names = ["y"] if outputs == 1 else [f"y{place + 1}" for place in range(outputs)]
            writer.writerow([*names, *(["x"] if "x" in observations[0] else [])])
            for row in observations:
                writer.writerow([*np.ravel(row["y"]).tolist(), *row.get("x", [])])
        command = [sys.executable, "-c", "from service.commands.main import main; main()"]
        command += ["replay", str(file), "--url", server.url, "--out", folder, "--replace"]
        command += ["--stream", stream]
        for name, value in _settings(model).items():
            command += ["--set", f"{name}={value}"]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, timeout=REPLAY_LIMIT_S, check=False)
        took_s = time.monotonic() - began
    if done.returncode:
        raise BenchError(f"moca replay failed:\n{done.stderr.decode()[-2000:]}")
    return took_s
