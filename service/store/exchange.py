"""What goes over one connection: commands sent, replies read.

Each part that is sent has the connection's timeout for itself, and so has each reply: a slow link
may take long over many bytes.
"""

from __future__ import annotations

import asyncio
import functools
import math
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


def send(connection: Any, commands: Sequence[Any]) -> None:
    """Send commands."""
    for part in _parts(commands):
        connection.send_packed_command([part])


def reply_of(connection: Any) -> Any:
    """Read one reply; an error of the server is a reply as well.

    Any other error leaves the connection to be closed.
    """
    try:
        return connection.read_response(disconnect_on_error=False)
    except ResponseError as error:
        return error


async def send_async(connection: Any, commands: Sequence[Any]) -> None:
    """Send commands."""
    for part in _parts(commands):
        await connection.send_packed_command([part])


async def reply_of_async(connection: Any, wait_s: float = 0.0) -> Any:
    """Read one reply, as `reply_of` does; `wait_s`: for how long the command itself waits."""
    try:
        if not wait_s:
            return await connection.read_response(disconnect_on_error=False)
        async with asyncio.timeout(wait_s + connection.socket_timeout):
            return await connection.read_response(timeout=math.inf, disconnect_on_error=False)
    except ResponseError as error:
        return error


def _parts(commands: Sequence[Any]) -> Iterator[bytes]:
    # The asyncio connection of the library packs in Python, at several times the cost.
    sent = b"".join([pack_command(tuple(command)) for command in commands])
    for at in range(0, len(sent), PART):
        yield sent[at : at + PART]
