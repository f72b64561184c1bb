"""Real clusters and sentinels of redis-server processes, on loopback and in temporary folders."""

import contextlib
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
import redis
from redis.exceptions import RedisError

from tests.ports import free_ports


def server_or_skip() -> str:
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server on this machine")
    return binary


class Nodes:
    """Server processes by port; each may be killed and started again on its data."""

    def __init__(self, binary: str, folder: Path) -> None:
        self.binary, self.folder = binary, folder
        self.commands: dict[int, list[str]] = {}
        self.running: dict[int, subprocess.Popen] = {}

    def start(self, port: int, *options: str, program: str = "") -> None:
        folder = self.folder / str(port)
        folder.mkdir(exist_ok=True)
        common = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
        self.commands[port] = [program or self.binary, *options, *common]
        self.again(port)

    def again(self, port: int) -> None:
        log = (self.folder / f"{port}.log").open("ab")
        with log:
            self.running[port] = subprocess.Popen(
                self.commands[port], stdout=log, stderr=subprocess.STDOUT
            )
        _until(lambda: self.client(port).ping(), f"the server at port {port}")

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


def _until(check, what: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(RedisError):
            if check():
                return
        time.sleep(0.05)
    raise AssertionError(f"{what} was not ready after {seconds} s")


@contextlib.contextmanager
def running_nodes():
    folder = Path(tempfile.mkdtemp(prefix="moca-"))
    nodes = Nodes(server_or_skip(), folder)
    try:
        yield nodes
    finally:
        nodes.stop_all()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def running_cluster(masters: int = 3, replicas: int = 0):
    """Run a cluster; yields its address and its nodes, masters first."""
    with running_nodes() as nodes:
        ports = free_ports(masters * (1 + replicas))
        for port in ports:
            nodes.start(
                port,
                *("--cluster-enabled", "yes", "--cluster-node-timeout", "2000"),
                *("--appendonly", "yes", "--save", "", "--maxmemory-policy", "noeviction"),
            )
        command = ["redis-cli", "--cluster", "create", *(f"127.0.0.1:{p}" for p in ports)]
        command += ["--cluster-replicas", str(replicas), "--cluster-yes"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)
        for port in ports:
            _until(
                lambda p=port: (
                    "cluster_state:ok" in str(nodes.client(p).execute_command("CLUSTER INFO"))
                    or nodes.client(p).execute_command("CLUSTER INFO").get("cluster_state") == "ok"
                ),
                f"the cluster's node {port}",
            )
        yield "redis+cluster://" + ",".join(f"127.0.0.1:{p}" for p in ports[:masters]), nodes
