"""A model beside its reference, and numbers that no generator decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from model_core import filter as moca
from model_core.filter import Prior
from model_core.upm.base import UnderlyingModel
from tests.model_core.reference import Reference

Draw = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]


class Case(NamedTuple):
    """A model, one stream's location and scale, the reference, and labels it may well see.

    reference: of windows, None where a window has no likelihood of its own.
    """

    name: str
    model: UnderlyingModel
    location: np.ndarray
    scale: np.ndarray
    reference: Reference | None
    draw: Draw

    def prior(self, batch: int = 1) -> Prior:
        location, scale = (tensor(np.tile(a, (batch, 1))) for a in (self.location, self.scale))
        return moca.make_prior(self.model, location, scale)


def tensor(value) -> Tensor:
    return torch.as_tensor(np.asarray(value), dtype=torch.float64)


def irregular(*shape: int, seed: int) -> np.ndarray:
    """Numbers of both signs, of variance about one, that no library's generator decides."""
    return 1.4 * np.sin(seed + 12.9898 * np.arange(np.prod(shape)) ** 1.5).reshape(shape)
