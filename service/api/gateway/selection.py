"""Streams by their tags, in the order of their ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from service import wire
from service.api.gateway.gateway import Gateway
from service.api.gateway.reads import from_store
from service.store.reads import AsyncStore
from service.store.streams import UnreadablePart, decoded
from service.wire import tags

READ_AT_ONCE = 1000  # heads: some 5 ms of decoding
MOST_READ = 10_000  # heads in one request


class SelectedStream(NamedTuple):
    """One stream. head: as stored, for those who need more of it; None: not there any more."""

    stream: str
    tags: dict[str, str]
    head: bytes | None


class Selected(NamedTuple):
    """Streams in the order of their ids; `cursor` is None where there are no more."""

    rows: list[SelectedStream]
    cursor: str | None
    unreadable: list[str]


async def select(
    store: AsyncStore,
    gateway: Gateway,
    prefix: str,
    match: Sequence[str],
    cursor: str | None,
    limit: int,
) -> Selected:
    """Return up to `limit` streams after `cursor` that fit a selector at least, or all.

    At most MOST_READ streams are looked at: there may be fewer, or none, and yet a cursor.
    """
    rows: list[SelectedStream] = []
    unreadable: list[str] = []
    for _ in range(MOST_READ // READ_AT_ONCE):
        count = min(READ_AT_ONCE, limit - len(rows)) if not match else READ_AT_ONCE
        names, cursor = await from_store(store.names(prefix, cursor, count))
        blobs = await from_store(store.heads((gateway.partition(name), name) for name in names))
        for name in names:
            stream_tags: dict[str, str] | None = {}
            if (blob := blobs[name]) is not None:
                try:
                    stream_tags = decoded(wire.decode_tagged, blob, "head", name).settings.tags
                except UnreadablePart:
                    unreadable.append(name)
                    stream_tags = None if match else {}
            if stream_tags is not None and (not match or tags.selected(match, name, stream_tags)):
                if len(rows) == limit:
                    return Selected(rows, rows[-1].stream, unreadable)
                rows.append(SelectedStream(name, stream_tags, blob))
        if cursor is None or len(rows) == limit:
            break
    return Selected(rows, cursor, unreadable)
