"""What both clients have in common: their settings, and plans of more than one request."""

from __future__ import annotations

import os
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import httpx

from service.client import calls
from service.client.errors import (
    EarlierItemFailed,
    InvalidRequest,
    OutcomeUnknown,
    Problem,
    Temporary,
    Unavailable,
)
from service.client.retry import (
    FIRST_PAUSE_S,
    KEY_MEMORY_S,
    LONGEST_PAUSE_S,
    Call,
    Pause,
    Policy,
    Request,
)
from service.schema import responses

DEFAULT_URL = "http://127.0.0.1:8000"
CONNECT_S = 5.0
T = TypeVar("T")
P = TypeVar("P")
# Several calls, each told its answer or exception, and pauses: what both clients carry out.
Calls = Generator[Call[Any] | Pause, Any, T]


class Core:
    """Address, key and bounds of a client."""

    def __init__(
        self,
        url: str,
        api_key: str | None,
        timeout_s: float,
        retries: int,
        retry_for_s: float,
    ) -> None:
        self.url = url.rstrip("/")
        self.policy = Policy(retries, retry_for_s)
        self._api_key = os.environ.get("MOCA_API_KEY") if api_key is None else api_key
        self.timeout_s = timeout_s

    def arguments(self, request: Request) -> dict[str, Any]:
        """Return a request as the HTTP client takes it."""
        return {
            "method": request.method,
            "url": request.path,
            "params": request.params or None,
            "headers": request.headers,
            "content": request.content,
        }

    def options(self) -> dict[str, Any]:
        """Return the arguments of the HTTP client."""
        headers = {"Accept": "application/json"}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        try:
            host = urlsplit(self.url).hostname
            base = httpx.URL(self.url)
        except (ValueError, httpx.InvalidURL) as error:
            raise InvalidRequest(f"{self.url!r} is not a valid address: {error}") from error
        return {
            "base_url": base,
            "headers": headers,
            "timeout": httpx.Timeout(self.timeout_s, connect=min(CONNECT_S, self.timeout_s)),
            # A proxy set for the outside world must not catch requests to this very machine.
            "trust_env": host not in {"127.0.0.1", "localhost", "::1"},
        }


class Pages(ABC, Generic[P, T]):
    """A list that comes page by page: which call is next, and what a page holds."""

    call: Call[P] | None

    @abstractmethod
    def take(self, page: P) -> list[T]:
        """Return what a page holds, and go on to the next."""


class StreamPages(Pages[responses.StreamPage, str]):
    """The ids of streams."""

    def __init__(self, prefix: str, limit: int) -> None:
        self._prefix, self._limit = prefix, limit
        self.call: Call[responses.StreamPage] | None = calls.streams(prefix, limit)

    def take(self, page: responses.StreamPage) -> list[str]:
        """Return the ids of a page."""
        following = page.cursor
        self.call = None
        if following is not None:
            self.call = calls.streams(self._prefix, self._limit, following)
        return [each.stream for each in page.streams]


class HistoryPages(Pages[responses.HistoryPage, responses.HistoryPage]):
    """The pages of a history."""

    def __init__(self, stream: str, start: int | None, limit: int) -> None:
        self._stream, self._limit = stream, limit
        self.call: Call[responses.HistoryPage] | None = calls.history(stream, start, limit)

    def take(self, page: responses.HistoryPage) -> list[responses.HistoryPage]:
        """Return the page, if there is anything on it."""
        self.call = None
        if page.next is not None:
            self.call = calls.history(self._stream, page.next, self._limit)
        return [page] if page.observations else []


Result = responses.Answer | Problem


def observe_many(
    given: Sequence[Mapping[str, Any]], shown: calls.Shown, policy: Policy
) -> Calls[list[Result]]:
    """Post items, and again those that were refused only for the time being.

    A stream's items stay in order: what follows a refused one was not attempted either.
    """
    found: dict[int, Result] = {}
    left, pause_s = list(range(len(given))), FIRST_PAUSE_S
    end = time.monotonic() + min(policy.retry_for_s, KEY_MEMORY_S)
    for _ in range(policy.retries + 1):
        try:
            results = yield calls.observe_many([given[i] for i in left], shown)
        except Unavailable as error:
            if not found:
                raise
            # What is known of the others is worth more than the exception.
            return [_doubtful(found[i], error) if i in left else found[i] for i in found]
        found |= dict(zip(left, results, strict=True))
        left = list(_unfinished(given, found))
        if not left or time.monotonic() + pause_s > end:
            break
        yield Pause(pause_s * random.uniform(0.8, 1.2))
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    return [found[i] for i in range(len(given))]


def _unfinished(given: Sequence[Mapping[str, Any]], found: Mapping[int, Result]) -> Iterator[int]:
    """Items to be sent again: refused for the time being, and those behind them."""
    again: set[str] = set()
    for i, item in enumerate(given):
        result = found[i]
        behind = isinstance(result, EarlierItemFailed) and item["stream"] in again
        if isinstance(result, Temporary) or behind:
            again.add(item["stream"])
            yield i


def _doubtful(result: Result, error: Unavailable) -> Result:
    if not isinstance(error, OutcomeUnknown) or isinstance(result, responses.Answer):
        return result
    document = {"type": "outcome-unknown", "title": "Outcome unknown", "detail": str(error)}
    return Temporary(503, {**document, "status": 503})
