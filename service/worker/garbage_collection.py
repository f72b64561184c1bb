"""Garbage collection of a worker: full collections go through new objects, not all streams.

A full collection visits every container there is: with 100,000 streams it stops the worker for
hundreds of milliseconds. What outlives a look at the garbage is therefore frozen, and visited no
more. It still ends with its last reference, as nearly all of a worker's objects do; cycles among
what was frozen wait for a thaw, in an idle moment.
"""

from __future__ import annotations

import gc
import time

# New containers until the youngest are collected: more than a batch makes, so that a collection
# seldom meets what is needed until its end.
YOUNG = 10_000
DUE = 3  # collections of the youngest after which the rest is frozen: some 10 ms of work
# Least time between full collections of everything. With 100,000 streams one takes most of a
# second, and few objects wait for it.
THAW_S = 86_400.0


class Collector:
    """Takes the collector of this process over."""

    def __init__(self) -> None:
        """Freeze all there is: what torch and others loaded is permanent."""
        gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
        self._thawed = time.monotonic()
        self.tend()

    @property
    def due(self) -> bool:
        """Whether so much is new that the next look at it should not wait."""
        _, young, old = gc.get_count()
        return young >= DUE or old > 0

    def tend(self) -> None:
        """Collect what came since the last time, and freeze the rest of it."""
        gc.collect()
        gc.freeze()

    def rest(self) -> None:
        """Nothing waits for this process: collect everything, if that was long ago."""
        if time.monotonic() - self._thawed >= THAW_S:
            gc.unfreeze()
            self.tend()
            self._thawed = time.monotonic()
