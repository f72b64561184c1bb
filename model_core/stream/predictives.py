"""Predictives of the rows of a batch: their summaries, and where they are asked for themselves."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from model_core.lazy import Tensor
from model_core.predictive import Mixture
from model_core.summary import Summary

Floats = NDArray[np.float64]
Moments = tuple[list[float], list[float]]  # mean and standard deviation, by output


class MixtureRow(NamedTuple):
    """One row of a batch's mixture.

    run_length: (S,) of its components, of which one beyond S is the outliers'.
    """

    mixture: Mixture
    row: int
    run_length: Tensor


class SummaryRow(NamedTuple):
    """One row of a batch's summaries, which are of labels less their seasons."""

    summary: Summary
    row: int

    def numbers(self, offset: float) -> Floats:
        """Numbers of the `Summary` of the labels; offset: their season."""
        own = self._alone()
        shifted = own.shifted(np.array([offset])) if offset else own
        numbers: Floats = shifted.numbers[0]
        return numbers

    def moments(self) -> Moments | None:
        """Mean and standard deviation; None of classes. nan or inf: has none."""
        alone = self._alone()
        if alone.support in ("class", "binary"):
            return None
        variances = np.diagonal(alone.covariance[0])
        deviation: list[float] = np.sqrt(np.maximum(variances, 0.0)).tolist()
        return alone.mean[0].tolist(), deviation

    def _alone(self) -> Summary:
        """The row itself, a view."""
        numbers = self.summary.numbers[self.row : self.row + 1]
        return Summary(numbers, self.summary.outputs, self.summary.support)
