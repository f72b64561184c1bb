"""The HTTP server: uvicorn, with a start that a signal cancels and a stop that drains streams.

It bounds neither the size of a request's head nor the time that it takes: a reverse proxy does.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import socket
from collections.abc import Callable
from math import ceil
from types import FrameType
from typing import Any, cast

import uvicorn
from fastapi import FastAPI
from starlette.responses import Response
from starlette.types import Scope
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from service.api.http import CLOSE, Context, RequestMiddleware
from service.api.routes.observations import PlainPosts
from service.observability import metrics
from service.runtime.process import BACKLOG, STOP_WAIT_S, limit_stop
from service.settings import Settings
from service.tasks import end

log = logging.getLogger(__name__)

ACCEPT_PAUSE_S = 1.0  # after an error that another try at once would meet again: too many files
RESERVED_FILES = 256  # the store's connections, logs, and connections being refused


class HttpProtocol(HttpToolsProtocol):
    """Uvicorn's side of a connection, with the head and the body of an answer in one write.

    A plain post is answered without being parsed, other requests that are refused without a task.
    posts: answers plain posts; None: all requests are to be parsed. edge: outermost layer of the
    application.
    """

    def __init__(
        self, posts: PlainPosts | None, edge: RequestMiddleware, config: Config, *arguments: Any
    ) -> None:
        super().__init__(config, *arguments)
        self._posts = posts
        self._edge = edge
        self._between = True  # no part of a request is parsed
        self._answering = False  # a plain post
        self._answered_s = 0.0  # when the last one was, by the loop's clock
        self._ending = False  # the connection is to end with its answer
        self._held = b""  # what came meanwhile

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin."""
        super().connection_made(cast(asyncio.Transport, JoiningTransport(transport)))

    def data_received(self, data: bytes) -> None:
        """Have a plain post answered, or parse what came."""
        if self._answering:
            self._held += data
            self.flow.pause_reading()
            return
        # A client that does not read its answers waits with its next request: only a task can.
        writes = not self.flow.write_paused
        if self._posts is not None and self._between and self._idle and writes:
            self._answering = True
            if self._posts.take(data, self._answer):
                return
            self._answering = False
        super().data_received(data)

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _answer(self, response: Response) -> None:
        """Send the answer to a plain post, unless its client has left."""
        self._answering = False
        self._answered_s = self.loop.time()
        if self.transport.is_closing():
            return
        if self._ending:
            response.raw_headers.append(CLOSE)
        self._write(response, self.server_state.default_headers)
        if self._ending:  # what came meanwhile would have no answer
            self.transport.close()
            return
        if self.timeout_keep_alive_task is None:
            self._rest(self.timeout_keep_alive)
        if self._held:
            held = self._held
            self._held = b""
            self.flow.resume_reading()
            self.data_received(held)

    def _rest(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            seconds, self.timeout_keep_alive_handler
        )

    def timeout_keep_alive_handler(self) -> None:
        """End the connection after its time without a request; plain posts leave the timer be."""
        idle_s = 0.0 if self._answering else self.loop.time() - self._answered_s
        if idle_s < self.timeout_keep_alive and not self.transport.is_closing():
            self._rest(self.timeout_keep_alive - idle_s)
        else:
            super().timeout_keep_alive_handler()

    def shutdown(self) -> None:
        """End the connection, once it has no answer to come."""
        if self._answering:
            self._ending = True
        else:
            super().shutdown()

    def on_message_begin(self) -> None:
        """Begin to parse a request."""
        self._between = False
        super().on_message_begin()

    def on_message_complete(self) -> None:
        """End to parse a request; its answer may be there or not."""
        self._between = True
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Begin to answer a request, whose body may still come."""
        # The end of an answer begins the next request that is there: refusing thousands at once
        # would be calls within each other. And who does not read answers is to get no more of them.
        at_once = not self.pipeline and not self.flow.write_paused
        response = self._edge.refuse(cast(Scope, cycle.scope), at_once)
        if response is None:
            super()._start_asgi_task(cycle, app)
            return
        cycle.response_started = cycle.response_complete = True
        self._write(response, cycle.default_headers)
        if CLOSE in response.raw_headers or not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def _write(self, response: Response, default_headers: list[tuple[bytes, bytes]]) -> None:
        lines = [STATUS_LINE[response.status_code]]
        for name, value in (*default_headers, *response.raw_headers):
            lines += (name, b": ", value, b"\r\n")
        transport = cast(JoiningTransport, self.transport)
        transport.write_now(b"".join((*lines, b"\r\n", response.body)))


class JoiningTransport:
    """A transport that writes once what is written to it in one turn of the event loop.

    Uvicorn writes head and body apart. A write is a system call and a packet: the second one took
    a quarter of the CPU of a posted observation here, and as much of its client's.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._waiting: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Write with the next turn."""
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(data)

    def is_closing(self) -> bool:
        """Whether nothing more is written."""
        return self._transport.is_closing()

    def write_now(self, data: bytes) -> None:
        """Write a whole answer, after what waits."""
        self._flush()
        self._transport.write(data)

    def close(self) -> None:
        """Close the connection once everything is written."""
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _flush(self) -> None:
        if not self._waiting:
            return
        if not self._transport.is_closing():
            self._transport.writelines(self._waiting)
        self._waiting = []


class Listener:
    """A listening socket, of which each turn of the event loop accepts all connections that wait.

    uvloop's own accepts one a turn. The turns of a busy process take long: connections waited for
    seconds, and their clients' first requests with them, or were dropped as the queue overflowed.
    """

    def __init__(self, listener: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Begin. protocol: makes that of a connection."""
        self._socket = listener
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._watch()

    def close(self) -> None:
        """Accept no more."""
        self._loop.remove_reader(self._socket)
        if self._pause is not None:
            self._pause.cancel()

    async def wait_closed(self) -> None:
        """Return once what was accepted is handed over."""
        await asyncio.gather(*self._opening)

    def _watch(self) -> None:
        self._pause = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(BACKLOG):
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:  # it is gone already
                continue
            except OSError as error:
                log.error("cannot accept connections for %g s: %s", ACCEPT_PAUSE_S, error)
                self._loop.remove_reader(self._socket)
                self._pause = self._loop.call_later(ACCEPT_PAUSE_S, self._watch)
                return
            task = self._loop.create_task(self._open(connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            await self._loop.connect_accepted_socket(self._protocol, connection)
        except OSError:  # it is gone already
            connection.close()


class Server(uvicorn.Server):
    """Uvicorn that drains requests at shutdown, but closes event streams first."""

    def __init__(self, app: FastAPI, settings: Settings) -> None:
        self._deadline_s = settings.request_deadline_s
        drain_s = ceil(self._deadline_s) + 1
        config = uvicorn.Config(
            cast(Any, app.middleware_stack),  # it is outside of FastAPI's own layers
            log_config=None,
            access_log=False,
            server_header=False,
            # Only the log of requests names the client, for whom a proxy on this machine may speak.
            proxy_headers=app.state.access_log is not None,
            ws="none",
            timeout_keep_alive=settings.keep_alive_s,
            timeout_graceful_shutdown=drain_s,
        )
        super().__init__(config)
        self._app = app
        self._stop_wait_s = drain_s + STOP_WAIT_S
        self._edge = cast(RequestMiddleware, app.middleware_stack)
        self._posts: PlainPosts | None = None
        app.state.admission.connections = self.server_state.connections
        app.state.admission.requests = self.server_state.tasks
        app.state.admission.max_connections = open_connections(settings.max_connections)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start the shutdown."""
        if not self.should_exit:
            limit_stop(self._stop_wait_s)
            starting: asyncio.Task[None] | None = self._app.state.starting
            if starting is not None:  # it may wait a long time for the store
                log.info("stopped before startup finished")
                starting.get_loop().call_soon_threadsafe(starting.cancel)
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to serve on the sockets, unless a signal came first.

        Freezes the objects loaded so far, which are permanent: a full garbage collection of them
        would block the event loop for 0.1 s.
        """
        if self.should_exit:
            return
        gc.collect()
        gc.freeze()
        # The socket listens only now: until the store is reachable, connections are refused at
        # once, and clients may try another process.
        await super().startup([])
        if self._app.state.access_log is None and self._app.state.tracer is None:
            self._posts = PlainPosts(self._app, self._app.state.context)
        for listener in (sockets or ()) if self.started else ():
            self.servers.append(cast(asyncio.Server, Listener(listener, self._protocol)))
            log.info("listening on %s port %d", *listener.getsockname()[:2])

    def _protocol(self) -> asyncio.Protocol:
        """Return uvicorn's side of a new connection."""
        state = self.lifespan.state
        return HttpProtocol(self._posts, self._edge, self.config, self.server_state, state)

    async def on_tick(self, counter: int) -> bool:
        """Count the open connections, ten times a second."""
        metrics.CONNECTIONS.set(len(self.server_state.connections))
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End event streams, then stop as usual.

        What came last has its deadline; requests of many parts that take longer end then.
        """
        context: Context | None = self._app.state.context
        if context is not None:
            asyncio.get_running_loop().call_later(self._deadline_s, context.gateway.stop)
            await asyncio.gather(context.event_hub.drain(), context.observation_hub.drain())
        for connection in list(self.server_state.connections):
            # Unsent output belongs to consumers that do not read: shutdown would wait for them.
            scope = getattr(connection, "scope", None)
            transport = connection.transport
            held = transport.get_write_buffer_size() if transport is not None else 0
            if held and scope is not None and "answered_s" in scope.get("state", {}):
                transport.abort()
        await super().shutdown(sockets)
        # Abandoned requests: nothing else waits for these tasks.
        await end(*self.server_state.tasks)


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
