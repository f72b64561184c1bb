"""Filters of a fixed number of series, all stepped by one observation of each at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from model_core.filter import FilterState, Prior
from model_core.stream.columns import Columns, Floats, of_all
from model_core.stream.events import NOTHING_WATCHED
from model_core.stream.slab import Slab, Step
from model_core.upm.base import UnderlyingModel


class Filters:
    """Rows of a slab, known by their index."""

    def __init__(
        self,
        model: UnderlyingModel,
        rows: int,
        max_hypotheses: int,
        levels: Sequence[float] = (),
    ) -> None:
        """levels: of the quantiles in summaries; without any there are no summaries."""
        self.model = model
        self.rows = rows
        self._summarised = len(levels) > 0
        self.slab = Slab(model, max_hypotheses, levels, expected=rows)
        unit = [1.0] * model.scaled
        self._rows = self.slab.begin([[0.0] * model.scaled] * rows, [unit] * rows)

    def begin(self, row: int, location: Sequence[float], scale: Sequence[float]) -> None:
        """Put a row before its first observation."""
        self.slab.begin_anew(self._rows[row], [*location], [*scale])

    def state(self, row: int) -> FilterState:
        """State of a row (batch 1), a copy."""
        return self.slab.state(self._rows[row])

    @property
    def states(self) -> FilterState:
        """States of all rows; good until the next step."""
        return self.slab.batch(self._rows)[0]

    @property
    def priors(self) -> Prior:
        """Priors of all rows; good until the next step."""
        return self.slab.batch(self._rows)[1]

    def together(
        self,
        y: Floats,
        x: Floats | None = None,
        elapsed: Floats | None = None,
        hazard: Floats | float | None = None,
        outlier_rate: float | None = None,
    ) -> Iterator[list[Step]]:
        """Step all rows by one observation of each at a time.

        y: (B, T, d), nan where missing. x: (B, T, x_dim). elapsed: (B, T), None for 1. hazard: by
        run length, of all. hazard, outlier_rate: None for the model's.
        """
        table = np.atleast_1d(np.array(self.model.hazard if hazard is None else hazard))
        rate = self.model.outlier_rate if outlier_rate is None else outlier_rate
        hazards = of_all(table, self.rows)
        rates = np.full(self.rows, rate)
        unstated = np.full(self.rows, np.nan)
        no_inputs = np.empty((self.rows, 0))
        ones = np.ones(self.rows)
        nothing = np.zeros(self.rows)
        watched = [NOTHING_WATCHED] * self.rows
        for t in range(y.shape[1]):
            seen = Columns(
                y=y[:, t],
                x=no_inputs if x is None else x[:, t],
                elapsed=ones if elapsed is None else elapsed[:, t],
                changepoint=unstated,
                outlier_rate=rates,
                hazard=hazards,
                offset=nothing,
            )
            yield self.slab.step(self._rows, seen, watched, summarised=self._summarised)
