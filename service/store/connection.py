"""Clients of the store, by its URL."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from service.store import address
from service.store.shards import (
    AsyncMasterPool,
    AsyncServerPool,
    AsyncStoreClient,
    ClusterShards,
    MasterPool,
    ServerPool,
    Shards,
    StoreClient,
)

# A call that got no answer leaves its connection: it may be one that never answers again, and the
# kernel sends again ever later what a broken network dropped. So this bounds the recovery.
CONNECT_TIMEOUT_S = 2.0
READ_TIMEOUT_S = 2.0
START_TIMEOUT_S = 5.0  # of each look at the store while a process starts or stops
LONG_TIMEOUT_S = 60.0  # of commands that wait for nothing but the work of the server
SENTINEL_TIMEOUT_S = 1.0
MANY = 2**31 - 1  # connections to a server of a cluster: one waits for each partition
# Seconds, but for the last: milliseconds for which what was sent may stay unacknowledged, so that
# the kernel ends what it cannot deliver. Not every system has all of them.
_KEEPALIVE = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 3000}
START_WAIT_S = 30.0
START_PAUSE_S = 0.25


T = TypeVar("T")
log = logging.getLogger(__name__)


def connect(url: str, timeout_s: float = READ_TIMEOUT_S) -> StoreClient:
    """Return a client that never repeats a command by itself, and waits `timeout_s` for a reply.

    A library's retry after a cut reply appends or commits twice; the caller knows whether
    a repeat is safe. `url` is one of those of `service.store.address`; that of a cluster is
    looked at right away, and raises a RedisError where no node answers.
    """
    options = {"retry": Retry(NoBackoff(), 0), **_options(timeout_s), **_kept_alive(url)}
    return StoreClient(_shards(url, ServerPool, _sentinels_pool, options))


def connect_async(url: str) -> AsyncStoreClient:
    """Return the asyncio counterpart of `connect`; it connects when it is first used."""
    options = {"retry": AsyncRetry(NoBackoff(), 0), **_options(READ_TIMEOUT_S)}
    return AsyncStoreClient(_shards(url, AsyncServerPool, _async_sentinels_pool, options))


def _shards(url: str, pool: Any, sentinels_pool: Any, options: dict[str, Any]) -> Shards:
    kind = address.kind_of(url)
    if not kind:
        return Shards(pool.from_url(url, **options))
    place = address.parse(url)
    options |= place.options
    if kind == "sentinel":
        return Shards(sentinels_pool(place, options))
    if options.pop("ssl", False):
        options["connection_class"] = pool.secure
    make = partial(pool, max_connections=MANY, **options)
    return ClusterShards(lambda host, port: make(host=host, port=port), place.places)


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
    options = {getattr(socket, name, None): value for name, value in _KEEPALIVE.items()}
    options.pop(None, None)
    return {"socket_keepalive": True, "socket_keepalive_options": options}


def _sentinels_pool(place: address.Address, options: dict[str, Any]) -> Any:
    kind: Any = Sentinel
    watchers = kind(place.places, sentinel_kwargs=_sentinel_options(place))
    return cast(Any, MasterPool)(place.name, watchers, **options)


def _async_sentinels_pool(place: address.Address, options: dict[str, Any]) -> Any:
    kind: Any = AsyncSentinel
    watchers = kind(place.places, sentinel_kwargs=_sentinel_options(place))
    return cast(Any, AsyncMasterPool)(place.name, watchers, **options)


def _sentinel_options(place: address.Address) -> dict[str, Any]:
    # One that does not answer must not keep the next from being asked.
    timeouts = {"socket_connect_timeout": SENTINEL_TIMEOUT_S, "socket_timeout": SENTINEL_TIMEOUT_S}
    return {**timeouts, **place.sentinel_options}


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
    logged = ""
    while True:
        try:
            return ask()
        except redis.RedisError as error:
            if stopped.is_set() or time.monotonic() > give_up:
                raise
            if str(error) != logged:
                log.warning("waiting for the store: %s", error)
            logged = str(error)
            stopped.wait(START_PAUSE_S)
