"""A model's fused kernel as its callers have it: rows of tensors on a device, stepped in place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_core import filter as moca
from model_core import readout
from model_core.compiled import (
    CHANGEPOINT,
    ELAPSED,
    LABEL,
    LABELLED,
    NO_BELIEFS,
    NO_LEVELS,
    OUTLIER_RATE,
    available,
)
from model_core.fused import prepared
from model_core.fused.models import Parts
from model_core.fused.rows import CONTEXT
from model_core.fused.step import step
from model_core.quantiles import with_normal
from model_core.summary import Summary
from model_core.transfer import to_device, to_host
from model_core.upm.base import UnderlyingModel
from model_core.upm.learned import Learned

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
PROBE = 12  # observations that a kernel is compared with the eager filter on, before it serves
CLOSE = 1e-9  # how far apart they may be
WINDOW = 5
OK = list(readout.NUMBERS).index("ok")


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
        self.belief = tensors[:2]  # log probabilities and run lengths
        self.context = tensors[CONTEXT.value]
        self.slots = tensors[0].shape[1]
        addresses = np.array([each.data_ptr() for each in tensors], dtype=np.int64)
        self.table = to_device(addresses, self.device)


class _Room(NamedTuple):
    """What kernels write beside states, a line for each observation: see `step.step`."""

    table: Tensor
    summary: Tensor
    labels: Tensor
    prepared: Tensor


def start(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Start a kernel's programs; the host does not wait for them."""
    kernel[grid](*arguments, **constants)


class Kernel:
    """The step of rows of one model, and the summary of the predictive mixtures before it."""

    def __init__(
        self,
        model: UnderlyingModel,
        parts: Parts,
        max_hypotheses: int,
        device: torch.device | str,
    ) -> None:
        """max_hypotheses: of the rows to be stepped."""
        self.model, self._parts = model, parts
        # Features are made of labels before, which are known after the steps before alone.
        self._lagged = parts.features > 0 and getattr(model, "lags", 0) > 0
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

    @torch.inference_mode()
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

        Arguments and result are those of `compiled.kernel.Kernel.advance`: a row that is named
        again is stepped again, in order, and where `ok` is 0 the row is as it was. The host waits
        once, for all.
        """
        d, device = self.model.y_dim, views.device
        columns = 3 * d + d * d + levels.shape[1] * d if summarised else 0
        beside = prepared.numbers_of(d, self._parts.features, views.slots)
        widths = len(readout.NUMBERS) + 2 + 4 * d, columns, d, beside
        room = _Room(*(_empty(device, len(rows), width) for width in widths))
        kept = _empty(device, *beliefs.shape)
        given = [to_device(each, device) for each in (rows, inputs, hazards, levels)]
        places, seen, hazard_of, level_of = given
        if self._lagged:
            numbers = _empty(device, len(rows), LABEL + d + self._parts.features)
        else:
            numbers = self._encoded(seen, views.context[places])
        with _on(device):
            for lines in _rounds(rows):
                at = to_device(lines, device)
                row = places[at]
                if self._lagged:
                    numbers[at] = self._encoded(seen[at], views.context[row])
                self._launch(views, (places, at, numbers), hazard_of, level_of, window, room)
                if self._lagged:
                    self._remember(views.context, row, seen[at], room.table[at, OK] > 0)
                if len(beliefs):
                    kept[at] = torch.stack([each[row].double() for each in views.belief], 1)
            found, summaries, after = to_host([room.table, room.summary, kept])
        beliefs[:] = after.numpy()
        return found.numpy(), Summary(summaries.numpy(), d, self.model.label)

    def _encoded(self, inputs: Tensor, context: Tensor) -> Tensor:
        """Inputs with the features, if the model has any, in place of what they are made of."""
        if not self._parts.features:
            return inputs
        first = LABEL + self.model.y_dim
        features = self.model.encode(inputs[:, first:], context)
        assert features is not None
        return torch.cat((inputs[:, :first], features), 1)

    def _remember(self, contexts: Tensor, rows: Tensor, inputs: Tensor, ok: Tensor) -> None:
        """Move contexts on by an observation each, where the step was `ok`."""
        before = contexts[rows]
        label = inputs[:, LABEL : LABEL + self.model.y_dim]
        after = self.model.remember(before, label, inputs[:, LABELLED] > 0)
        contexts[rows] = torch.where(ok.unsqueeze(-1), after, before)

    def _launch(
        self,
        views: Views,
        given: tuple[Tensor, Tensor, Tensor],
        hazards: Tensor,
        levels: Tensor,
        window: int,
        room: _Room,
    ) -> None:
        """Start all kernels of a step of distinct rows. given: rows, lines, and inputs."""
        parts, slots, d = self._parts, views.slots, self.model.y_dim
        _, lines, inputs = given
        count, wide = len(lines), inputs.shape[1]
        tile = max(16, 1 << (parts.features - 1).bit_length())
        sizes = {
            "OUTPUTS": d, "FEATURES": parts.features, "TILE": tile, "COUNT": parts.statistics,
            "num_warps": max(1, tile * tile // 512), "enable_fp_fusion": True,
        }  # fmt: skip
        beside = views.table, *given, parts.numbers, room.table, room.prepared, slots, wide
        if parts.prepare is not None:
            start(parts.prepare, (count * (slots + 1),), *beside, **sizes)
        size = 1 << slots.bit_length()  # above the number of slots
        start(
            step, (count,), views.table, *given, hazards, levels, *room, slots, hazards.shape[1],
            wide, room.summary.shape[1], window, parts.statistics,
            SIZE=size, OUTPUTS=d, LEVELS=levels.shape[1], SUMMARISED=room.summary.shape[1] > 0,
            FEATURES=parts.features, FAMILY=parts.family, COMPONENT=parts.component,
            LEARN=parts.learn, num_warps=max(1, min(4, size // 32)), enable_fp_fusion=True,
        )  # fmt: skip
        if parts.absorb is not None:
            start(parts.absorb, (count * slots,), *beside, **sizes)

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
            packed = _probed(self.model, at)
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


def _probed(model: UnderlyingModel, at: int) -> Floats:
    """An observation (1, 6 + d + x) in the units of the model, that is no outlier."""
    packed = np.zeros((1, LABEL + model.y_dim + model.x_dim))
    packed[:, LABELLED], packed[:, ELAPSED] = at % 4 != 3, 1.0
    packed[:, CHANGEPOINT], packed[:, OUTLIER_RATE] = np.nan, 0.01
    values = np.sin(1.3 * at + np.arange(packed.shape[1] - LABEL))
    if isinstance(model, Learned):
        of = to_host([model.y_offset, model.x_offset, model.y_scale, model.x_scale])
        offset, scale = np.split(torch.cat(of).numpy(), 2)
        values = offset + scale * values
    packed[:, LABEL:] = values
    return packed


def _inputs(model: UnderlyingModel, packed: Tensor, hazard: Floats) -> moca.Inputs:
    """Inputs of the eager step from those of a kernel."""
    x = LABEL + model.y_dim
    return moca.Inputs(
        packed[:, x:] if model.x_dim else None,
        packed[:, LABEL:x],
        packed[:, LABELLED] > 0,
        to_device(hazard, packed.device),
        packed[:, ELAPSED],
        packed[:, CHANGEPOINT],
        packed[:, OUTLIER_RATE],
    )


def _empty(device: torch.device, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float64, device=device)


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
