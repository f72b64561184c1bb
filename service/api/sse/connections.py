"""Limit on event-stream connections, and their end at shutdown."""

from __future__ import annotations

import asyncio
import contextlib

from prometheus_client import Gauge

from service.observability.metrics import LOAD_SHED
from service.problems import RedisUnavailable, TooManyEventStreams

CLOSE_WAIT_S = 1.0


class Connections:
    """Counts the connections of one kind, which errors name."""

    def __init__(self, gauge: Gauge, limit: int, kind: str) -> None:
        self._gauge, self._limit, self._kind = gauge, limit, kind
        self._open = 0
        self._empty = asyncio.Event()
        self.closing = False

    def enter(self) -> None:
        """Count one more; TooManyEventStreams over the limit, RedisUnavailable at shutdown."""
        if self.closing:
            raise RedisUnavailable("the service is stopping")
        if self._open >= self._limit:
            LOAD_SHED.labels(TooManyEventStreams.reason).inc()
            raise TooManyEventStreams(f"limit of {self._open} {self._kind} connections reached")
        self._count(1)

    def leave(self) -> None:
        """Count one less."""
        self._count(-1)

    async def ended(self) -> None:
        """Wait until the last one has ended, at most CLOSE_WAIT_S."""
        self._empty.clear()
        if self._open:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_WAIT_S):
                    await self._empty.wait()

    def _count(self, change: int) -> None:
        self._open += change
        self._gauge.set(self._open)
        if not self._open:
            self._empty.set()
