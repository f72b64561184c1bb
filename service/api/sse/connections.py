"""Connections that are answered without an end: their number, their messages, their response."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec
from prometheus_client import Gauge
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from service.api.auth import Authenticator
from service.observability.metrics import LOAD_SHED
from service.problems import RedisUnavailable, ServiceError, TooManyEventStreams
from service.tasks import happened

log = logging.getLogger(__name__)

CLOSE_WAIT_S = 1.0
RETRY_MS = 1000  # how soon a browser connects again
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_encode = msgspec.json.Encoder().encode


class Connections:
    """Counts the connections of one kind, which errors name."""

    def __init__(self, gauge: Gauge, limit: int, kind: str) -> None:
        self._gauge = gauge
        self._limit = limit
        self._kind = kind
        self._open = 0
        self._empty = asyncio.Event()
        self.closing = False

    def enter(self) -> None:
        """Count one more; TooManyEventStreams over the limit, RedisUnavailable at shutdown."""
        if self.closing:
            raise RedisUnavailable("the service is stopping")
        if self._open >= self._limit:
            LOAD_SHED.labels(TooManyEventStreams.reason).inc()
            raise TooManyEventStreams(f"limit of {self._open} {self._kind} connections reached")
        self._count(1)

    def leave(self) -> None:
        """Count one less."""
        self._count(-1)

    async def ended(self) -> None:
        """Wait until the last one has ended, at most CLOSE_WAIT_S."""
        self._empty.clear()
        if self._open:
            await happened(self._empty, CLOSE_WAIT_S)

    def _count(self, change: int) -> None:
        self._open += change
        self._gauge.set(self._open)
        if not self._open:
            self._empty.set()


class Growing:
    """A count, and those who wait until there is more."""

    def __init__(self) -> None:
        self.count = 0
        self._grown = asyncio.Event()

    def grow(self, more: int = 1) -> None:
        """Count more, and wake all who wait."""
        self.count += more
        grown = self._grown
        self._grown = asyncio.Event()
        grown.set()

    async def beyond(self, count: int, timeout_s: float) -> None:
        """Wait until the count is another than this, or `grow` is called; at most this long."""
        if self.count == count:
            await happened(self._grown, timeout_s)


def message(kind: str, data: Any, id_: str = "") -> bytes:
    """Return a server-sent event."""
    place = f"id: {id_}\n" if id_ else ""
    return f"{place}event: {kind}\ndata: {_encode(data).decode()}\n\n".encode()


class EventStream(StreamingResponse):
    """A streaming response without an end; calls `leave` when it is closed.

    A consumer that does not read for `send_timeout_s` is disconnected. Only the connection's own
    buffer waits for it: later messages are in the store. A consumer whose key was revoked is
    disconnected before the next chunk.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        chunks: AsyncGenerator[bytes],
        leave: Callable[[], None],
        send_timeout_s: float,
    ) -> None:
        self._chunks = chunks
        self._leave = leave
        self._send_timeout_s = send_timeout_s
        super().__init__(chunks, headers=HEADERS)

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
            log.warning("closing event stream: send timeout after %g s", self._send_timeout_s)
        except ServiceError as error:
            # The response has begun: the consumer gets the error when it reconnects.
            log.warning("closing event stream: %s", error.detail)
            await timed({"type": "http.response.body", "body": b"", "more_body": False})
