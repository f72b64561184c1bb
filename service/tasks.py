"""Asyncio tasks: ended by as many cancellations as it takes, and waited for up to a bound."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

log = logging.getLogger(__name__)

END_WAIT_S = 2.0
AGAIN_S = 0.1
T = TypeVar("T")


async def end(*tasks: asyncio.Task[Any] | None, again_s: float = AGAIN_S) -> None:
    """Cancel tasks and wait until they are done, cancelling again every `again_s`.

    One cancellation is not enough. In Python 3.11 `asyncio.wait_for`, through which the redis
    client sends each command, drops a cancellation that comes in the same turn of the event loop
    as its result. What has not ended END_WAIT_S after the second is logged, and left.
    """
    give_up = time.monotonic() + again_s + END_WAIT_S
    all_ = [task for task in tasks if task is not None]
    left = set(all_)
    while left and time.monotonic() < give_up:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=again_s)
    for task in all_:
        if task.done():
            forget(task)
    for task in left:
        log.error("a task ignores cancellation:\n%s", described(task))


def is_cancelled() -> bool:
    """Whether the current task was cancelled, even where a library has dropped the cancellation."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def described(task: asyncio.Task[Any]) -> str:
    """Return a task's name and the places where it waits, outermost first."""
    lines = [f"{task.get_name()}: {task.get_coro()!r}"]
    waits: Any = task.get_coro()
    while (frame := getattr(waits, "cr_frame", None)) is not None:
        lines.append(f"  {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}")
        waits = waits.cr_await
    return "\n".join(lines)


async def happened(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for an event, at most this long; whether it came, though it be cleared since."""
    try:
        async with asyncio.timeout(timeout_s):
            return await event.wait()
    except TimeoutError:
        return event.is_set()


async def apart(executor: Executor, work: Callable[..., T], *args: Any) -> T:
    """Run slow work in an executor's threads; in one of a single thread in order of submission."""
    return await asyncio.get_running_loop().run_in_executor(executor, work, *args)


async def bounded(read: Awaitable[Any], timeout_s: float) -> Any:
    """Wait for a read; on TimeoutError it goes on by itself.

    It is not cancelled: a cancelled call can leave its answer to the connection's next user.
    """
    task = asyncio.ensure_future(read)
    done, _ = await asyncio.wait([task], timeout=timeout_s)
    if not done:
        task.add_done_callback(forget)
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    return task.result()


def forget(task: asyncio.Future[Any]) -> None:
    """Retrieve the exception of an abandoned task, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()
