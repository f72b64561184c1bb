"""Lists of observations and replays, for `moca bench serve`: rates, and CPU by process."""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from service.bench.load import LoadJob
from service.bench.processes import BenchError, BenchServer
from service.bench.results import rounds_of
from service.bench.slices import (
    BODIES,
    Side,
    encoded,
    job_for,
    observations,
    rows_of,
    samples,
    settings_of,
    slice_of,
)

APPLIED = "moca_observations_total applied"
BULK = "/v1/observations"
REPLAY_LIMIT_S = 600.0


@dataclass
class Lists:
    """Lists of one length, sent one after the other; a value for each round.

    us: CPU time for an observation, by process; empty where it is unknown.
    """

    of: str
    length: int
    per_s: list[float] = field(default_factory=list)
    us: dict[str, list[float]] = field(default_factory=dict)

    def worker_rates(self) -> list[float]:
        """Observations for each second of a worker's core."""
        return [1e6 / us for us in self.us.get("worker", []) if us > 0]

    def summary(self) -> dict[str, Any]:
        """All values, with their intervals."""
        return {
            "of": self.of,
            "length": self.length,
            "per_s": rounds_of(self.per_s),
            "us": {role: rounds_of(values) for role, values in self.us.items()},
            "per_worker_core_s": rounds_of(self.worker_rates()),
        }


class ListLoad:
    """Lists of one stream, or of many with an observation each, as load on a server."""

    def __init__(self, server: BenchServer, model: str, names: Sequence[str], length: int) -> None:
        """names: the only stream, or as many as a list is long."""
        one = len(names) == 1
        self._server = server
        self.result = Lists("one stream" if one else f"{len(names):,} streams", length)
        self._job = _one(server, model, names[0], length) if one else _many(server, model, names)

    def run(self, seconds: float) -> None:
        """Measure a round of it."""
        side = Side()
        before = samples(self._server).get(APPLIED)
        slice_of(self._server, self._job, seconds, side)
        if before is None:
            raise BenchError("expected /metrics with counted observations: --lists 0 leaves it out")
        if side.errors():
            raise BenchError(f"lists failed: {side.errors()}")
        applied = samples(self._server)[APPLIED] - before
        if applied <= 0:
            raise BenchError("expected observations to be applied, got none")
        self.result.per_s.append(applied / side.reports[0].seconds)
        requests = side.reports[0].requests
        for role, us in side.cpu_us().items():
            self.result.us.setdefault(role, []).append(us * requests / applied)


def _one(server: BenchServer, model: str, name: str, length: int) -> LoadJob:
    job = job_for(server, [observations(name)], 1, model)
    job.bodies = [encoded(rows_of(model, length, seed)) for seed in range(BODIES)]
    return job


def _many(server: BenchServer, model: str, names: Sequence[str]) -> LoadJob:
    job = job_for(server, [BULK], 1, model)
    rows = rows_of(model, len(names) * BODIES)
    job.bodies = [
        encoded([{"stream": n, **row} for n, row in zip(names, rows[at::BODIES], strict=True)])
        for at in range(BODIES)
    ]
    return job


def replay_s(server: BenchServer, model: str | None, rows: int) -> float:
    """Seconds that `moca replay` of so many rows takes, from its start to its end, with a plot.

    model: the service's default if None. The stream is called `replay`.
    """
    with tempfile.TemporaryDirectory(prefix="moca-bench-") as folder:
        file = Path(folder) / "replay.csv"
        _write_series(file, rows_of(model or "gaussian", rows))
        command = [sys.executable, "-c", "from service.commands.main import main; main()"]
        command += ["replay", str(file), "--url", server.url, "--out", folder, "--replace"]
        for name, value in (settings_of(model) if model else {}).items():
            command += ["--set", f"{name}={value}"]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, timeout=REPLAY_LIMIT_S, check=False)
        took_s = time.monotonic() - began
    if done.returncode:
        raise BenchError(f"moca replay failed:\n{done.stderr.decode()[-2000:]}")
    return took_s


def _write_series(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    """A file with the columns `y` (or `y1`, `y2`) and `x`."""
    with file.open("w", newline="") as handle:
        writer = csv.writer(handle)
        outputs = len(rows[0]["y"]) if isinstance(rows[0]["y"], list) else 1
        names = ["y"] if outputs == 1 else [f"y{place + 1}" for place in range(outputs)]
        writer.writerow([*names, *(["x"] if "x" in rows[0] else [])])
        for row in rows:
            label = row["y"] if isinstance(row["y"], list) else [row["y"]]
            writer.writerow([*label, *row.get("x", [])])
