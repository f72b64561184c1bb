"""A cluster of three masters where the other tests have one server."""

import pytest

from service.store.connection import connect
from tests.clusters import running_cluster
from tests.e2e.deployment import Processes, wait_ready
from tests.ports import free_port
from tests.service.store.conftest import add, log, make, other  # noqa: F401  # fixtures


@pytest.fixture(scope="session")
def shared_cluster():
    """Address and nodes of a cluster, not emptied between tests."""
    with running_cluster() as found:
        yield found


@pytest.fixture
def redis_url(shared_cluster):
    url, nodes = shared_cluster
    for port in nodes.running:
        nodes.client(port).flushall()
        nodes.client(port).script_flush()
    return url


@pytest.fixture
def redis_client(redis_url):
    with connect(redis_url) as client:
        yield client


@pytest.fixture
def processes(tmp_path):
    found = Processes(tmp_path, {"MOCA_PARTITIONS": "16"})
    yield found
    found.stop_all()


@pytest.fixture
def separate(processes, redis_url):
    """URL of an API with two workers."""
    yield processes.start_separate(redis_url)
    processes.stop_all()


@pytest.fixture
def serve(processes, redis_url, tmp_path):
    """Start `moca serve` beside the cluster, or on a folder; may be called again after a kill."""
    ports = {}

    def start(folder: str = "") -> str:
        port = ports.setdefault(folder, free_port())
        if folder:
            processes.environment.pop("MOCA_REDIS_URL", None)
            command = ["--data-dir", str(tmp_path / folder)]
        else:
            processes.environment["MOCA_REDIS_URL"] = redis_url
            command = []
        processes.start(f"serve {folder}".strip(), "serve", "--port", str(port), *command)
        wait_ready(f"http://127.0.0.1:{port}")
        return f"http://127.0.0.1:{port}"

    yield start
    processes.stop_all()


@pytest.fixture
def valkey_url(redis_url):
    return redis_url


@pytest.fixture
def cluster():
    """Address and nodes of a cluster of the test's own, which it may change."""
    with running_cluster() as found:
        yield found
