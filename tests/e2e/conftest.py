"""A deployment of separate processes beside a server of its own, and one of `moca serve`."""

import pytest

from service.redis.embedded import Embedded
from tests.conftest import _binary, running_server
from tests.e2e.deployment import Processes, free_port, wait_ready


@pytest.fixture
def processes(tmp_path):
    found = Processes(tmp_path, {"MOCA_PARTITIONS": "16"})
    yield found
    found.stop_all()


@pytest.fixture
def separate(processes):
    """URL of an API with two workers on a server that appends to disk."""
    with running_server(str(_binary("valkey")), "--appendonly", "yes") as redis_url:
        processes.environment["MOCA_REDIS_URL"] = redis_url
        processes.redis_url = redis_url
        port = free_port()
        for name in ("worker-a", "worker-b"):
            processes.start(name, "worker", "--worker-id", name)
        processes.start("api", "api", "--port", str(port))
        url = f"http://127.0.0.1:{port}"
        wait_ready(url)
        yield url
        processes.stop_all()


@pytest.fixture
def serve(processes, tmp_path):
    """Start `moca serve` on one folder and port; may be called again after a kill."""
    port = free_port()

    def start() -> str:
        processes.start("serve", "serve", "--data-dir", str(tmp_path / "data"), "--port", str(port))
        wait_ready(f"http://127.0.0.1:{port}")
        return f"http://127.0.0.1:{port}"

    yield start
    processes.stop_all()
    if (tmp_path / "data").exists():  # a test that failed may have left its store an orphan
        store = Embedded(tmp_path / "data")
        store.start()
        store.stop()
