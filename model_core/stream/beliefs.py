"""Beliefs of rows, on the host: what commands read off them, and override."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from model_core.table import LOG_PROB, RUN_LENGTH, SCORE

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NEVER = np.iinfo(np.int64).max  # later than any run length


class Probabilities(NamedTuple):
    """Run lengths of the surviving hypotheses, the shortest first, and their probabilities."""

    run_length: list[int]
    probability: list[float]

    def pairs(self) -> list[tuple[int, float]]:
        """Each run length with its probability."""
        return list(zip(*self, strict=True))


def probabilities(log_prob: Floats, run_length: Ints) -> list[Probabilities]:
    """Surviving hypotheses of beliefs (B, S); those of one start count as one."""
    alive = np.isfinite(log_prob)
    held = np.where(alive, run_length, NEVER)
    order = held.argsort(1, kind="stable")
    lengths = np.take_along_axis(held, order, 1)
    again = (lengths[:, 1:] == lengths[:, :-1]) & (lengths[:, 1:] < NEVER)
    chances = np.exp(np.take_along_axis(log_prob, order, 1)).tolist()
    rows = zip(lengths.tolist(), chances, alive.sum(1).tolist(), again.any(1).tolist(), strict=True)
    return [
        _joined(r[:count], p[:count]) if several else Probabilities(r[:count], p[:count])
        for r, p, count, several in rows
    ]


def of_room(room: Floats) -> list[Probabilities]:
    """As `probabilities`, of what kernels fill in: (B, 2, S) log probabilities and run lengths."""
    return probabilities(room[:, 0], room[:, 1].astype(np.int64))


def _joined(run_length: list[int], probability: list[float]) -> Probabilities:
    """Run lengths in order, of which several may be the same: of starts with several origins."""
    total = dict.fromkeys(run_length, 0.0)
    for length, chance in zip(run_length, probability, strict=True):
        total[length] += chance
    return Probabilities(list(total), list(total.values()))


def restate(lines: Floats, slots: int, stated: Sequence[tuple[int, float]]) -> None:
    """Override the belief in lines (L, W) of a stream by probabilities of distinct run lengths.

    A run length that has no hypothesis counts as the next longer one there is, or as the longest:
    such are those that were pruned, and regimes from before the first observation that is known. A
    belief without any hypothesis stays as it is. Hypotheses of one start share what it gets by
    their probabilities. The best paths' scores move as if the difference had been observed.
    Probabilities need not sum to one; without any it is a ValueError.
    """
    log_prob = lines[LOG_PROB, :slots]
    alive = np.flatnonzero(np.isfinite(log_prob))
    if not len(alive):
        return
    distinct, of_start = np.unique(lines[RUN_LENGTH, alive], return_inverse=True)
    lengths, chances = zip(*stated, strict=True)
    places = np.searchsorted(distinct, lengths).clip(max=len(distinct) - 1)
    of_starts = np.zeros(len(distinct))
    np.add.at(of_starts, places, chances)
    top = np.full(len(distinct), -np.inf)
    np.maximum.at(top, of_start, log_prob[alive])
    before = np.exp(log_prob[alive] - top[of_start])
    shares = before / np.bincount(of_start, before)[of_start]
    mass = np.zeros(slots)
    mass[alive] = of_starts[of_start] * shares
    if not mass.sum() > 0:
        raise ValueError("the override leaves no hypothesis with a positive probability")
    there = mass > 0
    believed = np.full(slots, -np.inf)
    believed[there] = np.log(mass[there]) - np.log(mass.sum())
    score = lines[SCORE, :slots]
    score[there] += believed[there] - log_prob[there]
    score[~there] = -np.inf
    log_prob[:] = believed
