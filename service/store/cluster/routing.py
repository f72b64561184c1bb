"""How commands find their nodes in a cluster, the same for the blocking and the asyncio client.

The library's own pipelines send a command again when its reply was cut, and ask the server where
the keys of an XREAD are. Here a command is sent again only when a node says that it did not run it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    ConnectionError,
    MovedError,
    RedisError,
    TimeoutError,
    TryAgainError,
)

REDIRECTIONS = 16  # of one command: more means a redirect loop
AGAIN_PAUSE_S = 0.05  # before a command whose keys are on their way between nodes
WAIT_MS = 20_000  # longest blocking read; its connection gets as much longer
LOST = (ConnectionError, TimeoutError, OSError)


class Routed(NamedTuple):
    """A command and the key that says where it goes."""

    key: str | bytes
    arguments: Sequence[Any]
    node: Any = None  # where it was redirected to
    asking: bool = False  # for this once

    @property
    def slot(self) -> int:
        """Slot of its key."""
        return slot_of(self.key)


def slot_of(key: str | bytes) -> int:
    """Return the slot of a key."""
    return int(key_slot(key if isinstance(key, bytes) else key.encode()))


def packed(routed: Iterable[Routed]) -> list[tuple[Any, ...]]:
    """Return what goes over one connection, ASKING before what needs it."""
    sent: list[tuple[Any, ...]] = []
    for each in routed:
        sent += [("ASKING",)] if each.asking else []
        sent.append(tuple(each.arguments))
    return sent


def redirected(client: Any, routed: Routed, reply: Any) -> Routed | None:
    """Return the command to send again, or None when the reply is its result."""
    if isinstance(reply, MovedError):
        node = client.get_node(host=reply.host, port=reply.port)
        return routed._replace(node=node, asking=False)
    if isinstance(reply, AskError):
        node = client.get_node(host=reply.host, port=reply.port)
        return routed._replace(node=node, asking=True)
    return routed if isinstance(reply, TryAgainError) else None


def read_of(key: str | bytes, after: str, count: int | None, block_ms: int = 0) -> Routed:
    """Return the XREAD of one key."""
    limits: list[Any] = ["COUNT", count] if count else []
    limits += ["BLOCK", block_ms] if block_ms else []
    return Routed(key, ("XREAD", *limits, "STREAMS", key, after))


def entries_of(replies: Iterable[Any]) -> list[Any]:
    """Return the replies of several XREADs as the library does that of one."""
    found = []
    for reply in replies:
        if isinstance(reply, RedisError):
            raise reply
        for name, entries in reply or []:
            found.append([name, [(id_, pairs_of(flat)) for id_, flat in entries]])
    return found


def pairs_of(flat: Sequence[bytes] | None) -> dict[bytes, bytes]:
    """Return fields and values that came one after the other as a dictionary."""
    pairs = iter(flat or ())
    return dict(zip(pairs, pairs, strict=True))


def fullest(memories: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the memory of the node that is nearest to its limit: it refuses first."""

    def share(memory: dict[str, Any]) -> float:
        return memory["used_memory"] / memory["maxmemory"] if memory["maxmemory"] else 0.0

    return max(memories, key=share)
