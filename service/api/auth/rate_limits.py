"""Rates of keys, counted in the store for all API processes together."""

from __future__ import annotations

from functools import lru_cache

import redis

from service.api.gateway.reads import from_store
from service.api_keys import Key, Rate, parse_rate
from service.problems import RateExceeded
from service.store.script import Call, Script
from service.store.shards import AsyncStoreClient

PREFIX = "moca:rate"
_parsed = lru_cache(maxsize=1024)(parse_rate)


class Rates:
    """A sliding window for each key: two counters in the store, whatever the rate."""

    def __init__(self, client: AsyncStoreClient, default: str) -> None:
        self._client = client
        self._default = default
        self._script = Script("rate")

    def of(self, key: Key) -> Rate | None:
        """Return a key's rate; None without one, so that such a key costs no round trip."""
        return _parsed(key.rate or self._default)

    async def spend(self, key: Key, rate: Rate) -> None:
        """Count one request; RateExceeded over the rate, RedisUnavailable without the store."""
        wait_s = await from_store(self._count(key, rate))
        if wait_s:
            detail = f"key {key.name!r}: rate limit of {rate} exceeded"
            raise RateExceeded(detail, rate.amount, rate.window_s, wait_s)

    async def _count(self, key: Key, rate: Rate) -> int:
        """Return 0, or the seconds after which the next request may come."""
        call = Call([f"{PREFIX}:{key.id}"], [rate.amount, rate.window_s])
        (answer,) = await self._script.run_all_async(self._client, [call])
        if isinstance(answer, redis.OutOfMemoryError):
            return 0  # a full store takes no counters, but reads and deletes are to work
        if isinstance(answer, Exception):
            raise answer
        wait_s: int = answer
        return wait_s
