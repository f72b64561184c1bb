"""Backup and restore with real processes: under load, elsewhere, and killed."""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import httpx
import numpy as np
import pytest

from service.store import keys
from service.store.connection import RESTORING, connect
from tests.conftest import _binary, running_server
from tests.e2e.deployment import wait_ready
from tests.ports import free_port

pytestmark = pytest.mark.slow  # minutes; tests/service/backup has the same without processes

KINDS = ["gaussian", "averaged", "poisson", "bernoulli", "linear"]
STREAMS, LENGTH = 60, 40


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
        assert client.put(f"/v1/streams/s-{i}", json=body).status_code == 201


class Feeder(threading.Thread):
    """Posts the observations of all streams, one each at a time, until the end."""

    def __init__(self, url):
        super().__init__()
        self.url, self.answers, self.sent = url, {}, 0

    def run(self):
        with httpx.Client(base_url=self.url, timeout=60) as client:
            for at in range(LENGTH):
                items = [item(i, at) for i in range(STREAMS)]
                for i, answer in enumerate(client.post("/v1/observations", json=items).json()):
                    assert answer["status"] == 200, answer
                    self.answers[i, answer["seq"]] = answer
                self.sent = at + 1


def begin(processes, *arguments):
    command = [sys.executable, "-m", "service.commands.main", *map(str, arguments)]
    return subprocess.Popen(
        command, env=processes.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def moca(processes, *arguments, status=0):
    process = begin(processes, *arguments)
    output = process.communicate(timeout=120)[0].decode()
    assert process.returncode == status, output
    return output


def same(found, expected, at=""):
    assert type(found) is type(expected), at
    if isinstance(found, dict):
        assert found.keys() == expected.keys(), at
        for key in found:
            same(found[key], expected[key], f"{at}.{key}")
    elif isinstance(found, list):
        assert len(found) == len(expected), at
        for i, pair in enumerate(zip(found, expected, strict=True)):
            same(*pair, f"{at}[{i}]")
    elif isinstance(found, float):
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9), at
    else:
        assert found == expected, at


def test_streams_taken_under_load_go_on_elsewhere(serve, processes, tmp_path):
    url, file = serve(), tmp_path / "all.moca"
    with httpx.Client(base_url=url, timeout=60) as client:
        create(client)
    feeder = Feeder(url)
    feeder.start()
    while feeder.sent < 3:
        time.sleep(0.01)
    sent = feeder.sent
    moca(processes, "backup", file, "--data-dir", tmp_path / "data")
    assert sent < LENGTH
    feeder.join()
    assert len(feeder.answers) == STREAMS * LENGTH
    processes.environment["MOCA_PARTITIONS"] = "7"
    moca(processes, "restore", file, "--data-dir", tmp_path / "there")
    other = serve("there")
    taken = set()
    with httpx.Client(base_url=other, timeout=60) as client:
        for i in range(STREAMS):
            seq = client.get(f"/v1/streams/s-{i}").json()["seq"]
            taken.add(seq)
            assert sent <= seq <= LENGTH
            body = [
                {k: v for k, v in item(i, at).items() if k != "stream"} for at in range(seq, LENGTH)
            ]
            answers = (
                client.post(f"/v1/streams/s-{i}/observations", json=body).json() if body else []
            )
            for answer in answers:
                expected = dict(feeder.answers[i, answer["seq"]])
                del expected["status"]
                same(answer, expected, f"s-{i}")
    assert min(taken) < LENGTH, "nothing came in after the backup"


def test_a_backup_that_is_killed_leaves_no_file(serve, processes, tmp_path):
    url, data = serve(), tmp_path / "data"
    with httpx.Client(base_url=url, timeout=60) as client:
        create(client)
        items = [item(i, at) for at in range(5) for i in range(STREAMS)]
        assert client.post("/v1/observations", json=items).status_code == 200
    file, killed = tmp_path / "out" / "all.moca", 0
    file.parent.mkdir()
    for _ in range(6):
        process = begin(processes, "backup", file, "--data-dir", data, "--force")
        while process.poll() is None and not list(file.parent.glob(".all.moca.*.part")):
            time.sleep(0.0005)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
        if file.exists():  # it was faster
            moca(processes, "restore", file, "--check")
            file.unlink()
        for part in file.parent.iterdir():
            part.unlink()
    assert killed
    moca(processes, "backup", file, "--data-dir", data)
    assert "is complete" in moca(processes, "restore", file, "--check")


def test_a_restore_that_is_killed_is_run_again(separate, processes, tmp_path):
    with httpx.Client(base_url=separate, timeout=60) as client:
        create(client)
        items = [item(i, at) for at in range(20) for i in range(STREAMS)]
        assert client.post("/v1/observations", json=items).status_code == 200
        expected = client.get("/v1/streams/s-3/run-length").json()
    file = tmp_path / "all.moca"
    moca(processes, "backup", file)
    processes.stop_all()
    with running_server(str(_binary("valkey"))) as url, connect(url) as store:
        processes.environment |= {"MOCA_REDIS_URL": url, "MOCA_LEASE_TTL_MS": "500"}
        rng, unended = random.Random(os.getpid()), 0
        for _ in range(4):
            process = begin(processes, "restore", file)
            while process.poll() is None and not store.hexists(keys.CONFIG, RESTORING):
                pass
            time.sleep(rng.choice([0, 0.01, 0.05]))
            process.kill()
            process.communicate()
            if not store.hexists(keys.CONFIG, RESTORING):
                store.flushall()  # it was faster
                continue
            unended += 1
            refused = moca(processes, "worker", status=78)
            assert "run `moca restore` again" in refused
        assert unended
        moca(processes, "restore", file)
        port = free_port()
        processes.start("worker", "worker")
        processes.start("again", "api", "--port", str(port))
        wait_ready(f"http://127.0.0.1:{port}")
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            assert len(client.get("/v1/streams?limit=100").json()["streams"]) == STREAMS
            same(client.get("/v1/streams/s-3/run-length").json(), expected)
        processes.stop_all()
