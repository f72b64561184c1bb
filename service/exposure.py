"""Who may call the service: decided and said at the start."""

from __future__ import annotations

import ipaddress
import socket
from functools import lru_cache
from urllib.parse import urlsplit

from service.process import Refused
from service.settings import Settings


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = {place[4][0] for place in socket.getaddrinfo(host, None)} if host else set()
    except OSError:
        return False  # the attempt to listen there says what is wrong
    return bool(found) and all(ipaddress.ip_address(each).is_loopback for each in found)


ANY = "*"


def names_of(settings: Settings) -> frozenset[str]:
    """Return the names that the service answers to without a key, beside its own; ANY: any."""
    said = settings.host_names or (ANY if settings.open_access else "")
    return frozenset(name.strip().rstrip(".").lower() for name in said.split(",")) - {""}


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
    if "." not in name or name.endswith(".localhost") or name in more:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def keys_required(settings: Settings, any_keys: bool) -> bool:
    """Whether calls need a key from the start; Refused where nobody said who may call.

    `any_keys`: one was made once, whatever became of it. Else revoking the last key would open
    the service to everyone.
    """
    if settings.open_access:
        return False
    if settings.require_keys or any_keys:
        return True
    if not is_loopback(settings.host):
        raise Refused(
            f"on {settings.host} others than this machine reach the service, and nothing says who"
            " may call it: make a key with `moca keys create NAME --scope read --scope write`,"
            " start with --require-keys, or with --open to let everyone"
        )
    return False


def depends_on_keys(settings: Settings) -> bool:
    """Whether it takes a look into the store to know if the service may start at all."""
    return not (settings.open_access or settings.require_keys or is_loopback(settings.host))


def describe(settings: Settings, required: bool) -> str:
    """Return who may call, in one sentence."""
    if required:
        return "calls need a key (moca keys)"
    if settings.open_access:
        return f"open access: whoever reaches {settings.host} may call everything, without a key"
    return "calls need no key while none exists: only this machine can call"
