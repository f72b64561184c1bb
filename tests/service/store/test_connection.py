"""Start-up checks, and a client that never repeats a command."""

import socket
import tempfile
import threading

import pytest
from redis.exceptions import ConnectionError as Lost
from redis.exceptions import OutOfMemoryError

from service.store import keys
from service.store.connection import (
    MAX_BLOCK_MS,
    READ_TIMEOUT_S,
    UnusableServer,
    check_server,
    connect,
    connect_async,
    fix_partitions,
    stored_partitions,
)

pytestmark = pytest.mark.redis


def test_a_fit_server_passes(redis_client):
    check_server(redis_client)


def test_an_evicting_server_is_refused(redis_client):
    redis_client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(UnusableServer, match="allkeys-lru.*noeviction"):
            check_server(redis_client)
    finally:
        redis_client.config_set("maxmemory-policy", "noeviction")


@pytest.mark.parametrize(
    ("info", "fits"),
    [
        ({"redis_version": "6.2.14"}, False),
        ({"redis_version": "7.0.0"}, True),
        ({"redis_version": "8.2.1"}, True),
        ({"redis_version": "7.2.4", "valkey_version": "8.0.0"}, True),
    ],
)
def test_versions(info, fits):
    class Stub:
        def info(self):
            return {**info, "maxmemory_policy": "noeviction"}

    if fits:
        check_server(Stub())
    else:
        with pytest.raises(UnusableServer, match=r"6\.2\.14"):
            check_server(Stub())


def test_the_number_of_partitions_is_fixed(redis_client):
    fix_partitions(redis_client, 64)
    fix_partitions(redis_client, 64)
    with pytest.raises(UnusableServer, match="64 partitions, got 32"):
        fix_partitions(redis_client, 32)


def test_a_damaged_number_of_partitions_is_not_taken(redis_client):
    assert stored_partitions(redis_client) is None
    fix_partitions(redis_client, 64)
    redis_client.hset(keys.CONFIG, "partitions", "65")
    with pytest.raises(UnusableServer, match="damaged: b'65' or b'64'"):
        stored_partitions(redis_client)
    redis_client.hdel(keys.CONFIG, "partitions_copy")  # as earlier versions left it
    assert stored_partitions(redis_client) == 65


def test_a_full_store_is_asked_for_its_partitions(redis_client):
    """A worker that is restarted has to work it off."""
    fix_partitions(redis_client, 64)
    before = redis_client.config_get("maxmemory")["maxmemory"]
    redis_client.config_set("maxmemory", 1)
    try:
        with pytest.raises(OutOfMemoryError):
            redis_client.set("a", "b")
        fix_partitions(redis_client, 64)
    finally:
        redis_client.config_set("maxmemory", before)


class Breaker:
    """Accepts, reads one request, cuts; counts the requests."""

    def __init__(self, path):
        self.requests = 0
        self.listener = socket.socket(socket.AF_UNIX)
        self.url = f"unix://{path}"
        self.listener.bind(path)
        self.listener.listen()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            with peer:
                while data := peer.recv(65536):
                    if b"XADD" in data:
                        self.requests += 1
                        break
                    peer.sendall(b"+OK\r\n" * data.count(b"*"))

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()


@pytest.fixture
def breaker():
    with tempfile.TemporaryDirectory(prefix="moca-") as folder:
        breaker = Breaker(f"{folder}/s")
        yield breaker
        breaker.close()


def test_a_cut_answer_is_never_repeated(breaker):
    with connect(breaker.url) as client:
        with pytest.raises(Lost):
            client.xadd("a", {"b": "c"})
        with client.pipeline(transaction=False) as pipe:
            pipe.xadd("a", {"b": "c"})
            with pytest.raises(Lost):
                pipe.execute()
    assert breaker.requests == 2


async def test_a_cut_answer_is_never_repeated_asyncio(breaker):
    async with connect_async(breaker.url) as client:
        with pytest.raises(Lost):
            await client.xadd("a", {"b": "c"})
    assert breaker.requests == 1


def test_no_blocking_read_outlasts_the_read_timeout():
    assert MAX_BLOCK_MS / 1000 < READ_TIMEOUT_S


@pytest.mark.parametrize("url", ["redis://h", "redis+sentinel://h/main", "unix:///s"])
def test_the_address_may_say_another_timeout(url):
    for client in (connect(f"{url}?socket_timeout=5"), connect_async(f"{url}?socket_timeout=5")):
        assert client.connection_pool.connection_kwargs["socket_timeout"] == 5.0
    plain = connect(url)
    assert plain.connection_pool.connection_kwargs["socket_timeout"] == READ_TIMEOUT_S
