"""The belief's part of a step, the same for every model: growth, observation, pruning, readout.

Growth, observation and pruning as `model_core.belief` and `hazard` have them, for one stream in
place; what is read off a belief is here alone. `lines` (L, W) and `head` are as `model_core.table`
has them, `work` is (ROWS, W): a column for each slot, the last for outliers. Columns between, which
fill up whole vectors, are as empty slots: of probability 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from model_core.belief import GREATEST, TIE
from model_core.compiled import (
    CHANGEPOINT,
    ELAPSED,
    LABEL,
    SETTLED,
    SINCE,
    THRESHOLD,
    arithmetic,
)
from model_core.compiled.arithmetic import INF
from model_core.compiled.jit import Floats, compiled, linewise, totals_place, whole
from model_core.hazard import LEARNED, MOST_STEPS
from model_core.table import (
    CHANGES,
    GAP,
    LOCATION,
    LOG_PROB,
    PREVIOUS,
    RUN_LENGTH,
    SCORE,
    SEQ,
    STEPS,
    TOTALS_AT_START,
)

LIKELY = 0.9  # of the probability, that the likely starts of a change hold
GRAIN = 1e-9  # shares of it that differ by less are equal, and less than that is none
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
ROWS = 10

# Columns of the table of a readout, as `readout.NUMBERS` has them; the totals follow.
(
    LOG_SCORE, CHANGEPOINT_PROBABILITY, PRUNED_MASS, BORN_PREVIOUS_START, OK, OUTLYING, CHANGED,
    EVIDENCE, RECENT, MAP_RUN_LENGTH, EVENT_RUN_LENGTH, EVENT_PROBABILITY, EVENT_PREVIOUS_START,
    MEAN_RUN_LENGTH, HYPOTHESES, BEST_START, LONGEST, SHORTEST, COVERAGE, NUMBERS,
) = range(20)  # fmt: skip


class Birth(NamedTuple):
    """A hypothesis that begins: its slot, and what its lines have of `belief.Belief`.

    Its gap is there already: the slot is empty, whatever becomes of the step.
    """

    slot: int
    previous: float
    changes: float


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


@linewise
def _expected(lines: Floats, steps: float, hazard: Floats, out: Floats) -> None:
    """Hazards that are learned, as `hazard.expected`."""
    changes = lines[CHANGES]
    a = hazard[1]
    total = a + hazard[2] + steps
    for i in range(whole(out)):
        out[i] = (a + changes[i]) / total


@compiled
def _is_constant(hazard: Floats) -> bool:
    """Whether a table has one hazard; beside longer ones in a batch it stands there repeatedly."""
    alike = 1
    while alike < hazard.shape[0] and hazard[alike] == hazard[0]:
        alike += 1
    constant: bool = alike == hazard.shape[0]
    return constant


@linewise
def _changes(lines: Floats, steps: float, number: Floats, hazard: Floats, work: Floats) -> float:
    """Log probability and score: with a change into EACH and SHARE, else into GROWN and PATH.

    Returns the log of how much likelier no change is, where all have the same hazard; else nan.
    """
    log_prob = lines[LOG_PROB]
    score = lines[SCORE]
    run_length = lines[RUN_LENGTH]
    n = whole(log_prob)
    entries = hazard.shape[0]
    if _is_constant(hazard):
        change, survival = log_change(hazard[0], number[ELAPSED], number[CHANGEPOINT])
        arithmetic.shift(log_prob, change, work[EACH], n)
        arithmetic.shift(score, change, work[SHARE], n)
        arithmetic.shift(log_prob, survival, work[GROWN], n)
        arithmetic.shift(score, survival, work[PATH], n)
        return survival - change
    if hazard[0] == LEARNED:
        _expected(lines, steps, hazard, work[SPARE])
        _learned_changes(lines, number, work)
        return math.nan
    for i in range(n):
        entry = min(max(int(run_length[i]), 0), entries - 1)
        change, survival = log_change(hazard[entry], number[ELAPSED], number[CHANGEPOINT])
        work[EACH, i] = log_prob[i] + change
        work[SHARE, i] = score[i] + change
        work[GROWN, i] = log_prob[i] + survival
        work[PATH, i] = score[i] + survival
    return math.nan


@linewise
def _learned_changes(lines: Floats, number: Floats, work: Floats) -> None:
    """As `_changes`, by the hazards in SPARE."""
    log_prob = lines[LOG_PROB]
    score = lines[SCORE]
    hazard = work[SPARE]
    change = work[INSIDE]
    survival = work[OUTSIDE]
    n = whole(log_prob)
    if number[ELAPSED] == 1 and math.isnan(number[CHANGEPOINT]):
        for i in range(n):
            change[i] = arithmetic.log(hazard[i])
        for i in range(n):
            survival[i] = arithmetic.log1p(-hazard[i])
    else:
        for i in range(n):
            change[i], survival[i] = log_change(hazard[i], number[ELAPSED], number[CHANGEPOINT])
    for i in range(n):
        work[EACH, i] = log_prob[i] + change[i]
        work[SHARE, i] = score[i] + change[i]
        work[GROWN, i] = log_prob[i] + survival[i]
        work[PATH, i] = score[i] + survival[i]


@linewise
def _likeliest(log_prob: Floats, age: Floats, below: float, spare: Floats) -> int:
    """Slot of the largest of run lengths below, as `belief.likeliest`; 0 where there is none.

    Of equal ones that of the earliest start.
    """
    n = whole(log_prob)
    for i in range(n):
        spare[i] = log_prob[i] if age[i] < below else -INF
    least = arithmetic.largest(spare, n) - TIE
    for i in range(n):
        spare[i] = age[i] if age[i] < below and log_prob[i] >= least else -1.0
    return arithmetic.place_of(spare, arithmetic.largest(spare, n), n)


@linewise
def _gap(
    lines: Floats, steps: float, number: Floats, hazard: Floats, change: float, work: Floats
) -> float:
    """That of a hypothesis which begins now, as `belief.grow` has it; change: its probability."""
    gap = lines[GAP]
    log_prob = lines[LOG_PROB]
    of_unit = work[SPARE]
    n = whole(log_prob)
    longer = number[ELAPSED] > 1 and math.isnan(number[CHANGEPOINT])
    if not longer and arithmetic.largest(gap, n) == 0:
        return 0.0
    arithmetic.copy(work[EACH], of_unit)
    if longer:
        if hazard[0] == LEARNED:
            _expected(lines, steps, hazard, of_unit)
        for i in range(n):
            rate = of_unit[i]
            if hazard[0] != LEARNED:
                rate = hazard[min(max(int(lines[RUN_LENGTH, i]), 0), hazard.shape[0] - 1)]
            _, survival = log_change(rate, number[ELAPSED], math.nan)
            odds = arithmetic.log(rate) - arithmetic.log1p(-rate)
            of_unit[i] = log_prob[i] + odds + survival if rate < 1 else work[EACH, i]
    for i in range(n):
        of_unit[i] -= gap[i]
    top = arithmetic.largest(of_unit, n)
    if top == -INF:
        return 0.0
    arithmetic.exp_of(of_unit, top, of_unit, n)
    return max(change - top - math.log(arithmetic.total(of_unit, n)), 0.0)


@compiled
def grow(
    lines: Floats, slots: int, head: Floats, number: Floats, hazard: Floats, work: Floats
) -> Birth:
    """Fill GROWN, PATH and CHANCE; returns the new hypothesis."""
    log_prob = lines[LOG_PROB]
    n = whole(work[GROWN])
    seq = head[SEQ]
    slot = arithmetic.place_of(log_prob, arithmetic.smallest(log_prob, slots), slots)
    likelier = _changes(lines, head[STEPS], number, hazard, work)
    change = 0.0
    best = 0.0
    previous = -1.0
    scale = 0.0
    changes = 0.0
    gap = 0.0
    lines[GAP, slot] = 0.0  # a step that was refused may have left one
    if seq > 0:
        top = arithmetic.largest(work[EACH], n)
        change = -INF
        if top > -INF:
            arithmetic.exp_of(work[EACH], top, work[CHANCE], n)
            ways = arithmetic.total(work[CHANCE], n)
            change = top + math.log(ways)
            changes = arithmetic.dot(work[CHANCE], lines[CHANGES], n) / ways + 1.0
            scale = math.exp(top + likelier)
        best = arithmetic.largest(work[SHARE], n)
        if best > -INF:
            age = lines[RUN_LENGTH]
            previous = seq - 1.0 - age[_likeliest(work[SHARE], age, INF, work[SPARE])]
        if change > -INF:
            gap = _gap(lines, head[STEPS], number, hazard, change, work)
    lines[GAP, slot] = gap
    work[GROWN, slot] = change
    work[PATH, slot] = best
    if 0.0 < scale < INF:  # what CHANCE has is proportional to what it is to have
        arithmetic.scale(scale, work[CHANCE], n)
        work[CHANCE, slot] = math.exp(change)
    else:
        arithmetic.exp_of(work[GROWN], 0.0, work[CHANCE], n)
    return Birth(slot, previous, changes)


@compiled
def mix(rate: float, beside: float, work: Floats) -> None:
    """Turn CHANCE into the weights of the mixture, the outliers' last; fills INSIDE, OUTSIDE.

    beside: weight of what is in the column before, 0 where there is nothing.
    """
    chance = work[CHANCE]
    arithmetic.fill(work[INSIDE], math.log1p(-rate))
    arithmetic.fill(work[OUTSIDE], math.log(rate) if rate > 0 else -INF)
    n = whole(chance)
    everything = arithmetic.total(chance, n)
    arithmetic.scale(1.0 - rate, chance, n)
    chance[n - 1] = rate * everything
    if beside > 0:
        everything = arithmetic.total(chance, n)
        arithmetic.scale(1.0 - beside, chance, n)
        chance[n - 2] = beside * everything


@linewise
def mix_by_input(rate: float, evidence: Floats, work: Floats) -> None:
    """As `mix`, of the belief after the input, whose log density under each is `evidence`."""
    each = work[EACH]
    inside = work[INSIDE]
    outside = work[OUTSIDE]
    n = each.shape[0] - 1
    astray = math.log(rate) + evidence[n] if rate > 0 else -INF
    own = math.log1p(-rate)
    for i in range(n):
        each[i] = arithmetic.logaddexp(own + evidence[i], astray) if rate > 0 else evidence[i]
    for i in range(n):
        inside[i] = own + evidence[i] - each[i]
    for i in range(n):
        outside[i] = astray - each[i]
    observe(work, 1.0)
    grown = work[GROWN]
    chance = work[CHANCE]
    spare = work[EACH]
    arithmetic.copy(work[POSTERIOR], grown)
    for i in range(n):
        spare[i] = arithmetic.exp(grown[i] + outside[i])
    for i in range(n):
        chance[i] = arithmetic.exp(grown[i] + inside[i])
    chance[n] = arithmetic.total(spare, n)


@linewise
def with_outliers(work: Floats) -> None:
    """Label likelihood in EACH with that of an outlier, its last column; fills SHARE.

    INSIDE and OUTSIDE are the probabilities of both; they become those with the label.
    """
    each = work[EACH]
    share = work[SHARE]
    inside = work[INSIDE]
    outside = work[OUTSIDE]
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
    each[n - 1] = astray
    share[n - 1] = 0.0


@linewise
def observe(work: Floats, counted: float) -> float:
    """Bayes' rule with EACH, into POSTERIOR, MASS and PATH; returns the log score.

    counted: share of the evidence that counts; the score is of all of it.
    """
    each = work[EACH]
    path = work[PATH]
    n = whole(each)
    log_score = _weigh(work)
    if counted != 1.0:
        arithmetic.scale(counted, each, n)
        _weigh(work)
    for i in range(n):
        path[i] += each[i]
    arithmetic.shift(path, -arithmetic.largest(path, n), path, n)
    return log_score


@linewise
def _weigh(work: Floats) -> float:
    """Fill POSTERIOR and MASS; returns the log of the evidence in EACH."""
    grown = work[GROWN]
    each = work[EACH]
    posterior = work[POSTERIOR]
    n = whole(grown)
    for i in range(n):
        posterior[i] = grown[i] + each[i]
    top = arithmetic.largest(posterior, n)
    arithmetic.exp_of(posterior, top, work[MASS], n)
    total = arithmetic.total(work[MASS], n)
    evidence = math.log(total)
    arithmetic.scale(1.0 / total, work[MASS], n)
    for i in range(n):
        posterior[i] = posterior[i] - top - evidence
    return top + evidence


@compiled
def outlying(work: Floats) -> bool:
    """Whether the label is more probably an outlier than not, over the belief after it."""
    mass = work[MASS]
    return arithmetic.dot(mass, work[SHARE], whole(mass)) < 0.5


@compiled
def totals_after(
    head: Floats, outputs: int, number: Floats, counts: bool, expected: Floats, out: Floats
) -> bool:
    """New totals of the labels, of which this one counts or not; returns whether all is finite.

    expected: mean and covariance of the label, as in a summary. A missing output has these, so that
    segments which have it in part have its mean and spread nevertheless.
    """
    before = head[totals_place(outputs) :]
    out[0] = before[0] + (1.0 if counts else 0.0)
    for o in range(outputs):
        centred = number[LABEL + o] - head[LOCATION + o] if counts else 0.0
        square = centred * centred
        if math.isnan(centred):
            centred = expected[o] - head[LOCATION + o]
            square = centred * centred + expected[outputs + o * outputs + o]
        out[1 + o] = before[1 + o] + centred
        out[1 + outputs + o] = before[1 + outputs + o] + square
    return math.isfinite(arithmetic.total(out, 1 + 2 * outputs))


@linewise
def spared(lines: Floats, log_prob: Floats, slots: int, spare: Floats) -> int:
    """Slot that is not pruned, as `belief.spared` has it."""
    gap = lines[GAP]
    for i in range(slots):
        spare[i] = log_prob[i] - gap[i]
    return arithmetic.place_of(spare, arithmetic.largest(spare, slots), slots)


@linewise
def keep(
    lines: Floats,
    head: Floats,
    slots: int,
    birth: Birth,
    elapsed: float,
    totals: Floats,
    work: Floats,
    table: Floats,
) -> None:
    """Write the belief after the step, pruned, and the totals.

    POSTERIOR and PATH are then what is written, MASS the probabilities.
    """
    posterior = work[POSTERIOR]
    path = work[PATH]
    run_length = lines[RUN_LENGTH]
    n = whole(posterior)
    size = totals.shape[0]
    own = head[totals_place((size - 1) // 2) :]
    kept = spared(lines, posterior, slots, work[SPARE])
    of_kept = posterior[kept]
    posterior[kept] = INF
    drop = arithmetic.place_of(posterior, arithmetic.smallest(posterior, slots), slots)
    posterior[kept] = of_kept
    mass = math.exp(posterior[drop])
    slot = birth.slot
    table[CHANGEPOINT_PROBABILITY] = math.exp(posterior[slot])
    table[PRUNED_MASS] = mass
    table[BORN_PREVIOUS_START] = birth.previous
    for i in range(slots):
        run_length[i] += 1.0
    run_length[slot] = 0.0
    lines[PREVIOUS, slot] = birth.previous
    lines[CHANGES, slot] = birth.changes
    for k in range(size):
        lines[TOTALS_AT_START + k, slot] = own[k]
        own[k] = totals[k]
    posterior[drop] = -INF
    path[drop] = -INF
    arithmetic.shift(posterior, -math.log1p(-mass), posterior, n)
    arithmetic.scale(1.0 / (1.0 - mass), work[MASS], n)
    work[MASS, drop] = 0.0
    arithmetic.shift(posterior, 0.0, lines[LOG_PROB], slots)
    arithmetic.shift(path, 0.0, lines[SCORE], slots)
    gap = lines[GAP]
    for i in range(slots):  # what is no hypothesis has none: it is not stored
        gap[i] = gap[i] if posterior[i] > -INF else 0.0
    head[STEPS] += min(elapsed, MOST_STEPS) if head[SEQ] > 0 else 0.0
    head[SEQ] += 1.0


# --- what is read off the belief after a step -----------------------------------------------------


@compiled
def recall(lines: Floats, work: Floats) -> None:
    """Fill POSTERIOR, PATH and MASS with what they were after the step that left this row."""
    arithmetic.copy(lines[LOG_PROB], work[POSTERIOR])
    arithmetic.copy(lines[SCORE], work[PATH])
    arithmetic.exp_of(work[POSTERIOR], 0.0, work[MASS], whole(work[MASS]))


@linewise
def _mass_below(mass: Floats, age: Floats, below: float, spare: Floats) -> float:
    n = whole(age)
    for i in range(n):
        spare[i] = mass[i] if age[i] < below else 0.0
    return min(arithmetic.total(spare, n), 1.0)


@compiled
def rates(lines: Floats, steps: float, hazard: Floats, out: Floats) -> None:
    """Hazards by which evidence is measured: of a table the greatest, learned ones of each slot."""
    if hazard[0] == LEARNED:
        _expected(lines, steps, hazard, out)
    else:
        arithmetic.fill(out, arithmetic.largest(hazard, hazard.shape[0]))


@linewise
def likened(lines: Floats, work: Floats) -> None:
    """Fill CHANCE with the probabilities of hypotheses if all gaps had been units of time."""
    gap = lines[GAP]
    out = work[CHANCE]
    n = whole(out)
    if arithmetic.largest(gap, n) == 0:
        arithmetic.copy(work[MASS], out)
        return
    for i in range(n):
        out[i] = work[POSTERIOR, i] - gap[i]
    arithmetic.exp_of(out, arithmetic.largest(out, n), out, n)
    arithmetic.scale(1.0 / arithmetic.total(out, n), out, n)


@linewise
def evidence_of_change(
    lines: Floats, head: Floats, number: Floats, hazard: Floats, work: Floats
) -> float:
    """Shiryaev-Roberts statistic of a change to run lengths below that of what is settled.

    The odds of one over the hazard of those who know of none: while nothing changes it is a return
    period, of observations between two as high. Gaps count as units of time: that one was long is
    no evidence.
    """
    likened(lines, work)
    age = lines[RUN_LENGTH]
    mass = work[CHANCE]
    spare = work[SPARE]
    n = whole(mass)
    below = head[SEQ] - 1.0 - number[SETTLED]
    changed = _mass_below(mass, age, below, spare)
    rates(lines, head[STEPS], hazard, spare)
    for i in range(n):
        spare[i] = spare[i] * mass[i] if age[i] >= below else 0.0
    return changed / max(arithmetic.total(spare, n), 1.0 / GREATEST)


@linewise
def _likely_starts(mass: Floats, age: Floats, below: float, spare: Floats, table: Floats) -> None:
    """Where a change to run lengths below began: the fewest starts that hold `LIKELY`.

    The longest and the shortest, and the share of the probability of all of them that these hold;
    0 where there is none. The likeliest first, of equal ones the longest.
    """
    n = whole(mass)
    total = max(_mass_below(mass, age, below, spare), 1.0 / GREATEST)
    for i in range(n):
        spare[i] = math.floor(mass[i] / total / GRAIN) if age[i] < below else 0.0
    longest = 0.0
    shortest = INF
    held = 0.0
    while held < LIKELY - TIE:
        grains = arithmetic.largest(spare, n)
        if grains <= 0:
            break
        likeliest = -1
        for i in range(n):
            if spare[i] == grains and (likeliest < 0 or age[i] > age[likeliest]):
                likeliest = i
        spare[likeliest] = 0.0
        held += mass[likeliest] / total
        longest = max(longest, age[likeliest])
        shortest = min(shortest, age[likeliest])
    table[LONGEST] = longest
    table[SHORTEST] = shortest if held > 0 else 0.0
    table[COVERAGE] = min(held, 1.0)


@linewise
def read_out(
    lines: Floats,
    head: Floats,
    outputs: int,
    number: Floats,
    evidence: float,
    window: int,
    work: Floats,
    table: Floats,
) -> None:
    """Fill the table's numbers that are of the belief after the step, see `readout.Readout`.

    lines, head: after the step. evidence: that a change is confirmed by. Events are about the most
    probable start; where evidence reaches a threshold above 0, about the most probable one after
    what is settled. window: run lengths that count as a recent change.
    """
    seq = head[SEQ] - 1.0
    log_prob = work[POSTERIOR]
    age = lines[RUN_LENGTH]
    score = work[PATH]
    mass = work[MASS]
    spare = work[SPARE]
    n = whole(mass)
    below = seq - number[SETTLED]
    likeliest = _likeliest(log_prob, age, INF, spare)
    best = _likeliest(score, age, INF, spare)
    event = likeliest
    if number[THRESHOLD] > 0 and evidence >= number[THRESHOLD]:
        event = _likeliest(log_prob, age, below, spare)
    table[LONGEST] = 0.0
    table[SHORTEST] = 0.0
    table[COVERAGE] = 0.0
    if evidence >= number[THRESHOLD] or number[SINCE] < number[SETTLED]:
        new = age[event] < below  # than which those of the change before are no start of it
        _likely_starts(mass, age, below if new else seq - number[SINCE], spare, table)
    for i in range(n):
        spare[i] = mass[i] * age[i]
    alive = 0
    for i in range(n):
        alive += 1 if log_prob[i] > -INF else 0
    table[MEAN_RUN_LENGTH] = arithmetic.total(spare, n)
    table[CHANGED] = _mass_below(mass, age, below, spare)
    table[RECENT] = _mass_below(mass, age, window, spare)
    table[MAP_RUN_LENGTH] = age[likeliest]
    table[EVENT_RUN_LENGTH] = age[event]
    table[EVENT_PROBABILITY] = mass[event]
    table[EVENT_PREVIOUS_START] = lines[PREVIOUS, event]
    table[HYPOTHESES] = alive
    table[BEST_START] = seq - age[best]
    size = 1 + 2 * outputs
    totals = head[totals_place(outputs) :]
    for k in range(size):
        table[NUMBERS + k] = totals[k]
        table[NUMBERS + size + k] = lines[TOTALS_AT_START + k, event]


@compiled
def copy(lines: Floats, out: Floats) -> None:
    """Fill log probabilities and run lengths (1, 2, S) after the step, if there is room (0)."""
    for belief in out:
        arithmetic.copy(lines[LOG_PROB], belief[0])
        arithmetic.copy(lines[RUN_LENGTH], belief[1])
