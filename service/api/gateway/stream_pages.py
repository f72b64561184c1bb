"""Which streams a page lists: by their tags, in the order of ids; by a text, in another order."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from service import wire
from service.api.gateway.changes import ChangePages
from service.api.gateway.reads import SortedPages, from_store
from service.problems import InvalidField
from service.schema.queries import OverviewQuery
from service.store import keys
from service.store.reads import AsyncStore
from service.store.streams import StoredHead, UnreadablePart, decoded
from service.tasks import apart
from service.wire import tags

TAGS_AT_ONCE = 1000  # heads: some 5 ms of decoding
MOST_READ = 10_000  # heads in one request
MOST_RANKED = 50_000  # streams that a page is chosen of: some 0.4 kB each of this process's memory
HEADS_AT_ONCE = 2000  # positions that are read together: some .2 MB
FRESH_S = 3.0  # how long a value counts: a console asks every 4 s, several ask at once
StreamRank = tuple[float, bytes]
_pages: SortedPages[StreamRank] = SortedPages(StreamRank)


class SelectedStream(NamedTuple):
    """One stream. head: as stored, for those who need more of it; None: not there any more."""

    stream: str
    tags: dict[str, str]
    head: StoredHead | None


class SelectedPage(NamedTuple):
    """Streams in the order of their ids; `cursor` is None where there are no more."""

    rows: list[SelectedStream]
    cursor: str | None
    unreadable: list[str]


async def select(
    store: AsyncStore,
    prefix: str,
    match: Sequence[str],
    cursor: str | None,
    limit: int,
) -> SelectedPage:
    """Return up to `limit` streams after `cursor` that fit a selector at least, or all.

    At most MOST_READ streams are looked at: there may be fewer, or none, and yet a cursor.
    """
    rows: list[SelectedStream] = []
    unreadable: list[str] = []
    for _ in range(MOST_READ // TAGS_AT_ONCE):
        count = min(TAGS_AT_ONCE, limit - len(rows)) if not match else TAGS_AT_ONCE
        names, cursor = await from_store(store.names(prefix, cursor, count))
        heads = await from_store(store.heads(names))
        for name in names:
            stream_tags: dict[str, str] | None = {}
            if (head := heads[name]) is not None:
                try:
                    tagged = decoded(wire.decode_tagged, head.settled, "head", name)
                    stream_tags = tagged.settings.tags
                except UnreadablePart:
                    unreadable.append(name)
                    stream_tags = None if match else {}
            if stream_tags is not None and tags.selected(match, name, stream_tags):
                if len(rows) == limit:
                    return SelectedPage(rows, rows[-1].stream, unreadable)
                rows.append(SelectedStream(name, stream_tags, head))
        if cursor is None or len(rows) == limit:
            break
    return SelectedPage(rows, cursor, unreadable)


class Ranking:
    """Chooses the streams of a page: of those that contain a text, the first by a value."""

    def __init__(self, store: AsyncStore, changes: ChangePages, thread: Executor) -> None:
        self._store = store
        self._changes = changes
        self._thread = thread
        # P(changed), and until when it counts, by name as stored: text is made of a page's alone.
        self._values: dict[bytes, tuple[float, float]] = {}
        self._reading = asyncio.Lock()

    async def page(self, query: OverviewQuery) -> tuple[list[str], int, str | None]:
        """Return the ids of a page, the number of streams on all pages, and the next cursor.

        Raises InvalidField for a cursor that is none, and for too many streams. With
        `sort=changed_probability` values are up to FRESH_S old.
        """
        total = await from_store(self._store.count(query.prefix))
        if total > MOST_RANKED:
            detail = (
                f"for `contains` and `sort` expected at most {MOST_RANKED:,} streams with the "
                f"prefix {query.prefix!r}, got {total:,}: give a longer prefix"
            )
            raise InvalidField.at("query.prefix", detail)
        contained = query.contains.encode()
        rows = await from_store(self._store.partition_names(query.prefix, MOST_RANKED))
        names = [name for row in rows for name in row if contained in name]
        values: Mapping[bytes, float] = {}
        if query.sort == "change":
            latest = await self._changes.latest()
            values = {name.encode(): time_s for name, time_s in latest.items()}
        elif query.sort == "changed_probability":
            values = await self._changed(names)
        # Bytes of UTF-8 have the order of the code points.
        ranked = (((-values.get(name, -math.inf), name), name) for name in names)
        page, cursor = _pages.page(ranked, query.sort, query.cursor, query.limit)
        return list(map(keys.text_of, page)), len(names), cursor

    async def _changed(self, names: Sequence[bytes]) -> Mapping[bytes, float]:
        """Return P(changed) of streams that have one."""
        async with self._reading:  # those that wait find what the first has read
            now = time.monotonic()
            stale = [name for name in names if self._values.get(name, (0.0, 0.0))[1] < now]
            for first in range(0, len(stale), HEADS_AT_ONCE):
                some = stale[first : first + HEADS_AT_ONCE]
                blobs = await from_store(self._store.positions(some))
                read = await apart(self._thread, _probabilities, blobs)
                self._values.update((name, (read[name], now + FRESH_S)) for name in read)
            values = {name: self._values[name] for name in names if name in self._values}
            if len(self._values) > 2 * MOST_RANKED:  # streams of other prefixes, and deleted ones
                self._values = values
        return {name: value for name, (value, _) in values.items()}


def _probabilities(blobs: Mapping[bytes, bytes | None]) -> dict[bytes, float]:
    """Return P(changed) by stream; -1 without one, and of a stream that cannot be read."""
    probabilities = {}
    for name, blob in blobs.items():
        probability = None
        if blob is not None:
            # The overview names one that cannot be read, where it is on a page.
            with contextlib.suppress(UnreadablePart):
                position = decoded(wire.decode_position, blob, "position", keys.text_of(name))
                probability = position.changed_probability
        probabilities[name] = -1.0 if probability is None else probability
    return probabilities
