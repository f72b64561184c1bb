"""Shared by both clients: their settings, and plans of more than one request."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from moca_client import calls, responses
from moca_client.errors import (
    EarlierItemFailed,
    InvalidRequest,
    OutcomeUnknown,
    Problem,
    Temporary,
    Unavailable,
    outcome_unknown,
)
from moca_client.retry import KEY_MEMORY_S, Backoff, Call, Pause, Policy

DEFAULT_URL = "http://127.0.0.1:8000"
CONNECT_S = 5.0
T = TypeVar("T")
# A plan of several calls and pauses, run by both clients: each call is sent its result.
Calls = Generator[Call[Any] | Pause, Any, T]
# What an endless call gives, of either client.
Messages = Generator[T, None, None]
AsyncMessages = AsyncGenerator[T, None]


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
            # Requests to this machine must not go through a proxy.
            "trust_env": host not in {"127.0.0.1", "localhost", "::1"},
        }


Result = responses.Answer | Problem


def observe_many(
    items: Sequence[Mapping[str, Any]], options: calls.AnswerOptions, policy: Policy
) -> Calls[list[Result]]:
    """Post items, and retry those with temporary errors.

    A stream's items stay in order: those after a failed one were not attempted.
    """
    by_index: dict[int, Result] = {}
    unsent = list(range(len(items)))
    backoff = Backoff()
    end = time.monotonic() + min(policy.retry_for_s, KEY_MEMORY_S)
    for _ in range(policy.retries + 1):
        try:
            results = yield calls.observe_many([items[i] for i in unsent], options)
        except Unavailable as error:
            if not by_index:
                raise
            # Return the known results rather than raise.
            return [_doubtful(by_index[i], error) if i in unsent else by_index[i] for i in by_index]
        by_index |= dict(zip(unsent, results, strict=True))
        unsent = list(_unfinished(items, by_index))
        if not unsent:
            break
        pause_s = backoff.next_s()
        if time.monotonic() + pause_s > end:
            break
        yield Pause(pause_s)
    return [by_index[i] for i in range(len(items))]


def _unfinished(
    items: Sequence[Mapping[str, Any]], by_index: Mapping[int, Result]
) -> Iterator[int]:
    """Indices of items to retry: those with temporary errors, and those after them."""
    again: set[str] = set()
    for i, item in enumerate(items):
        result = by_index[i]
        behind = isinstance(result, EarlierItemFailed) and item["stream"] in again
        if isinstance(result, Temporary) or behind:
            again.add(item["stream"])
            yield i


def _doubtful(result: Result, error: Unavailable) -> Result:
    if not isinstance(error, OutcomeUnknown) or isinstance(result, responses.Answer):
        return result
    return outcome_unknown(str(error))
