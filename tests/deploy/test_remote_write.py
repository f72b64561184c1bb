"""A real Prometheus that scrapes an exporter, writes to the service, and scrapes its results."""

import contextlib
import math
import os
import shutil
import subprocess
import threading
import time
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from tests.conftest import _binary, running_server
from tests.e2e.deployment import Processes, wait_ready
from tests.ports import free_port

PROGRAM = shutil.which("prometheus")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="prometheus is not installed")
PATIENCE_S = 60
RULES = """
[[rule]]
match = 'load{{job="exporter"}}'
stream = "{{__name__}}:{{number}}"
interval = {interval}
model = "gaussian"
location = 100
scale = 10
history = 1000
"""
CONFIG = """
global:
  scrape_interval: {scrape}
  scrape_timeout: {scrape}
scrape_configs:
- job_name: exporter
  static_configs: [{{targets: ["127.0.0.1:{exporter}"]}}]
- job_name: moca-results
  scrape_interval: 1s
  honor_labels: true
  metrics_path: /v1/prometheus/results
  params: {{match: ['load{{number=~"..0"}}']}}
  static_configs: [{{targets: ["127.0.0.1:{moca}"]}}]
remote_write:
- url: http://127.0.0.1:{moca}/v1/prometheus/write
  write_relabel_configs:
  - {{source_labels: [__name__], regex: load, action: keep}}
  queue_config: {{min_backoff: 50ms, max_backoff: 500ms, batch_send_deadline: 500ms}}
"""


class Exporter:
    """So many series, with another value at each scrape; `pause` makes scrapes fail."""

    def __init__(self, series: int) -> None:
        self.paused = False
        scrapes = 0

        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler):
                nonlocal scrapes
                if self.paused:
                    handler.send_error(503)
                    return
                scrapes += 1
                lines = [
                    f'load{{number="{i:03}"}} {100 + (scrapes * 7 + i) % 11}' for i in range(series)
                ]
                body = ("# TYPE load gauge\n" + "\n".join(lines) + "\n").encode()
                handler.send_response(200)
                handler.send_header("Content-Length", str(len(body)))
                handler.end_headers()
                handler.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # a scrape that timed out
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Prometheus:
    """One on a folder, which may be stopped and started."""

    def __init__(self, folder: Path, config: str) -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        (folder / "prometheus.yml").write_text(config)

    def start(self):
        command = [PROGRAM, f"--config.file={self.folder / 'prometheus.yml'}", "--log.level=warn"]
        command += [f"--storage.tsdb.path={self.folder / 'tsdb'}"]
        command += [f"--web.listen-address=127.0.0.1:{self.port}"]
        with (self.folder / "prometheus.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        eventually(lambda: httpx.get(f"{self.url}/-/ready").status_code == 200)

    def stop(self):
        self.process.terminate()
        self.process.wait(PATIENCE_S)

    def query(self, query):
        found = httpx.get(f"{self.url}/api/v1/query", params={"query": query}, timeout=60)
        return found.raise_for_status().json()["data"]["result"]

    def scraped(self):
        """Each series' samples as (seconds, value), by its number."""
        found = self.query('load{job="exporter"}[30m]')
        return {
            row["metric"]["number"]: [(t, float(value)) for t, value in row["values"]]
            for row in found
        }


def eventually(condition):
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(httpx.HTTPError):
            if condition():
                return
        assert time.monotonic() < deadline
        time.sleep(0.2)


def counted(url):
    """Samples by what became of them, in this life of the API."""
    name, found = "moca_remote_write_samples_total", defaultdict(float)
    for line in httpx.get(f"{url}/metrics").text.splitlines():
        if line.startswith(name):
            found[line.split('"')[1]] += float(line.split()[-1])
    return found


def cpu_s(processes):
    """CPU time of processes so far."""
    ticks = 0
    for process in processes.running.values():
        stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(stat[11]) + int(stat[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def by_interval(samples, interval):
    """The first sample of each interval."""
    found = {}
    for t, value in samples:
        found.setdefault(math.floor(t / interval), (t, value))
    return found


def check(moca, number, samples, interval):
    """Every interval that was scraped is there once, with its first sample; gaps are elapsed."""
    history = moca.get(f"/v1/streams/load:{number}/history?start=0&limit=1000").json()
    expected, got = by_interval(samples, interval), {}
    before = None
    for each in history["observations"]:
        seconds = timestamp(each["time"])
        slot = math.floor(seconds / interval)
        assert slot not in got
        got[slot] = each["y"]
        assert each["elapsed"] == (1.0 if before is None else slot - before)
        before = slot
        assert (seconds, each["y"]) == pytest.approx(expected[slot], abs=1e-6)
    assert expected.keys() == got.keys()
    return len(got)


def timestamp(text):
    from service.wire import timestamps

    return timestamps.seconds(text)


@contextlib.contextmanager
def deployed(folder, interval):
    rules = folder / "rules.toml"
    rules.write_text(RULES.format(interval=interval))
    environment = {"MOCA_PARTITIONS": "8", "MOCA_PROMETHEUS_RULES": str(rules)}
    processes = Processes(folder, environment | {"MOCA_LEASE_TTL_MS": "1500"})
    with running_server(str(_binary("valkey")), "--appendonly", "yes") as redis_url:
        try:
            yield processes, processes.start_separate(redis_url)
        finally:
            processes.stop_all()


@pytest.mark.parametrize(
    ("series", "scrape_s", "interval", "seconds"),
    [(100, 0.125, 0.5, 1.5), pytest.param(1000, 2, 2, 200.0, marks=[pytest.mark.slow])],
)
@pytest.mark.timeout(1500)
def test_every_scraped_sample_arrives_once(tmp_path, capsys, series, scrape_s, interval, seconds):
    """Through a kill of API and workers and a restart of Prometheus; `seconds` of each part."""
    exporter = Exporter(series)
    with deployed(tmp_path, interval) as (processes, url):
        moca_port = url.rpartition(":")[2]
        config = CONFIG.format(
            scrape=f"{int(1000 * scrape_s)}ms", exporter=exporter.port, moca=moca_port
        )
        prometheus = Prometheus(tmp_path, config)
        prometheus.start()
        try:
            eventually(lambda: counted(url)["applied"] >= series)
            began, used, before = time.monotonic(), cpu_s(processes), sum(counted(url).values())
            time.sleep(seconds)
            used, taken = cpu_s(processes) - used, sum(counted(url).values()) - before
            rate = taken / (time.monotonic() - began)
            with capsys.disabled():
                text = f"{taken / used:.0f} samples in a second of CPU, of API and workers"
                print(f"\n{series} series, {rate:.0f} samples/s: {text}", flush=True)
            eventually(lambda: len(prometheus.query("moca_forecast_mean")) == series // 10)
            results = prometheus.query("moca_forecast_mean")
            assert {row["metric"]["metric"] for row in results} == {"load"}
            assert {row["metric"]["job"] for row in results} == {"exporter"}
            lower, upper = (
                {row["metric"]["stream"]: float(row["value"][1]) for row in prometheus.query(name)}
                for name in ("moca_forecast_lower", "moca_forecast_upper")
            )
            assert lower.keys() == {f"load:{i:03}" for i in range(0, series, 10)}
            assert all(lower[stream] < 105 < upper[stream] for stream in lower)
            for name in ("api", "worker-a", "worker-b"):
                processes.kill(name)
            time.sleep(min(seconds, 2.0))
            for name in ("worker-a", "worker-b"):
                processes.start(name, "worker", "--worker-id", name)
            processes.start("api", "api", "--port", moca_port)
            wait_ready(url)
            time.sleep(seconds)
            # Prometheus does not send after a restart what it had not sent before.
            exporter.paused = True
            settled(url, prometheus)
            prometheus.stop()
            prometheus.start()
            before = sum(counted(url).values())
            exporter.paused = False
            eventually(lambda: sum(counted(url).values()) > before)  # it is sent again
            time.sleep(seconds)
            exporter.paused = True
            settled(url, prometheus)
            scraped = prometheus.scraped()
            assert len(scraped) == series
            with httpx.Client(base_url=url, timeout=60) as moca:
                lengths = [check(moca, number, each, interval) for number, each in scraped.items()]
            assert min(lengths) > 2 * seconds / interval
            assert not counted(url)["rejected"]
        finally:
            prometheus.stop()
            exporter.server.shutdown()
            exporter.server.server_close()


def settled(url, prometheus):
    """Wait until nothing is scraped and everything scraped is sent."""
    last = [None]

    def quiet():
        text = httpx.get(f"{prometheus.url}/metrics").text
        waiting = sum(
            float(line.split()[-1])
            for line in text.splitlines()
            if line.startswith("prometheus_remote_storage_samples_pending")
        )
        now = sum(counted(url).values())
        last[0], same = now, now == last[0]
        return same and not waiting

    time.sleep(2.5)  # longer than it takes Prometheus to look for what it has to send
    eventually(quiet)
