"""Labels before as features: of a stream, not of a hypothesis, and hardly moved by an outlier."""

from __future__ import annotations

import torch
from torch import Tensor

REACH = 2.0  # scales that a lag may lie beyond the two labels before it


def push(recent: Tensor, lags: Tensor, value: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """Take in a label; all in scales of the stream.

    recent: (B, 2 d) the two last labels, the latest first. lags: (B, p d) the features, the latest
    first. value: (B, d). known: (B,); where it is not, the latest lag stands in for it.

    A lag follows its label no farther than `REACH` beyond the two before it. A single outlier,
    which no hypothesis learns from, would else be a lever on the forecast of the next label; a jump
    that lasts is followed in full one label later.
    """
    one, two = recent.chunk(2, -1)
    low, high = torch.minimum(one, two) - REACH, torch.maximum(one, two) + REACH
    there, d = known.unsqueeze(-1), value.shape[-1]
    latest = torch.where(there, torch.maximum(low, torch.minimum(high, value)), lags[:, :d])
    recent = torch.where(there, torch.cat((value, one), -1), recent)
    return recent, torch.cat((latest, lags[:, :-d]), -1)
