"""The process that delivers for all hooks, each on its own."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence

from service.redis.connection import check_server, connect, connect_async, fix_partitions
from service.settings import Settings
from service.webhooks.config import Hook
from service.webhooks.runner import Runner


def deliver(settings: Settings, hooks: Sequence[Hook]) -> None:
    """Deliver until SIGTERM or SIGINT; a RedisError when the store is not there at the start."""
    url = settings.redis_url or ""
    with connect(url) as client:
        check_server(client)
        fix_partitions(client, settings.partitions)
    asyncio.run(_deliver(settings, url, hooks))


async def _deliver(settings: Settings, url: str, hooks: Sequence[Hook]) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with connect_async(url) as client:
        tasks = [loop.create_task(Runner(hook, client, settings).run()) for hook in hooks]
        stopped = loop.create_task(stop.wait())
        done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in (stopped, *tasks):
            task.cancel()
        await asyncio.gather(stopped, *tasks, return_exceptions=True)
        for task in done - {stopped}:
            task.result()  # a runner never ends by itself: a defect ends the process
