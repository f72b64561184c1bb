"""Groups of events that came together, each of which becomes one delivery.

They are in memory only. What waits in a group is not acknowledged, so that the process after one
that died reads it again, and groups it anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from service.webhooks.dead_letters import Letter
from service.wire.event_entries import Raised
from service.wire.tags import STREAM

MAX_GROUP = 500  # events of one delivery
Key = tuple[str, ...]


class Grouping(NamedTuple):
    """Which events make a group: those within `seconds` of the first, with equal tags `by`.

    by: names of tags; `stream` is the id.
    """

    seconds: float
    by: tuple[str, ...] = ()


class Groups:
    """Groups that are open. Times are of a monotonic clock, in s.

    Deliveries of one key are in order, those of two keys are not. So a stream whose tags change
    stays with its key until what it has in hand is settled.
    """

    def __init__(self, grouping: Grouping) -> None:
        self._grouping = grouping
        self._open: dict[Key, tuple[float, list[Letter]]] = {}
        self._full: list[tuple[Key, list[Letter]]] = []
        self._keys: dict[str, tuple[Key, int]] = {}  # of a stream in hand: its key, its letters

    def add(self, letter: Letter, now_s: float) -> None:
        """Put a letter into its group, which its first letter opens."""
        key: Key = ()
        if (raised := letter.raised) is not None:
            key, count = self._keys.get(raised.stream) or (self._key(raised), 0)
            self._keys[raised.stream] = key, count + 1
        _, letters = self._open.setdefault(key, (now_s, []))
        letters.append(letter)
        if len(letters) == MAX_GROUP:
            del self._open[key]
            self._full.append((key, letters))

    def settle(self, letters: Iterable[Letter]) -> None:
        """Forget letters that are no longer in hand."""
        for letter in letters:
            if letter.raised is None:
                continue
            key, count = self._keys.pop(letter.raised.stream)
            if count > 1:
                self._keys[letter.raised.stream] = key, count - 1

    def _key(self, raised: Raised) -> Key:
        of = {**raised.tags, STREAM: raised.stream}
        return tuple(of.get(name, "") for name in self._grouping.by)

    def due(self, now_s: float) -> list[tuple[Key, list[Letter]]]:
        """Take the groups that are full or whose time is over, in the order of their letters."""
        found, self._full = self._full, []
        for key, (since_s, letters) in list(self._open.items()):
            if now_s >= since_s + self._grouping.seconds:
                del self._open[key]
                found.append((key, letters))
        return found
