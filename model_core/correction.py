"""Correction of forecasts by their own past errors, where labels are real numbers.

A predictive distribution is moved and scaled, each output alone: docs/mathematics.md, "Correction
of forecasts". Its median becomes the point forecast: the model's median and the last label,
weighted by their discounted mean absolute errors. So a forecast is hardly ever behind the last
label, whatever the model believes. Distances from the median are multiplied by a scale that each
label outside of the interval that was answered raises, and each one inside lowers.

The state is in the units of labels with their seasons, and begins anew with its filter. An
observation without a label, or without a forecast, leaves it as it is; an outlier is no error, as
nobody can forecast one. Counts, durations and classes have none of it: their quantiles would leave
what labels can be.

`compiled.beside` compiles the functions for states that are arrays. On lists they run as they
are, with the same numbers to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_core.upm.base import UnderlyingModel

Floats = NDArray[np.float64]
Numbers = MutableSequence[float] | Floats

FORGET = 0.995
MARGIN = 1.05  # a model that is hardly better than the last label may be so by chance
FIRST_WEIGHT = 0.5  # of the model, before either has erred
RATE = 0.02
FIRST_RATE = 0.1
FARTHEST = 1e300  # sums of errors stay finite
LEAST_SCALE = 1 / 3
LARGEST_SCALE = 3.0
# Of an output: its last label, how many labels came, discounted errors of the model's median and of
# the last label, and the scale.
_LAST, _COUNT, _MODEL, _STILL, _SCALE, _OUTPUT = range(6)
# Of an output of a forecast: its median by the model, by how much it was moved, and the scale.
MEDIAN, MOVED, SCALE, APPLIED = range(4)


def outputs(model: UnderlyingModel) -> int:
    """Numbers of a label whose forecasts are corrected."""
    return model.y_dim if model.label == "real" else 0


def size(outputs: int) -> int:
    """Numbers in the state of one stream."""
    return _OUTPUT * outputs


def start(outputs: int) -> Floats:
    """State before any forecast: it changes none."""
    state = np.zeros(size(outputs))
    state[_SCALE::_OUTPUT] = 1.0
    return state


def valid(state: Floats) -> bool:
    """Whether a state can be one, from a source that is not trusted."""
    own = state.reshape(-1, _OUTPUT)
    scale = own[:, _SCALE]
    within = (scale >= LEAST_SCALE) & (scale <= LARGEST_SCALE)
    least = own[:, (_COUNT, _MODEL, _STILL)] >= 0
    return bool(np.isfinite(state).all() and least.all() and within.all())


def interval(levels: Sequence[float]) -> tuple[int, float]:
    """Place of the median among levels, and the share of labels outside of the outermost two.

    Raises ValueError where the median is not among them.
    """
    if 0.5 not in levels:
        raise ValueError(f"expected levels with 0.5 among them, got {[*levels]}")
    return [*levels].index(0.5), 1.0 - levels[-1] + levels[0]


def observe(
    state: Numbers,
    label: Sequence[float],
    outlying: bool,
    offset: Sequence[float],
    numbers: Numbers,
    middle: int,
    outside: float,
    applied: Any,
) -> None:
    """Correct one forecast, and learn from its label; see `compiled.beside`."""
    d = len(label)
    first = 3 * d + d * d
    levels = (len(numbers) - first) // d
    for i in range(d):
        at = _OUTPUT * i
        lowest = first + i * levels
        for q in range(lowest + 1, lowest + levels):  # rounding may have decided on their order
            numbers[q] = max(numbers[q], numbers[q - 1])
        if not math.isfinite(numbers[lowest + middle]):
            continue
        season = offset[i]
        median = numbers[lowest + middle] + season
        own = applied[i]
        own[MEDIAN] = median
        own[MOVED] = point(state, at, median) - median
        own[SCALE] = state[at + _SCALE]
        move(numbers, d, i, season, own)
        lower = numbers[lowest] + season
        upper = numbers[lowest + levels - 1] + season
        learn(state, at, label[i], outlying, median, lower, upper, outside)


def apply(numbers: Floats, applied: Floats) -> None:
    """Correct summaries (B, columns) of labels with their seasons, in place.

    applied: (B, d, 3) as `compiled.beside.correct_rows` gives them.
    """
    for own, corrections in zip(numbers, applied, strict=True):
        for i, one in enumerate(corrections):
            if math.isfinite(one[MEDIAN]):
                move(own, len(corrections), i, 0.0, one)


def point(state: Numbers, at: int, median: float) -> float:
    """Point forecast of the output whose state is at `at`, from the model's median."""
    if state[at + _COUNT] == 0.0:
        return median
    last = state[at + _LAST]
    return last + weight(state[at + _MODEL], state[at + _STILL]) * (median - last)


def weight(model: float, still: float) -> float:
    """Weight of the model beside the last label, by their discounted errors."""
    if still == 0.0:
        return FIRST_WEIGHT if model == 0.0 else 0.0
    ratio = MARGIN * model / still
    for _ in range(4):  # to the power 16
        ratio *= ratio
    return 1.0 / (1.0 + ratio)


def move(numbers: Numbers, outputs: int, i: int, offset: float, applied: Sequence[float]) -> None:
    """Move and scale output `i` of a summary, as a correction was `applied` to it."""
    scale = applied[SCALE]
    median = applied[MEDIAN] - offset
    moved = median + applied[MOVED]
    first = 3 * outputs + outputs * outputs
    levels = (len(numbers) - first) // outputs
    numbers[i] = moved + scale * (numbers[i] - median)
    for j in range(outputs):  # its variance is met twice
        numbers[outputs + i * outputs + j] *= scale
        numbers[outputs + j * outputs + i] *= scale
    for q in range(first + i * levels, first + (i + 1) * levels):
        numbers[q] = moved + scale * (numbers[q] - median)


def learn(
    state: Numbers,
    at: int,
    label: float,
    outlying: bool,
    median: float,
    lower: float,
    upper: float,
    outside: float,
) -> None:
    """Take in a label of the output at `at`, the model's median and the interval of its forecast.

    A label or a median that is missing, nan, changes nothing.
    """
    if label != label or median != median:
        return
    count = state[at + _COUNT]
    if count > 0.0 and not outlying:
        model = FORGET * state[at + _MODEL] + abs(label - median)
        still = FORGET * state[at + _STILL] + abs(label - state[at + _LAST])
        state[at + _MODEL] = min(model, FARTHEST)
        state[at + _STILL] = min(still, FARTHEST)
    if lower < upper:
        rate = max(RATE, min(FIRST_RATE, 1.0 / (count + 5.0)))
        missed = 1.0 if label < lower or label > upper else 0.0
        scale = state[at + _SCALE] * (1.0 + rate * (missed - outside))
        state[at + _SCALE] = min(max(scale, LEAST_SCALE), LARGEST_SCALE)
    state[at + _LAST] = label
    state[at + _COUNT] = count + 1.0
