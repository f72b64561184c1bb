"""One reader of the event feeds per API process, shared by its connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from itertools import islice

import redis

from service import tasks
from service.api.sse.connections import Connections
from service.observability import metrics
from service.problems import RedisUnavailable
from service.settings import Settings
from service.store.feed import Feeds
from service.tasks import bounded
from service.wire.event_entries import FeedEntry, Id

log = logging.getLogger(__name__)

READ_AT_ONCE = 64  # entries per partition
BUFFER_ENTRIES = 4096  # newest entries, for all consumers: one read of 64 partitions
BLOCK_MS = 1000
PAUSE_S = 0.2
READY_WAIT_S = 5.0


class EventHub:
    """The newest entries of all partitions, in the order they were read."""

    def __init__(self, feeds: Feeds, settings: Settings) -> None:
        self.feeds = feeds
        self.positions: dict[int, Id] = {}  # read so far
        self.count = 0  # entries read by this process
        self.failure: BaseException | None = None
        self._recent: deque[FeedEntry] = deque(maxlen=BUFFER_ENTRIES)
        self._ready, self._moved = asyncio.Event(), asyncio.Event()
        self.connections = Connections(
            metrics.EVENT_STREAMS, settings.max_event_streams, "event-stream"
        )
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the reader."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._report)

    async def ready(self) -> None:
        """Wait until the ends of the feeds are known."""
        with contextlib.suppress(TimeoutError):
            await bounded(self._ready.wait(), READY_WAIT_S)
        if not self._ready.is_set():
            raise RedisUnavailable("the store cannot be reached: no events to subscribe to")

    @property
    def closing(self) -> bool:
        """Whether every connection is to end."""
        return self.connections.closing

    def since(self, number: int, limit: int) -> list[FeedEntry] | None:
        """Return at most `limit` entries after the first `number`; None: some were dropped."""
        waiting = self.count - number
        if waiting > len(self._recent):
            return None
        first = len(self._recent) - waiting
        return list(islice(self._recent, first, first + limit))

    async def moved(self, number: int, timeout_s: float) -> None:
        """Wait until more than `number` entries were read, at most this long."""
        if self.count == number and not self.closing:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._moved.wait()

    async def drain(self) -> None:
        """End every connection; returns when they have ended, or after a while."""
        self.connections.closing = True
        self._wake()
        await self.connections.ended()

    async def close(self) -> None:
        """Stop reading."""
        await self.drain()
        await tasks.end(self._task)
        await self.feeds.close()

    async def _run(self) -> None:
        reached = True
        while not self.closing and not tasks.is_cancelled():
            try:
                await self._read()
                reached = True
            except (redis.RedisError, OSError) as error:
                if reached and not self.closing:
                    log.warning("events: connection lost: %s", error)
                reached = False
                await asyncio.sleep(PAUSE_S)

    async def _read(self) -> None:
        if not self._ready.is_set():
            self.positions = await self.feeds.newest()
            self._ready.set()
        entries = await self.feeds.follow(self.positions, READ_AT_ONCE, BLOCK_MS)
        for entry in entries:
            self.positions[entry.partition] = entry.id
            self._recent.append(entry)
        self.count += len(entries)
        if entries:
            self._wake()

    def _wake(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def _report(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.failure = task.exception()
            log.error("the event reader ended", exc_info=self.failure)
