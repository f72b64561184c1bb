"""`moca evaluate regimes`: what a memory of regimes gives and costs, beside the same without one.

On NAB, whose labelled windows are looked at, and on simulations whose states are known. A kind is
that of a change at its confirmation: `returned` to a remembered regime, or `changed` to a new one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from model_core.stream.events import Event
from model_core.stream_settings import DEFAULTS, StreamSettings
from model_core.upm.base import UnderlyingModel
from training.online import Followed, follow
from training.quality.series import Scalars

Floats = NDArray[np.float64]
GAPS = (1.0, 2.0, 4.0)  # sd between the levels of simulated states
STATES = 4  # of a series whose states recur
SPREAD = 12.0  # gaps: levels of states that never recur lie within it on both sides
APART = 8  # last states that a new one is a gap from
SHORTEST, LONGEST = 30, 170  # observations of a state
IN_TIME = 30  # observations in which the confirmation of a change counts for it
AT = 200  # position of a first step; the second one is as long after it
SHIFTS = (1.0, 2.0, 3.0)


class RecordedRow(NamedTuple):
    """Labelled series: changes by kind per 1,000 observations, mean log score.

    hit: labelled windows that hold a `changed`, of `windows`. step_us: CPU time of an observation.
    """

    regimes: int
    changed: float
    returned: float
    log_score: float
    hit: int
    windows: int
    step_us: float


class SimulatedRow(NamedTuple):
    """Simulated states a gap apart: true changes by kind, confirmed by either word.

    new, back: how many of those to a new state, and to one that was there before, were called
    (changed, returned). elsewhere: confirmed where there was no change. pure: share of the
    observations of the second half whose remembered regime is that of their state.
    """

    regimes: int
    recurring: bool
    gap: float
    new: tuple[int, int]
    back: tuple[int, int]
    elsewhere: int
    log_score: float
    pure: float

    @property
    def mistaken(self) -> float:
        """Share of the changes to a new state that were called `returned`."""
        return self.new[1] / max(sum(self.new), 1)


class DelayRow(NamedTuple):
    """Median observations to the first confirmation after a step, and how many were called right.

    first: of a series at rest for 200. back: of one that was there, left for 200 and comes back.
    """

    regimes: int
    shift: float
    first: float
    back: float
    right: float


class Simulated(NamedTuple):
    """A series (T,), the state of each observation, and its changes: position, whether back."""

    y: Floats
    state: NDArray[np.int64]
    changes: list[tuple[int, bool]]


def kinds(followed: Followed) -> list[tuple[int, bool]]:
    """Positions at which changes were confirmed, and whether they were called returned."""
    first: dict[int, tuple[int, Event]] = {}
    for seq, event in followed.events:
        if event.state == "confirmed":
            first.setdefault(event.id, (seq, event))
    return sorted((seq, event.returned is not None) for seq, event in first.values())


def recorded(model: UnderlyingModel, series: Sequence[Scalars], regimes: int) -> RecordedRow:
    """Follow labelled series."""
    counts = np.zeros(2)
    hit = 0
    windows = 0
    scores: list[Floats] = []
    took_s = 0.0
    for one in series:
        began = time.thread_time()
        followed = follow(model, one.y[:, None].tolist(), _settings(regimes))
        took_s += time.thread_time() - began
        found = kinds(followed)
        for _, returned in found:
            counts[int(returned)] += 1
        scores.append(followed.log_score)
        for start, end in _windows(one):
            windows += 1
            hit += any(start <= seq < end and not returned for seq, returned in found)
    total = sum(len(one.y) for one in series)
    changed, returned = (1000 * counts / total).tolist()
    score = float(np.nanmean(np.concatenate(scores)))
    return RecordedRow(regimes, changed, returned, score, hit, windows, 1e6 * took_s / total)


def _windows(one: Scalars) -> Iterator[tuple[int, int]]:
    if one.window is None:
        return
    edges = np.flatnonzero(np.diff(np.concatenate(([0], one.window.astype(int), [0]))))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def states(rng: np.random.Generator, recurring: bool, gap: float, length: int) -> Simulated:
    """A series of unit noise that moves between states."""
    y = rng.normal(size=length)
    state = np.zeros(length, np.int64)
    pool = (rng.permutation(STATES) * 1.3 * gap).tolist()
    levels: list[float] = []
    changes: list[tuple[int, bool]] = []
    at = 0
    while at < length:
        level = _level(rng, levels, pool if recurring else [], gap)
        end = at + int(rng.integers(SHORTEST, LONGEST + 1))
        if at:
            changes.append((at, level in levels))
        y[at:end] += level
        known = list(dict.fromkeys(levels))
        state[at:end] = known.index(level) if level in known else len(known)
        levels.append(level)
        at = end
    return Simulated(y, state, changes)


def _level(
    rng: np.random.Generator, before: Sequence[float], pool: Sequence[float], gap: float
) -> float:
    if pool:
        return float(rng.choice([level for level in pool if not before or level != before[-1]]))
    while True:
        level = float(rng.uniform(-SPREAD * gap, SPREAD * gap))
        if all(abs(level - other) >= gap for other in before[-APART:]):
            return level


def simulated(
    model: UnderlyingModel,
    regimes: int,
    recurring: bool,
    gap: float,
    seed: int,
    count: int,
    length: int,
) -> SimulatedRow:
    """Follow simulated states; the same ones for every memory."""
    rng = np.random.default_rng([seed, int(gap), int(recurring)])
    called = np.zeros((2, 2), int)  # by truth, then by word
    elsewhere = 0
    scores: list[float] = []
    pure: list[float] = []
    for _ in range(count):
        series = states(rng, recurring, gap, length)
        followed = follow(model, series.y[:, None].tolist(), _settings(regimes))
        scores.append(float(np.nanmean(followed.log_score)))
        pure.append(_purity(series.state, followed.regime))
        left = list(series.changes)
        for seq, returned in kinds(followed):
            truth = next((one for one in left if one[0] <= seq < one[0] + IN_TIME), None)
            if truth is None:
                elsewhere += 1
                continue
            left.remove(truth)
            called[int(truth[1]), int(returned)] += 1
    (new, back) = (tuple(row) for row in called.tolist())
    score = statistics.fmean(scores)
    return SimulatedRow(
        regimes, recurring, gap, (new[0], new[1]), (back[0], back[1]), elsewhere, score,
        statistics.fmean(pure),
    )  # fmt: skip


def _purity(state: NDArray[np.int64], named: NDArray[np.int64]) -> float:
    """Share of the second half whose name is mostly that of their state."""
    half = len(state) // 2
    own, names = state[half:], named[half:]
    same = [int(np.bincount(own[names == name]).max()) for name in np.unique(names)]
    return sum(same) / len(own)


def delays(model: UnderlyingModel, regimes: int, shift: float, seed: int, count: int) -> DelayRow:
    """Steps of normal series."""
    rng = np.random.default_rng([seed, int(10 * shift)])
    first: list[float] = []
    back: list[float] = []
    right = 0
    for _ in range(count):
        y = rng.normal(size=3 * AT)
        y[AT : 2 * AT] += shift
        found = kinds(follow(model, y[:, None].tolist(), _settings(regimes)))
        first.append(_delay(found, AT))
        back.append(_delay(found, 2 * AT))
        called = next((returned for seq, returned in found if seq >= 2 * AT), None)
        right += called == (regimes > 0)
    return DelayRow(
        regimes, shift, statistics.median(first), statistics.median(back), right / count
    )


def _delay(found: Sequence[tuple[int, bool]], at: int) -> float:
    """Observations from a step on to its confirmation; inf: none before the next step."""
    seq = next((seq for seq, _ in found if at <= seq < at + AT), None)
    return float("inf") if seq is None else seq - at + 1.0


def show(
    model: UnderlyingModel,
    series: Sequence[Scalars],
    memories: Sequence[int],
    seed: int,
    count: int,
    console: Console,
    length: int = 3000,
) -> None:
    """Print the tables; memories: numbers of regimes that are remembered."""
    if series:
        heads = "regimes", "changed / 1,000", "returned / 1,000", "log score", "windows", "us"
        table = Table(*heads, title="recorded series")
        for memory in memories:
            row = recorded(model, series, memory)
            table.add_row(
                str(memory), f"{row.changed:.2f}", f"{row.returned:.2f}", f"{row.log_score:.4f}",
                f"{row.hit} of {row.windows}", f"{row.step_us:.0f}",
            )  # fmt: skip
        console.print(table)
    heads = "states", "gap", "regimes", "new called returned", "back called so", "elsewhere"
    table = Table(*heads, "log score", "purity", title="simulated states")
    for recurring in (False, True):
        for gap in GAPS:
            for memory in memories:
                one = simulated(model, memory, recurring, gap, seed, count, length)
                table.add_row(
                    "recur" if recurring else "never recur", f"{gap:g} sd", str(memory),
                    f"{one.new[1]} of {sum(one.new)}", f"{one.back[1]} of {sum(one.back)}",
                    str(one.elsewhere), f"{one.log_score:.4f}", f"{one.pure:.2f}",
                )  # fmt: skip
    console.print(table)
    table = Table("shift", "regimes", "first", "back", "kind right", title="median delays")
    for shift in SHIFTS:
        for memory in memories:
            step = delays(model, memory, shift, seed, count)
            table.add_row(
                f"{shift:g} sd", str(memory), f"{step.first:g}", f"{step.back:g}",
                f"{step.right:.2f}",
            )  # fmt: skip
    console.print(table)


def _settings(regimes: int) -> StreamSettings:
    return DEFAULTS._replace(regimes=regimes)
