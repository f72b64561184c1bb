"""Batches of windows of unsegmented series, the sources they are drawn from, and random regimes."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from model_core import transfer


class Batch(NamedTuple):
    """Windows of `T` observations from `B` places.

    x: (B, T, x_dim), or None for a model of labels alone. y: (B, T, y_dim), nan where a label is
    missing; class indices have y_dim 1. switch: (B, T) whether a regime starts at each observation,
    None if unknown; only oracles and supervision read it. elapsed: (B, T) time since the
    observation before, in units of the hazard, None for 1; that of the first is not read.
    """

    x: Tensor | None
    y: Tensor
    switch: Tensor | None = None
    elapsed: Tensor | None = None

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Batch:
        """The windows on another device; the host does not wait for the copies."""
        # Numbers are rounded here: a copy to a GPU that rounds them too is waited for.
        x, y, elapsed = (
            None if each is None else transfer.to_device(each.to(dtype), device)
            for each in (self.x, self.y, self.elapsed)
        )
        assert y is not None
        switch = None if self.switch is None else transfer.to_device(self.switch, device)
        return Batch(x, y, switch, elapsed)

    def part(self, at: slice | Tensor) -> Batch:
        """Some of the windows."""
        x, switch, elapsed = (
            None if each is None else each[at] for each in (self.x, self.switch, self.elapsed)
        )
        return Batch(x, self.y[at], switch, elapsed)

    def cut(self, start: int, stop: int) -> Batch:
        """Observations [start, stop) of every window."""
        x, switch, elapsed = (
            None if each is None else each[:, start:stop]
            for each in (self.x, self.switch, self.elapsed)
        )
        return Batch(x, self.y[:, start:stop], switch, elapsed)


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
