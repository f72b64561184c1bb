"""The store fills up, or comes back older than it was: what callers see, and what is lost.

A store that is killed, and a path to it that loses, cuts or holds bytes: tests/referees/history.py.
"""

import resource
import shutil
import signal
from typing import NamedTuple

import httpx
import pytest

from service.store.connection import connect
from tests.clusters import APPENDING, Nodes, running_nodes
from tests.conftest import _binary
from tests.e2e.calling import slug
from tests.e2e.deployment import Processes, wait_ready
from tests.ports import free_port
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.slow

LIMIT = 20_000  # bytes of a file, for a disk that is full


class Server(NamedTuple):
    """A Valkey that appends to disk, killed and started again on its folder."""

    nodes: Nodes
    port: int

    @property
    def folder(self):
        return self.nodes.folder / str(self.port)

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}"

    def limit(self, most):
        pid = self.nodes.running[self.port].pid
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


@pytest.fixture(scope="module")
def server():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with running_nodes(str(_binary("valkey"))) as nodes:
        nodes.start(port := free_port(), *APPENDING)
        yield Server(nodes, port)


@pytest.fixture(scope="module")
def url(server, tmp_path_factory):
    """Of an API with two workers, which live through all of it."""
    settings = {
        "MOCA_PARTITIONS": "16",
        "MOCA_LEASE_TTL_MS": "1000",
        "MOCA_REQUEST_DEADLINE_S": "8",
    }
    processes = Processes(tmp_path_factory.mktemp("processes"), settings)
    try:
        yield processes.start_separate(server.url)
    finally:
        processes.stop_all()


def test_the_disk_of_the_store_is_full(url, server):
    """What cannot be written is not accepted; what was accepted is applied once there is room."""
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:

        def post(key, y):
            headers = {"Idempotency-Key": key}
            return client.post("/v1/streams/full/observations", json={"y": y}, headers=headers)

        applied = [post(f"k{i}", float(i % 3)).json()["seq"] for i in range(5)]
        assert applied == list(range(5))
        server.limit(LIMIT)
        taken = 0
        while (refused := post(f"f{taken}", 1.0)).status_code == 200:
            taken += 1
        # The first of them may be accepted, and wait: 504. Those after it are not.
        found = refused.status_code, slug(refused)
        assert found in ((503, "outcome-unknown"), (504, "no-answer"))
        assert refused.headers["Retry-After"]
        assert client.get("/v1/streams/full").status_code == 200  # what is committed can be read
        until(lambda: "moca_redis_append_only_failing 1.0" in client.get("/metrics").text)
        until(lambda: slug(post("g", 1.0)) == "redis-unavailable")
        server.limit(resource.RLIM_INFINITY)
        until(lambda: post("g", 1.0).status_code == 200)
        wait_ready(url)
        assert post(f"f{taken}", 1.0).status_code == 200  # the one whose outcome was not known
        assert client.get("/v1/streams/full").json()["seq"] == 5 + taken + 2  # each once
    with connect(server.url) as store:
        assert list(store.scan_iter("moca:*:quarantine")) == []


def test_the_memory_of_the_store_is_short(url, server):
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as client, connect(server.url) as store:
        for name in ("a", "b"):
            body = [{"y": float(i % 3)} for i in range(30)]
            client.post(f"/v1/streams/{name}/observations", json=body).raise_for_status()
        path = "/v1/streams/a/observations"
        for share in (0.9, 1.1):  # above the bound, and beyond all there is
            used = store.info("memory")["used_memory"]
            store.config_set("maxmemory", int(used / share))
            until(lambda: client.post(path, json={"y": 1.0}).status_code == 429)
            refused = client.post(path, json={"y": 1.0})
            assert (slug(refused), refused.headers["Retry-After"]) == ("memory-short", "5")
            assert client.get("/v1/streams/a").status_code == 200
        assert client.get("/v1/streams/b/history").status_code == 200
        # Beyond all there is, the log takes nothing: not even what would make room.
        assert slug(client.delete("/v1/streams/b")) == "memory-short"
        store.config_set("maxmemory", int(used / 0.9))
        until(lambda: client.post("/v1/streams/a/predictions", json={}).status_code == 200)
        assert client.delete("/v1/streams/b").status_code == 204
        store.config_set("maxmemory", 0)
        until(lambda: client.post(path, json={"y": 1.0}).status_code == 200)


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
        server.nodes.kill(server.port)
        shutil.rmtree(server.folder)
        shutil.copytree(kept, server.folder)
        server.nodes.again(server.port)
        wait_ready(url)
        # A writer that says where it is finds out; one that does not goes on from there.
        conflict = client.post("/v1/streams/old/observations", json={"y": 1.0, "seq": 60})
        assert (conflict.status_code, conflict.json()["seq"]) == (409, 40)
        assert [post(1.0) for _ in range(5)] == list(range(40, 45))
        found = client.get("/v1/streams/old/history").json()["observations"]
        assert [each["seq"] for each in found] == list(range(45))
    with connect(server.url) as store:
        assert list(store.scan_iter("moca:*:quarantine")) == []
