"""Have sensitivities calibrated on the streams' own labels; a worker does it, in log order."""

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

PERIOD_S = 2.0
TIMEOUT_S = 2.0
AT_ONCE = 1  # of one partition, whose other commands wait for it
AGAIN_S = 600.0  # after one that failed
REFUSED = 4096  # streams that are remembered to have failed


class Calibrations:
    """Polls for streams that ask for it. Several processes may ask for one: it is done once."""

    def __init__(self, store: AsyncStore, gateway: Gateway) -> None:
        self._store, self._gateway = store, gateway
        self._refused: dict[str, float] = {}  # by when they may be tried again

    async def watch(self) -> None:
        """Have streams calibrated, forever."""
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                now = time.monotonic()
                self._refused = {name: t for name, t in self._refused.items() if t > now}
                count = AT_ONCE + min(len(self._refused), REFUSED)
                listed = await bounded(self._store.uncalibrated(count), TIMEOUT_S)
                chosen = [name for name in listed if name not in self._refused]
                await asyncio.gather(*(self._calibrate(stream) for stream in chosen))
            except (redis.RedisError, OSError, TimeoutError) as error:
                log.info("cannot read streams to calibrate: %s", error)

    async def _calibrate(self, stream: str) -> None:
        try:
            outcome = await self._gateway.submit(wire.CalibrateSensitivity(stream))
            failed = outcome.status >= 400
        except ServiceError as error:
            log.info("could not calibrate stream %s: %s", stream, error.detail)
            failed = True
        if failed:
            self._refused[stream] = time.monotonic() + AGAIN_S
