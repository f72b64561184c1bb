"""Request bodies: bounded in size, as sent and unpacked, and in the time they take."""

from __future__ import annotations

import asyncio
import zlib
from typing import NoReturn

from starlette.requests import ClientDisconnect, Request

from service.api.headers import header
from service.errors import BodyTooLarge, MalformedBody
from service.refusals import SlowBody, UnsupportedEncoding

MOST_MEMBERS = 64  # of a gzip body; each costs a copy of what is left
# zlib's window: 16 + for gzip's header, plain for zlib's own, which HTTP calls deflate.
_WINDOWS = {
    b"gzip": 16 + zlib.MAX_WBITS,
    b"x-gzip": 16 + zlib.MAX_WBITS,
    b"deflate": zlib.MAX_WBITS,
}


async def read_body(request: Request, limit: int, timeout_s: float) -> bytes:
    """Return a body of at most `limit` bytes, unpacked.

    Raises BodyTooLarge as soon as it is seen to be, SlowBody, UnsupportedEncoding, MalformedBody
    and ClientDisconnect.
    """
    window = _window(header(request.scope, b"content-encoding"))
    length = header(request.scope, b"content-length")
    if length is not None and length.isdigit() and int(length) > limit:
        raise BodyTooLarge(f"the body has {int(length)} bytes; at most {limit}")
    try:
        async with asyncio.timeout(timeout_s):
            body = await _received(request, limit)
    except TimeoutError:
        raise SlowBody(f"the body did not arrive within {timeout_s:g} s") from None
    return body if window is None else _unpacked(body, window, limit)


async def _received(request: Request, limit: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            _too_large(limit)
        if not message.get("more_body", False):
            return b"".join([*chunks, chunk]) if chunks else chunk
        chunks.append(chunk)


def _window(encoding: bytes | None) -> int | None:
    """Return zlib's window for an encoding; None for a body as it is."""
    name = (encoding or b"identity").strip().lower()
    if name == b"identity":
        return None
    window = _WINDOWS.get(name)
    if window is None:
        got = name[:100].decode("latin-1")
        raise UnsupportedEncoding(f"Content-Encoding: expected gzip or deflate, got {got!r}")
    return window


def _unpacked(packed: bytes, window: int, limit: int) -> bytes:
    """Unpack as far as the limit allows: what a bomb would become is never in memory."""
    parts: list[bytes] = []
    room = limit
    while packed:  # gzip: one member after the other
        if len(parts) == MOST_MEMBERS:
            raise MalformedBody(f"body: gzip with more than {MOST_MEMBERS} members")
        unpack = zlib.decompressobj(window)
        try:
            part = unpack.decompress(packed, room + 1)
        except zlib.error as error:
            raise MalformedBody(f"body: cannot be unpacked: {error}") from None
        room -= len(part)
        if room < 0:
            _too_large(limit, "unpacked ")
        if not unpack.eof:
            raise MalformedBody("body: cannot be unpacked: it ends too early")
        parts.append(part)
        packed = unpack.unused_data
    return b"".join(parts)


def _too_large(limit: int, how: str = "") -> NoReturn:
    raise BodyTooLarge(f"the {how}body has more than {limit} bytes")
