"""A series as its filters see it whose seasons are taken from it: in stretches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from model_core import season
from model_core.readout import Readout

Floats = NDArray[np.float64]
QUANTILES = 4  # first column of a summary that is one; mean, variance and two probabilities precede


class Stretch(NamedTuple):
    """Observations between two changes of what is known of the seasons.

    first: position of the first of them. past: (N,) last labels before it less their season, which
    a filter begins with. labels, offsets: (T,) labels less their season, and the season.
    """

    first: int
    past: Floats
    labels: Floats
    offsets: Floats

    @property
    def base(self) -> int:
        """Position of the filter's first observation."""
        return self.first - len(self.past)

    def answered(self, summary: Floats, index: int) -> Floats:
        """Numbers of a summary of a label less its season, as those of the label."""
        if len(summary) == 0:
            return summary
        summary = summary.copy()
        summary[0] += self.offsets[index]
        summary[QUANTILES:] += self.offsets[index]
        return summary


class Search(NamedTuple):
    """How a stream looks for seasons by default.

    phase: as of `season.next_search`; streams have one by their names. warmup: observations of the
    warm-up, in which none are looked for. history: observations retained, hence searched.
    """

    phase: float = 0.0
    warmup: int = 0
    history: int = season.CAPACITY


def stretches(y: Floats, search: Search | None = None) -> list[Stretch]:
    """Stretches of a series (T,), nan where missing; without a search seasons are always sought."""
    state = season.blank() if search is None else None
    due = 0 if search is None else season.next_search(search.warmup, search.phase)
    offsets = np.zeros(len(y))
    first, past = 0, np.empty(0)
    result = []
    for t, label in enumerate(y.tolist()):
        end = t + 1
        moved = False
        if state is not None:
            offsets[t] = season.offset(state)
            moved = season.observe(state, label)
        elif search is not None and end == due:
            state = season.searched(y[max(0, end - search.history) : end])
            moved = state is not None
            due = season.next_search(end, search.phase)
        if moved or end == len(y):
            part = offsets[first:end]
            result.append(Stretch(first, past, y[first:end] - part, part))
            first = end
            past = np.empty(0) if state is None else season.recent(state, season.REPLAYED)
    return result


def moved(readout: Readout, base: int, joined: int) -> Readout:
    """Positions of a filter that began at `base`, as those of the series.

    joined: start of the regime that the filter before it believed in then, which goes on.
    """

    def start(position: int) -> int:
        return position + base if position > 0 else joined

    return readout._replace(
        born_previous_start=start(readout.born_previous_start),
        event_previous_start=start(readout.event_previous_start),
        best_start=start(readout.best_start),
    )
