"""One connection to the events: catching up from the store, then following the hub.

And the response that any connection without an end is.
"""

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

from service.api.auth.guard import Authenticator
from service.api.gateway.reads import from_store
from service.api.sse.event_hub import EventHub
from service.errors.base import ServiceError
from service.observability import subscriber_metrics as metrics
from service.schema.rendering import event_state, instant
from service.wire.event_cursor import Positions
from service.wire.event_entries import START, Entry, Filter, Id

log = logging.getLogger(__name__)

PARTITIONS_AT_ONCE, PAGE = 16, 32  # of a read while catching up: partitions, entries of each
MESSAGES_AT_ONCE = 64
RETRY_MS = 1000  # how soon a browser connects again
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_encode = msgspec.json.Encoder().encode


class Subscription:
    """What one consumer wants, and how far it has come.

    `whole`: it asked for everything retained, so what was trimmed before is not missed.
    """

    def __init__(self, hub: EventHub, wanted: Filter, positions: Positions, whole: bool) -> None:
        self._hub, self._wanted, self._positions = hub, wanted, positions
        self._whole = whole
        self._said, self._sent_s = "", 0.0  # the last cursor sent, and when anything was

    async def chunks(self, heartbeat_s: float) -> AsyncGenerator[bytes]:
        """Yield messages for as long as the service runs."""
        yield self._noted(f"retry: {RETRY_MS}\n{self._beat()}".encode())
        if gap := await self._first_gap():
            yield self._noted(gap)
        joined: int | None = None
        while not self._hub.closing:
            if joined is None and (behind := self._positions.behind(self._hub.positions)):
                chunk = self._messages(await self._page(behind))
            else:
                # Nothing is awaited between the look at what is behind and this: no entry falls
                # between what was caught up with and what is followed.
                joined = self._hub.count if joined is None else joined
                entries = self._hub.since(joined, MESSAGES_AT_ONCE)
                joined = None if entries is None else joined + len(entries)
                chunk = self._messages(entries or [])
            left_s = self._sent_s + heartbeat_s - time.monotonic()
            if chunk:
                yield self._noted(chunk)
            elif left_s <= 0:
                yield self._noted(self._beat().encode())
            elif joined is not None:
                await self._hub.moved(joined, left_s)

    async def _page(self, behind: Mapping[int, Id]) -> list[Entry]:
        some = dict(list(behind.items())[:PARTITIONS_AT_ONCE])
        found: list[Entry] = await from_store(self._hub.feeds.page(some, PAGE))
        for partition in some.keys() - {entry.partition for entry in found}:
            # Gone from the store, wherever it went: there is nothing to catch up with.
            self._positions.move(partition, self._hub.positions[partition])
        return sorted(found, key=lambda entry: entry.id)

    async def _first_gap(self) -> bytes:
        """Tell in one message what was trimmed away since the consumer was last here."""
        behind = self._positions.behind(self._hub.positions)
        if not behind or self._whole:
            return b""
        firsts: list[Entry] = await from_store(self._hub.feeds.page(behind, 1))
        return self._gap([entry for entry in firsts if entry.before > behind[entry.partition]])

    def _messages(self, entries: Iterable[Entry]) -> bytes:
        """Take entries in; what of them is to be sent."""
        found = []
        for entry in entries:
            if entry.partition not in self._positions:
                continue
            at = self._positions[entry.partition]
            if entry.id <= at:
                continue  # caught up with already
            if entry.before > at and not (self._whole and at == START):
                found.append(self._gap([entry]))
            self._positions.move(entry.partition, entry.id)
            if entry.raised is not None and self._wanted.lets(entry.raised):
                found.append(self._message("changepoint", event_state(entry.raised)))
                metrics.EVENTS_SENT.inc()
        return b"".join(found)

    def _gap(self, firsts: list[Entry]) -> bytes:
        """Tell what was lost before each of these entries; the cursor moves past it."""
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
        self._said = self._positions.text()
        return message(kind, data, self._said)

    def _beat(self) -> str:
        """A comment; with the cursor where it moved past events that are not wanted."""
        cursor, before = self._positions.text(), self._said
        self._said = cursor
        return ":\n\n" if cursor == before else f":\nid: {cursor}\n\n"

    def _noted(self, chunk: bytes) -> bytes:
        self._sent_s = time.monotonic()
        return chunk


def message(kind: str, data: Any, id_: str = "") -> bytes:
    """Return a message of a stream of events."""
    place = f"id: {id_}\n" if id_ else ""
    return f"{place}event: {kind}\ndata: {_encode(data).decode()}\n\n".encode()


class EventStream(StreamingResponse):
    """The response, of chunks that have no end; `leave` is called at its end.

    A consumer that takes nothing for `send_timeout_s` is disconnected, which `dropped` counts. All
    that waits for it is what the server's connection holds: what it has not seen is in the store.
    One whose key counts no longer is disconnected before it is sent anything more.
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
        """Send until one side ends it."""
        scope["state"]["answered_s"] = time.perf_counter()
        self.body_iterator = admitted = self._admitted(scope)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()
            await admitted.aclose()
            await self._chunks.aclose()

    async def _admitted(self, scope: Scope) -> AsyncGenerator[bytes]:
        """Yield the chunks for as long as the request's key counts."""
        authenticator: Authenticator = scope["app"].state.context.authenticator
        async for chunk in self._chunks:
            if not authenticator.still(scope):
                log.info("closing event stream: key revoked")
                return
            yield chunk

    async def stream_response(self, send: Send) -> None:
        """Send the chunks, each within its time."""

        async def timed(message: Message) -> None:
            async with asyncio.timeout(self._send_timeout_s):
                await send(message)

        try:
            await super().stream_response(timed)
        except TimeoutError:
            self._dropped.inc()
            log.warning("closing event stream: send timeout after %g s", self._send_timeout_s)
        except ServiceError as error:
            # The answer has begun: its consumer connects again, and is told then.
            log.warning("closing event stream: %s", error.detail)
            await timed({"type": "http.response.body", "body": b"", "more_body": False})
