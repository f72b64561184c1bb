"""Anomalies of many rows, compiled from the functions of `model_core.anomaly`."""

from __future__ import annotations

import math

import numpy as np

from model_core import anomaly
from model_core.compiled.jit import Floats, Ints, called, either, locked

for _function in (anomaly.merge, anomaly.rank, anomaly.missing, anomaly.distance, anomaly.observe):
    either(_function)
_observe = anomaly.observe


@called
def _observe_rows(
    states: Floats, rows: Ints, surprises: Floats, labels: Floats, anomalies: Floats
) -> None:
    for i in range(len(rows)):
        if math.isfinite(surprises[i]):
            anomalies[i] = _observe(states[rows[i]], surprises[i], labels[i])


def observe_rows(states: Floats, rows: Ints, surprises: Floats, labels: Floats) -> Floats:
    """Take an observation of each row in, in order; returns the anomalies (B,).

    states: (R, size), changed in place. surprises: (B,) -log_score, nan: no label, which leaves
    the row as it is and answers nan. labels: (B, d), d the outputs that the states have; nan:
    missing.
    """
    anomalies = np.full(len(rows), np.nan)
    _observe_rows(states, rows, surprises, labels, anomalies)
    return anomalies


def _compile() -> None:
    nothing = np.empty(0)
    observe_rows(np.empty((0, 0)), nothing.astype(np.int64), nothing, np.empty((0, 0)))


locked("anomalies", _compile)
