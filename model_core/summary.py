"""Summaries of the predictive mixtures of a batch, as compiled kernels make them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Summary:
    """Summaries (B, columns) of the predictive mixtures, by their parts.

    Of numbers: mean (d), covariance (d, d; inf where a variance does not exist), the cumulative
    probability (d) at the label and below it (of counts; else the same), nan without a label, and
    quantiles (d, Q). Of classes: their probabilities.
    """

    def __init__(self, numbers: Floats, outputs: int, support: str) -> None:
        """support: what labels are, as of `Components`."""
        self.numbers, self.outputs, self.support = numbers, outputs, support

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.numbers[:1].nbytes

    def rows(self, chosen: list[int]) -> Summary:
        """Some of the rows."""
        if chosen == list(range(len(self.numbers))):
            return self
        return Summary(self.numbers[chosen], self.outputs, self.support)

    def shifted(self, by: Floats) -> Summary:
        """Those of numbers that are larger by `by` (B,)."""
        shifted = Summary(self.numbers.copy(), self.outputs, self.support)
        shifted.mean[:] += by[:, None]
        shifted.quantiles[:] += by[:, None, None]
        return shifted

    @property
    def mean(self) -> Floats:
        """(B, d), of classes their probabilities (B, J)."""
        return self.numbers if self.support == "class" else self.numbers[:, : self.outputs]

    @property
    def covariance(self) -> Floats:
        """(B, d, d)."""
        d = self.outputs
        return self.numbers[:, d : d + d * d].reshape(-1, d, d)

    @property
    def cdf(self) -> Floats:
        """(B, d) probability of a label up to the one that came."""
        start = self.outputs + self.outputs**2
        return self.numbers[:, start : start + self.outputs]

    @property
    def cdf_below(self) -> Floats:
        """(B, d) probability of a label below the one that came."""
        start = 2 * self.outputs + self.outputs**2
        return self.numbers[:, start : start + self.outputs]

    @property
    def quantiles(self) -> Floats:
        """(B, Q, d)."""
        start = 3 * self.outputs + self.outputs**2
        rows = len(self.numbers)
        return self.numbers[:, start:].reshape(rows, self.outputs, -1).transpose(0, 2, 1)


def joined(parts: Sequence[Summary]) -> Summary:
    """The rows of several summaries of one model, in order."""
    first = parts[0]
    return Summary(np.concatenate([each.numbers for each in parts]), first.outputs, first.support)
