"""A model's fused kernel as its callers have it: rows of tensors on a device, stepped in place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_core import filter as moca
from model_core import readout
from model_core.compiled import ELAPSED, LABEL, LABELLED, available
from model_core.fused.step import step
from model_core.quantiles import with_normal
from model_core.summary import Summary
from model_core.transfer import to_device, to_host
from model_core.upm.base import UnderlyingModel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NO_LEVELS = np.empty((2, 0))
PROBE = 12  # observations that a kernel is compared with the eager filter on, before it serves
CLOSE = 1e-9  # how far apart they may be
WINDOW = 5


class Views:
    """Addresses of the leaves of many rows, on their device, and the tensors, which it keeps."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """tensors: (rows, ...) of a state (`filter.leaves`) and of its prior, on one device.

        Raises ValueError where one is not contiguous or not of 64 bits.
        """
        self.device = tensors[0].device
        for each in tensors:
            if each.device != self.device or not each.is_contiguous() or each.element_size() != 8:
                raise ValueError("expected contiguous tensors of 64-bit numbers on one device")
        self._tensors = list(tensors)
        self.slots = tensors[0].shape[1]
        addresses = np.array([each.data_ptr() for each in tensors], dtype=np.int64)
        self.table = to_device(addresses, self.device)


class Kernel:
    """The step of rows of one model, and the summary of the predictive mixtures before it."""

    def __init__(
        self,
        model: UnderlyingModel,
        parts: ModuleType,
        max_hypotheses: int,
        device: torch.device | str,
    ) -> None:
        """parts: the model's `component` and `learn`. max_hypotheses: of the rows to be stepped."""
        self.model, self._parts = model, parts
        self._max_hypotheses, self._device = max_hypotheses, device
        self.ready = False
        self.asked = False  # to be compiled in the background

    def compile(self) -> None:
        """Compile, and compare some steps with the eager filter's. Any thread may.

        Raises RuntimeError where they differ: the kernel is then not to be used.
        """
        if not self.ready:
            if available():
                import_module("model_core.compiled.anomaly").compile()
            with torch.inference_mode():
                self._probe()
            self.ready = True

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
    ) -> tuple[Floats, Summary]:
        """Step rows by one observation each, in place; returns table and summary.

        Arguments and result are those of `compiled.kernel.Kernel.advance`: a row that is named
        again is stepped again, in order, and where `ok` is 0 the row is as it was. The host waits
        once, for both.
        """
        d, device = self.model.y_dim, views.device
        columns = 3 * d + d * d + levels.shape[1] * d if summarised else 0
        numbers = len(readout.NUMBERS) + 2 + 4 * d
        table = torch.empty(len(rows), numbers, dtype=torch.float64, device=device)
        summary = torch.empty(len(rows), columns, dtype=torch.float64, device=device)
        labels = torch.empty(len(rows), d, dtype=torch.float64, device=device)
        given = [to_device(each, device) for each in (rows, inputs, hazards, levels)]
        places, numbers_of, hazard_of, level_of = given
        size = 1 << views.slots.bit_length()  # above the number of slots
        with _on(device):
            for lines in _rounds(rows):
                step[(len(lines),)](  # type: ignore[index]
                    views.table, places, to_device(lines, device), numbers_of, hazard_of, level_of,
                    table, summary, labels, views.slots, hazards.shape[1], inputs.shape[1],
                    columns, window, self._parts.STATISTICS,
                    SIZE=size, OUTPUTS=d, LEVELS=levels.shape[1], SUMMARISED=summarised,
                    COMPONENT=self._parts.component, LEARN=self._parts.learn,
                    num_warps=max(1, min(4, size // 32)), enable_fp_fusion=True,
                )  # fmt: skip
            found, summaries = to_host([table, summary])
        return found.numpy(), Summary(summaries.numpy(), d, self.model.label)

    def _probe(self) -> None:
        """Step a stream of its own beside the eager filter, with and without a summary."""
        one = torch.ones(1, self.model.scaled, dtype=torch.float64, device=self._device)
        prior = moca.make_prior(self.model, one, one)
        state = moca.init(prior, self._max_hypotheses)
        own = [each.clone().contiguous() for each in moca.leaves(state)]
        views = Views([*own, *(each.contiguous() for each in (*prior.stats, *prior[1:]))])
        levels, rows = with_normal((0.05, 0.5, 0.95)), np.zeros(1, dtype=np.int64)
        nothing = torch.zeros(1, dtype=torch.int64, device=self._device)
        for at in range(PROBE):
            packed = np.zeros((1, LABEL + self.model.y_dim + self.model.x_dim))
            packed[:, LABELLED], packed[:, ELAPSED] = at % 4 != 3, 1.0
            packed[:, LABELLED + 2], packed[:, LABELLED + 3] = np.nan, 0.01
            packed[:, LABEL:] = 0.5 * at
            hazard = np.full((1, 1), 0.02)
            inputs = _inputs(self.model, to_device(packed, self._device), hazard)
            state, info = moca.step(self.model, state, prior, inputs)
            table = readout.table(state, info, nothing, nothing.double(), WINDOW)
            found, _ = self.advance(views, rows, packed, hazard, WINDOW, levels, at % 2 == 0)
            expected = to_host([table])[0].numpy()
            if not np.allclose(found, expected, CLOSE, CLOSE, equal_nan=True):
                raise RuntimeError(
                    f"the fused step of a {self.model.kind!r} model differs from the eager one on "
                    f"this device: expected {expected.tolist()}, got {found.tolist()}; it is not "
                    "used"
                )


def _inputs(model: UnderlyingModel, packed: Tensor, hazard: Floats) -> moca.Inputs:
    """Inputs of the eager step from those of a kernel."""
    x = LABEL + model.y_dim
    return moca.Inputs(
        packed[:, x:] if model.x_dim else None,
        packed[:, LABEL:x],
        packed[:, LABELLED] > 0,
        to_device(hazard, packed.device),
        packed[:, ELAPSED],
        packed[:, ELAPSED + 1],
        packed[:, ELAPSED + 2],
    )


def _rounds(rows: Ints) -> Iterator[Ints]:
    """Places in `rows` of distinct rows, then of those named again, and so on."""
    lines = np.arange(len(rows))
    while len(lines):
        _, first = np.unique(rows[lines], return_index=True)
        first.sort()
        yield lines[first]
        lines = np.delete(lines, first)


def _on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Have kernels started on a device."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
