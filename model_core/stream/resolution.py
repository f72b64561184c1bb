"""Resolution of labels: in value, the step of a grid, and how it is filled; in time, repeats.

A density knows no grid and no copies: labels that happen to be the same, or are one label that was
read again, look like a regime without spread. Filters therefore see a label of a grid spread evenly
over its step, as if it had not been rounded; an output of a vector that rests, at one value nearly
all the time, spread over what its scale lets expect; and a label that a held series only repeats as
missing. What is added is no random number but the next of a sequence that fills the step evenly (of
M. Roberts, 2018), by the position of the label: the same labels always give the same numbers. See
docs/mathematics.md, section 11, for rules and reasons.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from statistics import median

import numpy as np
from numpy.typing import NDArray

from model_core.upm.base import UnderlyingModel

Floats = NDArray[np.float64]
COARSE = 0.25  # of the scale: a finer grid adds half a per cent to the variance, or less
FEWEST_VALUES = 3  # two always lie on a grid: they tell of one if each came more than once
FEWEST_HELD = 4  # different values that came again
DIFFERENT = 0.25  # of values that came again, at least
LONGEST_USUAL = 10.0  # labels of a value, of half of them: longer levels are regimes
WIDE = 4.0  # steps of a grid that held values move by, half of them
UNUSUAL = 3.0  # times the longest usual hold: a longer one is news
NEAR = 1e-6  # of a step, by which a label may be off
RESTING = 0.75  # of an output's labels that are one value: it rests with more
FILLED = 2.9  # scales, the step of one that rests: spread as a model expects it within a regime
CYCLE = 2.0**20  # positions whose squares, times a multiplier, still have digits after the point


def resolution(
    model: UnderlyingModel,
    values: Sequence[Sequence[float]] | Floats,
    scale: Sequence[float],
    most: float = 0.0,
) -> list[float] | None:
    """Step of the grid that each output's labels lie on, 0 where it is fine, or there is none.

    Of a vector's output that rests `FILLED` scales. After them `most`, see `hold`. None: all are 0.
    values: labels, nan where an output is missing, with inputs if they count. scale: of each.
    """
    if model.label != "real" or not len(values):
        return None
    columns = np.array(values).T[: model.y_dim]
    steps = [_step(column, own) for column, own in zip(columns, scale, strict=False)]
    if model.y_dim > 1:
        every = zip(steps, columns.tolist(), scale, strict=False)
        steps = [step or (FILLED * own if rests(column) else 0.0) for step, column, own in every]
    return [*steps, most] if any(steps) or most else None


def rests(column: Sequence[float]) -> bool:
    """Whether nearly all labels of an output are one value."""
    counts = Counter(number for number in column if number == number)
    return max(counts.values(), default=0) > RESTING * counts.total()


def hold(model: UnderlyingModel, labels: Floats) -> float:
    """How often a label may come again and count as missing, of a series that is held; 0: is not.

    labels: (n, d) in order, with their seasons. A gauge that is read more often than it is updated
    gives most of its values several times. Labels of a grid, and zeros, repeat as well: those that
    repeat have to be of many values, and to move by more than the step of their grid.
    """
    values, lengths = _levels(model, labels)
    # Of so many values half or more have one label.
    if len(values) <= FEWEST_HELD or 3 * len(values) >= 2 * len(labels):
        return 0.0
    if not 2.0 <= median(lengths.tolist()) <= LONGEST_USUAL:  # in a tenth of numpy's time
        return 0.0
    repeated = values[lengths > 1]
    if len(np.unique(repeated, axis=0)) < max(FEWEST_HELD, DIFFERENT * len(repeated)):
        return 0.0
    for column in values.T:
        step = np.diff(np.unique(column)).min(initial=math.inf)
        moves = np.abs(np.diff(column))
        if step < math.inf and _on_grid(column, step) and np.median(moves) < WIDE * step:
            return 0.0
    return UNUSUAL * float(np.quantile(lengths, 0.9)) - 1.0


def undecided(model: UnderlyingModel, labels: Floats) -> bool:
    """Whether labels (n, d) may be of a held series, but of too few values to say so: see `hold`.

    All of them came again, one after the other, and none later.
    """
    values, lengths = _levels(model, labels)
    if not 2 <= len(values) <= FEWEST_HELD or len(np.unique(values, axis=0)) < len(values):
        return False
    return bool(lengths.max() <= LONGEST_USUAL and lengths[:-1].min() > 1)


def _levels(model: UnderlyingModel, labels: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """Values (k, d) of labels, as they follow one another, and how many labels each has.

    None of models whose labels are not held.
    """
    if model.label != "real" or model.x_dim or not len(labels):
        return labels[:0], np.empty(0, dtype=np.int64)
    there = labels[np.isfinite(labels).all(1)]
    starts = np.empty(len(there) + 1, dtype=bool)  # the last one is the end
    starts[0] = starts[-1] = True
    starts[1:-1] = (there[1:] != there[:-1]).any(1)
    places = starts.nonzero()[0]
    return there[places[:-1]], places[1:] - places[:-1]


def repeats(labels: Floats, state: Floats, most: float) -> list[bool]:
    """Which labels (n, d) repeat the one before, as far as that counts as missing.

    state: see `held_at_start`; it moves past them. most: see `hold`.
    """
    same = []
    for label in labels.tolist():
        if any(number != number for number in label):
            same.append(False)
            continue
        if state[0] >= 0 and state[1:].tolist() == label:
            state[0] += 1.0
        else:
            state[0] = 0.0
            state[1:] = label
        same.append(0 < state[0] <= most)
    return same


def repeated(labels: Floats, most: float) -> NDArray[np.bool_]:
    """`repeats` of the first labels (n, d) of a series."""
    return np.array(repeats(labels, held_at_start(labels.shape[1]), most), dtype=bool)


def valid(held: Floats, seq: float) -> bool:
    """Whether a state of `repeats` can be one after `seq` observations, from an unknown source."""
    return bool(np.isfinite(held).all() and held[0] == int(held[0]) and -1 <= held[0] <= seq)


def held_at_start(outputs: int) -> Floats:
    """State before any label: how often the last one has come again, -1 of none, and that label."""
    state = np.zeros(1 + outputs)
    state[0] = -1.0
    return state


def renewed(
    model: UnderlyingModel, y: Floats, scale: Sequence[float], known: list[float] | None
) -> list[float] | None:
    """The known resolution while labels (n, d) are on its grids, which few of them need not show.

    Else the one that they show.
    """
    most = renewed_hold(model, y, known)
    if most:
        y = y[~repeated(y, most)]
    if known is not None and all(map(_on_grid, y.T, known[:-1])):
        steps = known[:-1]
        return [*steps, most] if any(steps) or most else None
    return resolution(model, y, scale, most)


def renewed_of(
    model: UnderlyingModel,
    values: Sequence[Sequence[float]],
    scale: Sequence[float],
    known: list[float] | None,
    chosen: Sequence[bool],
) -> list[float] | None:
    """The known resolution of a vector, but of chosen outputs what the values show."""
    before = known or [0.0] * (model.y_dim + 1)
    found = resolution(model, values, scale) or [0.0] * (model.y_dim + 1)
    steps = [new if yes else old for new, old, yes in zip(found, before, chosen, strict=False)]
    return [*steps, before[-1]] if any(steps) or before[-1] else None


def renewed_hold(model: UnderlyingModel, y: Floats, known: list[float] | None) -> float:
    """The hold of a known resolution while labels (n, d) are held like that; else theirs."""
    before = 0.0 if known is None else known[-1]
    most = hold(model, y)
    if before == 0 or before / 2 <= most <= before * 2:
        return before or most
    return before if len(np.unique(y, axis=0)) <= FEWEST_HELD else most


def _on_grid(labels: Floats, step: float) -> bool:
    there = labels[np.isfinite(labels)]
    if not step or not len(there):
        return True
    with np.errstate(over="ignore", invalid="ignore"):  # steps too many to count are on none
        steps = (there - there[0]) / step
        return bool(np.abs(steps - steps.round()).max() <= NEAR)


def _step(column: Floats, scale: float) -> float:
    ordered = np.sort(column[~np.isnan(column)])
    moves = np.diff(ordered)
    moves = moves[moves > 0.0]
    if not len(moves):
        return 0.0
    few = len(moves) < FEWEST_VALUES - 1
    if few and min((ordered == ordered[0]).sum(), (ordered == ordered[-1]).sum()) < 2:
        return 0.0
    step = float(moves.min())
    return step if step >= COARSE * scale and _on_grid(ordered, step) else 0.0


def dither(positions: Floats, outputs: int) -> Floats:
    """What is added to labels at these positions (n,), in steps: (n, outputs), in [-.5, .5)."""
    at = positions[:, None] + 1.0
    if outputs > 1:  # multiples of numbers near 1 are a slow wave, and near to each other
        at = (at % CYCLE) ** 2
    return np.modf(at * _multipliers(outputs))[0] - 0.5


@cache
def _multipliers(outputs: int) -> Floats:
    phi = 2.0
    for _ in range(64):  # more than it takes
        phi = (1.0 + phi) ** (1.0 / (outputs + 1))
    return np.asarray(phi ** -np.arange(1.0, outputs + 1))
