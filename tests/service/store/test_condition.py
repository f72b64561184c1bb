"""What metrics show of the store: age of what waits, and the append-only file."""

import asyncio
import resource
import signal
import subprocess
import time

import pytest

from service.store import keys
from service.store.api_reads import AsyncStore
from service.store.connection import connect, connect_async
from tests.conftest import running_server

pytestmark = pytest.mark.redis
PARTITIONS = 4


@pytest.fixture
async def reader(redis_url):
    async with connect_async(redis_url) as client:
        yield AsyncStore(client, PARTITIONS)


async def test_nothing_waits_in_an_empty_store(reader):
    assert await reader.condition() == (0.0, False, False)


async def test_the_oldest_of_all_partitions_counts(reader, redis_client):
    now_ms = int(time.time() * 1000)
    redis_client.xadd(keys.log(1), {"b": "x"}, id=f"{now_ms - 60_000}-0")
    redis_client.xadd(keys.log(1), {"b": "y"})
    redis_client.xadd(keys.log(3), {"b": "z"}, id=f"{now_ms - 10_000}-0")
    assert 60 <= (await reader.condition()).oldest_pending_s < 70
    redis_client.xtrim(keys.log(1), maxlen=0, approximate=False)
    assert 10 <= (await reader.condition()).oldest_pending_s < 20


async def test_a_log_of_the_wrong_type_hides_no_other(reader, redis_client):
    redis_client.set(keys.log(0), "not a log")
    redis_client.xadd(keys.log(2), {"b": "x"}, id=f"{int(time.time() * 1000) - 5000}-0")
    assert 5 <= (await reader.condition()).oldest_pending_s < 15


async def test_an_entry_from_the_future_waits_no_time(reader, redis_client):
    redis_client.xadd(keys.log(2), {"b": "x"}, id=f"{int(time.time() * 1000) + 60_000}-0")
    assert (await reader.condition()).oldest_pending_s == 0


async def test_an_append_only_file_that_cannot_grow_is_seen(server_binary, monkeypatch):
    """A limit on the size of its files stands for a full disk."""
    start, started = subprocess.Popen, []

    def unlimited_by_signal(command, **options):
        started.append(start(command, **options, restore_signals=False))
        return started[-1]

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # inherited: the write fails instead
    monkeypatch.setattr(subprocess, "Popen", unlimited_by_signal)
    with running_server(server_binary, "--appendonly", "yes") as url, connect(url) as client:
        async with connect_async(url) as asynchronous:
            reader = AsyncStore(asynchronous, PARTITIONS)
            client.set("a", "b")
            assert await reader.condition() == (0.0, True, False)
            resource.prlimit(started[0].pid, resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))
            client.set("a", "c" * 1000)
            await _until(reader, failing=True)
            unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            resource.prlimit(started[0].pid, resource.RLIMIT_FSIZE, unlimited)
            await _until(reader, failing=False)


async def _until(reader, failing):
    for _ in range(200):
        if (await reader.condition()).append_only_failing is failing:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"append_only_failing did not become {failing} in 10 s")
