"""A model's kernel as its callers have it: rows of states on the CPU, stepped in place."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_core import anomaly
from model_core.compiled import LABEL, NO_BELIEFS, NO_LEVELS, NO_NOISE, NO_RUNS, REST, Runs
from model_core.compiled.belief import NUMBERS, ROWS
from model_core.compiled.jit import Floats, Ints, locked
from model_core.compiled.models import lags
from model_core.compiled.regimes import COLUMNS
from model_core.compiled.step import QUANTILE, Functions, Model, addresses, driver
from model_core.compiled.student_t import DRAWN, OF_OUTPUT
from model_core.lazy import torch
from model_core.maths.families import EXACT_COUNTS
from model_core.summary import Summary
from model_core.table import (
    Layout,
    Rows,
    context_place,
    padded,
)
from model_core.upm.base import UnderlyingModel

INT = np.dtype(np.int64)
FLOAT = np.dtype(np.float64)
FLAG = np.dtype(np.bool_)


def _check(
    name: str, numbers: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any] = FLOAT
) -> None:
    """Raise ValueError for what compiled code, which checks nothing, would misread."""
    if numbers.shape != shape or numbers.dtype != dtype or not numbers.flags.c_contiguous:
        raise ValueError(
            f"expected {name} as contiguous {dtype} of shape {shape}, got {numbers.dtype} of shape "
            f"{numbers.shape} and strides {numbers.strides}"
        )


def _turns(rows: Ints) -> list[slice]:
    """Cut rows, in order, so that no slice names one twice; of none one empty slice."""
    seen: set[int] = set()
    cuts = [0]
    for at, row in enumerate(rows.tolist()):
        if row in seen:
            cuts.append(at)
            seen.clear()
        seen.add(row)
    return [slice(*pair) for pair in pairwise([*cuts, len(rows)])]


class _Own(threading.local):
    """What a thread's steps work in, one after the other."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[int, ...], tuple[Floats, Floats, Floats]] = {}

    def memory(self, shape: tuple[int, ...]) -> tuple[Floats, Floats, Floats]:
        """`memory`, `spare` and `room` of a step.

        shape: `kept`, `params`, `spare`, `spares`, `outputs` and `classes` of the model, width of
        its lines.
        """
        if shape not in self._arrays:
            kept, params, spare, spares, outputs, classes, width = shape
            self._arrays[shape] = (
                np.empty((ROWS + kept + params, width)),
                np.empty((spare, padded(max(spares * width, EXACT_COUNTS) + 1))),
                np.empty(max(1 + 2 * outputs, classes, QUANTILE + 1, anomaly.ROOM)),
            )
        return self._arrays[shape]


_own = _Own()


class Kernel:
    """The step of rows of one model, and the summary of the predictive mixtures before it."""

    def __init__(
        self,
        model: UnderlyingModel,
        sizes: Model,
        functions: Functions,
    ) -> None:
        """Compile, or load from the cache, what the model computes in a step."""
        self.model = model
        self._sizes = sizes
        # Features of inputs and contexts, where they stand in place of the inputs.
        self._encode = getattr(model, "features", model.encode) if sizes.encoded else None
        self._shape = (
            sizes.kept, sizes.params, sizes.spare, sizes.spares, sizes.outputs, sizes.classes,
        )  # fmt: skip
        # Random numbers that a label is drawn by.
        self.noise = DRAWN + sizes.outputs * OF_OUTPUT if functions.draw else 1
        # What is believed of a label, and features are made of, is known after its step alone.
        self._in_turns = bool(sizes.encoded and model.believes and sizes.lags)
        self._support = model.label
        self._partial = model.partial and model.y_dim > 1  # whether labels may lack outputs
        self._levels = NO_LEVELS  # that were checked last
        self._inputs = LABEL + model.y_dim + model.x_dim
        self._numbers = NUMBERS + 2 + 4 * model.y_dim  # in a row of the table
        self._layout = Layout(model, 1)
        self._layouts: dict[tuple[int, int], Layout] = {}  # by slots and regimes
        if sizes.kept != self._layout.kept:
            raise ValueError(
                f"expected {self._layout.kept} lines of statistics that are copied for a step, as "
                f"`in_place` of {model.kind} leaves, got {sizes.kept}"
            )
        locked(model.kind, lambda: self._compile(functions))

    def advance(
        self,
        held: Rows,
        rows: Ints,
        inputs: Floats,
        hazards: Floats,
        window: int,
        levels: Floats = NO_LEVELS,
        summarised: bool = True,
        beliefs: Floats = NO_BELIEFS,
        noise: Floats = NO_NOISE,
        runs: Runs = NO_RUNS,
    ) -> tuple[Floats, Summary]:
        """Step rows by one observation each, in place; returns table and summary.

        A row that is named again is stepped again, in order.

        held: rows of a `Layout` of the model. rows: (B,) int64, which of them. inputs: (B, 7 + d +
        x) labelled (0 or 1), elapsed, changepoint (nan: not stated), outlier rate, the numbers of
        `stream.events.Watch`, label, input. hazards: (B, H). levels: (2, Q), see
        `quantiles.with_normal`. The table
        is that of `readout.table`. Where its `ok` is 0 the row is as it was but for what its empty
        slots hold, and the rest of the table and its summary are undefined.
        A summary that is not wanted is empty. beliefs: (B, 2, S), filled with the log probabilities
        and run lengths of the slots after each step, unless empty. noise: (B, 2, N) of distinct
        rows, `noise` uniform numbers above the normal's quantiles at them: draws the labels from
        their predictives, into the inputs; unless empty. runs: what is left of them is not `ok`
        either. Raises ValueError for arrays of other types and shapes. A row that is not held is
        not `ok`.
        """
        slots, lines, heads, regimes = held
        batch = len(rows)
        layout = self._layouts.get((slots, regimes))
        if layout is None:
            layout = Layout(self.model, slots - 1 - regimes, regimes=regimes)
            self._layouts[slots, regimes] = layout
        _check("lines", lines, (len(lines), layout.height, layout.width))
        _check("heads", heads, (len(lines), layout.head))
        _check("rows", rows, (batch,), INT)
        _check("inputs", inputs, (batch, self._inputs))
        _check("hazards", hazards, (batch, max(1, hazards.shape[-1])))
        if levels is not self._levels:
            _check("levels", levels, (2, levels.shape[-1]))
            self._levels = levels
        if len(beliefs):
            _check("beliefs", beliefs, (batch, 2, slots))
        if len(noise):
            _check("noise", noise, (batch, 2, self.noise))
        ending = len(runs.quiet) > 0
        if ending:
            outputs = runs.labels.shape[1]
            _check("rest", runs.rest, (batch, len(REST)))
            _check("ranks", runs.ranks, (len(runs.ranks), anomaly.size(outputs)))
            _check("places", runs.places, (batch,), INT)
            _check("labels", runs.labels, (batch, outputs))
            _check("anomalies", runs.anomalies, (batch,))
            _check("quiet", runs.quiet, (batch,), FLAG)
        table = np.empty((batch, self._numbers + (COLUMNS if regimes else 0)))
        if not summarised:
            levels = NO_LEVELS
        labels = inputs[:, LABEL : LABEL + self.model.y_dim]
        lacking = self._partial and bool(np.isnan(labels).any())
        width = self._columns(levels.shape[1]) if summarised or lacking else 0
        summary = np.empty((batch, width))
        if self._in_turns:
            for turn in _turns(rows):
                at = turn.start  # the one whose row may have been stepped right before
                if ending and at and rows[at] == rows[at - 1] and not runs.quiet[at - 1]:
                    table[at] = 0.0
                    turn = slice(at + 1, turn.stop)
                self._step(
                    held, levels, window, rows[turn], inputs[turn], hazards[turn], table[turn],
                    summary[turn], beliefs[turn], noise[turn], runs.part(turn) if ending else runs,
                )  # fmt: skip
        else:
            self._step(
                held, levels, window, rows, inputs, hazards, table, summary, beliefs, noise, runs,
            )  # fmt: skip
        wanted = summary if summarised else summary[:, :0]
        return table, Summary(wanted, self.model.y_dim, self._support)

    def _step(
        self,
        held: Rows,
        levels: Floats,
        window: int,
        rows: Ints,
        inputs: Floats,
        hazards: Floats,
        table: Floats,
        summary: Floats,
        beliefs: Floats,
        noise: Floats,
        runs: Runs,
    ) -> None:
        """Step rows, in place, and fill their rows of the table, the summary and the beliefs."""
        given = inputs
        if self._encode is not None and len(rows) > 0:
            inputs = self._encoded(held.heads, rows, inputs)
        memory = _own.memory((*self._shape, held.lines.shape[2]))
        self._steps(
            self._functions, self._sizes, held.slots, held.regimes, held.lines, held.heads, rows,
            inputs, hazards, levels, window, *memory, table, summary, beliefs, noise, runs,
        )  # fmt: skip
        if len(noise):
            labels = slice(LABEL, LABEL + self.model.y_dim)
            given[:, labels] = inputs[:, labels]

    def _encoded(self, heads: Floats, rows: Ints, inputs: Floats) -> Floats:
        """Inputs with the features of all rows in place of what they are made of."""
        assert self._encode is not None
        first = LABEL + self.model.y_dim
        with torch.inference_mode():
            at = context_place(self.model.y_dim)
            contexts = heads[:, at : at + self._layout.context]
            context = contexts.take(rows, 0, mode="clip")  # of a row that is not held any
            # Labels before, which are features.
            if context.shape[1] and not self.model.believes:
                lags.contexts(self.model.y_dim, rows, inputs, context)
            features = self._encode(torch.from_numpy(inputs[:, first:]), torch.from_numpy(context))
        assert features is not None
        packed = np.concatenate((inputs[:, :first], features.numpy()), 1)
        _check("features", packed, (len(rows), first + self._sizes.features))
        return packed

    def _columns(self, levels: int) -> int:
        d = self.model.y_dim
        return self.model.classes if self._support == "class" else 3 * d + d * d + levels * d

    def _compile(self, functions: Functions) -> None:
        self._functions = addresses(functions)
        self._steps = driver()
        if self._encode is not None and not self.model.believes:
            none = np.empty(0, dtype=np.int64)
            lags.contexts(self.model.y_dim, none, np.empty((0, 0)), np.empty((0, 0)))
