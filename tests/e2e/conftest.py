"""One service for all tests of a run that leave it whole, and deployments of a test's own."""

import contextlib
import fcntl
import itertools
import json
import os
import signal
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from service.runtime.embedded import running_url
from tests.clusters import running_server, valkey
from tests.e2e.deployment import Processes
from tests.waiting import PATIENCE_S, ended, until

# Series of three jobs become streams named after the test, so that tests share one service.
RULES = """
[[rule]]
match = 'noise'
drop = true

[[rule]]
match = '{job="ten"}'
stream = "{run}{instance}"
model = "gaussian"
location = 0
scale = 1
interval = 10
tags = {source = "prometheus"}

[[rule]]
match = '{job="counts"}'
stream = "{run}{instance}"
model = "poisson"
interval = 10
"""
_numbers = itertools.count()
_started = []  # by this process; another one may have to stop them


class Shared(NamedTuple):
    """The service of the whole run: its folder, its address, its store."""

    folder: Path
    url: str

    @property
    def store(self) -> str:
        return str(running_url(self.folder / "data"))

    @property
    def models(self) -> Path:
        return self.folder / "models"


@pytest.fixture
def processes(tmp_path):
    with Processes(tmp_path, {"MOCA_PARTITIONS": "16"}) as processes:
        yield processes


@pytest.fixture
def disk_store():
    """URL of a server that appends to disk."""
    with running_server(valkey(), "--appendonly", "yes") as redis_url:
        yield redis_url


@pytest.fixture
def separate(disk_store, processes):
    """URL of an API with two workers on such a server."""
    return processes.start_separate(disk_store)


@pytest.fixture
def serve(processes):
    """Start `moca serve` on one folder and port; may be called again after a kill."""
    return processes.serve


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """The service of the run: the first process that needs it starts it, the last one stops it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared-service"
    folder.mkdir(exist_ok=True)
    with _state(folder) as state:
        if not state:
            state |= _start(folder)
        state["users"].append(os.getpid())
        url = state["url"]
    yield Shared(folder, url)
    with _state(folder) as state:
        state["users"].remove(os.getpid())
        if not any(Path(f"/proc/{pid}").exists() for pid in state["users"]):
            pid = state["pid"]
            os.kill(pid, signal.SIGTERM)
            until(lambda: ended(pid))
            state.clear()
    for process in (each.running["serve"] for each in _started):
        process.poll()


@contextlib.contextmanager
def _state(folder):
    """What all processes of the run know of the service, under a lock."""
    file = folder / "state.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = json.loads(file.read_text()) if file.exists() else {}
        yield state
        file.write_text(json.dumps(state))


def _start(folder):
    rules = folder / "rules.toml"
    rules.write_text(RULES)
    environment = {"MOCA_PARTITIONS": "16", "MOCA_PROMETHEUS_RULES": str(rules)}
    processes = Processes(folder, environment)
    try:
        url = processes.serve()
    except BaseException:
        processes.stop_all()
        raise
    _started.append(processes)
    return {"url": url, "pid": processes.running["serve"].pid, "users": []}


@pytest.fixture
def url(shared):
    """Address of a service, for tests that leave it whole and name streams of their own."""
    return shared.url


@pytest.fixture
def http(url):
    """A client of that service."""
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        yield client


@pytest.fixture
def prefix():
    """What the names of this test's streams begin with."""
    return f"t{os.getpid()}-{next(_numbers)}-"
