"""Explanations of changes: what the history of a stream has on both sides of a start."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from model_core.explanation import AFTER, BEFORE
from service.api.gateway.reads import from_store
from service.schema.sides import Sides, sides_of
from service.store import reads
from service.store.reads import AsyncStore, Place, StoredAround
from service.store.streams import UnreadablePart

KEPT = 5000  # explanations
TRIES = 3  # of reading a history while commits move its records
AT_ONCE = 20  # changes whose histories are read and explained together: some 5,000 labels


# The beginning and the end of what was looked at, and where seasons were last found or given up:
# the last labels are less other seasons from then on.
Seen = tuple[int, int, int | None]


class Explanations:
    """Explains changes of any streams, each once until its history has more on it.

    thread: computes. It should be one, and of no other use: requests take turns in it.
    """

    def __init__(self, store: AsyncStore, thread: Executor) -> None:
        self._store = store
        self._thread = thread
        self._known: dict[tuple[str, int, int], tuple[Seen, Sides]] = {}

    async def of(self, places: Mapping[int, Place]) -> tuple[dict[int, Sides], set[int]]:
        """Return what the history has on each change, and those whose history cannot be read.

        Raises RedisUnavailable.
        """
        sides: dict[int, Sides] = {}
        missing: list[int] = []
        for i, place in places.items():
            seen, known = self._known.get(_key(place), (None, None))
            if known is not None and seen == _seen(place):
                sides[i] = known
            else:
                missing.append(i)
        damaged: set[int] = set()
        # In groups, each kept before the next is read: a request holds the histories of one at a
        # time, and what a request that failed had done is not done again.
        for first in range(0, len(missing), AT_ONCE):
            group = missing[first : first + AT_ONCE]
            read = await self._read([places[i] for i in group])
            for i, found in zip(group, read, strict=True):
                if found is None:
                    damaged.add(i)
                    continue
                sides[i] = found.sides
                self._known.pop(_key(places[i]), None)
                if found.whole:
                    self._known[_key(places[i])] = _seen(places[i]), found.sides
            while len(self._known) > KEPT:
                del self._known[next(iter(self._known))]
        return sides, damaged

    async def _read(self, places: Sequence[Place]) -> list[_Computed | None]:
        """Explain changes; again those of which a commit moved records between two reads."""
        found: dict[int, _Computed | None] = {}
        left = list(range(len(places)))
        for _ in range(TRIES):
            chosen = [places[i] for i in left]
            stored = await from_store(self._store.around(chosen, BEFORE, AFTER))
            loop = asyncio.get_running_loop()
            computed = await loop.run_in_executor(self._thread, _computed, chosen, stored)
            found |= zip(left, computed, strict=True)
            left = [i for i in left if (each := found[i]) is not None and not each.whole]
            if not left:
                break
        return [found[i] for i in range(len(places))]


def _key(place: Place) -> tuple[str, int, int]:
    return place.stream, place.head.generation, place.start


def _seen(place: Place) -> Seen:
    """What an explanation depends on: it is computed again when that changes."""
    season = place.head.season
    since = None if season is None else season.since
    return reads.looked_since(place, BEFORE), reads.looked_until(place, AFTER), since


class _Computed(NamedTuple):
    """What a history has on a change. whole: whether all of it was there."""

    sides: Sides
    whole: bool


def _computed(places: Sequence[Place], stored: Sequence[StoredAround]) -> list[_Computed | None]:
    """Return what the histories have on each change; None: it cannot be read."""
    found: list[_Computed | None] = []
    for place, each in zip(places, stored, strict=True):
        try:
            around = reads.decode_around(place, each, BEFORE, AFTER)
        except UnreadablePart:
            found.append(None)
            continue
        sides = sides_of(place.head, around.before, around.after, around.first)
        found.append(_Computed(sides, around.whole))
    return found
