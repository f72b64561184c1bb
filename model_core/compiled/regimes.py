"""The memory's part of a step: what `model_core.regimes` computes, for one stream in place.

What is read off it is here alone. A row's lines and head are as `model_core.table` has them.
"""

from __future__ import annotations

import math

from model_core.belief import GREATEST, TIE
from model_core.compiled import SETTLED, arithmetic
from model_core.compiled.arithmetic import INF
from model_core.compiled.belief import (
    CHANCE,
    EACH,
    GROWN,
    INSIDE,
    MASS,
    OUTSIDE,
    PATH,
    POSTERIOR,
    SHARE,
    SPARE,
    Birth,
    likened,
    rates,
    spared,
)
from model_core.compiled.jit import Floats, compiled, inlined, totals_place
from model_core.regimes import OF_HYPOTHESIS, REGIMES, returning
from model_core.regimes import SETTLED as KNOWN
from model_core.table import (
    BESIDE,
    CHANGES,
    GAP,
    LOG_PROB,
    PREVIOUS,
    RUN_LENGTH,
    SEQ,
    STEPS,
    TOTALS_AT_START,
)

# Columns of the table of a readout after the totals: probability of a fresh start after what is
# settled; evidence of any other there; most probable origin of starts there (0: fresh), with its
# share of their probability; most probable origin of all, with its probability.
(
    FRESH_PROBABILITY, RETURN_EVIDENCE, SINCE, SINCE_SHARE, NOW, NOW_PROBABILITY, COLUMNS,
) = range(7)  # fmt: skip
# Lines after that of the origin; the statistics of what ended follow.
RETURNS = 1
ENDED = 2
_chance_of_return = inlined(returning)
UNBORN = -1.0  # run length of a hypothesis that begins with this step


@compiled
def origin_line(lines: Floats, first: int) -> int:
    """Line of the origin, of rows with a memory; first: that of the statistics.

    These are there twice, with the numbers of a hypothesis in between.
    """
    count: int = (lines.shape[0] - first - OF_HYPOTHESIS) // 2
    return first + count


@compiled
def _seen(numbers: Floats, regimes: int, m: int) -> float:
    """How often a regime was seen; 0 of a place where none is stored."""
    return float(numbers[REGIMES + regimes + m - 1]) if numbers[REGIMES + m - 1] > 0 else 0.0


@compiled
def _others(numbers: Floats, regimes: int, total: float, z: int) -> float:
    """How often those were seen that may follow origin z; total: all of them."""
    return total - _seen(numbers, regimes, z) if z > 0 else total


@compiled
def _total(numbers: Floats, regimes: int) -> float:
    total = 0.0
    for m in range(1, regimes + 1):
        total += _seen(numbers, regimes, m)
    return total


@compiled
def _returning(lines: Floats, origin: int, i: int) -> float:
    """`regimes.returning` of the hypothesis in slot i."""
    return float(_chance_of_return(lines[origin + RETURNS, i], lines[CHANGES, i]))


@compiled
def _ended(lines: Floats, slots: int, seq: float, known: float) -> int:
    """Slot of the regime that ends where another begins: see `regimes.Memory`."""
    log_prob = lines[LOG_PROB]
    run_length = lines[RUN_LENGTH]
    best = -INF
    slot = -1
    any_best = -INF
    any_slot = 0
    for i in range(slots):
        if log_prob[i] > any_best:
            any_best = log_prob[i]
            any_slot = i
        if seq - 1.0 - run_length[i] <= known and log_prob[i] > best:
            best = log_prob[i]
            slot = i
    return slot if slot >= 0 else any_slot


@compiled
def begin(
    lines: Floats,
    own: Floats,
    first: int,
    slots: int,
    regimes: int,
    birth: Birth,
    head: Floats,
    outputs: int,
    numbers: Floats,
    work: Floats,
) -> Birth:
    """Split a birth, which `belief.grow` made, between fresh and stored regimes.

    Those from stored ones take further empty slots. own: statistics that are copied for the step;
    lines: of the row, before it, those of the statistics from the first on. numbers: of the memory.
    Returns the fresh one.
    """
    seq = head[SEQ]
    slot = birth.slot
    origin = origin_line(lines, first)
    ended = _ended(lines, slots, seq, numbers[KNOWN])
    column = lines.shape[1] - BESIDE - regimes
    each = work[EACH]
    share = work[SHARE]
    run_length = lines[RUN_LENGTH]
    if seq == 0:
        lines[origin, slot] = 0.0
        lines[origin + 1 :, slot] = 0.0
        return birth
    # Of returns, by the origin of what ended: probability, with it the changes and the returns
    # behind them, best path and its start.
    mass = work[INSIDE]
    behind = work[OUTSIDE]
    returns = work[SPARE]
    best = work[MASS]
    start = work[POSTERIOR]
    for z in range(regimes + 1):
        mass[z] = 0.0
        behind[z] = 0.0
        returns[z] = 0.0
        best[z] = -INF
        start[z] = -1.0
    top = arithmetic.largest(each, slots)
    total = _total(numbers, regimes)
    fresh = 0.0
    changes = 0.0
    returned = 0.0
    fresh_best = -INF
    fresh_start = -1.0
    for i in range(slots):
        if lines[LOG_PROB, i] == -INF:
            continue
        z = int(lines[origin, i])
        back = 0.0
        if _others(numbers, regimes, total, z) > 0:
            back = _returning(lines, origin, i)
        chance = math.exp(each[i] - top) if top > -INF else 0.0
        anew = chance * (1.0 - back)
        fresh += anew
        changes += anew * lines[CHANGES, i]
        returned += anew * lines[origin + RETURNS, i]
        began = seq - 1.0 - run_length[i]
        way = share[i] + math.log1p(-back)
        if way > fresh_best + TIE or (way >= fresh_best - TIE and began < fresh_start):
            fresh_best = max(way, fresh_best)
            fresh_start = began
        if back > 0:
            mass[z] += chance * back
            behind[z] += chance * back * lines[CHANGES, i]
            returns[z] += chance * back * lines[origin + RETURNS, i]
            way = share[i] + math.log(back)
            if way > best[z] + TIE or (way >= best[z] - TIE and began < start[z]):
                best[z] = max(way, best[z])
                start[z] = began
    totals = head[totals_place(outputs) :]
    free = 0
    for m in range(1, regimes + 1):
        seen = _seen(numbers, regimes, m)
        chance = 0.0
        count = 0.0
        back = 0.0
        path = -INF
        came_from = -1.0
        if seen <= 0:
            continue
        for z in range(regimes + 1):
            if z == m or best[z] == -INF:
                continue
            prior = seen / _others(numbers, regimes, total, z)
            chance += mass[z] * prior
            count += behind[z] * prior
            back += returns[z] * prior
            way = best[z] + math.log(prior)
            if way > path + TIE or (way >= path - TIE and start[z] < came_from):
                path = max(way, path)
                came_from = start[z]
        if chance <= 0:
            continue
        while free == slot or lines[LOG_PROB, free] > -INF:
            free += 1
        for k in range(own.shape[0]):
            own[k, free] = own[k, column + m - 1]
        for k in range(first + own.shape[0], origin):  # those that are stepped where they lie
            lines[k, free] = lines[k, column + m - 1]
        run_length[free] = UNBORN
        lines[PREVIOUS, free] = came_from
        lines[CHANGES, free] = count / chance + 1.0
        lines[GAP, free] = lines[GAP, slot]
        for k in range(1 + 2 * outputs):
            lines[TOTALS_AT_START + k, free] = totals[k]
        _enter(lines, first, origin, free, m, back / chance + 1.0, ended)
        _birth(work, free, top, chance, path)
        free += 1
    _birth(work, slot, top, fresh, fresh_best)
    if fresh > 0:
        changes = changes / fresh + 1.0
        returned = returned / fresh
    _enter(lines, first, origin, slot, 0, returned, ended)
    return Birth(slot, fresh_start, changes)


@compiled
def _birth(work: Floats, slot: int, top: float, chance: float, path: float) -> None:
    """Probability, in units of exp(top), and best path of a hypothesis that begins."""
    work[GROWN, slot] = top + math.log(chance) if chance > 0 else -INF
    work[CHANCE, slot] = math.exp(work[GROWN, slot])
    work[PATH, slot] = path


@compiled
def _enter(
    lines: Floats, first: int, origin: int, slot: int, m: int, returns: float, ended: int
) -> None:
    """Origin and returns of a hypothesis that begins, and the regime that ended before it."""
    lines[origin, slot] = m
    lines[origin + RETURNS, slot] = returns
    lines[origin + ENDED, slot] = lines[origin, ended]
    for k in range(origin - first):
        lines[origin + ENDED + 1 + k, slot] = lines[first + k, ended]


@compiled
def prune(lines: Floats, slots: int, most: int, slot: int, work: Floats) -> tuple[float, float]:
    """Leave so many hypotheses in POSTERIOR, PATH and MASS.

    Returns the probability of all that were born, before that, and the mass lost.
    """
    posterior = work[POSTERIOR]
    path = work[PATH]
    mass = work[MASS]
    alive = 0
    born = 0.0
    lost = 0.0
    for i in range(slots):
        if posterior[i] > -INF:
            alive += 1
            if i == slot or lines[RUN_LENGTH, i] == UNBORN:
                born += math.exp(posterior[i])
    if alive <= most:
        return born, 0.0
    kept = spared(lines, posterior, slots, work[SPARE])
    while alive > most:
        drop = -1
        for i in range(slots):
            less = drop < 0 or posterior[i] < posterior[drop]
            if i != kept and posterior[i] > -INF and less:
                drop = i
        lost += math.exp(posterior[drop])
        posterior[drop] = -INF
        path[drop] = -INF
        mass[drop] = 0.0
        alive -= 1
    for i in range(slots):
        posterior[i] -= math.log1p(-lost)
        mass[i] *= 1.0 / (1.0 - lost)
    return born, lost


@compiled
def read_out(
    lines: Floats,
    origin: int,
    slots: int,
    regimes: int,
    head: Floats,
    number: Floats,
    hazard: Floats,
    numbers: Floats,
    work: Floats,
    out: Floats,
) -> tuple[float, float]:
    """Fill the table's last columns, of the belief after the step; origin: its line.

    numbers: of the memory. Returns the evidence of a change to a fresh regime, and that of the more
    probable kind of change. Evidence is as of `belief.evidence_of_change`: odds over the hazard of
    changes of the kind, to those who know of none. That of a return is theirs even where only the
    regime that the stream is in is stored, since it can return by a detour.
    """
    mass = work[MASS]
    since = work[INSIDE]
    every = work[SPARE]
    rate = work[OUTSIDE]
    below = head[SEQ] - 1.0 - number[SETTLED]
    total_seen = _total(numbers, regimes)
    fresh = 0.0
    fresh_rate = 0.0
    back_again = 0.0
    return_rate = 0.0
    rates(lines, head[STEPS], hazard, rate)
    likened(lines, work)
    unit = work[CHANCE]
    for z in range(regimes + 1):
        since[z] = 0.0
        every[z] = 0.0
    for i in range(slots):
        if lines[LOG_PROB, i] == -INF:
            continue
        z = int(lines[origin, i])
        every[z] += mass[i]
        if lines[RUN_LENGTH, i] < below:
            since[z] += mass[i]
            fresh += unit[i] if z == 0 else 0.0
            back_again += unit[i] if z > 0 else 0.0
            continue
        back = _returning(lines, origin, i)
        return_rate += unit[i] * rate[i] * back
        if _others(numbers, regimes, total_seen, z) <= 0:
            back = 0.0
        fresh_rate += unit[i] * rate[i] * (1.0 - back)
    best_since = 0
    best_now = 0
    total = 0.0
    for z in range(regimes + 1):
        total += since[z]
        if since[z] > since[best_since]:
            best_since = z
        if every[z] > every[best_now]:
            best_now = z
    evidence = min(fresh, 1.0) / max(fresh_rate, 1.0 / GREATEST)
    returned = min(back_again, 1.0) / max(return_rate, 1.0 / GREATEST)
    out[FRESH_PROBABILITY] = min(since[0], 1.0)
    out[RETURN_EVIDENCE] = returned
    out[SINCE] = best_since
    out[SINCE_SHARE] = min(since[best_since] / max(total, 1.0 / GREATEST), 1.0)
    out[NOW] = best_now
    out[NOW_PROBABILITY] = min(every[best_now], 1.0)
    return evidence, returned if best_since > 0 else evidence
