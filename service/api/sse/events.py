"""Event subscription: catch up from the store, then follow the hub; and its response."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Any

import msgspec
from prometheus_client import Counter
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from moca_client.responses import MESSAGES
from service.api.auth import Authenticator
from service.api.gateway.reads import from_store
from service.api.sse.event_hub import EventHub
from service.observability import metrics
from service.problems import ServiceError
from service.schema.rendering import event_state, instant
from service.wire.event_cursor import Positions
from service.wire.event_entries import START, FeedEntry, Filter, Id

log = logging.getLogger(__name__)

PARTITIONS_AT_ONCE, PAGE = 16, 32  # of a read while catching up: partitions, entries of each
MESSAGES_AT_ONCE = 64
RETRY_MS = 1000  # how soon a browser connects again
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_encode = msgspec.json.Encoder().encode


class Subscription:
    """Filter and positions of one consumer.

    `whole`: it requested everything retained, so entries trimmed before are no gap.
    """

    def __init__(self, hub: EventHub, filter_: Filter, positions: Positions, whole: bool) -> None:
        self._hub, self._filter, self._positions = hub, filter_, positions
        self._whole = whole
        self._sent_cursor, self._sent_s = "", 0.0  # last cursor sent; time of the last chunk

    async def chunks(self, heartbeat_s: float) -> AsyncGenerator[bytes]:
        """Yield messages until the service stops."""
        yield self._mark_sent(f"retry: {RETRY_MS}\n{self._beat()}".encode())
        if gap := await self._first_gap():
            yield self._mark_sent(gap)
        joined: int | None = None
        while not self._hub.closing:
            if joined is None and (behind := self._positions.behind(self._hub.positions)):
                chunk = self._messages(await self._page(behind))
            else:
                # Nothing is awaited between `behind` and this, so no entry is lost between catching
                # up and following.
                joined = self._hub.count if joined is None else joined
                entries = self._hub.since(joined, MESSAGES_AT_ONCE)
                joined = None if entries is None else joined + len(entries)
                chunk = self._messages(entries or [])
            left_s = self._sent_s + heartbeat_s - time.monotonic()
            if chunk:
                yield self._mark_sent(chunk)
            elif left_s <= 0:
                yield self._mark_sent(self._beat().encode())
            elif joined is not None:
                await self._hub.moved(joined, left_s)

    async def _page(self, behind: Mapping[int, Id]) -> list[FeedEntry]:
        some = dict(list(behind.items())[:PARTITIONS_AT_ONCE])
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
            if entry.partition not in self._positions:
                continue
            at = self._positions[entry.partition]
            if entry.id <= at:
                continue  # caught up with already
            if entry.before > at and not (self._whole and at == START):
                messages.append(self._gap([entry]))
            self._positions.move(entry.partition, entry.id)
            if entry.raised is not None and self._filter.lets(entry.raised):
                kind = MESSAGES[entry.raised.event.kind]
                messages.append(self._message(kind, event_state(entry.raised)))
                metrics.EVENTS_SENT.inc()
        return b"".join(messages)

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
        metrics.EVENT_GAPS.inc()
        return self._message("gap", {"partitions": lost})

    def _message(self, kind: str, data: Any) -> bytes:
        self._sent_cursor = self._positions.text()
        return message(kind, data, self._sent_cursor)

    def _beat(self) -> str:
        """A comment; with the cursor if it moved past events that the filter excludes."""
        cursor, before = self._positions.text(), self._sent_cursor
        self._sent_cursor = cursor
        return ":\n\n" if cursor == before else f":\nid: {cursor}\n\n"

    def _mark_sent(self, chunk: bytes) -> bytes:
        self._sent_s = time.monotonic()
        return chunk


def message(kind: str, data: Any, id_: str = "") -> bytes:
    """Return a server-sent event."""
    place = f"id: {id_}\n" if id_ else ""
    return f"{place}event: {kind}\ndata: {_encode(data).decode()}\n\n".encode()


class EventStream(StreamingResponse):
    """A streaming response without an end; calls `leave` when it is closed.

    A consumer that does not read for `send_timeout_s` is disconnected, which `dropped` counts. Only
    the connection's own buffer waits for it: later messages are in the store. A consumer whose key
    was revoked is disconnected before the next chunk.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        chunks: AsyncGenerator[bytes],
        leave: Callable[[], None],
        send_timeout_s: float,
        dropped: Counter,
    ) -> None:
        self._chunks, self._leave = chunks, leave
        self._send_timeout_s, self._dropped = send_timeout_s, dropped
        super().__init__(chunks, headers=HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until either side closes it."""
        scope["state"]["answered_s"] = time.perf_counter()
        self.body_iterator = admitted = self._admitted(scope)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()
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
            async with asyncio.timeout(self._send_timeout_s):
                await send(message)

        try:
            await super().stream_response(timed)
        except TimeoutError:
            self._dropped.inc()
            log.warning("closing event stream: send timeout after %g s", self._send_timeout_s)
        except ServiceError as error:
            # The response has begun: the consumer gets the error when it reconnects.
            log.warning("closing event stream: %s", error.detail)
            await timed({"type": "http.response.body", "body": b"", "more_body": False})
