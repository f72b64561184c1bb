"""A cluster of three masters where the other tests have one server."""

import pytest

from tests.clusters import empty, running_cluster
from tests.e2e.conftest import disk_store, processes, serve  # noqa: F401


@pytest.fixture(scope="session")
def shared_cluster():
    """Address and nodes of a cluster, not emptied between tests."""
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture
def redis_url(shared_cluster):
    url, nodes = shared_cluster
    for port in nodes.running:
        empty(nodes.client(port))
    return url


@pytest.fixture
def valkey_url(redis_url):
    return redis_url


@pytest.fixture
def separate(redis_url, processes):  # noqa: F811
    """URL of an API with two workers."""
    return processes.start_separate(redis_url)


@pytest.fixture
def cluster():
    """Address and nodes of a cluster of the test's own, which it may change."""
    with running_cluster() as cluster:
        yield cluster
