"""The service's own end-to-end and kill tests, unchanged, on a cluster of three masters."""

import asyncio

import httpx
import pytest

from tests.e2e import test_backup as backups
from tests.e2e.deployment import (
    Load,
    check_as_uninterrupted,
    create_streams,
    series,
    wait_ready,
)
from tests.e2e.test_backup import test_a_restore_that_is_killed_is_run_again  # noqa: F401
from tests.e2e.test_calls import *  # noqa: F403
from tests.e2e.test_events import *  # noqa: F403
from tests.e2e.test_kill import *  # noqa: F403
from tests.e2e.test_kill import _meanwhile

pytestmark = pytest.mark.slow


@pytest.fixture
def emptied(separate):
    """URL of a service on the cluster, without streams."""
    return separate


def test_a_master_is_killed_and_started_again(separate, processes, shared_cluster):
    """What it had accepted is in its file; the others go on meanwhile."""
    _, nodes = shared_cluster
    create_streams(separate, "load", 30)
    load = Load(separate, series(30, 30), 150, retry=True)
    port = next(iter(nodes.running))
    kill, again = (1.0, lambda: nodes.kill(port)), (3.0, lambda: nodes.again(port))
    asyncio.run(_meanwhile(load, kill, again))
    assert max(load.seconds) > 0.5, "nobody noticed"
    check_as_uninterrupted(separate, load)


def test_a_backup_of_a_cluster_is_restored_into_one(separate, processes, shared_cluster, tmp_path):
    with httpx.Client(base_url=separate, timeout=60) as client:
        backups.create(client)
        items = [backups.item(i, at) for at in range(20) for i in range(6)]
        assert client.post("/v1/observations", json=items).status_code == 200
        expected = client.get("/v1/streams/s-3/run-length").json()
        names = client.get("/v1/streams?limit=100").json()["streams"]
    file = tmp_path / "all.moca"
    backups.moca(processes, "backup", file)
    processes.stop_all()
    _, nodes = shared_cluster
    for port in nodes.running:
        nodes.client(port).flushall()
    backups.moca(processes, "restore", file)
    processes.start("worker", "worker")
    processes.start("again", "api", "--port", separate.rpartition(":")[2])
    wait_ready(separate)
    with httpx.Client(base_url=separate, timeout=60) as client:
        assert client.get("/v1/streams?limit=100").json()["streams"] == names
        backups.same(client.get("/v1/streams/s-3/run-length").json(), expected)
