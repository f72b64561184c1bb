"""What a series keeps on the host beside its filter."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model_core.readout import Readout
from model_core.stream.events import Event, Track
from model_core.stream.rows import Retained
from model_core.stream.state import SeasonPeriods, StatedMoments

Floats = NDArray[np.float64]
EVENTS = 1000  # last events of a series that are kept


class Rules(NamedTuple):
    """Settings of the pipeline, defaults filled in.

    hazard: (H,) by run length. threshold: of `changed_probability`, at which a change is confirmed;
    0: it is confirmed after `confirm_after` observations. stated: location and scale.
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
    stated: StatedMoments = StatedMoments()


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


class SeriesState:
    """Position, events and seasons of one series, and what is retained of it."""

    def __init__(self, width: int, phase: float) -> None:
        """width: of the rows retained. phase: of the searches for seasons, in [0, 1)."""
        self.phase = phase
        self.seq = 0
        self.row = -1  # of its filter in the slab; -1: location and scale are not known yet
        self.location: list[float] | None = None
        self.scale: list[float] | None = None
        self.track = Track()
        self.events: dict[int, Event] = {}  # changes, by id
        self.anomalies: dict[int, Event] = {}  # likewise, by position
        self.last_anomaly: int | None = None
        self.best_start = 0  # of the last regime on the best path
        self.map_run_length: int | None = None
        self.changed_probability: float | None = None
        self.threshold: float | None = None  # calibrated on its own labels; None: that of the rules
        self.season: SeasonPeriods | None = None
        self.season_state: Floats | None = None  # of `model_core.stream.season`
        self.retained = Retained(width)

    @property
    def warm(self) -> bool:
        """Whether location and scale are known, and the filter runs."""
        return self.row >= 0

    @property
    def periods(self) -> tuple[int, ...]:
        """Of its seasons, in observations."""
        return () if self.season is None else tuple(self.season.periods)

    NUMBERS = (
        "phase", "seq", "location", "scale", "last_anomaly", "best_start",
        "map_run_length", "changed_probability", "threshold",
    )  # fmt: skip

    def numbers(self) -> dict[str, Any]:
        """All but arrays, as JSON has it; see `restore`."""
        return {
            **{name: getattr(self, name) for name in self.NUMBERS},
            "warm": self.warm,
            "first": self.retained.first,
            "season": self.season,
            "track": list(self.track),
            "events": list(self.events.values()),
            "anomalies": list(self.anomalies.values()),
        }

    def restore(self, numbers: dict[str, Any]) -> None:
        """Take over what `numbers` gave; raises KeyError, TypeError or ValueError."""
        for name in self.NUMBERS:
            setattr(self, name, numbers[name])
        self.season = None if numbers["season"] is None else SeasonPeriods(*numbers["season"])
        track = dict(zip(Track._fields, numbers["track"], strict=True))
        events = {name: _event(track[name]) for name in ("event", "last_event")}
        self.track = Track(**{**track, **events})
        self.events = {fields[0]: Event(*fields) for fields in numbers["events"]}
        self.anomalies = {fields[0]: Event(*fields) for fields in numbers["anomalies"]}

    def take_back(
        self, seq: int, season: SeasonPeriods | None, season_state: Floats | None
    ) -> None:
        """Be before observation `seq` of the warm-up again, which had this season."""
        self.seq = seq
        self.row = -1
        self.season = season
        self.season_state = season_state
        self.track = Track()
        self.events.clear()
        self.retained.pop()

    def keep(self, event: Event) -> bool:
        """Keep an event as it is now, and forget the oldest beyond `EVENTS`.

        Returns whether a change is confirmed for the first time: one that is relocated to a start
        after it was confirmed is another one.
        """
        kept = self.events if event.kind == "change" else self.anomalies
        before = kept.get(event.id)
        kept[event.id] = event
        if len(kept) > EVENTS:
            del kept[next(iter(kept))]
        was_confirmed = before is not None and before.confirmed_at is not None
        later = before is not None and event.start > (before.confirmed_at or 0)
        return event.state == "confirmed" and (not was_confirmed or later)


def _event(fields: list[Any] | None) -> Event | None:
    return None if fields is None else Event(*fields)
