"""Filters of several series, a row each, stepped where they lie: by the model's kernel, if any."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_core import compiled as columns
from model_core import filter as moca
from model_core import readout, summary
from model_core.filter import FilterState, Inputs, Prior
from model_core.quantiles import with_normal
from model_core.readout import Readout
from model_core.table import Layout
from model_core.upm.base import UnderlyingModel

Floats = NDArray[np.float64]
RECENT_RUN_LENGTHS = 5  # 0 to 4: a change within the last five observations is a recent one
AT_ONCE = 64  # observations of one series in a call of a kernel
OK_COLUMN = list(readout.NUMBERS).index("ok")


class Step(NamedTuple):
    """One step of one row: its readout, and the numbers of the `Summary` of its predictive.

    Where it is not `ok` the row is as it was.
    """

    line: Readout
    numbers: Floats


class Filters:
    """States and priors of a fixed number of rows, on the CPU."""

    def __init__(
        self,
        model: UnderlyingModel,
        rows: int,
        max_hypotheses: int,
        levels: Sequence[float],
    ) -> None:
        """levels: of the quantiles in summaries; without any there are no summaries."""
        self.model = model
        self.rows = rows
        self.max_hypotheses = max_hypotheses
        self.layout = Layout(model, max_hypotheses)
        self.lines, self.heads = (
            numbers.repeat_interleave(rows, 0) for numbers in self.layout.blank
        )
        self._held = self.layout.rows(self.lines, self.heads)
        self._levels = list(levels)
        self._normal = with_normal(levels)
        self._kernel = columns.kernel_of(model)

    @property
    def in_series(self) -> bool:
        """Whether several observations of one row are stepped in one call, by a kernel."""
        return self._kernel is not None

    @property
    def tensors(self) -> list[Tensor]:
        """Lines and heads of all rows, in place."""
        return [self.lines, self.heads]

    def begin(self, row: int, location: Sequence[float], scale: Sequence[float]) -> None:
        """Put a row before its first observation."""
        prior = moca.make_prior(
            self.model,
            torch.tensor([location], dtype=torch.float64),
            torch.tensor([scale], dtype=torch.float64),
        )
        self._write(slice(row, row + 1), moca.init(prior, self.max_hypotheses), prior)

    def state(self, row: int) -> FilterState:
        """State of a row (batch 1), a copy."""
        return self.layout.state(
            self.lines[row : row + 1].clone(), self.heads[row : row + 1].clone()
        )

    def prior(self, row: int) -> Prior:
        """Prior of a row (batch 1)."""
        return self.layout.prior(self.lines[row : row + 1], self.heads[row : row + 1])

    def put(self, row: int, state: FilterState) -> None:
        """Put a state (batch 1) in place of a row's."""
        self._write(slice(row, row + 1), state, self.prior(row))

    def _write(self, rows: slice | Tensor, state: FilterState, prior: Prior) -> None:
        self.lines[rows], self.heads[rows] = self.layout.packed(state, prior)

    @property
    def states(self) -> FilterState:
        """States of all rows; good until the next step, which changes them in part."""
        return self.layout.state(self.lines, self.heads)

    @property
    def priors(self) -> Prior:
        """Priors of all rows, in place."""
        return self.layout.prior(self.lines, self.heads)

    def fill(self, state: FilterState, prior: Prior) -> None:
        """Put states and priors in place of all rows', or one of each (batch 1) in every row."""
        self._write(slice(None), state, prior)

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
        present = np.isfinite(y)
        labelled = np.asarray(present.any(-1) if self.model.partial else present.all(-1))
        label = slice(columns.LABEL, columns.LABEL + self.model.y_dim)
        packed = np.zeros((self.rows, label.stop + self.model.x_dim))
        packed[:, columns.ELAPSED] = 1.0
        packed[:, columns.CHANGEPOINT] = np.nan
        packed[:, columns.OUTLIER_RATE] = rate
        for t in range(y.shape[1]):
            packed[:, columns.LABELLED] = labelled[:, t]
            packed[:, label] = np.where(labelled[:, t, None], y[:, t], 0.0)
            if x is not None:
                packed[:, label.stop :] = x[:, t]
            if elapsed is not None:
                packed[:, columns.ELAPSED] = elapsed[:, t]
            yield self.step(range(self.rows), packed, table, np.zeros(self.rows))

    def step(
        self, rows: Sequence[int], inputs: Floats, hazard: Floats, offsets: Floats
    ) -> list[Step]:
        """Step distinct rows by one observation each.

        inputs: (B, 6 + d + x), see `compiled.kernel.Kernel.advance`, labels less their seasons.
        hazard: (H,) by run length, of all. offsets: (B,) seasons, which predictives are moved by.
        """
        stepped: dict[int, Step] = {}
        if self._kernel is not None:
            whole = np.flatnonzero(self._whole(inputs))
            if len(whole):
                at = np.array(rows, dtype=np.int64)[whole]
                steps = self._advance(at, inputs[whole], hazard, offsets[whole])
                pairs = zip(whole.tolist(), steps, strict=True)
                stepped = {i: step for i, step in pairs if step is not None}
        left = [i for i in range(len(rows)) if i not in stepped]
        if left:
            chosen = [rows[i] for i in left]
            again = self._step_eagerly(chosen, inputs[left], hazard, offsets[left])
            stepped.update(zip(left, again, strict=True))
        return [stepped[i] for i in range(len(rows))]

    def through(
        self,
        row: int,
        inputs: Floats,
        hazard: Floats,
        offsets: Floats,
        confirmed: Callable[[], int],
    ) -> Iterator[Step]:
        """Step one row by one observation after the other; arguments as of `step`.

        confirmed: start of the last confirmed event by now, which the caller may move after each
        step. Observations are stepped `AT_ONCE` as if nothing was confirmed on the way; where it
        was, those after it are stepped anew: their numbers are about another start. The row is
        only that of the last step once all were taken.
        """
        inputs = inputs.copy()
        at = 0
        while at < len(inputs):
            inputs[at:, columns.CONFIRMED] = confirmed()
            part = slice(at, at + max(1, self._ready(inputs[at : at + AT_ONCE])))
            at += yield from self._in_one_call(row, inputs[part], hazard, offsets[part], confirmed)

    def _in_one_call(
        self,
        row: int,
        inputs: Floats,
        hazard: Floats,
        offsets: Floats,
        confirmed: Callable[[], int],
    ) -> Generator[Step, None, int]:
        """Step a row; returns how many of the observations were stepped, one at least."""
        count = len(inputs)
        used = 0
        start = confirmed()
        if count > 1:
            before = self.lines[row].clone(), self.heads[row].clone()
            repeated = np.full(count, row, dtype=np.int64)
            steps = self._advance(repeated, inputs, hazard, offsets)
            while used < count and confirmed() == start:
                step = steps[used]
                if step is None:
                    break
                yield step
                used += 1
            if used < count:
                self.lines[row], self.heads[row] = before
            if 0 < used < count:
                self._advance(repeated[:used], inputs[:used], hazard, offsets[:used])
        if used:
            return used
        yield from self.step([row], inputs[:1], hazard, offsets[:1])
        return 1

    def _ready(self, inputs: Floats) -> int:
        """Number of the first observations that the kernel takes in one call."""
        if self._kernel is None:
            return 0
        whole = self._whole(inputs)
        return len(whole) if whole.all() else int(whole.argmin())

    def _whole(self, inputs: Floats) -> NDArray[np.bool_]:
        """Which observations the kernel takes: those of which no output alone is missing."""
        label = inputs[:, columns.LABEL : columns.LABEL + self.model.y_dim]
        return ~np.asarray(np.isnan(label).any(1))

    def _advance(
        self, rows: NDArray[np.int64], inputs: Floats, hazard: Floats, offsets: Floats
    ) -> list[Step | None]:
        """Steps by the kernel, in order; None for what it leaves to the eager filter."""
        assert self._kernel is not None
        table, predicted = self._kernel.advance(
            self._held,
            rows,
            np.ascontiguousarray(inputs),
            np.ascontiguousarray(np.broadcast_to(hazard, (len(rows), len(hazard)))),
            RECENT_RUN_LENGTHS,
            self._normal,
            bool(self._levels),
        )
        if self._levels and offsets.any():
            predicted = predicted.shifted(offsets)
        fine = table[:, OK_COLUMN] > 0
        lines = iter(readout.rows(table[fine]) if fine.any() else [])
        pairs = zip(fine.tolist(), predicted.numbers, strict=True)
        return [Step(next(lines), numbers) if ok else None for ok, numbers in pairs]

    def _step_eagerly(
        self, rows: Sequence[int], inputs: Floats, hazard: Floats, offsets: Floats
    ) -> list[Step]:
        with torch.inference_mode():
            at = torch.tensor(rows)
            held = self.lines[at], self.heads[at]
            prior = self.layout.prior(*held)
            packed = torch.from_numpy(np.ascontiguousarray(inputs))
            state, info = moca.step(
                self.model, self.layout.state(*held), prior, inputs_of(self.model, packed, hazard)
            )
            starts = packed[:, columns.CONFIRMED].long()
            thresholds = packed[:, columns.THRESHOLD]
            table = readout.table(state, info, starts, thresholds, RECENT_RUN_LENGTHS)
            self._write(at, state, prior)
            numbers = np.empty((len(rows), 0))
            if self._levels:
                mixture = info.predictive
                by = torch.from_numpy(offsets)
                y = packed[:, columns.LABEL : columns.LABEL + self.model.y_dim]
                labelled = packed[:, columns.LABELLED : columns.LABELLED + 1] > 0
                y = torch.where(labelled, y, torch.nan)
                if offsets.any():
                    mixture = mixture.shifted(by)
                    y = y + by.unsqueeze(-1)
                numbers = summary.of(mixture, y, self._levels)
            lines = readout.rows(table)
            if self.model.typical:
                pairs = zip(lines, readout.typical_regimes(self.model, state), strict=True)
                lines = [line._replace(regime=regime) for line, regime in pairs]
        return list(map(Step, lines, numbers))


def inputs_of(model: UnderlyingModel, packed: Tensor, hazard: Floats) -> Inputs:
    """Inputs of the filter from rows (B, 6 + d + x), as kernels take them; hazard: (H,) of all."""
    label = columns.LABEL
    x = columns.LABEL + model.y_dim
    return Inputs(
        packed[:, x:] if model.x_dim else None,
        packed[:, label:x],
        packed[:, columns.LABELLED] > 0,
        torch.from_numpy(np.array(hazard)).expand(len(packed), -1),
        packed[:, columns.ELAPSED],
        packed[:, columns.CHANGEPOINT],
        packed[:, columns.OUTLIER_RATE],
    )
