"""A model's kernel as its callers have it: rows of tensors on the CPU, stepped in place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from model_core import filter as moca
from model_core.compiled import LABEL, NO_BELIEFS, NO_LEVELS
from model_core.compiled.belief import CONTEXT, LOG_PROB, NUMBERS, TOTALS
from model_core.compiled.jit import Floats, Ints, locked, padded
from model_core.compiled.models import lags
from model_core.compiled.step import advance, rows_of
from model_core.summary import Summary
from model_core.upm.base import UnderlyingModel

INT, FLOAT = np.dtype(np.int64), np.dtype(np.float64)


def _check(numbers: Floats | Ints, dtype: np.dtype[Any]) -> None:
    """Raise ValueError for what compiled code would take for something else."""
    if numbers.dtype != dtype or not numbers.flags.c_contiguous:
        raise ValueError(
            f"expected contiguous numbers of type {dtype}, got {numbers.dtype} of strides "
            f"{numbers.strides}; make them by np.ascontiguousarray"
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

    memory = np.empty(0)

    def numbers(self, count: int) -> Floats:
        """At least so many."""
        if self.memory.size < count:
            self.memory = np.empty(count)
        return self.memory


_own = _Own()


class Views:
    """Addresses of the leaves of many rows, and the tensors, which it keeps alive."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """tensors: (rows, ...) of a state (`filter.leaves`) and of its prior, on the CPU.

        Raises ValueError where one is not contiguous or not of 64 bits.
        """
        for each in tensors:
            if each.device.type != "cpu" or not each.is_contiguous() or each.element_size() != 8:
                raise ValueError("expected contiguous tensors of 64-bit numbers on the CPU")
        self._tensors = list(tensors)
        self.table = np.array([(t.data_ptr(), t[:1].numel()) for t in tensors], dtype=np.int64)
        self.width = padded(int(self.table[LOG_PROB, 1]) + 2)  # see `step`
        self.totals = int(self.table[TOTALS, 1])

    @property
    def context(self) -> Tensor:
        """Contexts (rows, c), as the kernel leaves them."""
        return self._tensors[CONTEXT]


class Kernel:
    """The step of rows of one model, and the summary of the predictive mixtures before it."""

    def __init__(
        self,
        model: UnderlyingModel,
        dimensions: Any,
        encode: Callable[[Tensor | None, Tensor], Tensor | None] | None = None,
    ) -> None:
        """Compile, or load from the cache; dimensions: the model as its implementation has it.

        encode: of models whose implementation takes features in place of the inputs: features of
        inputs and contexts.
        """
        self.model, self._dimensions, self._encode = model, dimensions, encode
        # What is believed of a label, and features are made of, is known after its step alone.
        self._in_turns = encode is not None and model.believes and getattr(model, "lags", 0) > 0
        self._support = model.label
        self._steps: Callable[..., None] = self._resolve
        self._levels = NO_LEVELS  # that were checked last
        self._rows = rows_of(dimensions)
        self._numbers = NUMBERS + 2 + 4 * model.y_dim  # in a row of the table
        locked(model.kind, self._once)

    def views(self, tensors: Sequence[Tensor]) -> Views:
        """Rows of tensors, as `advance` takes them."""
        return Views(tensors)

    def advance(
        self,
        views: Views,
        rows: Ints,
        inputs: Floats,
        hazards: Floats,
        window: int,
        levels: Floats = NO_LEVELS,
        summarised: bool = True,
        beliefs: Floats = NO_BELIEFS,
    ) -> tuple[Floats, Summary]:
        """Step rows by one observation each, in place; returns table and summary.

        A row that is named again is stepped again, in order.

        rows: (B,) int64. inputs: (B, 6 + d + x) labelled (0 or 1), elapsed, changepoint (nan: not
        stated), outlier rate, start of the last confirmed event, threshold (as in
        `readout.table`), label, input. hazards: (B, H). levels: (2, Q), see
        `quantiles.with_normal`. The table
        is that of `readout.table`. Where its `ok` is 0 the row is as it was, the rest of the table
        and its summary are undefined, and the eager step decides. A summary that is not wanted is
        empty. beliefs: (B, 2, S), filled with the log probabilities and run lengths of the slots
        after each step, unless empty.
        """
        _check(rows, INT)
        _check(inputs, FLOAT)
        _check(hazards, FLOAT)
        _check(beliefs, FLOAT)
        if levels is not self._levels:
            _check(levels, FLOAT)
            self._levels = levels
        batch = len(rows)
        table = np.empty((batch, self._numbers))
        summary = np.empty((batch, self._columns(levels.shape[1]) if summarised else 0))
        memory = _own.numbers(self._rows * views.width + views.totals)
        encodes = self._encode is not None and batch > 0
        for turn in _turns(rows) if self._in_turns else (slice(None),):
            own = rows[turn]
            packed = self._encoded(views, own, inputs[turn]) if encodes else inputs[turn]
            self._steps(
                self._dimensions, views.table, own, packed, hazards[turn], levels, window, memory,
                table[turn], summary[turn], beliefs[turn],
            )  # fmt: skip
        return table, Summary(summary, self.model.y_dim, self._support)

    def _encoded(self, views: Views, rows: Ints, inputs: Floats) -> Floats:
        """Inputs with the features of all rows in place of what they are made of."""
        assert self._encode is not None
        first = LABEL + self.model.y_dim
        with torch.inference_mode():
            context = views.context[: len(rows)]
            if context.shape[1]:  # labels before, which are features
                context = views.context[torch.from_numpy(rows)]
                if not self.model.believes:
                    lags.contexts(self.model.y_dim, rows, inputs, context.numpy())
            features = self._encode(torch.from_numpy(inputs[:, first:]), context)
        assert features is not None
        return np.concatenate((inputs[:, :first], features.numpy()), 1)

    def _columns(self, levels: int) -> int:
        d = self.model.y_dim
        return self.model.classes if self._support == "class" else 3 * d + d * d + levels * d

    def _once(self) -> None:
        """Call with no rows: compiled is what the types ask for."""
        one = torch.ones(1, self.model.scaled, dtype=torch.float64)
        prior = moca.make_prior(self.model, one, one)
        leaves = [*moca.leaves(moca.init(prior, 1)), *prior.stats, *prior[1:]]
        views = Views([each.contiguous() for each in leaves])
        none = np.empty(0, dtype=np.int64)
        inputs = np.empty((0, LABEL + self.model.y_dim + self.model.x_dim))
        self.advance(views, none, inputs, np.empty((0, 1)), 1, summarised=False)
        if self._encode is not None and not self.model.believes:
            lags.contexts(self.model.y_dim, none, inputs, np.empty((0, 0)))

    def _resolve(self, *arguments: Any) -> None:
        """Call, and call what was compiled for these types from then on.

        To find it by the types takes numba longer than a short step; `advance` checks them.
        """
        advance(*arguments)
        types = tuple(numba.typeof(each) for each in arguments)
        self._steps = advance.overloads[types].entry_point  # type: ignore[attr-defined]
