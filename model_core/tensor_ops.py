"""Elementary functions of the mathematics as torch has them: of whole tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

from model_core.lazy import Tensor, torch
from model_core.maths import bound
from model_core.maths.ops import fma as fma


def maths(name: str) -> ModuleType:
    """A module of `model_core.maths` for tensors."""
    return bound(name, sys.modules[__name__])


def _of_torch(name: str) -> Callable[..., Tensor]:
    """A function of torch, which is imported with the first call."""
    return lambda *arguments: getattr(torch, name)(*arguments)


exp, expm1, log, log1p, sqrt, where = map(
    _of_torch, ("exp", "expm1", "log", "log1p", "sqrt", "where")
)


def half_erfc(z: Tensor) -> Tensor:
    """`erfc(z) / 2`."""
    return 0.5 * torch.erfc(z)


def maximum(a: Tensor, b: float | Tensor) -> Tensor:
    """The larger one."""
    return a.clamp(min=b)


def minimum(a: Tensor, b: float | Tensor) -> Tensor:
    """The smaller one."""
    return a.clamp(max=b)
