"""Requests for segmentations in hindsight: one at a time for each stream, waited for a while."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Literal, NamedTuple

from service import tasks, wire
from service.api.gateway.gateway import Gateway
from service.problems import ServiceError

log = logging.getLogger(__name__)

WAIT_S = 1.0  # of all who ask for a segmentation, from the first on
# In the logs at a time, as other commands of a partition wait for them; and those that wait here.
IN_LOGS, MOST = 2, 256
Status = Literal["current", "pending", "unavailable"]


class _Request(NamedTuple):
    task: asyncio.Task[Status]
    since: float


class HindsightRequests:
    """Segmentations that workers were asked for by this API process."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._under_way: dict[str, _Request] = {}
        self._in_logs = asyncio.Semaphore(IN_LOGS)

    async def close(self) -> None:
        """Forget the requests under way; what is in a log is computed."""
        await tasks.end(*(request.task for request in self._under_way.values()))

    async def compute(self, stream: str, wait: bool = True) -> Status:
        """Have a stream's segmentation computed; returns how that went, or `pending`.

        Never fails. What takes longer than WAIT_S goes on, and later calls do not wait for it.
        """
        request = self._under_way.get(stream)
        if request is None:
            if len(self._under_way) >= MOST:
                return "pending"
            task = asyncio.get_running_loop().create_task(self._submit(stream))
            task.add_done_callback(lambda _: self._under_way.pop(stream))
            request = self._under_way[stream] = _Request(task, time.monotonic())
        left_s = request.since + WAIT_S - time.monotonic() if wait else 0.0
        done, _ = await asyncio.wait([request.task], timeout=max(0.0, left_s))
        return request.task.result() if done else "pending"

    async def _submit(self, stream: str) -> Status:
        try:
            async with self._in_logs:
                outcome = await self._gateway.submit(wire.SegmentHistory(stream))
        except ServiceError as error:  # overload, an outage, or no worker in time
            log.info("no segmentation in hindsight of %r: %s", stream, error)
            return "unavailable"
        return "current" if outcome.status < 400 else "unavailable"
