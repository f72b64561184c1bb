"""A small synchronous client of the REST interface, with retries that cannot apply twice.

Every posted list carries an idempotency key; a retry after a lost answer repeats the key, so the
service answers from memory instead of applying the list again.

Exceptions:

* ClientError
  * Problem: the service refused the request (an RFC 9457 problem document)
  * Unavailable: no usable answer within the retry budget; the same key may be sent again
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx
import msgspec

from service.documents import Answer, Changepoints, RunLength, StreamPage, StreamState

RETRIED_STATUS = frozenset({429, 503, 504})
T = TypeVar("T")


class ClientError(Exception):
    """Base of everything the client raises."""


class Unavailable(ClientError):
    """The service could not be reached, or said 429, 503 or 504 until the retries ran out."""


class Problem(ClientError):
    """A refusal: `status` and the problem document as the service sent it."""

    def __init__(self, status: int, document: dict[str, Any]):
        self.status = status
        self.document = document
        title = document.get("title", "request refused")
        detail = document.get("detail")
        applied = document.get("applied")
        text = f"{status} {title}" + (f": {detail}" if detail else "")
        super().__init__(text + (f" ({applied} observations were applied)" if applied else ""))


class Client:
    """Synchronous client of one service; use it as a context manager."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        timeout_s: float = 65.0,
        retry_for_s: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ):
        """Connect lazily. A read waits `timeout_s`; retries go on for `retry_for_s`."""
        self.url = url.rstrip("/")
        self.retry_for_s = retry_for_s
        timeout = httpx.Timeout(timeout_s, connect=5.0)
        # A proxy set for the outside world must not catch requests to this very machine.
        loopback = urlsplit(self.url).hostname in {"127.0.0.1", "localhost", "::1"}
        self._http = httpx.Client(
            base_url=self.url, timeout=timeout, transport=transport, trust_env=not loopback
        )

    def __enter__(self) -> Client:
        """Return the client itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def wait_ready(self, wait_s: float) -> None:
        """Wait until the service says that it is ready; `Unavailable` when it does not in time."""
        self._send("GET", "/readyz", retry_for_s=wait_s)

    def put_stream(self, stream: str, settings: Mapping[str, Any]) -> StreamState:
        """Create the stream, or change the named settings of an existing one."""
        return self._call("PUT", self._path(stream), StreamState, json=dict(settings))

    def stream(self, stream: str) -> StreamState:
        """Return the stream's summary; `Problem` with status 404 when there is none."""
        return self._call("GET", self._path(stream), StreamState)

    def delete_stream(self, stream: str) -> None:
        """Delete the stream."""
        self._send("DELETE", self._path(stream))

    def streams(self, prefix: str = "", limit: int = 100) -> Iterator[str]:
        """Iterate over the ids of all streams whose id starts with `prefix`."""
        cursor: str | None = None
        while True:
            params = {"prefix": prefix, "limit": str(limit)}
            if cursor is not None:
                params["cursor"] = cursor
            page = self._call("GET", "/v1/streams", StreamPage, params=params)
            for item in page.streams:
                yield str(item["stream"] if isinstance(item, dict) else item)
            if (cursor := page.cursor) is None:
                return

    def observe(
        self,
        stream: str,
        observations: Sequence[Mapping[str, Any]],
        *,
        belief: bool = False,
        key: str | None = None,
    ) -> list[Answer]:
        """Post a list of observations in order; each answer is about the label at its place.

        The same `key` and list sent again have no second effect; by default a new key is made,
        so only this call's own retries are recognised.
        """
        return self._call(
            "POST",
            self._path(stream) + "/observations",
            list[Answer],
            json=[dict(observation) for observation in observations],
            params={"belief": "true"} if belief else None,
            headers={"Idempotency-Key": key or uuid.uuid4().hex},
        )

    def changepoints(self, stream: str) -> Changepoints:
        """Return the stream's events and its retrospective segmentation."""
        return self._call("GET", self._path(stream) + "/changepoints", Changepoints)

    def run_length(self, stream: str) -> RunLength:
        """Return the stream's whole run-length belief."""
        return self._call("GET", self._path(stream) + "/run-length", RunLength)

    @staticmethod
    def _path(stream: str) -> str:
        return "/v1/streams/" + quote(stream, safe="")

    def _call(self, method: str, path: str, kind: type[T], **request: Any) -> T:
        response = self._send(method, path, **request)
        try:
            return msgspec.json.decode(response.content, type=kind)
        except msgspec.DecodeError as error:
            raise ClientError(f"{method} {path}: unexpected answer: {error}") from error

    def _send(
        self, method: str, path: str, *, retry_for_s: float | None = None, **request: Any
    ) -> httpx.Response:
        give_up = time.monotonic() + (self.retry_for_s if retry_for_s is None else retry_for_s)
        pause_s = 0.1
        while True:
            try:
                response = self._http.request(method, path, **request)
            except httpx.UnsupportedProtocol as error:
                raise ClientError(f"{self.url!r} is not an http:// or https:// address") from error
            except httpx.TransportError as error:
                reason, wait_s = f"{type(error).__name__}: {error}", pause_s
            else:
                if response.status_code not in RETRIED_STATUS:
                    return _checked(response)
                reason = str(Problem(response.status_code, _document(response)))
                wait_s = max(pause_s, _retry_after_s(response))
            if time.monotonic() + wait_s > give_up:
                raise Unavailable(f"{method} {self.url}{path}: {reason}")
            # Jitter, so that clients cut off together do not come back together.
            time.sleep(wait_s * random.uniform(0.8, 1.2))
            pause_s = min(2 * pause_s, 5.0)


def _checked(response: httpx.Response) -> httpx.Response:
    if response.is_success:
        return response
    raise Problem(response.status_code, _document(response))


def _document(response: httpx.Response) -> dict[str, Any]:
    """Problem document of a refusal; whatever is not one becomes its detail."""
    try:
        document = msgspec.json.decode(response.content)
    except msgspec.DecodeError:
        document = None
    if isinstance(document, dict):
        return document
    return {"title": response.reason_phrase or "refused", "detail": response.text[:500]}


def _retry_after_s(response: httpx.Response) -> float:
    try:
        return min(max(float(response.headers.get("retry-after", "0")), 0.0), 30.0)
    except ValueError:
        return 0.0
