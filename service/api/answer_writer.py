"""The connection as one answer sees it: its head goes out together with what follows it."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class AnswerWriter:
    """Holds an answer's head until the first part of its body, where the answer has a length.

    The server writes head and body on their own, and each write is a packet and a system call.
    An answer without a length may have its body much later: that head goes out at once.
    """

    __slots__ = ("_cycle", "_head", "_started", "_transport")

    def __init__(self, cycle: RequestResponseCycle, transport: asyncio.Transport) -> None:
        self._cycle = cycle
        self._transport = transport
        self._started = False
        self._head = b""

    def write(self, data: bytes) -> None:
        """Write the next bytes of the answer."""
        if self._head:
            self._transport.writelines((self._head, data))
            self._head = b""
        elif self._begins() and self._has_body():
            self._head = data
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection once everything is written."""
        if self._head:
            self._transport.write(self._head)
            self._head = b""
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether the connection is closed or being closed."""
        return self._transport.is_closing()

    def _begins(self) -> bool:
        # What is written before an answer starts is `100 Continue`.
        if self._started or not self._cycle.response_started:
            return False
        self._started = True
        return True

    def _has_body(self) -> bool:
        return self._cycle.expected_content_length > 0 and self._cycle.scope["method"] != "HEAD"
