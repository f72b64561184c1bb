"""Parts of the state of a series."""

from __future__ import annotations

from typing import NamedTuple


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
