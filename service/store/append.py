"""The log as the API sees it: append a batch, once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple, cast
from zlib import crc32

import msgspec
import redis

from service import wire
from service.store import keys
from service.store.shards import Argument, AsyncStoreClient, Script, ScriptCall

REMEMBER_MS = 3_600_000
MAX_ENTRY_BYTES = 262_144  # of a log entry; a worker reads 64 of a partition at a time, 16 MiB


class Appended(NamedTuple):
    """Where a batch went (`entry` None: refused, full) and how many observations wait.

    Below 0: the record of what was appended is damaged, and it is not known whether this was.
    """

    entry: str | None
    waiting: int


class Queued(msgspec.Struct, gc=False):
    """A command that is to be appended: encoded envelope, and what it counts for."""

    number: int
    units: int
    payload: bytes
    rows: int = 1


def entry_of(partition: int, incarnation: str, commands: Sequence[Queued]) -> tuple[bytes, bytes]:
    """Return the payload of a log entry and its checksums."""
    raw = cast(Any, [msgspec.Raw(command.payload) for command in commands])
    payload = wire.encode(wire.LogEntry(incarnation, raw))
    start = payload.index(commands[0].payload)
    sums = [
        wire.CommandSum(each.number, each.units, each.rows, len(each.payload), crc32(each.payload))
        for each in commands
    ]
    encoded = wire.encode(wire.Sums(incarnation, start, sums))
    return payload, wire.checksummed(encoded, "entry", partition)


class Appender:
    """Appends of one API process. One append per partition may be in flight.

    Appends of different partitions that are asked for while a pipeline is under way go together in
    the next one: most of an append's cost to this process is that of a round trip.
    """

    def __init__(self, client: AsyncStoreClient, incarnation: str, max_pending: int) -> None:
        self._client = client
        self.incarnation = incarnation
        self._max_pending = max_pending
        self._script = Script("append")
        self._waiting: list[tuple[ScriptCall, asyncio.Future[Any]]] = []
        # Owns the connection; no caller that gives up ever cancels it.
        self._task: asyncio.Task[None] | None = None

    async def append(
        self,
        partition: int,
        batch_no: int,
        count: int,
        payload: bytes,
        sums: bytes = b"",
        repeated: bool = False,
    ) -> Appended:
        """Append a batch of `count` observations as one entry, with its checksums.

        A RedisError or a cancellation leaves the outcome unknown: repeat with the same number
        and payload before any higher number. A number seen before answers its first entry.
        """
        names = [
            keys.append(partition, self.incarnation),
            keys.meta(partition),
            keys.log(partition),
        ]
        arguments: list[Argument] = [batch_no, count, self._max_pending, payload]
        arguments += [REMEMBER_MS, sums, int(repeated)]
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((ScriptCall(names, arguments), future))
        if self._task is None:
            self._task = loop.create_task(self._run())
        entry, waiting = await future
        return Appended(entry.decode() if entry is not None else None, waiting)

    async def _run(self) -> None:
        try:
            while self._waiting:
                taken = self._waiting
                self._waiting = []
                await self._send(taken)
        finally:
            self._task = None

    async def _send(self, taken: list[tuple[ScriptCall, asyncio.Future[Any]]]) -> None:
        try:
            results = await self._script.run_all_async(self._client, [call for call, _ in taken])
        except (redis.RedisError, OSError) as error:
            results = [error] * len(taken)
        for (_, future), result in zip(taken, results, strict=True):
            if future.done():
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
