"""Warm-up of the zero-training models: location and scale from the first labels of a stream."""

from __future__ import annotations

from collections.abc import Sequence

from model_core import warmup
from model_core.predictive import Mixture
from model_core.upm.base import UnderlyingModel
from model_core.warmup import complete, varied
from service.wire import Record, StreamSettings, numbers

__all__ = ["complete", "estimate", "given", "provisional", "values_of", "varied"]


def given(
    settings: StreamSettings, model: UnderlyingModel
) -> tuple[list[float], list[float]] | None:
    """Location and scale that need no warm-up, if any."""
    return warmup.given(model, settings.location, settings.scale)


def values_of(records: Sequence[Record], model: UnderlyingModel) -> list[list[float]]:
    """What location and scale are taken from: the labels there are, with inputs if they count.

    Labels are less their seasons.
    """
    labelled = [record for record in records if record.y is not None]
    if not model.scales_inputs:
        return [filtered(record) for record in labelled]
    return [[*filtered(record), *(record.x or [])] for record in labelled]


def filtered(record: Record) -> list[float]:
    """Label as the filter sees it."""
    y = numbers(record.y)
    return [value - record.offset for value in y] if record.offset else y


def estimate(
    values: list[list[float]], settings: StreamSettings, model: UnderlyingModel
) -> tuple[list[float], list[float]]:
    """Location and scale of a stream: those of its settings, else those of its first labels."""
    location, scale = warmup.estimate(values, model)
    return settings.location or location, settings.scale or scale


def provisional(
    model: UnderlyingModel,
    histories: Sequence[Sequence[Record]],
    settings: list[StreamSettings],
    coming: list[list[float] | None],
    device: str,
) -> Mixture:
    """Predictive of one regime that holds all labels so far, for each stream; no changepoints.

    histories: records of each stream, with at least two labels that differ. coming: the inputs of
    the labels to predict; of a single stream any number of them.
    """

    pairs = zip(histories, settings, strict=True)
    moments = [estimate(values_of(records, model), s, model) for records, s in pairs]
    labelled = [
        [(filtered(record) or None, record.x) for record in records] for records in histories
    ]
    return warmup.provisional(model, labelled, moments, coming, device)
