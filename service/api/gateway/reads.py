"""Reads of committed state, bounded in time and number; pages of sorted rows."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Awaitable, Callable, Iterable
from operator import itemgetter
from typing import Any, Generic, TypeVar, cast

import msgspec

from service import wire
from service.observability import metrics
from service.problems import CorruptState, InvalidField, RedisUnavailable
from service.store import streams
from service.store.shards import UNREACHABLE
from service.tasks import bounded
from service.wire.event_entries import blob_of, text_of

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
    except UNREACHABLE as error:
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


class SortedPages(Generic[Place]):
    """Pages of sorted rows. A cursor has the place of the last row, a tuple, and the order."""

    def __init__(self, place: Any) -> None:
        """place: the type of places, as msgspec takes it."""
        self._decode: Callable[[bytes], tuple[str, Place]] = msgspec.msgpack.Decoder(
            tuple[str, place]
        ).decode

    def page(
        self, ranked: Iterable[tuple[Place, T]], sort: str, cursor: str | None, limit: int
    ) -> tuple[list[T], str | None]:
        """Return the first rows after a cursor, by their places, and the cursor of the next page.

        Raises InvalidField for a cursor that is none of this order.
        """
        after = None if cursor is None else self._place(cursor, sort)
        left = [row for row in ranked if after is None or cast(Any, row[0]) > after]
        page = heapq.nsmallest(limit, left, key=itemgetter(0))
        rows = [row for _, row in page]
        if len(left) == len(page):
            return rows, None
        return rows, text_of(wire.encode((sort, page[-1][0])))

    def _place(self, cursor: str, sort: str) -> Place:
        try:
            other, place = self._decode(blob_of(cursor))
        except (ValueError, msgspec.MsgspecError):
            detail = "expected the unmodified cursor of a page"
        else:
            if other == sort:
                return place
            detail = f"expected a cursor of sort={sort}, got one of sort={other}"
        raise InvalidField.at("query.cursor", detail)
