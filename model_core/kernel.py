"""The step of a batch as one call, by model and device.

Every kernel computes what `filter.step` computes; they differ in speed alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from model_core import filter as moca
from model_core import readout
from model_core.filter import FilterState, Inputs, Prior
from model_core.predictive import Mixture
from model_core.upm.base import UnderlyingModel


class Stepped(NamedTuple):
    """The states after a step, the predictive mixture before it, and the table of `readout`."""

    state: FilterState
    predictive: Mixture
    table: Tensor


# Arguments: states, priors, inputs; confirmed (B,) and thresholds (B,) as in `readout.table`.
Kernel = Callable[[FilterState, Prior, Inputs, Tensor, Tensor], Stepped]


def select(model: UnderlyingModel, device: torch.device | str, recent_window: int) -> Kernel:
    """Return the kernel for a model on a device; the eager one serves all."""

    def eager(
        state: FilterState, prior: Prior, inputs: Inputs, confirmed: Tensor, thresholds: Tensor
    ) -> Stepped:
        state, info = moca.step(model, state, prior, inputs)
        table = readout.table(state, info, confirmed, thresholds, recent_window)
        return Stepped(state, info.predictive, table)

    return eager
