"""Resolution of coarse labels: the step of the grid that they lie on, and how it is filled.

A density knows no grid. Of labels that are whole numbers with a spread of half a one, some that
happen to be the same look like a new regime of no spread at all: the density of the same label
grows without a bound as the spread falls. Filters of such series therefore see each label spread
evenly over its step, as if it had not been rounded (dithering; L. Schuchman, "Dither signals and
their effect on quantization noise", 1964): a spread below that of the step is no news then.

What is added is no random number but the next of a sequence that fills the step evenly (of M.
Roberts, 2018: multiples of the powers of 1 / phi, where phi^(d + 1) = phi + 1), by the position of
the label: the same labels always give the same numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from model_core.upm.base import UnderlyingModel

Floats = NDArray[np.float64]
COARSE = 0.25  # of the scale: a finer grid adds half a per cent to the variance, or less
FEWEST_VALUES = 3  # two always lie on a grid: they tell of one if each came more than once
NEAR = 1e-6  # of a step, by which a label may be off


def resolution(
    model: UnderlyingModel, values: Sequence[Sequence[float]], scale: Sequence[float]
) -> list[float] | None:
    """Step of the grid that each output's labels lie on, 0 where it is fine, or there is none.

    None: of all of them. values: labels, nan where an output is missing, with inputs if they count.
    scale: of each.
    """
    if model.label != "real" or not values:
        return None
    columns = list(zip(*values, strict=True))[: model.y_dim]
    steps = [_step(column, own) for column, own in zip(columns, scale, strict=False)]
    return steps if any(steps) else None


def renewed(
    model: UnderlyingModel, y: Floats, scale: Sequence[float], known: list[float] | None
) -> list[float] | None:
    """The known resolution while labels (n, d) are on its grids, which few of them need not show.

    Else the one that they show.
    """
    if known is not None and all(map(_on_grid, y.T, known)):
        return known
    return resolution(model, y.tolist(), scale)


def _on_grid(labels: Floats, step: float) -> bool:
    there = labels[np.isfinite(labels)]
    if not step or not len(there):
        return True
    steps = (there - there[0]) / step
    return bool(np.abs(steps - steps.round()).max() <= NEAR)


def _step(column: Sequence[float], scale: float) -> float:
    counts = Counter(number for number in column if number == number)
    different = sorted(counts)
    if len(different) < 2 or (len(different) < FEWEST_VALUES and min(counts.values()) < 2):
        return 0.0
    step = min(after - before for before, after in pairwise(different))
    return step if step >= COARSE * scale and _on_grid(np.array(different), step) else 0.0


def dither(positions: Floats, outputs: int) -> Floats:
    """What is added to labels at these positions (n,), in steps: (n, outputs), in [-.5, .5)."""
    return np.modf((positions[:, None] + 1.0) * _multipliers(outputs))[0] - 0.5


@cache
def _multipliers(outputs: int) -> Floats:
    phi = 2.0
    for _ in range(64):  # more than it takes
        phi = (1.0 + phi) ** (1.0 / (outputs + 1))
    return np.asarray(phi ** -np.arange(1.0, outputs + 1))
