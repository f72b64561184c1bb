"""The belief's part of a step, the same for every model: growth, observation, pruning, readout.

What `model_core.belief`, `hazard` and `readout` compute, for one row, as vectors of SIZE: a power
of two above the number of slots. `slot` counts them; the first beyond those of the state stands for
the outliers. Log probabilities of what is no slot are -inf.
"""

from __future__ import annotations

import triton.language as tl

from model_core import compiled as columns
from model_core import readout
from model_core.fused import arithmetic
from model_core.fused.jit import compiled

INF = arithmetic.INF
LABELLED, ELAPSED = tl.constexpr(columns.LABELLED), tl.constexpr(columns.ELAPSED)
CHANGEPOINT, RATE = tl.constexpr(columns.CHANGEPOINT), tl.constexpr(columns.OUTLIER_RATE)
CONFIRMED, THRESHOLD = tl.constexpr(columns.CONFIRMED), tl.constexpr(columns.THRESHOLD)
LABEL = tl.constexpr(columns.LABEL)

(
    LOG_SCORE, CHANGEPOINT_PROBABILITY, PRUNED_MASS, BORN_PREVIOUS_START, OK, CHANGED, RECENT,
    MAP_RUN_LENGTH, EVENT_RUN_LENGTH, EVENT_PROBABILITY, EVENT_PREVIOUS_START, MEAN_RUN_LENGTH,
    HYPOTHESES, BEST_START,
) = map(tl.constexpr, range(len(readout.NUMBERS)))  # fmt: skip
NUMBERS = tl.constexpr(len(readout.NUMBERS))


@compiled
def log_change(hazard: tl.tensor, elapsed: tl.tensor, changepoint: tl.tensor) -> tl.tensor:
    """Log probabilities of a change and of none, as `hazard.log_change`."""
    moves = tl.where(elapsed != 0, hazard != 0, False)
    survival = tl.where(moves, elapsed * arithmetic.log1p(-hazard), 0.0)
    still = survival == 0
    change = tl.where(
        still, -INF, arithmetic.log(-arithmetic.expm1(tl.where(still, -1.0, survival)))
    )
    told = changepoint == changepoint
    stated = tl.where(told, changepoint, 0.5)
    change = tl.where(told, arithmetic.log(stated), change)
    return change, tl.where(told, arithmetic.log1p(-stated), survival)


@compiled
def grow(
    log_prob: tl.tensor,
    run_length: tl.tensor,
    score: tl.tensor,
    seq: tl.tensor,
    slot: tl.tensor,
    slots: tl.tensor,
    number: tl.tensor,
    hazard: tl.tensor,
    entries: tl.tensor,
) -> tl.tensor:
    """Log probabilities and path scores with the new hypothesis, its slot, its previous start.

    number, hazard: where the inputs of the row and its table are.
    """
    here = slot < slots
    born = tl.argmin(tl.where(here, log_prob, INF), 0)
    entry = tl.minimum(tl.maximum(run_length, 0), entries - 1)
    rate = tl.load(hazard + entry)
    change, survival = log_change(rate, tl.load(number + ELAPSED), tl.load(number + CHANGEPOINT))
    joint, path = log_prob + change, score + change
    first = seq == 0
    best = tl.max(path, 0)
    came_from = arithmetic.at(run_length, slot, tl.argmax(path, 0))
    previous = tl.where(first, -1, seq - 1 - came_from)
    new = tl.where(first, 0.0, arithmetic.log_sum(joint))
    grown = tl.where(slot == born, new, log_prob + survival)
    path = tl.where(slot == born, tl.where(first, 0.0, best), score + survival)
    return grown, path, born, previous


@compiled
def mix(grown: tl.tensor, slot: tl.tensor, slots: tl.tensor, rate: tl.tensor) -> tl.tensor:
    """Weights of the mixture: those of the slots, then that of the outliers."""
    chance = tl.exp(grown)
    outside = rate * tl.sum(chance, 0)
    return tl.where(slot < slots, chance * (1.0 - rate), tl.where(slot == slots, outside, 0.0))


@compiled
def with_outliers(
    each: tl.tensor, slot: tl.tensor, slots: tl.tensor, rate: tl.tensor, labelled: tl.tensor
) -> tl.tensor:
    """Log likelihoods of a label with that of an outlier among them, and inlier responsibilities.

    each: log densities, that of an outlier in the place after the slots.
    """
    inside = each + arithmetic.log1p(-rate)
    outside = arithmetic.at(each, slot, slots) + arithmetic.log(rate)
    top = tl.maximum(inside, outside)
    some = tl.where(arithmetic.finite(top), top, 0.0)
    together = tl.exp(inside - some) + tl.exp(outside - some)
    share = tl.where(rate > 0, tl.exp(inside - some) / together, 1.0)
    each = tl.where(rate > 0, top + tl.log(together), each)
    return tl.where(labelled, each, 0.0), tl.where(labelled, share, 0.0)


@compiled
def observe(grown: tl.tensor, path: tl.tensor, each: tl.tensor) -> tl.tensor:
    """Bayes' rule: log probabilities, path scores, and the log score."""
    joint = grown + each
    top = tl.max(joint, 0)
    evidence = arithmetic.log(tl.sum(tl.exp(joint - top), 0))
    path = path + each
    return joint - top - evidence, path - tl.max(path, 0), top + evidence


@compiled
def prune(posterior: tl.tensor, path: tl.tensor, slot: tl.tensor, slots: tl.tensor) -> tl.tensor:
    """Log probabilities and scores without the least likely hypothesis, and the mass lost."""
    drop = tl.argmin(tl.where(slot < slots, posterior, INF), 0)
    mass = tl.exp(arithmetic.at(posterior, slot, drop))
    kept = posterior - arithmetic.log1p(-mass)
    return tl.where(slot == drop, -INF, kept), tl.where(slot == drop, -INF, path), mass


@compiled
def read_out(
    log_prob: tl.tensor,
    run_length: tl.tensor,
    score: tl.tensor,
    previous: tl.tensor,
    seq: tl.tensor,
    slot: tl.tensor,
    number: tl.tensor,
    window: tl.tensor,
    line: tl.tensor,
) -> tl.tensor:
    """Fill the table's numbers of the belief after the step; returns the slot of events."""
    below = seq - tl.load(number + CONFIRMED).to(tl.int64)
    threshold = tl.load(number + THRESHOLD)
    mass = tl.exp(log_prob)
    changed = tl.minimum(tl.sum(tl.where(run_length < below, mass, 0.0), 0), 1.0)
    recent = tl.minimum(tl.sum(tl.where(run_length < window, mass, 0.0), 0), 1.0)
    likeliest = tl.argmax(log_prob, 0)
    later = tl.argmax(tl.where(run_length < below, log_prob, -INF), 0)
    event = tl.where((threshold > 0) & (changed >= threshold), later, likeliest)
    best = arithmetic.at(run_length, slot, tl.argmax(score, 0))
    tl.store(line + CHANGED, changed)
    tl.store(line + RECENT, recent)
    tl.store(line + MAP_RUN_LENGTH, arithmetic.at(run_length, slot, likeliest).to(tl.float64))
    tl.store(line + EVENT_RUN_LENGTH, arithmetic.at(run_length, slot, event).to(tl.float64))
    tl.store(line + EVENT_PROBABILITY, arithmetic.at(mass, slot, event))
    tl.store(line + EVENT_PREVIOUS_START, arithmetic.at(previous, slot, event).to(tl.float64))
    tl.store(line + MEAN_RUN_LENGTH, tl.sum(mass * run_length, 0))
    tl.store(line + HYPOTHESES, tl.sum((log_prob > -INF).to(tl.float64), 0))
    tl.store(line + BEST_START, (seq - best).to(tl.float64))
    return event
