"""Parts of the state of a series."""

from __future__ import annotations

from typing import Any, NamedTuple


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

    def plain(self) -> dict[str, Any]:
        """As the REST interface has it."""
        fields = self._asdict()
        return {k: v for k, v in fields.items() if v is not None or k in ("name", "probability")}


class StatedMoments(NamedTuple):
    """Location and scale by the settings of a series; None: from its first labels."""

    location: list[float] | None = None
    scale: list[float] | None = None
