"""A storm of composed faults, held against a sequential model: `python -m tests.referees.history`.

Two APIs, two workers and a store: a Redis that appends to disk, with a proxy between it and each
process; or a master with a replica and three sentinels; or a cluster of three masters with
replicas. Clients post with idempotency keys, one by one, in lists, in bulk and several to one
stream, delete and read, and repeat whatever had no definite answer. Afterwards every stream must be
what its observations, posted once and in order to a calm stream, make of it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import itertools
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import redis

from model_core.stream import season
from service.store import keys
from service.store.connection import connect
from service.store.keys import partition_of
from tests.clusters import APPENDING, Nodes, running_cluster, running_sentinels, server_or_skip
from tests.e2e.deployment import Processes, wait_ready
from tests.faults import REPLIES, REQUESTS, Proxy
from tests.ports import free_port
from tests.referees.judging import Row, shown
from tests.waiting import until

TOPOLOGIES = ("server", "sentinel", "cluster")
PARTITIONS = 8
APIS, WORKERS = ("api-a", "api-b"), ("worker-a", "worker-b")
EVERYONE = APIS + WORKERS
SETTINGS = {"model": "gaussian", "location": 0.0, "scale": 1.0, "hazard": 0.02}
AGAIN = {0, 408, 429, 503, 504}  # no definite answer, or refused for the time being
CORRUPT = 500  # allowed of streams whose stored bytes were flipped, until these are put back
LEASE_S, DEADLINE_S = 5.0, 11.0  # of requests; more than twice the lease of a worker
LONGEST_WAIT_S, HEALED_WITHIN_S = 15.0, 3.0
PATIENCE_S = 120.0  # of the comparison, after the storm
PHASES_APART = 1e-5  # of searches for seasons that hardly ever differ
CALM_S = 6.0  # posts go on for so long after the last fault
TOLERANCE = 1e-9
# Searches for quantiles end that close; torch serves until kernels are ready, which go other ways.
QUANTILE_TOLERANCE = 1e-7


class Contradiction(AssertionError):
    """An answer that no sequential service gives."""


class Call(NamedTuple):
    """One request and its end."""

    what: str
    url: str
    stream: str
    began: float
    ended: float
    status: int  # 0: none

    @property
    def seconds(self) -> float:
        return self.ended - self.began


# --- clients -------------------------------------------------------------------------------------


class Clients:
    """Everything that is posted and read, in a thread of its own."""

    def __init__(self, urls: list[str], seed: int) -> None:
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._urls, self._rng = urls, random.Random(seed)
        self.calls: list[Call] = []
        self.answers: dict[str, dict[int, dict[str, Any]]] = {}  # by stream, by seq
        self.labels: dict[str, dict[int, float]] = {}
        self.posted: Counter[tuple[str, float]] = Counter()
        self._unsure: set[str] = set()  # streams of which a PUT or DELETE may be applied later
        self.victims = [f"victim-{i}" for i in range(4)]
        self.reads = 0
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "calls are still on their way"
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raise what went wrong so far."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._all())
        except BaseException as error:  # noqa: BLE001  # raised again by `raise_failure`
            self._failure = error

    async def _all(self) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=120, limits=limits) as self._http:
            singles = [f"single-{i}" for i in range(16)]
            shared, lists = [f"shared-{i}" for i in range(3)], [f"list-{i}" for i in range(3)]
            bulk, deleted = [f"bulk-{i}" for i in range(5)], ["deleted-0", "deleted-1"]
            for name in (*singles, *shared, *lists, *bulk, *self.victims):
                await self._make(name)
            async with asyncio.TaskGroup() as group:
                for name in (*singles, *self.victims):
                    group.create_task(self._singly(name, "k"))
                for name, writer in itertools.product(shared, ("a", "b")):
                    group.create_task(self._singly(name, writer))
                for name in lists:
                    group.create_task(self._in_lists(name))
                group.create_task(self._in_bulk(bulk))
                for name in deleted:
                    group.create_task(self._again_and_again(name))
                group.create_task(self._reading([*singles, *lists, *bulk]))

    async def _make(self, name: str) -> None:
        await self._until(name, "PUT", f"/v1/streams/{name}", {200, 201}, json=SETTINGS)
        self.answers[name], self.labels[name] = {}, {}

    async def _singly(self, name: str, writer: str) -> None:
        """Post one observation after the other, each until it is answered."""
        for at in itertools.count():
            if self._stopping.is_set():
                return
            y = self._label(name)
            headers = {"Idempotency-Key": f"{writer}{at}"}
            path = f"/v1/streams/{name}/observations"
            found = await self._until(name, "POST", path, {200}, json={"y": y}, headers=headers)
            self._note(name, found.json(), y)
            await asyncio.sleep(0.1)

    async def _in_lists(self, name: str) -> None:
        for at in itertools.count():
            if self._stopping.is_set():
                return
            ys = [self._label(name) for _ in range(40)]  # two commands
            headers = {"Idempotency-Key": f"k{at}"}
            path, body = f"/v1/streams/{name}/observations", [{"y": y} for y in ys]
            found = await self._until(name, "POST", path, {200}, json=body, headers=headers)
            for answer, y in zip(found.json(), ys, strict=True):
                self._note(name, answer, y)
            await asyncio.sleep(0.5)

    async def _in_bulk(self, names: list[str]) -> None:
        """Post items of several streams; those that failed for the time being again."""
        for at in itertools.count():
            if self._stopping.is_set():
                return
            left = [
                {"stream": name, "key": f"k{at}-{i}", "y": self._label(name)}
                for name in names
                for i in range(3)
            ]
            while left:
                path = "/v1/observations"
                found = await self._until("bulk", "POST", path, {200}, json=left)
                again = []
                for item, answer in zip(left, found.json(), strict=True):
                    if answer["status"] == 200:
                        self._note(item["stream"], answer, item["y"])
                    elif answer["status"] in AGAIN or "earlier-item" in answer["type"]:
                        again.append(item)
                    else:
                        raise Contradiction(f"{item}: {answer}")
                left = again
                await asyncio.sleep(0.3)

    async def _again_and_again(self, prefix: str) -> None:
        """Make a stream, post to it, delete it; the next life begins at 0.

        What had no definite answer may still come to be applied, in a later life too: its name is
        not used again.
        """
        name = f"{prefix}-0"
        for life in itertools.count():
            if self._stopping.is_set():
                return
            path = f"/v1/streams/{name}"
            await self._until(name, "PUT", path, {200, 201}, json=SETTINGS)
            for at in range(5):
                headers, body = {"Idempotency-Key": f"{life}-{at}"}, {"y": self._label(name)}
                found = await self._until(
                    name, "POST", f"{path}/observations", {200}, json=body, headers=headers
                )
                if found.json()["seq"] != at:
                    raise Contradiction(f"{name}, life {life}: {found.json()} is not at {at}")
            await self._until(name, "DELETE", path, {204, 404})
            if name in self._unsure:
                name = f"{prefix}-{life + 1}"
            else:
                await self._until(name, "GET", path, {404})

    async def _reading(self, names: list[str]) -> None:
        """A read that begins after an acknowledgement knows of it."""
        while not self._stopping.is_set():
            name = self._rng.choice(names)
            known = len(self.answers[name])
            part = self._rng.choice(["", "/run-length", "/predictions", "/changepoints"])
            method = "POST" if part == "/predictions" else "GET"
            more = {"json": {}} if method == "POST" else {}
            found = await self._call(name, method, f"/v1/streams/{name}{part}", **more)
            if found is not None and found.status_code == 200:
                self.reads += 1
                seq = found.json()["seq"]
                behind = 1 if part == "/run-length" else 0
                if (seq if seq is not None else -1) + behind < known:
                    raise Contradiction(f"{name}{part}: {seq} after {known} were acknowledged")
            elif found is not None and found.status_code not in AGAIN:
                raise Contradiction(f"{method} {name}{part}: {found.text}")
            await asyncio.sleep(0.05)

    def _label(self, name: str) -> float:
        """A number that no other observation has, at one of two levels."""
        y = self._rng.gauss(4.0 * (int(time.monotonic()) // 7 % 2), 1.0)
        self.posted[name, y] += 1
        return y

    def _note(self, name: str, answer: dict[str, Any], y: float) -> None:
        seq = answer["seq"]
        if seq in self.labels[name]:
            raise Contradiction(f"{name}: {self.labels[name][seq]} and {y} are both at {seq}")
        self.labels[name][seq], self.answers[name][seq] = y, answer

    async def _until(self, name: str, method: str, path: str, wanted: set[int], **more):
        """Repeat a call until its answer is definite."""
        allowed = AGAIN | ({CORRUPT} if name in self.victims else set())
        while True:
            found = await self._call(name, method, path, **more)
            if found is not None and found.status_code in wanted:
                return found
            if found is not None and found.status_code not in allowed:
                raise Contradiction(f"{method} {path}: {found.status_code} {found.text}")
            if method in ("PUT", "DELETE"):  # without a key that would say what a repeat is
                self._unsure.add(name)
            await asyncio.sleep(self._rng.uniform(0.05, 0.3))

    async def _call(self, name: str, method: str, path: str, **more) -> httpx.Response | None:
        url, began, found = self._rng.choice(self._urls), time.monotonic(), None
        with contextlib.suppress(httpx.TransportError):
            found = await self._http.request(method, f"{url}{path}", **more)
        status = 0 if found is None else found.status_code
        self.calls.append(Call(f"{method} {path}", url, name, began, time.monotonic(), status))
        return found


# --- faults --------------------------------------------------------------------------------------


class Deployment:
    """The processes, what stands between them and the store, and the store."""

    proxies: dict[str, Proxy]

    def __init__(self, folder: Path, store: OneServer | Replicated) -> None:
        self.folder, self.store, self.store_url = folder, store, store.url
        self.proxies = {name: Proxy(store.url) for name in EVERYONE} if store.proxied else {}
        settings = {"MOCA_PARTITIONS": str(PARTITIONS), "MOCA_REQUEST_DEADLINE_S": str(DEADLINE_S)}
        self.processes = Processes(folder, settings)
        self.ports = {name: free_port() for name in APIS}
        began = time.monotonic()
        for name in EVERYONE:
            self.start(name)
        self.urls = [f"http://127.0.0.1:{port}" for port in self.ports.values()]
        try:
            for url in self.urls:
                wait_ready(url)
        except BaseException:
            self.close()
            raise
        self.start_s = time.monotonic() - began

    def start(self, name: str) -> None:
        path = ["--redis-url", self.proxies[name].url if self.proxies else self.store_url]
        if name in WORKERS:
            self.processes.start(name, "worker", "--worker-id", name, *path)
        else:
            self.processes.start(name, "api", "--port", str(self.ports[name]), *path)

    def close(self) -> None:
        self.processes.stop_all()
        for proxy in self.proxies.values():
            proxy.close()


class OneServer:
    """A Redis that appends to disk."""

    proxied = True

    def __init__(self, folder: Path) -> None:
        self.nodes, self.port = Nodes(server_or_skip(), folder), free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.nodes.start(self.port, *APPENDING)


class Replicated:
    """Several servers, of which replicas can take over without a loss.

    pairs: ports of each master and its replica, in the beginning. promote: makes the second of two
    ports the master of the first.
    """

    proxied = False

    def __init__(
        self, url: str, nodes: Nodes, pairs: list[tuple[int, int]], promote: Promotion
    ) -> None:
        self.url, self.nodes = url, nodes
        self._pairs, self._promote = pairs, promote

    def fail_over(self, rng: random.Random) -> str:
        """Make a replica the master, once it has all that was acknowledged."""
        at = rng.randrange(len(self._pairs))
        master, replica = self._pairs[at]
        self._promote(self.nodes, master, replica)
        self._pairs[at] = (replica, master)
        return f"fail over from {master} to {replica}"

    def drop_connections(self, rng: random.Random) -> str:
        """Close every connection to a server: answers that are on their way are lost."""
        port = rng.choice(list(self.nodes.running))
        self.nodes.client(port).execute_command("CLIENT", "KILL", "TYPE", "normal")
        return f"drop the connections to {port}"


Promotion = Callable[[Nodes, int, int], None]


def promote_in_cluster(nodes: Nodes, master: int, replica: int) -> None:
    nodes.client(replica).execute_command("CLUSTER FAILOVER")
    until(lambda: nodes.client(replica).execute_command("ROLE")[0] == "master")


def promote_by_sentinels(nodes: Nodes, master: int, replica: int) -> None:
    """Sentinels promote at once: writes pause until the replica has them all."""
    old, new = nodes.client(master), nodes.client(replica)
    old.execute_command("CLIENT", "PAUSE", 5000, "WRITE")
    until(lambda: old.info("replication")["master_repl_offset"] == _offset_of(new))
    sentinel = next(port for port, command in nodes.commands.items() if "--sentinel" in command)
    nodes.client(sentinel).execute_command("SENTINEL", "FAILOVER", "main")
    until(lambda: new.execute_command("ROLE")[0] == "master")
    until(lambda: old.execute_command("ROLE")[0] == "slave")


def _offset_of(replica: redis.Redis) -> int:
    return int(replica.info("replication")["slave_repl_offset"])


@contextlib.contextmanager
def stores(topology: str, folder: Path) -> Iterator[OneServer | Replicated]:
    """Run the store of a deployment."""
    if topology == "server":
        store = OneServer(folder)
        try:
            yield store
        finally:
            store.nodes.stop_all()
    elif topology == "sentinel":
        with running_sentinels() as (url, nodes, master, replica):
            yield Replicated(url, nodes, [(master, replica)], promote_by_sentinels)
    else:
        with running_cluster(masters=3, replicas=1) as (url, nodes):
            pairs = _pairs(nodes)
            yield Replicated(url, nodes, pairs, promote_in_cluster)


def _pairs(nodes: Nodes) -> list[tuple[int, int]]:
    """Ports of each master and its replica."""
    roles = {port: nodes.client(port).execute_command("ROLE") for port in nodes.running}
    return [(int(role[2]), port) for port, role in roles.items() if role[0] == "slave"]


Heal = Callable[[], None]
_put_back = """
local read, write = 'HGET', 'HSET'
if redis.call('TYPE', KEYS[1]).ok == 'list' then read, write = 'LINDEX', 'LSET' end
if redis.call(read, KEYS[1], ARGV[1]) == ARGV[2] then
  return redis.call(write, KEYS[1], ARGV[1], ARGV[3])
end
"""


class Pause(NamedTuple):
    """An API was stopped: it answers nobody, whatever its bounds are."""

    url: str
    began: float
    ended: float


class Faults:
    """One fault of each kind: begins it, and returns what ends it.

    What a killed worker owned, and what was stolen, is free once the lease ends: at `leases_end`.
    """

    def __init__(self, deployment: Deployment, victims: list[str], rng: random.Random) -> None:
        self._at, self._victims, self._rng = deployment, victims, rng
        self.begun: list[tuple[float, str, Heal]] = []  # until when, what, and its end
        self.leases_end = 0.0
        self.pauses: list[Pause] = []
        self.kinds = [self.kill, self.kill_thrice, self.pause, self.steal]
        if isinstance(deployment.store, OneServer):
            self.kinds += [self.stop_store, self.kill_store, self.flip]
            self.kinds += [self.lose, self.cut, self.slow, self.refuse]
        else:
            self.kinds += [self.fail_over, self.drop]

    def wait(self, seconds: float) -> None:
        """Wait, and end the faults whose time is over meanwhile."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))
            for due in [each for each in self.begun if each[0] < time.monotonic()]:
                self.begun.remove(due)
                due[2]()

    def kill(self) -> tuple[str, Heal]:
        """SIGKILL a process, and start it again."""
        name = self._rng.choice([n for n in EVERYONE if n in self._at.processes.running])
        self._kill(name)
        return f"kill {name}", lambda: self._at.start(name)

    def kill_thrice(self) -> tuple[str, Heal]:
        """SIGKILL a worker as soon as it has begun, three times."""
        name = self._rng.choice(WORKERS)
        if name not in self._at.processes.running:
            return "nothing", lambda: None
        for _ in range(3):
            self._kill(name)
            self._at.start(name)
            self.wait(self._rng.uniform(2.5, 4))
        return f"kill {name} three times", lambda: None

    def pause(self) -> tuple[str, Heal]:
        """SIGSTOP a process, perhaps past its lease."""
        name = self._rng.choice([n for n in EVERYONE if n in self._at.processes.running])
        process = self._at.processes.running[name]
        process.send_signal(signal.SIGSTOP)
        began = time.monotonic()

        def heal() -> None:
            process.send_signal(signal.SIGCONT)
            if name in APIS:
                url = f"http://127.0.0.1:{self._at.ports[name]}"
                self.pauses.append(Pause(url, began, time.monotonic()))

        return f"pause {name}", heal

    def stop_store(self) -> tuple[str, Heal]:
        process = self._server.nodes.running[self._server.port]
        process.send_signal(signal.SIGSTOP)
        return "stop the store", lambda: process.send_signal(signal.SIGCONT)

    def kill_store(self) -> tuple[str, Heal]:
        """SIGKILL the store: what it acknowledged it has given to the system."""
        nodes, port = self._server.nodes, self._server.port
        nodes.kill(port)
        return "kill the store", lambda: nodes.again(port)

    def fail_over(self) -> tuple[str, Heal]:
        """Have a replica take over, as planned: nothing that was acknowledged is lost."""
        return self._replicated.fail_over(self._rng), lambda: None

    def drop(self) -> tuple[str, Heal]:
        """Lose replies of one server."""
        return self._replicated.drop_connections(self._rng), lambda: None

    @property
    def _server(self) -> OneServer:
        assert isinstance(self._at.store, OneServer)
        return self._at.store

    @property
    def _replicated(self) -> Replicated:
        assert isinstance(self._at.store, Replicated)
        return self._at.store

    def lose(self) -> tuple[str, Heal]:
        """Lose all bytes of one direction."""
        direction = self._rng.choice([REQUESTS, REPLIES])
        return self._with_some(f"lose {direction} of", lambda proxy: proxy.lose(direction))

    def cut(self) -> tuple[str, Heal]:
        """Cut replies in the middle."""
        return self._with_some("cut replies to", lambda proxy: proxy.cut())

    def slow(self) -> tuple[str, Heal]:
        delay_s = self._rng.uniform(0.02, 0.2)
        return self._with_some("slow", lambda proxy: proxy.slow(delay_s, 100_000))

    def refuse(self) -> tuple[str, Heal]:
        return self._with_some("refuse", lambda proxy: proxy.refuse())

    def steal(self) -> tuple[str, Heal]:
        """Replace the lease of a partition by an unknown one."""
        partition = self._rng.randrange(PARTITIONS)
        with self._store() as client:
            px = self._rng.randrange(50, 3000)
            client.set(keys.lease(partition), "thief/0", px=px)
        self.leases_end = max(self.leases_end, time.monotonic() + px / 1000)
        return f"steal partition {partition}", lambda: None

    def flip(self) -> tuple[str, Heal]:
        """Flip a bit of what is stored of a stream, and have it loaded."""
        name = self._rng.choice(self._victims)
        partition = partition_of(name, PARTITIONS)
        with self._store() as client:
            key = self._rng.choice([
                keys.tail(partition, name), keys.idempotency(partition, name),
                keys.events(partition, name), keys.history(partition, name),
                keys.checkpoint(partition, name), keys.heads(partition), keys.hindsight(partition),
            ])  # fmt: skip
            field: bytes | int = name.encode()
            if key == keys.heads(partition):
                field = self._rng.choice([name.encode(), keys.position_field(name.encode())])
            elif key == keys.tail(partition, name):
                field = self._rng.randrange(max(1, client.llen(key)))
            elif key != keys.hindsight(partition):
                fields = client.hkeys(key)
                if not fields:
                    return "nothing", lambda: None
                field = self._rng.choice(fields)
            listed = isinstance(field, int)
            good = client.lindex(key, field) if listed else client.hget(key, field)
            if not good:
                return "nothing", lambda: None
            at = self._rng.randrange(len(good))
            bad = good[:at] + bytes([good[at] ^ 1 << self._rng.randrange(8)]) + good[at + 1 :]
            client.eval(_put_back, 1, key, field, good, bad)
            client.set(keys.lease(partition), "thief/0", px=200)

        def heal() -> None:
            with self._store() as client:
                client.eval(_put_back, 1, key, field, bad, good)
                client.set(keys.lease(partition), "thief/0", px=50)

        return f"flip a bit of {key.rsplit(':', 2)[1]} of {name}", heal

    def _kill(self, name: str) -> None:
        self._at.processes.kill(name)
        if name in WORKERS:
            self.leases_end = time.monotonic() + LEASE_S

    def _with_some(self, what: str, hurt: Callable[[Proxy], None]) -> tuple[str, Heal]:
        names = self._rng.sample(EVERYONE, self._rng.choice([1, 1, 2]))
        proxies = [self._at.proxies[name] for name in names]
        for proxy in proxies:
            hurt(proxy)
        return f"{what} {' and '.join(names)}", lambda: _heal(proxies)

    def _store(self):
        return connect(self._at.store_url)


def _heal(proxies: list[Proxy]) -> None:
    for proxy in proxies:
        proxy.heal()


def rage(faults: Faults, clients: Clients, seconds: float, rng: random.Random, say) -> Counter[str]:
    """Begin faults at random, two at a time at most, until the time is over; all are ended."""
    count: Counter[str] = Counter()
    end = time.monotonic() + seconds
    begun = faults.begun
    store_is_hit = False
    while time.monotonic() < end:
        clients.raise_failure()
        kind = rng.choice(faults.kinds)
        on_store = kind.__name__ in ("stop_store", "kill_store", "flip", "steal", "fail_over")
        if len(begun) < 2 and not (on_store and store_is_hit):
            what, heal = kind()
            count[kind.__name__] += what != "nothing"
            lasts = rng.choice([0.3, 1, 2, 4, 6, 8])
            begun.append((time.monotonic() + lasts, what, heal))
            store_is_hit |= on_store
            say(f"{what}, for {lasts:g} s")
        faults.wait(rng.uniform(0.5, 3))
        store_is_hit = any("store" in what or "flip" in what for _, what, _ in begun)
    for _, _, heal in begun:
        heal()
    return count


# --- the sequential model ------------------------------------------------------------------------


def compare(clients: Clients, url: str) -> tuple[int, float]:
    """Hold every stream against a calm one; returns answers compared and the worst difference."""
    for (name, y), times in clients.posted.items():
        if times != 1 and not name.startswith("deleted"):
            raise Contradiction(f"the harness posted {y} twice to {name}")
    with httpx.Client(base_url=url, timeout=120) as http, ThreadPoolExecutor(8) as threads:
        each = list(threads.map(lambda name: _compare_stream(clients, http, name), clients.labels))
    return sum(compared for compared, _ in each), max(worst for _, worst in each)


def _compare_stream(clients: Clients, http: httpx.Client, name: str) -> tuple[int, float]:
    labels = clients.labels[name]
    calm = _twin(name, len(labels))
    if sorted(labels) != list(range(len(labels))):
        raise Contradiction(f"{name}: positions {sorted(labels)[:50]}... of {len(labels)}")
    ordered = [labels[seq] for seq in range(len(labels))]
    _calmly(lambda: http.put(f"/v1/streams/{calm}", json=SETTINGS))
    answers: list[dict[str, Any]] = []
    for i in range(0, len(ordered), 200):
        body = [{"y": y} for y in ordered[i : i + 200]]
        key = {"Idempotency-Key": f"k{i}"}
        path = f"/v1/streams/{calm}/observations"
        answers += _calmly(functools.partial(http.post, path, json=body, headers=key))
    worst = _compare_state(http, name, calm)
    for seq, answer in enumerate(answers):
        worst = max(worst, difference(clients.answers[name][seq], answer, name))
    return len(answers), worst


def _twin(name: str, count: int) -> str:
    """A name whose stream looks for seasons after the same observations, of so many.

    These depend on the name; a stream that found a season has other moments of its labels.
    """
    phase = season.phase_of(name)
    names = (f"calm-{i}-{name}" for i in itertools.count())
    return next(twin for twin in names if _alike(phase, season.phase_of(twin), count))


def _alike(one: float, other: float, count: int) -> bool:
    if abs(one - other) > PHASES_APART:
        return False
    seen = 0
    while seen < count:
        if season.next_search(seen, one) != season.next_search(seen, other):
            return False
        seen = season.next_search(seen, one)
    return True


def _calmly(ask: Callable[[], httpx.Response]) -> Any:
    """Return the answer to a request, made again while a busy machine has none in time."""
    end = time.monotonic() + PATIENCE_S
    while (answer := ask()).status_code in AGAIN and time.monotonic() < end:
        time.sleep(0.2)
    answer.raise_for_status()
    return answer.json()


def _compare_state(http: httpx.Client, name: str, calm: str) -> float:
    """What can be read of both streams; what only the one has seen, such as times, aside."""
    worst = 0.0
    for part in ("/run-length", "/changepoints", "/history?limit=1000&detail=full"):
        mine, other = (
            _calmly(functools.partial(http.get, f"/v1/streams/{each}{part}"))
            for each in (name, calm)
        )
        for each in (mine, other):  # computed at other times, of fewer observations
            each.pop("hindsight", None)
            each.pop("segmentation", None)
        worst = max(worst, difference(mine, other, name + part))
    return worst


def difference(mine: Any, other: Any, where: str) -> float:
    """Largest difference of numbers, relative above 1; anything else that differs is raised."""
    if isinstance(mine, dict) and isinstance(other, dict):
        ignored = {"stream", "duplicate", "at", "status"}
        if mine.get("start_arrived") is True and other.get("start_arrived") is True:
            ignored.add("start_time")  # when each of them arrived
        if mine.keys() - ignored != other.keys() - ignored:
            raise Contradiction(f"{where}: {mine} and {other}")
        each = [difference(mine[k], other[k], f"{where}.{k}") for k in mine.keys() - ignored]
        return max(each, default=0.0)
    if isinstance(mine, list) and isinstance(other, list) and len(mine) == len(other):
        pairs = enumerate(zip(mine, other, strict=True))
        return max((difference(a, b, f"{where}[{i}]") for i, (a, b) in pairs), default=0.0)
    if isinstance(mine, float) and isinstance(other, float | int):
        found = abs(mine - other) / max(1.0, abs(other))
        if found > (QUANTILE_TOLERANCE if ".quantiles." in where else TOLERANCE):
            raise Contradiction(f"{where}: {mine} and {other}")
        return found
    if mine != other:
        raise Contradiction(f"{where}: {mine} and {other}")
    return 0.0


class Result(NamedTuple):
    """What a storm came to."""

    faults: Counter[str]
    calls: int
    again: Counter[int]  # calls that were repeated, by status
    reads: int
    answers: int
    worst: float  # difference from the sequential model
    longest_wait_s: float  # but for the time in which the API itself was stopped
    healed_s: float  # from the end of the last fault, and of its lease, until all is served
    start_s: float  # in which this machine, as busy as it is, starts all processes

    @property
    def served_in_time(self) -> bool:
        """Whether nobody waited too long: what the last fault killed has to start as well."""
        return (
            self.longest_wait_s < LONGEST_WAIT_S + self.start_s
            and self.healed_s < HEALED_WITHIN_S + self.start_s
        )


def waited(call: Call, pauses: list[Pause]) -> float:
    """Seconds of a call, without those in which its API was stopped."""
    stopped = (
        min(call.ended, each.ended) - max(call.began, each.began)
        for each in pauses
        if each.url == call.url
    )
    return call.seconds - sum(each for each in stopped if each > 0)


def healed(clients: Clients, moment: float) -> float:
    """Seconds from a moment until no call is refused any more."""
    refused = [c.ended for c in clients.calls if c.status in AGAIN | {CORRUPT} and c.ended > moment]
    waiting = [c.ended for c in clients.calls if c.began <= moment < c.ended]
    return max((at - moment for at in refused + waiting), default=0.0)


def storm(topology: str, seed: int, seconds: float, folder: Path, say=print) -> Result:
    """Run one on a store of this topology; raises Contradiction."""
    with stores(topology, folder) as store:
        return _storm(Deployment(folder, store), random.Random(seed), seed, seconds, say)


def _storm(
    deployment: Deployment,
    rng: random.Random,
    seed: int,
    seconds: float,
    say: Callable[[str], None],
) -> Result:
    try:
        clients = Clients(deployment.urls, seed)
        time.sleep(2)
        faults = Faults(deployment, clients.victims, rng)
        count = rage(faults, clients, seconds, rng, say)
        moment = max(time.monotonic(), faults.leases_end)
        time.sleep(moment - time.monotonic() + CALM_S)
        clients.stop()
        say("comparing")
        compared, worst = compare(clients, deployment.urls[0])
        with connect(deployment.store_url) as client:
            aside = {p: client.hkeys(keys.quarantine(p)) for p in range(PARTITIONS)}
        say(f"set aside: { {p: found for p, found in aside.items() if found} }")
    finally:
        deployment.close()
    again = Counter(c.status for c in clients.calls if c.status in AGAIN | {CORRUPT})
    waits = {call: waited(call, faults.pauses) for call in clients.calls}
    longest = sorted(waits, key=lambda call: -waits[call])
    for call in longest[:5]:
        ago = moment - call.began
        say(f"{call.what}: {call.status} after {call.seconds:.1f} s, {ago:.0f} s before the end")
    return Result(
        count, len(clients.calls), again, clients.reads, compared, worst,
        waits[longest[0]], healed(clients, moment), deployment.start_s,
    )  # fmt: skip


def measure(topology: str, folder: Path) -> dict[str, Any]:
    """A minute and a half of faults; fails where an answer contradicts the sequential model."""
    result = storm(topology, 1, 90, folder, say=lambda text: None)
    return {
        "faults": sum(result.faults.values()),
        "answers compared": result.answers,
        "worst difference": result.worst,
        "longest wait, s": result.longest_wait_s,
        "healed after, s": result.healed_s,
    }


def judge(now: dict[str, Any], frozen: dict[str, Any]) -> list[Row]:
    """Contradictions have failed before; the rest is shown, as the machine has a part in it."""
    ok = now["answers compared"] > 1000 and now["worst difference"] <= QUANTILE_TOLERANCE
    contradictions = Row("contradictions", "0", "0", ok)
    return [contradictions, *shown(now, frozen)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology", choices=TOPOLOGIES, default="server")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--keep", type=Path, help="folder for data and logs, kept afterwards")
    given = parser.parse_args()
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    folder = given.keep or Path(tempfile.mkdtemp(prefix="storm-"))
    folder.mkdir(parents=True, exist_ok=True)
    result = storm(given.topology, given.seed, given.seconds, folder, say)
    for name, value in result._asdict().items():
        print(f"{name:16} {value}")
    raise SystemExit(0 if result.served_in_time else 1)


if __name__ == "__main__":
    main()
