"""Running totals of what a worker's streams hold, so that no gauge needs a walk over all of them.

A stream that may have changed is marked; its part of the totals is taken anew when they are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

Key = tuple[int, str]  # partition and name of a stream


class Share(NamedTuple):
    """Part of the totals that is one stream's."""

    host_bytes: int
    resident: bool
    behind: int  # observations since its last checkpoint
    checkpoint_ms: int  # when that was made; of no meaning where none is behind


class Counted(Protocol):
    """A stream whose part of the totals is counted."""

    partition: int
    name: str
    share: Share | None  # as last counted

    def current_share(self) -> Share:
        """What its part is now."""


class Ledger:
    """Totals over the streams of a mapping, which others change."""

    def __init__(self, streams: Mapping[Key, Counted]) -> None:
        self._streams = streams
        self._marked: set[Key] = set()
        self._host_bytes = 0
        self._resident = 0
        self._behind: Counter[int] = Counter()  # streams by how far they are behind
        self._checkpoints_ms: Counter[int] = Counter()  # those that are, by their checkpoints

    def mark(self, keys: Iterable[Key]) -> None:
        """Count these streams anew before the totals are next read."""
        self._marked.update(keys)

    def drop(self, stream: Counted) -> None:
        """Take a stream that goes out of the totals."""
        self._marked.discard((stream.partition, stream.name))
        if stream.share is not None:
            self._count(stream.share, -1)
            stream.share = None

    @property
    def host_bytes(self) -> int:
        """Bytes on the host."""
        self._settle()
        return self._host_bytes

    @property
    def resident(self) -> int:
        """Streams that have a row of a slab."""
        self._settle()
        return self._resident

    @property
    def behind(self) -> int:
        """Largest number of observations since a stream's last checkpoint."""
        self._settle()
        return max(self._behind, default=0)

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest checkpoint was made of a stream that was observed since."""
        self._settle()
        return min(self._checkpoints_ms, default=None)

    def _settle(self) -> None:
        marked = self._marked
        self._marked = set()
        for key in marked:
            stream = self._streams.get(key)
            if stream is None:
                continue
            new = stream.current_share()
            if new != stream.share:
                if stream.share is not None:
                    self._count(stream.share, -1)
                self._count(new, 1)
                stream.share = new

    def _count(self, share: Share, sign: int) -> None:
        self._host_bytes += sign * share.host_bytes
        self._resident += sign * share.resident
        if share.behind:
            _count(self._behind, share.behind, sign)
            _count(self._checkpoints_ms, share.checkpoint_ms, sign)


def _count(counts: Counter[int], number: int, sign: int) -> None:
    counts[number] += sign
    if not counts[number]:
        del counts[number]
