"""Effects of a commit that only depend on what a stream is, or was found to be."""

from __future__ import annotations

from service.store import keys
from service.store.script import Argument
from service.wire import Head, StreamSettings

Effect = tuple[Argument, ...]


def index_effects(partition: int, name: str, head: Head, was: StreamSettings) -> list[Effect]:
    """Where a stream stands in the list of those that expire."""
    settings, found = head.settings, list[Effect]()
    if settings.ttl is not None:
        expires = head.updated_ms + int(1000 * settings.ttl)
        found.append(("ZADD", keys.due(partition), expires, name))
    elif was.ttl is not None:
        found.append(("ZREM", keys.due(partition), name))
    return found
