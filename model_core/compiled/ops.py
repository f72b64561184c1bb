"""Elementary functions of the mathematics as numba has them: without branches."""

from __future__ import annotations

import math
import sys
from types import ModuleType

from model_core.compiled.arithmetic import exp, expm1, half_erfc, log, log1p
from model_core.compiled.jit import fma, inlined
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
    """A module of `model_core.maths`, its functions compiled into their callers."""
    return bound(name, sys.modules[__name__], inlined)


@inlined
def sqrt(x: float) -> float:
    """Square root: nan of what is below 0."""
    return math.sqrt(x)


@inlined
def maximum(a: float, b: float) -> float:
    """The larger one."""
    return a if a > b else b


@inlined
def minimum(a: float, b: float) -> float:
    """The smaller one."""
    return a if a < b else b


@inlined
def where(condition: bool, chosen: float, otherwise: float) -> float:
    """One of two, both of which are computed."""
    return chosen if condition else otherwise
