"""Warm-up of the zero-training models: location and scale from the first labels of a stream."""

from __future__ import annotations

import math
from typing import Any

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
SCALE_FREE = ("count", "positive")  # labels whose location says it all


def given(
    settings: StreamSettings, model: UnderlyingModel
) -> tuple[list[float], list[float]] | None:
    """Location and scale that the settings give; counts and durations need no scale."""
    if settings.location is None:
        return None
    if settings.scale is not None:
        return settings.location, settings.scale
    one = [1.0] * len(settings.location)
    return (settings.location, one) if model.label in SCALE_FREE else None


def values_of(records: list[Record], model: UnderlyingModel) -> list[list[float]]:
    """What location and scale are taken from: the labels there are, with inputs if they count."""
    labelled = [record for record in records if record.y is not None]
    if not model.scales_inputs:
        return [numbers(record.y) for record in labelled]
    return [[*numbers(record.y), *(record.x or [])] for record in labelled]


def complete(values: list[list[float]], y_dim: int, warmup: int, waited: int) -> bool:
    """Whether enough labels are there, and two of each output differ (or never will)."""
    if waited >= LONGEST_WAIT:
        return True
    if len(values) < max(warmup, 1):
        return False
    return len(values) >= LONGEST or varied(values, y_dim)


def varied(values: list[list[float]], y_dim: int) -> bool:
    """Whether two labels differ in each output."""
    columns = list(zip(*values, strict=True))[:y_dim]
    return bool(values) and all(len(set(each)) > 1 for each in columns)


def estimate(
    values: list[list[float]], settings: StreamSettings, model: UnderlyingModel
) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each column, unless location and scale are given."""
    if not values:
        level = float(model.label in SCALE_FREE)
        location, scale = [level] * model.scaled, [1.0] * model.scaled
        return settings.location or location, settings.scale or scale
    location, scale = [], []
    for each in zip(*values, strict=True):
        mean = math.fsum(each) / len(each)
        squares = math.fsum((value - mean) ** 2 for value in each)
        deviation = math.sqrt(squares / max(len(each) - 1, 1))
        if model.label in SCALE_FREE:
            # No count yet: half of one spread over all observations.
            location.append(mean or 0.5 / len(each))
        else:
            location.append(mean)
        scale.append(max(deviation or FLAT_SCALE * abs(mean) or 1.0, SMALLEST_SCALE))
    return settings.location or location, settings.scale or scale


def provisional(
    model: UnderlyingModel,
    histories: list[list[Record]],
    settings: list[StreamSettings],
    coming: list[list[float] | None],
    device: str,
) -> Mixture:
    """Predictive of one regime that holds all labels so far, for each stream; no changepoints.

    histories: records of each stream, with at least two labels that differ. coming: the inputs of
    the labels to predict.
    """

    def tensor(values: Any) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)

    def encoded(inputs: list[list[float] | None]) -> Tensor | None:
        blank = [0.0] * model.x_dim
        return model.encode(tensor([x or blank for x in inputs]) if blank else None, context)

    pairs = zip(histories, settings, strict=True)
    found = [estimate(values_of(records, model), s, model) for records, s in pairs]
    prior = make_prior(model, tensor([f[0] for f in found]), tensor([f[1] for f in found]))
    (stats, _, context), nothing = prior, [0.0] * model.y_dim
    for i in range(max(map(len, histories))):
        rows = [records[i] if i < len(records) else None for records in histories]
        phi = encoded([row.x if row else None for row in rows])
        y = tensor([numbers(row.y) or nothing if row else nothing for row in rows])
        labelled = tensor([float(row is not None and row.y is not None) for row in rows])
        stats = model.update(stats, phi, y, labelled.unsqueeze(-1))
        there = tensor([float(row is not None) for row in rows]).unsqueeze(-1) > 0
        context = torch.where(there, model.remember(context, y, labelled > 0), context)
    components = model.predictive(stats, encoded(coming))
    return Mixture(torch.zeros(len(histories), 1, dtype=torch.float64, device=device), components)
