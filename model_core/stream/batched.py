"""Steps of many rows by torch, the numbers that answers are made of included: one function.

A device is slowest where it gets its work in small pieces: of eager torch these are hundreds a
step. Compiled the function is a graph of a few kernels. It is traced for whole numbers of rows and
of hazards, hence compiled in a few sizes, which batches are filled up to by rows of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from model_core import filter as moca
from model_core import readout, summary
from model_core.errors import NotCompiled
from model_core.hazard import table_of
from model_core.lazy import Tensor, torch
from model_core.stream import columns
from model_core.stream.columns import Floats, Packed, longer
from model_core.table import Layout
from model_core.transfer import to_device
from model_core.upm.base import UnderlyingModel

SIZES = (256, 4096)  # rows of a compiled step: fewer hardly cost a device less
LEARNED_WIDTH = 3  # of a hazard that streams learn, as a table
KEPT = 32  # models and shapes whose compiled steps are kept
Stepped = tuple[Tensor, Tensor, Tensor]  # lines and heads after a step, numbers for the host
Advance = Callable[[Tensor, Tensor, Tensor], Stepped]  # of lines, heads and what was `columns.sent`
# What torch's compiler, or one that it needs, may end with; also where a model cannot be traced.
FAILURES = ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError


def advance(
    model: UnderlyingModel,
    layout: Layout,
    levels: Tensor | None,
    lines: Tensor,
    heads: Tensor,
    sent: Tensor,
) -> Stepped:
    """Step rows; returns their lines and heads, and (B, C) what the host needs of the steps.

    That is what `readout.table` takes and, unless `levels` is None, the summaries of predictives.
    """
    inputs = columns.unpacked(model, sent)
    prior = layout.prior(lines, heads)
    state, info = moca.step(model, layout.state(lines, heads), prior, inputs)
    lines, heads = layout.packed(state, prior)
    numbers = readout.columns(layout, lines, heads, info)
    if levels is not None:
        y = torch.where(inputs.labelled.unsqueeze(-1), inputs.y, torch.nan)
        numbers = torch.cat((numbers, summary.columns(info.predictive, y, levels)), 1)
    return lines, heads, numbers


class Compiled(NamedTuple):
    """Steps of batches by their size, rising; width: entries of the hazards that they take."""

    by_size: dict[int, Advance]
    width: int

    def takes(self, packed: Packed) -> bool:
        """Whether hazards are no longer tables than it was compiled for."""
        return len(packed.hazard[0]) <= self.width

    def advance(self, lines: Tensor, heads: Tensor, packed: Packed) -> Stepped:
        """As the function of this name, with summaries if it was compiled for any."""
        most = max(self.by_size)
        packed = packed._replace(hazard=longer(packed.hazard, self.width))
        rows = lines, heads, columns.sent(packed, lines.device)
        starts = range(0, len(lines), most)
        parts = [self._at_once(*(part[at : at + most] for part in rows)) for at in starts]
        if len(parts) == 1:
            return parts[0]
        lines, heads, numbers = map(torch.cat, zip(*parts, strict=True))
        return lines, heads, numbers

    def _at_once(self, *rows: Tensor) -> Stepped:
        """Of at most as many rows as the largest size has; the first of them fills it up."""
        count = len(rows[0])
        size = next(size for size in self.by_size if size >= count)
        more = size - count
        if more:
            rows = tuple(torch.cat((own, own[:1].expand(more, *own.shape[1:]))) for own in rows)
        lines, heads, numbers = self.by_size[size](*rows)
        return lines[:count], heads[:count], numbers[:count]


def compiled(
    model: UnderlyingModel, layout: Layout, levels: Sequence[float], device: str, most: int
) -> Compiled:
    """Compile the step of rows, at most `most` of them at once; raises NotCompiled.

    Takes minutes; torch keeps on disk what it made. Of an equal model and shape once.
    """
    shape = layout.max_hypotheses, layout.regimes
    try:
        return _compiled(model, *shape, tuple(levels), device, min(most, SIZES[-1]))
    except FAILURES as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise NotCompiled(reason[0]) from error


@lru_cache(KEPT)
def _compiled(
    model: UnderlyingModel,
    max_hypotheses: int,
    regimes: int,
    levels: tuple[float, ...],
    device: str,
    most: int,
) -> Compiled:
    layout = Layout(model, max_hypotheses, device, regimes)
    width = max(LEARNED_WIDTH, len(table_of(model.hazard)))
    rising = torch.tensor(levels, dtype=torch.float64, device=device) if levels else None
    steps = {}
    for size in (*(size for size in SIZES if size < most), most):
        ones = np.ones((size, model.scaled))
        sent = np.ones((size, columns.width(model) + width))
        step = partial(advance, model, layout, rising)
        steps[size] = _of_size(step, device, *layout.begin(ones, ones), sent)
    return Compiled(steps, width)


def _of_size(advance: Advance, device: str, *rows: Floats) -> Advance:
    """Compile for as many rows as these, which it is called with once: that compiles it."""
    with torch.inference_mode():
        placed = tuple(to_device(part, device) for part in rows)
        step = torch.nn.Module()
        step.forward = advance
        # Traced first by its operations alone: models are more Python than dynamo takes. What would
        # have the host wait for a number is an error here.
        traced = torch.export.export(step, placed, strict=False).module()
        made: Advance = torch.compile(traced.forward, fullgraph=True, dynamic=False)
        made(*placed)
    return made
