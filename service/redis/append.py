"""The log as the API sees it: append a batch, once."""

from __future__ import annotations

from typing import NamedTuple

import redis.asyncio

from service.redis import keys
from service.redis.script import Argument, Call, Script

REMEMBER_MS = 3_600_000


class Appended(NamedTuple):
    """Where a batch went (`entry` None: refused, full) and how many observations wait."""

    entry: str | None
    waiting: int


class Appender:
    """Appends of one API process. One append per partition may be in flight."""

    def __init__(self, client: redis.asyncio.Redis, incarnation: str, max_pending: int) -> None:
        self._client = client
        self._incarnation = incarnation
        self._max_pending = max_pending
        self._script = Script("append")

    async def append(self, partition: int, batch_no: int, count: int, payload: bytes) -> Appended:
        """Append a batch of `count` observations as one entry.

        A RedisError or a cancellation leaves the outcome unknown: repeat with the same number
        and payload before any higher number. A number seen before answers its first entry.
        """
        names = [
            keys.append(partition, self._incarnation),
            keys.meta(partition),
            keys.log(partition),
        ]
        arguments: list[Argument] = [batch_no, count, self._max_pending, payload, REMEMBER_MS]
        entry, waiting = await self._script.run_async(self._client, Call(names, arguments))
        return Appended(entry.decode() if entry is not None else None, waiting)
