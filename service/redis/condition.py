"""What to watch of the store beside its health: for metrics alone."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import redis.asyncio
from redis.asyncio.cluster import RedisCluster

from service.redis import keys
from service.redis.script import Call, Script


class Condition(NamedTuple):
    """State of the log and of what keeps it."""

    oldest_pending_s: float  # 0: nothing waits
    append_only: bool  # on every server
    append_only_failing: bool  # the last write or rewrite of the file failed


class Look:
    """Asks for it."""

    def __init__(self) -> None:
        self._oldest = Script("oldest")

    async def at(self, client: redis.asyncio.Redis, partitions: int) -> Condition:
        """Return the condition of a store; raises a RedisError when it does not answer.

        A log that cannot be read counts as empty: its worker reports it.
        """
        calls = [Call([keys.log(partition)], []) for partition in range(partitions)]
        ages = await self._oldest.run_all_async(client, calls)
        oldest_ms = max((age for age in ages if isinstance(age, int)), default=0)
        servers = await _persistence(client)
        kept = all(_kept(each) for each in servers)
        return Condition(oldest_ms / 1000, kept, any(_failing(each) for each in servers))


async def _persistence(client: Any) -> list[dict[str, Any]]:
    """INFO's persistence of the server, or of each primary of a cluster."""
    if not isinstance(client, RedisCluster):
        return [await client.info("persistence")]
    await client.initialize()
    nodes = client.get_primaries()
    ask = cast(Any, client.execute_command)
    found = await ask("INFO", "persistence", target_nodes=nodes)
    return [found] if len(nodes) == 1 else list(found.values())


def _kept(server: dict[str, Any]) -> bool:
    return bool(int(server.get("aof_enabled", 0)))


def _failing(server: dict[str, Any]) -> bool:
    said = (server.get("aof_last_write_status"), server.get("aof_last_bgrewrite_status"))
    return _kept(server) and any(each != "ok" for each in said)
