"""Elementary functions of the mathematics as torch has them: of whole tensors."""

from __future__ import annotations

import sys
from types import ModuleType

from model_core.lazy import Tensor, torch
from model_core.maths import bound

__all__ = [
    "exp",
    "expm1",
    "fma",
    "half_erfc",
    "log",
    "log1p",
    "maths",
    "maximum",
    "minimum",
    "sqrt",
    "where",
]


def maths(name: str) -> ModuleType:
    """A module of `model_core.maths` for tensors."""
    return bound(name, sys.modules[__name__])


def exp(x: Tensor) -> Tensor:
    """Exponential."""
    return torch.exp(x)


def expm1(x: Tensor) -> Tensor:
    """`exp(x) - 1`."""
    return torch.expm1(x)


def log(x: Tensor) -> Tensor:
    """Natural logarithm."""
    return torch.log(x)


def log1p(x: Tensor) -> Tensor:
    """`log(1 + x)`."""
    return torch.log1p(x)


def sqrt(x: Tensor) -> Tensor:
    """Square root."""
    return torch.sqrt(x)


def where(condition: Tensor, chosen: Tensor | float, otherwise: Tensor | float) -> Tensor:
    """`chosen` where the condition holds, else `otherwise`."""
    return torch.where(condition, chosen, otherwise)


def half_erfc(z: Tensor) -> Tensor:
    """`erfc(z) / 2`."""
    return 0.5 * torch.erfc(z)


def fma(a: Tensor, b: Tensor | float, c: Tensor | float) -> Tensor:
    """`a b + c`."""
    return a * b + c


def maximum(a: Tensor, b: float | Tensor) -> Tensor:
    """The larger one."""
    return a.clamp(min=b)


def minimum(a: Tensor, b: float | Tensor) -> Tensor:
    """The smaller one."""
    return a.clamp(max=b)
