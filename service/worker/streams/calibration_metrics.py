"""How well predictives fit what came: the probability integral transform (PIT) of each label."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from model_core.predictive import Mixture
from model_core.summary import Summary
from service.observability.metrics import observe_all
from service.observability.model_metrics import PIT
from service.wire import numbers

Floats = NDArray[np.float64]
_random = np.random.default_rng(1)  # of metrics alone: no answer depends on it


def measure(
    mixture: Mixture,
    labels: Sequence[float | list[float] | None],
    models: Sequence[str | None],
) -> None:
    """Count the PIT of each row's label, each output alone; model None: the row is left out.

    Classes have no order, hence no PIT.
    """
    if mixture.components.support == "class":
        return
    rows = [i for i, y in enumerate(labels) if y is not None and models[i] is not None]
    if not rows:
        return
    nothing = [0.0] * len(numbers(labels[rows[0]]))
    known = [numbers(each) or nothing for each in labels]
    _count(transform(mixture, known)[rows], [models[i] or "" for i in rows])


def measure_summary(summary: Summary, models: Sequence[str]) -> None:
    """Count the PIT of each row's label, of which a summary holds the cumulative probabilities."""
    if summary.support != "class":
        _count(_between(summary.cdf_below, summary.cdf, summary.support), models)


def transform(mixture: Mixture, labels: list[list[float]]) -> Floats:
    """`P(Y <= y)` (B, d) under each row's predictive; uniform where it is calibrated.

    Of counts, a random place within the step of the distribution at the label.
    """
    support = mixture.components.support
    y = torch.tensor(labels, dtype=torch.float64, device=mixture.log_weight.device)
    upper = mixture.cdf(y)
    lower = mixture.cdf(y - 1.0) if support in ("count", "binary") else upper
    return _between(lower.cpu().numpy(), upper.cpu().numpy(), support)


def _between(lower: Floats, upper: Floats, support: str) -> Floats:
    """Upper end of a step of the distribution; of counts, a random place within it."""
    if support in ("count", "binary"):
        upper = lower + _random.random(upper.shape) * (upper - lower)
    return upper.clip(0.0, 1.0)


def _count(values: Floats, models: Sequence[str]) -> None:
    """Enter the rows of values into the histograms of their models; those not finite are none."""
    for model in dict.fromkeys(models):
        chosen = values[[each == model for each in models]]
        observe_all(PIT.labels(model), chosen[np.isfinite(chosen)].tolist())
