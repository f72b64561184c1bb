"""After a fault between processes and their store has ended, all goes on within three seconds.

Two APIs and two workers, each with a path of its own to a real server. Whatever happened meanwhile,
every observation that was acknowledged is applied once, in order.
"""

import shutil
import subprocess
import time

import httpx
import pytest

from service.api_keys import create
from service.store.api_keys import Keyring
from service.store.connection import connect
from tests.conftest import _wait_until_up
from tests.e2e.deployment import Processes, wait_ready
from tests.faults import REPLIES, REQUESTS, Network, Proxy, Stopped, Writers, one_in_each
from tests.ports import free_port

PARTITIONS = 8
WITHIN_S = 3.0
RATE = "1000/second"  # never reached: it makes each request count itself in the store
BEFORE_S, AFTER_S = 1.5, 3.0
UNASKED_S = 2.0  # no look at /readyz before: it asks the store itself, and posts go on from there
APIS, WORKERS = ("api-a", "api-b"), ("worker-a", "worker-b")
EVERYONE = APIS + WORKERS
WHOSE = {"apis": APIS, "workers": WORKERS, "all": EVERYONE, "one of each": ("api-a", "worker-b")}


class Deployment:
    """Processes by name, and what stands between each and the store."""

    def __init__(self, folder, pid, store_url, paths):
        self.store, self.store_url, self.paths = Stopped(pid), store_url, paths
        self.processes = Processes(folder, {"MOCA_PARTITIONS": str(PARTITIONS)})
        self.urls, self.tokens = [], {}

    def start(self):
        with connect(self.store_url) as client:
            key, token = create("writer", ("read", "write"), rate=RATE)
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
            wait_ready(url, 100)
        self.processes.wait_for(f"owns {PARTITIONS // 2} partitions", *WORKERS)


def server(folder, *options):
    """Start a Redis that appends to disk."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server on this machine")
    common = ["--save", "", "--appendonly", "yes", "--dir", str(folder), "--protected-mode", "no"]
    command = [*options[:-1], binary, *common, *options[-1]]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def proxied(tmp_path_factory):
    """A deployment whose processes each reach the store through a proxy; and these by name."""
    folder, port = tmp_path_factory.mktemp("recovery"), free_port()
    process = server(folder, ["--port", str(port)])
    store_url, proxies, deployment = f"redis://127.0.0.1:{port}/0", {}, None
    try:
        _wait_until_up(store_url, process)
        proxies |= {name: Proxy(store_url) for name in EVERYONE}
        paths = {name: proxy.url for name, proxy in proxies.items()}
        deployment = Deployment(folder, process.pid, store_url, paths)
        deployment.start()
        yield deployment, proxies
    finally:
        if deployment is not None:
            deployment.processes.stop_all()
        process.kill()
        process.wait()
        for proxy in proxies.values():
            proxy.close()


@pytest.fixture
def measured(capsys, request):
    """Break something for a while under posts, heal it, and hold the recovery against the bound."""

    def measure(deployment, begin, seconds, heal):
        names = one_in_each(PARTITIONS, f"{time.time_ns()}-a")
        names += one_in_each(PARTITIONS, f"{time.time_ns()}-b")
        urls = [url for url in deployment.urls for _ in range(PARTITIONS)]
        writers = Writers(dict(zip(names, urls, strict=True)), deployment.tokens)
        writers.start()
        with httpx.Client(timeout=60) as client:  # made before: that takes a while
            time.sleep(BEFORE_S)
            broken = time.monotonic()
            try:
                begin()
                time.sleep(seconds)
            finally:
                heal()
            healed = time.monotonic()
            time.sleep(UNASKED_S)
            while not all(client.get(f"{u}/readyz").status_code == 200 for u in deployment.urls):
                assert time.monotonic() < healed + 60, "never ready"
                time.sleep(0.05)
            ready = time.monotonic() - healed
        writers.wait_recovered(healed)
        time.sleep(AFTER_S)
        writers.stop()
        found = writers.recovered(healed)
        slowest = writers.slowest(since=healed + max(found.values()))
        # A busy machine is slow without any fault: what it takes there counts ten times.
        within_s = WITHIN_S + 10 * writers.slowest(until=broken)
        with capsys.disabled():
            print(
                f"\n{request.node.name}: {len(writers.posts)} posts, {writers.failures()} failed;"
                f" after healing, posts {min(found.values()):.2f} to {max(found.values()):.2f} s,"
                f" ready by {ready:.2f} s, later posts up to {slowest:.2f} s,"
                f" all within {within_s:.2f} s",
                flush=True,
            )
        writers.check(deployment.urls[0])
        with connect(deployment.store_url) as client:
            assert list(client.scan_iter("moca:*:quarantine")) == []
        assert max(found.values()) <= within_s, found
        assert ready <= within_s
        assert slowest <= within_s

    return measure


slow = pytest.mark.slow


@pytest.mark.parametrize("seconds", [pytest.param(2, marks=slow), 4, pytest.param(8, marks=slow)])
def test_the_store_hangs(proxied, measured, seconds):
    deployment, _ = proxied
    measured(deployment, deployment.store.stop, seconds, deployment.store.heal)


LOSSES = [
    pytest.param("lose", REQUESTS, "apis", marks=slow),
    pytest.param("lose", REPLIES, "apis"),
    pytest.param("lose", REQUESTS, "workers", marks=slow),
    pytest.param("lose", REPLIES, "workers", marks=slow),
    pytest.param("lose", REPLIES, "all", marks=slow),
    pytest.param("lose", REPLIES, "one of each", marks=slow),
    pytest.param("hold", REQUESTS, "apis", marks=slow),
    pytest.param("hold", REPLIES, "apis", marks=slow),
    pytest.param("hold", REQUESTS, "workers", marks=slow),
    pytest.param("hold", REPLIES, "workers", marks=slow),
    pytest.param("hold", REQUESTS, "all", marks=slow),
]


@pytest.mark.parametrize(("how", "direction", "whose"), LOSSES)
def test_one_direction_passes_nothing(proxied, measured, how, direction, whose):
    """`lose`: for ever, as where a firewall forgot them; `hold`: all of it comes late."""
    deployment, proxies = proxied
    cut_off = [proxies[name] for name in WHOSE[whose]]
    measured(
        deployment,
        lambda: [getattr(proxy, how)(direction) for proxy in cut_off],
        6,
        lambda: [proxy.heal() for proxy in cut_off],
    )


@slow
@pytest.mark.parametrize(
    ("how", "arguments"),
    [
        pytest.param("cut", (), id="cut"),
        pytest.param("refuse", (), id="refuse"),
        pytest.param("slow", (0.1, 50_000), id="100 ms"),
        pytest.param("slow", (0.3, 50_000), id="300 ms"),
    ],
)
def test_every_path_is_bad(proxied, measured, how, arguments):
    deployment, proxies = proxied
    measured(
        deployment,
        lambda: [getattr(proxy, how)(*arguments) for proxy in proxies.values()],
        4,
        lambda: [proxy.heal() for proxy in proxies.values()],
    )


@pytest.fixture(scope="module")
def networked(tmp_path_factory):
    """A deployment whose store is in a network of its own, with an address for each process."""
    if why := Network.unusable():
        pytest.skip(why)
    folder, network = tmp_path_factory.mktemp("network"), Network(len(EVERYONE) + 1)
    own, *others = network.addresses
    options = ["--port", "6379", "--bind", *network.addresses]
    process = server(folder, *network.inside(), options)
    deployment = None
    try:
        store_url = f"redis://{own}:6379/0"
        _wait_until_up(store_url, process)
        addresses = dict(zip(EVERYONE, others, strict=True))
        paths = {name: f"redis://{address}:6379/0" for name, address in addresses.items()}
        deployment = Deployment(folder, process.pid, store_url, paths)
        deployment.start()
        yield deployment, network, addresses
    finally:
        if deployment is not None:
            deployment.processes.stop_all()
        process.kill()
        process.wait()
        network.close()


@slow
@pytest.mark.parametrize("whose", ["apis", "workers", "all"])
@pytest.mark.parametrize("direction", [REQUESTS, REPLIES])
def test_packets_of_one_direction_are_dropped(networked, measured, direction, whose):
    """As the kernels see it: they send again later and later, so that old connections wait."""
    deployment, network, addresses = networked
    cut_off = [addresses[name] for name in WHOSE[whose]]
    measured(deployment, lambda: network.drop(direction, *cut_off), 6, network.heal)
