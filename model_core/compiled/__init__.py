"""Compiled steps: `filter.step` on rows in place, at the price of its arithmetic.

The eager filter is the specification; a kernel differs from it by rounding alone, and refuses every
row whose numbers are not finite. Models of a class that has a kernel are stepped by it on the CPU;
the eager filter steps all others, and those on other devices.

Kernels are compiled at installation, by `python -m model_core.compiled`, and loaded from its cache.
"""

from __future__ import annotations

from importlib import import_module
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


# What an observation leaves as it is if it is quiet: start of the event under suspicion (-1: none),
# position of the first that has to be looked at, least anomaly that raises an alarm.
REST = SUSPECTED, UNTIL, ALARM = range(3)


class Runs(NamedTuple):
    """Observations (B), those of a row after each other: after one that is not quiet they are left.

    That is one that moves an event, raises an alarm, has to be looked at or is refused. rest: (B,
    3) numbers of `REST`. ranks: (R, size) states of `anomaly`, which move; places: (B,) of each.
    labels: (B, d) as those take them. anomalies (B,) and quiet (B,) are to be filled in.
    """

    rest: Floats
    ranks: Floats
    places: NDArray[np.int64]
    labels: Floats
    anomalies: Floats
    quiet: NDArray[np.bool_]

    @classmethod
    def begin(cls, rest: Floats, ranks: Floats, places: NDArray[np.int64], labels: Floats) -> Runs:
        """Have nothing filled in."""
        count = len(rest)
        return cls(rest, ranks, places, labels, np.full(count, np.nan), np.zeros(count, np.bool_))

    def part(self, chosen: slice) -> Runs:
        """Some of the observations."""
        rest, ranks, places, labels, anomalies, quiet = self
        return Runs(
            rest[chosen], ranks, places[chosen], labels[chosen], anomalies[chosen], quiet[chosen]
        )


# No observation is left.
NO_RUNS = Runs.begin(
    np.empty((0, len(REST))), np.empty((0, 0)), np.empty(0, np.int64), np.empty((0, 0))
)

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
