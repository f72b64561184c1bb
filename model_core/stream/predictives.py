"""Predictives of the rows of a batch: mixtures, or what a kernel has summarised of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from model_core import summary
from model_core.lazy import Tensor, torch
from model_core.predictive import Mixture
from model_core.summary import Summary
from model_core.transfer import to_device, to_host

Floats = NDArray[np.float64]
Moments = tuple[list[float], list[float]]  # mean and standard deviation, by output


class MixtureRow(NamedTuple):
    """One row of a batch's mixture.

    run_length: (B, S) of its components, of which one beyond S is the outliers'; None in the
    warm-up, which is one regime.
    """

    mixture: Mixture
    row: int
    run_length: Tensor | None = None

    @property
    def kind(self) -> tuple[object, ...]:
        """Of those that can be summarised together."""
        components = self.mixture.components
        return (components.family, *components.parameters()[0].shape[1:])

    @property
    def nbytes(self) -> int:
        """Bytes that wait for the row to be summarised."""
        parameters = self.mixture.components.parameters()
        return sum(parameter.nbytes for parameter in parameters) // len(self.mixture.log_weight)


class SummaryRow(NamedTuple):
    """One row of a batch's summaries, by a compiled kernel."""

    summary: Summary
    row: int

    @property
    def kind(self) -> tuple[object, ...]:
        """Of those that can be rendered together."""
        return (id(self.summary),)

    @property
    def nbytes(self) -> int:
        """Bytes that wait for the row to be rendered."""
        return self.summary.row_bytes


PredictiveRow = MixtureRow | SummaryRow  # of a predictive that waits to be summarised


def summarised(
    rows: Sequence[PredictiveRow], y: Floats, offsets: Floats, levels: Sequence[float]
) -> Summary:
    """Summaries of predictives of one kind, moved by the seasons that they are less of.

    y: (B, d) labels, nan where missing. levels: of the quantiles, ascending, as in those that are
    summarised already.
    """
    ready = [row for row in rows if isinstance(row, SummaryRow)]
    if ready:
        chosen = ready[0].summary.rows([row.row for row in ready])
        return chosen.shifted(offsets) if offsets.any() else chosen
    mixture = _gathered([row for row in rows if isinstance(row, MixtureRow)])
    if offsets.any():
        mixture = mixture.shifted(to_device(offsets, mixture.log_weight.device))
    return summary.of_mixture(mixture, torch.from_numpy(y), levels)


def numbers(
    rows: Sequence[PredictiveRow], y: Floats, offsets: Floats, levels: Sequence[float]
) -> list[Floats]:
    """Numbers of the `Summary` of any predictives, in order; arguments as of `summarised`."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(row.kind, []).append(i)
    in_order: dict[int, Floats] = {}
    for at in groups.values():
        alike = summarised([rows[i] for i in at], y[at], offsets[at], levels)
        in_order.update(zip(at, alike.numbers, strict=True))
    return [in_order[i] for i in range(len(rows))]


def _gathered(rows: list[MixtureRow]) -> Mixture:
    """Rows of several mixtures of one kind as one mixture."""
    groups: list[tuple[Mixture, list[int]]] = []
    for row in rows:
        if not groups or groups[-1][0] is not row.mixture:
            groups.append((row.mixture, []))
        groups[-1][1].append(row.row)
    (whole, chosen), *more = groups
    if not more and chosen == list(range(len(whole.log_weight))):
        return whole
    parts = [[tensor[at] for tensor in mixture.tensors()] for mixture, at in groups]
    weight, *parameters = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
    return Mixture(weight, whole.components.rebuilt(*parameters))


def moments(place: PredictiveRow) -> Moments | None:
    """Moments of one row's predictive; None of classes. nan or inf: has none."""
    if isinstance(place, SummaryRow):
        alone = place.summary.rows([place.row])
        if alone.support in ("class", "binary"):
            return None
        mean = alone.mean[0]
        covariance = alone.covariance[0]
    else:
        mixture = place.mixture.rows(slice(place.row, place.row + 1))
        if mixture.components.support in ("class", "binary"):
            return None
        first, second = to_host([mixture.mean(), mixture.covariance()])
        mean = first[0].numpy()
        covariance = second[0].numpy()
    deviation: list[float] = np.sqrt(np.maximum(np.diagonal(covariance), 0.0)).tolist()
    return mean.tolist(), deviation
