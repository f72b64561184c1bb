"""Groups of events that came together, each of which becomes one delivery.

They are in memory only. What waits in a group is not acknowledged, so that the process after one
that died reads it again, and groups it anew.
"""

from __future__ import annotations

from typing import NamedTuple

from service.webhooks.dead_letters import Letter

MAX_GROUP = 500  # events of one delivery
Key = tuple[str, ...]


class Grouping(NamedTuple):
    """Which events make a group: those within `seconds` of the first, with equal tags `by`."""

    seconds: float
    by: tuple[str, ...] = ()


class Groups:
    """Groups that are open. Times are of a monotonic clock, in s."""

    def __init__(self, grouping: Grouping) -> None:
        self._grouping = grouping
        self._open: dict[Key, tuple[float, list[Letter]]] = {}
        self._full: list[tuple[Key, list[Letter]]] = []

    def add(self, letter: Letter, now_s: float) -> None:
        """Put a letter into its group, which its first letter opens."""
        tags = {} if letter.raised is None else letter.raised.tags
        key = tuple(tags.get(name, "") for name in self._grouping.by)
        _, letters = self._open.setdefault(key, (now_s, []))
        letters.append(letter)
        if len(letters) == MAX_GROUP:
            del self._open[key]
            self._full.append((key, letters))

    def due(self, now_s: float) -> list[tuple[Key, list[Letter]]]:
        """Take the groups that are full or whose time is over, in the order of their letters."""
        found, self._full = self._full, []
        for key, (since_s, letters) in list(self._open.items()):
            if now_s >= since_s + self._grouping.seconds:
                del self._open[key]
                found.append((key, letters))
        return found
