"""How well predictives fit what came: the probability integral transform (PIT) of each label."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from model_core.predictive import Mixture
from model_core.summary import Summary
from model_core.transfer import to_device
from service.observability.metrics import PIT, observe_all
from service.wire import Label, numbers

Floats = NDArray[np.float64]
STEPPED = ("count", "binary")  # supports on which a distribution function has steps
_random = np.random.default_rng(1)  # of metrics alone: no answer depends on it


def cumulative(mixture: Mixture, labels: Sequence[Label]) -> list[Tensor]:
    """`P(Y < y)` and `P(Y <= y)` (B, d) of each row's label, where the mixture is.

    Nothing where no label has a PIT: classes have no order. Of a row without a label, anything; of
    a missing output, nan.
    """
    first = next((label for label in labels if label is not None), None)
    support = mixture.components.support
    if first is None or support == "class":
        return []
    nothing = [0.0] * len(numbers(first))
    values = np.array([numbers(label) or nothing for label in labels])
    y = to_device(values, mixture.log_weight.device)
    upper = mixture.cdf(y)
    return [mixture.cdf(y - 1.0) if support in STEPPED else upper, upper]


def measure(
    mixture: Mixture, cumulatives: Sequence[Tensor], labels: Sequence[Label], models: Sequence[str]
) -> None:
    """Count the PIT of each row's label, each output alone; cumulatives: `cumulative`, on the host.

    It is uniform where the mixture is calibrated.
    """
    rows = [i for i, y in enumerate(labels) if y is not None]
    if cumulatives:
        lower, upper = (tensor.numpy()[rows] for tensor in cumulatives)
        _count(_between(lower, upper, mixture.components.support), [models[i] for i in rows])


def measure_summary(summary: Summary, models: Sequence[str]) -> None:
    """Count the PIT of each row's label, of which a summary holds the cumulative probabilities."""
    if summary.support != "class":
        _count(_between(summary.cdf_below, summary.cdf, summary.support), models)


def _between(lower: Floats, upper: Floats, support: str) -> Floats:
    """Upper end of a step of the distribution; of counts, a random place within it."""
    if support in STEPPED:
        upper = lower + _random.random(upper.shape) * (upper - lower)
    return upper.clip(0.0, 1.0)


def _count(values: Floats, models: Sequence[str]) -> None:
    """Enter the rows of values into the histograms of their models; those not finite are none."""
    for model in dict.fromkeys(models):
        chosen = values[[name == model for name in models]]
        observe_all(PIT.labels(model), chosen[np.isfinite(chosen)].tolist())
