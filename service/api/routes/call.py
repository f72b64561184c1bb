"""One call of the REST interface: its route, what it raises, and how it is documented."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import signature
from typing import Any, NamedTuple

from starlette.responses import JSONResponse, Response

from service import problems
from service.api_keys import OPEN

Endpoint = Callable[..., Awaitable[Response]]
Errors = tuple[type[problems.ServiceError], ...]

# Every call that takes a key, and every call with a body, raises these; the rest is in the table.
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


class Call(NamedTuple):
    """One call and how it is documented."""

    method: str
    path: str
    endpoint: Endpoint
    answer: Any
    errors: Errors = ()  # beside those of every guarded call and of every call with a body
    parameters: tuple[dict[str, Any], ...] = ()  # of a raw endpoint, as its body is
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


STREAM = "/v1/streams/{stream}"
EVENTS = "/v1/events"
CANARY = "/v1/models/{name}/canary"
