"""Every topology of the store behind one name, two workers' logs, and ways to fill and commit."""

import pytest

from service.store import keys
from service.store.append import Appender
from service.store.connection import connect, connect_async
from service.store.log import Commit, Log
from tests.clusters import running_cluster, server_or_skip
from tests.conftest import empty, running_server

P = 3


@pytest.fixture(
    scope="session",
    params=[
        "valkey",
        pytest.param("redis", marks=pytest.mark.slow),
        pytest.param("cluster", marks=pytest.mark.slow),
    ],
)
def topology(request):
    """URL of a store of each topology, and a function that empties it."""
    if request.param == "valkey":
        url = request.getfixturevalue("_shared_valkey")
        yield url, lambda: empty(connect(url))
    elif request.param == "redis":
        with running_server(server_or_skip()) as url:
            yield url, lambda: empty(connect(url))
    else:
        with running_cluster() as (url, nodes):
            yield url, lambda: [empty(nodes.client(port)) for port in nodes.running]


@pytest.fixture
def redis_url(topology):
    """URL of an empty store; a test that takes it, or `redis_client`, runs on each topology."""
    url, empty = topology
    empty()
    return url


@pytest.fixture
def redis_client(redis_url):
    with connect(redis_url) as client:
        yield client


@pytest.fixture
async def appender(redis_url):
    async with connect_async(redis_url) as client:
        yield Appender(client, "i1", max_pending=10)


@pytest.fixture
def log(redis_client):
    return Log(redis_client, "w1", ttl_ms=5000, partitions=4)


@pytest.fixture
def other(redis_client):
    return Log(redis_client, "w2", ttl_ms=5000, partitions=4)


@pytest.fixture
def add(redis_client):
    """Append entries as the append script does and return their ids."""

    def add(count=1, partition=P):
        name = keys.log(partition)
        found = [redis_client.xadd(name, {"b": f"e{i}"}).decode() for i in range(count)]
        redis_client.hincrby(keys.meta(partition), "in", count)
        return found

    return add


@pytest.fixture
def make():
    """Build the commit of a lease."""

    def make(lease, new, *effects, expected=None, done=0, publish=()):
        expected = lease.offset if expected is None else expected
        return Commit(
            lease.partition, lease.token, expected, new, done, list(effects), list(publish)
        )

    return make
