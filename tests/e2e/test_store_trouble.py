"""The store dies, fills up, or comes back older than it was: what callers see, and what is lost."""

import asyncio
import resource
import shutil
import signal
import subprocess
import time

import httpx
import pytest

from service.store.connection import connect
from tests.conftest import _binary, _wait_until_up
from tests.e2e.deployment import (
    Load,
    Processes,
    check_as_uninterrupted,
    create_streams,
    series,
    wait_ready,
)
from tests.e2e.test_kill import _meanwhile

LIMIT = 20_000  # bytes of a file, for a disk that is full


class Server:
    """A Valkey that appends to disk, killed and started again on its folder."""

    def __init__(self, folder):
        self.folder = folder / "store"
        self.folder.mkdir()
        self.socket = f"/tmp/moca-t{time.time_ns() % 10**12}.sock"
        self.url = f"unix://{self.socket}"
        self.start()

    def start(self):
        command = [str(_binary("valkey")), "--port", "0", "--unixsocket", self.socket]
        command += ["--dir", str(self.folder), "--save", "", "--appendonly", "yes"]
        # Python ignores SIGXFSZ, and so does what it starts like this: a write fails instead.
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, restore_signals=False)
        _wait_until_up(self.url, self.process)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def limit(self, most):
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    found = Server(tmp_path_factory.mktemp("store"))
    yield found
    found.kill()


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


def slug(response):
    return response.json().get("type", "").rpartition("/")[2]


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.1)


@pytest.mark.slow
def test_the_store_is_killed_and_started_again(url, server, capsys):
    create_streams(url, "load", 10)
    load = Load(url, series(10, 30), 60, retry=True)

    def again():
        server.kill()
        time.sleep(1)
        server.start()

    asyncio.run(_meanwhile(load, (1.5, again)))
    with capsys.disabled():
        print(f"\nstore away for 1 s: longest wait {max(load.seconds):.1f} s", flush=True)
    assert max(load.seconds) > 0.8, "nobody noticed"
    wait_ready(url)
    check_as_uninterrupted(url, load)


def test_the_disk_of_the_store_is_full(url, server, capsys):
    """What cannot be written is not accepted; what was accepted is applied once there is room."""
    seen = []
    with httpx.Client(base_url=url, timeout=60) as client:
        post = lambda key, y: client.post(  # noqa: E731
            "/v1/streams/full/observations", json={"y": y}, headers={"Idempotency-Key": key}
        )
        applied = [post(f"k{i}", float(i % 3)).json()["seq"] for i in range(5)]
        assert applied == list(range(5))
        server.limit(LIMIT)
        for at in range(200):
            began = time.monotonic()
            response = post(f"f{at}", 1.0)
            seen.append((response.status_code, slug(response), time.monotonic() - began))
            if response.status_code != 200:
                break
        # The first of them may be accepted, and wait: 504. Those after it are not.
        assert seen[-1][:2] in ((503, "outcome-unknown"), (504, "no-answer")), seen[-1]
        assert response.headers["Retry-After"]
        assert client.get("/v1/streams/full").status_code == 200  # what is committed can be read
        until(lambda: "moca_redis_append_only_failing 1.0" in client.get("/metrics").text)
        until(lambda: slug(post("g", 1.0)) == "redis-unavailable")
        assert post("g", 1.0).status_code == 503
        server.limit(resource.RLIM_INFINITY)
        until(lambda: post("g", 1.0).status_code == 200)
        wait_ready(url)
        last = post(f"f{at}", 1.0)  # the one whose outcome was not known
        assert last.status_code == 200
        state = client.get("/v1/streams/full").json()
    with capsys.disabled():
        print(f"\ndisk full: {seen[-1]}, after {len(seen) - 1} that were taken", flush=True)
    assert state["seq"] == 5 + at + 2  # each once
    with connect(server.url) as store:
        assert list(store.scan_iter("moca:*:quarantine")) == []


def test_the_memory_of_the_store_is_short(url, server):
    with httpx.Client(base_url=url, timeout=60) as client, connect(server.url) as store:
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
        for call in (client.delete, client.get):
            refused = call("/v1/streams/b/run-length" if call == client.get else "/v1/streams/b")
            assert (refused.status_code, slug(refused)) == (429, "memory-short")
        store.config_set("maxmemory", int(used / 0.9))
        until(lambda: client.post("/v1/streams/a/predictions", json={}).status_code == 200)
        assert client.delete("/v1/streams/b").status_code == 204
        store.config_set("maxmemory", 0)
        until(lambda: client.post(path, json={"y": 1.0}).status_code == 200)


def test_the_store_comes_back_older_than_it_was(url, server, tmp_path):
    """As after a power failure, or a failover to a replica that lacks the last second."""
    with httpx.Client(base_url=url, timeout=60) as client:

        def post(y, **more):
            answer = client.post("/v1/streams/old/observations", json={"y": y}, **more)
            return answer.json().get("seq", slug(answer))

        assert [post(float(i % 3)) for i in range(40)] == list(range(40))
        with connect(server.url) as store:
            until(lambda: store.info("persistence")["aof_pending_bio_fsync"] == 0)
        kept = tmp_path / "kept"
        shutil.copytree(server.folder, kept)
        assert [post(float(i % 3)) for i in range(20)] == list(range(40, 60))
        server.kill()
        shutil.rmtree(server.folder)
        shutil.copytree(kept, server.folder)
        server.start()
        wait_ready(url)
        # A writer that says where it is finds out; one that does not goes on from there.
        conflict = client.post("/v1/streams/old/observations", json={"y": 1.0, "seq": 60})
        assert (conflict.status_code, conflict.json()["seq"]) == (409, 40)
        assert [post(1.0) for _ in range(5)] == list(range(40, 45))
        found = client.get("/v1/streams/old/history").json()["observations"]
        assert [each["seq"] for each in found] == list(range(45))
        assert "moca_quarantined_commands_total 0.0" in client.get("/metrics").text
    with connect(server.url) as store:
        assert list(store.scan_iter("moca:*:quarantine")) == []
