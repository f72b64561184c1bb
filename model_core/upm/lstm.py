"""LSTM meta-learner: statistics are what a recurrent cell remembers (MOCA, app. B.1).

Hochreiter et al. (2001), but for the decoder, which sees the input's features beside the hidden
state. The cell takes in the features of the coming input and the label before it, and only then is
the coming label is predicted.

Of every start at once (`states_of`): after `r` rows the starts `0..T-r-1` stand before the rows
`r..T-1`. With time as the first axis both are slices that lie together in memory, no start is
carried before it is born, and what does not depend on the start, the inputs' share of the gates, is
computed once for each row. Gates are in the order of torch.nn.LSTMCell (input, forget, cell,
output).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from model_core.components import Normal
from model_core.encoder import ACTIVATIONS, Mlp
from model_core.upm.base import Densities, Stats, tree_map, widened
from model_core.upm.learned import Learned


class LstmStats(NamedTuple):
    """Hidden and cell state (B, S, h), and the label before, scaled, (B, S, y)."""

    hidden: Tensor
    cell: Tensor
    y_prev: Tensor


@dataclass(frozen=True, kw_only=True)
class Lstm(Learned):
    """Gaussian predictives with a diagonal covariance, decoded from the hidden state.

    weight_ih: (4h, n + y) and weight_hh: (4h, h), bias_ih and bias_hh: (4h,), in the order of
    torch.nn.LSTMCell (input, forget, cell, output). decoder: from (hidden, features) to the means
    and then the log variances. All answers are in the units of the labels. Every regime starts
    from zeros.
    """

    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor
    bias_hh: Tensor
    decoder: Mlp
    kind = "lstm"

    def prior(self, location: Tensor, scale: Tensor) -> LstmStats:
        """Zeros: the state, and the label before the first, in scaled units."""
        hidden = self.weight_hh.new_zeros(len(location), 1, self.weight_hh.shape[1])
        return LstmStats(hidden, hidden, hidden.new_zeros(len(location), 1, self.y_dim))

    def advance(self, stats: LstmStats, phi: Tensor) -> LstmStats:
        """The cell with the features (B, n) of the coming input; the label before stays."""
        # The features are the same for all hypotheses: their share of the gates is too.
        return self._cell(stats, self._share(phi).unsqueeze(1))

    def _share(self, phi: Tensor) -> Tensor:
        """What features (..., n) add to the gates (..., 4h)."""
        return linear(phi, self.weight_ih[:, : phi.shape[-1]], self.bias_ih)

    def _cell(self, stats: LstmStats, share: Tensor) -> LstmStats:
        gates = share + linear(stats.y_prev, self.weight_ih[:, -self.y_dim :])
        gates = gates + linear(stats.hidden, self.weight_hh, self.bias_hh)
        write, keep, new, read = gates.chunk(4, -1)
        cell = torch.sigmoid(keep) * stats.cell + torch.sigmoid(write) * torch.tanh(new)
        return stats._replace(hidden=torch.sigmoid(read) * torch.tanh(cell), cell=cell)

    def decode(self, hidden: Tensor, phi: Tensor) -> Normal:
        """Predictive of each hypothesis from the state (B, S, h) after `advance`."""
        features = phi.unsqueeze(1).expand(-1, hidden.shape[1], -1)
        return self._normal(self.decoder(torch.cat((hidden, features), -1)))

    def predictive(self, stats: LstmStats, phi: Tensor | None) -> Normal:
        """Predictive of each hypothesis, in the units of the labels."""
        features = self.required(phi)
        return self.decode(self.advance(stats, features).hidden, features)

    def outlier(self, prior: LstmStats, phi: Tensor | None) -> Normal:
        """The prior predictive with ten times its variance."""
        return widened(self.predictive(prior, phi))

    def update(self, stats: LstmStats, phi: Tensor | None, y: Tensor, weight: Tensor) -> LstmStats:
        """The cell's state and the label; between old and new by `weight`, in a straight line.

        A state is not a sum of observations, so a fraction of one has no exact meaning; at 0 and 1
        it is exactly the old and exactly the new.
        """
        return self._moved(stats, self.advance(stats, self.required(phi)), y, weight)

    def every_start(
        self, prior: Stats, phi: Tensor | None, y: Tensor, weight: Tensor, longest: int | None
    ) -> Densities | None:
        """By the rows behind a start; row by row where some are not absorbed."""
        if not bool(weight.all()):
            return None
        steps = y.shape[1]
        lengths = steps if longest is None else min(steps, longest + 1)
        features, label = (
            sequence.transpose(0, 1).contiguous() for sequence in (self.required(phi), y)
        )
        first = self._share(features) + self.bias_hh
        before = pad((label[:-1] - self.y_offset) / self.y_scale, (0, 0, 0, 0, 1, 0))
        later = first + linear(before, self.weight_ih[:, -self.y_dim :])
        states = states_of(first, later, self.weight_hh, lengths)
        predictive = self._normal(self._decoded(states, features, lengths))
        densities = predictive.joint_log_density(torch.cat([label[r:] for r in range(lengths)]))
        return Densities(by_start(densities, steps, lengths))

    def _decoded(self, states: Iterable[Tensor], features: Tensor, lengths: int) -> Tensor:
        """Answers of the decoder, one length after the other; features: (T, B, n)."""
        layers = self.decoder
        size = self.weight_hh.shape[1]
        weight = layers.weights[0]
        deeper = len(layers.weights) > 1
        share = tails(linear(features, weight[:, size:], layers.biases[0]), lengths)
        activate = ACTIVATIONS[layers.activation if deeper else layers.output_activation]
        deeper_layers = replace(layers, weights=layers.weights[1:], biases=layers.biases[1:])
        answers = []
        for hidden, tail in zip(states, share, strict=True):
            into = torch.addmm(tail.flatten(0, 1), hidden.flatten(0, 1), weight[:, :size].T)
            answers.append(deeper_layers(activate(into.view_as(tail))))
        return torch.cat(answers)

    def _normal(self, answers: Tensor) -> Normal:
        """Predictive of a decoder's answers (..., 2 y)."""
        mean, log_variance = answers.chunk(2, -1)
        scale = (0.5 * log_variance).exp()
        return Normal(mean * self.y_scale + self.y_offset, scale * self.y_scale)

    def _label(self, y: Tensor) -> Tensor:
        """Scaled (B, 1, y)."""
        return ((y - self.y_offset) / self.y_scale).unsqueeze(1)

    def _moved(self, old: LstmStats, new: LstmStats, y: Tensor, weight: Tensor) -> LstmStats:
        label = self._label(y).expand_as(old.y_prev)
        share = weight.unsqueeze(-1)
        return tree_map(
            lambda a, b: torch.where(share > 0, torch.lerp(a, b, share), a),
            old,
            new._replace(y_prev=label),
        )


# --- the cell, of every start at once -----------------------------------------------------------


class _CellStep(NamedTuple):
    """Hidden state, cell (starts, B, h) and gates (starts, B, 4h) of one length."""

    state: Tensor
    cell: Tensor
    gates: Tensor


def states_of(first: Tensor, later: Tensor, weight_hh: Tensor, lengths: int) -> Iterable[Tensor]:
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
        """See `states_of`."""
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
