"""The belief's part of a step, the same for every model: growth, observation, pruning, readout.

What `model_core.belief`, `hazard` and `readout` compute, for one row in place. `views` are a row's
leaves in memory (see `jit.floats`), in the order of `filter.leaves`; `work` is (ROWS, W), a column
for each slot, the last for outliers. Columns between them, which fill up whole vectors, are as
empty slots: of probability 0.
"""

from __future__ import annotations

import math

from model_core.belief import TIE
from model_core.compiled import (
    CHANGEPOINT,
    CONFIRMED,
    ELAPSED,
    LABEL,
    LABELLED,
    THRESHOLD,
    arithmetic,
)
from model_core.compiled.arithmetic import INF
from model_core.compiled.jit import Floats, Ints, compiled, floats, ints, whole

# Leaves of a state; the model's statistics follow, then those of the prior, location and context.
LOG_PROB, RUN_LENGTH, SCORE, PREVIOUS, SEQ, TOTALS, TOTALS_AT_START, CONTEXT, STATISTICS = range(9)

# Rows of `work`.
GROWN = 0  # log probability after growth
PATH = 1  # score of the best path, after growth; then with the label
CHANCE = 2  # probability after growth, then weight in the mixture
EACH = 3  # log likelihood of the label
SHARE = 4  # inlier responsibility
POSTERIOR = 5  # log probability after the label
MASS = 6  # the same as a probability
SPARE = 7
INSIDE = 8  # log probability that the observation is of the hypothesis, given its input
OUTSIDE = 9  # log probability that it is an outlier
AGE = 10  # run length after the step
ROWS = 11

# Columns of the table of a readout, as `readout.NUMBERS` has them; the totals follow.
(
    LOG_SCORE, CHANGEPOINT_PROBABILITY, PRUNED_MASS, BORN_PREVIOUS_START, OK, CHANGED, RECENT,
    MAP_RUN_LENGTH, EVENT_RUN_LENGTH, EVENT_PROBABILITY, EVENT_PREVIOUS_START, MEAN_RUN_LENGTH,
    HYPOTHESES, BEST_START, NUMBERS,
) = range(15)  # fmt: skip


@compiled
def log_change(hazard: float, elapsed: float, changepoint: float) -> tuple[float, float]:
    """Log probabilities of a change and of none, as `hazard.log_change`."""
    if not math.isnan(changepoint):
        change = math.log(changepoint) if changepoint > 0 else -INF
        return change, (math.log1p(-changepoint) if changepoint < 1 else -INF)
    if elapsed == 0 or hazard == 0:
        return -INF, 0.0
    survival = elapsed * math.log1p(-hazard) if hazard < 1 else -INF
    return (math.log(-math.expm1(survival)) if survival < 0 else -INF), survival


@compiled
def _shift(values: Floats, by: float, out: Floats, n: int) -> None:
    for i in range(n):
        out[i] = values[i] + by


@compiled
def _scale(by: float, values: Floats, n: int) -> None:
    for i in range(n):
        values[i] *= by


@compiled
def _changes(views: Ints, row: int, number: Floats, hazard: Floats, work: Floats) -> float:
    """Log probability and score: with a change into EACH and SHARE, else into GROWN and PATH.

    Returns the log of how much likelier no change is, where all have the same hazard; else nan.
    """
    log_prob, score = floats(views, LOG_PROB, row), floats(views, SCORE, row)
    run_length = ints(views, RUN_LENGTH, row)
    n, entries = log_prob.shape[0], hazard.shape[0]
    if entries == 1:
        change, survival = log_change(hazard[0], number[ELAPSED], number[CHANGEPOINT])
        _shift(log_prob, change, work[EACH], n)
        _shift(score, change, work[SHARE], n)
        _shift(log_prob, survival, work[GROWN], n)
        _shift(score, survival, work[PATH], n)
        return survival - change
    for i in range(n):
        entry = min(max(run_length[i], 0), entries - 1)
        change, survival = log_change(hazard[entry], number[ELAPSED], number[CHANGEPOINT])
        work[EACH, i] = log_prob[i] + change
        work[SHARE, i] = score[i] + change
        work[GROWN, i] = log_prob[i] + survival
        work[PATH, i] = score[i] + survival
    return math.nan


@compiled
def _empty_after(slots: int, work: Floats) -> None:
    """Columns after the slots' as those of empty ones."""
    for i in range(slots, work.shape[1]):
        work[GROWN, i] = -INF
        work[PATH, i] = -INF
        work[EACH, i] = -INF
        work[SHARE, i] = -INF
        work[AGE, i] = 0.0


@compiled
def _likeliest(log_prob: Floats, age: Floats, below: float) -> int:
    """Slot of the largest of run lengths below, as `belief.likeliest`; 0 where there is none."""
    highest = -INF
    for i in range(log_prob.shape[0]):
        if age[i] < below and log_prob[i] > highest:
            highest = log_prob[i]
    slot, longest = 0, -1.0
    for i in range(log_prob.shape[0]):
        if longest < age[i] < below and log_prob[i] >= highest - TIE:
            slot, longest = i, age[i]
    return slot


@compiled
def grow(views: Ints, row: int, number: Floats, hazard: Floats, work: Floats) -> tuple[int, int]:
    """Fill GROWN, PATH and CHANCE; returns the new hypothesis's slot and its previous start."""
    log_prob, seq = floats(views, LOG_PROB, row), ints(views, SEQ, row)[0]
    slots, n = log_prob.shape[0], whole(work[GROWN])
    slot = arithmetic.place_of(log_prob, arithmetic.smallest(log_prob, slots), slots)
    likelier = _changes(views, row, number, hazard, work)
    _empty_after(slots, work)
    change, best, previous, scale = 0.0, 0.0, -1, 0.0
    if seq > 0:
        top = arithmetic.largest(work[EACH], n)
        change = -INF
        if top > -INF:
            arithmetic.exp_of(work[EACH], top, work[CHANCE], n)
            change = top + math.log(arithmetic.total(work[CHANCE], n))
            scale = math.exp(top + likelier)
        best = arithmetic.largest(work[SHARE], n)
        run_length = ints(views, RUN_LENGTH, row)
        for i in range(slots):
            work[AGE, i] = run_length[i]
        previous = seq - 1 - run_length[_likeliest(work[SHARE], work[AGE], INF)]
    work[GROWN, slot] = change
    work[PATH, slot] = best
    if 0.0 < scale < INF:  # what CHANCE has is proportional to what it is to have
        _scale(scale, work[CHANCE], n)
        work[CHANCE, slot] = math.exp(change)
    else:
        arithmetic.exp_of(work[GROWN], 0.0, work[CHANCE], n)
    return slot, previous


@compiled
def mix(rate: float, work: Floats) -> None:
    """Turn CHANCE into the weights of the mixture, the outliers' last; fills INSIDE, OUTSIDE."""
    chance = work[CHANCE]
    arithmetic.fill(work[INSIDE], math.log1p(-rate))
    arithmetic.fill(work[OUTSIDE], math.log(rate) if rate > 0 else -INF)
    n = whole(chance)
    everything = arithmetic.total(chance, n)
    for i in range(n):
        chance[i] *= 1.0 - rate
    chance[n - 1] = rate * everything


@compiled
def with_outliers(work: Floats) -> None:
    """Label likelihood in EACH with that of an outlier, its last column; fills SHARE.

    INSIDE and OUTSIDE are the probabilities of both; they become those with the label.
    """
    each, share, inside, outside = work[EACH], work[SHARE], work[INSIDE], work[OUTSIDE]
    n = whole(each)
    astray = each[n - 1]
    for i in range(n):
        inside[i] += each[i]
    for i in range(n):
        outside[i] += astray
    for i in range(n):
        share[i] = arithmetic.exp(-abs(inside[i] - outside[i]))
    # exp(log_in - log(exp(log_in) + exp(log_out))), by the smaller of the two over the larger
    for i in range(n):
        one = 1.0 if inside[i] >= outside[i] else share[i]
        more = arithmetic.log1p(share[i])
        top = inside[i] if inside[i] >= outside[i] else outside[i]
        each[i] = top + more
        share[i] = one / (1.0 + share[i])
    each[n - 1], share[n - 1] = astray, 0.0


@compiled
def observe(work: Floats, counted: float) -> float:
    """Bayes' rule with EACH, into POSTERIOR, MASS and PATH; returns the log score.

    counted: share of the evidence that counts; the score is of all of it.
    """
    each, path = work[EACH], work[PATH]
    n = whole(each)
    log_score = _weigh(work)
    if counted != 1.0:
        _scale(counted, each, n)
        _weigh(work)
    for i in range(n):
        path[i] += each[i]
    _shift(path, -arithmetic.largest(path, n), path, n)
    return log_score


@compiled
def _weigh(work: Floats) -> float:
    """Fill POSTERIOR and MASS; returns the log of the evidence in EACH."""
    grown, each, posterior = work[GROWN], work[EACH], work[POSTERIOR]
    n = whole(grown)
    for i in range(n):
        posterior[i] = grown[i] + each[i]
    top = arithmetic.largest(posterior, n)
    arithmetic.exp_of(posterior, top, work[MASS], n)
    total = arithmetic.total(work[MASS], n)
    evidence = math.log(total)
    _scale(1.0 / total, work[MASS], n)
    for i in range(n):
        posterior[i] = posterior[i] - top - evidence
    return top + evidence


@compiled
def observe_input(work: Floats) -> None:
    """Bayes' rule with the likelihood of the input in EACH, into GROWN, PATH and CHANCE."""
    observe(work, 1.0)
    n = whole(work[GROWN])
    _shift(work[POSTERIOR], 0.0, work[GROWN], n)
    arithmetic.exp_of(work[GROWN], 0.0, work[CHANCE], n)


@compiled
def totals_after(views: Ints, row: int, number: Floats, location: Floats, out: Floats) -> bool:
    """New totals of the labels; returns whether they are finite."""
    before, outputs = floats(views, TOTALS, row), location.shape[0]
    labelled = number[LABELLED] > 0
    out[0] = before[0] + (1.0 if labelled else 0.0)
    for o in range(outputs):
        centred = number[LABEL + o] - location[o] if labelled else 0.0
        out[1 + o] = before[1 + o] + centred
        out[1 + outputs + o] = before[1 + outputs + o] + centred * centred
    return math.isfinite(arithmetic.total(out, 1 + 2 * outputs))


@compiled
def keep(
    views: Ints, row: int, slot: int, previous: int, totals: Floats, work: Floats, table: Floats
) -> None:
    """Write the belief after the step, pruned, and the totals.

    POSTERIOR, PATH and AGE are then what is written, MASS the probabilities.
    """
    log_prob, score = floats(views, LOG_PROB, row), floats(views, SCORE, row)
    run_length, starts = ints(views, RUN_LENGTH, row), ints(views, PREVIOUS, row)
    own, at_start = floats(views, TOTALS, row), floats(views, TOTALS_AT_START, row)
    posterior, path, age = work[POSTERIOR], work[PATH], work[AGE]
    slots, n, size = log_prob.shape[0], whole(posterior), own.shape[0]
    drop = arithmetic.place_of(posterior, arithmetic.smallest(posterior, slots), slots)
    mass = math.exp(posterior[drop])
    table[CHANGEPOINT_PROBABILITY] = math.exp(posterior[slot])
    table[PRUNED_MASS] = mass
    table[BORN_PREVIOUS_START] = previous
    for i in range(slots):
        run_length[i] += 1
    run_length[slot] = 0
    starts[slot] = previous
    for i in range(slots):
        age[i] = run_length[i]
    for k in range(size):
        at_start[slot * size + k] = own[k]
        own[k] = totals[k]
    posterior[drop] = -INF
    path[drop] = -INF
    _shift(posterior, -math.log1p(-mass), posterior, n)
    _scale(1.0 / (1.0 - mass), work[MASS], n)
    work[MASS, drop] = 0.0
    _shift(posterior, 0.0, log_prob, slots)
    _shift(path, 0.0, score, slots)
    ints(views, SEQ, row)[0] += 1


@compiled
def _mass_below(mass: Floats, age: Floats, below: float, spare: Floats) -> float:
    n = whole(age)
    for i in range(n):
        spare[i] = mass[i] if age[i] < below else 0.0
    return min(arithmetic.total(spare, n), 1.0)


@compiled
def read_out(
    views: Ints, row: int, number: Floats, window: int, work: Floats, table: Floats
) -> None:
    """Fill the table's numbers that are of the belief after the step, as `readout.table` does."""
    log_prob, age, score = work[POSTERIOR], work[AGE], work[PATH]
    mass, spare = work[MASS], work[SPARE]
    n, seq = whole(mass), ints(views, SEQ, row)[0] - 1
    below = seq - number[CONFIRMED]
    likeliest = _likeliest(log_prob, age, INF)
    best = _likeliest(score, age, INF)
    changed = _mass_below(mass, age, below, spare)
    event = likeliest
    if number[THRESHOLD] > 0 and changed >= number[THRESHOLD]:
        event = _likeliest(log_prob, age, below)
    for i in range(n):
        spare[i] = mass[i] * age[i]
    alive = 0
    for i in range(n):
        alive += 1 if log_prob[i] > -INF else 0
    table[CHANGED] = changed
    table[MEAN_RUN_LENGTH] = arithmetic.total(spare, n)
    table[RECENT] = _mass_below(mass, age, window, spare)
    table[MAP_RUN_LENGTH] = age[likeliest]
    table[EVENT_RUN_LENGTH] = age[event]
    table[EVENT_PROBABILITY] = mass[event]
    table[EVENT_PREVIOUS_START] = ints(views, PREVIOUS, row)[event]
    table[HYPOTHESES] = alive
    table[BEST_START] = seq - age[best]
    totals, at_start = floats(views, TOTALS, row), floats(views, TOTALS_AT_START, row)
    size = totals.shape[0]
    for k in range(size):
        table[NUMBERS + k] = totals[k]
        table[NUMBERS + size + k] = at_start[event * size + k]


@compiled
def copy(work: Floats, out: Floats) -> None:
    """Fill log probabilities and run lengths (1, 2, S) after the step, if there is room (0)."""
    for each in out:
        _shift(work[POSTERIOR], 0.0, each[0], each.shape[1])
        _shift(work[AGE], 0.0, each[1], each.shape[1])
