"""Every error of the service: one exception tree, whose leaves are the types of RFC 9457 problems.

* ServiceError
  * FormError: the request itself is wrong, whatever the stream's state
    * MalformedBody, InvalidField, BodyTooLarge, UnsupportedMediaType, UnsupportedEncoding,
      NotFound, MethodNotAllowed, SlowBody, SamplesRejected
  * Unauthorized, MissingScope, RateExceeded: the API key does not allow the request
  * StreamConflict: the request does not fit the stream's state at its place in the log
    * UnknownStream, UnknownModel, UnknownEvent, UnknownRegime, DimensionMismatch, LabelOutOfRange,
      SeqConflict, TimeBackwards, UnfitSettings, SettingsConflict, UnfitModel, UnfitBelief,
      UnfitSnapshot, WarmingUp, StreamExists, StreamReplaced, NotRetained, NotAwaited, KeyReused,
      EarlierItemFailed
  * Overloaded: nothing was accepted, try again later
    * PartitionFull, TooManyWaiting, WaitTooLong, ApiBusy, TooManyEventStreams, MemoryShort
  * Unavailable: the store is unreachable
    * RedisUnavailable (nothing was accepted), OutcomeUnknown (accepted or not), NotReady,
      TooManyConnections, SamplesDeferred (in part)
  * NoAnswer: accepted, but not answered in time; it is applied at most once
  * ReadTimeout: a read was not answered in time; it changes nothing
  * Defect: internal faults
    * InternalError, NumericalFault, Quarantined, CorruptState, ModelChanged, NotInstalled

The class of an error states its status, title, time until a retry and an example. Its type in a
problem document is the class's name: `unknown-stream` of UnknownStream. Its title is the same in
words unless another one is stated, and the first line of its docstring describes it in
docs/reference.md. The client has a class of the same name for those that it treats by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import msgspec
from msgspec.structs import asdict

from moca_client.errors import slug_of
from moca_client.responses import FieldError as FieldError
from model_core.errors import OutOfRange, Unfit, UnfitSetting, WrongLength

TYPE_PREFIX = "https://moca-service.dev/problems/"
PROBLEM_JSON = "application/problem+json"
MAX_ERRORS = 20  # listed in one problem document
REALM = 'Bearer realm="moca"'
_encode = msgspec.json.Encoder().encode


class StartupError(RuntimeError):
    """This process cannot run as configured; the message says why and what to do."""


class ServiceError(Exception):
    """Base of all problems. `extra` are additional members of the problem document."""

    status = 500
    slug: ClassVar[str]
    title: ClassVar[str]
    retry_after_s: int | None = None
    example: ClassVar[Any]  # detail of an example; classes without one are never raised themselves
    example_arguments: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        cls.slug = slug_of(cls)
        if "title" not in cls.__dict__:
            cls.title = cls.slug.replace("-", " ").capitalize()

    def __init__(self, detail: str, **extra: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.extra = extra

    @classmethod
    def shown(cls) -> Self:
        """Return the example, for OpenAPI and the reference."""
        return cls(cls.example, **cls.example_arguments)

    def document(self) -> dict[str, Any]:
        """Return the problem document."""
        return {
            "type": TYPE_PREFIX + self.slug,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            **self.extra,
        }

    def render(self) -> bytes:
        """Return the problem document as JSON."""
        return _encode(self.document())

    def headers(self) -> Mapping[str, str]:
        """Return the response headers that belong to this error."""
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}


class FormError(ServiceError):
    """The request itself is wrong."""

    status = 400
    closes = False  # the connection: what comes of the body would be taken for the next request

    def headers(self) -> Mapping[str, str]:
        """Return the header that closes the connection, if it is to be closed."""
        return {"Connection": "close"} if self.closes else {}


class MalformedBody(FormError):
    """The body cannot be parsed as its content type."""

    example = "body: Invalid JSON: EOF while parsing at line 1 column 6"


class InvalidField(FormError):
    """One or more fields are invalid; the first ones are listed."""

    status = 422
    example = (FieldError("body.y", "expected a finite number"),)

    def __init__(self, errors: Sequence[FieldError], limit: int = MAX_ERRORS) -> None:
        self.errors = list(errors[: min(limit, MAX_ERRORS)])
        first = errors[0]
        named = len(self.errors)
        more = f" (and {named - 1} more" if len(errors) > 1 else ""
        if more:
            more += ")" if named == len(errors) else " here; the rest are not listed)"
        super().__init__(
            f"{first.loc}: {first.detail}{more}", errors=[asdict(error) for error in self.errors]
        )

    @classmethod
    def at(cls, loc: str, detail: str) -> Self:
        """Return the error of one field."""
        return cls([FieldError(loc, detail)])


class SamplesRejected(FormError):
    """Some samples of a remote write can never be taken; all others were, except `untried`."""

    example = "1 of 500 samples cannot be taken: y: expected numbers up to 1e+100"
    example_arguments = {"rejected": 1, "untried": 0}


class BodyTooLarge(FormError):
    """The body, or the command made from it, exceeds the size limit."""

    status = 413
    example = "the body has 9000000 bytes; at most 8388608"
    closes = True


class SlowBody(FormError):
    """The body did not arrive in time."""

    status = 408
    title = "Request body too slow"
    example = "the body did not arrive within 30 s"
    closes = True


class UnsupportedMediaType(FormError):
    """The call does not accept this content type."""

    status = 415
    example = "Content-Type: expected application/json, got 'text/plain'"


class UnsupportedEncoding(UnsupportedMediaType):
    """The content encoding of the body is not supported."""

    title = "Unsupported content encoding"
    example = "Content-Encoding: expected gzip or deflate, got 'br'"

    def headers(self) -> Mapping[str, str]:
        """Return the accepted encodings."""
        return {"Accept-Encoding": "gzip, deflate"}


class NotFound(FormError):
    """No resource at this path."""

    status = 404
    example = "there is no model 'pump'; see GET /v1/models for the available ones"


class MethodNotAllowed(FormError):
    """The path exists, but not for this method."""

    status = 405
    example = "method PATCH is not allowed for /v1/streams/pump-7; allowed: DELETE, GET, PUT"


class Unauthorized(ServiceError):
    """No valid API key; `error` is the OAuth error code."""

    status = 401
    example = "unknown API key"
    example_arguments = {"error": "invalid_token"}

    def __init__(self, detail: str, error: str = "") -> None:
        super().__init__(detail)
        self._error = error

    def headers(self) -> Mapping[str, str]:
        """Return the authentication challenge."""
        return {"WWW-Authenticate": REALM + (f', error="{self._error}"' if self._error else "")}


class MissingScope(ServiceError):
    """The API key lacks the scope of this call; `scope` is the required one."""

    status = 403
    example = "key 'shop-7' lacks the scope 'write'"
    example_arguments = {"scope": "write"}

    def headers(self) -> Mapping[str, str]:
        """Return the challenge with the missing scope, as in OAuth."""
        scope = self.extra["scope"]
        return {"WWW-Authenticate": f'{REALM}, error="insufficient_scope", scope="{scope}"'}


class RateExceeded(ServiceError):
    """The key's rate limit is exceeded; nothing was accepted."""

    status = 429
    retry_after_s = 1
    example = "key 'shop-7': rate limit of 100 per 1 s exceeded"
    example_arguments = {"limit": 100, "window_s": 1, "reset_s": 1}

    def __init__(self, detail: str, limit: int, window_s: int, reset_s: int) -> None:
        super().__init__(detail)
        self._limit = limit
        self._window_s = window_s
        self.retry_after_s = reset_s

    def headers(self) -> Mapping[str, str]:
        """Return the rate limit and the time until it resets."""
        return {
            **super().headers(),
            "RateLimit-Policy": f'"key";q={self._limit};w={self._window_s}',
            "RateLimit": f'"key";r=0;t={self.retry_after_s}',
        }


class StreamConflict(ServiceError):
    """The request does not fit the stream's current state; the stream is unchanged."""

    status = 409


class UnknownStream(StreamConflict):
    """The stream does not exist."""

    status = 404
    example = "there is no stream 'pump-7'"


class UnknownModel(StreamConflict):
    """The model or version does not exist."""

    status = 422
    example = "there is no model 'pump'; see GET /v1/models for the available ones"


class UnknownEvent(StreamConflict):
    """The stream has no such event."""

    status = 404
    example = "the stream has no event 3"


class UnknownRegime(StreamConflict):
    """The stream remembers no such regime."""

    status = 404
    example = "the stream remembers no regime 3; remembered: 1, 2"


class DimensionMismatch(StreamConflict):
    """x or y differs in length from the stream's."""

    status = 422
    example = "y: expected 1 number, got 2"
    example_arguments = {"field": "y"}


class LabelOutOfRange(StreamConflict):
    """A label or an input is outside the range of the stream's model."""

    status = 422
    example = "y: expected 0 or 1, got 2"
    example_arguments = {"field": "y"}


class SeqConflict(StreamConflict):
    """The stream is at another position than expected; `seq` is its position."""

    title = "Sequence conflict"
    example = "seq is 411, but the next observation is 412"
    example_arguments = {"seq": 412}


class TimeBackwards(StreamConflict):
    """The observation is earlier than the previous one, in a stream with an `interval`."""

    status = 422
    title = "Time out of order"
    example = "time: 60 s before the previous observation; give `elapsed`, or post in order"
    example_arguments = {"field": "time"}


class UnfitSettings(StreamConflict):
    """The settings do not fit the stream's model."""

    status = 422
    title = "Settings do not fit the model"
    example = "classes: model categorical needs this setting"
    example_arguments = {"field": "classes"}


class SettingsConflict(StreamConflict):
    """The setting cannot be changed on a stream that has observations."""

    example = (
        "model cannot change on a stream with observations; "
        "POST /v1/streams/{id}/model moves it to another model"
    )
    example_arguments = {"field": "model"}


class UnfitModel(StreamConflict):
    """The stream's model does not support this call."""

    status = 422
    title = "Not supported by the model"
    example = (
        "actions require a model with inputs and one numeric label; gaussian has "
        "x_dim 0, y_dim 1 and labels of kind 'real'"
    )


class UnfitBelief(StreamConflict):
    """The override names run lengths that have no hypothesis."""

    status = 422
    title = "Invalid belief"
    example = "belief: no hypothesis has run length 9; existing run lengths: 0, 1, 2, 3"
    example_arguments = {"field": "belief"}


class UnfitSnapshot(StreamConflict):
    """The snapshot is invalid, or does not fit this deployment."""

    status = 422
    title = "Invalid snapshot"
    example = "not a snapshot of a stream"


class WarmingUp(StreamConflict):
    """The stream has no belief yet: it is warming up; `seq` is its position."""

    example = "the stream has no belief yet at seq 5"
    example_arguments = {"seq": 5}


class StreamExists(StreamConflict):
    """A stream with this id already exists."""

    example = "stream 'pump-7' already exists; add ?replace=true to replace it"


class StreamReplaced(StreamConflict):
    """The subscribed stream was replaced; `seq` is the position of the present one."""

    example = "the stream 'pump-7' has no observation 411 of that generation"
    example_arguments = {"seq": 3}


class NotRetained(StreamConflict):
    """The observations that the request refers to are not retained."""

    example = "start 12 is outside the retained range 101-411"
    example_arguments = {"first": 100}


class NotAwaited(StreamConflict):
    """The label does not fit its pending observation, or pending labels are disabled."""

    title = "Pending-label conflict"
    example = (
        "the input of seq 411 was posted with the observation: post the pending label "
        "without `x` and `pending`"
    )
    example_arguments = {"field": "x"}


class KeyReused(StreamConflict):
    """The idempotency key was already used with another body."""

    status = 422
    title = "Idempotency key reused"
    example = "idempotency key 'a81f' was used with another body"


class EarlierItemFailed(StreamConflict):
    """Not attempted: an earlier item of the same stream failed."""

    status = 424
    example = "not applied: an earlier item of the same stream failed"


class Overloaded(ServiceError):
    """Nothing was accepted; try again later. `reason` is a label of the load-shed metric."""

    status = 429
    retry_after_s = 1
    reason = "other"


class PartitionFull(Overloaded):
    """The observation queue of the stream's partition is full."""

    reason = "partition_full"
    example = "the queue of this stream's partition is full: 10000 observations"


class TooManyWaiting(Overloaded):
    """The limit of waiting requests of this API process is reached."""

    title = "Too many requests waiting"
    reason = "too_many_waiting"
    example = "limit of 20000 waiting requests reached"


class WaitTooLong(Overloaded):
    """The estimated wait for an outcome is too long."""

    title = "Estimated wait too long"
    reason = "wait"
    example = "the estimated wait is 1.3 s; nothing was accepted"
    example_arguments = {"retry_after_s": 2}

    def __init__(self, detail: str, retry_after_s: int = 1) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class ApiBusy(Overloaded):
    """This API process has as many requests in flight as it can serve promptly."""

    title = "API process busy"
    reason = "api_busy"
    example = "this API process is busy with 220 requests"


class TooManyEventStreams(Overloaded):
    """The limit of event-stream connections of this API process is reached."""

    reason = "event_streams"
    retry_after_s = 5
    example = "limit of 100 event-stream connections reached"


class MemoryShort(Overloaded):
    """The store's memory is nearly full."""

    title = "Store memory nearly full"
    reason = "memory_short"
    retry_after_s = 5
    example = "the store's memory is nearly full; reads and deletes still work"


class Unavailable(ServiceError):
    """The store is unreachable."""

    status = 503
    retry_after_s = 1


class RedisUnavailable(Unavailable):
    """The store cannot be reached; nothing was accepted."""

    example = "the store cannot be reached; nothing was accepted"


class OutcomeUnknown(Unavailable):
    """Sent, but not acknowledged: it may or may not have been applied."""

    example = "the store cannot be reached; send it again with the same Idempotency-Key"


class SamplesDeferred(Unavailable):
    """Some samples of a remote write were not taken: send all again, repeats are skipped."""

    example = (
        "12 of 500 samples were not taken: the queue of this stream's partition is full: 10000 "
        "observations; send the request again"
    )
    example_arguments = {"deferred": 12}


class NotReady(Unavailable):
    """The service cannot serve every stream; `reasons` lists why."""

    example = "2 of 64 partitions have no worker: 4, 5"
    example_arguments = {"reasons": ["2 of 64 partitions have no worker: 4, 5"]}


class TooManyConnections(Unavailable):
    """The connection limit of this API process is reached."""

    reason = "connections"
    example = "connection limit of this API process reached"


class NoAnswer(ServiceError):
    """Accepted and durable, but not answered in time: it is applied at most once."""

    status = 504
    title = "Accepted, not answered yet"
    retry_after_s = 1
    example = (
        "no answer within 30 s; accepted and applied at most once, outcome not known "
        "yet: send it again with the same Idempotency-Key to get its answer"
    )


class ReadTimeout(ServiceError):
    """A read was not answered in time; it changes nothing."""

    status = 504
    title = "No answer in time"
    retry_after_s = 1
    example = "no answer within 30 s; nothing was changed"


class Defect(ServiceError):
    """Internal fault of the service."""


class InternalError(Defect):
    """Unexpected error; find it in the log by the request id."""

    example = "internal error"
    example_arguments = {"request_id": "0b7c41d2a9e84f60"}


class NumericalFault(Defect):
    """The filter produced a non-finite number; the stream's state is unchanged."""

    example = "the filter step at seq 412 gave a non-finite number; the observation was not applied"
    example_arguments = {"seq": 412}


class Quarantined(Defect):
    """The command is quarantined: it stopped its worker each time, or was damaged in the log."""

    title = "Command quarantined"
    example = "the command stopped its worker on every attempt; it was not applied"


class CorruptState(Defect):
    """The stored state of the stream cannot be read; its bytes are quarantined."""

    example = "its checkpoint at seq 384 is gone"


class ModelChanged(Defect):
    """The artifact of the stream's model differs from the one that the stream was created with."""

    example = (
        "the files of pump@1 differ from those that the stream was created with: "
        "restore them, or move the stream by POST /v1/streams/{id}/model"
    )


class NotInstalled(Defect):
    """The call needs what is not installed where it runs, such as torch; nothing was changed."""

    status = 501
    example = "this needs torch, which is not installed: pip install torch"


_UNFIT: Mapping[type[Unfit], type[StreamConflict]] = {
    WrongLength: DimensionMismatch,
    OutOfRange: LabelOutOfRange,
    UnfitSetting: UnfitSettings,
}


def unfit(error: Unfit) -> StreamConflict:
    """Return the problem of what does not fit a stream's model."""
    return _UNFIT[type(error)](str(error), field=error.field)


def problem_types(below: type[ServiceError] = ServiceError) -> Iterator[type[ServiceError]]:
    """Yield every type of problem, in the order of this file within its branch."""
    for kind in below.__subclasses__():
        if "example" in kind.__dict__:
            yield kind
        yield from problem_types(kind)
