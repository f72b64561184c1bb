"""`correction.observe_rows`, compiled from the functions of that module."""

from __future__ import annotations

import numpy as np

from model_core import correction
from model_core.compiled.jit import Floats, Ints, called, either, locked

for _function in (
    correction.weight, correction.point, correction.move, correction.learn, correction.observe
):  # fmt: skip
    either(_function)
_observe = correction.observe
_learn = correction.learn
_OUTPUT = correction.size(1)


@called
def observe_rows(
    states: Floats,
    rows: Ints,
    places: Ints,
    labels: Floats,
    offsets: Floats,
    numbers: Floats,
    middle: int,
    outside: float,
    applied: Floats,
) -> None:
    """See `correction.observe_rows`."""
    for i in range(len(rows)):
        at = places[i]
        _observe(
            states[rows[i]], labels[at], offsets[at], numbers[at], middle, outside, applied[at]
        )


@called
def recall(
    state: Floats, labels: Floats, medians: Floats, intervals: Floats, outside: float
) -> None:
    """See `correction.recall`."""
    for n in range(len(labels)):
        for i in range(labels.shape[1]):
            lower = intervals[n, 0, i]
            upper = intervals[n, 1, i]
            _learn(state, _OUTPUT * i, labels[n, i], medians[n, i], lower, upper, outside)


def _compile() -> None:
    table = np.empty((0, 0))
    none = np.empty(0)
    rows = none.astype(np.int64)
    cube = np.empty((0, 0, 0))
    observe_rows(table, rows, rows, table, none, table, 0, 0.1, cube)
    recall(none, table, table, cube, 0.1)


locked("corrections", _compile)
