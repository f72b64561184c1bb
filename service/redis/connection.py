"""Connections to the store, and what the service asks of it before it starts."""

from __future__ import annotations

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from service.redis import keys

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 60.0  # a server that is silent for longer counts as lost
MAX_BLOCK_MS = 30_000  # longest blocking read, well below the read timeout
OLDEST_SERVER = (7, 0)
RESTORING = "restoring"  # field of the configuration while a backup is being put in


class UnusableServer(RuntimeError):
    """The store, or what it holds, is not what this service can run on."""


def connect(url: str) -> redis.Redis:
    """Return a client that never repeats a command by itself.

    A library's retry after a cut reply appends or commits twice; whoever calls knows whether
    a repeat is safe. `url` is redis://, rediss:// or unix://.
    """
    return redis.Redis.from_url(
        url,
        retry=Retry(NoBackoff(), 0),
        decode_responses=False,
        protocol=2,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        socket_timeout=READ_TIMEOUT_S,
    )


def connect_async(url: str) -> redis.asyncio.Redis:
    """Return the asyncio counterpart of `connect`."""
    return redis.asyncio.Redis.from_url(
        url,
        retry=AsyncRetry(NoBackoff(), 0),
        decode_responses=False,
        protocol=2,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        socket_timeout=READ_TIMEOUT_S,
    )


def check_server(client: redis.Redis) -> None:
    """Refuse a server that is too old or that may evict what we stored."""
    info = client.info()
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
