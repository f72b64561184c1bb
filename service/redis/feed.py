"""Reads of the feeds of all partitions, for one API process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import redis.asyncio

from service.feed import Entry, Id, entry_of, positions
from service.redis import keys


class Feeds:
    """Follows the feeds on one connection, and reads pages of them on others.

    All keys of a call that blocks have to be in one slot on a cluster: `follow` is the only one
    that names several, and the only one to ask slot by slot there.
    """

    def __init__(
        self, waiting: redis.asyncio.Redis, reading: redis.asyncio.Redis, partitions: int
    ) -> None:
        self._waiting, self._reading, self.partitions = waiting, reading, partitions

    async def newest(self) -> dict[int, Id]:
        """Return the last id of every partition's feed, without empty ones."""
        every = range(self.partitions)
        async with self._reading.pipeline(transaction=False) as pipe:
            for partition in every:
                pipe.xrevrange(keys.feed(partition), count=1)
            rows = await pipe.execute()
        found = ((p, Id.parse(row[0][0])) for p, row in zip(every, rows, strict=True) if row)
        return positions(found)

    async def follow(self, after: Mapping[int, Id], count: int, block_ms: int) -> list[Entry]:
        """Return up to `count` entries per partition beyond `after`, waiting for the first."""
        names = {keys.feed(p): p for p in range(self.partitions)}
        asked = {name: str(after.get(p, "0-0")) for name, p in names.items()}
        rows = await cast(Any, self._waiting.xread(cast(Any, asked), count, block_ms))
        return [
            entry_of(names[name.decode()], id_, fields)
            for name, entries in rows or []
            for id_, fields in entries
        ]

    async def page(self, after: Mapping[int, Id], count: int) -> list[Entry]:
        """Return up to `count` entries beyond `after` of each partition that it names."""
        async with self._reading.pipeline(transaction=False) as pipe:
            for partition, id_ in after.items():
                pipe.xrange(keys.feed(partition), min=f"({id_}", count=count)
            rows = await pipe.execute()
        return [
            entry_of(partition, id_, fields)
            for partition, row in zip(after, rows, strict=True)
            for id_, fields in row
        ]
