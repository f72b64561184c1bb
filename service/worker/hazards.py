"""Hazards as streams state them, and as the filter takes them."""

from __future__ import annotations

from functools import lru_cache

from model_core import hazard as tables
from model_core.upm.base import UnderlyingModel
from service.wire import Durations, Hazard, StreamSettings


def met(model: UnderlyingModel, settings: StreamSettings) -> tuple[Hazard | None, float]:
    """Hazard and outlier rate that an observation meets; None: the model's own table."""
    hazard = settings.hazard
    if hazard is None and isinstance(model.hazard, float):
        hazard = model.hazard
    rate = settings.outlier_rate
    return hazard, model.outlier_rate if rate is None else rate


def tabled(model: UnderlyingModel, met: list[Hazard | None]) -> list[list[float]]:
    """Hazards by run length, all as long as the longest: a last entry holds for all that follow."""
    rows = [_table(model.hazard if each is None else each) for each in met]
    longest = max(map(len, rows))
    return [[*row, *row[-1:] * (longest - len(row))] for row in rows]


def _table(hazard: Hazard) -> tuple[float, ...]:
    if isinstance(hazard, Durations):
        return _durations(hazard.mean, hazard.shape)
    return hazard if isinstance(hazard, tuple) else (hazard,)


@lru_cache(maxsize=256)
def _durations(mean: float, shape: float) -> tuple[float, ...]:
    return tables.negative_binomial(mean, shape)
