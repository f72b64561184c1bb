"""The protocol of an underlying predictive model (UPM): what the filter asks of it.

Statistics are a NamedTuple of tensors `(B, S, ...)`: one posterior per stream and hypothesis.
A prior is the same NamedTuple with `S = 1`. Nothing here knows about run lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from model_core.components import Components

Stats = Any  # a NamedTuple of tensors; each model has its own
S = TypeVar("S")


class UnderlyingModel(Protocol):
    """A Bayesian model whose posterior statistics can be updated one observation at a time."""

    @property
    def kind(self) -> str:
        """Name of the family, kept in artifacts and stored states."""
        ...

    @property
    def label(self) -> str:
        """What labels are: real, count or binary."""
        ...

    @property
    def x_dim(self) -> int:
        """Numbers in an input; 0: takes none."""
        ...

    @property
    def y_dim(self) -> int:
        """Numbers in a label."""
        ...

    @property
    def needs_scale(self) -> bool:
        """Whether the prior depends on a stream's location and scale."""
        ...

    @property
    def hazard(self) -> float:
        """Default hazard."""
        ...

    @property
    def outlier_rate(self) -> float:
        """Default outlier rate."""
        ...

    @property
    def symmetric(self) -> tuple[str, ...]:
        """Statistics whose last two axes are a symmetric matrix."""
        ...

    def prior(self, location: Tensor, scale: Tensor) -> Stats:
        """`eta_0` of each stream, `S = 1`; location, scale: (B, y_dim), read if `needs_scale`."""
        ...

    def encode(self, x: Tensor | None) -> Tensor | None:
        """Features (B, n) of inputs (B, x_dim)."""
        ...

    def input_log_prob(self, stats: Stats, phi: Tensor | None) -> Tensor | None:
        """`log p(x | eta)` (B, S) of a generative model, else None (paper, eq. 2)."""
        ...

    def predictive(self, stats: Stats, phi: Tensor | None) -> Components:
        """`p(y | x, eta)` for every hypothesis (B, S)."""
        ...

    def outlier(self, prior: Stats, phi: Tensor | None) -> Components | None:
        """What an outlier is drawn from (B, 1): the prior predictive, much wider; None: nothing."""
        ...

    def update(self, stats: Stats, phi: Tensor | None, y: Tensor, weight: Tensor) -> Stats:
        """`eta' = h(x, y, eta)` (paper, sec. 4); y: (B, y_dim); weight: (B, S) in [0, 1]."""
        ...


def tree_map(function: Callable[..., Tensor], stats: S, *others: S) -> S:
    """Apply a function to each tensor of a NamedTuple (and its mates); returns the same type."""
    return type(stats)(*(function(*each) for each in zip(stats, *others, strict=True)))  # type: ignore[call-overload]


def over(mask: Tensor, like: Tensor) -> Tensor:
    """Append axes to `mask` (B, S) so that it broadcasts over `like` (B, S, ...)."""
    return mask.reshape(mask.shape + (1,) * (like.dim() - mask.dim()))


def select(mask: Tensor, chosen: S, otherwise: S) -> S:
    """Statistics `chosen` where `mask` (B, S), else `otherwise`."""
    return tree_map(lambda a, b: torch.where(over(mask, b), a, b), chosen, otherwise)
