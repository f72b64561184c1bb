"""Reads of committed state, bounded in time and number."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import TypeVar, cast

import redis

from service import metrics
from service.api.replies import bounded
from service.errors import CorruptState, RedisUnavailable
from service.redis import store

log = logging.getLogger(__name__)
T = TypeVar("T")
TIMEOUT_S = 5.0


async def from_store(read: Awaitable[T]) -> T:
    """Wait for a read of the store, and say what is wrong when it does not come."""
    try:
        return cast(T, await bounded(read, TIMEOUT_S))
    except (redis.RedisError, OSError, TimeoutError) as error:
        raise RedisUnavailable(f"the store does not answer: {error}") from error
    except store.CorruptState as error:
        log.warning("%s", error)
        metrics.CORRUPT_STATES.inc()
        raise CorruptState(str(error)) from error


def without(unreadable: list[str], where: str) -> dict[str, list[str]]:
    """Member of an answer that names the stored parts it had to leave out."""
    if unreadable:
        log.warning("%s: %s cannot be read", where, ", ".join(unreadable))
        metrics.CORRUPT_STATES.inc()
    return {"unreadable": unreadable}
