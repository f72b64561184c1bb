"""Waiting for a store that is still starting, as where all containers are started at once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import redis

START_WAIT_S = 30.0
START_PAUSE_S = 0.25

T = TypeVar("T")
log = logging.getLogger(__name__)


def patiently(
    ask: Callable[[], T],
    longest_s: float = START_WAIT_S,
    stopped: threading.Event | None = None,
) -> T:
    """Return what `ask` returns, asking again while the store does not answer.

    After `longest_s` seconds, or once `stopped` is set, its RedisError is raised. What stands in
    the way is logged once. `ask` has a bound of its own, START_TIMEOUT_S of `connection`.
    """
    stopped = stopped or threading.Event()
    give_up = time.monotonic() + longest_s
    said = ""
    while True:
        try:
            return ask()
        except redis.RedisError as error:
            if stopped.is_set() or time.monotonic() > give_up:
                raise
            if str(error) != said:
                log.warning("waiting for the store: %s", error)
            said = str(error)
            stopped.wait(START_PAUSE_S)
