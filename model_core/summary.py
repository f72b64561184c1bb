"""Summaries of the predictive mixtures of a batch, by their numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from model_core.lazy import Tensor, torch
from model_core.predictive import Mixture
from model_core.transfer import on_host, to_device, to_host

PART_BYTES = 64 << 20  # of the covariances of all components of the rows summarised at once
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
        return self.numbers.strides[0]

    def rows(self, chosen: slice | list[int] | NDArray[np.int64]) -> Summary:
        """Some of the rows."""
        return Summary(self.numbers[chosen], self.outputs, self.support)

    def shifted(self, by: Floats) -> Summary:
        """Those of numbers that are larger by `by` (B, d)."""
        shifted = Summary(self.numbers.copy(), self.outputs, self.support)
        shifted.mean[:] += by
        shifted.quantiles[:] += by[:, None]
        return shifted

    def at(self, chosen: Sequence[int]) -> Summary:
        """With some of the quantiles."""
        if self.support == "class" or not self.quantiles.size:
            return self
        quantiles = self.quantiles[:, chosen].transpose(0, 2, 1).reshape(len(self.numbers), -1)
        own = self.numbers[:, : 3 * self.outputs + self.outputs**2]
        return Summary(np.hstack((own, quantiles)), self.outputs, self.support)

    @property
    def lacking(self) -> NDArray[np.int64]:
        """Rows with a quantile that a device has not found."""
        if self.support in ("class", "binary"):
            return np.empty(0, np.int64)
        return np.flatnonzero(np.isnan(self.quantiles).any((1, 2)))

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


def stacked(rows: Sequence[Floats | None], outputs: int, support: str) -> Summary:
    """Summaries by the numbers of each row alone; nan of those that have none: None, or empty."""
    numbers = [np.empty(0) if own is None else own for own in rows]
    width = max(map(len, numbers), default=0)
    filled = [own if len(own) else np.full(width, np.nan) for own in numbers]
    return Summary(np.array(filled).reshape(len(rows), width), outputs, support)


def of_mixture(mixture: Mixture, y: Tensor, levels: Sequence[float]) -> Summary:
    """Summaries of mixtures, on the host: one copy, one wait.

    y: (B, d) labels, nan where missing, on the host. levels: of quantiles, ascending.
    """
    weight = mixture.log_weight
    rising = to_device(torch.tensor(levels, dtype=torch.float64), weight.device)
    (numbers,) = to_host([columns(mixture, to_device(y, weight.device), rising)])
    whole = Summary(np.asarray(numbers.numpy()), mixture.outputs, mixture.components.support)
    if on_host(weight):
        return whole
    lacking = whole.lacking
    if len(lacking):
        # What a device has not found in a fixed number of steps the host does.
        at = to_device(lacking, weight.device)
        own, *parameters = to_host(mixture.rows(at).tensors())
        some = Mixture(own, mixture.components.rebuilt(*parameters))
        whole.numbers[lacking] = of_mixture(some, y[lacking], levels).numbers
    return whole


def columns(mixture: Mixture, y: Tensor, levels: Tensor) -> Tensor:
    """Numbers of summaries, where all arguments are; quantiles nan where a device found none."""
    weight = mixture.log_weight
    mean = mixture.mean()
    support = mixture.components.support
    if support == "class":
        return mean
    most = max(1, PART_BYTES // (8 * weight.shape[1] * mean.shape[1] ** 2))
    if len(weight) > most:
        parts = [slice(i, i + most) for i in range(0, len(weight), most)]
        return torch.cat([columns(mixture.rows(part), y[part], levels) for part in parts])
    missing = ~torch.isfinite(y)
    upper = lower = torch.full_like(mean, torch.nan)
    if not (on_host(missing) and bool(missing.all())):
        at = torch.where(missing, 0.0, y)
        step = float(support in ("count", "binary"))
        upper = torch.where(missing, torch.nan, mixture.cdf(at))
        lower = torch.where(missing, torch.nan, mixture.cdf(at - step)) if step else upper
    quantiles = mean[:, :0]
    if support != "binary" and len(levels):
        quantiles = mixture.quantile(levels, PRECISION)
        # Levels may be so close that rounding decides on their order.
        quantiles = quantiles.cummax(1).values.transpose(1, 2)
    numbers = (mean, mixture.covariance(), upper, lower, quantiles)
    return torch.cat([part.flatten(1) for part in numbers], 1)
