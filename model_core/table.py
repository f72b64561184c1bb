"""States and priors as rows of numbers, the slots last: as kernels step them, where they lie.

A row is the lines and the head of one stream. Lines (L, W): log probability, run length, score,
previous start, changes and gap of each hypothesis, the totals of labels at its start, then the
model's statistics, each number of them a line. W are the slots, filled up to whole vectors with two
columns at least that no hypothesis has: the last holds the statistics of the prior, as do those
before it, whose probability is 0. The head (H,): position, steps of the hazard, the labels'
location, the totals of labels, the context and the context before the first label. Whole numbers
are as floats, exact up to 2^53.

Rows with a memory of M regimes (`model_core.regimes`) have a slot more for each, and a column for
each before the two that no hypothesis has, with the statistics that its returns begin with. After
the statistics are the lines of the origin and the returns, then those of the regime that ended: its
origin and its statistics. The head ends with the numbers of the memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from model_core.belief import Belief
from model_core.filter import FilterState, Prior
from model_core.lazy import Tensor, torch
from model_core.regimes import NEXT_ID, OF_HYPOTHESIS, SETTLED, Memory, size
from model_core.upm.base import Stats, UnderlyingModel

Floats = NDArray[np.float64]
LANES = 8  # numbers that the widest vectors of a processor hold
# Lines; the totals at the start and the statistics follow.
LOG_PROB, RUN_LENGTH, SCORE, PREVIOUS, CHANGES, GAP, TOTALS_AT_START = range(7)
SEQ, STEPS, LOCATION = range(3)  # places in the head
BESIDE = 2  # last columns that no hypothesis has


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
    """Rows on the CPU as a kernel takes them: slots of each, lines (R, L, W) and heads (R, H).

    regimes: M of their memory; 0: they have none.
    """

    slots: int
    lines: Floats
    heads: Floats
    regimes: int = 0


class _Leaf(NamedTuple):
    """A statistic: its lines, and its shape under one hypothesis."""

    lines: slice
    shape: tuple[int, ...]


class Layout:
    """Where the numbers of a model's state lie; rows of new streams, and states as views of rows.

    Rows are arrays on the host, or tensors on a device; states and priors are tensors.
    """

    def __init__(
        self, model: UnderlyingModel, max_hypotheses: int, device: str = "cpu", regimes: int = 0
    ) -> None:
        """regimes: M of the memory; raises ValueError if the model recalls none."""
        if regimes and not model.recalls:
            raise ValueError(f"expected 0 regimes of kind {model.kind!r}, got {regimes}")
        self.kind = model.kind
        self.regimes = regimes
        self._model = model
        self._device = device
        unit = np.ones((1, model.scaled))
        stats, context = model.start(unit, unit, device)
        self.max_hypotheses = max_hypotheses
        self.slots = max_hypotheses + 1 + regimes
        self.width = padded(self.slots + regimes + BESIDE)
        self.stored = slice(self.width - BESIDE - regimes, self.width - BESIDE)
        self.outputs = model.y_dim
        self.context = context.shape[1]
        self._stats = type(stats)
        self._leaves: dict[str, _Leaf] = {}
        at = statistics_line(self.outputs)
        # What is stepped where it lies is not copied for it: last.
        order = sorted(stats._fields, key=lambda name: name in model.in_place)
        self.kept = 0  # lines of statistics that are copied
        for name in order:
            shape = tuple(getattr(stats, name).shape[2:])
            self._leaves[name] = _Leaf(slice(at, at + math.prod(shape)), shape)
            at += math.prod(shape)
            if name not in model.in_place:
                self.kept += math.prod(shape)
        self.beside = range(self.width - BESIDE, self.width)
        self.origin = at
        self.returns = at + 1
        self.ended = at + 2
        # From a line of statistics to that of the regime that ended.
        self._to_ended = self.ended + 1 - statistics_line(self.outputs)
        count = at - statistics_line(self.outputs)
        self.height = at + (OF_HYPOTHESIS + count if regimes else 0)
        self.numbers = context_place(self.outputs) + 2 * self.context
        self.head = self.numbers + size(regimes)

    def begin(self, locations: Floats, scales: Floats) -> tuple[Floats, Floats]:
        """Lines (B, L, W) and heads (B, H) of streams before their first observation.

        locations, scales: (B, model.scaled).
        """
        stats, context = self._model.start(locations, scales, self._device)
        batch = len(locations)
        lines = np.zeros((batch, self.height, self.width))
        lines[:, (LOG_PROB, SCORE)] = -np.inf
        lines[:, PREVIOUS, : self.slots] = -1
        for name, leaf in self._leaves.items():
            lines[:, leaf.lines] = getattr(stats, name).reshape(batch, -1, 1)
        if self.regimes:
            lines[:, self.origin, self.stored] = np.arange(1, self.regimes + 1)
        nothing = np.zeros((batch, 3 + 2 * self.outputs))
        counts, totals = np.split(nothing, [LOCATION], 1)
        memory = np.zeros((batch, size(self.regimes)))
        memory[:, SETTLED : SETTLED + 1] = -1
        memory[:, NEXT_ID : NEXT_ID + 1] = 1
        heads = np.hstack((counts, locations[:, : self.outputs], totals, context, context, memory))
        return lines, heads

    def packed(self, state: FilterState, prior: Prior) -> tuple[Tensor, Tensor]:
        """Lines (B, L, W) and heads (B, H) of states; the numbers are copied."""
        belief = state.belief
        batch = len(state.seq)
        lines = belief.log_prob.new_zeros(batch, self.height, self.width)
        lines[:, LOG_PROB, self.slots :] = -torch.inf
        lines[:, SCORE, self.slots :] = -torch.inf
        own = lines[..., : self.slots]
        for line, numbers in enumerate(belief):
            own[:, line] = numbers
        own[:, TOTALS_AT_START : statistics_line(self.outputs)] = state.totals_at_start.mT
        for name, leaf in self._leaves.items():
            own[:, leaf.lines] = getattr(state.stats, name).flatten(2).mT
            fresh = getattr(prior.stats, name).flatten(2).mT
            lines[:, leaf.lines, self.slots :] = fresh.expand(-1, -1, self.width - self.slots)
        memory = state.memory
        if memory is not None:
            own[:, self.origin] = memory.origin
            own[:, self.returns] = memory.returns
            lines[:, self.origin, self.stored] = torch.arange(
                1.0, self.regimes + 1, dtype=lines.dtype, device=lines.device
            )
            own[:, self.ended] = memory.ended_origin
            for name, leaf in self._leaves.items():
                lines[:, leaf.lines, self.stored] = getattr(memory.stored, name).flatten(2).mT
                ended = slice(leaf.lines.start + self._to_ended, leaf.lines.stop + self._to_ended)
                own[:, ended] = getattr(memory.ended, name).flatten(2).mT
        seq = state.seq.unsqueeze(-1).double()
        steps = state.steps.unsqueeze(-1)
        heads = [seq, steps, prior.location, state.totals, state.context, prior.context]
        if memory is not None:
            heads.append(memory.numbers)
        return lines, torch.cat(heads, -1)

    def state(self, lines: Floats | Tensor, heads: Floats | Tensor) -> FilterState:
        """States of rows; all but whole numbers are views of them."""
        own = torch.as_tensor(lines)[..., : self.slots]
        head = torch.as_tensor(heads)
        belief = Belief(
            own[:, LOG_PROB],
            own[:, RUN_LENGTH].long(),
            own[:, SCORE],
            own[:, PREVIOUS].long(),
            own[:, CHANGES],
            own[:, GAP],
        )
        _, totals, context, _, numbers = self._parts(head)
        at_start = own[:, TOTALS_AT_START : statistics_line(self.outputs)].mT
        stats = self._statistics(own)
        seq = head[:, SEQ].long()
        memory = None
        if self.regimes:
            memory = Memory(
                own[:, self.origin].long(),
                own[:, self.returns],
                self._statistics(torch.as_tensor(lines)[..., self.stored]),
                own[:, self.ended].long(),
                self._statistics(own[:, self._to_ended :]),
                numbers,
            )
        return FilterState(belief, seq, head[:, STEPS], totals, at_start, context, stats, memory)

    def prior(self, lines: Floats | Tensor, heads: Floats | Tensor) -> Prior:
        """Priors of rows, views of them."""
        location, _, _, context, _ = self._parts(torch.as_tensor(heads))
        return Prior(self._statistics(torch.as_tensor(lines)[..., -1:]), location, context)

    def ordered(self, lines: Floats) -> Floats:
        """Lines (L, W) with the hypotheses in order, the shortest run first, empty slots last.

        Of one start by origin. A state that was resized, or filtered again, has other slots.
        """
        own = lines[:, : self.slots]
        origin = own[self.origin] if self.regimes else np.zeros(self.slots)
        order = np.lexsort((origin, own[RUN_LENGTH], np.isneginf(own[LOG_PROB])))
        ordered = lines.copy()
        ordered[:, : self.slots] = own[:, order]
        return ordered

    def resized(self, lines: Floats, slots: int) -> Floats:
        """The likeliest hypotheses of rows (B, L, any width), of `slots` each, in these slots.

        What goes is not reported: it happens once, at the user's word.
        """
        resized = np.repeat(lines[..., -1:], self.width, -1)
        resized[:, (RUN_LENGTH, *range(CHANGES, statistics_line(self.outputs)))] = 0
        resized[:, PREVIOUS, : self.slots] = -1
        keep = min(self.max_hypotheses, slots)
        order = np.argsort(-lines[:, LOG_PROB, :slots], 1, kind="stable")[:, :keep]
        resized[..., :keep] = np.take_along_axis(lines, order[:, None], 2)
        resized[..., self.stored] = lines[..., -BESIDE - self.regimes : -BESIDE]
        log_prob = resized[:, LOG_PROB]
        top = log_prob.max(1, keepdims=True)
        there = np.isfinite(top)  # before the first observation there is nothing to normalise
        shares = np.exp(log_prob - np.where(there, top, 0.0)).sum(1, keepdims=True)
        log_prob -= np.where(there, top + np.log(np.where(there, shares, 1.0)), 0.0)
        return resized

    @property
    def symmetric(self) -> list[_Leaf]:
        """Statistics whose last two axes are a symmetric matrix."""
        return [self._leaves[name] for name in self._model.symmetric]

    def columns(self, lines: Floats, columns: slice | list[int], ended: bool = False) -> Stats:
        """Statistics, arrays (1, n, ...), in columns of a row's lines (L, W), copied.

        ended: of the regimes that ended before these hypotheses.
        """
        own = lines[self._to_ended if ended else 0 :, columns].T.copy()
        stats = {
            name: own[None, :, leaf.lines].reshape(1, len(own), *leaf.shape)
            for name, leaf in self._leaves.items()
        }
        return self._stats(**stats)

    def put_column(self, lines: Floats, column: int, stats: Stats) -> None:
        """Write statistics, arrays (1, 1, ...), into a column of a row's lines (L, W)."""
        for name, leaf in self._leaves.items():
            lines[leaf.lines, column] = getattr(stats, name).ravel()

    def _parts(self, heads: Tensor) -> Sequence[Tensor]:
        """Locations, totals, contexts, those before the first label, numbers of the memory."""
        totals = 1 + 2 * self.outputs
        memory = size(self.regimes)
        sizes = [LOCATION, self.outputs, totals, self.context, self.context, memory]
        return torch.split(heads, sizes, -1)[1:]

    def _statistics(self, columns: Tensor) -> NamedTuple:
        stats = {
            name: columns[:, leaf.lines].mT.unflatten(-1, leaf.shape)  # type: ignore[no-untyped-call]
            for name, leaf in self._leaves.items()
        }
        return self._stats(**stats)  # type: ignore[no-any-return]
