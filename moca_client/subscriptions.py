"""Subscriptions: requests, messages, reconnection."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import httpx
import msgspec
from httpx_sse import ServerSentEvent, SSEError
from msgspec import Struct

from moca_client.calls import EventsQuery, path_of, query_params
from moca_client.errors import Problem, Unavailable, UnexpectedAnswer, problem_in
from moca_client.responses import MESSAGES, Gap, GapPlaces, Incident, Recorded, StreamEvent
from moca_client.retry import FIRST_PAUSE_S, LONGEST_PAUSE_S, RETRIED, Backoff

T = TypeVar("T")
_event = msgspec.json.Decoder(StreamEvent).decode
_incident = msgspec.json.Decoder(Incident).decode
_gap = msgspec.json.Decoder(GapPlaces).decode


class Patience(NamedTuple):
    """How long a silent connection, and a service that is away, are borne."""

    silence_s: float
    retry_for_s: float | None
    timeout_s: float


class Feed(ABC, Generic[T]):
    """One subscription, across reconnections.

    A reconnection resumes after the last message id: nothing is missed or repeated.
    """

    def __init__(
        self, path: str, query: Mapping[str, Any], after: str | None, patience: Patience
    ) -> None:
        self._path = path
        self._query = query_params(query)
        self.cursor = after
        self.over = False  # whether the service has ended the subscription
        self._retry_for_s = patience.retry_for_s
        timeout_s = patience.timeout_s
        connect_s = min(5.0, timeout_s)
        self._timeout = httpx.Timeout(timeout_s, connect=connect_s, read=patience.silence_s)
        self._failing_since: float | None = None
        self._first_pause_s = FIRST_PAUSE_S
        self._backoff = Backoff()

    @abstractmethod
    def read(self, message: ServerSentEvent) -> T | None:
        """Parse a message; None for an unknown kind, as of a later version."""

    @abstractmethod
    def mark(self, item: T, cursor: str) -> None:
        """Set the cursor of a parsed message."""

    def request(self) -> dict[str, Any]:
        """Return the arguments of the next connection."""
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        params = list(self._query)
        if self.cursor is not None:
            headers["Last-Event-ID"] = self.cursor
            params.append(("after", self.cursor))
        return {
            "method": "GET",
            "url": self._path,
            "params": params,
            "headers": headers,
            "timeout": self._timeout,
        }

    def opened(self, response: httpx.Response) -> T | None:
        """Check the head of a response; the body of an error response was read.

        Returns the final item of the subscription, if the response is one.
        """
        if response.status_code in RETRIED:
            raise _Again(problem_in(response))
        if not response.is_success:
            raise problem_in(response)
        self._failing_since = None
        self._backoff = Backoff(self._first_pause_s)
        return None

    def message(self, message: ServerSentEvent) -> T | None:
        """Handle a message; return its item, or None."""
        if message.retry is not None:
            self._first_pause_s = min(message.retry / 1000, LONGEST_PAUSE_S)
            self._backoff = Backoff(self._first_pause_s)
        try:
            item = self.read(message)
        except msgspec.DecodeError as error:
            raise UnexpectedAnswer(f"GET {self._path}: unexpected message: {error}") from error
        if message.id:
            self.cursor = message.id  # also of a heartbeat, which moves past filtered messages
            if item is not None:
                self.mark(item, message.id)
        return item

    def ended(self, error: Exception | None) -> float:
        """Return the seconds to wait after a connection that ended, before the next.

        Raises Unavailable when none came about for too long.
        """
        if isinstance(error, httpx.UnsupportedProtocol | SSEError):
            raise UnexpectedAnswer(f"GET {self._path}: {error}") from error
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        wait_s = self._backoff.next_s(error.problem if isinstance(error, _Again) else None)
        limit_s = self._retry_for_s
        if limit_s is not None and now + wait_s - self._failing_since > limit_s:
            raise Unavailable(
                f"GET {self._path}: {error or 'the connection was closed'}"
            ) from error
        return wait_s


class Events(Feed[StreamEvent | Incident | Gap]):
    """Events as they are raised."""

    def __init__(self, query: EventsQuery, after: str | None, patience: Patience) -> None:
        super().__init__("/v1/events", query, after, patience)

    def read(self, message: ServerSentEvent) -> StreamEvent | Incident | Gap | None:
        """Return an event, an incident, or a gap of events that are not retained."""
        if message.event in MESSAGES.values():
            return _event(message.data)
        if message.event == "incident":
            return _incident(message.data)
        return Gap(_gap(message.data or "{}")) if message.event == "gap" else None

    def mark(self, item: StreamEvent | Incident | Gap, cursor: str) -> None:
        """Note the cursor, which incidents have not."""
        if not isinstance(item, Incident):
            item.cursor = cursor


class _Again(Exception):
    """The service refuses for the time being."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


ENDS = (httpx.TransportError, SSEError, _Again)


class Followed(Recorded):
    """An observation as it came. `cursor` resumes after it."""

    cursor: str = ""


class Missed(Struct):
    """Observations from `start` to before `end` that the service retains no longer."""

    start: int
    end: int
    cursor: str = ""


class Ended(Struct):
    """A stream that is not there to be followed any more: `deleted` or `replaced`."""

    reason: str
    detail: str = ""


Message = Followed | Missed | Ended
_observation = msgspec.json.Decoder(Followed).decode
_missed = msgspec.json.Decoder(Missed).decode
_ended = msgspec.json.Decoder(Ended).decode
ENDED = {"unknown-stream": "deleted", "stream-replaced": "replaced"}  # while disconnected


class Follow(Feed[Message]):
    """One stream's observations, from a place on."""

    def __init__(
        self, stream: str, after: int | str | None, detail: str, patience: Patience
    ) -> None:
        place = None if after is None else str(after)
        path = path_of(stream, "/observations/live")
        super().__init__(path, {"detail": detail}, place, patience)
        self._begun = False

    def opened(self, response: httpx.Response) -> Message | None:
        """Check the head of a response; of a later one it may be that the stream has ended."""
        try:
            super().opened(response)
        except Problem as problem:
            reason = ENDED.get(problem.type)
            if not self._begun or reason is None:
                raise
            self.over = True
            return Ended(reason, problem.detail)
        self._begun = True
        return None

    def read(self, message: ServerSentEvent) -> Message | None:
        """Return an observation, a gap of observations not retained, or the stream's end."""
        if message.event == "observation":
            return _observation(message.data)
        if message.event == "gap":
            return _missed(message.data)
        if message.event == "end":
            self.over = True
            return _ended(message.data)
        return None

    def mark(self, item: Message, cursor: str) -> None:
        """Note the cursor."""
        if not isinstance(item, Ended):
            item.cursor = cursor
