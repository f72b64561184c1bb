"""Rates of keys, counted in the store for all API processes together."""

from __future__ import annotations

import math
import time
from functools import lru_cache
from typing import Any

import redis
import redis.asyncio
from limits import RateLimitItem
from limits.aio.storage import RedisStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from service.api.gateway.reads import from_store
from service.api_keys import Key, parse_rate
from service.errors.http import RateExceeded
from service.store.cluster.asynchronous import AsyncCluster

PREFIX = "moca:rate"
_parsed = lru_cache(maxsize=1024)(parse_rate)


class Rates:
    """A sliding window for each key: two counters in the store, whatever the rate."""

    def __init__(self, client: redis.asyncio.Redis, default: str) -> None:
        # The address is only looked at for its form: the connections are the client's, which
        # never repeat a command by themselves.
        clustered = isinstance(client, AsyncCluster)
        pool: Any = {} if clustered else {"connection_pool": client.connection_pool}
        storage = RedisStorage(
            "async+redis://localhost:6379", implementation="redispy", key_prefix=PREFIX, **pool
        )
        if clustered:  # both counters of a key are in one slot
            bridge: Any = storage.bridge
            bridge.storage, bridge.connection_getter = client, lambda _: client
            bridge.register_scripts()
        self._windows = SlidingWindowCounterRateLimiter(storage)
        self._default = default

    def of(self, key: Key) -> RateLimitItem | None:
        """Return a key's rate; None without one, so that such a key costs no round trip."""
        return _parsed(key.rate or self._default)

    async def spend(self, key: Key, rate: RateLimitItem) -> None:
        """Count one request; RateExceeded over the rate, RedisUnavailable without the store."""
        if not await from_store(self._hit(key, rate)):
            stats = await from_store(self._windows.get_window_stats(rate, key.id))
            window_s = rate.get_expiry()
            reset_s = min(max(1, math.ceil(stats.reset_time - time.time())), window_s)
            raise RateExceeded(
                f"key {key.name!r}: rate limit of {rate} exceeded", rate.amount, window_s, reset_s
            )

    async def _hit(self, key: Key, rate: RateLimitItem) -> bool:
        try:
            return await self._windows.hit(rate, key.id)
        except redis.OutOfMemoryError:
            return True  # a full store takes no counters, but reads and deletes are to work
