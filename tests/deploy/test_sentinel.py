"""A store behind sentinels: who is the master is asked anew when it is another one."""

import asyncio
import contextlib
import time

import pytest
import redis

from service.store.connection import check_server, connect, connect_async
from tests.clusters import _until, running_nodes
from tests.ports import free_ports

pytestmark = pytest.mark.slow


@pytest.fixture
def watched():
    """A master, its replica and three sentinels; yields the address, nodes and both ports."""
    with running_nodes() as nodes:
        master, replica, *sentinels = free_ports(5)
        nodes.start(master, "--save", "", "--maxmemory-policy", "noeviction")
        nodes.start(
            replica,
            *("--save", "", "--maxmemory-policy", "noeviction"),
            *("--replicaof", f"127.0.0.1 {master}", "--repl-diskless-sync-delay", "0"),
        )
        for port in sentinels:
            config = nodes.folder / f"sentinel-{port}.conf"
            config.write_text(
                f"sentinel monitor main 127.0.0.1 {master} 2\n"
                "sentinel down-after-milliseconds main 500\n"
                "sentinel failover-timeout main 3000\n"
            )
            nodes.start(port, str(config), "--sentinel")
        asked = nodes.client(sentinels[0])
        known = lambda: asked.sentinel_master("main")["num-slaves"] == 1  # noqa: E731
        _until(known, "the replica")
        _until(lambda: asked.sentinel_master("main")["num-other-sentinels"] == 2, "the sentinels")
        places = ",".join(f"127.0.0.1:{port}" for port in sentinels)
        yield f"redis+sentinel://{places}/main", nodes, master, replica


async def test_the_new_master_is_found(watched):
    url, nodes, master, replica = watched
    waiting = connect_async(url)
    try:
        with connect(url) as client:
            check_server(client)
            assert client.info("server")["tcp_port"] == master
            client.set("a", "1")
            _until(lambda: client.wait(1, 500) == 1, "the replica, with what was written")
            assert await waiting.get("a") == b"1"
            nodes.kill(master)
            with pytest.raises(redis.ConnectionError):
                client.set("b", "2")  # never sent again by itself
            end = time.monotonic() + 20
            while True:
                try:
                    client.set("b", "2")
                    break
                except redis.RedisError:
                    assert time.monotonic() < end
                    await asyncio.sleep(0.1)
            assert client.info("server")["tcp_port"] == replica
            assert client.get("a") == b"1"
            with contextlib.suppress(redis.ConnectionError):  # of the old one, unless it is known
                await waiting.get("b")
            assert await waiting.get("b") == b"2"
    finally:
        await waiting.aclose()
