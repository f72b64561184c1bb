"""Hazards as streams state them, and as the filter takes them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

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


def tabled(model: UnderlyingModel, met: list[Hazard | None], device: str) -> Tensor:
    """Hazards by run length (B, H), H that of the longest: a last entry holds on."""
    stated = [model.hazard if each is None else each for each in met]
    if all(isinstance(each, float) for each in stated):
        return torch.tensor([[each] for each in stated], dtype=torch.float64, device=device)
    # Tables may have thousands of entries: they are made once, and copied as tensors.
    rows = [_table(_key(each), device) for each in stated]
    longest = max(map(len, rows))
    return torch.stack([torch.cat((row, row[-1:].expand(longest - len(row)))) for row in rows])


def _key(hazard: Hazard) -> tuple[float, ...] | tuple[tuple[float, float]]:
    """What a table is remembered by: its entries, or mean and shape of durations."""
    if isinstance(hazard, Durations):
        return ((hazard.mean, hazard.shape),)
    return hazard if isinstance(hazard, tuple) else (hazard,)


@lru_cache(maxsize=256)
def _table(key: tuple[Any, ...], device: str) -> Tensor:
    entries = tables.negative_binomial(*key[0]) if isinstance(key[0], tuple) else key
    return torch.tensor(entries, dtype=torch.float64, device=device)
