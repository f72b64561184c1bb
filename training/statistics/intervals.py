"""Means over sequences with their intervals, and differences of methods on the same sequences.

A sequence is one value: its steps depend on each other, sequences do not.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from model_core.components import StudentT
from model_core.predictive import Mixture

LEVEL = 0.95
DRAWS = 10_000
BLOCK = 2**22  # indices that the bootstrap draws together
Floats = NDArray[np.float64]


class Estimate(NamedTuple):
    """A mean and its interval, from `count` sequences; the interval of one sequence is nan."""

    mean: float
    low: float
    high: float
    count: int  # type: ignore[assignment]

    @property
    def half_width(self) -> float:
        """The longer half of the interval."""
        return max(self.mean - self.low, self.high - self.mean)

    def __str__(self) -> str:
        return formatted(self)


def estimate(values: ArrayLike, level: float = LEVEL) -> Estimate:
    """Mean of one value per sequence with its Student-t interval."""
    checked = _checked(values)
    mean = float(checked.mean())
    count = len(checked)
    if count == 1:
        return Estimate(mean, math.nan, math.nan, 1)
    error = float(checked.std(ddof=1)) / math.sqrt(count)
    reach = student_t_quantile(0.5 + level / 2, count - 1) * error
    return Estimate(mean, mean - reach, mean + reach, count)


def bootstrap(
    values: ArrayLike, generator: np.random.Generator, level: float = LEVEL, draws: int = DRAWS
) -> Estimate:
    """Mean of one value per sequence with its percentile bootstrap interval.

    For skewed values and at least some twenty sequences; of fewer it is too narrow.
    """
    checked = _checked(values)
    count = len(checked)
    block = max(1, BLOCK // count)
    means = [
        checked[generator.integers(count, size=(min(block, draws - done), count))].mean(-1)
        for done in range(0, draws, block)
    ]
    tail = (1 - level) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    alone = count == 1
    return Estimate(
        float(checked.mean()),
        math.nan if alone else float(low),
        math.nan if alone else float(high),
        count,
    )


def differences(ours: ArrayLike, theirs: ArrayLike) -> Floats:
    """Ours less theirs, sequence by sequence; both must be of the same sequences."""
    first = _checked(ours)
    second = _checked(theirs)
    if len(first) != len(second):
        raise ValueError(
            f"expected values of the same sequences, got {len(first)} and {len(second)}"
        )
    return first - second


def paired(
    ours: ArrayLike,
    theirs: ArrayLike,
    level: float = LEVEL,
    generator: np.random.Generator | None = None,
) -> Estimate:
    """Mean difference of two methods over the same sequences, ours less theirs.

    Student-t, or bootstrap with a generator.
    """
    values = differences(ours, theirs)
    return estimate(values, level) if generator is None else bootstrap(values, generator, level)


def formatted(value: Estimate, digits: int = 3) -> str:
    """Format as `-3.291 ± 0.074`, the longer half of the interval; only the mean without one."""
    if math.isnan(value.half_width):
        return f"{value.mean:.{digits}f}"
    return f"{value.mean:.{digits}f} ± {value.half_width:.{digits}f}"


def student_t_quantile(probability: float, df: float) -> float:
    """Quantile of the standard Student-t."""
    zero = torch.zeros(1, 1, 1, dtype=torch.float64)
    mixture = Mixture(zero[..., 0], StudentT(zero + df, zero, zero + 1))
    levels = torch.tensor([probability], dtype=torch.float64)
    return float(mixture.quantile(levels))


def _checked(values: ArrayLike) -> Floats:
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"expected one value per sequence, got an array of shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"expected finite values, got {int((~np.isfinite(array)).sum())} others")
    return array
