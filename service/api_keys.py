"""API keys: what one looks like, what is kept of it, and what it allows.

A key is `moca_<id>_<secret>`. The secret has 256 random bits, is shown once, and only a hash of it
is kept: a fast one is enough, for nobody can go through so many secrets.
"""

from __future__ import annotations

import hmac
import re
import secrets
import time
from collections.abc import Collection
from datetime import UTC, datetime
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from moca_client.times import period_s

SCOPES = {
    "read": "all calls that change nothing, predictions and actions included",
    "write": "observations, streams and their beliefs",
    "admin": "snapshot imports, canaries, moves of many streams",
}
OPEN = "open"  # of a call: needs no key
UNLIMITED = "none"  # as a rate
NAME = re.compile(r"[A-Za-z0-9._@~-]{1,100}")
SECRET_BYTES = 32
_token = re.compile(r"moca_([0-9a-f]{12})_([A-Za-z0-9_-]{43})").fullmatch
_rate = re.compile(
    r"\s*(\d{1,9})\s*(?:/|per)\s*(\d{1,6})?\s*(second|minute|hour|day)s?\s*", re.IGNORECASE
).fullmatch
_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a key. Times are in milliseconds since 1970; 0: never."""

    id: str
    name: str
    hash: bytes
    scopes: tuple[str, ...]
    rate: str = ""  # requests per time; empty: the service's `key_rate`
    created_ms: int
    expires_ms: int = 0
    revoked_ms: int = 0

    def matches(self, secret: str) -> bool:
        """Whether a secret is this key's, in a time that does not tell how far it is right."""
        return hmac.compare_digest(_hash(self.id, secret), self.hash)

    def state(self, now_ms: float) -> str:
        """Return `active`, `revoked` or `expired`."""
        if self.revoked_ms:
            return "revoked"
        return "expired" if self.expires_ms and now_ms >= self.expires_ms else "active"


def create(
    name: str, scopes: Collection[str], rate: str = "", expires_ms: int = 0
) -> tuple[Key, str]:
    """Return a new key and its token, which is nowhere else; ValueError says what is wrong."""
    if not NAME.fullmatch(name):
        raise ValueError(
            f"name {name!r}: expected 1 to 100 of the characters A-Z a-z 0-9 . _ @ ~ -"
        )
    unknown = set(scopes) - set(SCOPES)
    if unknown or not scopes:
        raise ValueError(f"scopes: expected some of {', '.join(SCOPES)}, got {sorted(scopes)}")
    if rate:
        parse_rate(rate)
    id_ = secrets.token_hex(6)
    secret = secrets.token_urlsafe(SECRET_BYTES)
    key = Key(
        id=id_,
        name=name,
        hash=_hash(id_, secret),
        scopes=tuple(scope for scope in SCOPES if scope in scopes),
        rate=rate,
        created_ms=time.time_ns() // 1_000_000,
        expires_ms=expires_ms,
    )
    return key, f"moca_{id_}_{secret}"


def parse_token(token: str) -> tuple[str, str] | None:
    """Return the id and the secret of a token; None for what cannot be one."""
    parts = _token(token)
    return None if parts is None else (parts[1], parts[2])


class Rate(NamedTuple):
    """Requests for each window."""

    amount: int
    window_s: int

    def __str__(self) -> str:
        return f"{self.amount} per {self.window_s} s"


def parse_rate(text: str) -> Rate | None:
    """Return a rate such as `100/second` or `5000 per 10 minutes`; None for `none`.

    Raises ValueError for what is none.
    """
    if text == UNLIMITED:
        return None
    parts = _rate(text)
    amount = int(parts[1]) if parts else 0
    window_s = int(parts[2] or 1) * _UNITS[parts[3].lower()] if parts else 0
    if not amount or not window_s:
        raise ValueError(
            f"rate {text!r}: expected a rate such as 100/second or 5000/minute, or none"
        )
    return Rate(amount, window_s)


def parse_expiry(text: str, now_ms: int) -> int:
    """Return when `90d`, `12h` or an RFC 3339 time ends, in ms; ValueError for what is none."""
    seconds = period_s(text)
    if seconds is not None:
        return now_ms + seconds * 1000
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"expires {text!r}: expected a duration such as 90d or 12h (s, m, h, d, w), or "
            "a date such as 2030-01-31 or 2030-01-31T12:00:00Z"
        ) from None
    expires_ms = int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)
    if expires_ms <= now_ms:
        raise ValueError(f"expires {text!r}: expected a time in the future")
    return expires_ms


def _hash(id_: str, secret: str) -> bytes:
    return blake2b(
        secret.encode(), key=id_.encode(), digest_size=32, person=b"moca-api-key"
    ).digest()
