"""Plain posts of one observation: from the bytes on a connection to those of the answer.

Nearly all requests are of this kind: whole in one piece, with headers that change nothing about how
they are read or answered. Parser, scope, middleware, route and task would cost more than all that
is done for the observation. What is not plain, and what has to wait for anything but its outcome,
is left to `routes.observations.observe`, which answers the same.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple, cast

from fastapi import FastAPI
from starlette.responses import Response

from service import wire
from service.api.gateway.gateway import PendingCommand
from service.api.http import (
    Admission,
    Context,
    Route,
    checked_key,
    is_json,
    is_light,
    load_shed,
    new_id,
    problem,
    request_duration,
)
from service.api.parsing.observations import digest
from service.api.routes.observations import answered, asked
from service.observability.metrics import Gathered
from service.problems import InternalError, ServiceError
from service.schema.observations import STREAM_CHARACTERS

log = logging.getLogger(__name__)

LONGEST_HEAD = 4096  # bytes
HEADS = 1024  # that are kept: those of one client hardly differ
# Headers that change how a request is read or answered.
OTHERS = frozenset(
    {
        b"content-encoding",
        b"expect",
        b"origin",
        b"transfer-encoding",
        b"upgrade",
        b"x-request-id",
    }
)
_line = re.compile(
    rb"POST /v1/(?:streams/((?!\.\.?/)[%b]{1,200})/)?observations(?:\?([\w=&.,-]*))? HTTP/1\.1"
    % STREAM_CHARACTERS.encode()
).fullmatch
_header = re.compile(rb"([A-Za-z0-9-]+): ([\x20-\x7e]*)").fullmatch
_length = re.compile(rb"\d{1,7}").fullmatch
Answer = Callable[[Response], None]  # sends it


class PlainHead(NamedTuple):
    """What the headers of a plain post say."""

    length: int  # of the body
    hosts: list[bytes]  # at most one
    authorization: bytes | None
    key: bytes | None  # for idempotency


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
    if not is_json(headers.get(b"content-type", b"")):
        return None
    return PlainHead(
        int(length),
        [headers[b"host"]] if b"host" in headers else [],
        headers.get(b"authorization"),
        headers.get(b"idempotency-key"),
    )


class PlainPosts:
    """Answers the plain posts of one process, which has neither an access log nor traces."""

    def __init__(self, app: FastAPI, context: Context) -> None:
        self._context = context
        self._admission: Admission = app.state.admission
        self._gathered: Gathered = app.state.gathered
        routes = {route.name: route for route in app.routes if isinstance(route, Route)}
        self._one = routes["observe"]
        self._many = routes["observe_many"]

    def take(self, data: bytes, answer: Answer) -> bool:
        """Answer a plain post, now or later; whether this is one.

        Under overload, lists and posts of many streams are refused here as well: to parse a request
        costs three times what it takes to refuse it.
        """
        end = data.find(b"\r\n\r\n", 0, LONGEST_HEAD)
        first = data.find(b"\r\n", 0, end)
        line = _line(data[:first])
        if line is None:
            return False
        head = plain_head(data[first + 2 : end])
        if head is None or len(data) != end + 4 + head.length or self._admission.crowded:
            return False
        began = time.perf_counter()
        stream, query = line.groups()
        refusal = self._admission.refusal("POST")
        if refusal is not None:
            load_shed(refusal.reason).inc()
            self._end(self._many if stream is None else self._one, began, answer, refusal)
            return True
        body = data[end + 4 :]
        if stream is None or body[:1] != b"{" or not is_light(body):
            return False
        try:
            pending = self._submit(stream.decode(), query or b"", head, body)
        except Exception as error:  # noqa: BLE001, a defect is answered as well
            self._end(self._one, began, answer, error)
            return True
        if pending is None:
            return False
        self._admission.plain_posts += 1
        pending.group.future.add_done_callback(partial(self._done, pending, began, answer))
        return True

    def _submit(
        self, stream: str, query: bytes, head: PlainHead, body: bytes
    ) -> PendingCommand | None:
        """Submit an observation; None where its post is not plain after all."""
        context = self._context
        authenticator = context.authenticator
        if authenticator.stale:
            return None
        key = authenticator.check(head.authorization, head.hosts, self._one.needs)
        if key is not None and authenticator.rates.of(key) is not None:  # the store counts them
            return None
        command, layout = asked(query, stream)
        if layout != "objects":
            return None
        command.key = checked_key(head.key)
        form = context.observation_parser.observations(body)
        command.seq = form.seq
        command.observations = form.observations
        if command.key is not None:
            command.digest = digest(body)
        return context.gateway.begin(command)

    def _done(
        self, pending: PendingCommand, began: float, answer: Answer, _: asyncio.Future[None]
    ) -> None:
        """Answer with the outcome of an observation."""
        self._admission.plain_posts -= 1
        result: Response | Exception
        try:
            outcome = self._context.gateway.end(pending)
            result = answered(cast(wire.Observe, pending.envelope.command), outcome)
        except Exception as error:  # noqa: BLE001
            result = error
        self._end(self._one, began, answer, result)

    def _end(
        self, route: Route, began: float, answer: Answer, result: Response | Exception
    ) -> None:
        """Send an answer, or that to an error, and record it."""
        request_id = new_id()
        if isinstance(result, ServiceError):
            result = problem(result)
        elif isinstance(result, Exception):
            text = request_id.decode()
            log.error("request %s failed", text, exc_info=result)
            result = problem(InternalError("internal error", request_id=text))
        result.raw_headers.append((b"x-request-id", request_id))
        answer(result)
        seconds = time.perf_counter() - began
        self._gathered.add(request_duration(route.path, "POST", result.status_code), seconds)
