"""Slices of load on one server: observations of a model, and what they cost each process."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from moca_client import Client, Problem
from service.bench.load import LoadJob, LoadReport
from service.bench.processes import BenchError, BenchServer, cpu_seconds, machine_busy_s
from service.bench.results import rounds_of

PRIMING = 32  # observations each stream gets first, so that the filter runs and not the warm-up
BODIES = 8  # different labels that a connection sends in turn
CLASSES = 4
REGIME = 250  # observations between shifts of a made-up series
REQUEST_S = 120.0


@dataclass
class Side:
    """All slices of one server."""

    reports: list[LoadReport] = field(default_factory=list)
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
        roles = {role for parts in self.server_us for role in parts}
        middle = {r: statistics.median(u.get(r, 0.0) for u in self.server_us) for r in roles}
        return dict(sorted(middle.items(), key=lambda pair: -pair[1]))

    def summary(self) -> dict[str, Any]:
        """All values, with their intervals over the slices."""
        quantiles = self.reports[0].latency_ms if self.reports else {}
        roles = self.cpu_us()
        return {
            "per_s": rounds_of([report.rate for report in self.reports]),
            "latency_ms": {
                name: rounds_of([report.latency_ms.get(name, 0.0) for report in self.reports])
                for name in quantiles
            },
            "us": {r: rounds_of([parts.get(r, 0.0) for parts in self.server_us]) for r in roles},
            "generator_us": rounds_of([report.generator_us for report in self.reports]),
            "other_cores": list(self.other_cores),
            "errors": self.errors(),
        }

    def errors(self) -> dict[str, int]:
        """Failures of all slices by kind."""
        total: dict[str, int] = {}
        for report in self.reports:
            for kind, count in report.errors.items():
                total[kind] = total.get(kind, 0) + count
        return total


def observations(name: str) -> str:
    """Return the path of a stream's observations."""
    return f"/v1/streams/{name}/observations"


def settings_of(model: str) -> dict[str, Any]:
    """Settings of a stream of the model."""
    return {"model": model, **({"classes": CLASSES} if model == "categorical" else {})}


def rows_of(model: str, count: int, seed: int = 1) -> list[dict[str, Any]]:
    """Observations of a series with shifts, such as the model takes; numbers if it is unknown."""
    draw = np.random.default_rng(seed)
    start = seed * count
    level = 10.0 + 6.0 * ((np.arange(start, start + count) // REGIME) % 2)
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


def encoded(value: object) -> str:
    """JSON text."""
    return msgspec.json.encode(value).decode()


def job_for(
    server: BenchServer, targets: list[str], connections: int, model: str = "gaussian"
) -> LoadJob:
    """Return a job of ready-made observations of a model for a server."""
    where = urlsplit(server.url)
    if where.scheme != "http" or where.hostname is None:
        raise BenchError(f"expected an http:// address, got {server.url!r}")
    bodies = [encoded(row) for row in rows_of(model, BODIES)]
    return LoadJob(where.hostname, where.port or 80, targets, bodies, connections)


def put_streams(server: BenchServer, names: Sequence[str], model: str) -> None:
    """Make streams of a model."""
    with Client(server.url) as client:
        for name in names:
            client.put_stream(name, settings_of(model))


def prime(
    server: BenchServer, names: Sequence[str], connections: int, model: str = "gaussian"
) -> None:
    """Take every stream out of its warm-up; one list each."""
    job = job_for(server, [observations(name) for name in names], connections)
    job.bodies = [encoded(rows_of(model, PRIMING))]
    job.seconds = 0.0
    report = _generate(job)
    while set(report.errors) == {"429"} and job.connections > 1:  # too much at once for it
        job.connections //= 2
        report = _generate(job)
    if report.errors:
        raise BenchError(f"priming failed: {report.errors} of {report.requests} requests")


def samples(server: BenchServer) -> dict[str, float]:
    """The server's metrics, by name and values of labels; none if it has no such page."""
    answer = httpx.get(f"{server.url}/metrics", timeout=REQUEST_S, trust_env=False)
    if not answer.is_success:
        return {}
    return {
        " ".join((sample.name, *sample.labels.values())): float(sample.value)
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def slice_of(server: BenchServer, job: LoadJob, seconds: float, side: Side) -> None:
    """Load a server for a while, and add what came of it to its side."""
    job.seconds = seconds
    before = cpu_seconds(server)
    busy = machine_busy_s()
    report = _generate(job)
    after = cpu_seconds(server)
    busy_after = machine_busy_s()
    side.reports.append(report)
    used = {role: after[role] - before.get(role, 0.0) for role in after}
    if used:
        side.server_us.append({role: 1e6 * s / report.requests for role, s in used.items()})
    if used and busy is not None and busy_after is not None:
        others = busy_after - busy - sum(used.values()) - report.process_s
        side.other_cores.append(max(others, 0.0) / report.seconds)


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


def delete(url: str, names: list[str]) -> None:
    """Leave nothing behind in somebody else's service."""
    with Client(url) as client:
        for name in names:
            try:
                client.delete_stream(name)
            except Problem as problem:
                if problem.status != 404:  # 404: it was never made
                    raise
