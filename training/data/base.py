"""Batches of windows of unsegmented series, and the sources they are drawn from."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from model_core import transfer


class Batch(NamedTuple):
    """Windows of `T` observations from `B` places.

    x: (B, T, x_dim), or None for a model of labels alone. y: (B, T, y_dim), nan where a label is
    missing; class indices have y_dim 1. switch: (B, T) whether a regime starts at each observation,
    None if unknown; only oracles and supervision read it.
    """

    x: Tensor | None
    y: Tensor
    switch: Tensor | None = None

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Batch:
        """The windows on another device; the host does not wait for the copies."""
        # Numbers are rounded here: a copy to a GPU that rounds them too is waited for.
        x = None if self.x is None else transfer.to_device(self.x.to(dtype), device)
        switch = None if self.switch is None else transfer.to_device(self.switch, device)
        return Batch(x, transfer.to_device(self.y.to(dtype), device), switch)

    def part(self, at: slice) -> Batch:
        """Some of the windows."""
        x = None if self.x is None else self.x[at]
        switch = None if self.switch is None else self.switch[at]
        return Batch(x, self.y[at], switch)


class Source(Protocol):
    """Source of windows; the generator is the only randomness, so a seed reproduces the draws."""

    def draw(self, generator: torch.Generator, count: int, length: int) -> Batch:
        """`count` windows of `length` observations, each of one unsegmented series."""
        ...


class Splits(NamedTuple):
    """Sources of the same kind of series that share no observation."""

    train: Source
    validation: Source
    test: Source
    x_dim: int
    y_dim: int
    classes: int = 0  # number of classes of labels that are class indices
