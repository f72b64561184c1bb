"""Functions compiled for a device by Triton: they work on a row's numbers as vectors over slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import triton

F = TypeVar("F")


def compiled(function: F) -> F:
    """Have a function compiled when a kernel calls it."""
    decorated: F = triton.jit(function)
    return decorated


def entry(*changing: str) -> Callable[[F], F]:
    """Have a kernel compiled once for all values of its numbers named here."""

    def decorate(function: F) -> F:
        decorated: F = triton.jit(function, do_not_specialize=list(changing))
        return decorated

    return decorate
