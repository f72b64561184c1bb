"""Reads of committed state, bounded in time and number."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import TypeVar, cast

import redis

from service.api.gateway.replies import bounded
from service.observability import metrics
from service.problems import CorruptState, RedisUnavailable
from service.store import streams

log = logging.getLogger(__name__)
T = TypeVar("T")
TIMEOUT_S = 5.0


async def from_store(read: Awaitable[T]) -> T:
    """Wait for a read of the store; map its errors to RedisUnavailable and CorruptState."""
    try:
        return cast(T, await bounded(read, TIMEOUT_S))
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
