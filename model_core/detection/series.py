"""What a series keeps on the host beside its filter."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model_core.events import Event, Track
from model_core.readout import Readout

Floats = NDArray[np.float64]
EVENTS = 1000  # last events of a series that are kept


class Rules(NamedTuple):
    """Settings of the pipeline, defaults filled in.

    hazard: (H,) by run length. threshold: of `changed_probability`, at which a change is confirmed;
    0: it is confirmed after `confirm_after` observations. location, scale: None: from the warm-up.
    history: observations retained. anomaly_alarm, seasonal: as of `Defaults`.
    """

    hazard: Floats
    outlier_rate: float
    max_hypotheses: int
    threshold: float
    confirm_after: int
    warmup: int
    history: int
    anomaly_alarm: float | None
    seasonal: bool | None
    location: list[float] | None = None
    scale: list[float] | None = None


class Observation(NamedTuple):
    """One observation: label (d,), nan where missing, input, and time since the one before."""

    y: tuple[float, ...]
    x: tuple[float, ...] = ()
    elapsed: float = 1.0
    changepoint: float = math.nan  # supervision; nan: none


class Moved(NamedTuple):
    """A changepoint event that changed at `seq`; new: it is confirmed for the first time."""

    seq: int
    event: Event
    new: bool


class Taken(NamedTuple):
    """What one observation gave.

    readout: None while warming up. numbers: of its predictive's `Summary`, in units of the labels;
    empty: none. log_score, anomaly: nan without a label. moved: changepoint events that changed: of
    the warm-up's last observation those of all of it. event: the last of them, after the warm-up
    the one that is left. alarm: the anomaly event that it raised. periods: of the seasons that are
    known after it.
    """

    seq: int
    readout: Readout | None
    numbers: Floats
    log_score: float
    anomaly: float
    moved: tuple[Moved, ...] = ()
    event: Event | None = None
    alarm: Event | None = None
    periods: tuple[int, ...] = ()


class Columns(NamedTuple):
    """Places of numbers in a row of what is retained: first those of what a rerun needs."""

    y: slice
    x: slice
    answer: slice  # mean, then the lowest and the highest quantile (d each); of classes nothing
    width: int


ELAPSED, CHANGEPOINT, OFFSET, PREVIOUS, CHANGED, ANOMALY = range(6)


def columns(y_dim: int, x_dim: int, answers: bool) -> Columns:
    """Places for labels of `y_dim` and inputs of `x_dim` numbers; answers: kept for pictures."""
    y = slice(ANOMALY + 1, ANOMALY + 1 + y_dim)
    x = slice(y.stop, y.stop + x_dim)
    answer = slice(x.stop, x.stop + (3 * y_dim if answers else 0))
    return Columns(y, x, answer, answer.stop)


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
            self._rows, self._start, self._end = room, 0, count
        self._rows[self._end] = row
        self._end += 1

    def fill(self, rows: Floats, first: int) -> None:
        """Hold these rows, the first of which is at position `first`."""
        self._rows, self.first = np.array(rows), first
        self._start, self._end = 0, len(rows)

    def trim(self, most: int) -> None:
        """Forget the oldest beyond `most`."""
        gone = max(0, len(self) - most)
        self._start += gone
        self.first += gone

    def last(self, count: int) -> Floats:
        """The last rows, `count` at most; a view."""
        return self.rows[max(0, len(self) - count) :]

    def at(self, seq: int) -> Floats | None:
        """Row of a position, a view; None where it is not retained."""
        index = seq - self.first
        return self.rows[index] if 0 <= index < len(self) else None

    def previous(self, seq: int) -> int | None:
        """Where the best path before a regime that starts at `seq` starts; None: not retained."""
        row = self.at(seq)
        return None if row is None else int(row[PREVIOUS])


class Series:
    """Position, events and seasons of one series, and what is retained of it."""

    def __init__(self, width: int, name: str) -> None:
        """width: of the rows retained. name: decides on when seasons are looked for."""
        self.name = name
        self.seq = 0
        self.warm = False  # location and scale are known; the filter runs
        self.location: list[float] = []
        self.scale: list[float] = []
        self.track = Track()
        self.events: dict[int, Event] = {}  # changes, by id
        self.anomalies: dict[int, Event] = {}  # likewise, by position
        self.last_anomaly: int | None = None
        self.best_start = 0  # of the last regime on the best path
        self.changed_probability = math.nan
        self.season: Floats | None = None
        self.season_since = 0  # position that the filter last began anew at
        self.retained = Retained(width)

    NUMBERS = (
        "name", "seq", "warm", "location", "scale", "last_anomaly", "best_start",
        "changed_probability", "season_since",
    )  # fmt: skip

    def numbers(self) -> dict[str, Any]:
        """All but arrays, as JSON has it; see `restore`."""
        return {
            **{name: getattr(self, name) for name in self.NUMBERS},
            "first": self.retained.first,
            "track": list(self.track),
            "events": list(self.events.values()),
            "anomalies": list(self.anomalies.values()),
        }

    def restore(self, numbers: dict[str, Any]) -> None:
        """Take over what `numbers` gave; raises KeyError, TypeError or ValueError."""
        for name in self.NUMBERS:
            setattr(self, name, numbers[name])
        *totals, event, last, following = numbers["track"]
        self.track = Track(*totals, _event(event), _event(last), following)
        self.events = {each[0]: Event(*each) for each in numbers["events"]}
        self.anomalies = {each[0]: Event(*each) for each in numbers["anomalies"]}

    def keep(self, event: Event) -> bool:
        """Keep an event as it is now, and forget the oldest beyond `EVENTS`.

        Returns whether it is confirmed for the first time.
        """
        kept = self.events if event.kind == "change" else self.anomalies
        before = kept.get(event.id)
        kept[event.id] = event
        if len(kept) > EVENTS:
            del kept[next(iter(kept))]
        return event.state == "confirmed" and (before is None or before.state != "confirmed")


def _event(fields: list[Any] | None) -> Event | None:
    return None if fields is None else Event(*fields)
