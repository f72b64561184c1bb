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


def stretches(y: Floats) -> list[Stretch]:
    """Stretches of a series (T,), nan where missing."""
    state = season.blank()
    offsets = np.empty(len(y))
    first, past = 0, np.empty(0)
    result = []
    for t, label in enumerate(y.tolist()):
        offsets[t] = season.offset(state)
        if season.observe(state, label) or t == len(y) - 1:
            end = t + 1
            part = offsets[first:end]
            result.append(Stretch(first, past, y[first:end] - part, part))
            first, past = end, season.recent(state, season.REPLAYED)
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
