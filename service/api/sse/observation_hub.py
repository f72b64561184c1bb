"""Streams with live subscribers: one poll of their committed heads serves all subscribers.

Workers do nothing for it: a stream's committed head shows whether it has new observations. Each
interval costs one round trip for any number of subscribers, and none without subscribers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import NamedTuple

from service import wire
from service.api.gateway.reads import from_store
from service.api.sse.connections import Connections
from service.api.sse.events import message
from service.observability import metrics
from service.problems import CorruptState, RedisUnavailable
from service.schema import rendering
from service.settings import Settings
from service.store.keys import partition_of
from service.store.reads import AsyncStore
from service.store.streams import decoded, first_of
from service.tasks import forget

log = logging.getLogger(__name__)

INTERVAL_S = 0.2  # between polls of the heads: 0.1 s late on average, for 1 % of a core
PAGE, PAGE_BYTES = 32, 262_144  # read at a time: observations, approximate bytes


class Page(NamedTuple):
    """Messages with observations, and the `seq` of the one to come after them."""

    chunk: bytes
    stop: int
    observations: int
    gaps: int


class Watched:
    """One stream and its last known head; `count` increases when it changes."""

    def __init__(self, stream: str, partition: int, head: wire.Head, store: AsyncStore) -> None:
        self.stream, self.partition = stream, partition
        self.head: wire.Head | None = head
        self.count = 0
        self.followers = 0
        self._store = store
        self._blob: bytes | None = b""
        self._corrupt: CorruptState | None = None
        self._moved = asyncio.Event()
        self._page: tuple[tuple[int, int], asyncio.Future[Page]] | None = None

    def saw(self, blob: bytes | None) -> None:
        """Update the head from its stored form."""
        if blob == self._blob:
            return
        self._blob, self._corrupt = blob, None
        try:
            self.head = (
                None if blob is None else decoded(wire.decode_head, blob, "head", self.stream)
            )
        except ValueError as error:
            self._corrupt = CorruptState(str(error))
        self.wake()

    def wake(self) -> None:
        """Wake all followers."""
        self.count += 1
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def moved(self, count: int, timeout_s: float) -> None:
        """Wait for a change since `count`, at most this long."""
        if self.count == count:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._moved.wait()

    async def look(self) -> None:
        """Read the head now; raises RedisUnavailable."""
        blobs = await from_store(self._store.heads([(self.partition, self.stream)]))
        self.saw(blobs[self.stream])

    def check(self) -> None:
        """Raise CorruptState where the head cannot be read."""
        if self._corrupt is not None:
            raise self._corrupt

    async def page(self, start: int) -> Page:
        """Return the page from `start`; followers at the same place share one read.

        Raises RedisUnavailable and CorruptState.
        """
        key = (start, self.count)
        if self._page is None or self._page[0] != key:
            read = asyncio.ensure_future(self._read(start))
            read.add_done_callback(forget)
            self._page = key, read
        return await asyncio.shield(self._page[1])

    async def _read(self, start: int) -> Page:
        head = self.head
        assert head is not None
        # Observations no longer retained are one gap.
        first = max(start, min(first_of(self.stream, head.oldest), head.seq - 1))
        stop = min(head.seq, first + PAGE)
        read = self._store.following(self.partition, self.stream, head, first, stop)
        blob, records = await from_store(read)
        self.saw(blob)
        if self.head is None or self.head.deleted or self.head.generation != head.generation:
            return Page(b"", start, 0, 0)
        return _messages(head.generation, records, start, stop)


class ObservationHub:
    """All streams with live subscribers in this process."""

    def __init__(self, store: AsyncStore, settings: Settings) -> None:
        self.connections = Connections(
            metrics.LIVE_STREAMS, settings.max_live_streams, "live-observation"
        )
        self._store, self._partitions = store, settings.partitions
        self._watched: dict[str, Watched] = {}
        self._wanted = asyncio.Event()

    def enter(self, stream: str, head: wire.Head) -> Watched:
        """Follow a stream whose head was just read; TooManyEventStreams over the limit."""
        self.connections.enter()
        watched = self._watched.get(stream)
        if watched is None:
            partition = partition_of(stream, self._partitions)
            watched = self._watched[stream] = Watched(stream, partition, head, self._store)
            self._wanted.set()
        watched.followers += 1
        return watched

    def leave(self, watched: Watched) -> None:
        """Stop following a stream."""
        self.connections.leave()
        watched.followers -= 1
        if not watched.followers:
            del self._watched[watched.stream]
            if not self._watched:
                self._wanted.clear()

    async def watch(self) -> None:
        """Poll the followed streams, forever."""
        reached = True
        while True:
            await self._wanted.wait()
            try:
                await self._look()
                reached = True
            except RedisUnavailable as error:
                if reached and not self.connections.closing:
                    log.warning("cannot read live observations: %s", error.detail)
                reached = False
            await asyncio.sleep(INTERVAL_S)

    async def drain(self) -> None:
        """End every connection; returns when they have ended, or after a while."""
        self.connections.closing = True
        for watched in self._watched.values():
            watched.wake()
        await self.connections.ended()

    async def _look(self) -> None:
        places = [(watched.partition, watched.stream) for watched in self._watched.values()]
        blobs = await from_store(self._store.heads(places))
        for stream, blob in blobs.items():
            watched = self._watched.get(stream)
            if watched is not None:
                watched.saw(blob)


def cursor_of(seq: int, generation: int) -> str:
    """Return the id of an observation's message; the second part is the stream's generation."""
    return f"{seq}@{generation}"


def _messages(generation: int, records: Sequence[wire.Record], start: int, stop: int) -> Page:
    """Messages of the records of [start, stop), and of the gaps among them."""
    parts: list[bytes] = []
    size, at, gaps, sent = 0, start, 0, 0
    for record in records:
        if size > PAGE_BYTES:
            return Page(b"".join(parts), at, sent, gaps)
        if record.seq > at:
            parts.append(_gap(at, record.seq, generation))
            gaps += 1
        id_ = cursor_of(record.seq, generation)
        parts.append(message("observation", rendering.record(record), id_))
        size, at, sent = size + len(parts[-1]), record.seq + 1, sent + 1
    if at < stop:
        parts.append(_gap(at, stop, generation))
        gaps += 1
    return Page(b"".join(parts), stop, sent, gaps)


def _gap(start: int, end: int, generation: int) -> bytes:
    return message("gap", {"start": start, "end": end}, cursor_of(end - 1, generation))
