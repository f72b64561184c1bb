"""Who may call the service: decided and said at the start."""

from __future__ import annotations

import ipaddress
import socket
from functools import lru_cache
from urllib.parse import urlsplit

from service.problems import StartupError
from service.settings import Settings

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def address_of(host: str) -> Address | None:
    """Return a host as an address; None: it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on `host`."""
    if (own := address_of(host)) is not None:
        return own.is_loopback
    try:
        addresses = {place[4][0] for place in socket.getaddrinfo(host, None)} if host else set()
    except OSError:
        return False  # the attempt to listen there says what is wrong
    return bool(addresses) and all(
        ipaddress.ip_address(address).is_loopback for address in addresses
    )


ANY = "*"


def names_of(settings: Settings) -> frozenset[str]:
    """Return the names that the service answers to without a key, beside its own; ANY: any."""
    names = settings.host_names or (ANY if settings.open_access else "")
    return frozenset(name.strip().rstrip(".").lower() for name in names.split(",")) - {""}


@lru_cache(256)
def is_own_name(host: bytes, more: frozenset[str] = frozenset()) -> bool:
    """Whether a Host header is one that a page of somebody else's cannot make its own.

    A page may have its name lead to this machine once it is loaded (DNS rebinding): then a browser
    takes the service for a part of it. Such a name has a dot, is no address, and is not in `more`.
    """
    if ANY in more:
        return True
    try:
        name = (urlsplit(f"//{host.decode('latin-1')}").hostname or "").rstrip(".")
    except ValueError:
        return False
    named = "." not in name or name.endswith(".localhost") or name in more
    return named or address_of(name) is not None


def keys_required(settings: Settings, any_keys: bool) -> bool:
    """Whether calls need a key from the start; StartupError where nobody said who may call.

    `any_keys`: one was made once, whatever became of it. Else revoking the last key would open
    the service to everyone.
    """
    if settings.open_access:
        return False
    if settings.require_keys or any_keys:
        return True
    if not is_loopback(settings.host):
        raise StartupError(
            f"refusing to listen on {settings.host} without authentication: create a key "
            "(`moca keys create NAME --scope read --scope write`), or pass --require-keys, "
            "or --open to allow everyone"
        )
    return False


def depends_on_keys(settings: Settings) -> bool:
    """Whether it takes a look into the store to know if the service may start at all."""
    return not (settings.open_access or settings.require_keys or is_loopback(settings.host))


def describe(settings: Settings, required: bool) -> str:
    """Return who may call, in one sentence."""
    if required:
        return "API keys are required (moca keys)"
    if settings.open_access:
        return (
            "open access: accepting unauthenticated requests from anyone who can reach "
            f"{settings.host}"
        )
    return "no API keys exist yet: accepting unauthenticated requests from this machine only"
