"""A series as the pipeline moves it, and what one observation of it gives."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from model_core.readout import Readout
from model_core.stream.beliefs import Probabilities
from model_core.stream.columns import Floats
from model_core.stream.events import Event, Track, Watch
from model_core.stream.slab import Slab, Step
from model_core.stream.state import SeasonPeriods
from model_core.stream_settings import StreamSettings

NOTHING = np.empty(0)


class State(Protocol):
    """Settings, position, belief and events of a series, in numbers.

    A `Detector` has them in the memory of its series, the service in the head of its stream.
    """

    settings: StreamSettings
    seq: int  # observations so far
    location: list[float] | None
    scale: list[float] | None
    resolution: list[float] | None  # of labels, see `resolution`; None: they are fine
    track: Track
    best_start: int  # of the last regime on the best (max-product) path
    map_run_length: int | None
    changed_probability: float | None
    evidence: float | None
    last_anomaly: int | None  # position of the last anomaly event
    season: SeasonPeriods | None  # None: no season was found so far

    @property
    def watch(self) -> Watch:
        """What the next step is to be read for."""

    def read(self, line: Readout) -> None:
        """Enter what a step reads off the belief."""


class Series(Protocol):
    """Numbers of a series, and where its filter is."""

    slab: Slab | None  # None while location and scale are not known
    row: int
    season_state: Floats | None  # of `season`; None: no season is looked for, or found so far
    search_phase: float  # of its searches for seasons, in [0, 1)
    next_look: int  # observations before which neither season nor scale is looked at

    @property
    def seq(self) -> int:
        """Observations so far."""

    @property
    def settings(self) -> StreamSettings:
        """Those of its state."""

    @property
    def units(self) -> tuple[list[float] | None, list[float] | None, list[float] | None]:
        """Location, scale and resolution of its state, which no ordinary observation moves."""

    @property
    def state(self) -> State:
        """Its numbers and events."""


class Moved(NamedTuple):
    """A changepoint event that changed at `seq`; new: it is confirmed for the first time."""

    seq: int
    event: Event
    new: bool


@dataclass(slots=True)
class Taken:
    """What one observation gave.

    step: in the warm-up a forecast, None of the first labels. offset: season of the label, empty
    where there is none. warm: whether it went through the filter. moved: changepoint events that
    changed: of the warm-up's last observation those of all of it. event: the last of them that is
    news, after the warm-up the one that is left. alarm: the anomaly event that it raised. season:
    as it is known after it. belief: after it, where that is wanted.
    """

    seq: int
    step: Step | None = None
    offset: list[float] = field(default_factory=list)
    warm: bool = False
    moved: list[Moved] = field(default_factory=list)
    event: Event | None = None
    alarm: Event | None = None
    season: SeasonPeriods | None = None
    belief: Probabilities | None = None

    @property
    def readout(self) -> Readout | None:
        """None while warming up."""
        return self.step.readout if self.warm and self.step is not None else None

    @property
    def numbers(self) -> Floats:
        """Of the `Summary` of its predictive, in units of the labels; empty: there is none."""
        if self.step is None or self.step.predictive is None:
            return NOTHING
        return self.step.predictive.numbers(self.offset)

    @property
    def log_score(self) -> float:
        """Of the label; nan without one."""
        return math.nan if self.step is None else self.step.readout.log_score

    @property
    def anomaly(self) -> float:
        """Nan without a label, and while warming up."""
        return self.step.anomaly if self.warm and self.step is not None else math.nan
