"""Calibration of predicted probabilities: of real labels by their PIT, of classes by bins.

The probability integral transform (PIT) of a label is the predictive CDF at it. Under the true
model PITs are uniform and independent; those of an overconfident one gather at both ends.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from model_core.components import Components

BINS = 15


class Reliability(NamedTuple):
    """Per bin of confidence: mean confidence, accuracy and count; nan in empty bins."""

    confidence: Tensor
    accuracy: Tensor
    count: Tensor  # type: ignore[assignment]


def pit(log_weight: Tensor, components: Components, y: Tensor) -> Tensor:
    """PITs (..., d) of labels y (..., d), each output alone; nan where the label is missing.

    log_weight: (..., M) of the belief that the labels are predicted with, as (B, T, T) by [t, r],
    -inf where there is no hypothesis. components: parameters (..., M, d).
    """
    if components.support not in ("real", "positive"):
        raise ValueError(f"expected components of real labels, got {components.support!r}")
    weight = log_weight.exp().unsqueeze(-1)
    cdf = components.cdf(y.unsqueeze(-2))
    # Parameters of an empty slot may be anything.
    mixed = torch.where(weight > 0, weight * cdf, 0.0).sum(-2)
    return torch.where(torch.isnan(y), torch.nan, mixed.clamp(0, 1))


def distance(values: Tensor) -> float:
    """Largest gap between the PITs' empirical CDF and that of the uniform (Kolmogorov-Smirnov)."""
    pits = _present(values).sort().values
    count = len(pits)
    rank = torch.arange(count + 1, dtype=pits.dtype, device=pits.device) / count
    return float(torch.maximum(rank[1:] - pits, pits - rank[:-1]).max())


def coverage(values: Tensor, levels: Tensor) -> Tensor:
    """Share (Q,) of labels within their central predictive interval of each level (Q,)."""
    off_centre = 2 * (_present(values) - 0.5).abs()
    return (off_centre.unsqueeze(-1) <= levels).to(levels.dtype).mean(0)


def histogram(values: Tensor, bins: int = BINS) -> Tensor:
    """Number of PITs in each of `bins` equal bins."""
    return torch.bincount(_bins(_present(values), bins), minlength=bins)


def uniform_band(count: int, bins: int = BINS, level: float = 0.95) -> tuple[int, int]:
    """Interval of a bin's count with `level` if `count` PITs are uniform: binomial."""
    k = torch.arange(count + 1, dtype=torch.float64)
    share = torch.tensor(1 / bins, dtype=torch.float64)
    total = torch.tensor(float(count), dtype=torch.float64)
    ways = torch.lgamma(total + 1) - torch.lgamma(k + 1) - torch.lgamma(total - k + 1)
    log_mass = ways + torch.xlogy(k, share) + torch.xlogy(total - k, 1 - share)
    below = log_mass.exp().cumsum(0)
    tail = (1 - level) / 2
    low, high = torch.searchsorted(below, torch.tensor([tail, 1 - tail], dtype=torch.float64))
    return int(low), int(min(high, count))


def reliability(probability: Tensor, label: Tensor, bins: int = BINS) -> Reliability:
    """Confidence against accuracy of the most probable class.

    probability: (..., J). label: (...) class indices; those that are nan or negative are missing.
    """
    known = torch.isfinite(label.double()) & (label >= 0)
    confidence, predicted = probability[known].max(-1)
    if not len(confidence):
        raise ValueError("expected labels, got none")
    right = (predicted == label[known].long()).to(confidence.dtype)
    at = _bins(confidence, bins)
    empty = confidence.new_zeros(bins)
    count = torch.bincount(at, minlength=bins)
    mean_confidence = empty.index_add(0, at, confidence) / count
    accuracy = empty.index_add(0, at, right) / count
    return Reliability(mean_confidence, accuracy, count)


def calibration_error(bins: Reliability) -> float:
    """Expected calibration error: mean gap of confidence and accuracy, weighted by count."""
    gap = (bins.confidence - bins.accuracy).abs()
    return float(torch.where(bins.count > 0, gap * bins.count, 0.0).sum() / bins.count.sum())


def _bins(values: Tensor, bins: int) -> Tensor:
    return (values * bins).long().clamp(0, bins - 1)


def _present(values: Tensor) -> Tensor:
    present = values[~torch.isnan(values)]
    if not present.numel():
        raise ValueError("expected PITs of labels, got none")
    return present
