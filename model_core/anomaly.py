"""Anomaly of each observation: how rarely its stream has shown one as strange.

Two numbers are ranked among the stream's own, and joined by Fisher's method (docs/mathematics.md,
"Anomaly"): strange against the current regime is the surprise `-log_score` of the stream's own
filter; strange against the whole past how far a moving mean of the labels is from the mean of all
before, in their standard deviations, of several outputs the sum of squares.

A sketch of fixed size stands for the past: sorted values, and how often each was met. A full one
merges the two neighbours that are fewest relative to those above them. So the largest values stay
exact, and the relative error of a rank is about the same everywhere.

`compiled.beside` compiles the functions for states that are arrays. On lists they run as they are,
with the same numbers to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence

import numpy as np
from numpy.typing import NDArray

from model_core.upm.base import UnderlyingModel

Floats = NDArray[np.float64]
Numbers = MutableSequence[float]  # or an array, compiled

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
    outputs = state[_LABELS:].reshape(-1, _OUTPUT)
    least = outputs[:, (_COUNT, _SQUARES)] >= 0
    return bool(np.isfinite(state).all() and least.all() and (outputs[:, _SCALE] > 0).all())


def observe(state: Numbers, surprise: float, label: Sequence[float]) -> float:
    """Take one observation in; returns its anomaly, in [0, 1]; surprise: finite."""
    surprise += missing(state, label)
    if abs(surprise) < LARGEST_ROUNDED:
        surprise = math.floor(surprise * RESOLUTION + 0.5) / RESOLUTION
    p = rank(state, 0, surprise)
    if not len(label):  # a class is no quantity
        return 1.0 - p
    x = p * rank(state, _SKETCH, distance(state, label))
    return 1.0 - x * (1.0 - math.log(x))


def missing(state: Numbers, label: Sequence[float]) -> float:
    """What outputs that are missing would add to a surprise, which is in their units.

    As much as draws of a normal with their scale do on average; 0 where none is missing.
    """
    total = 0.0
    for i in range(len(label)):
        if label[i] != label[i]:
            total += math.log(state[_LABELS + _OUTPUT * i + _SCALE]) + UNIT_ENTROPY
    return total


def distance(state: Numbers, label: Sequence[float]) -> float:
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


def rank(state: Numbers, sketch: int, value: float) -> float:
    """Share of values that are as large, this one counted; takes it in. sketch: its place."""
    used = int(state[sketch])
    values = sketch + _VALUE
    weights = sketch + _WEIGHT
    above = 0.0
    place = used  # of the lowest value as large
    while place > 0 and state[values + place - 1] >= value:
        place -= 1
        above += state[weights + place]
    count = above
    for i in range(place):
        count += state[weights + i]
    if place < used and state[values + place] == value:
        state[weights + place] += 1.0
        return (1.0 + above) / (1.0 + count)
    for i in range(used, place, -1):
        state[values + i] = state[values + i - 1]
        state[weights + i] = state[weights + i - 1]
    state[values + place] = value
    state[weights + place] = 1.0
    used += 1
    if used == POINTS:
        merge(state, values, weights)
        used -= 1
    state[sketch] = float(used)
    return (1.0 + above) / (1.0 + count)


def merge(state: Numbers, values: int, weights: int) -> None:
    """Merge two neighbours of a full sketch at their mean.

    Those that are fewest relative to those above them; the two largest values stay.
    """
    above = state[weights + POINTS - 1]
    least = math.inf
    chosen = 0
    for i in range(POINTS - 3, -1, -1):
        upper = state[weights + i + 1]
        share = (state[weights + i] + upper) / above
        if share < least:
            least = share
            chosen = i
        above += upper
    upper = state[weights + chosen + 1]
    both = state[weights + chosen] + upper
    lower = state[values + chosen]
    state[values + chosen] = lower + (state[values + chosen + 1] - lower) * (upper / both)
    state[weights + chosen] = both
    for i in range(chosen + 1, POINTS - 1):
        state[values + i] = state[values + i + 1]
        state[weights + i] = state[weights + i + 1]
