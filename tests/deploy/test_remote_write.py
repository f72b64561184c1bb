"""A real Prometheus that scrapes an exporter and writes to the service."""

import contextlib
import math
import shutil
import subprocess
import time
from collections import defaultdict

import httpx
import pytest

from service.wire import timestamps
from tests.e2e.deployment import wait_ready
from tests.ports import free_port
from tests.serving import Quiet, ThreadServer
from tests.waiting import PATIENCE_S, barring, until

PROGRAM = shutil.which("prometheus")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="prometheus is not installed"),
]
SERIES, INTERVAL = 50, 0.5
RULES = f"""
[[rule]]
match = 'load{{job="exporter"}}'
stream = "{{__name__}}:{{number}}"
interval = {INTERVAL}
model = "gaussian"
location = 100
scale = 10
history = 1000
"""
CONFIG = """
global: {{scrape_interval: 250ms, scrape_timeout: 250ms}}
scrape_configs:
- job_name: exporter
  static_configs: [{{targets: ["127.0.0.1:{exporter}"]}}]
remote_write:
- url: {moca}/v1/prometheus/write
  write_relabel_configs:
  - {{source_labels: [__name__], regex: load, action: keep}}
  queue_config: {{min_backoff: 50ms, max_backoff: 500ms, batch_send_deadline: 500ms}}
"""


class Exporter(Quiet):
    """So many series, with another value at each scrape; none while paused."""

    paused, scrapes = False, 0

    def do_GET(self):
        if Exporter.paused:
            self.send_error(503)
            return
        Exporter.scrapes += 1
        lines = [f'load{{number="{i:03}"}} {100 + (self.scrapes * 7 + i) % 11}' for i in
                 range(SERIES)]  # fmt: skip
        body = ("# TYPE load gauge\n" + "\n".join(lines) + "\n").encode()
        with contextlib.suppress(OSError):  # a scrape that timed out
            self.answer(200, body)


def counted(url):
    """Samples by what became of them, in this life of the API."""
    name, found = "moca_remote_write_samples_total", defaultdict(float)
    for line in httpx.get(f"{url}/metrics").text.splitlines():
        if line.startswith(name):
            found[line.split('"')[1]] += float(line.split()[-1])
    return found


def check(moca, number, samples):
    """Every interval that was scraped is there once, with its first sample; gaps are elapsed."""
    history = moca.get(f"/v1/streams/load:{number}/history?start=0&limit=1000").json()
    expected, got, before = {}, {}, None
    for t, value in samples:
        expected.setdefault(math.floor(t / INTERVAL), (t, value))
    for each in history["observations"]:
        seconds = timestamps.seconds(each["time"])
        slot = math.floor(seconds / INTERVAL)
        assert slot not in got
        got[slot] = each["y"]
        assert each["elapsed"] == (1.0 if before is None else slot - before)
        before = slot
        assert (seconds, each["y"]) == pytest.approx(expected[slot], abs=1e-6)
    assert expected.keys() == got.keys()
    return len(got)


def test_every_scraped_sample_arrives_once_whatever_is_killed(disk_store, processes, tmp_path):
    rules, own = tmp_path / "rules.toml", free_port()
    rules.write_text(RULES)
    prometheus = f"http://127.0.0.1:{own}"
    command = [PROGRAM, f"--config.file={tmp_path / 'p.yml'}", "--log.level=error"]
    command += [f"--storage.tsdb.path={tmp_path / 'tsdb'}", f"--web.listen-address=127.0.0.1:{own}"]
    processes.environment |= {"MOCA_PROMETHEUS_RULES": str(rules), "MOCA_LEASE_TTL_MS": "1500"}

    def more():
        before = counted(url)["applied"]
        until(barring(httpx.HTTPError, lambda: counted(url)["applied"] >= before + 4 * SERIES))

    url = processes.start_separate(disk_store)
    with ThreadServer(Exporter) as exporter:
        config = CONFIG.format(exporter=exporter.server_port, moca=url)
        (tmp_path / "p.yml").write_text(config)
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            until(
                barring(
                    httpx.HTTPError, lambda: httpx.get(f"{prometheus}/-/ready").status_code == 200
                )
            )
            more()
            for name in ("api", "worker-a", "worker-b"):
                processes.kill(name)
            for name in ("worker-a", "worker-b"):
                processes.start(name, "worker", "--worker-id", name)
            time.sleep(1)  # meanwhile it is sent again
            processes.start("api", "api", "--port", url.rpartition(":")[2])
            wait_ready(url)
            more()
            Exporter.paused = True
            settled(url, prometheus)
            answer = httpx.get(
                f"{prometheus}/api/v1/query", params={"query": 'load{job="exporter"}[30m]'}
            ).json()["data"]["result"]
            assert len(answer) == SERIES
            with httpx.Client(base_url=url, timeout=PATIENCE_S) as moca:
                for row in answer:
                    samples = [(t, float(value)) for t, value in row["values"]]
                    assert check(moca, row["metric"]["number"], samples) >= 6
            assert not counted(url)["rejected"]
            process.terminate()


def settled(url, prometheus):
    """Wait until nothing is scraped and everything scraped is sent."""
    last = [None]

    def quiet():
        text = httpx.get(f"{prometheus}/metrics").text
        waiting = sum(
            float(line.split()[-1])
            for line in text.splitlines()
            if line.startswith("prometheus_remote_storage_samples_pending")
        )
        now = sum(counted(url).values())
        last[0], same = now, now == last[0]
        time.sleep(2.5)  # longer than it takes Prometheus to look for what it has to send
        return same and not waiting

    until(barring(httpx.HTTPError, quiet))
