"""The store's disk fills up, or it comes back older: what callers see, and what is lost.

A store that is killed, and a path to it that loses, cuts or holds bytes: tests/referees/history.py.
"""

import resource
import shutil

import httpx
import pytest

from service.store.connection import connect
from tests.clusters import running_valkey
from tests.e2e.calling import slug
from tests.e2e.deployment import Processes, wait_ready
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.slow

LIMIT = 20_000  # bytes of a file, for a disk that is full


@pytest.fixture(scope="module")
def server():
    with running_valkey() as server:
        yield server


@pytest.fixture(scope="module")
def url(server, tmp_path_factory):
    """Of an API with two workers, which live through all of it."""
    settings = {
        "MOCA_PARTITIONS": "16",
        "MOCA_LEASE_TTL_MS": "1000",
        "MOCA_REQUEST_DEADLINE_S": "8",
    }
    with Processes(tmp_path_factory.mktemp("processes"), settings) as processes:
        yield processes.start_separate(server.url)


def test_the_disk_of_the_store_is_full(url, server):
    """What cannot be written is not accepted; what was accepted is applied once there is room."""
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:

        def post(key, y):
            headers = {"Idempotency-Key": key}
            return client.post("/v1/streams/full/observations", json={"y": y}, headers=headers)

        applied = [post(f"k{i}", float(i % 3)).json()["seq"] for i in range(5)]
        assert applied == list(range(5))
        server.limit_files(LIMIT)
        taken = 0
        while (refused := post(f"f{taken}", 1.0)).status_code == 200:
            taken += 1
        # The first of them may be accepted, and wait: 504. Those after it are not.
        problem = refused.status_code, slug(refused)
        assert problem in ((503, "outcome-unknown"), (504, "no-answer"))
        assert refused.headers["Retry-After"]
        assert client.get("/v1/streams/full").status_code == 200  # what is committed can be read
        until(lambda: "moca_redis_append_only_failing 1.0" in client.get("/metrics").text)
        until(lambda: slug(post("g", 1.0)) == "redis-unavailable")
        server.limit_files(resource.RLIM_INFINITY)
        until(lambda: post("g", 1.0).status_code == 200)
        wait_ready(url)
        assert post(f"f{taken}", 1.0).status_code == 200  # the one whose outcome was not known
        assert client.get("/v1/streams/full").json()["seq"] == 5 + taken + 2  # each once
    with connect(server.url) as store:
        assert list(store.scan_iter("moca:*:quarantine")) == []


def test_the_store_comes_back_older_than_it_was(url, server, tmp_path):
    """As after a power failure, or a failover to a replica that lacks the last second."""
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:

        def post(y, **more):
            answer = client.post("/v1/streams/old/observations", json={"y": y}, **more)
            return answer.json().get("seq", slug(answer))

        assert [post(float(i % 3)) for i in range(40)] == list(range(40))
        with connect(server.url) as store:
            until(lambda: store.info("persistence")["aof_pending_bio_fsync"] == 0)
        kept = tmp_path / "kept"
        shutil.copytree(server.folder, kept)
        assert [post(float(i % 3)) for i in range(20)] == list(range(40, 60))
        server.stop()
        shutil.rmtree(server.folder)
        shutil.copytree(kept, server.folder)
        server.start()
        wait_ready(url)
        # A writer that says where it is finds out; one that does not goes on from there.
        conflict = client.post("/v1/streams/old/observations", json={"y": 1.0, "seq": 60})
        assert (conflict.status_code, conflict.json()["seq"]) == (409, 40)
        assert [post(1.0) for _ in range(5)] == list(range(40, 45))
        observations = client.get("/v1/streams/old/history").json()["observations"]
        assert [each["seq"] for each in observations] == list(range(45))
    with connect(server.url) as store:
        assert list(store.scan_iter("moca:*:quarantine")) == []
