"""Summaries of the predictive mixtures of a batch, by their numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_core.predictive import Mixture

# Of a quantile's last step, in standard deviations: an error of about 1e-8.
PRECISION = 1e-4
Floats = NDArray[np.float64]


class Summary:
    """Summaries (B, columns) of the predictive mixtures, by their parts.

    Of numbers: mean (d), covariance (d, d; inf where a variance does not exist), the cumulative
    probability (d) at the label and below it (of counts; else the same), nan without a label, and
    quantiles (d, Q). Of classes: their probabilities.
    """

    def __init__(self, numbers: Floats, outputs: int, support: str) -> None:
        """support: what labels are, as of `Components`."""
        self.numbers = numbers
        self.outputs = outputs
        self.support = support

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


def of(mixture: Mixture, y: Tensor, levels: Sequence[float]) -> Floats:
    """Numbers (B, columns) of the summaries of mixtures, on the host.

    y: (B, d) labels, nan where missing. levels: of quantiles, ascending.
    """
    if mixture.components.support == "class":
        return np.asarray(mixture.mean().numpy())
    missing = ~torch.isfinite(y)
    at = torch.where(missing, 0.0, y)
    step = float(mixture.components.support in ("count", "binary"))
    cdf = torch.where(missing, torch.nan, mixture.cdf(at))
    below = torch.where(missing, torch.nan, mixture.cdf(at - step))
    quantiles = mixture.mean()[:, :0]
    if mixture.components.support != "binary":
        rising = mixture.quantile(torch.tensor(levels, dtype=torch.float64), PRECISION)
        quantiles = rising.cummax(1).values.transpose(1, 2)
    parts = (mixture.mean(), mixture.covariance(), cdf, below, quantiles)
    return np.asarray(torch.cat([part.flatten(1) for part in parts], 1).numpy())
