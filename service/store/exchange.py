"""What goes over one connection: commands sent, replies read.

The timeout of a connection is that of silence. A slow link that takes long over many bytes is not
silent: each part that is sent has the timeout for itself, and so has a reply as long as the other
side goes on taking what was sent.
"""

from __future__ import annotations

import asyncio
import fcntl
import functools
import math
import struct
import termios
from collections.abc import Iterator, Sequence
from typing import Any

import redis
from hiredis import pack_command
from redis.exceptions import ResponseError

PART = 32_768  # bytes


@functools.cache
def closing(kind: type[Any]) -> type[Any]:
    """Return a kind of asyncio connection that raises a redis error wherever it is closed.

    Where the kernel has closed what is written to, uvloop raises a RuntimeError, even while the
    library is still greeting the server.
    """

    async def send_packed_command(self: Any, command: Any, check_health: bool = True) -> None:
        try:
            await kind.send_packed_command(self, command, check_health)
        except RuntimeError as error:
            raise redis.ConnectionError(f"the connection is closed: {error}") from error

    return type(kind.__name__, (kind,), {"send_packed_command": send_packed_command})


def send(connection: Any, commands: Sequence[Any]) -> int:
    """Send commands; returns how many of their bytes the other side has still to take."""
    parts = list(_parts(commands))
    for part in parts:
        connection.send_packed_command([part])
    return _untaken(connection._sock) if len(parts) > 1 else 0


def reply_of(connection: Any, untaken: int = 0) -> Any:
    """Read one reply; an error of the server is a reply as well.

    `untaken` is what `send` returned. Any other error leaves the connection to be closed.
    """
    while True:
        try:
            return connection.read_response(disconnect_on_error=False)
        except ResponseError as error:
            return error
        except redis.TimeoutError:
            before, untaken = untaken, _untaken(connection._sock)
            if untaken >= before:
                raise


async def send_async(connection: Any, commands: Sequence[Any]) -> int:
    """Send commands, as `send` does."""
    parts = list(_parts(commands))
    for part in parts:
        await connection.send_packed_command([part])
    return _untaken_async(connection) if len(parts) > 1 else 0


async def reply_of_async(connection: Any, untaken: int = 0, wait_s: float = 0.0) -> Any:
    """Read one reply, as `reply_of` does; `wait_s`: for how long the command itself waits."""
    while True:
        try:
            if not wait_s:
                return await connection.read_response(disconnect_on_error=False)
            async with asyncio.timeout(wait_s + connection.socket_timeout):
                return await connection.read_response(timeout=math.inf, disconnect_on_error=False)
        except ResponseError as error:
            return error
        except redis.TimeoutError:
            before, untaken = untaken, _untaken_async(connection)
            if untaken >= before:
                raise


def _parts(commands: Sequence[Any]) -> Iterator[bytes]:
    # The asyncio connection of the library packs in Python, at several times the cost.
    sent = b"".join([pack_command(tuple(command)) for command in commands])
    for at in range(0, len(sent), PART):
        yield sent[at : at + PART]


def _untaken(connected: Any) -> int:
    """Bytes that the kernel holds for the other side; 0 where it does not say."""
    try:
        found: tuple[int] = struct.unpack("i", fcntl.ioctl(connected, termios.TIOCOUTQ, bytes(4)))
    except OSError:
        return 0
    return found[0]


def _untaken_async(connection: Any) -> int:
    transport = connection._writer.transport
    mine: int = transport.get_write_buffer_size()
    return mine + _untaken(transport.get_extra_info("socket"))
