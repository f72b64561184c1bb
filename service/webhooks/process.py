"""The process that delivers for all hooks, each on its own."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence

from service.process import STOP_WAIT_S, limit_stop
from service.redis.connection import (
    START_TIMEOUT_S,
    check_server,
    connect,
    connect_async,
    fix_partitions,
)
from service.settings import Settings
from service.tasks import end
from service.webhooks.config import Hook
from service.webhooks.runner import Runner


def deliver(settings: Settings, hooks: Sequence[Hook]) -> None:
    """Deliver until SIGTERM or SIGINT; a RedisError when the store is not there at the start."""
    url = settings.redis_url or ""
    with connect(url, START_TIMEOUT_S) as client:
        check_server(client)
        fix_partitions(client, settings.partitions)
    asyncio.run(_deliver(settings, url, hooks))


async def _deliver(settings: Settings, url: str, hooks: Sequence[Hook]) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _begin_to_stop, stop, settings)
    async with connect_async(url) as client:
        tasks = [loop.create_task(Runner(hook, client, settings).run()) for hook in hooks]
        stopped = loop.create_task(stop.wait())
        done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
        # Time for each to end its attempts before it is cancelled again.
        await end(stopped, *tasks, again_s=settings.webhook_timeout_s + STOP_WAIT_S / 2)
        for task in done - {stopped}:
            task.result()  # a runner never ends by itself: a defect ends the process


def _begin_to_stop(stop: asyncio.Event, settings: Settings) -> None:
    limit_stop(settings.webhook_timeout_s + STOP_WAIT_S)
    stop.set()
