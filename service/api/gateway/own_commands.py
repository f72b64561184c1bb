"""Commands that the service sends by itself; workers decide on them, in log order.

Streams whose time to live has passed are expired, and who reads changes has them segmented in
hindsight. Several processes may send the same: it is done once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Literal

from service import wire
from service.api.gateway.gateway import Gateway
from service.problems import ServiceError
from service.store.reads import AsyncStore
from service.store.shards import UNREACHABLE
from service.tasks import bounded, end

log = logging.getLogger(__name__)

TIMEOUT_S = 2.0
EXPIRY_PERIOD_S = 1.0
EXPIRED_AT_ONCE = 20  # of one partition
HINDSIGHT_WAIT_S = 1.0  # of all who ask for a segmentation, from the first on
# In the logs at a time, as other commands of a partition wait for them; and those that wait here.
HINDSIGHT_IN_LOGS = 2
HINDSIGHT_MOST = 256
HindsightStatus = Literal["current", "pending", "unavailable"]


async def expire_streams(store: AsyncStore, gateway: Gateway) -> None:
    """Expire streams, forever: look once a second for those that are due."""

    async def expire(stream: str) -> None:
        try:
            await gateway.submit(wire.Expire(stream))
        except ServiceError as error:
            log.info("could not expire stream %s: %s", stream, error.detail)

    while True:
        await asyncio.sleep(EXPIRY_PERIOD_S)
        try:
            now_ms = time.time_ns() // 1_000_000
            due = await bounded(store.expired(now_ms, EXPIRED_AT_ONCE), TIMEOUT_S)
            await asyncio.gather(*map(expire, due))
        except UNREACHABLE as error:
            log.info("cannot read expired streams: %s", error)


class HindsightRequests:
    """Segmentations that this process asked workers for: one at a time for each stream."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        # The request of a stream, and since when it is under way.
        self._under_way: dict[str, tuple[asyncio.Task[HindsightStatus], float]] = {}
        self._in_logs = asyncio.Semaphore(HINDSIGHT_IN_LOGS)

    async def close(self) -> None:
        """Forget the requests under way; what is in a log is computed."""
        await end(*(task for task, _ in self._under_way.values()))

    async def compute(self, stream: str, wait: bool = True) -> HindsightStatus:
        """Have a stream's segmentation computed; returns how that went, or `pending`.

        Never fails. What takes longer than HINDSIGHT_WAIT_S goes on; later calls wait no more.
        """
        request = self._under_way.get(stream)
        if request is None:
            if len(self._under_way) >= HINDSIGHT_MOST:
                return "pending"
            task = asyncio.get_running_loop().create_task(self._submit(stream))
            task.add_done_callback(lambda _: self._under_way.pop(stream))
            request = self._under_way[stream] = task, time.monotonic()
        task, since = request
        left_s = since + HINDSIGHT_WAIT_S - time.monotonic() if wait else 0.0
        done, _ = await asyncio.wait([task], timeout=max(0.0, left_s))
        return task.result() if done else "pending"

    async def _submit(self, stream: str) -> HindsightStatus:
        try:
            async with self._in_logs:
                outcome = await self._gateway.submit(wire.SegmentHistory(stream))
        except ServiceError as error:  # overload, an outage, or no worker in time
            log.info("no segmentation in hindsight of %r: %s", stream, error)
            return "unavailable"
        return "current" if outcome.status < 400 else "unavailable"
