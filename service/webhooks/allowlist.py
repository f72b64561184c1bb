"""Which addresses webhooks may call: only what is listed, and nothing private by accident."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from concurrent.futures import Executor
from functools import partial
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from service.problems import StartupError
from service.runtime.access_policy import Address, address_of

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
PORTS = {"https": 443, "http": 80}
# Whose last 32 bits are an address of IPv4: by translation (RFC 6052, 7915), or of old.
TRANSLATED = [ipaddress.IPv6Network(text) for text in ("64:ff9b::/96", "::ffff:0:0:0/96", "::/96")]
# Registered as not globally reachable, which the standard library does not know of these: relays of
# 6to4 (RFC 7526), segment routing (RFC 9602), documentation (RFC 9637), dummy prefix (RFC 9780).
NOT_GLOBAL: list[Network] = [
    ipaddress.ip_network(text)
    for text in ("192.88.99.0/24", "5f00::/16", "3fff::/20", "100:0:0:1::/64")
]
LOCAL_USE = ipaddress.IPv6Network("64:ff9b:1::/48")  # of translation (RFC 8215)


class NotAllowed(ValueError):
    """An address that may not be called; the message says why."""


class Rule(NamedTuple):
    """One entry of the list: `[scheme://]host[:port]`; without a scheme it is https."""

    scheme: str
    host: str  # a name, or `*.` and a suffix; empty for networks
    port: int | None  # None: any
    network: Network | None

    def fits(self, scheme: str, host: str, port: int) -> bool:
        """Whether a URL's scheme, host and port are allowed by this entry."""
        if scheme != self.scheme or self.port not in (None, port):
            return False
        address = address_of(host)
        if self.network is not None or address is not None:
            return self.network is not None and address is not None and address in self.network
        if self.host.startswith("*."):
            return host.endswith(self.host[1:])
        return host == self.host


class Allowed(NamedTuple):
    """The whole list."""

    rules: tuple[Rule, ...]

    @classmethod
    def parse(cls, text: str) -> Allowed:
        """Read the setting; StartupError when an entry is malformed."""
        return cls(tuple(_rule(rule) for rule in filter(None, map(str.strip, text.split(",")))))

    def check_url(self, url: str) -> None:
        """Raise NotAllowed for a URL that no entry fits."""
        parts, port = _split(url)
        host = (parts.hostname or "").lower()
        if not any(rule.fits(parts.scheme, host, port) for rule in self.rules):
            where = f"{parts.scheme}://{host}:{port}"
            raise NotAllowed(
                f"{where} is not on the allowlist: add it to --webhook-hosts (MOCA_WEBHOOK_HOSTS)"
            )

    def lets(self, address: Address, scheme: str, port: int) -> bool:
        """Whether a resolved address may be called: a public one, or one listed for this use."""

        def listed(candidate: Address) -> bool:
            return any(
                rule.network and rule.fits(scheme, str(candidate), port) for rule in self.rules
            )

        return listed(address) or all(
            _is_public(candidate) or listed(candidate) for candidate in _meant(address)
        )

    async def resolve(self, url: str, resolvers: Executor) -> tuple[str, str, int]:
        """Return host, an address of it that may be called, and port; else NotAllowed.

        The address is what has to be called: a name may mean another one a moment later.
        """
        self.check_url(url)
        parts, port = _split(url)
        host = parts.hostname or ""
        loop = asyncio.get_running_loop()
        try:
            look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
            records = await loop.run_in_executor(resolvers, look_up)
        except (OSError, UnicodeError) as error:  # the latter: labels that no name can have
            raise NotAllowed(f"cannot resolve {host}: {error}") from None
        addresses = [
            ipaddress.ip_address(str(record[4][0]).partition("%")[0]) for record in records
        ]
        for address in addresses:
            if self.lets(address, parts.scheme, port):
                return host, str(address), port
        first = addresses[0]
        place = f"[{first}]" if first.version == 6 else str(first)
        raise NotAllowed(
            f"{host} resolves to {first}, which is not public; to allow it, add "
            f"{parts.scheme}://{place}:{port}"
        )


def _is_public(address: Address) -> bool:
    special = any(address in network for network in NOT_GLOBAL)
    return address.is_global and not address.is_multicast and not special


def _meant(address: Address) -> list[Address]:
    """Return what is reached in the end by an address, that of IPv4 within one of IPv6."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if any(address in network for network in TRANSLATED):
        return [address, ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)]
    if address.is_site_local or address in LOCAL_USE:
        return [ipaddress.IPv6Address("fc00::")]  # as private as this one
    return [address.sixtofour or address]


def _rule(text: str) -> Rule:
    scheme, separator, address = text.partition("://")
    if not separator:
        scheme = "https"
        address = text
    network = _network(address)
    if network is not None and scheme in PORTS:
        return Rule(scheme, "", None, network)
    try:
        place = urlsplit(f"//{address}")
        host = (place.hostname or "").lower()
        port = place.port
    except ValueError:
        host = ""
        port = None
    network = _network(host)
    name = host.removeprefix("*.")
    odd = network is None and ("*" in name or not name or place.path or "@" in address)
    if scheme not in PORTS or odd:
        raise StartupError(
            f"--webhook-hosts (MOCA_WEBHOOK_HOSTS): invalid host {text!r}, expected one "
            "such as example.com, *.example.com, http://10.1.2.3:8080 or http://10.0.0.0/8"
        )
    return Rule(scheme, "" if network is not None else host, port, network)


def _split(url: str) -> tuple[SplitResult, int]:
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme, 0)
    except ValueError:
        raise NotAllowed("invalid url") from None
    if parts.scheme not in PORTS or not parts.hostname or parts.username or parts.password:
        raise NotAllowed("expected a url such as https://example.com/hook, without user info")
    return parts, port


def _network(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text.strip("[]"))
    except ValueError:
        return None
