"""The HTTP server, and its protocol with bounds on heads, connections and load.

A signal ends its start as well, and a stop has a bound.

At a stop it ends connections that have no end of their own before it drains.
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

from service.api.gateway.load_shedding import Overload
from service.api.http import Context
from service.api.middleware import Refusals
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
REFUSED_WAIT_S = 1.0  # a connection over the bound has this long to send what is refused
_observations = re.compile(rb"/v1/(streams/[^/?]+/)?observations(\?.*)?").fullmatch


class Server(uvicorn.Server):
    """Uvicorn, waiting for requests at its stop but not for those who follow."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app
        self.stop_wait_s = (config.timeout_graceful_shutdown or 0) + STOP_WAIT_S

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop."""
        if not self.should_exit:
            limit_stop(self.stop_wait_s)
            self._give_up()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, unless a signal came first.

        What is loaded by now stays, and is not looked through for garbage again: it is most of what
        there is, and a full collection would hold the event loop for 0.1 s.
        """
        if self.should_exit:
            return
        gc.collect()
        gc.freeze()
        # A socket of its own listens only now: while the store is waited for, connections are
        # refused at once, and their clients may try another process.
        await super().startup(sockets)
        for each in (sockets or ()) if self.started else ():
            log.info("listening on %s port %d", *each.getsockname()[:2])

    def _give_up(self) -> None:
        """End a start that is under way: it may wait for the store for long."""
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
            # What is left of them belongs to consumers that take nothing, and would be waited for.
            scope, transport = getattr(connection, "scope", None), connection.transport
            held = transport.get_write_buffer_size() if transport is not None else 0
            if held and scope is not None and "answered_s" in scope.get("state", {}):
                transport.abort()
        await super().shutdown(sockets)
        # Requests that were given up: nothing else would wait for their end, and end it.
        await end(*self.server_state.tasks)


class OpenConnections:
    """The connections of one process: a bound, and those that are idle, the longest first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._idle: dict[BoundedHead, None] = {}
        self._said = False

    def idle(self, connection: BoundedHead) -> None:
        """Note that a connection waits for a request."""
        self._idle[connection] = None

    def busy(self, connection: BoundedHead) -> None:
        """Note that a connection has a request, or is gone."""
        self._idle.pop(connection, None)

    def admit(self, count: int) -> bool:
        """Whether there may be `count` connections; one that is idle is closed to make room."""
        metrics.CONNECTIONS.set(count)
        if count <= self._most:
            return True
        if not self._said:
            log.warning("connections: limit of %d reached", self._most)
            self._said = True
        oldest = next(iter(self._idle), None)
        if oldest is None:
            metrics.LOAD_SHED.labels(TooManyConnections.reason).inc()
            return False
        self.busy(oldest)
        oldest.transport.close()
        return True

    def far_over(self, count: int) -> bool:
        """Whether not even a refusal can be written: the process would run out of files."""
        return count > self._most + RESERVED_FILES // 2


class BoundedHead(HttpToolsProtocol):
    """Ends a connection whose request's head is too long, too large or too slow."""

    open: OpenConnections
    overload: Overload
    refusals: Refusals | None  # None: every request has to go through the application

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a first request."""
        super().connection_made(transport)
        self._in_head, self._head_bytes = False, 0
        self._skips_body = False
        self._impatience: asyncio.TimerHandle | None = None
        self._admitted = self.open.admit(len(self.connections))
        if self._admitted:
            self.open.idle(self)
            self._expect_head()
        else:
            self._impatience = self.loop.call_later(REFUSED_WAIT_S, transport.close)
        if self.open.far_over(len(self.connections)):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._calm()
        self.open.busy(self)
        super().connection_lost(exc)
        metrics.CONNECTIONS.set(len(self.connections))

    def data_received(self, data: bytes) -> None:
        """Feed the parser, which keeps a head without end: it is measured as it comes."""
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(self._too_large())
            elif self._impatience is None:
                self._expect_head()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP with a problem document, as everything else."""
        self._refuse(FormError(msg))

    def on_message_begin(self) -> None:
        """A request's head begins; what came before it does not count."""
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self.open.busy(self)

    def on_headers_complete(self) -> None:
        """The head is here: let the request in if it is small enough."""
        self._in_head = False
        self._calm()
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

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body, unless its request was refused."""
        if not self.transport.is_closing() and not self._skips_body:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete, unless it was refused."""
        if self.transport.is_closing():
            return
        if self._skips_body:
            self._skips_body = False
            self._calm()
            self.on_response_complete()
        else:
            super().on_message_complete()

    def _host_error(self) -> str | None:
        """What is wrong with the host the request names, by which access without keys is decided.

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
        """Wait for the next request, unless it is here."""
        super().on_response_complete()
        if self.timeout_keep_alive_task is not None and not self.transport.is_closing():
            self.open.idle(self)

    def _shed(self) -> bool:
        """Refuse observations under overload; whether it did.

        The connection stays open, and what is left of the body is passed over.
        """
        if self.refusals is None or self.parser.get_method() != b"POST":
            return False
        found = _observations(self.url)
        if found is None or self.parser.should_upgrade():
            return False
        if self.cycle is not None and not self.cycle.response_complete:
            return False  # pipelined: answers have to be in order
        error = self.overload.early(len(self.tasks), time.monotonic())
        if error is None:
            return False
        path = self.url.partition(b"?")[0].decode("latin-1")
        scope: dict[str, Any] = {**self.scope, "method": "POST", "path": path}
        name = "observe" if found[1] else "observe_many"
        self._answer_early(error, self.refusals.note(scope, name, error))
        return True

    def _answer_early(self, error: Overloaded, request_id: bytes) -> None:
        # A client that waits for 100 Continue never sends its body: nothing more can be read.
        kept = self.parser.should_keep_alive() and not self.expect_100_continue
        headers = [b"x-request-id: " + request_id]
        headers += [name + b": " + value for name, value in self.server_state.default_headers]
        self._write(error, headers, kept)
        if kept:
            self._skips_body = True
            self._expect_head()

    def _expect_head(self) -> None:
        self._impatience = self.loop.call_later(HEAD_TIMEOUT_S, self._too_slow)

    def _calm(self) -> None:
        if self._impatience is not None:
            self._impatience.cancel()
            self._impatience = None

    def _too_slow(self) -> None:
        if self._in_head:
            self._refuse(SlowHead(f"request head not received within {HEAD_TIMEOUT_S:g} s"))
        else:
            self.transport.close()  # nothing was asked

    def _too_large(self) -> FormError:
        if 2 * len(self.url) > MAX_HEAD_BYTES:
            return UrlTooLong(f"URL too long: at most {MAX_HEAD_BYTES // 2} bytes")
        return HeadTooLarge(
            f"request head too large: at most {MAX_HEADERS} headers, and {MAX_HEAD_BYTES} bytes "
            "with the URL"
        )

    @property
    def _is_broken_body(self) -> bool:
        """Whether what cannot be read is the body of the only request that is not answered."""
        cycle = self.cycle
        return cycle.more_body and not cycle.response_started and not self.pipeline

    def _refuse(self, error: ServiceError) -> None:
        """Answer before there is a request that could be answered, and end the connection."""
        if self.cycle is not None and not self.cycle.response_complete and not self._is_broken_body:
            self.transport.close()  # an earlier request waits: this would be taken for its answer
            return
        self._write(error, [], False)

    def _write(self, error: ServiceError, headers: list[bytes], kept: bool) -> None:
        """Write a whole answer, and end the connection unless it is kept."""
        body = error.render()
        lines = [
            b"HTTP/1.1 %d %b" % (error.status, HTTPStatus(error.status).phrase.encode()),
            b"content-type: " + PROBLEM_JSON.encode(),
            b"content-length: %d" % len(body),
            *(f"{name}: {text}".encode() for name, text in error.headers().items()),
            *headers,
        ]
        if not kept:
            lines.append(b"connection: close")
        self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        if not kept:
            self.transport.close()


def protocol(settings: Settings, app: FastAPI) -> type[Any]:
    """Return the protocol of one process."""
    bound = {
        "open": OpenConnections(open_connections(settings.max_connections)),
        "overload": app.state.overload,
        # Pages of other origins can only read answers that the middleware has marked.
        "refusals": None if settings.cors_origins else Refusals(app),
    }
    return type("Protocol", (BoundedHead,), bound)


def open_connections(most: int) -> int:
    """Return how many of `most` connections the limit on open files leaves, raising it first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most + RESERVED_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    possible = wanted - RESERVED_FILES
    if possible < most:
        log.warning("max_connections lowered to %d by the limit on open files", possible)
    return max(possible, 1)
