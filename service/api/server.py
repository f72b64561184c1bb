"""The HTTP server, and its protocol with limits on request heads, connections and load.

A signal also cancels startup, and shutdown has a time limit: it closes event streams, then drains.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import resource
import socket
import time
from http import HTTPStatus
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.api.answer_writer import AnswerWriter
from service.api.gateway.load_shedding import Overload
from service.api.http import Context
from service.api.middleware import Refusals
from service.api.parsing.bodies import WHOLE
from service.errors.base import (
    PROBLEM_JSON,
    FormError,
    Overloaded,
    ServiceError,
    TooManyConnections,
)
from service.errors.http import HeadTooLarge, SlowHead, UrlTooLong
from service.observability import metrics
from service.runtime.process import STOP_WAIT_S, limit_stop
from service.settings import Settings
from service.tasks import end

log = logging.getLogger(__name__)

RESERVED_FILES = 256  # the store's connections, logs, and connections being refused
MAX_HEAD_BYTES = 32_768  # of URL and headers, as nginx takes by default; the URL: half of it
MAX_HEADERS = 100  # of one request, as Apache takes by default
HEAD_TIMEOUT_S = 10.0  # a head is a few packets: a slower one only holds a connection
REFUSED_WAIT_S = 1.0  # lifetime of a connection over the limit: it gets an error as its answer
_observations = re.compile(rb"/v1/(streams/[^/?]+/)?observations(\?.*)?").fullmatch


class Server(uvicorn.Server):
    """Uvicorn that drains requests at shutdown, but closes event streams first."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app
        self.stop_wait_s = (config.timeout_graceful_shutdown or 0) + STOP_WAIT_S

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start the shutdown."""
        if not self.should_exit:
            limit_stop(self.stop_wait_s)
            self._cancel_startup()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, unless a signal came first.

        Freezes the objects loaded so far, which are permanent: a full garbage collection of them
        would block the event loop for 0.1 s.
        """
        if self.should_exit:
            return
        gc.collect()
        gc.freeze()
        # The socket listens only now: until the store is reachable, connections are refused at
        # once, and clients may try another process.
        await super().startup(sockets)
        for listener in (sockets or ()) if self.started else ():
            log.info("listening on %s port %d", *listener.getsockname()[:2])

    def _cancel_startup(self) -> None:
        """Cancel a startup in progress: it may wait a long time for the store."""
        starting: asyncio.Task[None] | None = self._app.state.starting
        if starting is not None:
            log.info("stopped before startup finished")
            starting.get_loop().call_soon_threadsafe(starting.cancel)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End event streams, then stop as usual."""
        context: Context | None = getattr(self._app.state, "context", None)
        if context is not None:
            await asyncio.gather(context.event_hub.drain(), context.observation_hub.drain())
        for connection in list(self.server_state.connections):
            # Unsent output belongs to consumers that do not read: shutdown would wait for them.
            scope, transport = getattr(connection, "scope", None), connection.transport
            held = transport.get_write_buffer_size() if transport is not None else 0
            if held and scope is not None and "answered_s" in scope.get("state", {}):
                transport.abort()
        await super().shutdown(sockets)
        # Abandoned requests: nothing else waits for these tasks.
        await end(*self.server_state.tasks)


class OpenConnections:
    """The connections of one process: their limit, and the idle ones, longest idle first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._idle: dict[BoundedHead, None] = {}
        self._warned = False

    def idle(self, connection: BoundedHead) -> None:
        """Record that a connection is idle."""
        self._idle[connection] = None

    def busy(self, connection: BoundedHead) -> None:
        """Record that a connection has a request or is closed."""
        self._idle.pop(connection, None)

    def admit(self, count: int) -> bool:
        """Whether `count` connections are within the limit; an idle one is closed to make room."""
        metrics.CONNECTIONS.set(count)
        if count <= self._limit:
            return True
        if not self._warned:
            log.warning("connections: limit of %d reached", self._limit)
            self._warned = True
        oldest = next(iter(self._idle), None)
        if oldest is None:
            metrics.LOAD_SHED.labels(TooManyConnections.reason).inc()
            return False
        self.busy(oldest)
        oldest.transport.close()
        return True

    def far_over(self, count: int) -> bool:
        """Whether a refusal cannot be written either, for lack of file descriptors."""
        return count > self._limit + RESERVED_FILES // 2


class BoundedHead(HttpToolsProtocol):
    """Ends a connection whose request's head is too long, too large or too slow."""

    open: OpenConnections
    overload: Overload
    refusals: Refusals | None  # None: every request has to go through the application

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit or refuse a connection, and start its head timeout."""
        super().connection_made(transport)
        self._in_head, self._head_bytes = False, 0
        self._discards_body = False
        self._timeout: asyncio.TimerHandle | None = None
        self._admitted = self.open.admit(len(self.connections))
        if self._admitted:
            self.open.idle(self)
            self._expect_head()
        else:
            self._timeout = self.loop.call_later(REFUSED_WAIT_S, transport.close)
        if self.open.far_over(len(self.connections)):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeout and release the connection."""
        self._cancel_timeout()
        self.open.busy(self)
        super().connection_lost(exc)
        metrics.CONNECTIONS.set(len(self.connections))

    def data_received(self, data: bytes) -> None:
        """Feed the parser; it has no limit on a head, so the size is checked on arrival."""
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(self._too_large())
            elif self._timeout is None:
                self._expect_head()

    def send_400_response(self, msg: str) -> None:
        """Answer malformed HTTP with a problem document, like all errors."""
        self._refuse(FormError(msg))

    def on_message_begin(self) -> None:
        """Start to measure a request's head."""
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self.open.busy(self)

    def on_headers_complete(self) -> None:
        """Check the complete head, and pass the request on if it is within the limits."""
        self._in_head = False
        self._cancel_timeout()
        url = len(self.url)
        size = url
        for name, value in self.headers:
            size += len(name) + len(value) + 4
        too_long = size > MAX_HEAD_BYTES or 2 * url > MAX_HEAD_BYTES
        if too_long or len(self.headers) > MAX_HEADERS:
            self._refuse(self._too_large())
        elif (detail := self._host_error()) is not None:
            self._refuse(FormError(detail))
        elif not self._admitted:
            self._refuse(TooManyConnections("connection limit of this API process reached"))
        if not self.transport.is_closing() and not self._shed():
            super().on_headers_complete()
            self._join_writes()

    def on_body(self, body: bytes) -> None:
        """Pass on a chunk of a body, unless its request was refused."""
        if not self.transport.is_closing() and not self._discards_body:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Complete the request, unless it was refused."""
        if self.transport.is_closing():
            return
        if self._discards_body:
            self._discards_body = False
            self._cancel_timeout()
            self.on_response_complete()
        else:
            self.scope["state"][WHOLE] = True
            super().on_message_complete()

    def _join_writes(self) -> None:
        cycle: Any = self.cycle  # None: nothing but an upgrade was asked for
        if cycle is not None and cycle.scope is self.scope:
            cycle.transport = AnswerWriter(cycle, self.transport)

    def _host_error(self) -> str | None:
        """Return the error of an invalid Host header, which decides access without keys.

        RFC 9112, 3.2: one Host header, and a URI with a host of its own names the same one.
        """
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            return f"expected one Host header, got {len(hosts)}"
        if self.url.startswith(b"/") or self.url == b"*":
            return None
        _, _, rest = self.url.partition(b"://")
        if not hosts or rest.partition(b"/")[0].lower() != hosts[0].strip().lower():
            return "expected a URI of the host that the Host header names, or a path"
        return None

    def on_response_complete(self) -> None:
        """Record the connection as idle, unless the next request has arrived."""
        super().on_response_complete()
        if self.timeout_keep_alive_task is not None and not self.transport.is_closing():
            self.open.idle(self)

    def _shed(self) -> bool:
        """Refuse observations under overload; return whether it did.

        The connection stays open; the rest of the body is discarded.
        """
        if self.refusals is None or self.parser.get_method() != b"POST":
            return False
        match = _observations(self.url)
        if match is None or self.parser.should_upgrade():
            return False
        if self.cycle is not None and not self.cycle.response_complete:
            return False  # pipelined: answers have to be in order
        error = self.overload.early(len(self.tasks), time.monotonic())
        if error is None:
            return False
        path = self.url.partition(b"?")[0].decode("latin-1")
        scope: dict[str, Any] = {**self.scope, "method": "POST", "path": path}
        name = "observe" if match[1] else "observe_many"
        self._answer_early(error, self.refusals.note(scope, name, error))
        return True

    def _answer_early(self, error: Overloaded, request_id: bytes) -> None:
        # A client that waits for 100 Continue never sends its body: nothing more can be read.
        keep_alive = self.parser.should_keep_alive() and not self.expect_100_continue
        headers = [b"x-request-id: " + request_id]
        headers += [name + b": " + value for name, value in self.server_state.default_headers]
        self._write(error, headers, keep_alive)
        if keep_alive:
            self._discards_body = True
            self._expect_head()

    def _expect_head(self) -> None:
        self._timeout = self.loop.call_later(HEAD_TIMEOUT_S, self._too_slow)

    def _cancel_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    def _too_slow(self) -> None:
        if self._in_head:
            self._refuse(SlowHead(f"request head not received within {HEAD_TIMEOUT_S:g} s"))
        else:
            self.transport.close()  # no request has begun

    def _too_large(self) -> FormError:
        if 2 * len(self.url) > MAX_HEAD_BYTES:
            return UrlTooLong(f"URL too long: at most {MAX_HEAD_BYTES // 2} bytes")
        return HeadTooLarge(
            f"request head too large: at most {MAX_HEADERS} headers, and {MAX_HEAD_BYTES} bytes "
            "with the URL"
        )

    @property
    def _is_broken_body(self) -> bool:
        """Whether the malformed input is the body of the only unanswered request."""
        cycle = self.cycle
        return cycle.more_body and not cycle.response_started and not self.pipeline

    def _refuse(self, error: ServiceError) -> None:
        """Write an error before the request is complete, and close the connection."""
        if self.cycle is not None and not self.cycle.response_complete and not self._is_broken_body:
            self.transport.close()  # else taken for the answer to an earlier request
            return
        self._write(error, [], False)

    def _write(self, error: ServiceError, headers: list[bytes], keep_alive: bool) -> None:
        """Write a whole response; close the connection unless it is kept alive."""
        body = error.render()
        lines = [
            b"HTTP/1.1 %d %b" % (error.status, HTTPStatus(error.status).phrase.encode()),
            b"content-type: " + PROBLEM_JSON.encode(),
            b"content-length: %d" % len(body),
            *(f"{name}: {text}".encode() for name, text in error.headers().items()),
            *headers,
        ]
        if not keep_alive:
            lines.append(b"connection: close")
        self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        if not keep_alive:
            self.transport.close()


def protocol(settings: Settings, app: FastAPI) -> type[Any]:
    """Return the protocol of one process."""
    bound = {
        "open": OpenConnections(open_connections(settings.max_connections)),
        "overload": app.state.overload,
        # Pages of other origins can only read responses with CORS headers from the middleware.
        "refusals": None if settings.cors_origins else Refusals(app),
    }
    return type("Protocol", (BoundedHead,), bound)


def open_connections(limit: int) -> int:
    """Return how many of `limit` connections the open-files limit allows, raising it first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = limit + RESERVED_FILES
    if hard != resource.RLIM_INFINITY:
        files = min(files, hard)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    possible = files - RESERVED_FILES
    if possible < limit:
        log.warning("max_connections lowered to %d by the limit on open files", possible)
    return max(possible, 1)
