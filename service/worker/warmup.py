"""Warm-up of the zero-training models: location and scale from the first labels of a stream."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from model_core.filter import make_prior
from model_core.predictive import Mixture
from model_core.upm.base import UnderlyingModel
from service.wire import Record, StreamSettings, numbers

LONGEST = 200  # labels after which a stream whose values never differ goes on without them
LONGEST_WAIT = 2000  # observations after which one whose labels are missing does
FLAT_SCALE = 0.01  # of the location, where all values were the same
SMALLEST_SCALE = 1e-150  # its square is still a number


def given(settings: StreamSettings, label: str) -> tuple[list[float], list[float]] | None:
    """Location and scale that the settings give; counts need no scale."""
    if settings.location is None:
        return None
    if settings.scale is not None:
        return settings.location, settings.scale
    return (settings.location, [1.0] * len(settings.location)) if label == "count" else None


def labels(records: list[Record]) -> list[list[float]]:
    """The labels there are, each as a list."""
    return [numbers(record.y) for record in records if record.y is not None]


def complete(values: list[list[float]], warmup: int, waited: int) -> bool:
    """Whether enough labels are there, and two of each output differ (or never will)."""
    if waited >= LONGEST_WAIT:
        return True
    if len(values) < max(warmup, 1):
        return False
    return len(values) >= LONGEST or varied(values)


def varied(values: list[list[float]]) -> bool:
    """Whether two values of each output differ."""
    return bool(values) and all(len(set(each)) > 1 for each in zip(*values, strict=True))


def estimate(
    values: list[list[float]], settings: StreamSettings, label: str, y_dim: int
) -> tuple[list[float], list[float]]:
    """Location and scale of each output: mean and standard deviation, unless given."""
    if not values:
        location, scale = [float(label == "count")] * y_dim, [1.0] * y_dim
        return settings.location or location, settings.scale or scale
    location, scale = [], []
    for each in zip(*values, strict=True):
        mean = math.fsum(each) / len(each)
        squares = math.fsum((value - mean) ** 2 for value in each)
        deviation = math.sqrt(squares / max(len(each) - 1, 1))
        if label == "count":
            # No count yet: half of one spread over all observations.
            location.append(mean or 0.5 / len(each))
        else:
            location.append(mean)
        scale.append(max(deviation or FLAT_SCALE * abs(mean) or 1.0, SMALLEST_SCALE))
    return settings.location or location, settings.scale or scale


def provisional(
    model: UnderlyingModel,
    histories: list[list[list[float]]],
    settings: list[StreamSettings],
    device: str,
) -> Mixture:
    """Predictive of one regime that holds all labels so far, for each stream; no changepoints.

    histories: labels of each stream, at least two that differ.
    """
    pairs = zip(histories, settings, strict=True)
    found = [estimate(values, s, model.label, model.y_dim) for values, s in pairs]

    def tensor(values: list[list[float]]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)

    prior = make_prior(model, tensor([f[0] for f in found]), tensor([f[1] for f in found]))
    stats, blank = prior.stats, [0.0] * model.y_dim
    for i in range(max(map(len, histories))):
        y = tensor([v[i] if i < len(v) else blank for v in histories])
        weight = tensor([[float(i < len(v))] for v in histories])
        stats = model.update(stats, None, y, weight)
    components = model.predictive(stats, None)
    return Mixture(torch.zeros(len(histories), 1, dtype=torch.float64, device=device), components)
