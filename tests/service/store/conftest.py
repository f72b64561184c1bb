"""Two workers' logs, and ways to fill and commit."""

import pytest

from service.store import keys
from service.store.connection import connect_async
from service.store.log import Appender, Commit, Log

P = 3
TTL_MS = 600_000


@pytest.fixture
async def appender(redis_url):
    async with connect_async(redis_url) as client:
        yield Appender(client, "i1", max_pending=10)


@pytest.fixture
def log(redis_client):
    return Log(redis_client, "w1", TTL_MS, partitions=4)


@pytest.fixture
def other(redis_client):
    return Log(redis_client, "w2", TTL_MS, partitions=4)


@pytest.fixture
def add(redis_client):
    """Append entries as the append script does and return their ids."""

    def add(count=1, partition=P):
        name = keys.log(partition)
        ids = [redis_client.xadd(name, {"b": f"e{i}"}).decode() for i in range(count)]
        redis_client.hincrby(keys.meta(partition), "in", count)
        return ids

    return add


@pytest.fixture
def make():
    """Build the commit of a lease."""

    def make(lease, new, *effects, expected=None, done=0):
        expected = lease.offset if expected is None else expected
        return Commit(lease.partition, lease.token, expected, new, done, list(effects))

    return make
