"""How well predictives fit what came: the probability integral transform (PIT) of each label."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from model_core.summary import Summary
from service.observability.metrics import PIT, observe_all

Floats = NDArray[np.float64]
STEPPED = ("count", "binary")  # supports on which a distribution function has steps
_random = np.random.default_rng(1)  # of metrics alone: no answer depends on it


def measure(summary: Summary, models: Sequence[str]) -> None:
    """Count the PIT of each row's label, each output alone, under its model.

    It is uniform where the predictives are calibrated. Classes have no order, hence none.
    """
    if summary.support == "class":
        return
    values = summary.cdf
    if summary.support in STEPPED:  # a random place within the step of the distribution
        below = summary.cdf_below
        values = below + _random.random(values.shape) * (values - below)
    _count(values.clip(0.0, 1.0), models)


def _count(values: Floats, models: Sequence[str]) -> None:
    """Enter the rows of values into the histograms of their models; those not finite are none."""
    for model in dict.fromkeys(models):
        chosen = values[[name == model for name in models]]
        observe_all(PIT.labels(model), chosen[np.isfinite(chosen)].tolist())
