"""Growth: what many streams cost in CPU time and memory, and in time after a restart.

`python -m tests.referees.growth --streams 100000` measures a `moca serve` of its own with one
worker; with `--remote-write` observations come as samples of Prometheus. Memory is what the
resident size of the worker, and what the store uses, have grown by since a few streams were there,
so that code and models do not count; answers, which the store keeps for a minute or two, do not
either.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import httpx

from service.runtime.embedded import running_url
from service.store.connection import connect
from tests.e2e.deployment import Processes
from tests.referees.memory import mib
from tests.remote_write import V1, version_1
from tests.waiting import PATIENCE_S

MODELS = ("gaussian", "averaged")
STREAMS = 2000
BEFORE = 1000  # streams that are there before memory is first read, as many as a request has
WARMUP = 21  # observations, the first after it included
OBSERVATIONS = 64
AT_ONCE = 1000  # streams in a request
KB = 1000.0
OUTCOMES = "results"  # keys that hold them
MINUTE_MS = 60_000  # between two samples of a series, as rules have it that name no interval
LABELS = {
    "__name__": "node_cpu_seconds_total", "job": "node", "cpu": "0", "mode": "idle",
    "cluster": "eu-1", "env": "prod", "rack": "r7",
}  # fmt: skip


class Grown:
    """A service with streams, and what it has used so far."""

    def __init__(self, folder: Path, model: str, remote_write: bool) -> None:
        self.model = model
        self.remote_write = remote_write
        self.folder = folder
        environment = {"MOCA_DEFAULT_MODEL": model, "MOCA_PARTITIONS": "16"}
        self.processes = Processes(folder, environment)
        self._rng = random.Random(1)
        self._minutes: Counter[str] = Counter()  # of the samples of each stream so far
        self.start()

    def start(self) -> float:
        """Start the service; returns the seconds until it was ready."""
        began = time.monotonic()
        self.url = self.processes.serve("--workers", "1")
        children = self.processes.children("serve")
        self._pids = {name: children[name] for name in ("api", "worker")}
        return time.monotonic() - began

    def post(self, names: Sequence[str]) -> Counter[str]:
        """Post an observation of each stream; returns CPU time for one by process, in us."""
        before_s = self._cpu_s()
        with httpx.Client(base_url=self.url, timeout=PATIENCE_S) as client:
            for at in range(0, len(names), AT_ONCE):
                part = names[at : at + AT_ONCE]
                if self.remote_write:
                    self._write(client, part)
                    continue
                items = [{"stream": name, "y": self._rng.gauss(0.0, 1.0)} for name in part]
                answer = client.post("/v1/observations", json=items).raise_for_status()
                statuses = {item["status"] for item in answer.json()}
                assert statuses == {200}, statuses
        after_s = self._cpu_s()
        return Counter(
            {name: 1e6 * (after_s[name] - before_s[name]) / len(names) for name in after_s}
        )

    def _write(self, client: httpx.Client, names: Sequence[str]) -> None:
        """Write a sample of each series, a minute after the one before."""
        began = time.time_ns() // 1_000_000 - OBSERVATIONS * MINUTE_MS
        self._minutes.update(names)
        series = [
            (
                LABELS | {"instance": name},
                [(self._rng.gauss(0.0, 1.0), began + self._minutes[name] * MINUTE_MS)],
            )
            for name in names
        ]
        body = version_1(*series)
        client.post("/v1/prometheus/write", content=body, headers=V1).raise_for_status()

    def worker_kb(self) -> float:
        """Resident size of the worker."""
        return mib(self._pids["worker"], "VmRSS") * 1024**2 / KB

    def store_kb(self) -> Counter[str]:
        """Memory of the store by kind of key, and `all` of it but for answers."""
        used: Counter[str] = Counter()
        with connect(running_url(self.folder / "data")) as client:
            total = client.info("memory")["used_memory"]
            for key in client.scan_iter(count=AT_ONCE):
                kind = key.decode().split(":")[2] if key.startswith(b"moca:{") else "others"
                used[kind] += client.memory_usage(key, samples=0) / KB
        used["all"] = total / KB - used.pop(OUTCOMES, 0.0)
        return used

    def _cpu_s(self) -> Counter[str]:
        """CPU time of each process so far."""
        used: Counter[str] = Counter()
        for name, pid in self._pids.items():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used[name] = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
        with connect(running_url(self.folder / "data")) as client:
            cpu = client.info("cpu")
        used["store"] = cpu["used_cpu_sys"] + cpu["used_cpu_user"]
        return used


def grown(folder: Path, model: str, streams: int, remote_write: bool) -> dict[str, float]:
    """What so many streams of a model cost."""
    service = Grown(folder, model, remote_write)
    with service.processes:
        names = [f"host-{number:06}" for number in range(BEFORE + streams)]
        for _ in range(OBSERVATIONS):
            service.post(names[:BEFORE])
        before_kb = service.worker_kb()
        before = service.store_kb()
        names = names[BEFORE:]
        costs_us = [service.post(names) for _ in range(OBSERVATIONS)]
        measured = {}
        for what, part in (
            ("first observation", costs_us[:1]),
            ("one of the warm-up", costs_us[1:WARMUP]),
            ("one after it", costs_us[WARMUP:]),
        ):
            for name in part[0]:
                measured[f"{what}, us of the {name}"] = sum(cost[name] for cost in part) / len(part)
        measured["kB of the worker"] = (service.worker_kb() - before_kb) / streams
        after = service.store_kb()
        for kind, used in after.most_common():
            if (own := (used - before[kind]) / streams) >= 0.01:
                measured[f"kB of the store, {kind}"] = own
        service.processes.stop("serve")
        began = time.monotonic()
        measured["s until it is ready after a stop"] = service.start()
        service.post(names[:1])
        measured["s until it has answered"] = time.monotonic() - began
        measured["first observation after a stop, us"] = service.post(names[1:])["worker"]
        measured["kB of the worker after a stop"] = service.worker_kb() / streams
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.referees.growth", description=__doc__)
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--remote-write", action="store_true")
    options = parser.parse_args()
    for model in options.model or MODELS:
        with tempfile.TemporaryDirectory(prefix="moca-growth-") as folder:
            measured = grown(Path(folder), model, options.streams, options.remote_write)
            for name, value in measured.items():
                print(f"{model}: {name:40} {value:10.2f}", flush=True)


if __name__ == "__main__":
    main()
