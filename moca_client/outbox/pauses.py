"""When an outbox tries again: all of it, or one stream."""

from __future__ import annotations

import random
import time

from moca_client.errors import Problem
from moca_client.retry import FIRST_PAUSE_S, LONGEST_PAUSE_S


class Pauses:
    """Growing pauses with jitter; `""` stands for the whole service."""

    def __init__(self) -> None:
        self._pause_s: dict[str, float] = {}
        self._until: dict[str, float] = {}

    def fail(self, stream: str, problem: Problem | None) -> None:
        """Wait longer than the last time before this stream is tried again."""
        pause_s = self._pause_s.get(stream, FIRST_PAUSE_S)
        self._pause_s[stream] = min(2 * pause_s, LONGEST_PAUSE_S)
        wait_s = pause_s * random.uniform(0.8, 1.2)
        if problem is not None and problem.retry_after_s is not None:
            wait_s = max(wait_s, problem.retry_after_s)
        self._until[stream] = time.monotonic() + wait_s

    def work(self, stream: str) -> None:
        """Begin with short pauses again."""
        self._pause_s.pop(stream, None)
        self._until.pop(stream, None)

    def blocked(self) -> list[str]:
        """Return the streams that are not to be tried now."""
        now = time.monotonic()
        return [stream for stream, until in self._until.items() if stream and until > now]

    def all_s(self) -> float:
        """Return the seconds for which nothing at all is to be tried."""
        return max(0.0, self._until.get("", 0.0) - time.monotonic())

    def next_s(self) -> float | None:
        """Return the seconds until the first stream may be tried again; None: none is blocked."""
        now = time.monotonic()
        left = [until - now for stream, until in self._until.items() if stream and until > now]
        return min(left, default=None)
