"""Compiled steps: `filter.step` on rows in place, at the price of its arithmetic.

The eager filter is the specification; a kernel differs from it by rounding alone, and refuses every
row whose numbers are not finite. Models of a class that has a kernel are stepped by it on the CPU;
the eager filter steps all others, and those on other devices.

Kernels are compiled at installation, by `python -m model_core.compiled`, and loaded from its cache.
"""

from __future__ import annotations

from importlib import import_module
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model_core.upm.base import UnderlyingModel
from model_core.upm.conjugate import Conjugate

if TYPE_CHECKING:
    from model_core.compiled.kernel import Kernel
    from model_core.compiled.step import Functions, Model

Floats = NDArray[np.float64]
# Columns of the inputs of a row; the label's and the input's numbers follow.
LABELLED, ELAPSED, CHANGEPOINT, OUTLIER_RATE, SETTLED, SINCE, THRESHOLD, LABEL = range(8)
# What a kernel is called with where quantiles, beliefs after each step, or labels that are drawn
# are not wanted.
NO_LEVELS = np.empty((2, 0))
NO_BELIEFS = np.empty((0, 2, 0))
NO_NOISE = np.empty((0, 2, 0))


class Run(NamedTuple):
    """Observations (B) of one row, of which those after the first that is not quiet are left.

    That is the first that moves an event, raises an alarm or is refused. suspected: start of the
    event under suspicion; -1: none. alarm: least anomaly that raises one. ranks: the row's state of
    `anomaly`, which moves. labels: (B, d) as that takes them. anomalies: (B,) to be filled in.
    """

    suspected: int
    alarm: float
    ranks: Floats
    labels: Floats
    anomalies: Floats


# Of several rows: no observation is left.
NO_RUN = Run(-1, inf, np.empty(0), np.empty((0, 0)), np.empty(0))

# Which module below `models` has the sizes and functions of a model (`of`), by the module of its
# class below `upm`; that of conjugate models is `conjugate`, wherever they are.
KERNELS = {
    "averaged": "averaged",
    "joint": "joint",
    "linear": "regression",
    "multivariate": "multivariate",
    "alpaca": "regression",
    "pcoc": "pcoc",
    "fleet": "fleet",
}


def kernel_of(model: UnderlyingModel) -> Kernel | None:
    """Return the kernel of a model, compiled or loaded from the cache; None: it has none.

    Loading the first of a class takes a fraction of a second, compiling it up to a minute, which it
    says. Models of one class share what is compiled, whatever their sizes and weights. Any thread
    may call this.
    """
    parts = parts_of(model)
    if parts is None:
        return None
    from model_core.compiled.kernel import Kernel  # numba: half a second

    return Kernel(model, *parts)


def parts_of(model: UnderlyingModel) -> tuple[Model, Functions] | None:
    """Sizes of a model and what it computes in a step; None: it has no kernel."""
    # Of the class itself: a subclass elsewhere may compute something else.
    package, _, name = type(model).__module__.rpartition(".")
    kind = "conjugate" if isinstance(model, Conjugate) else KERNELS.get(name)
    if package != "model_core.upm" or kind is None:
        return None
    parts: tuple[Model, Functions] | None
    parts = import_module(f"model_core.compiled.models.{kind}").of(model)
    return parts
