"""Reads of committed state, bounded in time."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import TypeVar, cast

from service.observability import metrics
from service.problems import CorruptState, RedisUnavailable
from service.store import streams
from service.store.shards import UNREACHABLE
from service.tasks import bounded

log = logging.getLogger(__name__)
T = TypeVar("T")
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
