"""torch, imported where it is first used.

Built-in models are stepped by their kernels, which need none of it: without torch they start ten
times as fast, in a quarter of the memory, and also where it is not installed.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

from model_core.errors import MissingTorch

if TYPE_CHECKING:
    import torch as torch
    from torch import Tensor as Tensor
else:
    Tensor = "torch.Tensor"  # in annotations alone, which nobody evaluates

    class _Lazy:
        """The module, once one of its names is asked for."""

        def __getattr__(self, name: str) -> Any:
            return getattr(load(), name)

    torch = _Lazy()


def load() -> ModuleType:
    """The module, imported at the first call, which takes a second or more.

    Raises MissingTorch where it is not installed.
    """
    try:
        import torch as module
    except ModuleNotFoundError as error:
        raise MissingTorch(
            "this needs torch, which is not installed: pip install 'moca-core[torch]'; built-in "
            "models do without, but for actions, components and samples of a prediction, and "
            "devices other than the CPU"
        ) from error
    return module


def loaded() -> bool:
    """Whether it was imported by now."""
    return sys.modules.get("torch") is not None


def is_tensor(value: object) -> TypeGuard[Tensor]:
    """Whether a value is a tensor; none is where nobody has imported torch."""
    module = sys.modules.get("torch")
    return module is not None and isinstance(value, module.Tensor)
