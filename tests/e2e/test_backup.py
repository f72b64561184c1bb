"""Backup and restore with real processes: under load, elsewhere, and killed."""

import subprocess
import threading
import time

import httpx
import numpy as np
import pytest

from service.store import keys
from service.store.connection import RESTORING, connect
from tests.conftest import _binary, running_server
from tests.e2e.calling import ask, close
from tests.e2e.deployment import moca_with, wait_ready
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow  # tests/service/backup has the same without processes

KINDS = ["gaussian", "averaged", "poisson", "bernoulli", "linear"]
STREAMS = 30
LENGTH = 40


def item(i, at):
    """Observation `at` of stream `i`; the level shifts once."""
    rng = np.random.default_rng(1000 * i + at)
    kind, level = KINDS[i % len(KINDS)], 0.0 if at < 10 + i % 20 else 3.0
    y = rng.normal(level)
    if kind == "poisson":
        y = float(rng.poisson(1 + level))
    if kind == "bernoulli":
        y = float(rng.random() < 0.2 + level / 5)
    x = {"x": [float(rng.normal())]} if kind == "linear" else {}
    return {"stream": f"s-{i}", "y": float(y), **x}


def create(client):
    for i in range(STREAMS):
        body = {"model": KINDS[i % len(KINDS)], "max_hypotheses": 20, "warmup": 5}
        ask(client, "PUT", f"s-{i}", 201, json=body)


def fill(client, length):
    create(client)
    items = [item(i, at) for at in range(length) for i in range(STREAMS)]
    assert client.post("/v1/observations", json=items).status_code == 200


class Feeder(threading.Thread):
    """Posts the observations of all streams, one each at a time, until the end."""

    def __init__(self, url):
        super().__init__()
        self.url, self.answers, self.sent = url, {}, 0

    def run(self):
        with httpx.Client(base_url=self.url, timeout=120) as client:
            for at in range(LENGTH):
                items = [item(i, at) for i in range(STREAMS)]
                for i, answer in enumerate(client.post("/v1/observations", json=items).json()):
                    assert answer.pop("status") == 200, answer
                    self.answers[i, answer["seq"]] = answer
                self.sent = at + 1


def begin(processes, *arguments):
    command = [*moca_with({}), *map(str, arguments)]
    return subprocess.Popen(
        command, env=processes.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def test_streams_taken_under_load_go_on_elsewhere_with_other_partitions(serve, processes, tmp_path):
    url, file = serve(), tmp_path / "all.moca"
    with httpx.Client(base_url=url, timeout=60) as client:
        create(client)
    feeder = Feeder(url)
    feeder.start()
    until(lambda: feeder.sent >= 3)
    sent = feeder.sent
    processes.run("backup", file, "--data-dir", tmp_path / "data")
    feeder.join()
    assert len(feeder.answers) == STREAMS * LENGTH
    processes.environment["MOCA_PARTITIONS"] = "7"
    processes.run("restore", file, "--data-dir", tmp_path / "there")
    with httpx.Client(base_url=serve("there"), timeout=60) as client:
        for i in range(STREAMS):
            seq = ask(client, "GET", f"s-{i}")["seq"]
            assert sent <= seq <= LENGTH
            body = [item(i, at) for at in range(seq, LENGTH)]
            for each in body:
                del each["stream"]
            answers = ask(client, "POST", f"s-{i}/observations", json=body) if body else []
            for answer in answers:
                close(answer, feeder.answers[i, answer["seq"]], f"s-{i}")


def test_a_restore_that_is_killed_is_run_again(separate, processes, tmp_path):
    with httpx.Client(base_url=separate, timeout=60) as client:
        fill(client, 20)
        expected = ask(client, "GET", "s-3/run-length")
    file = tmp_path / "all.moca"
    processes.run("backup", file)
    processes.stop_all()
    with running_server(str(_binary("valkey"))) as url, connect(url) as store:
        processes.environment |= {"MOCA_REDIS_URL": url, "MOCA_LEASE_TTL_MS": "500"}
        unended = 0
        for pause_s in (0, 0.01, 0.05):
            process = begin(processes, "restore", file)
            while process.poll() is None and not store.hexists(keys.CONFIG, RESTORING):
                pass
            time.sleep(pause_s)
            process.kill()
            process.communicate()
            if not store.hexists(keys.CONFIG, RESTORING):
                store.flushall()  # it was faster
                continue
            unended += 1
            assert "restore" in processes.run("worker", status=78)
        assert unended
        processes.run("restore", file)
        port = free_port()
        processes.start("worker", "worker")
        processes.start("again", "api", "--port", str(port))
        wait_ready(f"http://127.0.0.1:{port}")
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            assert len(client.get("/v1/streams?limit=100").json()["streams"]) == STREAMS
            close(ask(client, "GET", "s-3/run-length"), expected)
        processes.stop_all()
