"""A deployment that is hurt on purpose: two APIs, two workers, a store, and the faults of each.

The store is a Redis that appends to disk, with a proxy between it and each process; or a master
with a replica and three sentinels; or a cluster of three masters with replicas.
"""

from __future__ import annotations

import contextlib
import random
import resource
import signal
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import redis

from service.settings import Settings
from service.store import keys
from service.store.connection import connect
from service.store.keys import partition_of
from tests.clusters import Nodes, OneServer, running_cluster, running_nodes, running_sentinels
from tests.e2e.deployment import wait_ready
from tests.faults import REPLIES, REQUESTS, Proxy
from tests.ports import free_port
from tests.referees.forked import ForkedProcesses
from tests.waiting import until

TOPOLOGIES = ("server", "sentinel", "cluster")
PARTITIONS = 8
APIS = ("api-a", "api-b")
WORKERS = ("worker-a", "worker-b")
EVERYONE = APIS + WORKERS
AGAIN_S = (0.4, 1.5)  # from the start of a worker to its next kill
FAIL_OVER_S = 6.0  # until a replica is asked again to take over: it gives up after 5 s
FULL = 64  # bytes of a file of the store, at most, while its disk is full


class Deployment:
    """The processes, what stands between them and the store, and the store."""

    proxies: dict[str, Proxy]

    def __init__(self, folder: Path, store: OneServer | Replicated, **settings: Any) -> None:
        """settings: of its processes, beside those of the store and the ports."""
        self.folder, self.store, self.store_url = folder, store, store.url
        proxied = isinstance(store, OneServer)
        self.proxies = {name: Proxy(store.url) for name in EVERYONE} if proxied else {}
        self.settings = Settings(
            partitions=PARTITIONS, models_dir=folder / "models", max_wait_s=0, **settings
        )
        self.processes = ForkedProcesses(folder)
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
        """Start one of its processes."""
        url = self.proxies[name].url if self.proxies else self.store_url
        own = {"redis_url": url, "port": self.ports.get(name, 0)}
        self.processes.start(name, self.settings.model_copy(update=own))

    def close(self) -> None:
        """End everything but the store."""
        self.processes.close()
        for proxy in self.proxies.values():
            proxy.close()


class Replicated:
    """Several servers, of which replicas can take over without a loss.

    pairs: ports of each master and its replica, in the beginning. promote: makes the second of two
    ports the master of the first.
    """

    def __init__(
        self, url: str, nodes: Nodes, pairs: list[tuple[int, int]], promote: Promotion
    ) -> None:
        self.url, self.nodes = url, nodes
        self._pairs, self._promote = pairs, promote

    def fail_over(self, rng: random.Random) -> str:
        """Make a replica the master, once it has all that was acknowledged."""
        at = rng.randrange(len(self._pairs))
        master, replica = self._pairs[at]
        until(lambda: _appends(self.nodes.client(replica)))
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
    """The replica gives up where its master, on a busy machine, does not pause in time."""
    new = nodes.client(replica)
    again = 0.0

    def promoted() -> bool:
        nonlocal again
        if new.execute_command("ROLE")[0] == "master":
            return True
        if time.monotonic() > again:
            again = time.monotonic() + FAIL_OVER_S
            new.execute_command("CLUSTER FAILOVER")
        return False

    until(promoted)


def promote_by_sentinels(nodes: Nodes, master: int, replica: int) -> None:
    """Sentinels promote at once: writes pause until the replica has them all."""
    old, new = nodes.client(master), nodes.client(replica)
    old.execute_command("CLIENT", "PAUSE", 5000, "WRITE")
    until(lambda: old.info("replication")["master_repl_offset"] == _offset_of(new))
    sentinel = next(port for port, command in nodes.commands.items() if "--sentinel" in command)
    nodes.client(sentinel).execute_command("SENTINEL", "FAILOVER", "main")
    until(lambda: new.execute_command("ROLE")[0] == "master")
    until(lambda: old.execute_command("ROLE")[0] == "slave")


def _appends(replica: redis.Redis) -> bool:
    """Whether a replica appends what it gets to its file.

    Not while it takes its master's data over: what it gets then is in no file that `LogCopy` reads.
    """
    found = replica.info("persistence")
    rewriting = found["aof_rewrite_in_progress"] or found["aof_rewrite_scheduled"]
    return "aof_buffer_length" in found and not rewriting


def _offset_of(replica: redis.Redis) -> int:
    return int(replica.info("replication")["slave_repl_offset"])


@contextlib.contextmanager
def stores(topology: str) -> Iterator[OneServer | Replicated]:
    """Run the store of a deployment."""
    if topology == "server":
        with running_nodes() as nodes:
            yield OneServer(nodes)
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


class Fault(NamedTuple):
    """A fault that was begun. heal: ends it."""

    what: str
    heal: Callable[[], None]


NOTHING = Fault("nothing", lambda: None)  # there was no place for it
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
    """Begins a fault of each kind, and returns what it is and what ends it.

    One of those `on_store` is begun at a time: together they would lose what was acknowledged.
    What a killed worker owned, and what was stolen, is free once the lease ends: at `leases_end`.
    """

    def __init__(
        self, deployment: Deployment, rng: random.Random, victims: Collection[str] = ()
    ) -> None:
        """victims: streams whose stored bytes may be flipped."""
        self._at, self._rng, self._victims = deployment, rng, list(victims)
        self._hurt: set[str] = set()  # processes that do not run as they should
        self.leases_end = 0.0
        self.pauses: list[Pause] = []
        self.of_processes = [self.kill, self.kill_thrice, self.terminate, self.pause]
        if isinstance(deployment.store, OneServer):
            self.of_paths = [self.lose, self.cut, self.slow, self.refuse]
            self.on_store = [self.steal, self.stop_store, self.kill_store, self.fill_disk]
        else:
            self.of_paths = [self.drop]
            self.on_store = [self.steal, self.fail_over]
        if victims:
            self.on_store += [self.flip]

    def kill(self) -> Fault:
        """SIGKILL a process, and start it again."""
        name = self._one_of(EVERYONE)
        if name is None:
            return NOTHING
        self._kill(name)

        def heal() -> None:
            self._at.start(name)
            self._hurt.discard(name)

        return Fault(f"kill {name}", heal)

    def kill_thrice(self) -> Fault:
        """SIGKILL a worker as soon as it has begun, three times."""
        name = self._one_of(WORKERS)
        if name is None:
            return NOTHING
        for _ in range(3):
            self._kill(name)
            self._at.start(name)
            time.sleep(self._rng.uniform(*AGAIN_S))
        self._hurt.discard(name)
        return Fault(f"kill {name} three times", lambda: None)

    def terminate(self) -> Fault:
        """SIGTERM a process: a worker hands over what it owns. It is started again."""
        name = self._one_of(EVERYONE)
        if name is None:
            return NOTHING
        self._at.processes.signal(name, signal.SIGTERM)

        def heal() -> None:
            self._at.processes.stop(name)
            self._at.start(name)
            self._hurt.discard(name)

        return Fault(f"terminate {name}", heal)

    def pause(self) -> Fault:
        """SIGSTOP a process, perhaps past its lease."""
        name = self._one_of(EVERYONE)
        if name is None:
            return NOTHING
        self._at.processes.signal(name, signal.SIGSTOP)
        began = time.monotonic()

        def heal() -> None:
            self._at.processes.signal(name, signal.SIGCONT)
            self._hurt.discard(name)
            if name in APIS:
                url = f"http://127.0.0.1:{self._at.ports[name]}"
                self.pauses.append(Pause(url, began, time.monotonic()))

        return Fault(f"pause {name}", heal)

    def stop_store(self) -> Fault:
        """SIGSTOP the store: connections stay, and nothing answers."""
        process = self._server.process
        process.send_signal(signal.SIGSTOP)
        return Fault("stop the store", lambda: process.send_signal(signal.SIGCONT))

    def kill_store(self) -> Fault:
        """SIGKILL the store: what it acknowledged it has given to the system."""
        self._server.stop()
        return Fault("kill the store", self._server.start)

    def fill_disk(self) -> Fault:
        """Have no room for what the store appends."""
        self._server.limit_files(FULL)
        return Fault("fill the disk", lambda: self._server.limit_files(resource.RLIM_INFINITY))

    def fail_over(self) -> Fault:
        """Have a replica take over, as planned: nothing that was acknowledged is lost."""
        return Fault(self._replicated.fail_over(self._rng), lambda: None)

    def drop(self) -> Fault:
        """Lose replies of one server."""
        return Fault(self._replicated.drop_connections(self._rng), lambda: None)

    @property
    def _server(self) -> OneServer:
        assert isinstance(self._at.store, OneServer)
        return self._at.store

    @property
    def _replicated(self) -> Replicated:
        assert isinstance(self._at.store, Replicated)
        return self._at.store

    def lose(self) -> Fault:
        """Lose all bytes of one direction."""
        direction = self._rng.choice([REQUESTS, REPLIES])
        return self._with_some(f"lose {direction} of", lambda proxy: proxy.lose(direction))

    def cut(self) -> Fault:
        """Cut replies in the middle."""
        return self._with_some("cut replies to", lambda proxy: proxy.cut())

    def slow(self) -> Fault:
        delay_s = self._rng.uniform(0.02, 0.2)
        return self._with_some("slow", lambda proxy: proxy.slow(delay_s, 100_000))

    def refuse(self) -> Fault:
        return self._with_some("refuse", lambda proxy: proxy.refuse())

    def steal(self) -> Fault:
        """Replace the lease of a partition by an unknown one."""
        partition = self._rng.randrange(PARTITIONS)
        with self._store() as client:
            px = self._rng.randrange(50, 3000)
            client.set(keys.lease(partition), "thief/0", px=px)
        self.leases_end = max(self.leases_end, time.monotonic() + px / 1000)
        return Fault(f"steal partition {partition}", lambda: None)

    def flip(self) -> Fault:
        """Flip a bit of what is stored of a stream, and have it loaded."""
        name = self._rng.choice(self._victims)
        partition = partition_of(name, PARTITIONS)
        with self._store() as client:
            key = self._rng.choice([
                keys.tail(partition, name), keys.idempotency(partition, name),
                keys.events(partition, name),
                keys.checkpoints(partition), keys.heads(partition), keys.hindsight(partition),
            ])  # fmt: skip
            field: bytes | int = name.encode()
            if key == keys.heads(partition):
                field = self._rng.choice([name.encode(), keys.settled_field(name.encode())])
            elif key == keys.tail(partition, name):
                field = self._rng.randrange(max(1, client.llen(key)))
            elif key not in (keys.hindsight(partition), keys.checkpoints(partition)):
                fields = client.hkeys(key)
                if not fields:
                    return NOTHING
                field = self._rng.choice(fields)
            listed = isinstance(field, int)
            good = client.lindex(key, field) if listed else client.hget(key, field)
            if not good:
                return NOTHING
            at = self._rng.randrange(len(good))
            bad = good[:at] + bytes([good[at] ^ 1 << self._rng.randrange(8)]) + good[at + 1 :]
            client.eval(_put_back, 1, key, field, good, bad)
            client.set(keys.lease(partition), "thief/0", px=200)

        def heal() -> None:
            with self._store() as client:
                client.eval(_put_back, 1, key, field, bad, good)
                client.set(keys.lease(partition), "thief/0", px=50)

        return Fault(f"flip a bit of {key.rsplit(':', 2)[1]} of {name}", heal)

    def _one_of(self, names: Collection[str]) -> str | None:
        """Choose a process that runs as it should, if any does; it is not chosen again."""
        well = [name for name in names if name not in self._hurt]
        name = self._rng.choice(well) if well else None
        self._hurt |= {name} if name else set()
        return name

    def _kill(self, name: str) -> None:
        self._at.processes.kill(name)
        if name in WORKERS:
            self.leases_end = time.monotonic() + self._at.settings.lease_ttl_ms / 1000

    def _with_some(self, what: str, hurt: Callable[[Proxy], None]) -> Fault:
        names = self._rng.sample(EVERYONE, self._rng.choice([1, 1, 2]))
        proxies = [self._at.proxies[name] for name in names]
        for proxy in proxies:
            hurt(proxy)
        return Fault(f"{what} {' and '.join(names)}", lambda: _heal(proxies))

    def _store(self):
        return connect(self._at.store_url)


def _heal(proxies: list[Proxy]) -> None:
    for proxy in proxies:
        proxy.heal()
