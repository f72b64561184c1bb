"""Gaussian discriminant analysis under every start at once, without repeating a window's work.

What a window says of a class depends only on the window's observations of that class: on the first
of them, `u`, and the last, `v`. There are about `T^2 / 2J` such pairs, and each is asked about the
`J` or so inputs that follow before the class is seen again. So all densities `log p(z_t | y = j,
rows s..t-1)` are those of `T^2 / 2` pairs `(u, t)`, and `T J` more of classes not seen yet, instead
of `T^2 J / 2`. Deviations from the prior's mean are summed, not features: sums of these lose
digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

ROWS = 4096  # rows whose squares are summed at once: they stay in the processor's cache


class Classes(NamedTuple):
    """mean, precision: (J, n) of the prior on a class's mean. noise: (J, n) variances."""

    mean: Tensor
    precision: Tensor
    noise: Tensor


class Density(NamedTuple):
    """`log p(z_t | y = j, rows s..t-1)` of all starts, each different one once.

    value: (Q,). row: (B, T, T) by [u, t], which of them is that of the class of `u`, first seen in
    the window at `u`; -1 for none. unseen: (B, J, T), that of a class not seen. following:
    (B, T, J), the first observation of a class from `s` on, T for none. before: (B, J, T), how
    many observations of a class there are before `t`.
    """

    value: Tensor
    row: Tensor
    unseen: Tensor
    following: Tensor
    before: Tensor

    def columns(self, part: slice) -> Tensor:
        """By [s, j, t], t in a part of the sequence: (B, T, J, c); anything where `s > t`."""
        t = torch.arange(self.row.shape[-1], device=self.row.device)[part]
        batch, steps, classes = self.following.shape
        first = self.following.unsqueeze(-1)
        index = first.clamp(max=steps - 1).flatten(1, 2).expand(-1, -1, len(t))
        numbers = self.row[..., part].gather(1, index).reshape(batch, steps, classes, -1)
        # A window that does not count, as it is too long, has no row either.
        row = torch.where(
            (first < t) & (numbers >= 0), numbers, self.unseen[..., part].unsqueeze(1)
        )
        return self.value.gather(0, row.flatten()).reshape(row.shape)

    def counts(self, part: slice) -> Tensor:
        """How often each class was seen by [s, j, t]: (B, T, J, c), 0 where `s > t`."""
        seen = self.before
        return (seen[..., part].unsqueeze(1) - seen.mT.unsqueeze(-1)).clamp(min=0)


class _Pairs(NamedTuple):
    """What a window knows of a class: it was seen from `first` to `last`, `count` times; (P,) each.

    number: (B, T, T), which of them that of [first, last] is.
    """

    sequence: Tensor
    first: Tensor
    last: Tensor
    label: Tensor
    count: Tensor  # type: ignore[assignment]
    number: Tensor


class _Squares(torch.autograd.Function):
    """`sum_n (phi - mean)^2 * inverse` of rows (Q,) that say which phi and which mean.

    In parts, forward and again backward, so that nothing of size Q * n is ever kept.
    """

    @staticmethod
    def forward(
        ctx: Any, phi: Tensor, mean: Tensor, inverse: Tensor, asked: Tensor, condition: Tensor
    ) -> Tensor:
        """phi: (M, n). mean, inverse: (P, n). asked, condition: (Q,) rows of phi and of mean."""
        ctx.save_for_backward(phi, mean, inverse, asked, condition)
        squares = phi.new_empty(len(asked))
        parts = _parts(squares, asked, condition)
        for part, which, of in parts:
            error = phi.index_select(0, which).sub_(mean.index_select(0, of))
            torch.sum(error.square_().mul_(inverse.index_select(0, of)), -1, out=part)
        return squares

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of phi, mean and inverse."""
        phi, mean, inverse, asked, condition = ctx.saved_tensors
        d_phi, d_mean, d_inverse = (torch.zeros_like(tensor) for tensor in (phi, mean, inverse))
        parts = _parts(grad, asked, condition)
        for part, which, of in parts:
            error = phi.index_select(0, which).sub_(mean.index_select(0, of))
            weighted = part.unsqueeze(-1) * error
            d_inverse.index_add_(0, of, error.mul_(weighted))
            moved = weighted.mul_(inverse.index_select(0, of))
            d_phi.index_add_(0, which, moved, alpha=2)
            d_mean.index_add_(0, of, moved, alpha=-2)
        return d_phi, d_mean, d_inverse, None, None


def _parts(*rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(torch.split(row, ROWS) for row in rows), strict=True)


def densities(
    classes: Classes, phi: Tensor, label: Tensor, present: Tensor, longest: int | None = None
) -> Density:
    """Of features (B, T, n) with class indices (B, T) where `present` (B, T).

    longest: windows of at most as many observations are enough.
    """
    batch, steps = label.shape
    size = len(classes.mean)
    t = torch.arange(steps, device=phi.device)
    chosen = (label.unsqueeze(-1) == torch.arange(size, device=phi.device)) & present.unsqueeze(-1)
    following = torch.where(chosen, t.unsqueeze(-1), steps).flip(1).cummin(1).values.flip(1)
    latest = torch.where(chosen, t.unsqueeze(-1), 0).cummax(1).values
    before = chosen.long().cumsum(1) - chosen.long()
    length = t - t.unsqueeze(-1)
    near = (length >= 0) if longest is None else (length >= 0) & (length <= longest)
    same = (label.unsqueeze(2) == label.unsqueeze(1)) & present.unsqueeze(2) & present.unsqueeze(1)
    pairs = _pairs(same & near, label, before)
    # Each observation of a class, and each input after it.
    sequence, first, at = (present.unsqueeze(-1) & near & (length > 0)).nonzero(as_tuple=True)
    pair = pairs.number[sequence, first, latest[sequence, at - 1, label[sequence, first]]]
    row = torch.full_like(pairs.number, -1)
    row[sequence, first, at] = torch.arange(len(at), device=phi.device)
    # Each input under each class that was not seen.
    unseen = torch.arange(batch * size * steps, device=phi.device).reshape(batch, size, steps)
    of_class = unseen // steps % size
    at_time = unseen // (size * steps) * steps + t
    asked = torch.cat((sequence * steps + at, at_time.flatten()))
    known_of = torch.cat((pair, len(pairs.first) + of_class.flatten()))
    deviation = phi - classes.mean[label]
    value = _values(classes, phi, pairs, _sums(deviation, same, pairs), (asked, known_of))
    return Density(value, row, len(at) + unseen, following, before.mT)


def _pairs(these: Tensor, label: Tensor, before: Tensor) -> _Pairs:
    """Of (B, T, T), where [first, last] are a pair."""
    sequence, first, last = these.nonzero(as_tuple=True)
    number = torch.zeros_like(these, dtype=torch.long)
    number[sequence, first, last] = torch.arange(len(first), device=label.device)
    of_class = label[sequence, first]
    count = before[sequence, last, of_class] - before[sequence, first, of_class] + 1
    return _Pairs(sequence, first, last, of_class, count, number)


def _sums(deviation: Tensor, same: Tensor, pairs: _Pairs) -> Tensor:
    """Sums (P, n) of the deviations that each pair has seen."""
    earlier = (same.tril(-1).to(deviation.dtype) @ deviation).flatten(0, 1)
    steps = deviation.shape[1]
    first, last = (pairs.sequence * steps + place for place in (pairs.first, pairs.last))
    moved = earlier.index_select(0, last) - earlier.index_select(0, first)
    return moved + deviation.flatten(0, 1).index_select(0, last)


def _values(
    classes: Classes, phi: Tensor, pairs: _Pairs, sums: Tensor, rows: tuple[Tensor, Tensor]
) -> Tensor:
    """Log densities (Q,) of inputs `rows[0]` of B * T, knowing pair, or then class, `rows[1]`."""
    most = int(pairs.count.max()) if len(sums) else 0
    number = torch.arange(most + 1, dtype=phi.dtype, device=phi.device)[:, None, None]
    # By count and class: all that has a logarithm or a quotient in it.
    gain = (classes.precision * classes.noise + number).reciprocal()
    variance = classes.noise * (1 + gain)
    logs = (variance.log() + math.log(2 * math.pi)).sum(-1).flatten()
    every = torch.arange(len(classes.mean), device=phi.device)
    of_class = torch.cat((pairs.label, every))
    entry = torch.cat((pairs.count, torch.zeros_like(every))) * len(every) + of_class
    seen = gain.flatten(0, 1).index_select(0, entry[: len(sums)]) * sums
    mean = classes.mean.index_select(0, of_class) + pad(seen, (0, 0, 0, len(every)))
    inverse = variance.reciprocal().flatten(0, 1).index_select(0, entry)
    squares: Tensor = _Squares.apply(  # type: ignore[no-untyped-call]
        phi.flatten(0, 1), mean, inverse, *rows
    )
    return -0.5 * (squares + logs.index_select(0, entry).gather(0, rows[1]))
