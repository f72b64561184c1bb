"""`moca bench serve`: throughput and CPU of the service, beside a bare FastAPI echo endpoint.

Single observations and the echo are loaded in turn by the same closed-loop generator; the ratio of
their throughputs says what the service costs whatever the machine. Lists of observations and
replays follow in the same rounds.
"""

from __future__ import annotations

import csv
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import msgspec
import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from moca_client import Client
from model_core.upm.builtin import BUILTIN
from service.bench.load import LoadJob, LoadReport
from service.bench.report import BenchError, Rounds, show
from service.runtime.process import answers

ALL = "all"
DEFAULT = "the default model"
PRIMING = 32  # observations each stream gets first, so that the filter runs and not the warm-up
BODIES = 64  # different labels, of which each request has one: with few a stream has another law
CLASSES = 4
REGIME = 250  # observations between shifts of a made-up series
WARM_S = 0.5  # unmeasured load before the first round
START_S = 60.0
STOP_S = 60.0  # many streams are handed over
REQUEST_S = 120.0
REPLAY_LIMIT_S = 600.0
SINGLE = "single observations"
ECHO = "echo"
ECHO_APP = "service.bench.echo:app"
MOCA = "from service.commands.main import main; main()"
STORES = ("valkey-server", "redis-server")
PROC = Path("/proc")  # without it, CPU time is not reported


class ServePlan(NamedTuple):
    """What `bench_serve` measures of each model.

    seconds: time under load of single observations, shared by `rounds` slices of the service and
    as many of the echo; lists are loaded for as long as a slice each. lists: length of lists of one
    stream and of many. replay: rows of a replay in each round. 0: none of these.
    """

    seconds: float
    connections: int
    streams: int
    rounds: int
    lists: int
    replay: int

    @property
    def slice_s(self) -> float:
        """Seconds of one slice."""
        return self.seconds / (2 * self.rounds)


def bench_serve(
    plan: ServePlan,
    models: Sequence[str] | None = None,
    workers: int = 1,
    console: Console | None = None,
) -> dict[str, Rounds]:
    """Measure a service that is started here beside the echo; print and return it.

    models: names; all built-in ones if "all"; the service's default if None.
    """
    if plan.streams < plan.connections or min(plan.connections, plan.rounds, plan.seconds) <= 0:
        raise BenchError(
            "expected streams >= connections >= 1, rounds >= 1 and seconds > 0; "
            f"got {plan._asdict()}"
        )
    console = console or Console()
    results = {}
    console.print("starting the service")
    with tempfile.TemporaryDirectory(prefix="moca-bench-") as folder, ExitStack() as stack:
        echo_program = ["-m", "uvicorn", ECHO_APP, "--log-level", "error", "--no-access-log"]
        echo = stack.enter_context(_running("the echo", echo_program, "/openapi.json"))
        data = ["--data-dir", str(Path(folder) / "data"), "--workers", str(workers)]
        program = ["-c", MOCA, "serve", "--host", "127.0.0.1", *data]
        server = stack.enter_context(_running("moca serve", program, "/readyz"))
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
    console.print(f"{model}: priming {len(names)} streams with {PRIMING} observations each")
    with Client(server.url) as client:
        for name in names:
            client.put_stream(name, _settings(model))
            client.observe(name, rows_of(model, PRIMING))
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
    for name, value in values.items():
        measures.setdefault(f"{what}: {name}", []).append(value)


# --- servers ----------------------------------------------------------------------------------


class BenchServer(NamedTuple):
    """A server under load."""

    url: str
    pid: int


@contextmanager
def _running(name: str, program: list[str], probe: str) -> Iterator[BenchServer]:
    """Run Python with these arguments and a free port, from when its `probe` is answered."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = int(sock.getsockname()[1])
    # Without settings: a MOCA_REDIS_URL must not lead the load to a real store.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MOCA_")}
    command = [sys.executable, *program, "--port", str(port)]
    # Output goes to a file: a pipe that nobody reads would stop a talkative server.
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=plain
        )
        try:
            server = BenchServer(f"http://127.0.0.1:{port}", child.pid)
            give_up = time.monotonic() + START_S
            while not answers(server.url + probe):
                if time.monotonic() > give_up or child.poll() is not None:
                    text = os.pread(log.fileno(), 1 << 20, 0).decode(errors="replace")[-2000:]
                    ended = child.poll()
                    state = "not ready" if ended is None else f"ended with {ended}"
                    raise BenchError(
                        f"{name} {state} after {START_S:g} s at most; it said:\n{text}"
                    )
                time.sleep(0.1)
            yield server
        finally:
            _stop(child)


def _stop(child: subprocess.Popen[bytes]) -> None:
    """End a server, by force where it takes too long; its store would then go on without it."""
    if child.poll() is not None:
        return
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(STOP_S)
    except subprocess.TimeoutExpired:
        for pid in {child.pid, *_family(BenchServer("", child.pid))}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        child.wait()


def cpu_seconds(server: BenchServer) -> dict[str, float]:
    """CPU time of a server and all its descendants so far, by role; empty where unknown."""
    total: dict[str, float] = {}
    for pid, used in _family(server).items():
        role = _role(pid)
        total[role] = total.get(role, 0.0) + used / os.sysconf("SC_CLK_TCK")
    return total


def _family(server: BenchServer) -> dict[int, int]:
    """Processes of a server, itself among them, with the clock ticks they used."""
    if not PROC.joinpath("self/stat").exists():
        return {}
    parent: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            parent[int(folder.name)] = int(fields[1])
            # With that of children that ended: what was used never shrinks.
            ticks[int(folder.name)] = sum(map(int, fields[11:15]))
    family = {server.pid}
    while more := {pid for pid, of in parent.items() if of in family} - family:
        family |= more
    return {pid: ticks[pid] for pid in family & ticks.keys()}


def _role(pid: int) -> str:
    """What a process is: the subcommand of `moca`, otherwise its program's name."""
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
        name = (PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return "ended"
    if "service.commands.main" in words[:-1]:
        return words[words.index("service.commands.main") + 1]
    if name in STORES:
        return "store"
    if ECHO_APP in words:
        return ECHO
    return "serve" if len(words) > 3 and words[1] == "-c" else name


# --- load ----------------------------------------------------------------------------------------


class Load(NamedTuple):
    """What a server answered under load, and its CPU time by role; empty where it is unknown."""

    report: LoadReport
    cpu_s: dict[str, float]


def _load(server: BenchServer, job: LoadJob, seconds: float) -> Load:
    """Load a server for a while, by the generator in its own process."""
    job.seconds = seconds
    before = cpu_seconds(server)
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
    used = {role: at - before.get(role, 0.0) for role, at in cpu_seconds(server).items()}
    return Load(report, used)


def _job(
    server: BenchServer, targets: list[str], bodies: Sequence[object], connections: int
) -> LoadJob:
    """Return a job whose posts have one of the bodies each."""
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
    # Of many streams each stays at its level, that of single observations: hundreds that change
    # with every slice would measure how changes are explained.
    steady = iter(rows_of(model, length * BODIES, regime=length * BODIES))
    many = [[{"stream": name, **next(steady)} for name in names] for _ in one]
    return {
        f"lists of {length:,} of one stream": _job(server, [_observations(names[0])], one, 1),
        f"lists of {length:,} of as many streams": _job(server, ["/v1/observations"], many, 1),
    }


def _applied(server: BenchServer) -> float:
    """Return how many observations the server has applied, by its metrics."""
    answer = httpx.get(f"{server.url}/metrics", timeout=REQUEST_S, trust_env=False)
    if answer.is_success:
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples:
                if sample.name == "moca_observations_total" and "applied" in sample.labels.values():
                    return float(sample.value)
    raise BenchError("expected /metrics with counted observations: --lists 0 leaves it out")


# --- observations --------------------------------------------------------------------------------


def _observations(name: str) -> str:
    return f"/v1/streams/{name}/observations"


def _settings(model: str) -> dict[str, Any]:
    named = {} if model == DEFAULT else {"model": model}
    return {**named, **({"classes": CLASSES} if model == "categorical" else {})}


def rows_of(model: str, count: int, regime: int = REGIME) -> list[dict[str, Any]]:
    """Observations of a series with shifts, such as the model takes; numbers if it is unknown.

    regime: observations between shifts.
    """
    draw = np.random.default_rng(1)
    level = 10.0 + 6.0 * ((np.arange(count) // regime) % 2)
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
        command = [sys.executable, "-c", MOCA, "replay", str(file), "--url", server.url]
        command += ["--out", folder, "--replace", "--stream", stream]
        for name, value in _settings(model).items():
            command += ["--set", f"{name}={value}"]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, timeout=REPLAY_LIMIT_S, check=False)
        took_s = time.monotonic() - began
    if done.returncode:
        raise BenchError(f"moca replay failed:\n{done.stderr.decode()[-2000:]}")
    return took_s
