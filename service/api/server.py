"""The HTTP server: uvicorn, and plain posts of observations, which pass nothing else of it.

Its start is cancelled by a signal, its stop drains streams.

It bounds neither the size of a request's head nor the time that it takes: a reverse proxy does.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import resource
import socket
import time
from collections.abc import Callable, Coroutine
from functools import lru_cache, partial
from math import ceil
from types import FrameType
from typing import Any, NamedTuple, cast

import uvicorn
from fastapi import FastAPI
from starlette.responses import Response
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
)

from service import wire
from service.api.context import Context
from service.api.gateway.gateway import PendingCommand
from service.api.gateway.load_shedding import count_shed
from service.api.http import (
    CLOSE,
    LIST,
    Admission,
    ListResponse,
    Route,
    answer_response,
    checked_key,
    defect_problem,
    is_json,
    is_light,
    problem,
    request_duration,
    request_id_of,
)
from service.api.parsing.bodies import JSON
from service.api.parsing.observations import digest
from service.api.parsing.samples import version_of
from service.api.routes.observations import (
    apply_items,
    apply_observations,
    refuse_key,
    template_of,
)
from service.api.routes.prometheus import apply_write
from service.observability import metrics
from service.observability.metrics import Gathered
from service.problems import Overloaded, ServiceError, TooManyConnections
from service.runtime.process import BACKLOG, STOP_WAIT_S, limit_stop
from service.schema.observations import STREAM_CHARACTERS
from service.settings import Settings
from service.tasks import end

log = logging.getLogger(__name__)

# New containers until the youngest are collected: more than a long list makes.
YOUNG = 20_000
ACCEPT_PAUSE_S = 1.0  # after an error that another try at once would meet again: too many files
RESERVED_FILES = 256  # the store's connections, logs, and connections being refused


LONGEST_HEAD = 4096  # bytes
HEADS = 1024  # that are kept: those of one client hardly differ
PIECES_S = 1.0  # a body that takes longer is read by the parser
# Headers that change how a request is read or answered.
OTHERS = frozenset(
    {
        b"expect",
        b"origin",
        b"proxy-connection",  # by which the parser ends connections
        b"transfer-encoding",
        b"upgrade",
    }
)
_line = re.compile(
    rb"POST /v1/(?:(prometheus/write)|"
    rb"(?:streams/((?!\.\.?/)[%b]{1,200})/)?observations(?:\?([\w=&.,-]*))?) HTTP/1\.1"
    % STREAM_CHARACTERS.encode()
).fullmatch
_header = re.compile(rb"([A-Za-z0-9-]+): ([\x20-\x7e]*)").fullmatch
_length = re.compile(rb"\d{1,7}").fullmatch


# --- plain posts ----------------------------------------------------------------------------------

# Nearly all requests are posts of observations or remote writes, with headers that change nothing
# about how they are read or answered. Parser, scope, middleware and route would cost more than all
# that is done for an observation. So those go from the bytes on the connection to those of the
# answer: one observation without even a task. What is not plain, and what has to wait for anything
# but its body and its outcome, is left to the routes, which answer the same by the same functions.


class PlainHead(NamedTuple):
    """What the headers of a plain post say."""

    length: int  # of the body
    hosts: list[bytes]  # at most one
    authorization: bytes | None
    key: bytes | None  # for idempotency
    request_id: bytes | None
    kind: str  # of the body
    encoding: str  # of the body; empty: none
    json: bool  # whether the body is JSON as it is


@lru_cache(HEADS)
def plain_head(lines: bytes) -> PlainHead | None:
    """Read headers; None where one of them makes a request other than plain."""
    headers: dict[bytes, bytes] = {}
    for line in lines.split(b"\r\n"):
        match = _header(line)
        if match is None or match[1].lower() in headers:
            return None
        headers[match[1].lower()] = match[2].strip()
    length = headers.get(b"content-length", b"")
    ends = headers.get(b"connection", b"keep-alive").lower() != b"keep-alive"
    if ends or not OTHERS.isdisjoint(headers) or not _length(length):
        return None
    kind = headers.get(b"content-type", b"")
    encoding = headers.get(b"content-encoding", b"")
    return PlainHead(
        int(length),
        [headers[b"host"]] if b"host" in headers else [],
        headers.get(b"authorization"),
        headers.get(b"idempotency-key"),
        headers.get(b"x-request-id"),
        kind.decode("latin-1"),
        encoding.decode("latin-1"),
        not encoding and is_json(kind),
    )


class PlainPost(NamedTuple):
    """A plain post, of which the head has come."""

    route: Route
    stream: str  # empty: of none, or of many
    query: bytes
    head: PlainHead
    start: int  # of the body
    size: int  # bytes of head and body
    refusal: ServiceError | None  # by its head alone
    request_id: bytes
    began: float


class PlainPosts:
    """Answers the plain posts of one process, which has neither an access log nor traces."""

    def __init__(self, app: FastAPI, context: Context) -> None:
        self._context = context
        self._longest = context.settings.max_body_bytes
        self._admission: Admission = app.state.admission
        self._gathered: Gathered = app.state.gathered
        routes = {route.name: route for route in app.routes if isinstance(route, Route)}
        self._one = routes["observe"]
        self._many = routes["observe_many"]
        self._write = routes["write_samples"]
        # As the layer of CORS has it, where there is one: answers are other ones for other origins.
        self._added = [(b"vary", b"Origin")] if app.user_middleware else []

    def begun(self, data: bytes) -> PlainPost | None:
        """Return the post that data begins with, whole or in part; None: it is to be parsed.

        Under overload it is refused here as well: to parse a request costs three times what it
        takes to refuse it.
        """
        last = data.find(b"\r\n\r\n", 0, LONGEST_HEAD)
        first = data.find(b"\r\n")
        line = _line(data[:first])
        if line is None or last < 0:
            return None
        head = plain_head(data[first + 2 : last])
        if head is None or head.length > self._longest or self._admission.crowded:
            return None
        start = last + 4
        size = start + head.length
        writes, stream, query = line.groups()
        route = self._write if writes else self._many if stream is None else self._one
        if len(data) > size or not (writes or head.json):
            return None
        began = time.perf_counter()
        refusal: ServiceError | None = None if writes else self._admission.refusal("POST")
        admits = self._context.authenticator.admits
        try:
            if refusal is None and not admits(head.authorization, head.hosts, route.needs):
                return None
        except ServiceError as error:
            refusal = error
        if refusal is not None and len(data) < size:
            return None  # answered before its body is there
        request_id = request_id_of(head.request_id)
        return PlainPost(
            route,
            (stream or b"").decode(),
            query or b"",
            head,
            start,
            size,
            refusal,
            request_id,
            began,
        )

    def answer(self, post: PlainPost, body: bytes, connection: HttpProtocol) -> None:
        """Answer a post whose body is there, now or later."""
        if post.refusal is not None:
            if isinstance(post.refusal, Overloaded | TooManyConnections):
                count_shed(post.refusal)
            self._end(post, connection, post.refusal)
            return
        if post.route is self._one and body[:1] == b"{" and is_light(body):
            try:
                pending = self._submit(post, body)
            except Exception as error:  # noqa: BLE001, a defect is answered as well
                self._end(post, connection, error)
                return
            if pending is not None:
                self._admission.plain_posts += 1
                done = partial(self._done, post, connection, pending)
                pending.group.future.add_done_callback(done)
                return
        connection.run(self._run(post, body, connection))

    def _submit(self, post: PlainPost, body: bytes) -> PendingCommand | None:
        """Submit an observation; None where its answer is other than one object."""
        context = self._context
        command = wire.Observe(post.stream, [])
        if post.query:
            command, layout = template_of(post.query, post.stream)
            if layout != "objects":
                return None
        command.key = checked_key(post.head.key)
        form = context.observation_parser.observations(body)
        command.seq = form.seq
        command.observations = form.observations
        if command.key is not None:
            command.digest = digest(body)
        return context.gateway.begin(command)

    def _done(
        self,
        post: PlainPost,
        connection: HttpProtocol,
        pending: PendingCommand,
        _: asyncio.Future[None],
    ) -> None:
        """Answer with the outcome of an observation."""
        self._admission.plain_posts -= 1
        result: Response | Exception
        try:
            command = pending.envelope.command
            assert isinstance(command, wire.Observe)
            result = answer_response(command, self._context.gateway.end(pending))
        except Exception as error:  # noqa: BLE001
            result = error
        self._end(post, connection, result)

    async def _run(self, post: PlainPost, body: bytes, connection: HttpProtocol) -> None:
        """Answer any post."""
        state: dict[str, Any] = {}
        result: Response | Exception
        try:
            result = await self._response(post, body, state)
        except Exception as error:  # noqa: BLE001
            result = error
        if isinstance(result, ListResponse):
            result.raw_headers += self._headers(post)
            await connection.stream(result)
            self._record(post, result.status_code, "list" in state)
        else:
            self._end(post, connection, result, "list" in state)

    async def _response(self, post: PlainPost, body: bytes, state: dict[str, Any]) -> Response:
        """Return the answer as the post's route does, or raise its error."""
        context = self._context
        head = post.head
        if post.route is self._write:
            return await apply_write(context, version_of(head.kind, head.encoding), body)
        command, layout = template_of(post.query, post.stream)
        key = checked_key(head.key)
        if post.route is self._many:
            refuse_key(key)
            return await apply_items(context, command, layout, body, JSON)
        command.key = key
        return await apply_observations(context, command, layout, body, JSON, state)

    def _end(
        self,
        post: PlainPost,
        connection: HttpProtocol,
        result: Response | Exception,
        is_list: bool = False,
    ) -> None:
        """Send an answer, or that to an error, and record it."""
        if isinstance(result, ServiceError):
            result = problem(result)
        elif isinstance(result, Exception):
            result = defect_problem(result, post.request_id.decode())
        result.raw_headers += self._headers(post)
        connection.answer(result)
        self._record(post, result.status_code, is_list)

    def _headers(self, post: PlainPost) -> list[tuple[bytes, bytes]]:
        return [*self._added, (b"x-request-id", post.request_id)]

    def _record(self, post: PlainPost, status: int, is_list: bool) -> None:
        label = post.route.path + LIST if is_list else post.route.path
        seconds = time.perf_counter() - post.began
        self._gathered.add(request_duration(label, "POST", status), seconds)


# --- connections ----------------------------------------------------------------------------------


class HttpProtocol(HttpToolsProtocol):
    """Uvicorn's side of a connection. A plain post is answered without being parsed.

    posts: answers plain posts; None: all requests are to be parsed.
    """

    def __init__(self, posts: PlainPosts | None, config: Config, *arguments: Any) -> None:
        super().__init__(config, *arguments)
        self._posts = posts
        self._between = True  # no part of a request is parsed
        self._post: PlainPost | None = None  # whose body has not come whole
        self._pieces: list[bytes] = []  # of it
        self._missing = 0  # its bytes that have not come
        self._slow: asyncio.TimerHandle | None = None
        self._answering = False  # a plain post
        self._answered_s = 0.0  # when the last one was, by the loop's clock
        self._ending = False  # the connection is to end with its answer
        self._held = b""  # what came meanwhile

    def data_received(self, data: bytes) -> None:
        """Have a plain post answered, or parse what came."""
        if self._answering:
            self._held += data
            self.flow.pause_reading()
            return
        if self._post is not None:
            self._collect(self._post, data)
            return
        # A client that does not read its answers waits with its next request: only a task can.
        writes = not self.flow.write_paused
        idle = self._between and (self.cycle is None or self.cycle.response_complete)
        post = self._posts.begun(data) if self._posts is not None and idle and writes else None
        if post is None:
            super().data_received(data)
            return
        if len(data) == post.size:
            self._take(post, data)
            return
        self._post = post
        self._missing = post.size
        self._slow = self.loop.call_later(PIECES_S, self._parse)
        self._collect(post, data)

    def _collect(self, post: PlainPost, data: bytes) -> None:
        """Keep a piece of a plain post, or have it answered with the last one."""
        self._pieces.append(data)
        self._missing -= len(data)
        if self._missing > 0:
            return
        if self._missing < 0:  # another request follows
            self._parse()
        else:
            self._take(post, self._collected())

    def _collected(self) -> bytes:
        """Return what has come of a plain post, which is kept no more."""
        data = b"".join(self._pieces)
        self._post = None
        self._pieces = []
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None
        return data

    def _parse(self) -> None:
        """Have what has come of a plain post parsed after all."""
        super().data_received(self._collected())

    def _take(self, post: PlainPost, data: bytes) -> None:
        assert self._posts is not None
        self._answering = True
        self._posts.answer(post, data[post.start :], self)

    def run(self, answering: Coroutine[Any, Any, None]) -> None:
        """Have a plain post answered by a task."""
        task = self.loop.create_task(answering)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def answer(self, response: Response) -> None:
        """Send the answer to a plain post, unless its client has left."""
        self._write_head(response, response.body)
        self._end()

    async def stream(self, response: ListResponse) -> None:
        """Send an answer in parts, with time for others in between."""
        self._write_head(response, b"")
        for number, buffers in enumerate(response.parts()):
            if number:
                await self.flow.drain()
                await asyncio.sleep(0)
            if self.transport.is_closing():
                break
            self.transport.writelines(buffers)
        self._end()

    def _write_head(self, response: Response, body: bytes | memoryview) -> None:
        """Send the head of an answer, and its body unless that is sent in parts."""
        if self.transport.is_closing():
            return
        if self._ending:
            response.raw_headers.append(CLOSE)
        lines = [STATUS_LINE[response.status_code]]
        for name, value in (*self.server_state.default_headers, *response.raw_headers):
            lines += (name, b": ", value, b"\r\n")
        self.transport.write(b"".join((*lines, b"\r\n", body)))

    def _end(self) -> None:
        """Go on with the next request once an answer is sent."""
        self._answering = False
        self._answered_s = self.loop.time()
        if self.transport.is_closing():
            return
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
        busy = self._answering or self._post is not None
        idle_s = 0.0 if busy else self.loop.time() - self._answered_s
        if idle_s < self.timeout_keep_alive and not self.transport.is_closing():
            self._rest(self.timeout_keep_alive - idle_s)
        else:
            super().timeout_keep_alive_handler()

    def shutdown(self) -> None:
        """End the connection, once it has no answer to come."""
        if self._post is not None:
            self._parse()
        if self._answering:
            self._ending = True
        else:
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop what has come of a plain post."""
        self._collected()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Begin to parse a request."""
        self._between = False
        super().on_message_begin()

    def on_message_complete(self) -> None:
        """End to parse a request; its answer may be there or not."""
        self._between = True
        super().on_message_complete()


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
        gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
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
        return HttpProtocol(self._posts, self.config, self.server_state, state)

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
