"""The observations of one stream, as they are applied.

Workers do nothing for it: a stream's committed head shows whether it has new observations. One poll
of the heads serves all connections of a process: each interval costs one round trip for any number
of them, and none without any.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import NamedTuple

from service import wire
from service.api.gateway.reads import from_store
from service.api.sse.connections import RETRY_MS, Connections, Growing, message
from service.observability import metrics
from service.problems import CorruptState, RedisUnavailable
from service.schema import rendering
from service.settings import Settings
from service.store.reads import AsyncStore
from service.store.streams import StoredHead, first_of, head_of

log = logging.getLogger(__name__)

INTERVAL_S = 0.2  # between polls of the heads: 0.1 s late on average, for 1 % of a core
PAGE = 32  # observations read at a time
PAGE_BYTES = 262_144  # about
ENDS = {
    "deleted": "the stream was deleted or has expired",
    "replaced": "the stream was replaced by another of its name: subscribe again",
}


UNSEEN = StoredHead(b"", None)  # before the first poll


class ObservationPage(NamedTuple):
    """Messages with observations, and the `seq` of the one to come after them."""

    chunk: bytes
    stop: int


class ObservationHub:
    """The heads of all streams with live subscribers in this process, as stored."""

    def __init__(self, store: AsyncStore, settings: Settings) -> None:
        self.connections = Connections(
            metrics.SUBSCRIBERS.labels("observations"),
            settings.max_live_streams,
            "live-observation",
        )
        self.store = store
        self.heads: dict[str, StoredHead | None] = {}
        self.changes = Growing()  # of any of them
        self._followers: Counter[str] = Counter()
        self._wanted = asyncio.Event()

    def enter(self, stream: str) -> None:
        """Follow a stream; TooManyEventStreams over the limit."""
        self.connections.enter()
        self._followers[stream] += 1
        self.heads.setdefault(stream, UNSEEN)
        self._wanted.set()

    def leave(self, stream: str) -> None:
        """Stop following a stream."""
        self.connections.leave()
        self._followers[stream] -= 1
        if not self._followers[stream]:
            del self._followers[stream], self.heads[stream]
            if not self.heads:
                self._wanted.clear()

    def saw(self, stream: str, stored: StoredHead | None) -> None:
        """Note a head that was read."""
        if self.heads.get(stream, stored) != stored:
            self.heads[stream] = stored
            self.changes.grow()

    async def look(self, streams: Iterable[str]) -> None:
        """Read heads now; raises RedisUnavailable."""
        for stream, stored in (await from_store(self.store.heads([*streams]))).items():
            self.saw(stream, stored)

    async def watch(self) -> None:
        """Poll the followed streams, forever."""
        reached = True
        while True:
            await self._wanted.wait()
            try:
                await self.look(self.heads)
                reached = True
            except RedisUnavailable as error:
                if reached and not self.connections.closing:
                    log.warning("cannot read live observations: %s", error.detail)
                reached = False
            await asyncio.sleep(INTERVAL_S)

    async def drain(self) -> None:
        """End every connection; returns when they have ended, or after a while."""
        self.connections.closing = True
        self.changes.grow()
        await self.connections.ended()


class Follower:
    """One consumer of a stream, whose head was just read.

    at: `seq` of its next observation. state: whether to send the stream's summary as well. full:
    observations with details.
    """

    def __init__(
        self,
        hub: ObservationHub,
        stream: str,
        head: wire.Head,
        at: int,
        state: bool,
        full: bool,
    ) -> None:
        self._hub = hub
        self._stream = stream
        self._head: wire.Head | None = head
        self._stored: StoredHead | None = UNSEEN
        self._generation = head.generation
        self._at = at
        self._state = state
        self._full = full
        self._sent_head: wire.Head | None = None  # the head of the last summary sent
        self._first: ObservationPage | None = None  # read by `ready`, and not sent yet
        self._sent_s = 0.0
        hub.enter(stream)

    async def ready(self) -> None:
        """Read the first page before the response begins, so that its errors become a problem.

        Otherwise a client that reconnects to unreadable records would get no error. Raises
        RedisUnavailable and CorruptState, and stops following then.
        """
        try:
            if not self._differs() and self._head and self._at < self._head.seq:
                self._first = await self._page(self._head)
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
            count = self._hub.changes.count
            self._see()
            if self._differs():
                # A poll in flight may have returned an older head.
                await self._hub.look([self._stream])
                self._see()
            if reason := self._differs():
                yield message("end", {"reason": reason, "detail": ENDS[reason]})
                return
            left_s = self._sent_s + heartbeat_s - time.monotonic()
            if chunk := await self._news():
                yield self._mark_sent(chunk)
            elif left_s <= 0:
                yield self._mark_sent(b":\n\n")
            else:
                await self._hub.changes.beyond(count, left_s)

    def leave(self) -> None:
        """Stop following."""
        self._hub.leave(self._stream)

    def _see(self) -> None:
        """Update the head from its stored form; raises CorruptState."""
        stored = self._hub.heads[self._stream]
        if stored in (self._stored, UNSEEN):
            return
        self._stored = stored
        try:
            self._head = None if stored is None else head_of(self._stream, stored)
        except ValueError as error:
            raise CorruptState(str(error)) from None

    def _differs(self) -> str:
        return differs(self._head, self._generation, self._at)

    async def _news(self) -> bytes:
        """Return messages that the consumer has not received."""
        head = self._head
        assert head is not None
        if self._at < head.seq:
            chunk, self._at = self._first or await self._page(head)
            self._first = None
            return chunk
        if self._state and head is not self._sent_head:
            self._sent_head = head
            return message("state", rendering.summary(self._stream, head))
        return b""

    async def _page(self, head: wire.Head) -> ObservationPage:
        """Return the next page; raises RedisUnavailable and CorruptState."""
        # Observations no longer retained are one gap.
        first = max(self._at, min(first_of(self._stream, head.oldest), head.seq - 1))
        stop = min(head.seq, first + PAGE)
        read = self._hub.store.following(self._stream, head, first, stop)
        stored, records, _ = await from_store(read)
        self._hub.saw(self._stream, stored)
        self._see()
        now = self._head
        if now is None or now.deleted or now.generation != head.generation:
            return ObservationPage(b"", self._at)
        return _messages(head.generation, records, self._at, stop, self._full)

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
