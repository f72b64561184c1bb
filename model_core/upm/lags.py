"""Labels before as features: of a stream, not of a hypothesis, and hardly moved by an outlier.

A model with `p` lags of `d` outputs keeps them as its context (B, 1 + (4 + p) d): time, location,
scale, the two last labels and the lags, the latest first and in the stream's units.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from model_core.lazy import Tensor, torch
from model_core.tensor_ops import maths
from model_core.upm.base import Floats

_CONTEXT = maths("context")
Values = TypeVar("Values", Floats, Tensor)


def begin(location: Values, scale: Values, order: int) -> Values:
    """Context of streams before their first label; location, scale: (B, d).

    In training they are tensors, and stay on their device.
    """
    batch, outputs = location.shape
    labels = (2 + order) * outputs
    if isinstance(location, np.ndarray):
        return np.hstack((np.zeros((batch, 1)), location, scale, np.zeros((batch, labels))))
    nothing = location.new_zeros(batch, 1 + labels)
    return torch.cat((nothing[:, :1], location, scale, nothing[:, 1:]), -1)


def advance(context: Tensor, y: Tensor, labelled: Tensor) -> Tensor:
    """Context one observation later; y: (B, d), anything where not `labelled`.

    labelled: (B,), or (B, d) by output.
    """
    time, location, scale, recent, lags = _parts(context, y.shape[-1])
    if lags.shape[-1]:
        recent, lags = push(recent, lags, _CONTEXT.in_units(y, location, scale), labelled)
    return torch.cat((time + 1, location, scale, recent, lags), -1)


def read(context: Tensor, outputs: int) -> tuple[Tensor, Tensor]:
    """Time (B, 1) and lags (B, p d)."""
    time, *_, lags = _parts(context, outputs)
    return time, lags


def push(recent: Tensor, lags: Tensor, value: Tensor, labelled: Tensor) -> tuple[Tensor, Tensor]:
    """Take in a label; all in scales of the stream.

    recent: (B, 2 d) the two last labels, the latest first. lags: (B, p d) the features, the latest
    first. value: (B, d). labelled: (B,) or (B, d); where it is not, the latest lag stands in.
    """
    one, two = recent.chunk(2, -1)
    there = labelled if labelled.dim() > 1 else labelled.unsqueeze(-1)
    d = value.shape[-1]
    latest = torch.where(there, _CONTEXT.lag_of(value, one, two), lags[:, :d])
    recent = torch.cat((torch.where(there, value, one), torch.where(there, one, two)), -1)
    return recent, torch.cat((latest, lags[:, :-d]), -1)


def _parts(context: Tensor, outputs: int) -> tuple[Tensor, ...]:
    ends = [1, 1 + outputs, 1 + 2 * outputs, 1 + 4 * outputs]
    return torch.tensor_split(context, ends, -1)
