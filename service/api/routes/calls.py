"""The declaration of a call, made where its endpoint is: path, scope, answer, errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import signature
from typing import Any, NamedTuple, TypeVar

from fastapi import FastAPI
from starlette.responses import JSONResponse, Response

from service import problems
from service.api import openapi
from service.api.http import Route
from service.api_keys import OPEN

Endpoint = Callable[..., Awaitable[Response]]
E = TypeVar("E", bound=Endpoint)
Errors = tuple[type[problems.ServiceError], ...]

# Every call that takes a key, and every call with a body, raises these; the rest it declares.
GUARDED: Errors = (
    problems.Unauthorized,
    problems.MissingScope,
    problems.RateExceeded,
    problems.RedisUnavailable,
)
BODY: Errors = (
    problems.MalformedBody,
    problems.SlowBody,
    problems.BodyTooLarge,
    problems.UnsupportedMediaType,
    problems.UnsupportedEncoding,
    problems.InvalidField,
)
# A read of committed state.
STORED: Errors = (problems.UnknownStream, problems.InvalidField, problems.CorruptState)
# A command that goes through the log: one that changes the stream, or only reads it.
LOGGED: Errors = (
    problems.InvalidField,
    problems.PartitionFull,
    problems.TooManyWaiting,
    problems.WaitTooLong,
    problems.MemoryShort,
    problems.Quarantined,
    problems.CorruptState,
    problems.ModelChanged,
    problems.NotInstalled,
    problems.OutcomeUnknown,
)
CHANGE: Errors = (*LOGGED, problems.NoAnswer)
READ: Errors = (*LOGGED, problems.UnknownStream, problems.UnknownModel, problems.ReadTimeout)
# Observations or settings that do not fit the model.
UNFIT: Errors = (
    problems.UnknownModel,
    problems.UnfitSettings,
    problems.DimensionMismatch,
    problems.LabelOutOfRange,
)
# Feedback on events.
FEEDBACK: Errors = (
    *CHANGE,
    problems.UnknownStream,
    problems.UnknownModel,
    problems.WarmingUp,
    problems.NotRetained,
)
STREAM = "/v1/streams/{stream}"


class ApiCall(NamedTuple):
    """One call and how it is documented."""

    tag: str  # group of the call in the reference
    method: str
    path: str
    endpoint: Endpoint
    answer: Any
    errors: Errors = ()  # beside those of every guarded call and of every call with a body
    parameters: tuple[dict[str, Any], ...] = ()  # of an endpoint that reads them itself
    body: dict[str, Any] | None = None
    status: int = 200
    makes: bool = False  # whether it may answer 201
    scope: str = ""  # that a key must have; empty: read for GET, else write
    described: dict[str, Any] | None = None  # an answer that is not, or not only, JSON

    @property
    def needs(self) -> str:
        """The scope that a key must have, or `open`."""
        return self.scope or ("read" if self.method == "GET" else "write")

    @property
    def has_body(self) -> bool:
        """Whether the call takes a body."""
        return self.body is not None or "form" in signature(self.endpoint).parameters

    @property
    def raises(self) -> frozenset[type[problems.ServiceError]]:
        """All errors that the call can be answered with."""
        guarded = () if self.needs == OPEN else GUARDED
        body = BODY if self.has_body else ()
        return frozenset({problems.InternalError, *guarded, *body, *self.errors})

    def add_to(self, app: FastAPI) -> None:
        """Add the call's route to the application."""
        text = (self.endpoint.__doc__ or "").strip()
        extra: dict[str, Any] = {}
        if self.parameters:
            extra["parameters"] = list(self.parameters)
        if self.body is not None:
            extra["requestBody"] = self.body
        if self.needs != OPEN:
            extra["security"] = [{"key": [self.needs]}, {}]  # none while no key is required
        answers = openapi.problem_responses(self.raises)
        if self.answer is not None:
            answers[200] = openapi.answer(self.answer)
        if self.makes:
            answers[201] = openapi.answer(self.answer, "created")
        if self.described is not None:
            answers[self.status] = self.described
        add_route(
            app,
            self.path,
            self.endpoint,
            self.needs,
            methods=[self.method],
            response_model=None,
            status_code=self.status,
            tags=[self.tag],
            summary=text.partition("\n")[0].rstrip("."),
            description=text,
            operation_id=self.endpoint.__name__,
            responses=answers,
            openapi_extra=extra,
            response_class=JSONResponse if self.described is None else Response,
        )


def add_route(app: FastAPI, path: str, endpoint: Endpoint, needs: str, **options: Any) -> None:
    """Add a route for which a key must have the scope `needs`."""
    app.add_api_route(path, endpoint, **options)
    route = app.routes[-1]
    assert isinstance(route, Route)
    route.needs = needs


class Calls(list[ApiCall]):
    """The calls of one module, in the order in which they are declared."""

    def __init__(self, tag: str) -> None:
        super().__init__()
        self._tag = tag

    def declare(
        self, method: str, path: str, answer: Any, errors: Errors = (), **options: Any
    ) -> Callable[[E], E]:
        """Return a decorator that makes a function the endpoint of a call; options: of ApiCall."""

        def declared(endpoint: E) -> E:
            call = ApiCall(self._tag, method, path, endpoint, answer, errors, **options)
            self.append(call)
            return endpoint

        return declared
