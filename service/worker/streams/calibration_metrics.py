"""How well predictives fit what came: the probability integral transform (PIT) of each label."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from model_core.predictive import Mixture
from model_core.summary import Summary
from service.observability.metrics import observe_all
from service.observability.model_metrics import PIT
from service.wire import numbers

_random = torch.Generator().manual_seed(1)  # of metrics alone: no answer depends on it


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
    y = torch.tensor([numbers(each) or nothing for each in labels], dtype=torch.float64)
    values = transform(mixture, y.to(mixture.log_weight.device)).tolist()
    by_model: dict[str, list[float]] = {}
    for i in rows:
        found = by_model.setdefault(models[i] or "", [])
        found += [each for each in values[i] if math.isfinite(each)]
    for model, found in by_model.items():
        observe_all(PIT.labels(model), found)


def measure_summary(summary: Summary, models: Sequence[str]) -> None:
    """Count the PIT of each row's label, of which a summary holds the cumulative probabilities."""
    if summary.support == "class":
        return
    upper, lower = torch.from_numpy(summary.cdf), torch.from_numpy(summary.cdf_below)
    values = _between(lower, upper, summary.support).tolist()
    by_model: dict[str, list[float]] = {}
    for model, row in zip(models, values, strict=True):
        by_model.setdefault(model, []).extend(each for each in row if math.isfinite(each))
    for model, found in by_model.items():
        observe_all(PIT.labels(model), found)


def transform(mixture: Mixture, y: Tensor) -> Tensor:
    """`P(Y <= y)` (B, d) under each row's predictive; uniform where it is calibrated.

    Of counts, a random place within the step of the distribution at the label.
    """
    support = mixture.components.support
    counts = support in ("count", "binary")
    upper = mixture.cdf(y)
    return _between(mixture.cdf(y - 1.0) if counts else upper, upper, support)


def _between(lower: Tensor, upper: Tensor, support: str) -> Tensor:
    """Upper end of a step of the distribution; of counts, a random place within it."""
    if support not in ("count", "binary"):
        return upper.clamp(0.0, 1.0)
    share = torch.rand(upper.shape, dtype=upper.dtype, generator=_random).to(upper.device)
    return (lower + share * (upper - lower)).clamp(0.0, 1.0)
