"""States and priors as rows of numbers, the slots last: as kernels step them, where they lie.

A row is the lines and the head of one stream. Lines (L, W): log probability, run length, score and
previous start of each hypothesis, the totals of labels at its start, then the model's statistics,
each number of them a line. W are the slots, filled up to whole vectors with two columns at least
that no hypothesis has: the last holds the statistics of the prior, as do those before it, whose
probability is 0. The head (H,): position, the labels' location, the totals of labels, the context
and the context before the first label. Whole numbers are as floats, exact up to 2^53.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_core.belief import Belief
from model_core.filter import FilterState, Prior, init, make_prior
from model_core.upm.base import UnderlyingModel

LANES = 8  # numbers that the widest vectors of a processor hold
# Lines; the totals at the start and the statistics follow.
LOG_PROB, RUN_LENGTH, SCORE, PREVIOUS, TOTALS_AT_START = range(5)
SEQ, LOCATION = range(2)  # places in the head


def padded(numbers: int) -> int:
    """How many numbers a line has that is filled up to whole vectors."""
    return (numbers + LANES - 1) // LANES * LANES


def statistics_line(outputs: int) -> int:
    """First line of the statistics."""
    return TOTALS_AT_START + 1 + 2 * outputs


def totals_place(outputs: int) -> int:
    """Where the totals begin in the head."""
    return LOCATION + outputs


def context_place(outputs: int) -> int:
    """Where the context begins in the head."""
    return LOCATION + 1 + 3 * outputs


class Rows(NamedTuple):
    """Rows on the CPU as a kernel takes them: slots of each, lines (R, L, W) and heads (R, H)."""

    slots: int
    lines: NDArray[np.float64]
    heads: NDArray[np.float64]


class _Leaf(NamedTuple):
    """A statistic: its lines, and its shape under one hypothesis."""

    lines: slice
    shape: tuple[int, ...]


class Layout:
    """Where the numbers of a model's state lie, and rows from states and back."""

    def __init__(
        self, model: UnderlyingModel, max_hypotheses: int, device: torch.device | str = "cpu"
    ) -> None:
        unit = torch.ones(1, model.scaled, dtype=torch.float64, device=device)
        prior = make_prior(model, unit, unit)
        self.max_hypotheses = max_hypotheses
        self.slots = max_hypotheses + 1
        self.width = padded(self.slots + 2)
        self.outputs = model.y_dim
        self.context = prior.context.shape[1]
        self._stats = type(prior.stats)
        self._leaves: dict[str, _Leaf] = {}
        at = statistics_line(self.outputs)
        # What is stepped where it lies is not copied for it: last.
        order = sorted(prior.stats._fields, key=lambda name: name in model.in_place)
        self.kept = 0  # lines of statistics that are copied
        for name in order:
            shape = tuple(getattr(prior.stats, name).shape[2:])
            self._leaves[name] = _Leaf(slice(at, at + math.prod(shape)), shape)
            at += math.prod(shape)
            if name not in model.in_place:
                self.kept += math.prod(shape)
        self.height = at
        self.head = context_place(self.outputs) + 2 * self.context
        self.blank = self.begin(prior)

    def begin(self, prior: Prior) -> tuple[Tensor, Tensor]:
        """Lines (B, L, W) and heads (B, H) of streams before their first observation."""
        return self.packed(init(prior, self.max_hypotheses), prior)

    def packed(self, state: FilterState, prior: Prior) -> tuple[Tensor, Tensor]:
        """Lines (B, L, W) and heads (B, H) of states; the numbers are copied."""
        belief = state.belief
        batch = len(state.seq)
        lines = belief.log_prob.new_zeros(batch, self.height, self.width)
        lines[:, LOG_PROB, self.slots :] = -torch.inf
        lines[:, SCORE, self.slots :] = -torch.inf
        own = lines[..., : self.slots]
        for line, numbers in zip((LOG_PROB, RUN_LENGTH, SCORE, PREVIOUS), belief, strict=True):
            own[:, line] = numbers
        own[:, TOTALS_AT_START : statistics_line(self.outputs)] = state.totals_at_start.mT
        for name, leaf in self._leaves.items():
            own[:, leaf.lines] = getattr(state.stats, name).flatten(2).mT
            fresh = getattr(prior.stats, name).flatten(2).mT
            lines[:, leaf.lines, self.slots :] = fresh.expand(-1, -1, self.width - self.slots)
        seq = state.seq.unsqueeze(-1).double()
        heads = seq, prior.location, state.totals, state.context, prior.context
        return lines, torch.cat(heads, -1)

    def rows(self, lines: Tensor, heads: Tensor) -> Rows:
        """The same rows for a kernel, which changes them in place."""
        return Rows(self.slots, lines.numpy(), heads.numpy())

    def state(self, lines: Tensor, heads: Tensor) -> FilterState:
        """States of rows; all but whole numbers are views of them."""
        own = lines[..., : self.slots]
        belief = Belief(
            own[:, LOG_PROB], own[:, RUN_LENGTH].long(), own[:, SCORE], own[:, PREVIOUS].long()
        )
        _, totals, context, _ = self._parts(heads)
        at_start = own[:, TOTALS_AT_START : statistics_line(self.outputs)].mT
        stats = self._statistics(own)
        return FilterState(belief, heads[:, SEQ].long(), totals, at_start, context, stats)

    def prior(self, lines: Tensor, heads: Tensor) -> Prior:
        """Priors of rows, views of them."""
        location, _, _, context = self._parts(heads)
        return Prior(self._statistics(lines[..., -1:]), location, context)

    def _parts(self, heads: Tensor) -> Sequence[Tensor]:
        """Locations, totals, contexts, and contexts before the first label."""
        sizes = [1, self.outputs, 1 + 2 * self.outputs, self.context, self.context]
        return torch.split(heads, sizes, -1)[1:]

    def _statistics(self, columns: Tensor) -> NamedTuple:
        stats = {
            name: columns[:, leaf.lines].mT.unflatten(-1, leaf.shape)  # type: ignore[no-untyped-call]
            for name, leaf in self._leaves.items()
        }
        return self._stats(**stats)  # type: ignore[no-any-return]
