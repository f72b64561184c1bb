"""Elementary functions of numbers; each backend has its own (see `maths.bound`).

Those of what is not finite, or outside a domain, are nan or infinite, as IEEE 754 has them.
"""

from __future__ import annotations

import math


def exp(x: float) -> float:
    """Exponential."""
    return math.exp(x) if x < 709.0 else math.inf


def expm1(x: float) -> float:
    """`exp(x) - 1`, of all digits where x is small."""
    return math.expm1(x) if x < 709.0 else math.inf


def log(x: float) -> float:
    """Natural logarithm: -inf of 0, nan of what is below."""
    if x > 0:
        return math.log(x)
    return -math.inf if x == 0 else math.nan


def log1p(x: float) -> float:
    """`log(1 + x)`."""
    if x > -1:
        return math.log1p(x)
    return -math.inf if x == -1 else math.nan


def sqrt(x: float) -> float:
    """Square root: nan of what is below 0."""
    return math.sqrt(x) if x >= 0 else math.nan


def half_erfc(z: float) -> float:
    """`erfc(z) / 2`, the upper tail of a normal, of z >= 0."""
    return 0.5 * math.erfc(z)


def fma(a: float, b: float, c: float) -> float:
    """`a b + c`; rounded once where the backend can."""
    return a * b + c


def maximum(a: float, b: float) -> float:
    """The larger one."""
    return a if a > b else b


def minimum(a: float, b: float) -> float:
    """The smaller one."""
    return a if a < b else b


def where(condition: bool, chosen: float, otherwise: float) -> float:
    """One of two, both of which are computed."""
    return chosen if condition else otherwise
