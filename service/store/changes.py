"""The index of changes, read on from the feeds."""

from __future__ import annotations

import asyncio

from service.store.feed import Feeds, Reread
from service.tasks import bounded
from service.wire.change_index import ChangeIndex

READ_AT_ONCE = 1024  # entries, of all partitions: some 20 ms of decoding
TIMEOUT_S = 5.0


class ChangeFeed:
    """Changes of all streams, of what the feeds retain.

    index: as it was when it was last read on.
    """

    def __init__(self, feeds: Feeds) -> None:
        self.index = ChangeIndex(feeds.partitions)
        self._feeds = feeds
        self._untrimmed: set[int] = set()  # partitions
        self._reading = asyncio.Lock()

    async def read_on(self) -> None:
        """Bring the index to where the feeds are now; raises RedisError, TimeoutError."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._reading.acquire()
        except TimeoutError as error:
            raise TimeoutError(
                f"other readers of the event feeds take over {TIMEOUT_S:g} s"
            ) from error
        try:
            await self._take_all()
        finally:
            self._reading.release()

    async def _take_all(self) -> None:
        behind = list(self.index.positions)
        while behind:
            count = max(16, READ_AT_ONCE // len(behind))
            at = {partition: self.index.positions[partition] for partition in behind}
            rereads = await bounded(self._feeds.reread(at, count), TIMEOUT_S)
            behind = [p for p, reread in rereads.items() if self._take(p, reread)]
            # Feeds are trimmed only where something is added. What an error leaves here is
            # trimmed by the next reader.
            self._untrimmed.update(p for p in rereads if self.index.positions[p] != at[p])
            if self._untrimmed:
                oldest = await bounded(self._feeds.oldest(list(self._untrimmed)), TIMEOUT_S)
                for partition, id_ in oldest.items():
                    self.index.trim(partition, id_)
                self._untrimmed -= oldest.keys()

    def _take(self, partition: int, reread: Reread) -> bool:
        """Add what a partition's feed has beyond its position; whether there may be more."""
        if not reread.there:  # trimmed up to here, or the store was restored to an earlier state
            self.index.restart(partition)
            return True
        for entry in reread.beyond:
            self.index.add(entry)
        return reread.more
