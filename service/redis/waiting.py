"""Waiting for a store that is still starting, as where all containers are started at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

import redis

START_WAIT_S = 30.0
START_PAUSE_S = 0.25

T = TypeVar("T")
log = logging.getLogger(__name__)


def patiently(ask: Callable[[], T], longest_s: float = START_WAIT_S) -> T:
    """Return what `ask` returns, asking again while the store does not answer.

    After `longest_s` seconds its RedisError is raised. What stands in the way is logged once.
    """
    give_up = time.monotonic() + longest_s
    said = ""
    while True:
        try:
            return ask()
        except redis.RedisError as error:
            if time.monotonic() > give_up:
                raise
            if str(error) != said:
                log.warning("waiting for the store: %s", error)
            said = str(error)
            time.sleep(START_PAUSE_S)
