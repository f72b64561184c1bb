"""Stores behind sentinels: a client that asks for the master anew, and the chart's own script."""

import asyncio
import contextlib
import os
import re
import secrets
import shutil
import subprocess
from pathlib import Path

import pytest
import redis

from service.store.address import with_password
from service.store.connection import check_server, connect, connect_async
from tests.clusters import running_sentinels, server_or_skip
from tests.ports import free_ports
from tests.waiting import until

pytestmark = pytest.mark.slow
FILES = Path(__file__).parents[2] / "deploy" / "helm" / "moca" / "files"
SCRIPT = FILES / "start.sh"
PASSWORD = 'of "a\\ test'
PODS = (0, 1, 2)


def works(call):
    """A check that is false while the store cannot be reached."""

    def check():
        try:
            return call()
        except (redis.RedisError, ValueError):
            return False

    return check


async def test_the_new_master_is_found_and_nothing_is_sent_twice():
    with running_sentinels() as (url, nodes, master, replica), connect(url) as client:
        waiting = connect_async(url)
        check_server(client)
        assert client.info("server")["tcp_port"] == master
        client.set("a", "1")
        until(lambda: client.wait(1, 500) == 1)
        assert await waiting.get("a") == b"1"
        nodes.kill(master)
        with pytest.raises(redis.ConnectionError):
            client.set("b", "2")  # never sent again by itself
        await asyncio.to_thread(until, works(lambda: client.set("b", "2")))
        assert client.info("server")["tcp_port"] == replica
        assert client.get("a") == b"1"
        with contextlib.suppress(redis.ConnectionError):  # of the old one, unless it is known
            await waiting.get("b")
        assert await waiting.get("b") == b"2"
        await waiting.aclose()


class Pods:
    """Redis and sentinel processes by pod, whose volumes outlive them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.net = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(250)}"
        self.port, self.sentinel_port = free_ports(2)
        self.running: dict[int, list[subprocess.Popen]] = {}
        for pod in PODS:
            self._prepare(pod)

    @property
    def url(self) -> str:
        places = ",".join(f"{self.net}.{pod + 1}:{self.sentinel_port}" for pod in PODS)
        return with_password(f"redis+sentinel://{places}/moca/0", PASSWORD)

    def _prepare(self, pod: int) -> None:
        """Write the script with this pod's folders, ports and address in place of a container's."""
        home = self.folder / str(pod)
        for name in ("data", "tmp", "etc", "secrets"):
            (home / name).mkdir(parents=True)
        (home / "secrets" / "redis_password").write_text(f" {PASSWORD}\n")
        config = (FILES / "redis.conf").read_text()
        config = config.replace("bind * -::*", f"bind {self.net}.{pod + 1}")
        config = f"{config.replace('dir /data', f'dir {home}/data')}\nport {self.port}\n"
        (home / "etc" / "redis.conf").write_text(config)
        text = SCRIPT.read_text()
        for pattern, here in (
            *((rf"\$name-{i}\.\$name", f"{self.net}.{i + 1}") for i in PODS),
            (r"\$pod\.\$name", f"{self.net}.{pod + 1}"),
            (r"\$name-\[0-9\]\*\\\.\$name", r"127\.[0-9.]*"),
            (r"\b26379\b", str(self.sentinel_port)),
            (r"\b6379\b", str(self.port)),
            (r"(?<=[= ])/tmp\b", f"{home}/tmp"),
            (r"(?<=[= ])/data\b", f"{home}/data"),
            (r"/etc/moca/", f"{home}/etc/"),
            (r"/run/secrets/moca/", f"{home}/secrets/"),
            (r"--sentinel$", f"--sentinel --bind {self.net}.{pod + 1}"),
        ):
            text, found = re.subn(pattern, here.replace("\\", "\\\\"), text, flags=re.MULTILINE)
            assert found, pattern
        (home / "start.sh").write_text(text)

    def start(self, pod: int) -> None:
        home = self.folder / str(pod)
        for file in (home / "tmp").iterdir():  # as after a restart of the container
            file.unlink()
        started = []
        for kind in ("redis", "sentinel"):
            with (home / f"{kind}.log").open("ab") as log:
                command = ["sh", str(home / "start.sh"), kind]
                started.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
        self.running[pod] = started

    def kill(self, pod: int) -> None:
        for process in self.running.pop(pod):
            process.kill()
            process.wait()

    def client(self, pod: int) -> redis.Redis:
        host = f"{self.net}.{pod + 1}"
        return redis.Redis(host, self.port, password=PASSWORD, decode_responses=True)

    def role(self, pod: int) -> str:
        with self.client(pod) as client:
            return client.info("replication")["role"]

    def known_replicas(self, pod: int) -> int:
        """Replicas that a sentinel knows of, which it looks for every 10 s."""
        host = f"{self.net}.{pod + 1}"
        with redis.Redis(host, self.sentinel_port, decode_responses=True) as client:
            return client.sentinel_master("moca")["num-slaves"]

    def master(self) -> int:
        (found,) = (pod for pod in self.running if self.role(pod) == "master")
        return found


@pytest.fixture
def pods(tmp_path):
    server_or_skip()
    if os.uname().sysname != "Linux" or shutil.which("redis-cli") is None:
        pytest.skip("needs redis-cli, and every address of 127.0.0.0/8")
    found = Pods(tmp_path)
    yield found
    for pod in list(found.running):
        found.kill(pod)


def test_a_replica_takes_over_and_the_old_master_follows_it(pods):
    """As in three pods at loopback addresses of their own, whose volumes outlive them."""
    pods.start(0)
    until(works(lambda: pods.role(0) == "master"))
    with (  # a master that no replica follows accepts nothing
        pods.client(0) as client,
        pytest.raises(redis.exceptions.ResponseError, match="NOREPLICAS"),
    ):
        client.set("a", "1")
    for pod in PODS[1:]:
        pods.start(pod)
    with connect(pods.url) as client:
        until(works(lambda: client.set("a", "1")))
        until(works(lambda: all(pods.known_replicas(pod) == 2 for pod in PODS)))
        check_server(client)
        assert pods.master() == 0
        until(works(lambda: client.wait(2, 1000) == 2))
        pods.kill(0)  # its node is gone: Redis and sentinel at once
        until(works(lambda: client.set("b", "2")))
        new = pods.master()
        assert new != 0
        assert client.get("a") == b"1"
        pods.start(0)
        until(works(lambda: pods.role(0) == "slave"))
        until(works(lambda: pods.client(0).get("b") == "2"))
        assert pods.master() == new
    for pod in PODS:  # all nodes at once: the volumes have who was the master
        pods.kill(pod)
    for pod in PODS:
        pods.start(pod)
    with connect(pods.url) as client:
        until(works(lambda: client.set("c", "3")))
        assert client.get("b") == b"2"
        assert pods.master() == new
