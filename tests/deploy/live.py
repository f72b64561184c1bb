"""A Prometheus that scrapes a deployment of separate processes."""

from __future__ import annotations

import contextlib
import math
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.deploy.dashboards import PROMETHEUS, Asked
from tests.ports import free_port

SCRAPE_S = 1
VARIABLES = {
    "$__rate_interval": "30s",
    "$__range": "5m",
    "$__interval": "10s",
    "$namespace": ".*",
    "$model": ".*",
    "$stream": "load-0",
}
Series = dict[str, Any]


class Prometheus:
    """A running Prometheus, asked over HTTP."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = httpx.Client(base_url=f"{url}/api/v1", timeout=30)

    def get(self, path: str, **parameters: Any) -> Any:
        answer = self.client.get(path, params=parameters).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def now(self, expr: str) -> list[Series]:
        """Series of an expression at this moment."""
        return self.get("/query", query=expr)["result"]

    def course(self, expr: str, start: float, end: float, step_s: float) -> list[Series]:
        """Series of an expression over a time, those with a finite value alone."""
        found = self.get("/query_range", query=expr, start=start, end=end, step=step_s)["result"]
        return [each for each in found if any(finite(v) for _, v in each["values"])]

    def ask(self, query: Asked, start: float, end: float) -> list[Series]:
        """What a panel shows of a query, its variables filled in."""
        expr = filled(query.expr)
        if not query.instant:
            return self.course(expr, start, end, 2)
        return [each for each in self.now(expr) if finite(each["value"][1])]


def filled(expr: str) -> str:
    """Return an expression with Grafana's variables replaced."""
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    assert "$" not in expr, expr
    return expr


def finite(value: str) -> bool:
    return math.isfinite(float(value))


def configured(folder: Path, api: list[int], workers: list[int]) -> Path:
    """Write the project's configuration, with these ports in place of names and a quick pace."""
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    config["global"] = dict.fromkeys(config["global"], f"{SCRAPE_S}s")
    ports = {"moca-api": api, "moca-worker": workers}
    for job in config["scrape_configs"]:
        if job.pop("dns_sd_configs", None):
            targets = [f"127.0.0.1:{port}" for port in ports[job["job_name"]]]
            job["static_configs"] = [{"targets": targets}]
    config["scrape_configs"] = [j for j in config["scrape_configs"] if j["job_name"] in ports]
    (folder / "rules").mkdir(parents=True)
    for path in (PROMETHEUS / "rules").glob("*.yml"):
        rules = yaml.safe_load(path.read_text())
        for group in rules["groups"]:
            group.pop("interval", None)
        (folder / "rules" / path.name).write_text(yaml.safe_dump(rules))
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    return folder / "prometheus.yml"


@contextlib.contextmanager
def running_prometheus(program: str, config: Path) -> Iterator[Prometheus]:
    """Run one until the end of the block."""
    port, folder = free_port(), config.parent
    command = [program, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    command += [f"--web.external-url=http://127.0.0.1:{port}"]
    command += [f"--web.console.templates={PROMETHEUS / 'consoles'}"]
    command += ["--enable-feature=exemplar-storage"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    found = Prometheus(f"http://127.0.0.1:{port}")
    try:
        _wait_until_ready(found, process)
        yield found
    finally:
        found.client.close()
        process.terminate()
        process.wait(20)


def _wait_until_ready(prometheus: Prometheus, process: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{prometheus.url}/-/ready").status_code == 200:
                return
        assert process.poll() is None, "Prometheus ended: see prometheus.log"
        time.sleep(0.1)
    raise AssertionError("Prometheus was not ready after 30 s")
