"""The server's HTTP protocol, with bounds on a request's head in size and time.

uvicorn itself collects headers as long as they come, and waits for them for ever.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.errors import PROBLEM_JSON, FormError
from service.refusals import HeadTooLarge, SlowHead, UrlTooLong
from service.settings import Settings


class BoundedHead(HttpToolsProtocol):
    """Ends a connection whose request's head is too long, too large or too slow."""

    settings: Settings

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a first request."""
        super().connection_made(transport)
        self._in_head, self._head_bytes = False, 0
        self._impatience: asyncio.TimerHandle | None = None
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._calm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, which keeps a head without end: it is measured as it comes."""
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            if self._head_bytes > self.settings.max_head_bytes:
                self._refuse(self._too_large())
            elif self._impatience is None:
                self._expect_head()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP with a problem document, as everything else."""
        self._refuse(FormError(msg))

    def on_message_begin(self) -> None:
        """A request's head begins; what came before it does not count."""
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        """The head is here: let the request in if it is small enough."""
        self._in_head = False
        self._calm()
        settings, url = self.settings, len(self.url)
        size = url
        for name, value in self.headers:
            size += len(name) + len(value) + 4
        limit = settings.max_head_bytes
        if size > limit or 2 * url > limit or len(self.headers) > settings.max_headers:
            self._refuse(self._too_large())
        elif (detail := self._host_error()) is not None:
            self._refuse(FormError(detail))
        if not self.transport.is_closing():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body, unless its request was refused."""
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete, unless it was refused."""
        if not self.transport.is_closing():
            super().on_message_complete()

    def _host_error(self) -> str | None:
        """What is wrong with the host the request names, by which access without keys is decided.

        RFC 9112, 3.2: one Host header, and a URI with a host of its own names the same one.
        """
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            return f"expected one Host header, got {len(hosts)}"
        if self.url.startswith(b"/") or self.url == b"*":
            return None
        _, _, rest = self.url.partition(b"://")
        if not hosts or rest.partition(b"/")[0].lower() != hosts[0].strip().lower():
            return "expected a URI of the host that the Host header names, or a path"
        return None

    def _expect_head(self) -> None:
        self._impatience = self.loop.call_later(self.settings.head_timeout_s, self._too_slow)

    def _calm(self) -> None:
        if self._impatience is not None:
            self._impatience.cancel()
            self._impatience = None

    def _too_slow(self) -> None:
        if self._in_head:
            self._refuse(SlowHead(f"no head within {self.settings.head_timeout_s:g} s"))
        else:
            self.transport.close()  # nothing was asked

    def _too_large(self) -> FormError:
        limit, most = self.settings.max_head_bytes, self.settings.max_headers
        if 2 * len(self.url) > limit:
            return UrlTooLong(f"the URL has more than {limit // 2} bytes")
        return HeadTooLarge(f"at most {most} headers, and {limit} bytes with the URL")

    @property
    def _is_broken_body(self) -> bool:
        """Whether what cannot be read is the body of the only request that is not answered."""
        cycle = self.cycle
        return cycle.more_body and not cycle.response_started and not self.pipeline

    def _refuse(self, error: FormError) -> None:
        """Answer before there is a request that could be answered, and end the connection."""
        body = error.render()
        if self.cycle is not None and not self.cycle.response_complete and not self._is_broken_body:
            self.transport.close()  # an earlier request waits: this would be taken for its answer
            return
        self.transport.write(
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
            f"content-type: {PROBLEM_JSON}\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n".encode()
            + body
        )
        self.transport.close()


def protocol(settings: Settings) -> type[Any]:
    """Return the protocol under a process's settings."""
    return type("Protocol", (BoundedHead,), {"settings": settings})
