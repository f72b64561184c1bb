"""What a series keeps of its belief, events and seasons from one observation to the next.

A `Detector` has it in the state of its series, the service in the head of its stream: functions
in the modules beside this one take either.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from model_core.stream.events import Track


class SeasonPeriods(NamedTuple):
    """Season of a series: periods in observations, none once it was given up.

    since: position that the filter last began anew at, because one was found or given up.
    """

    periods: list[int]
    since: int


class TypicalRegime(NamedTuple):
    """The most probable typical regime that the current regime is one of."""

    name: str
    probability: float


class StatedMoments(NamedTuple):
    """Location and scale by the settings of a series; None: from its first labels."""

    location: list[float] | None = None
    scale: list[float] | None = None


class State(Protocol):
    """Position and belief of a series, in numbers, and its events."""

    seq: int  # observations so far
    location: list[float] | None
    scale: list[float] | None
    track: Track
    best_start: int  # of the last regime on the best (max-product) path
    map_run_length: int | None
    changed_probability: float | None
    last_anomaly: int | None  # position of the last anomaly event
    season: SeasonPeriods | None  # None: no season was found so far
