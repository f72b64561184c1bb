"""The store dies, fills up, comes back older, or cannot be reached: what callers see, what is lost.

Whatever happened meanwhile, every observation that was acknowledged is applied once, in order.
"""

import resource
import shutil
import signal
import subprocess
import time

import httpx
import pytest

from service.api_keys import create
from service.store.api_keys import Keyring
from service.store.connection import connect
from tests.conftest import _binary, _wait_until_up
from tests.e2e.calling import slug
from tests.e2e.deployment import (
    Load,
    Processes,
    check_as_uninterrupted,
    create_streams,
    series,
    wait_ready,
)
from tests.faults import REPLIES, REQUESTS, Network, Proxy, Stopped, Writers, one_in_each
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.slow

LIMIT = 20_000  # bytes of a file, for a disk that is full
PARTITIONS = 8
APIS = ("api-a", "api-b")
WORKERS = ("worker-a", "worker-b")
EVERYONE = APIS + WORKERS
WHOSE = {"apis": APIS, "workers": WORKERS, "all": EVERYONE, "one of each": ("api-a", "worker-b")}


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


def test_the_store_is_killed_and_started_again(url, server):
    create_streams(url, "load", 10)
    load = Load(url, series(10, 30), 60, retry=True)

    def again():
        server.kill()
        time.sleep(1)
        server.start()

    load.run_with((0.3, again))
    wait_ready(url)
    check_as_uninterrupted(url, load)


def test_the_disk_of_the_store_is_full(url, server):
    """What cannot be written is not accepted; what was accepted is applied once there is room."""
    with httpx.Client(base_url=url, timeout=120) as client:

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
    with httpx.Client(base_url=url, timeout=120) as client, connect(server.url) as store:
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
    with httpx.Client(base_url=url, timeout=120) as client:

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
    with connect(server.url) as store:
        assert list(store.scan_iter("moca:*:quarantine")) == []


class Deployment:
    """Two APIs and two workers, each with a path of its own to a store."""

    def __init__(self, folder, store_url, paths):
        self.store_url, self.paths = store_url, paths
        self.processes = Processes(folder, {"MOCA_PARTITIONS": str(PARTITIONS)})
        self.urls, self.tokens = [], {}

    def start(self):
        with connect(self.store_url) as client:
            # A rate that is never reached makes each request count itself in the store.
            key, token = create("writer", ("read", "write"), rate="1000/second")
            Keyring(client).add(key)
        for name in WORKERS:
            command = ["worker", "--worker-id", name, "--redis-url", self.paths[name]]
            self.processes.start(name, *command)
        # One of them asks the store about keys and rates; of the other every post goes to the log.
        for name, how in zip(APIS, ("--require-keys", "--open"), strict=True):
            port = free_port()
            command = ["api", "--port", str(port), "--redis-url", self.paths[name], how]
            self.processes.start(name, *command)
            self.urls.append(f"http://127.0.0.1:{port}")
        self.tokens = {self.urls[0]: token}
        for url in self.urls:
            wait_ready(url)
        self.processes.wait_for(f"owns {PARTITIONS // 2} partitions", *WORKERS)

    def check(self, begin, seconds, heal):
        """Break something for a while under posts; all of them recover, and nothing is lost."""
        names = one_in_each(PARTITIONS, f"{time.time_ns()}-a")
        names += one_in_each(PARTITIONS, f"{time.time_ns()}-b")
        urls = [url for url in self.urls for _ in range(PARTITIONS)]
        writers = Writers(dict(zip(names, urls, strict=True)), self.tokens)
        writers.start()
        until(lambda: len(writers.posts) > 2 * len(names))
        try:
            begin()
            time.sleep(seconds)
        finally:
            heal()
        healed = time.monotonic()
        writers.wait_recovered(healed)  # a look at /readyz would ask the store, and help
        for url in self.urls:
            wait_ready(url)
        writers.stop()
        print({"recovered": writers.recovered(healed), "failed": writers.failures()})
        writers.check(self.urls[0])
        with connect(self.store_url) as client:
            assert list(client.scan_iter("moca:*:quarantine")) == []


def server_beside(folder, *options):
    """Start a Redis that appends to disk."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server on this machine")
    common = ["--save", "", "--appendonly", "yes", "--dir", str(folder), "--protected-mode", "no"]
    command = [*options[:-1], binary, *common, *options[-1]]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def proxied(tmp_path_factory):
    """A deployment whose processes each reach the store through a proxy; these; and the store."""
    folder, port = tmp_path_factory.mktemp("recovery"), free_port()
    process = server_beside(folder, ["--port", str(port)])
    store_url, proxies, deployment = f"redis://127.0.0.1:{port}/0", {}, None
    try:
        _wait_until_up(store_url, process)
        proxies |= {name: Proxy(store_url) for name in EVERYONE}
        paths = {name: proxy.url for name, proxy in proxies.items()}
        deployment = Deployment(folder, store_url, paths)
        deployment.start()
        yield deployment, proxies, Stopped(process.pid)
    finally:
        if deployment is not None:
            deployment.processes.stop_all()
        process.kill()
        process.wait()
        for proxy in proxies.values():
            proxy.close()


FAULTS = {
    "requests of APIs are lost": ("lose", (REQUESTS,), "apis"),
    "replies to APIs are lost": ("lose", (REPLIES,), "apis"),
    "replies to workers are lost": ("lose", (REPLIES,), "workers"),
    "replies to one of each are lost": ("lose", (REPLIES,), "one of each"),
    "all requests come late": ("hold", (REQUESTS,), "all"),
    "replies to APIs come late": ("hold", (REPLIES,), "apis"),
    "replies end in their middle": ("cut", (), "all"),
    "connections are refused": ("refuse", (), "all"),
    "all is slow": ("slow", (0.3, 50_000), "all"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_all_goes_on_after_a_fault_of_the_path_to_the_store(proxied, fault):
    deployment, proxies, _ = proxied
    how, arguments, whose = FAULTS[fault]
    chosen = [proxies[name] for name in WHOSE[whose]]
    deployment.check(
        lambda: [getattr(proxy, how)(*arguments) for proxy in chosen],
        5,
        lambda: [proxy.heal() for proxy in chosen],
    )


@pytest.mark.parametrize("seconds", [2, 8])  # shorter and longer than leases last
def test_all_goes_on_after_the_store_hung(proxied, seconds):
    deployment, _, store = proxied
    deployment.check(store.stop, seconds, store.heal)


@pytest.mark.parametrize("direction", [REQUESTS, REPLIES])
def test_all_goes_on_after_packets_were_dropped(tmp_path, direction):
    """As the kernels see it: they send again later and later, so that old connections wait."""
    if why := Network.unusable():
        pytest.skip(why)
    network = Network(len(EVERYONE) + 1)
    own, *others = network.addresses
    options = ["--port", "6379", "--bind", *network.addresses]
    process = server_beside(tmp_path, *network.inside(), options)
    addresses = dict(zip(EVERYONE, others, strict=True))
    paths = {name: f"redis://{address}:6379/0" for name, address in addresses.items()}
    deployment = Deployment(tmp_path, f"redis://{own}:6379/0", paths)
    try:
        _wait_until_up(deployment.store_url, process)
        deployment.start()
        deployment.check(lambda: network.drop(direction, *others), 6, network.heal)
    finally:
        deployment.processes.stop_all()
        process.kill()
        process.wait()
        network.close()
