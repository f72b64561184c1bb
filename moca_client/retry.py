"""When a request is sent again, and when never: plans that both clients carry out.

A plan is a generator. It yields a request to send, or a pause, and is sent the response
or the exception; it never touches a socket or sleeps. So both clients decide alike.
"""

from __future__ import annotations

import enum
import os
import random
import time
from collections.abc import Callable, Generator
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

import httpx

from moca_client.errors import InvalidRequest, OutcomeUnknown, Problem, Unavailable, problem_in

CONNECT_S = 5.0
RETRIED = frozenset({429, 503, 504})
# The service remembers keys for at least ten minutes: later, a repeat could apply twice.
KEY_MEMORY_S = 540.0
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
# Of what 503 can mean: the request was certainly not applied.
NOT_ACCEPTED = frozenset({"redis-unavailable", "not-ready", "too-many-connections"})
T = TypeVar("T")


class Repeat(enum.Enum):
    """What a second sending of the same request may do."""

    HARMLESS = "harmless"  # it changes nothing, or sets the same values again
    KEYED = "keyed"  # recognised by its key, as long as the service remembers that
    UNSAFE = "unsafe"  # might undo or double something: only after a certain refusal


class Request(NamedTuple):
    """One HTTP request, without an address."""

    method: str
    path: str
    params: list[tuple[str, str]] = []
    headers: dict[str, str] = {}
    content: bytes | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of either HTTP client."""
        others = {"headers": self.headers, "content": self.content}
        params = tuple(self.params) or None
        return {"method": self.method, "url": self.path, "params": params, **others}


class Call(NamedTuple, Generic[T]):
    """One call of the interface: its request, the reader of its answer, the effect of a retry."""

    request: Request
    read: Callable[[httpx.Response], T]
    repeat: Repeat = Repeat.HARMLESS
    changes: bool = False  # whether it changes anything
    gone_is_done: bool = False  # 404 to a repeat: the first try did it


class Pause(NamedTuple):
    """A plan's wish to wait."""

    seconds: float


Plan = Generator[Request | Pause, Any, T]
# A plan of several calls: each is sent its result.
Calls = Generator[Call[Any] | Pause, Any, T]


def http_options(url: str, api_key: str | None, timeout_s: float) -> dict[str, Any]:
    """Return the arguments of the HTTP client for a service; raises InvalidRequest."""
    if "://" not in url:
        raise InvalidRequest(f"expected an address with http:// or https://, got {url!r}")
    headers = {"Accept": "application/json"}
    if key := os.environ.get("MOCA_API_KEY") if api_key is None else api_key:
        headers["Authorization"] = f"Bearer {key}"
    try:
        host = urlsplit(url).hostname
        base = httpx.URL(url)
    except (ValueError, httpx.InvalidURL) as error:
        raise InvalidRequest(f"{url!r} is not a valid address: {error}") from error
    local = host in {"127.0.0.1", "localhost", "::1"}
    return {
        "base_url": base,
        "headers": headers,
        "timeout": httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s)),
        # Certificates take longer to load than most requests take.
        "verify": not local or base.scheme == "https",
        "trust_env": not local,  # requests to this machine must not go through a proxy
    }


class Backoff:
    """Pauses that double up to the longest, with jitter."""

    def __init__(self, first_s: float = FIRST_PAUSE_S) -> None:
        self._pause_s = first_s

    def next_s(self, problem: Problem | None = None) -> float:
        """Return the seconds of the next pause, no fewer than the problem asks for."""
        # Jitter, so that clients cut off together do not come back together.
        wait_s = self._pause_s * random.uniform(0.8, 1.2)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        if problem is not None and problem.retry_after_s is not None:
            wait_s = max(wait_s, problem.retry_after_s * random.uniform(1.0, 1.2))
        return wait_s


def plan(call: Call[T], url: str, retry_for_s: float) -> Plan[T]:
    """Send a call until it is answered, as often as is safe.

    No try begins after so many seconds. url: address of the service, for messages.
    """
    keyed = call.repeat is Repeat.KEYED
    begin = time.monotonic()
    end = begin + (min(retry_for_s, KEY_MEMORY_S) if keyed else retry_for_s)
    tries = 0
    backoff = Backoff()
    doubtful = False
    while True:
        tries += 1
        try:
            response: httpx.Response = yield call.request
        except (httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
            raise InvalidRequest(f"not an http:// or https:// request: {error}") from error
        except httpx.TransportError as error:
            reason = f"{type(error).__name__}: {error}"
            problem = None
            unsure = not isinstance(error, UNSENT)
        else:
            if response.status_code not in RETRIED:
                return _answer(call, response, repeated=doubtful)
            problem = problem_in(response)
            reason = str(problem)
            # Whether the refusal leaves open if the request was applied.
            unsure = problem.status != 429 and problem.type not in NOT_ACCEPTED
        doubtful = doubtful or unsure
        if not (unsure and call.repeat is Repeat.UNSAFE):
            wait_s = backoff.next_s(problem)
            if time.monotonic() + wait_s <= end:
                yield Pause(wait_s)
                continue
        unknown = doubtful and call.changes
        kind = OutcomeUnknown if unknown else Unavailable
        note = f"; {tries} tries in {time.monotonic() - begin:.0f} s" if tries > 1 else ""
        note += "; it may or may not have been applied" if unknown else ""
        raise kind(f"{call.request.method} {url}{call.request.path}: {reason}{note}", problem)


def _answer(call: Call[T], response: httpx.Response, repeated: bool) -> T:
    if response.is_success or (call.gone_is_done and repeated and response.status_code == 404):
        return call.read(response)
    raise problem_in(response)
