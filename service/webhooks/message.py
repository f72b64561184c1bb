"""What a receiver gets: the body, and headers that prove who sent it (Standard Webhooks)."""

from __future__ import annotations

import base64
import hashlib
import hmac

import msgspec

from service.feed import Raised, instant, shown

_encode = msgspec.json.Encoder().encode


def body_of(raised: Raised) -> bytes:
    """JSON of one event state."""
    return _encode(
        {
            "type": f"changepoint.{raised.event.state}",
            "timestamp": instant(raised.at_ms),
            "data": shown(raised),
        }
    )


def headers_of(secret: bytes, id_: str, now_s: int, body: bytes) -> dict[str, str]:
    """Headers of one attempt; `id_` is the same for every attempt at an event."""
    signed = f"{id_}.{now_s}.".encode() + body
    signature = base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()
    return {
        "Content-Type": "application/json",
        "User-Agent": "moca-webhooks",
        "webhook-id": id_,
        "webhook-timestamp": str(now_s),
        "webhook-signature": f"v1,{signature}",
    }
