"""Parts of the state of a series."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class SeenLabels(NamedTuple):
    """Labels of observations, one after the other.

    y: (N, d), nan where missing. offset: (N, d) seasons, which the filter's labels are less of.
    moment: of an observation by its number: when it was made, or without such a time when it was
    accepted, in ms since 1970.
    """

    y: NDArray[np.float64]
    offset: NDArray[np.float64]
    moment: Callable[[int], tuple[str | None, int | None]]

    @property
    def filtered(self) -> NDArray[np.float64]:
        """Labels (N, d) less their seasons."""
        return self.y - self.offset


def seasons_of(seasons: Sequence[Sequence[float]], outputs: int) -> NDArray[np.float64]:
    """Seasons (B, d) of labels, each of which is empty where there is none."""
    if seasons and all(seasons):  # half the time
        return np.array(seasons, dtype=np.float64)
    table = np.zeros((len(seasons), outputs))
    for row, season in enumerate(seasons):
        if season:
            table[row] = season
    return table


def kept_season(season: list[float]) -> list[float]:
    """A season as it is kept: empty where it is 0 of all outputs."""
    return season if any(season) else []


class SeasonPeriods(NamedTuple):
    """Season of a series: periods in observations, none once it was given up.

    since: position that the filter last began anew at, because one was found or given up.
    """

    periods: list[int]
    since: int


class KnownRegime(NamedTuple):
    """A known regime that the stream is in, or was in: a typical one of its model, or a stored one.

    name: of a typical regime. id, seen, last_seen: of one that the stream remembers, how often it
    was seen before, and the position of the last observation in it, as of the last confirmed
    change.
    """

    name: str | None
    probability: float
    id: int | None = None
    seen: int | None = None
    last_seen: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """As the REST interface has it."""
        fields = self._asdict()
        return {k: v for k, v in fields.items() if v is not None or k in ("name", "probability")}
