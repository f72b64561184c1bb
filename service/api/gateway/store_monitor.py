"""Store health, polled once a second: reachable, partitions owned, memory used."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from service.calendar import Calendar
from service.models.catalogue import Canary
from service.observability import metrics
from service.settings import Settings
from service.store.reads import AsyncStore, Health
from service.store.shards import UNREACHABLE
from service.tasks import bounded

log = logging.getLogger(__name__)

PERIOD_S = 1.0
TIMEOUT_S = 2.0
SHARE = 0.1
LONGEST_S = 5.0
AGAIN_S = 0.2  # between polls of an unreachable store: requests are refused meanwhile


class StoreMonitor:
    """The store's health as last seen."""

    def __init__(self, store: AsyncStore, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._lag = [metrics.PARTITION_LAG.labels(str(p)) for p in range(settings.partitions)]
        self.down_since = 0.0  # 0: reachable
        self.memory_short = False
        self.canaries: dict[str, Canary] = {}
        self.calendar = Calendar()
        # Days between two false alarms of one stream, as of `Envelope`; 0: no stream is known yet.
        self.quiet_days = None if settings.false_alarms_per_day is None else 0.0

    async def watch(self) -> None:
        """Poll the store once a second, forever."""
        while True:
            began = time.monotonic()
            if await self.look() is None:
                await asyncio.sleep(AGAIN_S)
                continue
            await self.look_for_canaries()
            await self.look_for_windows()
            with contextlib.suppress(*UNREACHABLE):
                condition = await bounded(self._store.condition(), TIMEOUT_S)
                metrics.OLDEST_PENDING.set(condition.oldest_pending_s)
                metrics.REDIS_APPEND_ONLY.set(condition.append_only)
                metrics.REDIS_APPEND_ONLY_FAILING.set(condition.append_only_failing)
            # With thousands of partitions a poll is expensive: it gets at most a share of the time.
            # The pause is bounded, as a very slow poll was waiting, not working.
            pause_s = (time.monotonic() - began) / SHARE
            await asyncio.sleep(min(max(PERIOD_S, pause_s), LONGEST_S))

    async def look(self) -> Health | None:
        """Return the store's health; None when it does not respond."""
        try:
            health: Health = await bounded(self._store.health(), TIMEOUT_S)
        except UNREACHABLE as error:
            if not self.down_since:
                log.warning("store unreachable: %s", error)
                self.down_since = time.monotonic()
            metrics.REDIS_UP.set(0)
            return None
        if self.down_since:
            log.warning("store reachable again")
        self.down_since = 0.0
        if self._settings.false_alarms_per_day is not None:
            self.quiet_days = health.streams / self._settings.false_alarms_per_day
        share = health.used_memory / health.maxmemory if health.maxmemory else 0.0
        self.memory_short = share > self._settings.memory_shed_fraction
        metrics.REDIS_UP.set(1)
        metrics.REDIS_MEMORY_RATIO.set(share)
        metrics.REDIS_USED_MEMORY.set(health.used_memory)
        metrics.UNOWNED_PARTITIONS.set(len(health.unowned))
        for gauge, pending in zip(self._lag, health.pending, strict=True):
            gauge.set(pending)
        return health

    async def look_for_canaries(self) -> None:
        """Read the canaries; keep the known ones if the store does not respond."""
        with contextlib.suppress(*UNREACHABLE):
            canaries, unreadable = await bounded(self._store.canaries(), TIMEOUT_S)
            kept = {name: self.canaries[name] for name in unreadable if name in self.canaries}
            self.canaries = canaries | kept
            if unreadable:
                log.error("cannot read the canaries of %s: set them again", ", ".join(unreadable))

    async def look_for_windows(self) -> None:
        """Read the calendar; keep the known windows if the store does not respond."""
        with contextlib.suppress(*UNREACHABLE):
            await bounded(self.read_windows(), TIMEOUT_S)

    async def read_windows(self) -> Calendar:
        """Read the calendar; raises RedisError. A damaged window is kept as it is known."""
        windows, unreadable = await self._store.windows()
        known = self.calendar.windows
        kept = {name: known[name] for name in unreadable if name in known}
        self.calendar.replace(windows | kept)
        if unreadable:
            log.error("cannot read the windows %s: set them again", ", ".join(unreadable))
        return self.calendar
