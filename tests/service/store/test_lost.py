"""Connections that are lost without a word: left soon, and not used again."""

import asyncio
import time

import pytest
import redis
import uvloop

from service.api.gateway import store_monitor
from service.api.gateway.store_monitor import Monitor
from service.settings import Settings
from service.store.api_reads import Health
from service.store.append import Appender
from service.store.connection import READ_TIMEOUT_S, connect, connect_async
from service.store.exchange import send_async
from service.store.log import DONE, START, Commit, Log, Offset
from tests.faults import REPLIES, REQUESTS, Proxy

pytestmark = pytest.mark.redis
P = 3
IDLE = 4
SLACK_S = 1.5  # of a busy machine


@pytest.fixture
def proxy(valkey_url):
    found = Proxy(valkey_url)
    yield found
    found.close()


@pytest.mark.parametrize("direction", [REQUESTS, REPLIES])
def test_one_call_finds_out_for_all_connections(proxy, direction):
    with connect(proxy.url) as client:
        pool = client.connection_pool
        idle = [pool.get_connection() for _ in range(IDLE)]
        for connection in idle:
            pool.release(connection)
        # Bytes that are lost silence a connection for ever; each of these had some.
        proxy.lose(direction)
        for connection in idle:
            connection.send_command("PING")
        for connection in idle:
            assert not connection.can_read(0.1)
        began = time.monotonic()
        with pytest.raises(redis.TimeoutError):
            client.set("a", "1")
        assert time.monotonic() - began < READ_TIMEOUT_S + SLACK_S
        proxy.heal()
        began = time.monotonic()
        client.set("a", "2")
        assert time.monotonic() - began < SLACK_S
        assert client.get("a") == b"2"


@pytest.mark.parametrize("direction", [REQUESTS, REPLIES])
async def test_one_call_finds_out_for_all_connections_asyncio(proxy, direction):
    async with connect_async(proxy.url) as client:
        pool = client.connection_pool
        idle = [await pool.get_connection() for _ in range(IDLE)]
        for connection in idle:
            await pool.release(connection)
        proxy.lose(direction)
        for connection in idle:
            await connection.send_command("PING")
        await asyncio.sleep(0.1)
        began = time.monotonic()
        with pytest.raises(redis.TimeoutError):
            await client.set("a", "1")
        assert time.monotonic() - began < READ_TIMEOUT_S + SLACK_S
        proxy.heal()
        began = time.monotonic()
        await client.set("a", "2")
        assert time.monotonic() - began < SLACK_S
        assert await client.get("a") == b"2"


async def test_many_bytes_over_a_slow_link_are_not_a_lost_connection(proxy):
    """An append that takes longer than the timeout goes through, at the first attempt."""
    payload = bytes(250_000)
    async with connect_async(proxy.url) as client:
        appender = Appender(client, "i1", max_pending=10)
        await appender.append(P, 0, 1, b"the script is there")
        proxy.slow(0.1, 60_000)
        began = time.monotonic()
        await appender.append(P, 1, 1, payload)
    assert time.monotonic() - began > READ_TIMEOUT_S


def test_a_large_commit_over_a_slow_link_is_not_a_lost_connection(proxy):
    with connect(proxy.url) as client:
        log = Log(client, "w1", 60_000, 4)
        lease = log.acquire(P)
        effect = ("HSET", f"moca:{{{P}}}:x", "a", bytes(250_000))
        first, second = Offset("1-0", DONE), Offset("2-0", DONE)
        assert log.commit([Commit(P, lease.token, START, first, 0, [], [])]) == ["OK"]
        proxy.slow(0.1, 60_000)
        began = time.monotonic()
        assert log.commit([Commit(P, lease.token, first, second, 0, [effect], [])]) == ["OK"]
    assert time.monotonic() - began > READ_TIMEOUT_S


def test_what_the_kernel_closed_is_made_anew(valkey_url):
    """Writing to it raises a RuntimeError in uvloop: the task that appends ended by that."""

    async def main():
        async with connect_async(valkey_url) as client:
            appender = Appender(client, "i1", max_pending=10)
            await appender.append(P, 0, 1, b"a")
            (idle,) = client.connection_pool._available_connections
            idle._writer.transport.abort()
            await asyncio.sleep(0.05)
            await client.get("a")
            (idle,) = client.connection_pool._available_connections
            idle._writer.transport.abort()
            await appender.append(P, 1, 1, b"b")
            connection = await client.connection_pool.get_connection()
            connection._writer.transport.abort()
            await asyncio.sleep(0.05)
            with pytest.raises(redis.ConnectionError):
                await send_async(connection, [("PING",)])
            await client.connection_pool.release(connection)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_what_is_closed_while_it_is_greeted_is_lost():
    """uvloop's RuntimeError became an internal error of the read that connected."""

    async def main():
        async def hang_up(reader, writer):
            await reader.read(1)
            writer.transport.abort()

        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, connect_async(f"redis://127.0.0.1:{port}/1") as client:
            for _ in range(100):
                with pytest.raises(redis.RedisError):
                    await client.get("a")

    async def closed():
        """The same for certain: closed between two commands of the greeting."""
        async with connect_async("redis://127.0.0.1:1/1") as client:
            made = client.connection_pool.make_connection()
            made._reader, made._writer = asyncio.StreamReader(), Closed()
            with pytest.raises(redis.ConnectionError, match="closed"):
                await made.on_connect()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
        runner.run(closed())


class Closed:
    """A writer of uvloop that the kernel has closed."""

    transport = None

    def writelines(self, data):
        raise RuntimeError("unable to perform operation on <TCPTransport>; the handler is closed")

    def close(self):
        pass


class Store:
    """Answers after it was silent for a while, once."""

    def __init__(self, silent_s):
        self.silent_s = silent_s

    async def health(self):
        silent_s, self.silent_s = self.silent_s, 0.0
        await asyncio.sleep(silent_s)
        return Health([], [0], 0, 0)

    async def canaries(self):
        return {}

    async def condition(self):
        raise redis.ConnectionError("not looked at here")


async def test_a_look_without_an_answer_is_soon_followed_by_another(monkeypatch):
    """It waited ten times as long as the look that was not answered: 20 s of 503."""
    monkeypatch.setattr(store_monitor, "TIMEOUT_S", 0.5)
    watched = Monitor(Store(1.0), Settings(partitions=1))
    watching = asyncio.create_task(watched.watch())
    try:
        await asyncio.sleep(0.6)
        assert watched.down_since
        await asyncio.sleep(store_monitor.AGAIN_S + 0.5)
        assert not watched.down_since
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
