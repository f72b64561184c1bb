"""Streams at rest: what an ordinary observation moves, and what it is checked by, as columns.

A stream falls asleep when its next observations are expected to do no more than move these numbers;
it has a row here then. It wakes when anything else touches its head: see `Stream.head`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from model_core.stream_settings import Hazard
from service.wire.records import POSITION

FEWEST_ROWS = 64  # room for so many at first
ROW = np.dtype(
    [
        ("position", POSITION),
        ("until", "<i8"),  # position of the first observation that has to be looked at
        ("due", "<i8"),  # position at which a commit writes more than position and tail
        ("outlier_rate", "<f8"),
        ("settled", "<f8"),  # this and the next two: as of `Watch`
        ("since", "<f8"),
        ("threshold", "<f8"),
        ("suspected", "<i8"),  # start of the event under suspicion; -1: none
        ("hazard", "<f8"),  # nan: it is no number; see `Table.hazards`
        ("alarm", "<f8"),  # least anomaly of an alarm; inf: none is one
        ("interval", "<f8"),  # as of `StreamSettings`; nan: times do not count
        ("seasonal", "?"),  # whether seasons are looked for in each label, or were found
        ("own_rule", "?"),  # as of `Head`
        ("ttl", "<f8"),  # as of `StreamSettings`; nan: none
        ("stale", "?"),  # its alarm period is of a setting that is no more
        ("checkpoint", "<i8"),  # seq of the last one, and when it was made, else the stream
        ("checkpoint_ms", "<i8"),
        (
            "slept_bytes",
            "<i8",
        ),  # of rows of the tail, and keyed outcomes, since it was last counted
        ("position_place", "<u4"),  # of checksums: of its position, and of its tail
        ("tail_place", "<u4"),
    ]
)


def _places(first: str, of: np.dtype[Any] = ROW) -> int:
    """Where a field begins."""
    assert of.fields is not None
    return int(of.fields[first][1])


# The same rows, of which fields that lie together are read and written together.
GROUPS = np.dtype(
    {
        "names": ["counts", "lengths", "read", "sums", "rates"],
        "formats": [("<u4", 2), ("<u4", 2), ("<f8", 3), ("<f8", 2), ("<f8", 4)],
        "offsets": [
            _places("seq", POSITION),  # and scored
            _places("map_run_length", POSITION),  # and best_start
            _places("changed_probability", POSITION),  # evidence, pruned_mass
            _places("log_score_sum", POSITION),  # and pruned_mass_sum
            _places("outlier_rate"),  # and numbers of `Watch`
        ],
        "itemsize": ROW.itemsize,
    }
)


class Sleeper(Protocol):
    """A stream that may be asleep."""

    at: int  # its row; -1: it is awake


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

    def of(self, places: Sequence[int] | NDArray[np.int64]) -> NDArray[Any]:
        """Copies (B,) of rows: an index takes three times as long, field by field."""
        return self.rows.take(np.asarray(places, dtype=np.int64))

    def remove(self, at: int) -> None:
        """Forget a row."""
        self.rows[at] = np.zeros((), ROW)
        self._free.append(at)
        self.hazards.pop(at, None)

    def trim(self, streams: Iterable[Sleeper]) -> None:
        """Give back memory where at most a quarter of the rows is used.

        As many as are used are free then: it takes as many removals until the next time. streams:
        all that are asleep are among them; their rows move together.
        """
        used = len(self.rows) - len(self._free)
        held = max(FEWEST_ROWS, 2 * used)
        if 4 * used > len(self.rows) or held >= len(self.rows):
            return
        asleep = [stream for stream in streams if stream.at >= 0]
        assert len(asleep) == used, f"{len(asleep)} streams sleep in {used} rows"
        places = [stream.at for stream in asleep]
        self.rows = np.concatenate((self.of(places), np.zeros(held - used, ROW)))
        self._free = list(range(used, held))
        self.hazards = {i: self.hazards[at] for i, at in enumerate(places) if at in self.hazards}
        for at, stream in enumerate(asleep):
            stream.at = at

    @property
    def slept_bytes(self) -> int:
        """Bytes on the host that no ledger has counted yet."""
        return int(self.rows["slept_bytes"].sum())

    @property
    def behind(self) -> int:
        """Largest number of observations since a stream's last checkpoint."""
        return int(self._behind().max())

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest checkpoint was made of a stream that was observed since."""
        made_ms = self.rows["checkpoint_ms"][self._behind() > 0]
        return int(made_ms.min()) if len(made_ms) else None

    def _behind(self) -> NDArray[np.int64]:
        return np.asarray(self.rows["position"]["seq"] - self.rows["checkpoint"])
