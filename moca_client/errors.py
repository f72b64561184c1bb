"""Exceptions of the client, as one tree.

* ClientError
  * InvalidRequest: the request is invalid and was not sent
  * UnexpectedAnswer: the response is not one of this service
  * Unavailable: no usable answer after all retries; `problem` is the last error response
    * OutcomeUnknown: the same, and the request may have been applied, or not
  * PartlyObserved: a frame was applied up to a row; `answers` has the answers so far
  * Problem: the service refused the request, with an RFC 9457 document; `type` says exactly why
    * Invalid (400, 408, 413, 415, 422): the request is wrong, or does not fit its stream
    * Unauthorized (401), Forbidden (403)
    * NotFound (404)
      * UnknownStream
    * Conflict (409)
      * SeqConflict (`seq` is where the stream is)
    * EarlierItemFailed (424): not attempted, as an earlier item of the same stream failed
    * Temporary (429, 503, 504): a retry may succeed; only of items of a batch, as for other
      calls the client retries and raises Unavailable
    * Fault (500, 501): the service's own
      * NumericalFault, Quarantined

A problem gets the class of its type, else that of its status.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from moca_client.responses import Answer, FieldError

if TYPE_CHECKING:
    import httpx  # the service imports this module without it

_words = re.compile("(?<!^)(?=[A-Z])")


class ClientError(Exception):
    """Base of all exceptions of the client."""


class InvalidRequest(ClientError, ValueError):
    """The request is invalid; nothing was sent."""


class UnexpectedAnswer(ClientError):
    """The response is not one of this service; perhaps another service has the address."""


def slug_of(kind: type) -> str:
    """Return the type of a problem by its class, on both sides: `unknown-stream`, UnknownStream."""
    return _words.sub("-", kind.__name__).lower()


def slug_in(document: Mapping[str, Any]) -> str:
    """Return the last part of a document's type; empty: it has none."""
    return str(document.get("type") or "").rpartition("/")[2]


class Problem(ClientError):
    """An error response: `status` and the problem document as the service sent it.

    type: the last part of the problem's type, such as `unfit-settings`; docs/reference.md has them
    all. detail: the exact reason. Both may be empty.
    """

    types: ClassVar[dict[str, type[Problem]]] = {}
    statuses: ClassVar[dict[int, type[Problem]]] = {}

    def __init_subclass__(cls, status: Sequence[int] = ()) -> None:
        Problem.types[slug_of(cls)] = cls
        Problem.statuses |= dict.fromkeys(status, cls)

    def __init__(
        self,
        status: int,
        document: dict[str, Any],
        *,
        request_id: str | None = None,
        retry_after_s: float | None = None,
    ):
        self.status = status
        self.document = document
        self.type = slug_in(document)
        self.title = str(document.get("title") or "request rejected")
        self.detail = str(document.get("detail") or "")
        self.request_id = request_id
        self.retry_after_s = retry_after_s
        applied = document.get("applied")
        text = f"{status} {self.title}" + (f": {self.detail}" if self.detail else "")
        super().__init__(text + (f" ({applied} observations were applied)" if applied else ""))

    @cached_property
    def errors(self) -> list[FieldError]:
        """Return the invalid fields, if any."""
        try:
            return msgspec.convert(self.document.get("errors") or [], list[FieldError])
        except msgspec.ValidationError:  # of another server
            return []

    @cached_property
    def answers(self) -> list[Answer]:
        """Return the answers to the part of a list that was applied before the error."""
        return msgspec.convert(self.document.get("answers") or [], list[Answer])


class Invalid(Problem, status=(400, 405, 408, 413, 414, 415, 422, 431)):
    """The request is invalid, or does not fit its stream; the stream is unchanged."""


class Unauthorized(Problem, status=(401,)):
    """No API key, or a wrong one."""


class Forbidden(Problem, status=(403,)):
    """The API key does not allow this."""


class NotFound(Problem, status=(404,)):
    """The resource does not exist."""


class UnknownStream(NotFound):
    """The stream does not exist."""


class Conflict(Problem, status=(409,)):
    """The request does not fit the stream's current state."""


class SeqConflict(Conflict):
    """The stream is not at the expected position."""

    @property
    def seq(self) -> int:
        """Return the position that the stream was at."""
        return int(self.document["seq"])


class EarlierItemFailed(Problem, status=(424,)):
    """Not attempted, because an earlier item of the same stream failed."""


class Temporary(Problem, status=(429, 502, 503, 504)):
    """Temporary: retry later, after `retry_after_s` if the service gave one."""


class Fault(Problem, status=(500, 501)):
    """Internal fault of the service."""


class NumericalFault(Fault):
    """The filter produced a non-finite number; the observation was not applied."""


class Quarantined(Fault):
    """The command stopped its worker each time and was quarantined."""


class Unavailable(ClientError):
    """No usable answer in time.

    problem: the last error response, of which are `status`, `request_id`, which the service logs,
    and `retry_after_s`, where the service gave them; None: no answer.
    """

    def __init__(self, message: str, problem: Problem | None = None):
        super().__init__(message)
        self.problem = problem
        self.status = None if problem is None else problem.status
        self.request_id = None if problem is None else problem.request_id
        self.retry_after_s = None if problem is None else problem.retry_after_s


class OutcomeUnknown(Unavailable):
    """No answer in time to a request that may or may not have been applied."""


class PartlyObserved(ClientError):
    """A frame was applied in part: `answers` is a frame of those that are known.

    They are in the order of its rows; of a frame of one stream they are those to its first rows.
    """

    def __init__(self, message: str, answers: Any):
        super().__init__(message)
        self.answers = answers


def problem_of(
    status: int, document: dict[str, Any], headers: Mapping[str, str] | None = None
) -> Problem:
    """Return a problem document as the exception of its type, else of its status."""
    kind = Problem.types.get(slug_in(document)) or Problem.statuses.get(status)
    if kind is None:
        kind = Fault if status >= 500 else Problem
    if kind is SeqConflict and not isinstance(document.get("seq"), int):
        kind = Conflict
    headers = headers or {}
    return kind(
        status,
        document,
        request_id=headers.get("x-request-id"),
        retry_after_s=retry_after_s(headers.get("retry-after")),
    )


def outcome_unknown(detail: str) -> Temporary:
    """Return the problem of an item that may or may not have been applied."""
    document = {"type": "outcome-unknown", "title": "Outcome unknown", "status": 503}
    return Temporary(503, {**document, "detail": detail})


def problem_in(response: httpx.Response) -> Problem:
    """Return an error response as an exception; a body that is no document becomes its detail."""
    try:
        document = msgspec.json.decode(response.content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        document = None
    if not isinstance(document, dict):
        title = response.reason_phrase or "refused"
        page = re.search(r"<(title|h1)>(.*?)</", response.text, re.DOTALL | re.IGNORECASE)
        said = f"a page {page[2].strip()!r}, no answer of this service" if page else response.text
        document = {"title": title, "detail": said[:500]}
    return problem_of(response.status_code, document, response.headers)


def retry_after_s(value: str | None) -> float | None:
    """Read a Retry-After header: seconds, or a date."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None
