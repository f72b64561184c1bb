"""The feed of changepoints: what is asked for, what a message says, when to connect again."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import httpx
import msgspec
from httpx_sse import ServerSentEvent, SSEError

from service.client.calls import _params
from service.client.errors import InvalidRequest, Unavailable, UnexpectedAnswer
from service.client.problems import problem_in
from service.client.retry import FIRST_PAUSE_S, LONGEST_PAUSE_S, RETRIED
from service.documents import Gap, StreamEvent

PATH = "/v1/events"
_event = msgspec.json.Decoder(StreamEvent).decode
_gap = msgspec.json.Decoder(dict[str, Any]).decode


class Feed:
    """One reading of the feed, across as many connections as it takes.

    Each message's id is where the next connection goes on: nothing is missed or seen twice.
    """

    def __init__(
        self,
        *,
        stream: str | None,
        prefix: str | None,
        model: str | None,
        states: Sequence[str],
        after: str | None,
        silence_s: float,
        retry_for_s: float | None,
        timeout_s: float,
    ) -> None:
        if isinstance(states, str):
            raise InvalidRequest("expected a list of states, got a text")
        self._filters = _params(
            {"stream": stream, "prefix": prefix, "model": model, "state": list(states)}
        )
        self.cursor = after
        self._retry_for_s = retry_for_s
        self._timeout = httpx.Timeout(timeout_s, connect=min(5.0, timeout_s), read=silence_s)
        self._failing_since: float | None = None
        self._first_pause_s = self._pause_s = FIRST_PAUSE_S

    def request(self) -> dict[str, Any]:
        """Return the arguments of the next connection."""
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        params = list(self._filters)
        if self.cursor is not None:
            headers["Last-Event-ID"] = self.cursor
            params.append(("after", self.cursor))
        return {
            "method": "GET",
            "url": PATH,
            "params": params,
            "headers": headers,
            "timeout": self._timeout,
        }

    def opened(self, response: httpx.Response) -> None:
        """Check the head of a response whose refusal, if it is one, was read."""
        if response.status_code in RETRIED:
            problem = problem_in(response)
            raise _Again(str(problem), problem.retry_after_s)
        if not response.is_success:
            raise problem_in(response)
        self._failing_since, self._pause_s = None, self._first_pause_s

    def message(self, message: ServerSentEvent) -> StreamEvent | Gap | None:
        """Read a message; None for one that says nothing."""
        if message.retry is not None:
            self._first_pause_s = self._pause_s = min(message.retry / 1000, LONGEST_PAUSE_S)
        found = self._read(message)
        if message.id:
            self.cursor = message.id  # also of a heartbeat: what came before it was not wanted
            if found is not None:
                found.cursor = message.id
        return found

    def _read(self, message: ServerSentEvent) -> StreamEvent | Gap | None:
        try:
            if message.event == "changepoint":
                return _event(message.data)
            if message.event == "gap":
                return Gap(_gap(message.data or "{}"))
        except msgspec.DecodeError as error:
            raise UnexpectedAnswer(f"GET {PATH}: unexpected message: {error}") from error
        return None  # of a kind that later versions may have

    def ended(self, error: Exception | None) -> float:
        """Return the seconds to wait after a connection that ended, before the next.

        Raises Unavailable when none came about for too long.
        """
        if isinstance(error, httpx.UnsupportedProtocol | SSEError):
            raise UnexpectedAnswer(f"GET {PATH}: {error}") from error
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        wait_s = self._pause_s * random.uniform(0.8, 1.2)
        if isinstance(error, _Again) and error.retry_after_s is not None:
            wait_s = max(wait_s, error.retry_after_s)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        limit_s = self._retry_for_s
        if limit_s is not None and now + wait_s - self._failing_since > limit_s:
            raise Unavailable(f"GET {PATH}: {error or 'the connection was closed'}") from error
        return wait_s


class _Again(Exception):
    """The service refuses the feed for the time being."""

    def __init__(self, reason: str, retry_after_s: float | None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


ENDS = (httpx.TransportError, SSEError, _Again)
