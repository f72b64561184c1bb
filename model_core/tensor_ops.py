"""Elementary functions of the mathematics as torch has them: of whole tensors."""

from __future__ import annotations

import sys
from types import ModuleType

from torch import Tensor, erfc, exp, log, log1p, sqrt, where

from model_core.maths import bound

__all__ = [
    "exp",
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


def half_erfc(z: Tensor) -> Tensor:
    """`erfc(z) / 2`."""
    return 0.5 * erfc(z)


def fma(a: Tensor, b: Tensor | float, c: Tensor | float) -> Tensor:
    """`a b + c`."""
    return a * b + c


def maximum(a: Tensor, b: float | Tensor) -> Tensor:
    """The larger one."""
    return a.clamp(min=b)


def minimum(a: Tensor, b: float | Tensor) -> Tensor:
    """The smaller one."""
    return a.clamp(max=b)
