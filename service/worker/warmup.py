"""Warm-up of the zero-training models: location and scale from the first labels of a stream."""

from __future__ import annotations

import torch
from torch import Tensor

from model_core import warmup
from model_core.filter import make_prior
from model_core.predictive import Mixture
from model_core.upm.base import UnderlyingModel
from model_core.warmup import complete, varied
from service.wire import Record, StreamSettings, numbers

__all__ = ["complete", "estimate", "given", "labels", "provisional", "varied"]


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


def estimate(
    values: list[list[float]], settings: StreamSettings, label: str, y_dim: int
) -> tuple[list[float], list[float]]:
    """Location and scale of each output, unless given."""
    location, scale = warmup.estimate(values, label, y_dim)
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
    stats, context, blank = prior.stats, prior.context, [0.0] * model.y_dim
    for i in range(max(map(len, histories))):
        y = tensor([v[i] if i < len(v) else blank for v in histories])
        there = torch.tensor([i < len(v) for v in histories], device=device)
        stats = model.update(stats, model.encode(None, context), y, there.unsqueeze(-1).double())
        context = torch.where(there.unsqueeze(-1), model.remember(context, y, there), context)
    components = model.predictive(stats, model.encode(None, context))
    return Mixture(torch.zeros(len(histories), 1, dtype=torch.float64, device=device), components)
