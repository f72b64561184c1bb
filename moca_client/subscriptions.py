"""Subscriptions: requests, messages, reconnection."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from typing import Any, Generic, TypeVar, cast

import httpx
import msgspec
from httpx_sse import ServerSentEvent, SSEError
from msgspec import Struct

from moca_client.calls import query_params
from moca_client.errors import Problem, Unavailable, UnexpectedAnswer, problem_in
from moca_client.responses import MESSAGES, Gap, GapPlaces, Incident, Recorded, StreamEvent
from moca_client.retry import FIRST_PAUSE_S, LONGEST_PAUSE_S, RETRIED, Backoff

T = TypeVar("T")
# What an endless call gives, of either client.
Messages = Generator[T, None, None]
AsyncMessages = AsyncGenerator[T, None]
ENDED = {"unknown-stream": "deleted", "stream-replaced": "replaced"}  # while disconnected


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


class _Again(Exception):
    """The service refuses for the time being."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


ENDS = (httpx.TransportError, SSEError, _Again)


class Feed(Generic[T]):
    """One subscription, across reconnections.

    A reconnection resumes after the last message id: nothing is missed or repeated. readers: of
    messages, by their kinds; unknown kinds, as of a later version, are left out. silence_s,
    retry_for_s: how long a silent connection, and a service that is away, are borne.
    """

    def __init__(
        self,
        path: str,
        query: Mapping[str, Any],
        after: str | None,
        readers: Mapping[str, Callable[[str], T]],
        silence_s: float,
        retry_for_s: float | None,
    ) -> None:
        self._path = path
        self._readers = readers
        self._query = query_params(query)
        self.cursor = after
        self.over = False  # whether the service has ended the subscription
        self._begun = False  # whether it was ever connected
        self._silence_s = silence_s
        self._retry_for_s = retry_for_s
        self._failing_since: float | None = None
        self._first_pause_s = FIRST_PAUSE_S
        self._backoff = Backoff()

    def request(self, timeout: httpx.Timeout) -> dict[str, Any]:
        """Return the arguments of the next connection; timeout: of the client."""
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
            "timeout": httpx.Timeout(**{**timeout.as_dict(), "read": self._silence_s}),
        }

    def opened(self, response: httpx.Response) -> T | None:
        """Check the head of a response; the body of an error response was read.

        Returns the final item of the subscription, if the response is one: the followed stream
        has ended since the last connection.
        """
        if response.status_code in RETRIED:
            raise _Again(problem_in(response))
        if not response.is_success:
            problem = problem_in(response)
            reason = ENDED.get(problem.type)
            if reason is None or not self._begun or "end" not in self._readers:
                raise problem
            self.over = True
            return cast(T, Ended(reason, problem.detail))
        self._begun = True
        self._failing_since = None
        self._backoff = Backoff(self._first_pause_s)
        return None

    def message(self, message: ServerSentEvent) -> T | None:
        """Handle a message; return its item, or None."""
        if message.retry is not None:
            self._first_pause_s = min(message.retry / 1000, LONGEST_PAUSE_S)
            self._backoff = Backoff(self._first_pause_s)
        read = self._readers.get(message.event)
        try:
            item = None if read is None else read(message.data)
        except msgspec.DecodeError as error:
            raise UnexpectedAnswer(f"GET {self._path}: unexpected message: {error}") from error
        if message.id:
            self.cursor = message.id  # also of a heartbeat, which moves past filtered messages
            if isinstance(item, StreamEvent | Gap | Followed | Missed):
                item.cursor = message.id
        self.over = self.over or isinstance(item, Ended)
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


_event = msgspec.json.Decoder(StreamEvent).decode
_gap = msgspec.json.Decoder(GapPlaces).decode
# Readers of messages by their kinds: of events, and of a stream that is followed.
EVENTS: dict[str, Callable[[str], StreamEvent | Incident | Gap]] = {
    **dict.fromkeys(MESSAGES.values(), _event),
    "incident": msgspec.json.Decoder(Incident).decode,
    "gap": lambda data: Gap(_gap(data or "{}")),
}
OBSERVATIONS: dict[str, Callable[[str], Message]] = {
    "observation": msgspec.json.Decoder(Followed).decode,
    "gap": msgspec.json.Decoder(Missed).decode,
    "end": msgspec.json.Decoder(Ended).decode,
}
