"""Reads of committed state, bounded in time and number."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar, cast

import redis

from service.api.replies import bounded
from service.errors import CorruptState, RedisUnavailable
from service.redis import store

T = TypeVar("T")
TIMEOUT_S = 5.0


async def from_store(read: Awaitable[T]) -> T:
    """Wait for a read of the store, and say what is wrong when it does not come."""
    try:
        return cast(T, await bounded(read, TIMEOUT_S))
    except (redis.RedisError, OSError, TimeoutError) as error:
        raise RedisUnavailable(f"the store does not answer: {error}") from error
    except store.CorruptState as error:
        raise CorruptState(str(error)) from error
