"""Stores for the tests: one suite runs on each topology. And what every run of them does."""

import functools
import gc
import signal
from pathlib import Path

import httpx
import pytest
import redis.utils
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from service.store import connection
from service.store.connection import connect
from tests import reaper
from tests.clusters import empty, running_cluster, running_server, server_or_skip, valkey
from tests.limits import (  # noqa: F401 (hooks)
    pytest_collection_modifyitems,
    pytest_runtest_protocol,
    pytest_timeout_set_timer,
)
from tests.waiting import PATIENCE_S

# A shell makes its background jobs ignore SIGINT, and their children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    """Have someone end what this run leaves behind, however it ends; workers of xdist share it."""
    if not hasattr(config, "workerinput") and Path("/proc/self/stat").exists():
        config.reaper = reaper.start()


def pytest_collection_finish():
    """What is imported by now lives to the end: the collector need not look at it again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config):
    # Pytest runs the garbage collector five times as it exits: once is enough.
    gc.collect()
    gc.freeze()
    if hasattr(config, "reaper"):
        config.reaper.stdin.close()
        config.reaper.wait()


# Hypothesis draws the same examples in every run, so that no test fails by chance; `make test-all`
# draws others each time (`--hypothesis-profile=random`), and a failure says how to repeat it.
FIXED = settings.get_profile("ci")  # no database, no deadline, and a blob of what fails
settings.register_profile("fixed", FIXED)
settings.register_profile("random", FIXED, derandomize=False)
settings.load_profile("fixed")
# Constants of the modules that happen to be imported would be drawn, too, and change all examples.
providers.is_local_module_file = lambda path: False
# A connection that a busy machine is slow to open or close is no failure.
connection.CONNECT_TIMEOUT_S = PATIENCE_S
# Every client of httpx reads all certificates anew: 40 ms, of which a wait makes dozens.
_transports = httpx._transports.default  # type: ignore[attr-defined]
_transports.create_ssl_context = functools.cache(_transports.create_ssl_context)
# Every connection of redis-py reads from disk which version of itself it is: 2 ms.
redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)


@pytest.fixture(scope="session")
def shared_valkey():
    """URL of a server, not emptied between tests: see `valkey_url`."""
    with running_server(valkey()) as url:
        yield url


@pytest.fixture
def valkey_url(shared_valkey):
    """URL of an empty embedded Valkey, for tests that need not run on each topology."""
    empty(connect(shared_valkey))
    return shared_valkey


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
        url = request.getfixturevalue("shared_valkey")
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
    url, empty_it = topology
    empty_it()
    return url


@pytest.fixture
def redis_client(redis_url):
    with connect(redis_url, PATIENCE_S) as client:
        yield client
