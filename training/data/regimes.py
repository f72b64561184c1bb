"""Random regimes, for sources of generated streams."""

from __future__ import annotations

import torch
from torch import Tensor


def checked_hazard(hazard: float) -> float:
    """Return the hazard; ValueError outside [0, 1]."""
    if not 0 <= hazard <= 1:
        raise ValueError(f"expected a hazard in [0, 1], got {hazard}")
    return hazard


def switches(generator: torch.Generator, count: int, length: int, hazard: float) -> Tensor:
    """Whether a regime starts at each observation: (count, length) bool.

    The first observation starts one; every later one does with probability `hazard`.
    """
    switch = torch.rand(count, length, generator=generator, dtype=torch.float64) < hazard
    switch[:, :1] = True
    return switch


def held(values: Tensor, switch: Tensor) -> Tensor:
    """Values held from the start of each regime.

    values: (B, T, ...), one independent draw per observation. switch: (B, T), true at 0.
    """
    at = torch.where(switch, torch.arange(switch.shape[1]), 0).cummax(1).values
    rows = torch.arange(switch.shape[0])[:, None]
    return values[rows, at]


def below(generator: torch.Generator, bound: Tensor) -> Tensor:
    """Integers uniform on 0 ... bound - 1, one for each positive integer `bound`."""
    share = torch.rand(bound.shape, generator=generator, dtype=torch.float64)
    return (share * bound).long().clamp(max=bound - 1)
