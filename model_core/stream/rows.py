"""Observations as rows of numbers: as they are retained, and as a filter takes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from model_core import summary
from model_core.stream.columns import Columns, of_all
from model_core.upm.base import UnderlyingModel

Floats = NDArray[np.float64]
# Places in a retained row; the label, its season, the input and the answer follow.
ELAPSED, CHANGEPOINT, PREVIOUS, EVIDENCE, ANOMALY, TIME, LABEL = range(7)


class Observation(NamedTuple):
    """One observation: label (d,), nan where missing, input, and time since the one before.

    time: when it was made, in seconds since 1970; nan: not known.
    """

    y: tuple[float, ...]
    x: tuple[float, ...] = ()
    elapsed: float = 1.0
    changepoint: float = math.nan  # supervision; nan: none
    time: float = math.nan


class RowLayout:
    """Places of numbers in the rows of one model's observations.

    `y`, `offset`, `x`, `answer`: slices of the label, its season, the input, and of median (of
    zeros and ones the probability), lowest and highest quantile (d each), which are kept for
    pictures alone.
    """

    def __init__(self, model: UnderlyingModel, answers: Sequence[float] = ()) -> None:
        """answers: levels of quantiles, the median among them, where these are kept."""
        self.model = model
        self._levels = [*answers]
        self._no_season = (0.0,) * model.y_dim
        self.y = slice(LABEL, LABEL + model.y_dim)
        self.offset = slice(self.y.stop, self.y.stop + model.y_dim)
        self.x = slice(self.offset.stop, self.offset.stop + model.x_dim)
        self.answer = slice(self.x.stop, self.x.stop + (3 * model.y_dim if answers else 0))
        self.width = self.answer.stop

    def row(self, seen: Observation, offset: Sequence[float], numbers: Floats) -> Floats:
        """Row of an observation; offset: its season. numbers: of its predictive's `Summary`."""
        row = np.full(self.width, math.nan)
        row[ELAPSED] = seen.elapsed
        row[CHANGEPOINT] = seen.changepoint
        row[PREVIOUS] = -1
        row[TIME] = seen.time
        row[LABEL : self.offset.stop] = (*seen.y, *(offset or self._no_season))  # half the time
        row[self.x] = seen.x or 0.0
        if self._levels and len(numbers) and self.model.label != "class":
            predicted = summary.Summary(numbers[None], self.model.y_dim, self.model.label)
            shown = [predicted.mean[0]]
            if self.model.label != "binary":
                quantiles = predicted.quantiles[0]
                shown = [quantiles[self._levels.index(0.5)], quantiles[0], quantiles[-1]]
            row[self.answer][: len(shown) * self.model.y_dim] = np.concatenate(shown)
        return row

    def columns(self, rows: Floats, hazard: Floats, outlier_rate: float) -> Columns:
        """Rows as a filter takes them; hazard: (H,) by run length."""
        count = len(rows)
        return Columns(
            y=rows[:, self.y],
            x=rows[:, self.x],
            elapsed=rows[:, ELAPSED],
            changepoint=rows[:, CHANGEPOINT],
            outlier_rate=np.full(count, outlier_rate),
            hazard=of_all(hazard, count),
            offset=rows[:, self.offset].copy(),
        )


def written(time: float) -> str | None:
    """Write a time in seconds since 1970 as RFC 3339 has it; None: not known."""
    if math.isnan(time):
        return None
    return datetime.fromtimestamp(time, UTC).isoformat().replace("+00:00", "Z")


def times_of(rows: Floats) -> list[str | None]:
    """Return when the observations of rows were made; empty where no time is known."""
    times = rows[:, TIME]
    return [] if np.isnan(times).all() else list(map(written, times.tolist()))


class Retained:
    """The last observations of a series, a row of numbers each, by position."""

    def __init__(self, width: int) -> None:
        self._rows = np.empty((16, width))
        self._start = self._end = 0  # of the rows in use
        self.first = 0  # position of the first of them

    def __len__(self) -> int:
        return self._end - self._start

    @property
    def rows(self) -> Floats:
        """All of them (n, width), oldest first; a view."""
        return self._rows[self._start : self._end]

    def append(self, row: Floats) -> None:
        """Add an observation."""
        if self._end == len(self._rows):
            count = len(self)
            room = self._rows
            if 2 * count > len(room):
                room = np.empty((2 * len(room), room.shape[1]))
            room[:count] = self.rows
            self._rows = room
            self._start = 0
            self._end = count
        self._rows[self._end] = row
        self._end += 1

    def fill(self, rows: Floats, first: int) -> None:
        """Hold these rows, the first of which is at position `first`."""
        self._rows = np.empty((max(16, 2 * len(rows)), rows.shape[1]))
        self._rows[: len(rows)] = rows
        self._start = 0
        self._end = len(rows)
        self.first = first

    def trim(self, most: int) -> None:
        """Forget the oldest beyond `most`."""
        gone = max(0, len(self) - most)
        self._start += gone
        self.first += gone

    def pop(self) -> None:
        """Take the newest back."""
        self._end -= 1

    def last(self, count: int) -> Floats:
        """The last rows, `count` at most; a view."""
        return self.rows[max(0, len(self) - count) :]

    def previous(self, seq: int) -> int | None:
        """Where the best path before a regime that starts at `seq` starts; None: not retained."""
        index = seq - self.first
        return int(self.rows[index, PREVIOUS]) if 0 <= index < len(self) else None
