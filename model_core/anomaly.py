"""Anomaly of each observation: how rarely its stream has shown one as strange.

Two numbers are ranked among the stream's own, and joined by Fisher's method (docs/mathematics.md,
"Anomaly"): strange against the current regime is the surprise `-log_score` of the stream's own
filter; strange against the whole past how far a moving mean of the labels is from the mean of all
before, in their standard deviations, of several outputs the sum of squares.

A sketch of fixed size stands for the past: sorted values, and how often each was met. A full one
merges the two neighbours that are fewest relative to those above them. So the largest values stay
exact, and the relative error of a rank is about the same everywhere.

`compiled.ranks` compiles the functions. Python runs them as they are, with the same numbers to the
last bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from model_core.upm.base import UnderlyingModel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

POINTS = 48  # values of a full sketch; ranks are within about n ** (1 / POINTS), as a factor
MOVING = 0.125  # share of the newest label in the moving mean
# Of a surprise: scores of a filter that was stored and replayed differ by rounding, ranks may not.
RESOLUTION = 2.0**30
LARGEST_ROUNDED = 1e8
FARTHEST = 1e100  # scales, beyond which a label counts as that far: squares stay finite
UNIT_ENTROPY = 0.5 * math.log(2 * math.pi * math.e)  # of a normal of scale 1
LEAST_VARIANCE = 1e-12  # in scales, squared
# Of a sketch: how many values it has, the values, ascending, and how often each was met.
_VALUE = 1
_WEIGHT = _VALUE + POINTS
_SKETCH = _WEIGHT + POINTS
_BELOW = POINTS + 1  # sums of weights
ROOM = _BELOW + POINTS  # numbers that `rank` works in
MOST = 2.0**53  # observations of a sketch: their number is exact
# Of an output, after two sketches: its units, then count, mean, sum of squared deviations and
# moving mean of its labels.
_LABELS = 2 * _SKETCH
_SCALE, _COUNT, _MEAN, _SQUARES, _MOVING, _OUTPUT = range(1, 7)


def outputs(model: UnderlyingModel) -> int:
    """Numbers of a label whose distances count: none of a class, which is no quantity."""
    return 0 if model.label == "class" else model.y_dim


def size(outputs: int) -> int:
    """Numbers in the state of one stream."""
    return _LABELS + _OUTPUT * outputs


def begin(model: UnderlyingModel, location: Sequence[float], scale: Sequence[float]) -> Floats:
    """State before any observation of a series; location, scale: (model.scaled,) its own."""
    count = outputs(model)
    if not model.needs_scale:
        return start([0.0] * count, [1.0] * count)
    return start(location[:count], scale[:count])


def start(location: Sequence[float], scale: Sequence[float]) -> Floats:
    """State before any observation; location, scale: (d,) units of labels, empty for classes."""
    state = np.zeros(size(len(location)))
    for i, units in enumerate(zip(location, scale, strict=True)):
        at = _LABELS + _OUTPUT * i
        state[at : at + 2] = units
    return state


def valid(state: Floats) -> bool:
    """Whether a state can be one, from a source that is not trusted: places are not checked."""
    for sketch in (0, _SKETCH):
        used = state[sketch]
        if not (0 <= used < POINTS and used == int(used)):
            return False
        values = state[sketch + _VALUE :][: int(used)]
        weights = state[sketch + _WEIGHT :][: int(used)]
        if (np.diff(values) < 0).any() or (weights < 1).any():
            return False
        if (weights % 1 > 0).any() or weights.sum() > MOST:
            return False
    outputs = state[_LABELS:].reshape(-1, _OUTPUT)
    least = outputs[:, (_COUNT, _SQUARES)] >= 0
    return bool(np.isfinite(state).all() and least.all() and (outputs[:, _SCALE] > 0).all())


def observe(state: Floats, surprise: float, label: Floats, room: Floats) -> float:
    """Take one observation in; returns its anomaly, in [0, 1].

    surprise: finite. room: as of `rank`.
    """
    surprise += missing(state, label)
    if abs(surprise) < LARGEST_ROUNDED:
        surprise = math.floor(surprise * RESOLUTION + 0.5) / RESOLUTION
    p = rank(state[:_SKETCH], surprise, room)
    if not len(label):  # a class is no quantity
        return 1.0 - p
    x = p * rank(state[_SKETCH:_LABELS], distance(state, label), room)
    return 1.0 - x * (1.0 - math.log(x))


def missing(state: Floats, label: Floats) -> float:
    """What outputs that are missing would add to a surprise, which is in their units.

    As much as draws of a normal with their scale do on average; 0 where none is missing.
    """
    total = 0.0
    for i in range(len(label)):
        if label[i] != label[i]:
            total += math.log(state[_LABELS + _OUTPUT * i + _SCALE]) + UNIT_ENTROPY
    return total


def distance(state: Floats, label: Floats) -> float:
    """Squared distances of moving means from means of all labels before, in their variances.

    Takes the label in.
    """
    total = 0.0
    for i in range(len(label)):
        at = _LABELS + _OUTPUT * i
        y = (label[i] - state[at]) / state[at + _SCALE]
        if y != y:  # this output is missing
            continue
        y = min(max(y, -FARTHEST), FARTHEST)
        count = state[at + _COUNT]
        mean = state[at + _MEAN]
        squares = state[at + _SQUARES]
        moving = y
        if count > 0.0:
            moving = state[at + _MOVING] + MOVING * (y - state[at + _MOVING])
        if count > 1.0:
            away = moving - mean
            total += away * away / max(squares / (count - 1.0), LEAST_VARIANCE)
        off = y - mean
        mean += off / (count + 1.0)
        state[at + _COUNT] = count + 1.0
        state[at + _MEAN] = mean
        state[at + _SQUARES] = squares + off * (y - mean)
        state[at + _MOVING] = moving
    return total


def rank(sketch: Floats, value: float, room: Floats) -> float:
    """Share of values that are as large, this one counted; takes it in.

    room: (ROOM,) numbers to work in.
    """
    values = sketch[_VALUE:_WEIGHT]
    weights = sketch[_WEIGHT:]
    below = room[:_BELOW].view(np.int64)
    shares = room[_BELOW:]
    used = int(sketch[0])
    place = lower(values, used, value, shares)
    total = 0  # whole numbers are added faster
    for i in range(used):
        below[i] = total
        total += int(weights[i])
    below[used] = total
    below[used + 1] = total
    share = float(1 + total - below[place]) / float(1 + total)
    if place < used and values[place] == value:
        weights[place] += 1.0
        return share
    free = used
    if used < POINTS - 1:
        sketch[0] = used + 1.0
    else:
        weigh(sketch[_WEIGHT - 2 :], place, below, total, shares)
        free = least(shares.view(np.int64)) - 1
    one = insert(values, free, place, value)
    of_one = insert(weights, free, place, 1.0)
    if used == POINTS - 1:  # the two that were to be neighbours at `free` are merged at their mean
        other = values[free]
        of_other = weights[free]
        both = of_one + of_other
        if free < place:
            values[free] = one + (other - one) * (of_other / both)
        else:
            values[free] = other + (one - other) * (of_one / both)
        weights[free] = both
    return share


def insert(line: Floats, free: int, place: int, number: float) -> float:
    """Put a number before what is at `place`; returns what was at `free`, to which others move."""
    before: float = line[free]
    if free < place:
        for i in range(free, place - 1):
            line[i] = line[i + 1]
        line[place - 1] = number
    else:
        for i in range(free, place, -1):
            line[i] = line[i - 1]
        line[place] = number
    return before


# The compiler does not know the length of `shares`: loops of a known one, if it is short, would be
# unrolled, and not made vectors of.


def lower(values: Floats, used: int, value: float, shares: Floats) -> int:
    """How many of the values are less than one."""
    count = 0
    for i in range(len(shares) & -8):
        own = values[i]
        count += 1 if i < used and own < value else 0
    return count


def weigh(around: Floats, place: int, below: Ints, total: int, shares: Floats) -> None:
    """Fill in what the merger of each value with the one before would weigh to those above both.

    A new value at `place` counts. The two largest values stay. around: weights, from two numbers
    before them on.
    """
    before = around[1:]
    weights = around[2:]
    next_below = below[1:]
    for i in range(len(shares) & -8):
        same = weights[i]
        other = around[i]
        near = total - below[i]
        far = total - next_below[i] + 1
        other = same if i < place else other
        other = 1.0 if place <= i <= place + 1 else other
        above = far if i < place else near
        share = (before[i] + other) / float(above if above > 0 else 1)
        shares[i] = share if 0 < i < POINTS - 1 else math.inf


def least(shares: Ints) -> int:
    """Last place of the least share; shares: as whole numbers, which are in the same order."""
    lowest = shares[0]
    for i in range(len(shares) & -8):
        own = shares[i]
        lowest = own if own < lowest else lowest
    chosen = 0
    for i in range(len(shares) & -8):
        at = i if shares[i] == lowest else 0
        chosen = at if at > chosen else chosen
    return chosen
