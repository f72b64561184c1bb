"""A deployment of separate processes beside a server of its own, and one of `moca serve`."""

import contextlib

import httpx
import pytest

from service.runtime.embedded import Embedded
from tests.conftest import _binary, running_server
from tests.e2e.deployment import Processes, wait_ready
from tests.ports import free_port


@pytest.fixture
def processes(tmp_path):
    found = Processes(tmp_path, {"MOCA_PARTITIONS": "16"})
    yield found
    found.stop_all()


@pytest.fixture
def separate(processes):
    """URL of an API with two workers on a server that appends to disk."""
    with running_server(str(_binary("valkey")), "--appendonly", "yes") as redis_url:
        yield processes.start_separate(redis_url)
        processes.stop_all()


@contextlib.contextmanager
def served(folder):
    """Run `moca serve` in a folder; yields its processes and its URL."""
    found, port = Processes(folder, {"MOCA_PARTITIONS": "16"}), free_port()
    url = f"http://127.0.0.1:{port}"
    found.start("serve", "serve", "--data-dir", str(folder / "data"), "--port", str(port))
    try:
        wait_ready(url)
        yield found, url
    finally:
        found.stop_all()


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """Processes and URL of a `moca serve` for all tests that leave it whole."""
    with served(tmp_path_factory.mktemp("shared")) as found:
        yield found


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """Another one of a module, which no other test called before."""
    with served(tmp_path_factory.mktemp("fresh")) as found:
        yield found


@pytest.fixture
def emptied(shared):
    """URL of that service without streams: those of the tests before are deleted."""
    _, url = shared
    with httpx.Client(base_url=url, timeout=60) as client:
        while names := client.get("/v1/streams").raise_for_status().json()["streams"]:
            for each in names:
                client.delete(f"/v1/streams/{each['stream']}").raise_for_status()
    return url


@pytest.fixture
def serve(processes, tmp_path):
    """Start `moca serve` on one folder and port each; may be called again after a kill."""
    ports = {}

    def start(folder: str = "data") -> str:
        port = ports.setdefault(folder, free_port())
        name = "serve" if folder == "data" else f"serve {folder}"
        processes.start(name, "serve", "--data-dir", str(tmp_path / folder), "--port", str(port))
        wait_ready(f"http://127.0.0.1:{port}")
        return f"http://127.0.0.1:{port}"

    yield start
    processes.stop_all()
    for folder in ports:  # a test that failed may have left its store an orphan
        if (tmp_path / folder).exists():
            store = Embedded(tmp_path / folder)
            store.start()
            store.stop()
