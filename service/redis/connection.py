"""Connections to the store, and what the service asks of it before it starts."""

from __future__ import annotations

from typing import Any, cast

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from service import formats
from service.redis import address, keys
from service.redis.cluster import Cluster
from service.redis.cluster_async import AsyncCluster

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 60.0  # a server that is silent for longer counts as lost
START_TIMEOUT_S = 5.0  # of each look at the store while a process starts or stops
MAX_BLOCK_MS = 30_000  # longest blocking read, well below the read timeout
OLDEST_SERVER = (7, 0)
SENTINEL_TIMEOUT_S = 1.0
_OPTIONS: dict[str, Any] = {
    "decode_responses": False,
    "protocol": 2,
    "socket_connect_timeout": CONNECT_TIMEOUT_S,
    "socket_timeout": READ_TIMEOUT_S,
}
RESTORING = "restoring"  # field of the configuration while a backup is being put in


class UnusableServer(RuntimeError):
    """The store, or what it holds, is not what this service can run on."""


def connect(url: str, timeout_s: float = READ_TIMEOUT_S) -> redis.Redis:
    """Return a client that never repeats a command by itself, and waits `timeout_s` for a reply.

    A library's retry after a cut reply appends or commits twice; whoever calls knows whether
    a repeat is safe. `url` is one of those of `service.redis.address`; that of a cluster is
    looked at right away, and raises a RedisError where no node answers.
    """
    kind, retry = address.kind_of(url), Retry(NoBackoff(), 0)
    given = {**_OPTIONS, "socket_timeout": timeout_s}
    if kind == "cluster":  # with the calls that the service makes of one server
        return cast(redis.Redis, Cluster(address.parse(url), **given))
    if kind == "sentinel":
        found = address.parse(url)
        watchers = _sentinels(Sentinel, found)
        client = watchers.master_for(found.name, retry=retry, **{**found.options, **given})
        return cast(redis.Redis, client)
    return redis.Redis.from_url(url, retry=retry, **given)


def connect_async(url: str) -> redis.asyncio.Redis:
    """Return the asyncio counterpart of `connect`; it connects when it is first used."""
    kind, retry = address.kind_of(url), AsyncRetry(NoBackoff(), 0)
    if kind == "cluster":
        return cast(redis.asyncio.Redis, AsyncCluster(address.parse(url), **_OPTIONS))
    if kind == "sentinel":
        found = address.parse(url)
        watchers = _sentinels(AsyncSentinel, found)
        options = {**found.options, **_OPTIONS}
        client = watchers.master_for(found.name, _Watched, retry=retry, **options)
        return cast(redis.asyncio.Redis, client)
    return redis.asyncio.Redis.from_url(url, retry=retry, **_OPTIONS)


class _Watched(redis.asyncio.Redis):
    """A client of whoever is the master; closes its connections to the sentinels, too."""

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
            raise UnusableServer(f"Redis {version} is too old: need Redis >= 7.0 or Valkey")
    policy = info["maxmemory_policy"]
    if policy != "noeviction":
        raise UnusableServer(
            f"maxmemory-policy is {policy!r}: it would evict streams and accepted observations;"
            " set it to 'noeviction'"
        )


def check_formats(client: redis.Redis, partitions: int) -> None:
    """Refuse a store that workers of a later version have worked on."""
    with client.pipeline(transaction=False) as pipe:
        for partition in range(partitions):
            pipe.hget(keys.meta(partition), "format")
        latest = max(int(each or 1) for each in pipe.execute())
    if latest > formats.STORE:
        raise UnusableServer(
            f"a later version has worked on this store, in format {latest}; this version knows"
            f" formats up to {formats.STORE}: use the later one, or restore a backup from before"
        )


def fix_partitions(client: redis.Redis, partitions: int) -> None:
    """Record the number of partitions on first use; refuse any other number afterwards.

    Also refuses what a restore that did not end has left.
    """
    client.hsetnx(keys.CONFIG, "partitions", str(partitions))
    stored = int(client.hget(keys.CONFIG, "partitions") or b"0")
    if stored != partitions:
        raise UnusableServer(
            f"this store was made with {stored} partitions, asked for {partitions}: streams would"
            f" be looked for in the wrong place; start with --partitions {stored}"
        )
    if client.hexists(keys.CONFIG, RESTORING):
        raise UnusableServer(
            "a backup is being restored here, or a restore did not end: run `moca restore` again"
        )
