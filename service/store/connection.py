"""Clients of the store, by its URL: one server, a cluster, or the master named by sentinels.

    redis://[USER:PASSWORD@]HOST[:PORT][/DB]             one server; rediss:// with TLS
    unix://PATH                                          one server on this machine
    redis+cluster://[USER:PASSWORD@]HOST[:PORT][,...]    any nodes of a cluster; rediss+cluster://
    redis+sentinel://[USER:PASSWORD@]HOST[:PORT][,...]/NAME[/DB]   sentinels; rediss+sentinel://

User and password are those of the store; sentinels with a password of their own have
`?sentinel_username=...&sentinel_password=...`.
"""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit, urlunsplit

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.connection import SSLConnection, parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel

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
KINDS = ("cluster", "sentinel")
PORTS = {"cluster": 6379, "sentinel": 26379}
_secret = ("sentinel_username", "sentinel_password")
_url = re.compile(r"([^:/?#]+)://([^/?#]*)(.*)", re.DOTALL).fullmatch
_place = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::(\d+))?").fullmatch


def connect(url: str, timeout_s: float = READ_TIMEOUT_S) -> StoreClient:
    """Return a client that never repeats a command by itself, and waits `timeout_s` for a reply.

    A library's retry after a cut reply appends or commits twice; the caller knows whether
    a repeat is safe. `url` is one of those above; that of a cluster is looked at right away, and
    raises a RedisError where no node answers.
    """
    options = {"retry": Retry(NoBackoff(), 0), **_options(timeout_s)}
    if not url.startswith("unix:"):
        kept_alive = {getattr(socket, name, None): value for name, value in _KEEPALIVE.items()}
        kept_alive.pop(None, None)
        options |= {"socket_keepalive": True, "socket_keepalive_options": kept_alive}
    return StoreClient(_shards(url, ServerPool, (Sentinel, MasterPool), options))


def connect_async(url: str) -> AsyncStoreClient:
    """Return the asyncio counterpart of `connect`; it connects when it is first used."""
    options = {"retry": AsyncRetry(NoBackoff(), 0), **_options(READ_TIMEOUT_S)}
    return AsyncStoreClient(
        _shards(url, AsyncServerPool, (AsyncSentinel, AsyncMasterPool), options)
    )


def _shards(url: str, pool: Any, of_sentinels: Any, options: dict[str, Any]) -> Shards:
    """of_sentinels: the class of the sentinels, and that of the pool of their master."""
    kind = kind_of(url)
    if not kind:
        return Shards(pool.from_url(url, **options))
    place = parse(url)
    options |= place.options
    if kind == "sentinel":
        sentinels, master_pool = of_sentinels
        # One that does not answer must not keep the next from being asked.
        timeouts = dict.fromkeys(("socket_connect_timeout", "socket_timeout"), SENTINEL_TIMEOUT_S)
        watchers = sentinels(place.places, sentinel_kwargs={**timeouts, **place.sentinel_options})
        return Shards(master_pool(place.name, watchers, **options))
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


# --- addresses ------------------------------------------------------------------------------------


class Address(NamedTuple):
    """Where a store of several servers is. `options`: keywords of each connection to it."""

    kind: str  # of KINDS
    places: list[tuple[str, int]]
    options: dict[str, Any]
    name: str = ""  # of the master that sentinels watch
    sentinel_options: dict[str, Any] = {}  # never changed


def _split(url: str) -> SplitResult:
    """Return the parts of an address, which may have several hosts.

    Newer versions of Python take none for a URL that has anything before a bracket.
    """
    match = _url(url)
    if match is None:
        return urlsplit(url)
    scheme, hosts, rest = match.groups()
    return urlsplit(f"{scheme}://{rest}")._replace(netloc=hosts)


def kind_of(url: str) -> str:
    """Return cluster or sentinel, or "" for one server."""
    scheme = _split(url).scheme
    return next((kind for kind in KINDS if scheme in (f"redis+{kind}", f"rediss+{kind}")), "")


def parse(url: str) -> Address:
    """Read the address of a cluster or of sentinels; ValueError says what is wrong with it."""
    parts = _split(url)
    kind = kind_of(url)
    user, _, hosts = parts.netloc.rpartition("@")
    places = []
    for text in hosts.split(","):
        match = _place(text)
        if match is None:
            raise ValueError(f"expected comma-separated HOST[:PORT], got {text!r}")
        places.append((match[1].strip("[]"), int(match[2] or PORTS[kind])))
    path = parts.path.strip("/").split("/")
    query = dict(parse_qsl(parts.query))
    mine = {key: query.pop(key) for key in _secret if key in query}
    scheme = "rediss" if parts.scheme.startswith("rediss") else "redis"
    database = "/".join(path[1:]) if kind == "sentinel" else ""
    # The library reads user, password, database and options as it does of one server.
    plain = f"{scheme}://{user + '@' if user else ''}host/{database}?{urlencode(query)}"
    options: dict[str, Any] = parse_url(plain)  # type: ignore[no-untyped-call]
    del options["host"]
    if options.pop("connection_class", None) is SSLConnection:
        options["ssl"] = True
    if kind == "cluster":
        if any(path):
            raise ValueError(f"a cluster has no database {parts.path!r}: remove it from the URL")
        return Address(kind, places, options)
    if not path[0]:
        raise ValueError("missing name of the master: expected redis+sentinel://HOST/NAME")
    theirs = {key.removeprefix("sentinel_"): value for key, value in mine.items()}
    theirs |= {key: options[key] for key in options if key.startswith("ssl")}
    return Address(kind, places, options, path[0], theirs)


def with_password(url: str, password: str) -> str:
    """Return an address with a password put in; ValueError where it has one already."""
    parts = _split(url)
    user, _, hosts = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    if colon:
        raise ValueError("the address has a password already")
    return urlunsplit(parts._replace(netloc=f"{name}:{quote(password, safe='')}@{hosts}"))


def shown(url: str) -> str:
    """Return an address without user, password and options, for messages."""
    parts = _split(url)
    return parts.netloc.rpartition("@")[2] or parts.path
