"""Errors of the service, as one exception tree and RFC 9457 documents.

* ServiceError
  * FormError: the request itself is wrong, whatever the stream's state
    * MalformedBody, InvalidField, BodyTooLarge, UnsupportedMediaType, NotFound, MethodNotAllowed,
      SamplesRejected
  * StreamConflict: the request does not fit the stream's state at its place in the log
    * UnknownStream, UnknownModel, DimensionMismatch, LabelOutOfRange, SeqConflict,
      UnfitSettings, SettingsConflict, KeyReused, EarlierItemFailed
    * `service.errors.stream`: UnfitModel, UnfitBelief, UnfitSnapshot, WarmingUp, StreamExists,
      UnknownEvent, NotRetained, StreamReplaced, TimeBackwards, NotAwaited
  * Overloaded: nothing was accepted, try again later
    * PartitionFull, TooManyWaiting, WaitTooLong, ApiBusy, TooManyEventStreams, MemoryShort
  * Unavailable: the store is unreachable
    * RedisUnavailable (nothing was accepted), OutcomeUnknown (accepted or not), NotReady,
      TooManyConnections, SamplesDeferred (in part)
  * NoAnswer: accepted, but not answered in time; it is applied at most once
  * ReadTimeout: a read was not answered in time; it changes nothing
  * `service.errors.http`, before parsing: Unauthorized, MissingScope, RateExceeded, SlowBody,
    UnsupportedEncoding
  * Defect: internal faults
    * NumericalFault, Quarantined, CorruptState, ModelChanged, InternalError
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

TYPE_PREFIX = "https://moca-service.dev/problems/"
PROBLEM_JSON = "application/problem+json"
MAX_ERRORS = 20  # listed in one problem document
_encode = msgspec.json.Encoder().encode


class FieldError(NamedTuple):
    """One invalid part of a request; `loc` such as `body[3].y` or `query.limit`."""

    loc: str
    detail: str


class ServiceError(Exception):
    """Base of all errors. `extra` are additional members of the problem document."""

    status = 500
    slug = "internal-error"
    title = "Internal error"
    retry_after_s: int | None = None

    def __init__(self, detail: str, **extra: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.extra = extra

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

    status, slug, title = 400, "bad-request", "Bad request"


class MalformedBody(FormError):
    """The body cannot be parsed as its content type."""

    status, slug, title = 400, "malformed-body", "Malformed body"


class InvalidField(FormError):
    """One or more fields are invalid; the first ones are listed."""

    status, slug, title = 422, "invalid-field", "Invalid field"

    def __init__(self, errors: list[FieldError], limit: int = MAX_ERRORS) -> None:
        self.errors = errors[: min(limit, MAX_ERRORS)]
        first, named = errors[0], len(self.errors)
        more = f" (and {named - 1} more" if len(errors) > 1 else ""
        if more:
            more += ")" if named == len(errors) else " here; the rest are not listed)"
        super().__init__(
            f"{first.loc}: {first.detail}{more}", errors=[error._asdict() for error in self.errors]
        )


class SamplesRejected(FormError):
    """Some samples of a remote write can never be taken; all others were, except `untried`."""

    slug, title = "samples-rejected", "Samples rejected"


class BodyTooLarge(FormError):
    """The body, or the command made from it, exceeds the size limit."""

    status, slug, title = 413, "body-too-large", "Body too large"

    def headers(self) -> Mapping[str, str]:
        """Close the connection: the rest of the body is not read."""
        return {"Connection": "close"}


class UnsupportedMediaType(FormError):
    """The call does not accept this content type."""

    status, slug, title = 415, "unsupported-media-type", "Unsupported media type"


class NotFound(FormError):
    """No resource at this path."""

    status, slug, title = 404, "not-found", "Not found"


class MethodNotAllowed(FormError):
    """The path exists, but not for this method."""

    status, slug, title = 405, "method-not-allowed", "Method not allowed"


class StartupError(RuntimeError):
    """This process cannot run as configured; the message says why and what to do."""


class StreamConflict(ServiceError):
    """The request does not fit the stream's current state; the stream is unchanged."""

    status, slug, title = 409, "refused", "Refused"


class UnknownStream(StreamConflict):
    """The stream does not exist."""

    status, slug, title = 404, "unknown-stream", "Unknown stream"


class UnknownModel(StreamConflict):
    """The model or version does not exist."""

    status, slug, title = 422, "unknown-model", "Unknown model"


class DimensionMismatch(StreamConflict):
    """x or y differs in length from the stream's."""

    status, slug, title = 422, "dimension-mismatch", "Dimension mismatch"


class LabelOutOfRange(StreamConflict):
    """The label y is outside the range of the stream's model."""

    status, slug, title = 422, "label-out-of-range", "Label out of range"


class SeqConflict(StreamConflict):
    """The stream is at another position than expected; `seq` is its position."""

    status, slug, title = 409, "seq-conflict", "Sequence conflict"


class UnfitSettings(StreamConflict):
    """The settings do not fit the stream's model."""

    status, slug, title = 422, "unfit-settings", "Settings do not fit the model"


class SettingsConflict(StreamConflict):
    """The setting cannot be changed on a stream that has observations."""

    status, slug, title = 409, "settings-conflict", "Settings conflict"


class KeyReused(StreamConflict):
    """The idempotency key was already used with another body."""

    status, slug, title = 422, "key-reused", "Idempotency key reused"


class EarlierItemFailed(StreamConflict):
    """Not attempted: an earlier item of the same stream failed."""

    status, slug, title = 424, "earlier-item-failed", "Earlier item failed"


class Overloaded(ServiceError):
    """Nothing was accepted; try again later. `reason` is a label of the load-shed metric."""

    status, slug, title = 429, "overloaded", "Overloaded"
    retry_after_s = 1
    reason = "other"


class PartitionFull(Overloaded):
    """The observation queue of the stream's partition is full."""

    slug, title, reason = "partition-full", "Partition full", "partition_full"


class TooManyWaiting(Overloaded):
    """The limit of waiting requests of this API process is reached."""

    slug, title, reason = "too-many-waiting", "Too many requests waiting", "too_many_waiting"


class WaitTooLong(Overloaded):
    """The estimated wait for an outcome is too long."""

    slug, title, reason = "wait-too-long", "Estimated wait too long", "wait"

    def __init__(self, detail: str, retry_after_s: int = 1) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class ApiBusy(Overloaded):
    """This API process has as many requests in flight as it can serve promptly."""

    slug, title, reason = "api-busy", "API process busy", "api_busy"


class TooManyEventStreams(Overloaded):
    """The limit of event-stream connections of this API process is reached."""

    slug, title = "too-many-event-streams", "Too many event streams"
    reason, retry_after_s = "event_streams", 5


class MemoryShort(Overloaded):
    """The store's memory is nearly full."""

    slug, title, reason = "memory-short", "Store memory nearly full", "memory_short"
    retry_after_s = 5


class Unavailable(ServiceError):
    """The store is unreachable."""

    status, slug, title = 503, "unavailable", "Unavailable"
    retry_after_s = 1


class RedisUnavailable(Unavailable):
    """The store cannot be reached; nothing was accepted."""

    slug, title = "redis-unavailable", "Redis unavailable"


class OutcomeUnknown(Unavailable):
    """Sent, but not acknowledged: it may or may not have been applied."""

    slug, title = "outcome-unknown", "Outcome unknown"


class SamplesDeferred(Unavailable):
    """Some samples of a remote write were not taken: send all again, repeats are skipped."""

    slug, title = "samples-deferred", "Samples deferred"


class NotReady(Unavailable):
    """The service cannot serve every stream; `reasons` lists why."""

    slug, title = "not-ready", "Not ready"


class TooManyConnections(Unavailable):
    """The connection limit of this API process is reached."""

    slug, title = "too-many-connections", "Too many connections"
    reason = "connections"


class NoAnswer(ServiceError):
    """Accepted and durable, but not answered in time: it is applied at most once."""

    status, slug, title = 504, "no-answer", "Accepted, not answered yet"
    retry_after_s = 1


class ReadTimeout(ServiceError):
    """A read was not answered in time; it changes nothing."""

    status, slug, title = 504, "read-timeout", "No answer in time"
    retry_after_s = 1


class Defect(ServiceError):
    """Internal fault of the service."""


class InternalError(Defect):
    """Unexpected error; find it in the log by the request id."""


class NumericalFault(Defect):
    """The filter produced a non-finite number; the stream's state is unchanged."""

    slug, title = "numerical-fault", "Numerical fault"


class Quarantined(Defect):
    """The command is quarantined: it stopped its worker each time, or was damaged in the log."""

    slug, title = "quarantined", "Command quarantined"


class CorruptState(Defect):
    """The stored state of the stream cannot be read; its bytes are quarantined."""

    slug, title = "corrupt-state", "Corrupt state"


class ModelChanged(Defect):
    """The artifact of the stream's model differs from the one that the stream was created with."""

    slug, title = "model-changed", "Model changed"
