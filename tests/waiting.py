"""Waits of tests: for a condition, never for a time, and all with one patience."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

# No test measures time by it: it is longer than any machine is busy, and only a defect reaches it.
PATIENCE_S = 120.0
STEP_S = 0.01


def patient(url: str) -> str:
    """Address of a store, at which clients wait long enough for what a busy machine answers."""
    return f"{url}{'&' if '?' in url else '?'}socket_timeout={PATIENCE_S:g}"


def until(check: Callable[[], T], why: Callable[[], object] = str) -> T:
    """Return the first true value of `check`; `why` is asked for a message when patience ends."""
    end = time.monotonic() + PATIENCE_S
    while not (value := check()):
        assert time.monotonic() < end, f"waited {PATIENCE_S:g} s in vain: {why()}"
        time.sleep(STEP_S)
    return value


async def until_async(check: Callable[[], T], why: Callable[[], object] = str) -> T:
    """Return the first true value of `check`, while tasks of this loop go on."""
    end = time.monotonic() + PATIENCE_S
    while not (value := check()):
        assert time.monotonic() < end, f"waited {PATIENCE_S:g} s in vain: {why()}"
        await asyncio.sleep(STEP_S)
    return value


def barring(error: type[Exception], check: Callable[[], T]) -> Callable[[], T | bool]:
    """A check that is false while it raises an error."""

    def attempt() -> T | bool:
        try:
            return check()
        except error:
            return False

    return attempt


def go_first(thread_id: int = 0) -> None:
    """Have a thread, or this one, go before all others, where that is permitted.

    What it measures then is not that it waits for a core itself. A nice value would not do: where
    sessions are scheduled as groups, it counts within its own session only.
    """
    with suppress(PermissionError, AttributeError):
        policy = os.SCHED_RR | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(thread_id, policy, os.sched_param(1))


def ended(pid: int) -> bool:
    """Whether a process has ended, even if its parent has not waited for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


class Clock:
    """A clock that moves when told to, in place of `time.monotonic` or `time.time`."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
