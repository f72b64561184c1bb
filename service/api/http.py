"""Routes called with the bare request; helpers to read requests and build responses."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Any, NamedTuple, TypeVar

from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.api.auth.guard import Authenticator
from service.api.gateway.changes import Changes
from service.api.gateway.explanations import Explanations
from service.api.gateway.gateway import Gateway
from service.api.gateway.hindsight import HindsightRequests
from service.api.gateway.ranking import Ranking
from service.api.gateway.replies import Replies
from service.api.gateway.store_monitor import Monitor
from service.api.parsing.bodies import BYTES, JSON, NDJSON, apart, header, is_light, read_body
from service.api.parsing.commands import CommandParser
from service.api.parsing.observations import ObservationParser, query
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
from service.schema.observations import KEY, STREAM_ID, STREAM_ID_RULE, Form
from service.settings import Settings
from service.store.api_reads import AsyncStore
from service.wire import Command, Outcome

CLIENT_LEFT = 499
BODY_TIMEOUT_S = 30.0  # the largest body, 8 MiB, at 2.2 Mbit/s
AT_ONCE = 32  # answers sent in one piece
T = TypeVar("T")
F = TypeVar("F", bound=Form)
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


class RawRoute(APIRoute):
    """A documented route whose endpoint is called with the bare request.

    FastAPI's own handling of parameters and answers costs more than all the rest of a request
    (85 of 126 us); endpoints here read and check their input themselves, once. `needs` is the
    scope that a key must have.
    """

    needs = "admin"  # the default of a route that sets no scope

    def __init__(self, path: str, endpoint: Any, **documented: Any) -> None:
        super().__init__(path, endpoint, **documented)
        self.app = self._respond

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            authenticator: Authenticator = scope["app"].state.context.authenticator
            await authenticator.admit(scope, self.needs)
            response: Response = await self.endpoint(Request(scope, receive, send))
        except ServiceError as error:
            response = problem(error)
        except ClientDisconnect:  # in the middle of its body; this answer is not read
            response = Response(status_code=CLIENT_LEFT)
        await response(scope, receive, send)


def context_of(request: Request) -> Context:
    """Return the context that the application created at startup."""
    context: Context = request.scope["app"].state.context
    return context


def stream_of(request: Request) -> str:
    """Return the stream id of the path."""
    return checked_stream(request.scope["path_params"]["stream"])


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


async def read_json(request: Request, required: bool = True) -> bytes:
    """Return the body of a JSON request, bounded in size."""
    body, _ = await _read(request, required, lines=False)
    return body


async def read_snapshot(request: Request) -> bytes:
    """Return the body of a request that sends a snapshot, bounded in size."""
    kind: bytes = header(request.scope, b"content-type") or b""
    if kind.partition(b";")[0].strip().lower() != BYTES.encode():
        detail = f"Content-Type: expected {BYTES}, got {kind.decode('latin-1')!r}"
        raise UnsupportedMediaType(detail)
    return await _body(request, context_of(request).settings.max_snapshot_bytes)


async def read_as_sent(request: Request) -> bytes:
    """Return the body of a request as it was sent, bounded in size, whatever its encoding."""
    context = context_of(request)
    limit = context.settings.max_body_bytes
    return await read_body(request, context.thread, limit, BODY_TIMEOUT_S, as_sent=True)


async def read_items(request: Request) -> tuple[bytes, bool]:
    """Return the body of a JSON or NDJSON request, and whether it is NDJSON."""
    return await _read(request, required=True, lines=True)


async def _read(request: Request, required: bool, lines: bool) -> tuple[bytes, bool]:
    kind: bytes = header(request.scope, b"content-type") or b""
    body = await _body(request, context_of(request).settings.max_body_bytes)
    if _json_type(kind) or (not body and not required):
        return body, False
    if lines and _ndjson_type(kind):
        return body, True
    # This also blocks cross-origin posts of web pages: JSON needs a CORS preflight.
    accepted = f"{JSON} or {NDJSON}" if lines else JSON
    raise UnsupportedMediaType(f"Content-Type: expected {accepted}, got {kind.decode('latin-1')!r}")


async def _body(request: Request, limit: int) -> bytes:
    context = context_of(request)
    return await read_body(request, context.thread, limit, BODY_TIMEOUT_S)


def read_query(request: Request, form: type[F]) -> F:
    """Return the query of a request; raise InvalidField if it does not fit the form."""
    return query(form, request.query_params.multi_items())


async def read_form(request: Request, parse: Callable[[bytes], T], required: bool = True) -> T:
    """Read the body of a JSON request and parse it."""
    return await parse_body(context_of(request), parse, await read_json(request, required))


async def parse_body(context: Context, parse: Callable[[bytes], T], body: bytes) -> T:
    """Parse a body; in the thread if it is not light."""
    return parse(body) if is_light(body) else await apart(context.thread, lambda: parse(body))


async def submit_body(
    request: Request,
    parse: Callable[[CommandParser, str, bytes], Command],
    required: bool = True,
) -> Response:
    """Parse the body into a command for the stream of the path; return its outcome."""
    parser, stream = context_of(request).command_parser, stream_of(request)
    command = await read_form(request, partial(parse, parser, stream), required)
    return await submit(request, command)


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
    return json_response(content, outcome.status)


def problem(error: ServiceError, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error as a problem document."""
    all_headers = {**error.headers(), **(headers or {})}
    return Response(error.render(), error.status, all_headers, media_type=PROBLEM_JSON)
