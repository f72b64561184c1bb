"""One call of the REST interface, and how it is documented."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from service.schema.queries import NoQuery

Endpoint = Callable[[Request], Awaitable[Response]]
LOGGED = (422, 429, 500, 503, 504)  # what every call that goes through the log can answer
BODY = (400, 408, 413, 415)


class Call(NamedTuple):
    """One call and how it is documented."""

    method: str
    path: str
    endpoint: Endpoint
    answer: Any
    problems: tuple[int, ...] = ()
    parameters: tuple[dict[str, Any], ...] = ()
    query: type[BaseModel] = NoQuery
    body: dict[str, Any] | None = None
    tag: str = "streams"
    status: int = 200
    makes: bool = False  # whether it may answer 201
    scope: str = ""  # that a key must have; empty: read for GET, else write
    response: type[Response] = JSONResponse
    described: dict[str, Any] | None = None

    @property
    def needs(self) -> str:
        """The scope that a key must have, or `open`."""
        return self.scope or ("read" if self.method == "GET" else "write")


STREAM = "/v1/streams/{stream}"
EVENTS = "/v1/events"
CANARY = "/v1/models/{name}/canary"
