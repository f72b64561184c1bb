"""What to watch of the store beside its health: for metrics alone."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import redis.asyncio

from service.redis import keys
from service.redis.script import Call, Script


class Condition(NamedTuple):
    """State of the log and of what keeps it."""

    oldest_pending_s: float  # 0: nothing waits
    append_only: bool
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
        found: dict[str, Any] = await cast(Any, client.info("persistence"))
        oldest_ms = max((age for age in ages if isinstance(age, int)), default=0)
        said = (found.get("aof_last_write_status"), found.get("aof_last_bgrewrite_status"))
        on = bool(int(found.get("aof_enabled", 0)))
        return Condition(oldest_ms / 1000, on, on and any(each != "ok" for each in said))
