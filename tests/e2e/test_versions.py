"""Workers of two versions on one store: an older one leaves to the later what it cannot read."""

import subprocess
import sys
import time

import httpx
import pytest

from service.runtime.embedded import Embedded
from service.runtime.process import EXIT_REFUSED
from service.store import keys
from service.store.connection import connect
from service.wire import versions
from tests.conftest import _binary, running_server
from tests.e2e.deployment import wait_ready
from tests.ports import free_port

LATER = """
import service.wire.versions
service.wire.versions.ENTRY = service.wire.versions.STORE = 3
from service.commands.main import main
main()
"""
STREAMS = 32


@pytest.fixture
def mixed(processes, tmp_path):
    """URL of an API of this version, on a store of its own; and how to start workers."""
    with running_server(str(_binary("valkey")), "--appendonly", "yes") as redis_url:
        processes.environment |= {"MOCA_REDIS_URL": redis_url, "MOCA_LEASE_TTL_MS": "1000"}

        def start(name, *arguments, later=False):
            if not later:
                processes.start(name, *arguments)
                return
            with (tmp_path / f"{name}.log").open("ab") as log:
                processes.running[name] = subprocess.Popen(
                    [sys.executable, "-c", LATER, *arguments],
                    env=processes.environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )

        port = free_port()
        start("old", "worker", "--worker-id", "old")
        start("api", "api", "--port", str(port))
        wait_ready(f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}", start
        processes.stop_all()


def post(client, y):
    items = [{"stream": f"s{i}", "y": y} for i in range(STREAMS)]
    return [answer.get("seq") for answer in client.post("/v1/observations", json=items).json()]


def owners(redis_url):
    with connect(redis_url) as client:
        leases = [client.get(keys.lease(p)) for p in range(16)]
        return [(each or b"").decode().partition("/")[0] for each in leases]


def until(condition, seconds=20.0):

    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.05)


@pytest.mark.slow
def test_workers_are_upgraded_and_the_later_one_dies_on_the_way(mixed, processes):
    url, start = mixed
    redis_url = processes.environment["MOCA_REDIS_URL"]
    with httpx.Client(base_url=url, timeout=60) as client:
        assert post(client, 1.0) == [0] * STREAMS
        start("later", "worker", "--worker-id", "later", later=True)
        until(lambda: owners(redis_url).count("later") == 8)
        assert post(client, 2.0) == [1] * STREAMS  # both work beside each other
        processes.kill("later")
        until(lambda: "later version" in processes.log_of("old"))
        until(lambda: owners(redis_url).count("") == 8)
        assert client.get("/readyz").status_code == 503
        assert client.get("/readyz?partitions=any").status_code == 200
        start("again", "worker", "--worker-id", "again", later=True)
        assert post(client, 3.0) == [2] * STREAMS  # what came before it was there has waited
        assert owners(redis_url).count("old") == 8
        old = processes.running.pop("old")
        old.terminate()
        assert old.wait(20) == 0
        assert post(client, 4.0) == [3] * STREAMS
        assert set(owners(redis_url)) == {"again"}
        with connect(redis_url) as store:
            assert list(store.scan_iter("moca:*:quarantine")) == []


def test_an_older_version_refuses_the_store_of_a_later_one(tmp_path):
    store = Embedded(tmp_path / "data")
    store.start()
    try:
        with connect(store.url) as client:
            client.hset(keys.meta(3), "format", versions.STORE + 1)
    finally:
        store.stop()
    place = ["--data-dir", str(tmp_path / "data")]
    for command in (["serve", "--port", str(free_port())], ["backup", str(tmp_path / "b.moca")]):
        done = subprocess.run(
            [sys.executable, "-m", "service.commands.main", *command, *place],
            capture_output=True,
            text=True,
        )
        assert done.returncode == EXIT_REFUSED, done.stderr
        assert "this store was used by a later version" in done.stderr
