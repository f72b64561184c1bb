"""Reads of committed state, bounded in time and number; cursors of sorted pages."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar, cast

import msgspec
import redis

from service import wire
from service.observability import metrics
from service.problems import CorruptState, FieldError, InvalidField, RedisUnavailable
from service.store import streams
from service.tasks import bounded

log = logging.getLogger(__name__)
T = TypeVar("T")
Place = TypeVar("Place")
TIMEOUT_S = 5.0


async def from_store(read: Awaitable[T], bound: bool = True) -> T:
    """Wait for a read of the store; map its errors to RedisUnavailable and CorruptState.

    bound: whether for TIMEOUT_S at most; one of many reads has bounds of its own.
    """
    try:
        return cast(T, await bounded(read, TIMEOUT_S)) if bound else await read
    except (redis.RedisError, OSError, TimeoutError) as error:
        raise RedisUnavailable(f"the store does not respond: {error}") from error
    except streams.UnreadablePart as error:
        log.warning("%s", error)
        metrics.CORRUPT_STATES.inc()
        raise CorruptState(str(error)) from error


def without(unreadable: list[str], where: str) -> list[str]:
    """Log and return the names of unreadable parts that an answer leaves out."""
    if unreadable:
        log.warning("%s: cannot read %s", where, ", ".join(unreadable))
        metrics.CORRUPT_STATES.inc()
    return unreadable


class SortedCursor(Generic[Place]):
    """Cursors of sorted pages: the place of the last row, a tuple, and the order of the page."""

    def __init__(self, place: Any) -> None:
        """place: the type of places, as msgspec takes it."""
        self._decode: Callable[[bytes], tuple[str, Place]] = msgspec.msgpack.Decoder(
            tuple[str, place]
        ).decode

    def encode(self, sort: str, place: Place) -> str:
        """Return the cursor of the page after a place."""
        return base64.urlsafe_b64encode(wire.encode((sort, place))).rstrip(b"=").decode()

    def decode(self, cursor: str | None, sort: str) -> Place | None:
        """Return the place of a cursor; raises InvalidField for one that is none of this order."""
        if cursor is None:
            return None
        try:
            padded = cursor + "=" * (-len(cursor) % 4)
            other, place = self._decode(base64.b64decode(padded, altchars=b"-_", validate=True))
        except (binascii.Error, ValueError, msgspec.MsgspecError):
            detail = "expected the unmodified cursor of a page"
        else:
            if other == sort:
                return place
            detail = f"expected a cursor of sort={sort}, got one of sort={other}"
        raise InvalidField([FieldError("query.cursor", detail)])
