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


class RecalledRegime(NamedTuple):
    """A stored regime: its id, how probable it is, and how often and when it was seen before.

    last_seen: position of the last observation in it, as of the last confirmed change.
    """

    id: int
    probability: float
    seen: int
    last_seen: int


class StatedMoments(NamedTuple):
    """Location and scale by the settings of a series; None: from its first labels."""

    location: list[float] | None = None
    scale: list[float] | None = None
