"""The observations of one stream, as they are applied.

Workers do nothing for it: a stream's committed head shows whether it has new observations. One poll
of the heads serves all connections of a process: each interval costs one round trip for any number
of them, and none without any.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple

from service import wire
from service.api.gateway.reads import from_store
from service.api.sse.connections import RETRY_MS, Connections, Growing, message
from service.observability import metrics
from service.problems import CorruptState, RedisUnavailable
from service.schema import rendering
from service.settings import Settings
from service.store.keys import partition_of
from service.store.reads import AsyncStore
from service.store.streams import StoredHead, first_of, head_of
from service.tasks import forget

log = logging.getLogger(__name__)

INTERVAL_S = 0.2  # between polls of the heads: 0.1 s late on average, for 1 % of a core
PAGE = 32  # observations read at a time
PAGE_BYTES = 262_144  # about
ENDS = {
    "deleted": "the stream was deleted or has expired",
    "replaced": "the stream was replaced by another of its name: subscribe again",
}


class ObservationPage(NamedTuple):
    """Messages with observations, and the `seq` of the one to come after them."""

    chunk: bytes
    stop: int


class LiveStream:
    """One stream and its last known head, whose changes are counted."""

    def __init__(self, stream: str, partition: int, head: wire.Head, store: AsyncStore) -> None:
        self.stream = stream
        self.partition = partition
        self.head: wire.Head | None = head
        self.changes = Growing()
        self.followers = 0
        self._store = store
        self._stored: StoredHead | None = StoredHead(b"", None)
        self._corrupt: CorruptState | None = None
        self._page: tuple[tuple[int, int, bool], asyncio.Future[ObservationPage]] | None = None

    def saw(self, stored: StoredHead | None) -> None:
        """Update the head from its stored form."""
        if stored == self._stored:
            return
        self._stored = stored
        self._corrupt = None
        try:
            self.head = None if stored is None else head_of(self.stream, stored)
        except ValueError as error:
            self._corrupt = CorruptState(str(error))
        self.changes.grow()

    async def look(self) -> None:
        """Read the head now; raises RedisUnavailable."""
        heads = await from_store(self._store.heads([(self.partition, self.stream)]))
        self.saw(heads[self.stream])

    def check(self) -> None:
        """Raise CorruptState where the head cannot be read."""
        if self._corrupt is not None:
            raise self._corrupt

    async def page(self, start: int, full: bool) -> ObservationPage:
        """Return the page from `start`; followers at the same place share one read.

        full: with details. Raises RedisUnavailable and CorruptState.
        """
        key = (start, self.changes.count, full)
        if self._page is None or self._page[0] != key:
            read = asyncio.ensure_future(self._read(start, full))
            read.add_done_callback(forget)
            self._page = key, read
        return await asyncio.shield(self._page[1])

    async def _read(self, start: int, full: bool) -> ObservationPage:
        head = self.head
        assert head is not None
        # Observations no longer retained are one gap.
        first = max(start, min(first_of(self.stream, head.oldest), head.seq - 1))
        stop = min(head.seq, first + PAGE)
        read = self._store.following(self.partition, self.stream, head, first, stop)
        stored, records = await from_store(read)
        self.saw(stored)
        if self.head is None or self.head.deleted or self.head.generation != head.generation:
            return ObservationPage(b"", start)
        return _messages(head.generation, records, start, stop, full)


class ObservationHub:
    """All streams with live subscribers in this process."""

    def __init__(self, store: AsyncStore, settings: Settings) -> None:
        self.connections = Connections(
            metrics.SUBSCRIBERS.labels("observations"),
            settings.max_live_streams,
            "live-observation",
        )
        self._store = store
        self._partitions = settings.partitions
        self._watched: dict[str, LiveStream] = {}
        self._wanted = asyncio.Event()

    def enter(self, stream: str, head: wire.Head) -> LiveStream:
        """Follow a stream whose head was just read; TooManyEventStreams over the limit."""
        self.connections.enter()
        watched = self._watched.get(stream)
        if watched is None:
            partition = partition_of(stream, self._partitions)
            watched = LiveStream(stream, partition, head, self._store)
            self._watched[stream] = watched
            self._wanted.set()
        watched.followers += 1
        return watched

    def leave(self, watched: LiveStream) -> None:
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
            watched.changes.grow()
        await self.connections.ended()

    async def _look(self) -> None:
        places = [(watched.partition, watched.stream) for watched in self._watched.values()]
        heads = await from_store(self._store.heads(places))
        for stream, stored in heads.items():
            watched = self._watched.get(stream)
            if watched is not None:
                watched.saw(stored)


class Follower:
    """Position of one consumer: `at` is the `seq` of its next observation.

    state: whether to send the stream's summary as well. full: observations with details.
    """

    def __init__(
        self,
        hub: ObservationHub,
        watched: LiveStream,
        generation: int,
        at: int,
        state: bool,
        full: bool,
    ) -> None:
        self._hub = hub
        self._watched = watched
        self._generation = generation
        self._at = at
        self._state = state
        self._full = full
        self._sent_head: wire.Head | None = None  # the head of the last summary sent
        self._sent_s = 0.0

    async def ready(self) -> None:
        """Read the first page before the response begins, so that its errors become a problem.

        Otherwise a client that reconnects to unreadable records would get no error. Raises
        RedisUnavailable and CorruptState, and stops following then.
        """
        try:
            head = self._watched.head
            if not differs(head, self._generation, self._at) and head and self._at < head.seq:
                await self._watched.page(self._at, self._full)
        except BaseException:
            self.leave()
            raise

    async def chunks(self, heartbeat_s: float) -> AsyncGenerator[bytes]:
        """Yield messages until the stream ends, or the service stops.

        Raises RedisUnavailable and CorruptState.
        """
        # A consumer that disconnects before its first message resumes here as well.
        place = cursor_of(self._at - 1, self._generation)
        yield self._mark_sent(f"retry: {RETRY_MS}\n:\nid: {place}\n\n".encode())
        while not self._hub.connections.closing:
            count = self._watched.changes.count
            if reason := await self._end_reason():
                yield message("end", {"reason": reason, "detail": ENDS[reason]})
                return
            left_s = self._sent_s + heartbeat_s - time.monotonic()
            if chunk := await self._news():
                yield self._mark_sent(chunk)
            elif left_s <= 0:
                yield self._mark_sent(b":\n\n")
            else:
                await self._watched.changes.beyond(count, left_s)

    def leave(self) -> None:
        """Stop following."""
        self._hub.leave(self._watched)

    async def _end_reason(self) -> str:
        """Return why the subscription ends; empty if it continues."""
        self._watched.check()
        if not differs(self._watched.head, self._generation, self._at):
            return ""
        # A poll in flight may have returned an older head.
        await self._watched.look()
        self._watched.check()
        return differs(self._watched.head, self._generation, self._at)

    async def _news(self) -> bytes:
        """Return messages that the consumer has not received."""
        head = self._watched.head
        assert head is not None
        if self._at < head.seq:
            page = await self._watched.page(self._at, self._full)
            self._at = page.stop
            return page.chunk
        if self._state and head is not self._sent_head:
            self._sent_head = head
            return message("state", rendering.summary(self._watched.stream, head))
        return b""

    def _mark_sent(self, chunk: bytes) -> bytes:
        self._sent_s = time.monotonic()
        return chunk


def differs(head: wire.Head | None, generation: int, at: int) -> str:
    """Return why a stream cannot continue at `at` in this generation; empty if it can.

    at: `seq` of the next observation. Those queued behind a pending label already have a `seq`.
    """
    if head is None or head.deleted:
        return "deleted"
    ahead = at > head.next_seq  # of a store that was restored to an earlier state
    return "replaced" if ahead or head.generation != generation else ""


def cursor_of(seq: int, generation: int) -> str:
    """Return the id of an observation's message; the second part is the stream's generation."""
    return f"{seq}@{generation}"


def _messages(
    generation: int, records: Sequence[wire.Record], start: int, stop: int, full: bool
) -> ObservationPage:
    """Messages of the records of [start, stop), and of the gaps among them."""
    parts: list[bytes] = []
    size = 0
    at = start
    for record in records:
        if size > PAGE_BYTES:
            return ObservationPage(b"".join(parts), at)
        if record.seq > at:
            parts.append(_gap(at, record.seq, generation))
        id_ = cursor_of(record.seq, generation)
        parts.append(message("observation", rendering.record(record, full), id_))
        size += len(parts[-1])
        at = record.seq + 1
    if at < stop:
        parts.append(_gap(at, stop, generation))
    return ObservationPage(b"".join(parts), stop)


def _gap(start: int, end: int, generation: int) -> bytes:
    return message("gap", {"start": start, "end": end}, cursor_of(end - 1, generation))
