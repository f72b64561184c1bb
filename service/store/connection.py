"""Connections to the store, and what the service asks of it before it starts."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.asyncio.sentinel import SentinelConnectionPool as AsyncSentinelPool
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel
from redis.sentinel import SentinelConnectionPool as SentinelPool

from service import wire
from service.store import address, keys
from service.store.cluster.asynchronous import AsyncCluster
from service.store.cluster.blocking import Cluster
from service.store.exchange import closing

# A call that got no answer leaves its connection: it may be one that never answers again, and the
# kernel sends again ever later what a broken network dropped. So this bounds the recovery.
CONNECT_TIMEOUT_S = 2.0
READ_TIMEOUT_S = 2.0
START_TIMEOUT_S = 5.0  # of each look at the store while a process starts or stops
LONG_TIMEOUT_S = 60.0  # of commands that wait for nothing but the work of the server
MAX_BLOCK_MS = 1000  # longest blocking read, well below the read timeout
OLDEST_SERVER = (7, 0)
SENTINEL_TIMEOUT_S = 1.0
# Seconds, but for the last: milliseconds for which what was sent may stay unacknowledged, so that
# the kernel ends what it cannot deliver. Not every system has all of them.
_KEEPALIVE = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 3000}
START_WAIT_S = 30.0
START_PAUSE_S = 0.25
RESTORING = "restoring"  # field of the configuration while a backup is being put in
PARTITIONS = ("partitions", "partitions_copy")  # fields of the number and its copy


T = TypeVar("T")
log = logging.getLogger(__name__)


class UnusableServer(RuntimeError):
    """The store, or what it holds, is not what this service can run on."""


def connect(url: str, timeout_s: float = READ_TIMEOUT_S) -> redis.Redis:
    """Return a client that never repeats a command by itself, and waits `timeout_s` for a reply.

    A library's retry after a cut reply appends or commits twice; the caller knows whether
    a repeat is safe. `url` is one of those of `service.store.address`; that of a cluster is
    looked at right away, and raises a RedisError where no node answers.
    """
    kind, retry = address.kind_of(url), Retry(NoBackoff(), 0)
    options = _options(timeout_s) | _kept_alive(url)
    if kind == "cluster":  # with the calls that the service makes of one server
        return cast(redis.Redis, Cluster(address.parse(url), **options))
    if kind == "sentinel":
        found = address.parse(url)
        watchers = _sentinels(Sentinel, found)
        options = {"connection_pool_class": _MasterPool, **options, **found.options}
        return cast(redis.Redis, watchers.master_for(found.name, retry=retry, **options))
    return redis.Redis.from_pool(_Pool.from_url(url, retry=retry, **options))


def connect_async(url: str) -> redis.asyncio.Redis:
    """Return the asyncio counterpart of `connect`; it connects when it is first used."""
    kind, retry = address.kind_of(url), AsyncRetry(NoBackoff(), 0)
    options = _options(READ_TIMEOUT_S)
    if kind == "cluster":
        return cast(redis.asyncio.Redis, AsyncCluster(address.parse(url), **options))
    if kind == "sentinel":
        found = address.parse(url)
        watchers = _sentinels(AsyncSentinel, found)
        options = {"connection_pool_class": _AsyncMasterPool, **options, **found.options}
        client = watchers.master_for(found.name, _Watched, retry=retry, **options)
        return cast(redis.asyncio.Redis, client)
    return redis.asyncio.Redis.from_pool(_AsyncPool.from_url(url, retry=retry, **options))


def _options(timeout_s: float) -> dict[str, Any]:
    return {
        "decode_responses": False,
        "protocol": 2,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_timeout": timeout_s,
    }


def _kept_alive(url: str) -> dict[str, Any]:
    """Options by which the kernel soon ends what it cannot deliver."""
    if url.startswith("unix:"):
        return {}
    known = {getattr(socket, name, None): value for name, value in _KEEPALIVE.items()}
    known.pop(None, None)
    return {"socket_keepalive": True, "socket_keepalive_options": known}


class _Forgetful:
    """A pool that closes what lies idle when a connection is lost: it went the same way."""

    def release(self, connection: Any) -> None:
        lost = not connection.is_connected
        pool = cast(Any, super())
        pool.release(connection)
        if lost:
            pool.disconnect(inuse_connections=False)


class _AsyncForgetful:
    """The same for asyncio."""

    connection_class: type[Any]
    _available_connections: list[Any]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.connection_class = closing(cast(Any, self.connection_class))

    async def ensure_connection(self, connection: Any) -> None:
        # What the kernel closed meanwhile is made anew here: a command over it would be lost.
        if connection.is_connected and connection._writer.is_closing():
            await connection.disconnect(nowait=True)
        await cast(Any, super()).ensure_connection(connection)

    async def release(self, connection: Any) -> None:
        lost = not connection.is_connected
        await cast(Any, super()).release(connection)
        if lost:
            # Taken out first: nobody else gets one while it is being closed.
            idle, self._available_connections = self._available_connections, []
            for each in idle:
                await each.disconnect(nowait=True)


class _Pool(_Forgetful, redis.ConnectionPool):
    pass


class _MasterPool(_Forgetful, SentinelPool):
    pass


class _AsyncPool(_AsyncForgetful, redis.asyncio.ConnectionPool):
    pass


class _AsyncMasterPool(_AsyncForgetful, AsyncSentinelPool):
    pass


class _Watched(redis.asyncio.Redis):
    """A client of the current master; closes its connections to the sentinels, too."""

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        watchers = cast(Any, self.connection_pool).sentinel_manager.sentinels
        await super().aclose(close_connection_pool)
        for each in watchers:
            await each.aclose()


def _sentinels(kind: Any, found: address.Address) -> Any:
    # One that does not answer must not keep the next from being asked.
    timeouts = {"socket_connect_timeout": SENTINEL_TIMEOUT_S, "socket_timeout": SENTINEL_TIMEOUT_S}
    return kind(found.places, sentinel_kwargs={**timeouts, **found.sentinel_options})


def check_server(client: redis.Redis) -> None:
    """Refuse a server that is too old or that may evict what we stored."""
    for info in client.infos() if isinstance(client, Cluster) else [client.info()]:
        _check(info)


def _check(info: dict[str, Any]) -> None:
    if "valkey_version" not in info:
        version = str(info["redis_version"])
        if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_SERVER:
            raise UnusableServer(f"Redis {version} is too old: expected Redis >= 7.0 or Valkey")
    policy = info["maxmemory_policy"]
    if policy != "noeviction":
        raise UnusableServer(
            f"maxmemory-policy is {policy!r}, which would evict streams and accepted "
            "observations: set it to 'noeviction'"
        )


def check_formats(client: redis.Redis, partitions: int) -> None:
    """Refuse a store of another format."""
    with client.pipeline(transaction=False) as pipe:
        for partition in range(partitions):
            pipe.hget(keys.meta(partition), "format")
        formats = {number.decode() for number in pipe.execute() if number is not None}
    if others := formats - {str(wire.FORMAT)}:
        raise UnusableServer(
            f"the store has format {min(others)}, expected {wire.FORMAT}: use the version that "
            "wrote it, or an empty store"
        )


def stored_partitions(client: redis.Redis) -> int | None:
    """Number of partitions that the store was created with; None: it is new.

    Raises UnusableServer where the number and its copy differ.
    """
    number, copy = cast(list[bytes | None], client.hmget(keys.CONFIG, PARTITIONS))
    if copy != number:
        raise UnusableServer(
            f"the store's number of partitions is damaged: {number!r} or {copy!r}; put the right "
            f"one into both fields of {keys.CONFIG}, {' and '.join(PARTITIONS)}"
        )
    return None if number is None else int(number)


def fix_partitions(client: redis.Redis, partitions: int) -> None:
    """Record the number of partitions on first use; refuse any other number afterwards.

    Also refuses what a restore that did not end has left.
    """
    stored = stored_partitions(client)  # read first: a store that is full takes no write
    if stored is None:
        for field in PARTITIONS:
            client.hsetnx(keys.CONFIG, field, str(partitions))
        stored = stored_partitions(client)
    if stored != partitions:
        raise UnusableServer(
            f"this store was created with {stored} partitions, got {partitions}: start with "
            f"--partitions {stored}"
        )
    if client.hexists(keys.CONFIG, RESTORING):
        raise UnusableServer(
            "a restore into this store is running or was interrupted: run `moca restore` again"
        )


def patiently(
    ask: Callable[[], T],
    longest_s: float = START_WAIT_S,
    stopped: threading.Event | None = None,
) -> T:
    """Return what `ask` returns, asking again while the store does not answer.

    After `longest_s` seconds, or once `stopped` is set, its RedisError is raised. What stands in
    the way is logged once. `ask` has a bound of its own, START_TIMEOUT_S of `connection`.
    """
    stopped = stopped or threading.Event()
    give_up = time.monotonic() + longest_s
    said = ""
    while True:
        try:
            return ask()
        except redis.RedisError as error:
            if stopped.is_set() or time.monotonic() > give_up:
                raise
            if str(error) != said:
                log.warning("waiting for the store: %s", error)
            said = str(error)
            stopped.wait(START_PAUSE_S)
