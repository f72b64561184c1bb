"""Warm-up of a series: location and scale from its first labels, and forecasts until then."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model_core.filter import make_prior
from model_core.predictive import Mixture
from model_core.stream import columns
from model_core.stream.columns import Columns, Labelled
from model_core.stream.state import StatedMoments
from model_core.transfer import to_device
from model_core.upm.base import UnderlyingModel, tree_map

LONGEST = 200  # labels after which a series whose values never differ goes on without them
LONGEST_WAIT = 2000  # observations after which one whose labels are missing does
FLAT_SCALE = 0.01  # of the location, where all values were the same
SMALLEST_SCALE = 1e-150  # its square is still a number
SCALE_FREE = ("count", "positive")  # labels whose location says it all

# Of each observation its label, nan where an output is missing, then its input if that counts.
Values = Sequence[Sequence[float]]
Moments = tuple[list[float], list[float]]  # location and scale


def varied(values: Values, y_dim: int) -> bool:
    """Whether two labels differ in each output."""
    return bool(values) and all(len(set(column)) > 1 for column in _columns(values)[:y_dim])


def _columns(values: Values) -> list[list[float]]:
    """Numbers of each column, without those that are missing."""
    return [
        [number for number in column if number == number] for column in zip(*values, strict=True)
    ]


def complete(values: Values, y_dim: int, warmup: int, waited: int) -> bool:
    """Whether each output has enough labels, and two of them differ (or never will).

    waited: observations so far, with those that have no label.
    """
    if waited >= LONGEST_WAIT:
        return True
    if len(values) < max(warmup, 1):
        return False
    if len(values) >= LONGEST:
        return True
    fewest = min(len(column) for column in _columns(values)[:y_dim])
    return fewest >= warmup and varied(values, y_dim)


def given(model: UnderlyingModel, stated: StatedMoments) -> Moments | None:
    """Location and scale that need no warm-up, if any: counts and durations need no scale."""
    if not model.needs_scale:
        return [0.0] * model.scaled, [1.0] * model.scaled
    location, scale = stated
    if location is None:
        return None
    if scale is None:
        return (location, [1.0] * len(location)) if model.label in SCALE_FREE else None
    return location, scale


def estimate(values: Values, model: UnderlyingModel) -> Moments:
    """Location and scale of each column: of counts the mean, else the median; and the deviation.

    The median is not moved by outliers, and keeps to one side of a change among the first labels.
    A column without any number has location 0 (of counts 1) and scale 1.
    """
    location = []
    scale = []
    for column in _columns(values) or [[]] * model.scaled:
        if not column:
            location.append(float(model.label in SCALE_FREE))
            scale.append(1.0)
            continue
        mean = math.fsum(column) / len(column)
        squares = math.fsum((value - mean) ** 2 for value in column)
        deviation = math.sqrt(squares / max(len(column) - 1, 1))
        if model.label in SCALE_FREE:
            # No count yet: half of one spread over all observations.
            location.append(mean or 0.5 / len(column))
        else:
            location.append(statistics.median(column))
        scale.append(max(deviation or FLAT_SCALE * abs(mean) or 1.0, SMALLEST_SCALE))
    return location, scale


def estimated(model: UnderlyingModel, values: list[list[float]], stated: StatedMoments) -> Moments:
    """Location and scale: those stated, else those of labels."""
    location, scale = estimate(values, model)
    return stated.location or location, stated.scale or scale


def first(
    model: UnderlyingModel, rows: Iterable[Sequence[float]], labels: int
) -> tuple[Moments, int]:
    """Location and scale of a whole series, and the number of observations of its warm-up.

    rows: labels, nan where missing, with inputs if they count. labels: of the warm-up.
    """
    values: list[Sequence[float]] = []
    count = 0
    for count, row in enumerate(rows, 1):
        present = list(map(math.isfinite, row))
        if any(present) if model.partial else all(present):
            values.append(row)
        if complete(values, model.y_dim, labels, count):
            return estimate(values, model), count
    return estimate(values, model), count + 1


def provisional(
    model: UnderlyingModel,
    histories: Sequence[Columns],
    stated: Sequence[StatedMoments],
    coming: Sequence[Sequence[float] | None],
    device: torch.device | str = "cpu",
) -> tuple[list[int], Mixture | None]:
    """Predictives of one regime that holds all labels so far, of series that warm up.

    coming: the inputs of the labels to predict; of a single series any number of them. Returns
    which of the series have one, those with two labels that differ, and a mixture of so many rows.
    """
    chosen = []
    labels = []
    moments = []
    for i, seen in enumerate(histories):
        values = columns.values(model, seen)
        if varied(values, model.y_dim):
            chosen.append(i)
            labels.append(columns.history(model, seen))
            moments.append(estimated(model, values, stated[i]))
    if not chosen:
        return [], None
    inputs = coming if len(histories) == 1 else [coming[i] for i in chosen]
    return chosen, _one_regime(model, labels, moments, inputs, device)


def scores(model: UnderlyingModel, mixture: Mixture, seen: Columns) -> list[float]:
    """Log density of each label under its provisional predictive; nan where there is none."""
    there = columns.labelled(model, seen.y)
    y = to_device(np.where(there[:, None], seen.filtered, 0.0), mixture.log_weight.device)
    densities = mixture.log_prob(y).cpu().numpy()
    listed: list[float] = np.where(there & np.isfinite(densities), densities, math.nan).tolist()
    return listed


def _one_regime(
    model: UnderlyingModel,
    histories: Sequence[Sequence[Labelled]],
    moments: Sequence[Moments],
    coming: Sequence[Sequence[float] | None],
    device: torch.device | str,
) -> Mixture:
    """Predictives of `provisional`, of labels with their inputs."""

    def tensor(values: Any) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)

    def encoded(inputs: Sequence[Sequence[float] | None]) -> Tensor | None:
        blank = [0.0] * model.x_dim
        return model.encode(tensor([x or blank for x in inputs]) if blank else None, context)

    locations, scales = zip(*moments, strict=True)
    (stats, _, context) = make_prior(model, tensor(locations), tensor(scales))
    nothing = [0.0] * model.y_dim
    for i in range(max(map(len, histories))):
        rows = [history[i] if i < len(history) else None for history in histories]
        phi = encoded([None if row is None else row[1] for row in rows])
        y = tensor([nothing if row is None else row[0] or nothing for row in rows])
        labelled = tensor([float(row is not None and row[0] is not None) for row in rows])
        stats = model.update(stats, phi, y, labelled.unsqueeze(-1))
        there = tensor([float(row is not None) for row in rows]).unsqueeze(-1) > 0
        context = torch.where(there, model.remember(context, y, labelled > 0), context)
    if len(histories) == 1:
        stats = tree_map(lambda leaf: leaf.expand(len(coming), *leaf.shape[1:]), stats)
        context = context.expand(len(coming), -1)
    components = model.predictive(stats, encoded(coming))
    return Mixture(torch.zeros(len(coming), 1, dtype=torch.float64, device=device), components)
