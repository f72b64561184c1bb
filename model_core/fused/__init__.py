"""Fused steps for a GPU: `filter.step` on rows where they lie.

The eager filter is the specification; a kernel differs from it by rounding alone, and leaves to it
every row whose numbers are not finite. Triton comes with torch's builds for CUDA: without it, and
for models that have no kernel here, `kernel_of` returns None, and everything is computed eagerly.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from model_core.upm.base import UnderlyingModel

if TYPE_CHECKING:
    from model_core.fused.kernel import Kernel

# Module below `models` whose `of` makes the parts of a model, by class of the model.
_MODELS = {
    "model_core.upm.conjugate:Gaussian": "gaussian",
    "model_core.upm.alpaca:Alpaca": "alpaca",
}


def available() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def kernel_of(
    model: UnderlyingModel, max_hypotheses: int, device: torch.device | str
) -> Kernel | None:
    """Return the kernel of rows of a model on a device; None: it has none, or Triton is missing.

    It is not compiled yet. A subclass of a model may compute something else, and has none.
    """
    name = _MODELS.get(f"{type(model).__module__}:{type(model).__qualname__}")
    if name is None or not available():
        return None
    from model_core.fused.kernel import Kernel

    parts = import_module(f"model_core.fused.models.{name}").of(model)
    return None if parts is None else Kernel(model, parts, max_hypotheses, device)
