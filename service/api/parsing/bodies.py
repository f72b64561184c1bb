"""Request bodies: bounded in size, as sent and unpacked, in values and in the time they take.

A body of 8 MiB, or the 16 KB it is packed into, can hold millions of values, and refusing each by
name would take a minute. So any work that costs more than one pass over the bytes is bounded
before it starts, by counting bytes that every value needs. The work on a body that is not light is
done in a thread, one body at a time; as calls into C keep the interpreter to themselves, a list is
cut into its parts first, which are read one by one.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Callable
from concurrent.futures import Executor
from typing import NamedTuple, NoReturn, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from service.problems import (
    BodyTooLarge,
    FieldError,
    InvalidField,
    MalformedBody,
    SlowBody,
    UnsupportedEncoding,
)

JSON = "application/json"
BYTES = "application/octet-stream"
NDJSON = "application/x-ndjson"
CSV = "text/csv"
MAX_MEMBERS = 64  # of a gzip body; each costs a copy of the rest
LIGHT_BYTES, LIGHT_VALUES = 16_384, 600  # read at once, without a thread: some milliseconds
LIGHT_PACKED, LIGHT_COPY = 1024, 1 << 20
MAX_BRACES, MAX_QUOTES = 20, 40  # for each of the most parts of a list, which has 2 and 26
FEW_VALUES = 250_000  # cut into parts in some 15 ms, whatever they are
T = TypeVar("T")
# zlib's window: 16 + for gzip's header, plain for zlib's own, which HTTP calls deflate.
_WINDOWS = {
    b"gzip": 16 + zlib.MAX_WBITS,
    b"x-gzip": 16 + zlib.MAX_WBITS,
    b"deflate": zlib.MAX_WBITS,
}


class _Object(msgspec.Struct, gc=False):
    """Any object."""


_skip = msgspec.json.Decoder(msgspec.Raw).decode
_parts = msgspec.json.Decoder(list[msgspec.Raw]).decode
_objects = msgspec.json.Decoder(list[_Object]).decode
_strings = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|NaN|Infinity', re.DOTALL)


def is_light(body: bytes) -> bool:
    """Whether any body of this size is parsed within milliseconds."""
    return len(body) <= LIGHT_BYTES and body.count(b",") < LIGHT_VALUES


async def apart(thread: Executor, work: Callable[[], T]) -> T:
    """Run slow work in the thread, in order of submission."""
    return await asyncio.get_running_loop().run_in_executor(thread, work)


class JsonLimits(NamedTuple):
    """Limits on the JSON of one command; each is counted by a byte that it needs."""

    size: int
    values: int
    fields: int
    lists: int


def check_command(body: bytes, limits: JsonLimits, loc: str) -> None:
    """Raise MalformedBody or InvalidField for JSON too large for a command."""
    counts = JsonLimits(len(body), body.count(b","), body.count(b":"), body.count(b"["))
    for name, count, limit in zip(JsonLimits._fields, counts, limits, strict=True):
        if count <= limit:  # including those in strings, which the limits allow for
            continue
        check_json(body, loc)
        unit = "bytes" if name == "size" else name
        raise InvalidField([FieldError(loc, f"expected at most {limit} {unit}, got {count}")])


def split(body: bytes, limit: int) -> list[msgspec.Raw]:
    """Cut a JSON list of at most `limit` objects into its unparsed parts."""
    braces = body.count(b"{")
    if braces > MAX_BRACES * limit:
        detail = f"expected at most {limit} observations per request, got about {braces}"
        raise InvalidField([FieldError("body", detail)])
    try:
        return _cut(body)
    except msgspec.ValidationError as error:
        check_json(body, "body")
        detail = f"expected a list of observations: {error}"
        raise InvalidField([FieldError("body", detail)]) from None
    except (msgspec.DecodeError, RecursionError) as error:
        finite = finite_json(body, limit)
        if finite == body:
            raise malformed(f"Invalid JSON: {error}", "body") from None
    return split(finite, limit)


def malformed(detail: str, loc: str) -> MalformedBody:
    """Return the error of a body, or a part of one, that is not JSON."""
    return MalformedBody(f"{loc}: {detail}", errors=[{"loc": loc, "detail": detail}])


def check_json(body: bytes, loc: str) -> None:
    """Raise MalformedBody if the body is not JSON, whatever other errors it has."""
    try:
        body.decode()
        _skip(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(f"Invalid JSON: {error}", loc) from None


def _cut(body: bytes) -> list[msgspec.Raw]:
    if body.count(b",") > FEW_VALUES:  # of numbers in objects, of which there are not too many?
        _objects(body)
    return _parts(body)


def finite_json(body: bytes, limit: int = 1) -> bytes:
    """Replace NaN, which is not JSON, by a number that is refused by name, as not finite."""
    quotes = body.count(b'"') + body.count(b"\\")
    if quotes > MAX_QUOTES * limit or not (b"NaN" in body or b"Infinity" in body):
        return body
    return _strings.sub(lambda match: match[0] if match[0][:1] == b'"' else b"1e999", body)


async def read_body(
    request: Request, thread: Executor, limit: int, timeout_s: float, as_sent: bool = False
) -> bytes:
    """Return a body of at most `limit` bytes, unpacked; large ones are unpacked in the thread.

    as_sent: do not unpack it, whatever its encoding. Raises BodyTooLarge as soon as the limit is
    passed, SlowBody, UnsupportedEncoding, MalformedBody and ClientDisconnect.
    """
    window = None if as_sent else _window(header(request.scope, b"content-encoding"))
    length = header(request.scope, b"content-length")
    if length is not None and length.isdigit() and int(length) > limit:
        raise BodyTooLarge(f"the body has {int(length)} bytes; at most {limit}")
    try:
        async with asyncio.timeout(timeout_s):
            chunks = await _received(request, limit)
    except TimeoutError:
        raise SlowBody(f"the body did not arrive within {timeout_s:g} s") from None
    size = sum(map(len, chunks))
    if size > LIGHT_COPY:
        body = await apart(thread, lambda: b"".join(chunks))
    else:
        body = b"".join(chunks)
    if window is None:
        return body
    if size > LIGHT_PACKED:
        return await apart(thread, lambda: _unpacked(body, window, limit))
    return _unpacked(body, window, limit)


async def _received(request: Request, limit: int) -> list[bytes]:
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
            return [*chunks, chunk]
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
    """Unpack up to the limit, so that a decompression bomb never fills the memory."""
    parts: list[bytes] = []
    room = limit
    while packed:  # gzip: one member after the other
        if len(parts) == MAX_MEMBERS:
            raise MalformedBody(f"body: expected at most {MAX_MEMBERS} gzip members")
        unpack = zlib.decompressobj(window)
        try:
            part = unpack.decompress(packed, room + 1)
        except zlib.error as error:
            raise MalformedBody(f"body: cannot decompress: {error}") from None
        room -= len(part)
        if room < 0:
            _too_large(limit, "unpacked ")
        if not unpack.eof:
            raise MalformedBody("body: cannot decompress: truncated")
        parts.append(part)
        packed = unpack.unused_data
    return b"".join(parts)


def _too_large(limit: int, how: str = "") -> NoReturn:
    raise BodyTooLarge(f"the {how}body has more than {limit} bytes")


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return a header by its lower-case name."""
    for key, value in scope["headers"]:
        if key == name:
            header_value: bytes = value
            return header_value
    return None
