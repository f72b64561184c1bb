"""Some of the service's own end-to-end and kill tests, unchanged, on a cluster of three masters."""

import time

import httpx
import pytest

from tests.e2e import test_backup as backups
from tests.e2e.calling import ask, close
from tests.e2e.conftest import http, prefix  # noqa: F401
from tests.e2e.deployment import (
    Load,
    check_as_uninterrupted,
    create_streams,
    series,
    wait_ready,
)
from tests.e2e.test_backup import test_a_restore_that_is_killed_is_run_again  # noqa: F401
from tests.e2e.test_calls import (  # noqa: F401
    test_a_list_that_is_sent_again_after_its_answer_was_lost_is_applied_once,
    test_a_snapshot_goes_on_elsewhere_as_the_stream_does,
    test_a_stream_expires_and_one_that_follows_it_is_told,
    test_feedback_what_if_and_the_history_of_settings,
    test_missing_outputs_mean_the_same_however_they_come,
)
from tests.e2e.test_events import (  # noqa: F401
    test_a_consumer_sees_each_event_once_whatever_restarts,
    test_followers_see_all_once_whatever_restarts,
    test_observations_that_are_not_retained_are_announced_as_a_gap,
)
from tests.e2e.test_kill import (  # noqa: F401
    test_a_stopped_worker_comes_back_too_late,
    test_a_worker_is_killed_under_load,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def url(separate):
    """URL of a service on the cluster."""
    return separate


def test_a_master_is_killed_and_started_again(separate, processes, shared_cluster):
    """What it had accepted is in its file; the others go on meanwhile."""
    _, nodes = shared_cluster
    create_streams(separate, "load", 30)
    load = Load(separate, series(30, 30), 150, retry=True)
    port = next(iter(nodes.running))

    def kill_and_start():
        nodes.kill(port)
        time.sleep(2)
        nodes.again(port)

    load.run_with((0.3, kill_and_start))
    check_as_uninterrupted(separate, load)


def test_a_backup_of_a_cluster_is_restored_into_one(separate, processes, shared_cluster, tmp_path):
    with httpx.Client(base_url=separate, timeout=60) as client:
        backups.fill(client, 20)
        expected = ask(client, "GET", "s-3/run-length")
        names = client.get("/v1/streams?limit=100").json()["streams"]
    file = tmp_path / "all.moca"
    processes.run("backup", file)
    processes.stop_all()
    _, nodes = shared_cluster
    for port in nodes.running:
        nodes.client(port).flushall()
    processes.run("restore", file)
    processes.start("worker", "worker")
    processes.start("again", "api", "--port", separate.rpartition(":")[2])
    wait_ready(separate)
    with httpx.Client(base_url=separate, timeout=60) as client:
        assert client.get("/v1/streams?limit=100").json()["streams"] == names
        close(ask(client, "GET", "s-3/run-length"), expected)
