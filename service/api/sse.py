"""Server-sent events: what all streams raise, and the observations of one, as they come.

A hub looks at the store for all connections of a process, and wakes them where something is new;
each consumer then reads what it has not sent. Workers do nothing for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping
from operator import itemgetter
from typing import Any

import msgspec
from prometheus_client import Gauge
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from moca_client.responses import MESSAGES
from service import wire
from service.api.auth import Authenticator
from service.api.gateway.load_shedding import shed
from service.api.gateway.pages import IncidentPages
from service.observability import metrics
from service.problems import CorruptState, RedisUnavailable, ServiceError, TooManyEventStreams
from service.schema import rendering
from service.schema.rendering import event_state, instant
from service.settings import Settings
from service.store.feed import Feeds
from service.store.reads import AsyncStore, from_store
from service.store.shards import UNREACHABLE
from service.store.streams import StoredHead, head_of
from service.tasks import happened, is_cancelled
from service.wire import Id
from service.wire.event_entries import START, FeedEntry, Filter, Positions

log = logging.getLogger(__name__)

HEARTBEAT_S = 15.0  # between comments on a quiet connection: proxies commonly close after 60 s
SEND_TIMEOUT_S = 30.0  # a consumer that takes nothing for longer is cut off, and may resume
RETRY_MS = 1000  # how soon a browser connects again
CLOSE_WAIT_S = 1.0
READY_WAIT_S = 5.0
POLL_S = 0.1  # between looks at the feeds
INTERVAL_S = 0.2  # between looks at heads: 0.1 s late on average, for 1 % of a core
PAUSE_S = 0.2  # while the store is away
READ_AT_ONCE = 64  # entries of each partition
PARTITIONS_AT_ONCE = 16  # of a consumer's read
PAGE = 32  # entries of each of them, or observations
PAGE_BYTES = 262_144  # about
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
ENDS = {
    "deleted": "the stream was deleted or has expired",
    "replaced": "the stream was replaced by another of its name: subscribe again",
}
UNSEEN = StoredHead(b"", None)  # before the first look
_encode = msgspec.json.Encoder().encode


class Hub:
    """Connections of one kind, which errors name, and those of them that wait for news."""

    def __init__(self, gauge: Gauge, limit: int, kind: str) -> None:
        self.news = 0  # how often there was some
        self.closing = False  # whether every connection is to end
        self._came = asyncio.Event()
        self._gauge = gauge
        self._limit = limit
        self._kind = kind
        self._open = 0
        self._empty = asyncio.Event()

    def enter(self) -> None:
        """Count one more; TooManyEventStreams over the limit, RedisUnavailable at shutdown."""
        if self.closing:
            raise RedisUnavailable("the service is stopping")
        if self._open >= self._limit:
            shed(TooManyEventStreams(f"limit of {self._open} {self._kind} connections reached"))
        self._count(1)

    def leave(self) -> None:
        """Count one less."""
        self._count(-1)

    def wake(self) -> None:
        """Wake all who wait: there is news."""
        self.news += 1
        came = self._came
        self._came = asyncio.Event()
        came.set()

    async def beyond(self, news: int, timeout_s: float) -> None:
        """Wait until there was more news than so much; at most this long."""
        if self.news == news:
            await happened(self._came, timeout_s)

    async def drain(self) -> None:
        """End every connection; returns when they have ended, or after CLOSE_WAIT_S."""
        self.closing = True
        self.wake()
        self._empty.clear()
        if self._open:
            await happened(self._empty, CLOSE_WAIT_S)

    def _count(self, change: int) -> None:
        self._open += change
        self._gauge.set(self._open)
        if not self._open:
            self._empty.set()


class Consumer(ABC):
    """One connection of a hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._over = False
        self._due_s = 0.0  # when the next heartbeat is
        self._patience_s = HEARTBEAT_S  # how long to wait without news

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield messages until the consumer is over, or the service stops."""
        chunk = f"retry: {RETRY_MS}\n".encode() + self._beat()
        while True:
            if chunk:
                self._due_s = time.monotonic() + HEARTBEAT_S
                yield chunk
            if self._over or self._hub.closing:
                return
            news = self._hub.news
            chunk = await self._next()
            left_s = self._due_s - time.monotonic()
            if not chunk and left_s <= 0:
                chunk = self._beat()
            elif not chunk:
                await self._hub.beyond(news, min(left_s, self._patience_s))

    def leave(self) -> None:
        """End."""
        self._hub.leave()

    @abstractmethod
    async def _next(self) -> bytes:
        """Return the next messages; empty: there are none now, or a heartbeat is due."""

    @abstractmethod
    def _beat(self) -> bytes:
        """Return a comment, with the place to resume at if that has moved."""


def message(kind: str, data: Any, id_: str = "") -> bytes:
    """Return a server-sent event."""
    place = f"id: {id_}\n" if id_ else ""
    return f"{place}event: {kind}\ndata: {_encode(data).decode()}\n\n".encode()


class EventStream(StreamingResponse):
    """A streaming response without an end.

    A consumer that does not read for SEND_TIMEOUT_S is disconnected. Only the connection's own
    buffer waits for it: later messages are in the store. A consumer whose key was revoked is
    disconnected before the next chunk.
    """

    media_type = "text/event-stream"

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._chunks = consumer.chunks()
        super().__init__(self._chunks, headers=HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until either side closes it."""
        scope["state"]["answered_s"] = time.perf_counter()
        admitted = self._admitted(scope)
        self.body_iterator = admitted
        admission = scope["app"].state.admission
        admission.event_streams += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            admission.event_streams -= 1
            self._consumer.leave()
            await admitted.aclose()
            await self._chunks.aclose()

    async def _admitted(self, scope: Scope) -> AsyncGenerator[bytes]:
        """Yield the chunks while the request's key is valid."""
        authenticator: Authenticator = scope["app"].state.context.authenticator
        async for chunk in self._chunks:
            if not authenticator.still_admits(scope):
                log.info("closing event stream: key revoked")
                return
            yield chunk

    async def stream_response(self, send: Send) -> None:
        """Send the chunks, each within the send timeout."""

        async def timed(message: Message) -> None:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await send(message)

        try:
            await super().stream_response(timed)
        except TimeoutError:
            log.warning("closing event stream: send timeout after %g s", SEND_TIMEOUT_S)
        except ServiceError as error:
            # The response has begun: the consumer gets the error when it reconnects.
            log.warning("closing event stream: %s", error.detail)
            await timed({"type": "http.response.body", "body": b"", "more_body": False})


# --- changepoints and anomalies of all streams ----------------------------------------------------


class EventHub(Hub):
    """How far the feeds of all partitions have come."""

    def __init__(self, feeds: Feeds, settings: Settings) -> None:
        gauge = metrics.SUBSCRIBERS.labels("events")
        super().__init__(gauge, settings.max_event_streams, "event-stream")
        self.feeds = feeds
        self.positions: dict[int, Id] = {}  # of the last entries, while somebody listens
        self._wanted = asyncio.Event()
        self._known = asyncio.Event()

    async def ready(self) -> None:
        """Wait until the ends of the feeds are known, by a look that ends after this call."""
        self._known.clear()
        self._wanted.set()
        if not await happened(self._known, READY_WAIT_S):
            raise RedisUnavailable("the store cannot be reached: no events to subscribe to")

    async def watch(self) -> None:
        """Read how far the feeds come, forever; nothing while nobody listens."""
        reached = True
        while not is_cancelled():
            if not self._open:
                await self._wanted.wait()
            wanted = self._wanted.is_set()
            try:
                grown = await self._look(wanted)
                reached = True
            except UNREACHABLE as error:
                if reached and not self.closing:
                    log.warning("events: connection lost: %s", error)
                reached = False
                await asyncio.sleep(PAUSE_S)
                continue
            if wanted or not grown:
                await happened(self._wanted, POLL_S)

    async def _look(self, wanted: bool) -> bool:
        """Read how far the feeds have come; whether any has grown. wanted: by `ready`."""
        if wanted:
            grown = await self.feeds.newest()
            self._wanted.clear()
            self._known.set()
        else:
            grown = await self.feeds.grown(self.positions, READ_AT_ONCE)
        self.positions |= grown
        if grown:
            self.wake()
        return bool(grown)


class Subscription(Consumer):
    """Filter and positions of one consumer.

    `whole`: it requested everything retained, so entries trimmed before are no gap. incidents:
    where those of confirmed changes are found; None: it has not asked for them.
    """

    _hub: EventHub

    def __init__(
        self,
        hub: EventHub,
        filter_: Filter,
        positions: Positions,
        whole: bool,
        incidents: IncidentPages | None = None,
    ) -> None:
        super().__init__(hub)
        self._incidents = incidents
        self._confirmed: set[str] = set()  # ids of changes whose incidents are to be sent
        self._filter = filter_
        self._positions = positions
        self._whole = whole
        self._begun = False
        self._sent_cursor = ""  # last cursor sent
        hub.enter()

    async def _next(self) -> bytes:
        if not self._begun:
            self._begun = True
            if gap := await self._first_gap():
                return gap
        self._patience_s = HEARTBEAT_S
        while behind := self._positions.behind(self._hub.positions):
            try:
                chunk = self._messages(await self._page(behind))
            except RedisUnavailable:  # the hub waits as well
                self._patience_s = PAUSE_S
                break
            if chunk:
                # Incidents come first: a consumer that is cut off between resumes before both.
                return await self._incident_messages() + chunk
            if time.monotonic() >= self._due_s:
                break
        return b""

    async def _page(self, behind: Mapping[int, Id]) -> list[FeedEntry]:
        # What is furthest behind comes first: partitions in which much happens keep none back.
        some = dict(sorted(behind.items(), key=itemgetter(1))[:PARTITIONS_AT_ONCE])
        entries: list[FeedEntry] = await from_store(self._hub.feeds.page(some, PAGE))
        for partition in some.keys() - {entry.partition for entry in entries}:
            # Its entries are gone from the store: there is nothing to catch up with.
            self._positions.move(partition, self._hub.positions[partition])
        return sorted(entries, key=lambda entry: entry.id)

    async def _first_gap(self) -> bytes:
        """Return one message with all entries trimmed since the consumer's cursor."""
        behind = self._positions.behind(self._hub.positions)
        if not behind or self._whole:
            return b""
        firsts: list[FeedEntry] = await from_store(self._hub.feeds.page(behind, 1))
        return self._gap([entry for entry in firsts if entry.before > behind[entry.partition]])

    def _messages(self, entries: Iterable[FeedEntry]) -> bytes:
        """Move past these entries; return the messages to send."""
        messages = []
        for entry in entries:
            at = self._positions[entry.partition]
            if entry.before > at and not (self._whole and at == START):
                messages.append(self._gap([entry]))
            self._positions.move(entry.partition, entry.id)
            if entry.raised is not None and self._filter.lets(entry.raised):
                kind = MESSAGES[entry.raised.event.kind]
                messages.append(self._message(kind, event_state(entry.raised)))
                event = entry.raised.event
                if event.kind == "change" and event.state == "confirmed" and event.news:
                    self._confirmed.add(entry.raised.change_id)
        return b"".join(messages)

    async def _incident_messages(self) -> bytes:
        """Return a message without a cursor for each incident of the changes that are sent next."""
        confirmed = self._confirmed
        self._confirmed = set()
        if self._incidents is None or not confirmed:
            return b""
        incidents = await self._incidents.of_changes(confirmed, self._filter.kinds)
        return b"".join(message("incident", incident) for incident in incidents)

    def _gap(self, firsts: list[FeedEntry]) -> bytes:
        """Return a gap message for the entries lost before these; moves the cursor past them."""
        if not firsts:
            return b""
        lost = []
        for entry in firsts:
            at = self._positions[entry.partition]
            after = instant(at.ms) if at > START else None
            until = instant(entry.before.ms)
            lost.append({"partition": entry.partition, "after": after, "until": until})
            self._positions.move(entry.partition, entry.before)
        return self._message("gap", {"partitions": lost})

    def _message(self, kind: str, data: Any) -> bytes:
        self._sent_cursor = self._positions.text()
        return message(kind, data, self._sent_cursor)

    def _beat(self) -> bytes:
        """Return a comment; with the cursor if it moved past events that the filter excludes."""
        cursor = self._positions.text()
        before = self._sent_cursor
        self._sent_cursor = cursor
        return b":\n\n" if cursor == before else f":\nid: {cursor}\n\n".encode()


# --- observations of one stream -------------------------------------------------------------------


class ObservationHub(Hub):
    """The heads of all streams with live subscribers in this process, as stored.

    A stream's committed head shows whether it has new observations. One read of the heads serves
    all connections of a process: each interval costs one round trip for any number of them, and
    none without any.
    """

    def __init__(self, store: AsyncStore, settings: Settings) -> None:
        gauge = metrics.SUBSCRIBERS.labels("observations")
        super().__init__(gauge, settings.max_live_streams, "live-observation")
        self.store = store
        self.heads: dict[str, StoredHead | None] = {}
        self._followers: Counter[str] = Counter()
        self._wanted = asyncio.Event()

    def follow(self, stream: str) -> None:
        """Count a follower of a stream; TooManyEventStreams over the limit."""
        self.enter()
        self._followers[stream] += 1
        self.heads.setdefault(stream, UNSEEN)
        self._wanted.set()

    def unfollow(self, stream: str) -> None:
        """Count one less."""
        self.leave()
        self._followers[stream] -= 1
        if not self._followers[stream]:
            del self._followers[stream], self.heads[stream]
            if not self.heads:
                self._wanted.clear()

    def saw(self, stream: str, stored: StoredHead | None) -> None:
        """Note a head that was read."""
        if self.heads.get(stream, stored) != stored:
            self.heads[stream] = stored
            self.wake()

    async def look(self, streams: Iterable[str]) -> None:
        """Read heads now; raises RedisUnavailable."""
        for stream, stored in (await from_store(self.store.heads([*streams]))).items():
            self.saw(stream, stored)

    async def watch(self) -> None:
        """Read the heads of the followed streams, forever."""
        reached = True
        while True:
            await self._wanted.wait()
            try:
                await self.look(self.heads)
                reached = True
            except RedisUnavailable as error:
                if reached and not self.closing:
                    log.warning("cannot read live observations: %s", error.detail)
                reached = False
            await asyncio.sleep(INTERVAL_S)


class Follower(Consumer):
    """One consumer of a stream, whose head was just read.

    at: `seq` of its next observation. state: whether to send the stream's summary as well. full:
    observations with details.
    """

    _hub: ObservationHub

    def __init__(
        self,
        hub: ObservationHub,
        stream: str,
        head: wire.Head,
        at: int,
        state: bool,
        full: bool,
    ) -> None:
        super().__init__(hub)
        self._stream = stream
        self._head: wire.Head | None = head
        self._stored: StoredHead | None = UNSEEN
        self._generation = head.generation
        self._at = at
        self._state = state
        self._full = full
        self._sent_head: wire.Head | None = None  # the head of the last summary sent
        self._first: tuple[bytes, int] | None = None  # read by `ready`, and not sent yet
        # A consumer that disconnects before its first message resumes here as well.
        self._place = cursor_of(at - 1, head.generation)
        hub.follow(stream)

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

    def leave(self) -> None:
        """Stop following."""
        self._hub.unfollow(self._stream)

    def _beat(self) -> bytes:
        place = self._place
        self._place = ""
        return f":\nid: {place}\n\n".encode() if place else b":\n\n"

    async def _next(self) -> bytes:
        """Return messages that the consumer has not received.

        Raises RedisUnavailable and CorruptState.
        """
        self._see()
        if self._differs():
            # A look under way may have returned an older head.
            await self._hub.look([self._stream])
            self._see()
        if reason := self._differs():
            self._over = True
            return message("end", {"reason": reason, "detail": ENDS[reason]})
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

    async def _page(self, head: wire.Head) -> tuple[bytes, int]:
        """Return messages with observations, and the `seq` of the one to come after them.

        Raises RedisUnavailable and CorruptState.
        """
        # Observations no longer retained are one gap.
        first = max(self._at, min(head.oldest, head.seq - 1))
        stop = min(head.seq, first + PAGE)
        read = self._hub.store.following(self._stream, head, first, stop)
        stored, records = await from_store(read)
        self._hub.saw(self._stream, stored)
        self._see()
        now = self._head
        if now is None or now.deleted or now.generation != head.generation:
            return b"", self._at
        parts: list[bytes] = []
        size = 0
        at = self._at
        for record in records:
            if size > PAGE_BYTES:
                return b"".join(parts), at
            if record.seq > at:
                parts.append(_gap(at, record.seq, head.generation))
            id_ = cursor_of(record.seq, head.generation)
            parts.append(message("observation", rendering.record(record, self._full), id_))
            size += len(parts[-1])
            at = record.seq + 1
        if at < stop:
            parts.append(_gap(at, stop, head.generation))
        return b"".join(parts), stop


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


def _gap(start: int, end: int, generation: int) -> bytes:
    return message("gap", {"start": start, "end": end}, cursor_of(end - 1, generation))
