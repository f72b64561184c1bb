"""The memory's part of a step: what `model_core.regimes` computes, for one stream in place.

A row's lines and head are as `model_core.table` has them.
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
)
from model_core.compiled.jit import Floats, compiled, totals_place
from model_core.regimes import FRESH, REGIMES, RETURNS
from model_core.regimes import SETTLED as KNOWN
from model_core.table import (
    BESIDE,
    CHANGES,
    LOG_PROB,
    PREVIOUS,
    RUN_LENGTH,
    SEQ,
    TOTALS_AT_START,
)

# Columns of the table of a readout after the totals, as `regimes.Origins` has them.
FRESH_PROBABILITY, SINCE, SINCE_SHARE, NOW, NOW_PROBABILITY, COLUMNS = range(6)
UNBORN = -1.0  # run length of a hypothesis that begins with this step


@compiled
def _seen(numbers: Floats, regimes: int, m: int) -> float:
    """How often a regime was seen; 0 of a place where none is stored."""
    return float(numbers[REGIMES + regimes + m - 1]) if numbers[REGIMES + m - 1] > 0 else 0.0


@compiled
def _share(numbers: Floats, regimes: int, total: float, z: int, m: int) -> float:
    """`pi(m | z)`; total: of times that regimes were seen."""
    others = total - _seen(numbers, regimes, z) if z > 0 else total
    if others <= 0:
        return 1.0 if m == 0 else 0.0
    back = float((1.0 + numbers[RETURNS]) / (2.0 + numbers[RETURNS] + numbers[FRESH]))
    if m == 0:
        return 1.0 - back
    return 0.0 if m == z else back * _seen(numbers, regimes, m) / others


@compiled
def _ended(lines: Floats, slots: int, seq: float, known: float) -> int:
    """Slot of the regime that ends where another begins: see `regimes.Memory`."""
    log_prob, run_length = lines[LOG_PROB], lines[RUN_LENGTH]
    best, slot, any_best, any_slot = -INF, -1, -INF, 0
    for i in range(slots):
        if log_prob[i] > any_best:
            any_best, any_slot = log_prob[i], i
        if seq - 1.0 - run_length[i] <= known and log_prob[i] > best:
            best, slot = log_prob[i], i
    return slot if slot >= 0 else any_slot


@compiled
def begin(
    lines: Floats,
    own: Floats,
    first: int,
    slots: int,
    regimes: int,
    slot: int,
    head: Floats,
    outputs: int,
    numbers: Floats,
    work: Floats,
) -> tuple[float, float]:
    """Split the birth in `slot`, which `belief.grow` made, between fresh and stored regimes.

    Those from stored ones take further empty slots. own: statistics of the step; lines: of the row,
    before it. numbers: of the memory. Returns the fresh one's previous start and changes.
    """
    seq, origin = head[SEQ], first + own.shape[0]
    ended, column = _ended(lines, slots, seq, numbers[KNOWN]), lines.shape[1] - BESIDE - regimes
    each, share, run_length = work[EACH], work[SHARE], lines[RUN_LENGTH]
    mass, behind, best, start = work[INSIDE], work[OUTSIDE], work[MASS], work[POSTERIOR]
    top = arithmetic.largest(each, slots) if seq > 0 else -INF
    if seq == 0:
        lines[origin, slot] = 0.0
        lines[origin + 1 :, slot] = 0.0
        return -1.0, 0.0
    for z in range(regimes + 1):
        mass[z] = 0.0
        behind[z] = 0.0
        best[z] = -INF
        start[z] = -1.0
    for i in range(slots):
        if lines[LOG_PROB, i] == -INF:
            continue
        z = int(lines[origin, i])
        chance = math.exp(each[i] - top) if top > -INF else 0.0
        mass[z] += chance
        behind[z] += chance * lines[CHANGES, i]
        began = seq - 1.0 - run_length[i]
        if share[i] > best[z] + TIE or (share[i] >= best[z] - TIE and began < start[z]):
            best[z] = max(share[i], best[z])
            start[z] = began
    total = 0.0
    for m in range(1, regimes + 1):
        total += _seen(numbers, regimes, m)
    totals, free = head[totals_place(outputs) :], 0
    previous, changes = -1.0, 0.0
    for m in range(regimes + 1):
        chance, count, path, came_from = 0.0, 0.0, -INF, -1.0
        for z in range(regimes + 1):
            prior = _share(numbers, regimes, total, z, m)
            chance += mass[z] * prior
            count += behind[z] * prior
            way = best[z] + math.log(prior) if prior > 0 else -INF
            if way > path + TIE or (way >= path - TIE and way > -INF and start[z] < came_from):
                path = max(way, path)
                came_from = start[z]
        at = slot
        if m > 0:
            if chance <= 0:
                continue
            while free == slot or lines[LOG_PROB, free] > -INF:
                free += 1
            at = free
            free += 1
            for k in range(own.shape[0]):
                own[k, at] = own[k, column + m - 1]
            run_length[at] = UNBORN
            lines[PREVIOUS, at] = came_from
            lines[CHANGES, at] = count / chance + 1.0
            for k in range(1 + 2 * outputs):
                lines[TOTALS_AT_START + k, at] = totals[k]
        else:
            previous = came_from
            changes = count / chance + 1.0 if chance > 0 else 0.0
        work[GROWN, at] = top + math.log(chance) if chance > 0 else -INF
        work[CHANCE, at] = math.exp(work[GROWN, at])
        work[PATH, at] = path
        lines[origin + 1, at] = lines[origin, ended]
        lines[origin, at] = m
        for k in range(own.shape[0]):
            lines[origin + 2 + k, at] = lines[first + k, ended]
    return previous, changes


@compiled
def prune(lines: Floats, slots: int, most: int, slot: int, work: Floats) -> tuple[float, float]:
    """Leave so many hypotheses in POSTERIOR, PATH and MASS.

    Returns the probability of all that were born, before that, and the mass lost.
    """
    posterior, path, mass = work[POSTERIOR], work[PATH], work[MASS]
    alive, born, lost = 0, 0.0, 0.0
    for i in range(slots):
        if posterior[i] > -INF:
            alive += 1
            if i == slot or lines[RUN_LENGTH, i] == UNBORN:
                born += math.exp(posterior[i])
    if alive <= most:
        return born, 0.0
    while alive > most:
        drop = -1
        for i in range(slots):
            if posterior[i] > -INF and (drop < 0 or posterior[i] < posterior[drop]):
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
    work: Floats,
    out: Floats,
) -> None:
    """Fill the table's last columns, of the belief after the step; origin: its line."""
    mass, since, every = work[MASS], work[INSIDE], work[SPARE]
    below = head[SEQ] - 1.0 - number[SETTLED]
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
    best_since, best_now, total = 0, 0, 0.0
    for z in range(regimes + 1):
        total += since[z]
        if since[z] > since[best_since]:
            best_since = z
        if every[z] > every[best_now]:
            best_now = z
    out[FRESH_PROBABILITY] = min(since[0], 1.0)
    out[SINCE] = best_since
    out[SINCE_SHARE] = min(since[best_since] / max(total, 1.0 / GREATEST), 1.0)
    out[NOW] = best_now
    out[NOW_PROBABILITY] = min(every[best_now], 1.0)
