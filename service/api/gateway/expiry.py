"""Expire streams whose time to live has passed; the worker decides, in log order."""

from __future__ import annotations

import asyncio
import logging
import time

import redis

from service import wire
from service.api.gateway.gateway import Gateway
from service.api.gateway.replies import bounded
from service.problems import ServiceError
from service.store.reads import AsyncStore

log = logging.getLogger(__name__)

PERIOD_S = 1.0
TIMEOUT_S = 2.0
AT_ONCE = 20  # of one partition


class Expiry:
    """Polls once a second. Several processes may expire one stream: it is deleted once."""

    def __init__(self, store: AsyncStore, gateway: Gateway) -> None:
        self._store, self._gateway = store, gateway

    async def watch(self) -> None:
        """Expire streams, forever."""
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                now_ms = time.time_ns() // 1_000_000
                due = await bounded(self._store.expired(now_ms, AT_ONCE), TIMEOUT_S)
                await asyncio.gather(*(self._expire(stream) for stream in due))
            except (redis.RedisError, OSError, TimeoutError) as error:
                log.info("cannot read expired streams: %s", error)

    async def _expire(self, stream: str) -> None:
        try:
            await self._gateway.submit(wire.Expire(stream))
        except ServiceError as error:
            log.info("could not expire stream %s: %s", stream, error.detail)
