"""The warm-up of a series: location and scale from its first labels, and forecasts until then."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from model_core import warmup
from model_core.predictive import Mixture
from model_core.stream import columns
from model_core.stream.columns import Columns
from model_core.stream.state import StatedMoments
from model_core.upm.base import UnderlyingModel
from model_core.warmup import Moments


def given(model: UnderlyingModel, stated: StatedMoments) -> Moments | None:
    """Location and scale that need no warm-up, if any."""
    return warmup.given(model, stated.location, stated.scale)


def estimated(model: UnderlyingModel, values: list[list[float]], stated: StatedMoments) -> Moments:
    """Location and scale: those stated, else those of labels."""
    location, scale = warmup.estimate(values, model)
    return stated.location or location, stated.scale or scale


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
        if warmup.varied(values, model.y_dim):
            chosen.append(i)
            labels.append(columns.history(model, seen))
            moments.append(estimated(model, values, stated[i]))
    if not chosen:
        return [], None
    inputs = coming if len(histories) == 1 else [coming[i] for i in chosen]
    return chosen, warmup.provisional(model, labels, moments, inputs, device)
