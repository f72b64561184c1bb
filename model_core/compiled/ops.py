"""Elementary functions of the mathematics as numba has them: without branches."""

from __future__ import annotations

import math
import sys
from types import ModuleType

from model_core.compiled.arithmetic import exp, expm1, half_erfc, log, log1p
from model_core.compiled.jit import fma, inlined
from model_core.maths import bound, ops

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


maximum, minimum, where = (inlined(each) for each in (ops.maximum, ops.minimum, ops.where))
