"""Routes called with the bare request; helpers to read requests and build responses."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Executor
from typing import Annotated, Any, NamedTuple, TypeVar

from fastapi import Header, Path
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import AfterValidator
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.api.auth.guard import Authenticator
from service.api.gateway.changes import Changes, Explanations
from service.api.gateway.gateway import Gateway, Replies
from service.api.gateway.own_commands import HindsightRequests
from service.api.gateway.store_monitor import Monitor
from service.api.gateway.stream_pages import Ranking
from service.api.parsing.bodies import BYTES, JSON, NDJSON, apart, header, is_light, read_body
from service.api.parsing.commands import CommandParser
from service.api.parsing.field_errors import field_errors
from service.api.parsing.observations import ObservationParser, check_parameters
from service.api.parsing.series_rules import SeriesRules
from service.api.sse.event_hub import EventHub
from service.api.sse.observation_hub import ObservationHub
from service.models.catalogue import Catalogue
from service.problems import (
    PROBLEM_JSON,
    FieldError,
    InvalidField,
    ServiceError,
    UnsupportedMediaType,
)
from service.schema.observations import KEY, STREAM_ID, STREAM_ID_RULE, check_stream
from service.settings import Settings
from service.store.reads import AsyncStore
from service.wire import Command, Outcome

CLIENT_LEFT = 499
BODY_TIMEOUT_S = 30.0  # the largest body, 8 MiB, at 2.2 Mbit/s
AT_ONCE = 32  # answers sent in one piece
T = TypeVar("T")
Handler = Callable[[Request], Coroutine[Any, Any, Response]]
RAW: set[Handler] = set()  # endpoints that are called with the bare request
StreamPath = Annotated[
    str,
    Path(description="stream id", pattern=STREAM_ID, openapi_examples={"": {"value": "pump-7"}}),
    AfterValidator(check_stream),
]
EventPath = Annotated[
    int,
    Path(
        description="id of an event of the stream",
        ge=0,
        le=2**53,
        openapi_examples={"": {"value": 1}},
    ),
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
_stream_id = re.compile(STREAM_ID.strip("^$")).fullmatch
_key = re.compile(KEY.strip("^$")).fullmatch
_json_type = re.compile(rb"application/([a-z0-9.-]+\+)?json\s*(;.*)?", re.IGNORECASE).fullmatch
_ndjson_type = re.compile(rb"application/(x-)?ndjson\s*(;.*)?", re.IGNORECASE).fullmatch


class Bytes(Response):
    """A binary answer."""

    media_type = BYTES


class Listed(Response):
    """Answers one after the other; sent in pieces, as they can be hundreds of megabytes."""

    def __init__(
        self,
        answers: list[bytes],
        around: tuple[bytes, bytes, bytes] = (b"[", b",", b"]"),
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str = JSON,
    ) -> None:
        before, between, after = around
        size = len(before) + sum(map(len, answers)) + len(after)
        size += len(between) * max(0, len(answers) - 1)
        all_headers = {**(headers or {}), "Content-Length": str(size)}
        super().__init__(b"", status, all_headers, media_type)
        self._answers, self._around = answers, around

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answers, with time for others in between."""
        head = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **head})
        for piece in self._pieces():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": self._around[2], "more_body": False})

    def _pieces(self) -> Iterator[bytes]:
        before, between, _ = self._around
        for first in range(0, len(self._answers), AT_ONCE):
            yield before + between.join(self._answers[first : first + AT_ONCE])
            before = between
        if not self._answers:
            yield before


class Context(NamedTuple):
    """Shared objects of one API process, for its routes."""

    settings: Settings
    observation_parser: ObservationParser
    command_parser: CommandParser
    gateway: Gateway
    replies: Replies
    hindsight: HindsightRequests
    store: AsyncStore
    monitor: Monitor
    catalogue: Catalogue
    authenticator: Authenticator
    event_hub: EventHub
    changes: Changes
    explanations: Explanations
    ranking: Ranking
    observation_hub: ObservationHub
    series_rules: SeriesRules
    thread: Executor  # one thread, for bodies that are not light


def raw(endpoint: Handler) -> Handler:
    """Mark an endpoint that is called with the bare request."""
    RAW.add(endpoint)
    return endpoint


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

    `needs` is the scope that a key must have. The endpoint of a `raw` one is called with the bare
    request: FastAPI's own handling costs 95 us, more than the rest of a posted observation.
    """

    needs = "admin"  # the default of a route that sets no scope

    def __init__(self, path: str, endpoint: Any, **documented: Any) -> None:
        super().__init__(path, endpoint, **documented)
        if endpoint in RAW:
            self.app = self._respond

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(Request(scope, receive, send), self.endpoint)
        await response(scope, receive, send)

    def get_route_handler(self) -> Handler:
        """Return FastAPI's handler within this route's."""
        handle = super().get_route_handler()
        required = self.body_field is not None and self.body_field.field_info.is_required()

        async def declared(request: Request) -> Response:
            check_parameters(request.query_params.multi_items())
            if self.body_field is not None:
                body, _ = await read_json(request, required)
                parser = context_of(request).observation_parser
                value = await parse_body(context_of(request), parser.json, body) if body else None
                request = ParsedRequest(request, body, value)
            return await handle(request)

        async def answer(request: Request) -> Response:
            return await self._answer(request, declared)

        return answer

    async def _answer(self, request: Request, endpoint: Handler) -> Response:
        try:
            authenticator = context_of(request).authenticator
            await authenticator.admit(request.scope, self.needs)
            return await endpoint(request)
        except ServiceError as error:
            return problem(error)
        except RequestValidationError as error:
            return problem(InvalidField(field_errors(error.errors())))
        except ClientDisconnect:  # in the middle of its body; this answer is not read
            return Response(status_code=CLIENT_LEFT)


def context_of(request: Request) -> Context:
    """Return the context that the application created at startup."""
    context: Context = request.scope["app"].state.context
    return context


def checked_stream(stream: str) -> str:
    """Return a stream id if its characters are allowed."""
    if _stream_id(stream) is None or stream in {".", ".."}:
        raise InvalidField([FieldError("path.stream", f"expected {STREAM_ID_RULE}")])
    return stream


def key_of(request: Request) -> str | None:
    """Return the request's idempotency key."""
    value = header(request.scope, b"idempotency-key")
    if value is None:
        return None
    key = value.decode("latin-1")
    if _key(key) is None:
        detail = "expected 1 to 200 printable ASCII characters without spaces"
        raise InvalidField([FieldError("header.idempotency-key", detail)])
    return key


async def read_snapshot(request: Request) -> bytes:
    """Return the body of a request that sends a snapshot, bounded in size."""
    kind: bytes = header(request.scope, b"content-type") or b""
    if kind.partition(b";")[0].strip().lower() != BYTES.encode():
        detail = f"Content-Type: expected {BYTES}, got {kind.decode('latin-1')!r}"
        raise UnsupportedMediaType(detail)
    context = context_of(request)
    limit = context.settings.max_snapshot_bytes
    return await read_body(request, context.thread, limit, BODY_TIMEOUT_S)


async def read_as_sent(request: Request) -> bytes:
    """Return the body of a request as it was sent, bounded in size, whatever its encoding."""
    context = context_of(request)
    limit = context.settings.max_body_bytes
    return await read_body(request, context.thread, limit, BODY_TIMEOUT_S, as_sent=True)


async def read_json(
    request: Request, required: bool = True, lines: bool = False
) -> tuple[bytes, bool]:
    """Return the body of a JSON request, bounded in size; with `lines` also of an NDJSON one.

    The second value is whether it is NDJSON.
    """
    context = context_of(request)
    kind: bytes = header(request.scope, b"content-type") or b""
    limit = context.settings.max_body_bytes
    body = await read_body(request, context.thread, limit, BODY_TIMEOUT_S)
    if _json_type(kind) or (not body and not required):
        return body, False
    if lines and _ndjson_type(kind):
        return body, True
    # This also blocks cross-origin posts of web pages: JSON needs a CORS preflight.
    accepted = f"{JSON} or {NDJSON}" if lines else JSON
    raise UnsupportedMediaType(f"Content-Type: expected {accepted}, got {kind.decode('latin-1')!r}")


async def parse_body(context: Context, parse: Callable[[bytes], T], body: bytes) -> T:
    """Parse a body; in the thread if it is not light."""
    return parse(body) if is_light(body) else await apart(context.thread, lambda: parse(body))


async def submit(request: Request, command: Command) -> Response:
    """Submit a command; return its outcome."""
    return outcome_response(await context_of(request).gateway.submit(command))


def json_response(content: bytes, status: int = 200) -> Response:
    """Return a response of rendered JSON."""
    return Response(content, status, media_type=JSON)


def outcome_response(outcome: Outcome) -> Response:
    """Return a command's outcome: its only body, or its problem document."""
    content = outcome.body[-1] if outcome.body else b""
    if outcome.status >= 400:
        return Response(content, outcome.status, media_type=PROBLEM_JSON)
    if not content:
        return Response(status_code=outcome.status)
    return Response(content, outcome.status, media_type=JSON)


def problem(error: ServiceError, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error as a problem document."""
    all_headers = {**error.headers(), **(headers or {})}
    return Response(error.render(), error.status, all_headers, media_type=PROBLEM_JSON)
