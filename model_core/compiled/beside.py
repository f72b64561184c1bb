"""Anomalies and corrections of many rows, from the functions of `anomaly` and `correction`."""

from __future__ import annotations

import math

import numpy as np

from model_core import correction
from model_core.compiled import ranks
from model_core.compiled.jit import Flags, Floats, Ints, called, either, locked

for _function in (
    correction.weight, correction.point, correction.move, correction.learn, correction.observe,
):  # fmt: skip
    either(_function)
_rank = ranks.observe
_correct = correction.observe
_learn = correction.learn
_OUTPUT = correction.size(1)


@called
def rank_rows(
    states: Floats,
    rows: Ints,
    surprises: Floats,
    labels: Floats,
    anomalies: Floats,
    room: Floats,
) -> None:
    """Take an observation of each row in, in order; fills the anomalies (B,), where there are any.

    states: (R, size), changed in place. surprises: (B,) -log_score, nan: no label, which leaves the
    row and the anomaly as they are. labels: (B, d), d the outputs that the states have; nan:
    missing. room: of `anomaly.rank`.
    """
    for i in range(len(rows)):
        if math.isfinite(surprises[i]):
            anomalies[i] = _rank(states[rows[i]], surprises[i], labels[i], room)


@called
def correct_rows(
    states: Floats,
    rows: Ints,
    places: Ints,
    labels: Floats,
    outlying: Flags,
    offsets: Floats,
    numbers: Floats,
    middle: int,
    outside: float,
    applied: Floats,
) -> None:
    """Correct forecasts of rows, in order, and learn from the labels; all is changed in place.

    states: (R, size). rows: (N,) of the states. places: (N,) of each in what follows. labels:
    (B, d), nan: missing. outlying: (B,) which are outliers. offsets: (B, d) their seasons, which
    forecasts are less of. numbers: (B, columns) of a `Summary` with quantiles, the median at
    `middle` among them; one that is not finite is left as it is. outside: see
    `correction.interval`. applied: (B, d, 3) `MEDIAN`, with the season, `MOVED` and `SCALE`; nan
    where nothing was corrected.
    """
    for i in range(len(rows)):
        at = places[i]
        _correct(
            states[rows[i]], labels[at], outlying[at], offsets[at], numbers[at], middle, outside,
            applied[at],
        )  # fmt: skip


@called
def recall(
    state: Floats,
    labels: Floats,
    outlying: Flags,
    medians: Floats,
    intervals: Floats,
    outside: float,
) -> None:
    """Learn from forecasts that were answered, in order; the state is changed in place.

    labels: (n, d). outlying: (n,) which are outliers. medians: (n, d) by the model, nan: there was
    no forecast. intervals: (n, 2, d) lowest and highest quantile as they were answered. outside:
    see `correction.interval`.
    """
    for n in range(len(labels)):
        for i in range(labels.shape[1]):
            lower = intervals[n, 0, i]
            upper = intervals[n, 1, i]
            _learn(
                state, _OUTPUT * i, labels[n, i], outlying[n], medians[n, i], lower, upper, outside
            )  # fmt: skip


def _compile() -> None:
    table = np.empty((0, 0))
    none = np.empty(0)
    rows = none.astype(np.int64)
    cube = np.empty((0, 0, 0))
    flags = none.astype(np.bool_)
    rank_rows(table, rows, none, table, none, none)
    correct_rows(table, rows, rows, table, flags, table, table, 0, 0.1, cube)
    recall(none, table, flags, table, cube, 0.1)


locked("anomalies and corrections", _compile)
