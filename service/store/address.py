"""Addresses of stores: one server, a cluster, or the master named by sentinels.

    redis://[USER:PASSWORD@]HOST[:PORT][/DB]             one server; rediss:// with TLS
    unix://PATH                                          one server on this machine
    redis+cluster://[USER:PASSWORD@]HOST[:PORT][,...]    any nodes of a cluster; rediss+cluster://
    redis+sentinel://[USER:PASSWORD@]HOST[:PORT][,...]/NAME[/DB]   sentinels; rediss+sentinel://

User and password are those of the store; sentinels with a password of their own have
`?sentinel_username=...&sentinel_password=...`.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from redis.connection import SSLConnection, parse_url

KINDS = ("cluster", "sentinel")
PORTS = {"cluster": 6379, "sentinel": 26379}
_secret = ("sentinel_username", "sentinel_password")
_place = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::(\d+))?").fullmatch


class Address(NamedTuple):
    """Where a store of several servers is. `options`: keywords of each connection to it."""

    kind: str  # of KINDS
    places: list[tuple[str, int]]
    options: dict[str, Any]
    name: str = ""  # of the master that sentinels watch
    sentinel_options: dict[str, Any] = {}  # never changed


def kind_of(url: str) -> str:
    """Return cluster or sentinel, or "" for one server."""
    scheme = urlsplit(url).scheme
    return next((kind for kind in KINDS if scheme in (f"redis+{kind}", f"rediss+{kind}")), "")


def parse(url: str) -> Address:
    """Read the address of a cluster or of sentinels; ValueError says what is wrong with it."""
    parts = urlsplit(url)
    kind = kind_of(url)
    user, _, hosts = parts.netloc.rpartition("@")
    places = [_one_place(text, kind) for text in hosts.split(",")]
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


def _one_place(text: str, kind: str) -> tuple[str, int]:
    match = _place(text)
    if match is None:
        raise ValueError(f"expected comma-separated HOST[:PORT], got {text!r}")
    return match[1].strip("[]"), int(match[2] or PORTS[kind])


def with_password(url: str, password: str) -> str:
    """Return an address with a password put in; ValueError where it has one already."""
    parts = urlsplit(url)
    user, _, hosts = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    if colon:
        raise ValueError("the address has a password already")
    return urlunsplit(parts._replace(netloc=f"{name}:{quote(password, safe='')}@{hosts}"))


def shown(url: str) -> str:
    """Return an address without user, password and options, for messages."""
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2] or parts.path
