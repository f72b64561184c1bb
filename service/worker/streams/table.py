"""Streams at rest: what an ordinary observation moves, and what it is checked by, as columns.

A stream falls asleep when its next observations are expected to do no more than move these numbers;
it has a row here then. It wakes when anything else touches its head: see `Stream.head`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from model_core.stream_settings import Hazard
from service.wire.positions import POSITION

FEWEST_ROWS = 64  # room for so many at first
ROW = np.dtype(
    [
        ("position", POSITION),
        ("until", "<i8"),  # position of the first observation that has to be looked at
        ("due", "<i8"),  # position at which a commit writes more than position and tail
        ("settled", "<i8"),  # this and the next two: as of `Watch`
        ("since", "<i8"),
        ("threshold", "<f8"),
        ("suspected", "<i8"),  # start of the event under suspicion; -1: none
        ("hazard", "<f8"),  # nan: it is no number; see `Table.hazards`
        ("outlier_rate", "<f8"),
        ("alarm", "<f8"),  # least anomaly of an alarm; inf: none is one
        ("own_rule", "?"),  # as of `Head`
        ("ttl", "<f8"),  # as of `StreamSettings`; nan: none
        ("stale", "?"),  # its alarm period is of a setting that is no more
        ("position_place", "<u4"),  # of checksums: of its position, and of its tail
        ("tail_place", "<u4"),
    ]
)


class Table:
    """The streams of a worker that are asleep, a row each."""

    def __init__(self, checkpoint_every: int) -> None:
        """Hold no stream; checkpoint_every: observations between checkpoints of a stream."""
        self.checkpoint_every = checkpoint_every
        self.rows = np.zeros(FEWEST_ROWS, ROW)
        self.hazards: dict[int, Hazard] = {}  # those that are tables, by row
        self._free = list(range(FEWEST_ROWS))

    def add(self, values: tuple[Any, ...], hazard: Hazard | None) -> int:
        """Give a stream a row of these values of `ROW`; returns its place."""
        if not self._free:
            held = len(self.rows)
            self.rows = np.concatenate((self.rows, np.zeros(held, ROW)))
            self._free += range(held, 2 * held)
        at = self._free.pop()
        self.rows[at] = values
        if hazard is not None and not isinstance(hazard, float):
            self.hazards[at] = hazard
        return at

    def remove(self, at: int) -> None:
        """Forget a row."""
        self._free.append(at)
        self.hazards.pop(at, None)
