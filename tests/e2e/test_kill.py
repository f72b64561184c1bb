"""Processes that die, hang or are cut off under load: nothing is lost or done twice.

What ends, kills or stops its worker each time: tests/service/worker/test_processes.py.
"""

import os
import signal

import httpx
import pytest
import redis

from service.runtime.embedded import running_url
from service.runtime.process import EXIT_REFUSED
from service.store import keys
from service.store.connection import connect
from tests.e2e.calling import ask, post
from tests.e2e.deployment import (
    Load,
    check_as_uninterrupted,
    create_streams,
    series,
)
from tests.feeding import Follower
from tests.waiting import PATIENCE_S, barring, ended, until

STREAMS = 10
LENGTH = 16  # more than series() needs for a change
PER_SECOND = 100


def test_a_worker_is_killed_under_load(separate, processes):
    """No request fails: another worker takes over what it owned, and says so."""
    processes.wait_for("owns 8 partitions", "worker-a", "worker-b")
    create_streams(separate, "load", STREAMS)
    load = Load(separate, series(STREAMS, LENGTH), PER_SECOND)
    load.run_with((0.3, lambda: processes.kill("worker-a")))
    processes.wait_for("owns 16 partitions", "worker-b")
    check_as_uninterrupted(separate, load)


def test_whatever_is_killed_starts_again_and_a_stop_leaves_nothing(serve, processes, tmp_path):
    """A lease outlives all patience: only a release lets the next worker have it."""
    processes.environment |= {"MOCA_LEASE_TTL_MS": "600000", "MOCA_REQUEST_DEADLINE_S": "1300"}
    url = serve()
    store = str(running_url(tmp_path / "data"))

    def holders():
        with connect(store) as client:
            tokens = client.mget([keys.lease(partition) for partition in range(16)])
        return {token.decode().partition("/")[0] for token in tokens if token}

    def kept():
        with connect(store) as client:
            return client.get("kept")

    children = processes.children("serve")
    (before,) = holders()
    os.kill(children["worker"], signal.SIGKILL)
    until(lambda: holders() not in (set(), {before}))
    with connect(store) as client:
        assert {each.decode() for each in client.zrange(keys.WORKERS, 0, -1)} == holders()
        client.set("kept", "yes")
        pid = client.info("server")["process_id"]
    os.kill(children["api"], signal.SIGKILL)
    until(lambda: ended(children["api"]))
    answer = httpx.get(f"{url}/livez", timeout=PATIENCE_S)  # its callers wait meanwhile
    assert answer.status_code == 200
    os.kill(pid, signal.SIGKILL)
    assert until(barring(redis.RedisError, kept)) == b"yes"
    refused = processes.run("serve", "--data-dir", tmp_path / "data", status=EXIT_REFUSED)
    assert f"process {processes.running['serve'].pid}" in refused
    processes.signal("serve", signal.SIGINT)
    assert processes.running["serve"].wait(PATIENCE_S) == 0
    assert running_url(tmp_path / "data") is None


@pytest.mark.slow
def test_a_clean_stop_and_then_a_kill_of_the_supervisor_lose_nothing(serve, processes):
    """Streams, settings and thresholds are as they were; who follows a stream sees no end of it."""
    url = serve()
    settings = {"model": "gaussian", "false_alarm_every": 100000.0}
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        ask(client, "PUT", "set", 201, json=settings)
        post(client, "set", [0.0])
        before = ask(client, "GET", "set")
    follower = Follower(url, "set")
    with follower.connected() as messages:
        next(messages)
        processes.signal("serve", signal.SIGTERM)
        list(messages)
    assert processes.running["serve"].wait(PATIENCE_S) == 0
    assert (follower.seen, follower.ends) == ([], [])
    log = processes.log_of("serve")
    assert "did not exit" not in log
    assert "Traceback" not in log

    serve()
    create_streams(url, "load", STREAMS)
    load = Load(url, series(STREAMS, LENGTH), PER_SECOND, retry=True)

    def again():
        pids = processes.children("serve").values()
        processes.kill("serve")
        until(lambda: all(map(ended, pids)))
        serve()

    load.run_with((0.3, again))
    check_as_uninterrupted(url, load)
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        assert ask(client, "GET", "set") == before
        assert [answer["seq"] for answer in post(client, "set", [1.0])] == [1]
    follower.read(1)
    assert follower.seen == [(1, 1.0)]
