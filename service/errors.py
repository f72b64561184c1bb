"""Everything the service refuses or fails at, as one exception tree and RFC 9457 documents.

* ServiceError
  * FormError: the request itself is wrong, whatever the stream's state
    * MalformedBody, InvalidField, BodyTooLarge, UnsupportedMediaType, NotFound, MethodNotAllowed
  * Refused: the request does not fit the stream as it is at its place in the log
    * UnknownStream, UnknownModel, DimensionMismatch, LabelOutOfRange, SeqConflict,
      UnfitSettings, SettingsConflict, TooManyPinned, KeyReused, EarlierItemFailed
    * `service.unfit`: UnfitModel, UnfitBelief, UnfitSnapshot, WarmingUp, StreamExists,
      UnknownEvent, NotRetained, StreamReplaced, TimeBackwards, NotAwaited
  * Overloaded: nothing was accepted, try again later
    * PartitionFull, TooManyWaiting, WaitTooLong, ApiBusy, TooManyEventStreams, MemoryShort
  * Unavailable: the store is away
    * RedisUnavailable (nothing was accepted), OutcomeUnknown (nobody knows yet), NotReady,
      TooManyConnections
  * NoAnswer: accepted, but the answer did not come in time; it is applied at most once
  * ReadTimeout: a read got no answer in time; it changes nothing
  * `service.refusals`, at the edge: Unauthorized, MissingScope, RateExceeded, SlowBody, SlowHead,
    UnsupportedEncoding, HeadTooLarge, UrlTooLong
  * Defect: the service's own fault
    * NumericalFault, Quarantined, CorruptState, ModelChanged, InternalError
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

TYPE_PREFIX = "https://moca-service.dev/problems/"
PROBLEM_JSON = "application/problem+json"
MAX_ERRORS = 20  # that one problem document names
_encode = msgspec.json.Encoder().encode


class FieldError(NamedTuple):
    """What is wrong with one part of a request; `loc` such as `body[3].y` or `query.limit`."""

    loc: str
    detail: str


class ServiceError(Exception):
    """Base of all. `extra` are further members of the problem document."""

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
    """The body is not what its media type says."""

    status, slug, title = 400, "malformed-body", "Malformed body"


class InvalidField(FormError):
    """One or more fields have a wrong value; the first `MAX_ERRORS` are named."""

    status, slug, title = 422, "invalid-field", "Invalid field"

    def __init__(self, errors: list[FieldError], most: int = MAX_ERRORS) -> None:
        self.errors = errors[: min(most, MAX_ERRORS)]
        first, named = errors[0], len(self.errors)
        more = f" (and {named - 1} more" if len(errors) > 1 else ""
        if more:
            more += ")" if named == len(errors) else " here; there are others)"
        super().__init__(
            f"{first.loc}: {first.detail}{more}", errors=[error._asdict() for error in self.errors]
        )


class BodyTooLarge(FormError):
    """The body, or a command made of it, is larger than the service takes."""

    status, slug, title = 413, "body-too-large", "Body too large"

    def headers(self) -> Mapping[str, str]:
        """Close the connection: the rest of the body is not wanted."""
        return {"Connection": "close"}


class UnsupportedMediaType(FormError):
    """The body has a content type that this call does not read."""

    status, slug, title = 415, "unsupported-media-type", "Unsupported media type"


class NotFound(FormError):
    """There is no such path."""

    status, slug, title = 404, "not-found", "Not found"


class MethodNotAllowed(FormError):
    """The path exists, the method does not."""

    status, slug, title = 405, "method-not-allowed", "Method not allowed"


class Refused(ServiceError):
    """The request does not fit the stream as it is; the stream stays as it was."""

    status, slug, title = 409, "refused", "Refused"


class UnknownStream(Refused):
    """There is no such stream."""

    status, slug, title = 404, "unknown-stream", "Unknown stream"


class UnknownModel(Refused):
    """There is no such model or version."""

    status, slug, title = 422, "unknown-model", "Unknown model"


class DimensionMismatch(Refused):
    """x or y has another length than the stream's."""

    status, slug, title = 422, "dimension-mismatch", "Dimension mismatch"


class LabelOutOfRange(Refused):
    """y is not a value that the stream's model knows."""

    status, slug, title = 422, "label-out-of-range", "Label out of range"


class SeqConflict(Refused):
    """The stream is not at the expected position; `seq` says where it is."""

    status, slug, title = 409, "seq-conflict", "Sequence conflict"


class UnfitSettings(Refused):
    """Settings that the stream's model cannot work with."""

    status, slug, title = 422, "unfit-settings", "Unfit settings"


class SettingsConflict(Refused):
    """A setting cannot be changed on a stream that has observations."""

    status, slug, title = 409, "settings-conflict", "Settings conflict"


class TooManyPinned(Refused):
    """As many streams are pinned as may be."""

    status, slug, title = 409, "too-many-pinned", "Too many pinned streams"


class KeyReused(Refused):
    """An idempotency key was used before, with another body."""

    status, slug, title = 422, "key-reused", "Idempotency key reused"


class EarlierItemFailed(Refused):
    """Not attempted, because an earlier item of the same stream failed."""

    status, slug, title = 424, "earlier-item-failed", "Earlier item failed"


class Overloaded(ServiceError):
    """Nothing was accepted; try again later. `reason` is a label of the load-shed metric."""

    status, slug, title = 429, "overloaded", "Overloaded"
    retry_after_s = 1
    reason = "other"


class PartitionFull(Overloaded):
    """Too many observations wait in the stream's partition."""

    slug, title, reason = "partition-full", "Partition full", "partition_full"


class TooManyWaiting(Overloaded):
    """Too many requests wait in this API process."""

    slug, title, reason = "too-many-waiting", "Too many requests waiting", "too_many_waiting"


class WaitTooLong(Overloaded):
    """Accepted requests would wait for too long for their outcome."""

    slug, title, reason = "wait-too-long", "Wait too long", "wait"

    def __init__(self, detail: str, retry_after_s: int = 1) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class ApiBusy(Overloaded):
    """This API process has as many requests in flight as it can serve promptly."""

    slug, title, reason = "api-busy", "API process busy", "api_busy"


class TooManyEventStreams(Overloaded):
    """Too many connections follow the events of this API process."""

    slug, title = "too-many-event-streams", "Too many event streams"
    reason, retry_after_s = "event_streams", 5


class MemoryShort(Overloaded):
    """The store's memory is nearly used up."""

    slug, title, reason = "memory-short", "Memory short", "memory_short"
    retry_after_s = 5


class Unavailable(ServiceError):
    """The store is away."""

    status, slug, title = 503, "unavailable", "Unavailable"
    retry_after_s = 1


class RedisUnavailable(Unavailable):
    """The store cannot be reached; nothing was accepted."""

    slug, title = "redis-unavailable", "Redis unavailable"


class OutcomeUnknown(Unavailable):
    """Sent, but not acknowledged: it may or may not be applied."""

    slug, title = "outcome-unknown", "Outcome unknown"


class NotReady(Unavailable):
    """The service cannot serve every stream; `reasons` says why."""

    slug, title = "not-ready", "Not ready"


class TooManyConnections(Unavailable):
    """This API process has as many connections as it may."""

    slug, title = "too-many-connections", "Too many connections"
    reason = "connections"


class NoAnswer(ServiceError):
    """Accepted and durable, but not answered in time: it is applied at most once."""

    status, slug, title = 504, "no-answer", "Accepted, no answer yet"
    retry_after_s = 1


class ReadTimeout(ServiceError):
    """A read got no answer in time; it changes nothing."""

    status, slug, title = 504, "read-timeout", "No answer in time"
    retry_after_s = 1


class Defect(ServiceError):
    """The service's own fault."""


class InternalError(Defect):
    """An unexpected error; the log has it under the request's id."""


class NumericalFault(Defect):
    """The filter produced a non-finite number; the state stays as before the observation."""

    slug, title = "numerical-fault", "Numerical fault"


class Quarantined(Defect):
    """The command stopped its worker each time it was alone, or was damaged: it is set aside."""

    slug, title = "quarantined", "Command quarantined"


class CorruptState(Defect):
    """What is stored of the stream cannot be read; the bytes are kept aside."""

    slug, title = "corrupt-state", "Corrupt state"


class ModelChanged(Defect):
    """The artifact of the stream's model is not the one that the stream was made with."""

    slug, title = "model-changed", "Model changed"
