"""An LSTM's cell from every start at once, by the number of rows that a start has behind it.

After `r` rows the starts `0..T-r-1` stand before the rows `r..T-1`. With time as the first axis
both are slices that lie together in memory, no start is carried before it is born, and what does
not depend on the start, the inputs' share of the gates, is computed once for each row.

Gates are in the order of torch.nn.LSTMCell (input, forget, cell, output).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor


class _CellStep(NamedTuple):
    """Hidden state, cell (starts, B, h) and gates (starts, B, 4h) of one length."""

    state: Tensor
    cell: Tensor
    gates: Tensor


def hidden(first: Tensor, later: Tensor, weight_hh: Tensor, lengths: int) -> Iterable[Tensor]:
    """Hidden states `[r][s]` (T - r, B, h) before row `s + r` is predicted, for `r < lengths`.

    first, later: (T, B, 4h) the inputs' share of the gates, biases included, where a row is the
    first of its start and where it is not. weight_hh: (4h, h). Starts begin at zeros. Where no
    gradient is wanted only one length at a time is held.
    """
    if not torch.is_grad_enabled():
        return (step.state for step in _steps(first, later, weight_hh, lengths))
    states: tuple[Tensor, ...] = _Cells.apply(  # type: ignore[no-untyped-call]
        first, later, weight_hh, lengths
    )
    return states


def tails(value: Tensor, lengths: int) -> tuple[Tensor, ...]:
    """`value[r:]` for `r < lengths`; their gradients are added in place."""
    parts: tuple[Tensor, ...] = _Tails.apply(value, lengths)  # type: ignore[no-untyped-call]
    return parts


def by_start(packed: Tensor, steps: int, lengths: int) -> Tensor:
    """From values (sum of T - r, B), one length after the other, to (B, T, T) by [s, t].

    Anything stands where there is no such length.
    """
    t = torch.arange(steps, device=packed.device)
    length = (t - t.unsqueeze(-1)).clamp(0, lengths - 1)
    before = length * steps - length * (length - 1) // 2
    place = (before + t.unsqueeze(-1)).clamp(max=len(packed) - 1)
    return packed.index_select(0, place.flatten()).reshape(steps, steps, -1).permute(2, 0, 1)


class _Cells(torch.autograd.Function):
    """With its own gradient: torch would keep that of every slice and every gate apart."""

    @staticmethod
    def forward(
        ctx: Any, first: Tensor, later: Tensor, weight_hh: Tensor, lengths: int
    ) -> tuple[Tensor, ...]:
        """See `hidden`."""
        states, cells, gates = zip(*_steps(first, later, weight_hh, lengths), strict=True)
        ctx.save_for_backward(weight_hh, *states, *cells, *gates)
        return states

    @staticmethod
    def backward(ctx: Any, *d_states: Tensor) -> tuple[Tensor | None, ...]:
        """The steps in reverse."""
        weight_hh, *saved = ctx.saved_tensors
        lengths = len(d_states)
        states, cells, gates = (saved[k * lengths : (k + 1) * lengths] for k in range(3))
        steps = len(gates[0])
        d_weight = torch.zeros_like(weight_hh)
        d_later = torch.zeros_like(gates[0])
        d_state = d_cell = cells[0][:0]
        for r in range(lengths - 1, -1, -1):
            d_hidden = d_states[r].clone()
            d_hidden[: len(d_state)] += d_state
            before = None if r == 0 else cells[r - 1][: steps - r]
            d_gates, d_cell = _reverse(gates[r], cells[r], before, d_hidden, d_cell)
            if r == 0:
                return d_gates, d_later, d_weight, None
            d_later[r:] += d_gates
            flat = d_gates.flatten(0, 1)
            d_weight.addmm_(flat.T, states[r - 1][: steps - r].flatten(0, 1))
            d_state = (flat @ weight_hh).view_as(d_hidden)
        raise AssertionError("there is a first row")


class _Tails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, lengths: int) -> tuple[Tensor, ...]:
        ctx.size = value.shape
        return tuple(value[r:] for r in range(lengths))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        total = grads[0].new_zeros(ctx.size)
        for r, part in enumerate(grads):
            total[r:] += part
        return total, None


def _steps(first: Tensor, later: Tensor, weight_hh: Tensor, lengths: int) -> Iterator[_CellStep]:
    """One length after the other."""
    size = weight_hh.shape[1]
    gates = first.clone()
    _activate(gates, size)
    write, _, new, read = gates.chunk(4, -1)
    cell = write * new
    state = torch.tanh(cell).mul_(read)
    yield _CellStep(state, cell, gates)
    for r in range(1, lengths):
        rows = later[r:]
        behind = state[: len(rows)].flatten(0, 1)
        gates = torch.addmm(rows.flatten(0, 1), behind, weight_hh.T).view_as(rows)
        _activate(gates, size)
        write, keep, new, read = gates.chunk(4, -1)
        cell = (write * new).addcmul_(keep, cell[: len(rows)])
        state = torch.tanh(cell).mul_(read)
        yield _CellStep(state, cell, gates)


def _activate(gates: Tensor, size: int) -> None:
    """In place: sigmoid, but tanh of the cell's new value."""
    gates[..., : 2 * size].sigmoid_()
    gates[..., 2 * size : 3 * size].tanh_()
    gates[..., 3 * size :].sigmoid_()


def _reverse(
    gates: Tensor, cell: Tensor, before: Tensor | None, d_hidden: Tensor, later: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of the gates before they are activated, and of the cell before.

    before: the cell before, None for zeros. later: gradient of the cell's first rows from the step
    after.
    """
    write, keep, new, read = gates.chunk(4, -1)
    shape = torch.tanh(cell)
    d_gates = torch.empty_like(gates)
    d_write, d_keep, d_new, d_read = d_gates.chunk(4, -1)
    d_cell = torch.ops.aten.tanh_backward(d_hidden * read, shape)
    d_cell[: len(later)] += later
    torch.mul(d_cell, new, out=d_write)
    torch.mul(d_cell, write, out=d_new)
    torch.mul(d_hidden, shape, out=d_read)
    if before is None:
        d_keep.zero_()
    else:
        torch.mul(d_cell, before, out=d_keep)
    for part, value in ((d_write, write), (d_keep, keep), (d_read, read)):
        part.copy_(torch.ops.aten.sigmoid_backward(part, value))
    d_new.copy_(torch.ops.aten.tanh_backward(d_new, new))
    return d_gates, d_cell.mul_(keep)
