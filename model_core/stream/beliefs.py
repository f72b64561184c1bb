"""Beliefs of rows, on the host: what commands read off them, and override."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from model_core.belief import GREATEST, TIE
from model_core.hazard import LEARNED
from model_core.stream import memory
from model_core.table import CHANGES, GAP, LOG_PROB, RUN_LENGTH, SCORE, STEPS, Layout

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NEVER = np.iinfo(np.int64).max  # later than any run length


class Believed(NamedTuple):
    """What the belief of a row says, as a step would read it off.

    best_run_length: of the last regime on the best path. changed_probability, evidence: as of
    `Readout`; of a row with a memory that of a change to a new regime.
    """

    map_run_length: int
    best_run_length: int
    changed_probability: float
    evidence: float


class Probabilities(NamedTuple):
    """Run lengths of the surviving hypotheses, the shortest first, and their probabilities."""

    run_length: list[int]
    probability: list[float]

    def pairs(self) -> list[tuple[int, float]]:
        """Each run length with its probability."""
        return list(zip(*self, strict=True))


def believed(
    layout: Layout, lines: Floats, head: Floats, run_length: int, hazard: Floats
) -> Believed:
    """Belief of a row (L, W) and (H,); run_length: shorter ones are of changes not yet settled.

    As `model_core.readout.table`. hazard: (H,), as of `Inputs`.
    """
    own = lines[:, : layout.slots]
    inside = own[RUN_LENGTH] < run_length
    likened = own[LOG_PROB] - own[GAP]
    mass = np.exp(likened - likened.max())
    mass /= mass.sum()
    rate: Floats | float = hazard.max()
    if hazard[0] == LEARNED:
        rate = (hazard[1] + own[CHANGES]) / (hazard[1] + hazard[2] + head[STEPS])
    changed = np.where(inside, mass, 0.0)
    if layout.regimes:
        changed[own[layout.origin] > 0] = 0.0
        rate = rate * memory.novelty(layout, lines, head)
    unchanged = max(float((mass * ~inside * rate).sum()), 1 / GREATEST)
    probability = float(np.where(inside, np.exp(own[LOG_PROB]), 0.0).sum())
    return Believed(
        likeliest(own[LOG_PROB], own[RUN_LENGTH]),
        likeliest(own[SCORE], own[RUN_LENGTH]),
        min(probability, 1.0),
        min(float(changed.sum()), 1.0) / unchanged,
    )


def likeliest(values: Floats, run_length: Floats) -> int:
    """Run length with the largest value, by slot (S,); of equal ones that of the earliest start."""
    return int(run_length[values >= values.max() - TIE].max())


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
