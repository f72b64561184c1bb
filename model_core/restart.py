"""Filters that begin anew with the last observations of their series, once its seasons changed.

Such a filter counts from its own first observation. What it finds is put into positions of the
series here, and the regime that the filter before believed in goes on where the new one begins.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from model_core import belief as beliefs
from model_core.filter import FilterState
from model_core.readout import Readout


class Restarted(NamedTuple):
    """A series after its filter began anew, in positions of the series.

    start: of the regime that counts as confirmed; totals: of the labels before it. best_start: most
    probable start of the current regime. changed_probability: that one began after `start`.
    """

    state: FilterState
    start: int
    totals: list[float]
    best_start: int
    changed_probability: float


def restarted(
    state: FilterState, last: Readout, base: int, joined: int, confirmed_start: int
) -> Restarted:
    """Continue a series with the filter that began at its position `base`.

    state: of that filter (batch 1), after all observations of the series; last: its readout.
    joined: start of the regime that goes on at `base`. confirmed_start: of the last confirmed
    event.
    """
    state = _moved(state, base, joined)
    newest = int(state.seq[0]) - 1
    start = max(confirmed_start, newest - last.event_run_length)
    since = torch.tensor([newest - start], device=state.belief.run_length.device)
    changed = float(beliefs.mass_below(state.belief, since))
    return Restarted(
        state, start, last.start_totals, position(last.best_start, base, joined), changed
    )


def position(position: int, base: int, joined: int) -> int:
    """Position in a series of a start in a filter that began at `base` of it.

    joined: start of the regime that goes on there.
    """
    return position + base if position > 0 else joined


def _moved(state: FilterState, base: int, joined: int) -> FilterState:
    """State of a filter that began at `base` of a series, in positions of the series."""
    belief = state.belief
    length = belief.run_length
    previous = belief.previous_start
    eldest = state.seq.unsqueeze(-1) - 1
    length = torch.where(length == eldest, length + base - joined, length)
    there = torch.where(previous == 0, joined, previous + base)
    previous = torch.where(previous < 0, previous, there)
    belief = belief._replace(run_length=length, previous_start=previous)
    return state._replace(belief=belief, seq=state.seq + base)
