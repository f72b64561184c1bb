"""What surrounds the calls: what every request passes, what is read of it, and its answer.

`RequestMiddleware` gives a request its id, refuses it before its body is read if this process has
no room for it, and measures it. `Route` admits its key and turns errors into problem documents.
Endpoints read bodies, bounded in size and time, and build their answers by the functions below.
Nearly all posts of observations and samples pass nothing of this: see `server.PlainPosts`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
import zlib
from collections.abc import (
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Executor
from functools import cache
from random import Random
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec
from fastapi import FastAPI, Header, Path
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import AfterValidator
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from service.api.context import Context
from service.api.gateway.load_shedding import Overload, count_shed
from service.api.parsing.bodies import ARROW, JSON, NDJSON, field_errors, wrong_media
from service.api.parsing.observations import check_parameters
from service.observability import metrics
from service.observability.tracing import RequestTrace
from service.problems import (
    PROBLEM_JSON,
    BodyTooLarge,
    InternalError,
    InvalidField,
    MalformedBody,
    Overloaded,
    ServiceError,
    SlowBody,
    TooManyConnections,
    UnsupportedEncoding,
)
from service.schema import rendering
from service.schema.observations import (
    KEY_RULE,
    STREAM_ID,
    STREAM_ID_RULE,
    check_stream,
    is_key,
    is_stream,
)
from service.tasks import apart
from service.wire import Command, Observe, Outcome

log = logging.getLogger(__name__)

CLOSE = (b"connection", b"close")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"})
SPARE_CONNECTIONS = 128  # over the limit, of which each is closed once it has an answer
CLIENT_LEFT = 499
# A list takes as long as it has observations: it must not hide what a single one takes.
LIST = " (list)"  # after the route, in the label of its duration
BODY_TIMEOUT_S = 30.0  # the largest body, 8 MiB, at 2.2 Mbit/s
LIGHT_BYTES = 16_384  # of a body that is read at once, without a thread: some milliseconds
LIGHT_VALUES = 600  # in such a body
LIGHT_PACKED = 1024  # bytes that are unpacked at once
LIGHT_COPY = 1 << 20
MAX_MEMBERS = 64  # of a gzip body; each costs a copy of the rest
RERUNS_AT_ONCE = 16  # that one request waits for; a worker computes one at a time
T = TypeVar("T")
Handler = Callable[[Request], Coroutine[Any, Any, Response]]
StreamPath = Annotated[
    str,
    Path(description="stream id", pattern=STREAM_ID, openapi_examples={"": {"value": "pump-7"}}),
    AfterValidator(check_stream),
]
_ONE: dict[str, Any] = {"le": 2**53, "openapi_examples": {"": {"value": 1}}}
EventPath = Annotated[int, Path(description="id of an event of the stream", ge=0, **_ONE)]
RegimePath = Annotated[
    int, Path(description="id of a regime that the stream remembers", ge=1, **_ONE)
]
ModelPath = Annotated[
    str, Path(description="model name", openapi_examples={"": {"value": "gaussian"}})
]
LastEventId = Annotated[
    str,
    Header(
        alias="Last-Event-ID",
        description="`id` of the last message received: resume right after it",
    ),
]
# zlib's window: 16 + for gzip's header, plain for zlib's own, which HTTP calls deflate.
_WINDOWS = {
    b"gzip": 16 + zlib.MAX_WBITS,
    b"x-gzip": 16 + zlib.MAX_WBITS,
    b"deflate": zlib.MAX_WBITS,
}
_json_type = re.compile(rb"application/([a-z0-9.-]+\+)?json\s*(;.*)?", re.IGNORECASE).fullmatch
_other_types = {
    NDJSON: re.compile(rb"application/(x-)?ndjson\s*(;.*)?", re.IGNORECASE).fullmatch,
    ARROW: re.compile(re.escape(ARROW.encode()), re.IGNORECASE).fullmatch,
}
_observations = re.compile(r"/v1/(?:streams/([^/]+)/)?observations").fullmatch
_acceptable_id = re.compile(rb"[A-Za-z0-9._-]{1,64}").fullmatch
_encode = msgspec.json.Encoder().encode
_document = msgspec.json.Decoder(dict[str, Any]).decode
# To find a metric costs more than to enter a value.
request_duration = cache(metrics.REQUEST_DURATION.labels)
_random_bits = Random().getrandbits  # ids are no secrets, and have to be cheap


def context_of(request: Request) -> Context:
    """Return the context that the application created at startup."""
    context: Context = request.scope["state"]["context"]
    return context


# --- around every request -------------------------------------------------------------------------


class Admission:
    """What one process has room for. The server sets its connections, their limit and requests."""

    def __init__(self, overload: Overload) -> None:
        self.connections: Collection[Any] = ()
        self.max_connections: float = math.inf
        self.requests: Collection[Any] = ()  # in flight, but for plain posts
        self.event_streams = 0  # of these, which wait for events
        self.plain_posts = 0  # in flight
        self.overload = overload

    @property
    def crowded(self) -> bool:
        """Whether connections are over the limit: each is closed once it has an answer."""
        return len(self.connections) > self.max_connections

    def refusal(self, method: str) -> Overloaded | TooManyConnections | None:
        """Return why there is no room for one more request; None: there is."""
        if len(self.connections) > self.max_connections + SPARE_CONNECTIONS:
            return TooManyConnections("connection limit of this API process reached")
        if method != "POST":
            return None
        in_flight = len(self.requests) - self.event_streams + self.plain_posts
        return self.overload.early(in_flight, time.monotonic())


class RequestMiddleware:
    """Pure ASGI middleware outside of all others: gives requests ids, admits and measures them.

    The client's X-Request-Id is kept if it is harmless; the answer carries it. Labels are route
    templates and known methods only, so that no client can make new series. With a log, each
    request gets a line there; with a tracer, some have a trace.
    """

    def __init__(self, app: FastAPI) -> None:
        self._api = app
        self._app = app.build_middleware_stack()
        self._has_cors = bool(app.user_middleware)
        routes = [route for route in app.routes if isinstance(route, Route)]
        self._routes = {route.name: route for route in routes}
        self._state = app.state
        self.admission: Admission = app.state.admission
        self._log = app.state.access_log
        self._tracer = app.state.tracer
        self._gathered: metrics.Gathered = app.state.gathered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection of the server."""
        scope["app"] = self._api
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        state = scope.setdefault("state", {})
        state["context"] = self._state.context
        state["headers"] = dict(reversed(scope["headers"]))  # the first of a name counts
        request_id = request_id_of(header(scope, b"x-request-id"))
        state["request_id"] = request_id.decode()
        added = [(b"x-request-id", request_id), *([CLOSE] if self.admission.crowded else [])]
        method = scope["method"] if scope["method"] in METHODS else "other"
        status = 0
        trace = self._tracer and self._tracer.request(method, header(scope, b"traceparent"))
        received = 0
        sent = 0

        async def body() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        async def answer(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *added]
            else:
                sent += len(message.get("body", b""))
            await send(message)

        taken = receive if self._log is None else body
        try:
            refusal = self._refusal(scope)
            if refusal is None:
                await self._app(scope, taken, answer)
            else:
                await _refused(scope, refusal)(scope, taken, answer)
        except Exception as error:
            defect = defect_problem(error, state["request_id"])
            if not status:
                await defect(scope, taken, answer)
            raise
        finally:
            self._record(scope, method, status or 500, began, trace, (received, sent))

    def _refusal(self, scope: Scope) -> Overloaded | TooManyConnections | None:
        """Return why there is no room for a request, of which only the head is known; None: go on.

        Under overload posts of observations are refused, and whatever is far over the limit of
        connections. Requests of web pages, which have an origin, pass the layer of CORS if there is
        one.
        """
        error = self.admission.refusal(scope["method"])
        if isinstance(error, Overloaded):  # a post
            match = _observations(scope["path"])
            if match is None or (self._has_cors and header(scope, b"origin") is not None):
                return None
            scope["route"] = self._routes["observe_many" if match[1] is None else "observe"]
        return error

    def _record(
        self,
        scope: Scope,
        method: str,
        status: int,
        began: float,
        trace: RequestTrace | None,
        traffic: tuple[int, int],
    ) -> None:
        """Record an ended request: its measure, its trace and its line of the log.

        traffic: bytes of its body, and of the answer's, as they went over the wire.
        """
        # Streaming responses are measured to the first byte.
        seconds = (scope["state"].get("answered_s") or time.perf_counter()) - began
        route: str = getattr(scope.get("route"), "path", "unmatched")
        label = route + LIST if "list" in scope["state"] else route
        self._gathered.add(request_duration(label, method, status), seconds)
        if trace is not None:
            trace.end(route, status)
        if self._log is not None:
            self._log.write(scope, status, seconds, *traffic)


def request_id_of(sent: bytes | None) -> bytes:
    """Return the id that a request brings, or a new one if it brings none or a bad one."""
    return sent if sent and _acceptable_id(sent) else b"%016x" % _random_bits(64)


def _refused(scope: Scope, error: Overloaded | TooManyConnections) -> Response:
    count_shed(error)
    # A client that waits for 100 Continue never sends its body: nothing more can be read.
    waits = header(scope, b"expect") is not None
    return problem(error, {"Connection": "close"} if waits else None)


# --- around a call --------------------------------------------------------------------------------


class ParsedRequest(Request):
    """A request whose JSON body is read, bounded and parsed already."""

    def __init__(self, request: Request, content: bytes, value: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._content = content
        self._value = value

    async def body(self) -> bytes:
        """Return the body, unpacked."""
        return self._content

    async def json(self) -> Any:
        """Return the value of the body."""
        return self._value


class Route(APIRoute):
    """A route that admits keys, bounds bodies and answers errors by problem documents.

    `needs` is the scope that a key must have.
    """

    needs = "admin"  # the default of a route that sets no scope

    def get_route_handler(self) -> Handler:
        """Return FastAPI's handler within this route's."""
        handle = super().get_route_handler()
        required = self.body_field is not None and self.body_field.field_info.is_required()

        async def declared(request: Request) -> Response:
            check_parameters(request.query_params.multi_items())
            if self.body_field is not None:
                body, _ = await read_json(request.scope, request.receive, required)
                context = context_of(request)
                parse = context.command_parser.json
                value = await parse_body(context, parse, body) if body else None
                request = ParsedRequest(request, body, value)
            return await handle(request)

        async def answer(request: Request) -> Response:
            try:
                await context_of(request).authenticator.admit(request.scope, self.needs)
                return await declared(request)
            except ServiceError as error:
                return problem(error)
            except RequestValidationError as error:
                return problem(InvalidField(field_errors(error.errors())))
            except ClientDisconnect:  # in the middle of its body; this answer is not read
                return Response(status_code=CLIENT_LEFT)

        return answer


# --- what is read of a request --------------------------------------------------------------------


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return a header by its lower-case name."""
    headers: dict[bytes, bytes] = scope["state"]["headers"]
    return headers.get(name)


def header_text(scope: Scope, name: bytes) -> str:
    """Return a header as text; empty where there is none."""
    return (header(scope, name) or b"").decode("latin-1")


def checked_stream(stream: str) -> str:
    """Return a stream id if its characters are allowed."""
    if not is_stream(stream):
        raise InvalidField.at("path.stream", f"expected {STREAM_ID_RULE}")
    return stream


def key_of(scope: Scope) -> str | None:
    """Return a request's idempotency key."""
    return checked_key(header(scope, b"idempotency-key"))


def checked_key(value: bytes | None) -> str | None:
    """Return an idempotency key, if there is one, that keeps its rules."""
    if value is None:
        return None
    key = value.decode("latin-1")
    if is_key(key) is None:
        raise InvalidField.at("header.idempotency-key", f"expected {KEY_RULE}")
    return key


async def read_json(
    scope: Scope, receive: Receive, required: bool = True, others: Sequence[str] = ()
) -> tuple[bytes, str]:
    """Return the body of a JSON request, or of one of `others`, bounded in size; and its type."""
    context: Context = scope["state"]["context"]
    body = await read_body(scope, receive, context.settings.max_body_bytes)
    kind: bytes = header(scope, b"content-type") or b""
    if is_json(kind) or (not body and not required):
        return body, JSON
    for other in others:
        if _other_types[other](kind):
            return body, other
    # This also blocks cross-origin posts of web pages: JSON needs a CORS preflight.
    accepted = " or ".join((JSON, *others))
    advice = ""
    if ARROW in others and _other_types[NDJSON](kind):
        advice = "; post the lines as a JSON list, or to /v1/observations, each with its `stream`"
    raise wrong_media(accepted, kind.decode("latin-1"), advice)


def is_json(kind: bytes) -> bool:
    """Whether a type of bodies is JSON."""
    return kind == b"application/json" or _json_type(kind) is not None


async def read_kind(request: Request, expected: str, limit: int | None = None) -> bytes:
    """Return a body that is not JSON; limit: of its bytes, default: of any body."""
    kind: bytes = header(request.scope, b"content-type") or b""
    if kind.partition(b";")[0].strip().lower() != expected.encode():
        raise wrong_media(expected, kind.decode("latin-1"))
    limit = context_of(request).settings.max_body_bytes if limit is None else limit
    return await read_body(request.scope, request.receive, limit)


async def read_body(scope: Scope, receive: Receive, limit: int, as_sent: bool = False) -> bytes:
    """Return a body of at most `limit` bytes, unpacked; large ones are unpacked in the thread.

    as_sent: do not unpack it, whatever its encoding. Raises BodyTooLarge as soon as the limit is
    passed, SlowBody, UnsupportedEncoding, MalformedBody and ClientDisconnect.
    """
    encoding = header(scope, b"content-encoding")
    window = None if as_sent or encoding is None else _window(encoding)
    length = header(scope, b"content-length")
    if length is not None and length.isdigit() and int(length) > limit:
        raise BodyTooLarge(f"the body has {int(length)} bytes; at most {limit}")
    thread: Executor = scope["state"]["context"].thread
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            body = await _received(receive, limit, thread)
    except TimeoutError:
        raise SlowBody(f"the body did not arrive within {BODY_TIMEOUT_S:g} s") from None
    if window is None:
        return body
    if len(body) > LIGHT_PACKED:
        return await apart(thread, _unpacked, body, window, limit)
    return _unpacked(body, window, limit)


async def _received(receive: Receive, limit: int, thread: Executor) -> bytes:
    chunks: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            _too_large(limit)
        more = message.get("more_body", False)
        if not more and not chunks:
            return chunk
        chunks.append(chunk)
    if size > LIGHT_COPY:
        return await apart(thread, b"".join, chunks)
    return b"".join(chunks)


def _window(encoding: bytes) -> int | None:
    """Return zlib's window for an encoding; None for a body as it is."""
    name = (encoding or b"identity").strip().lower()
    if name == b"identity":
        return None
    window = _WINDOWS.get(name)
    if window is None:
        got = name[:100].decode("latin-1")
        raise UnsupportedEncoding(f"Content-Encoding: expected gzip or deflate, got {got!r}")
    return window


def _unpacked(packed: bytes, window: int, limit: int) -> bytes:
    """Unpack up to the limit, so that a decompression bomb never fills the memory."""
    parts: list[bytes] = []
    room = limit
    while packed:  # gzip: one member after the other
        if len(parts) == MAX_MEMBERS:
            raise MalformedBody(f"body: expected at most {MAX_MEMBERS} gzip members")
        unpack = zlib.decompressobj(window)
        try:
            part = unpack.decompress(packed, room + 1)
        except zlib.error as error:
            raise MalformedBody(f"body: cannot decompress: {error}") from None
        room -= len(part)
        if room < 0:
            _too_large(limit, "unpacked ")
        if not unpack.eof:
            raise MalformedBody("body: cannot decompress: truncated")
        parts.append(part)
        packed = unpack.unused_data
    return b"".join(parts)


def _too_large(limit: int, how: str = "") -> NoReturn:
    raise BodyTooLarge(f"the {how}body has more than {limit} bytes")


async def parse_body(context: Context, parse: Callable[[bytes], T], body: bytes) -> T:
    """Parse a body; in the thread if it is not light."""
    return parse(body) if is_light(body) else await apart(context.thread, parse, body)


def is_light(body: bytes) -> bool:
    """Whether any body of this size is parsed within milliseconds."""
    return len(body) <= LIGHT_BYTES and body.count(b",") < LIGHT_VALUES


# --- answers --------------------------------------------------------------------------------------


class ListResponse(Response):
    """Answers one after the other; sent in pieces, as they can be hundreds of megabytes.

    pieces: some answers each, with what is between them.
    """

    def __init__(
        self,
        pieces: list[bytes],
        around: tuple[bytes, bytes, bytes] = (b"[", b",", b"]"),
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str = JSON,
    ) -> None:
        before, between, after = around
        size = len(before) + sum(map(len, pieces)) + len(after)
        size += len(between) * max(0, len(pieces) - 1)
        all_headers = {**(headers or {}), "Content-Length": str(size)}
        super().__init__(b"", status, all_headers, media_type)
        self._pieces = pieces
        self._around = around

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answers, with time for others in between."""
        head = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **head})
        for buffers in self.parts():
            body = b"".join(buffers)
            await send({"type": "http.response.body", "body": body, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b""})

    def parts(self) -> Iterator[tuple[bytes, ...]]:
        """Yield the body in the parts that are sent, each in buffers."""
        before, between, after = self._around
        pieces = self._pieces or [b""]
        for piece in pieces[:-1]:
            yield before, piece
            before = between
        yield before, pieces[-1], after


async def submit(request: Request, command: Command) -> Response:
    """Submit a command; return its outcome."""
    return outcome_response(await context_of(request).gateway.submit(command))


async def submit_reruns(
    context: Context, commands: Sequence[Command]
) -> list[bytes | dict[str, Any]]:
    """Submit a rerun of each of several streams, a few at a time.

    Returns the answer of each, or its problem document with the stream.
    """
    room = asyncio.Semaphore(RERUNS_AT_ONCE)

    async def rerun(command: Command) -> bytes | dict[str, Any]:
        async with room:
            try:
                outcome = await context.gateway.submit(command)
            except ServiceError as error:
                return {**error.document(), "stream": command.stream}
        if outcome.status >= 400:
            return {**document_of(outcome), "stream": command.stream}
        return outcome.body[-1] if outcome.body else b""

    return await asyncio.gather(*map(rerun, commands))


class Rendered(Response):
    """An answer of bytes. Its headers are made as such: starlette takes four times as long."""

    def __init__(
        self, content: bytes, status: int, media: str, headers: Mapping[str, str] | None = None
    ) -> None:
        self.status_code = status
        self.background = None
        self.body = content
        self.raw_headers = [
            (b"content-length", b"%d" % len(content)),
            (b"content-type", media.encode()),
        ]
        for name, value in (headers or {}).items():
            self.raw_headers.append((name.lower().encode(), value.encode("latin-1")))


def json_response(answer: Any) -> Response:
    """Return an answer as JSON."""
    return Rendered(_encode(answer), 200, JSON)


def outcome_response(outcome: Outcome) -> Response:
    """Return the outcome of a command that is no observation: its body, or its problem document."""
    content = outcome.body[-1] if outcome.body else b""
    if outcome.status >= 400:
        return Rendered(content, outcome.status, PROBLEM_JSON)
    if not content:
        return Response(status_code=outcome.status)
    return Rendered(content, outcome.status, JSON)


def document_of(outcome: Outcome) -> dict[str, Any]:
    """Return the problem document of a command that was refused."""
    return _document(outcome.body[-1])


def answer_response(command: Observe, outcome: Outcome) -> Response:
    """Return the answer to one observation, or the problem document of its refusal."""
    if outcome.status >= 400:
        return outcome_response(outcome)
    (answer,) = rendering.texts(command, outcome)
    return Rendered(answer, 200, JSON)


def problem(error: ServiceError, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error as a problem document."""
    all_headers = {**error.headers(), **(headers or {})}
    return Rendered(error.render(), error.status, PROBLEM_JSON, all_headers)


def defect_problem(error: Exception, request_id: str) -> Response:
    """Log an error that nobody foresaw, and return its problem document."""
    log.error("request %s failed", request_id, exc_info=error)
    return problem(InternalError("internal error", request_id=request_id))
