"""A whole step of rows in place: what `filter.step`, `readout.table` and a summary compute.

One program steps one row; its slots are a vector. Of a model it needs `component`, the predictive
of an output under each hypothesis, and `learn`, the update of the statistics (see
`models.gaussian`; where statistics are too large for that, `prepared`). Nothing is written before
the row is known to stay finite: a row that is not `ok` is as it was.
"""

from __future__ import annotations

import triton.language as tl

from model_core.fused import arithmetic, belief, mixture, prepared
from model_core.fused.belief import LABEL, LABELLED, NUMBERS, OK, RATE
from model_core.fused.jit import compiled, entry
from model_core.fused.rows import (
    LOG_PROB,
    PREVIOUS,
    RUN_LENGTH,
    SCORE,
    SEQ,
    STATISTICS,
    TOTALS,
    TOTALS_AT_START,
    floats,
    integers,
)
from model_core.upm import conjugate

INF = arithmetic.INF
OUTLIER_SPREAD = tl.constexpr(conjugate.OUTLIER_SPREAD)
NEGLIGIBLE = tl.constexpr(1e-18)  # weight of a component that is left out of quantiles


@compiled
def predictive(
    views: tl.tensor,
    row: tl.tensor,
    own: tl.tensor,
    output: tl.tensor,
    slot: tl.tensor,
    slots: tl.tensor,
    from_prior: tl.tensor,
    OUTPUTS: tl.constexpr,
    COMPONENT: tl.constexpr,
) -> tl.tensor:
    """Components of an output: those of the hypotheses, beyond the slots those of outliers."""
    loc, square, half = COMPONENT(views, row, own, output, slot, slots, from_prior, OUTPUTS)
    return loc, tl.where(slot < slots, square, square * OUTLIER_SPREAD), half


@compiled
def score(
    views: tl.tensor,
    row: tl.tensor,
    own: tl.tensor,
    label: tl.tensor,
    slot: tl.tensor,
    slots: tl.tensor,
    from_prior: tl.tensor,
    OUTPUTS: tl.constexpr,
    COMPONENT: tl.constexpr,
    FAMILY: tl.constexpr,
) -> tl.tensor:
    """Log density of all outputs of the label under each hypothesis, and of an outlier."""
    each = tl.where(from_prior, 0.0, 0.0).to(tl.float64)
    for output in range(OUTPUTS):
        loc, square, half = predictive(
            views, row, own, output, slot, slots, from_prior, OUTPUTS, COMPONENT
        )
        y = tl.load(label + output)
        each = each + mixture.log_density(y, loc, square, half, FAMILY)
    return each


@compiled
def totals(
    own: tl.tensor,
    after: tl.tensor,
    label: tl.tensor,
    location: tl.tensor,
    labelled: tl.tensor,
    OUTPUTS: tl.constexpr,
) -> tl.tensor:
    """New totals of the labels into `after`; whether they are finite."""
    count = tl.load(own) + tl.where(labelled, 1.0, 0.0)
    tl.store(after, count)
    fine = arithmetic.finite(count)
    for output in range(OUTPUTS):
        centred = tl.load(label + output) - tl.load(location + output)
        centred = tl.where(labelled, centred, 0.0)
        first = tl.load(own + 1 + output) + centred
        second = tl.load(own + 1 + OUTPUTS + output) + centred * centred
        tl.store(after + 1 + output, first)
        tl.store(after + 1 + OUTPUTS + output, second)
        fine = fine & arithmetic.finite(first) & arithmetic.finite(second)
    return fine


@compiled
def summarise(
    views: tl.tensor,
    row: tl.tensor,
    own: tl.tensor,
    label: tl.tensor,
    labelled: tl.tensor,
    chance: tl.tensor,
    slot: tl.tensor,
    slots: tl.tensor,
    from_prior: tl.tensor,
    levels: tl.tensor,
    out: tl.tensor,
    OUTPUTS: tl.constexpr,
    LEVELS: tl.constexpr,
    COMPONENT: tl.constexpr,
    FAMILY: tl.constexpr,
) -> None:
    """Fill a row of a summary: see `model_core.summary`. levels: over the normal's quantiles."""
    weight = tl.where(chance > NEGLIGIBLE, chance, 0.0)
    for output in range(OUTPUTS):
        loc, square, half = predictive(
            views, row, own, output, slot, slots, from_prior, OUTPUTS, COMPONENT
        )
        norm = mixture.norm_of(half, FAMILY)
        mean = tl.sum(chance * loc, 0)
        tl.store(out + output, mean)
        for other in range(OUTPUTS):
            loc2, _, _ = COMPONENT(views, row, own, other, slot, slots, from_prior, OUTPUTS)
            mean2 = tl.sum(chance * loc2, 0)
            between = tl.sum(chance * ((loc - mean) * (loc2 - mean2)), 0)
            tl.store(out + OUTPUTS + output * OUTPUTS + other, between)
            if other == output:
                variance = mixture.variance(square, half, FAMILY)
                within = tl.sum(tl.where(chance > 0, chance * variance, 0.0), 0)
                tl.store(out + OUTPUTS + output * OUTPUTS + output, between + within)
        first = out + OUTPUTS + OUTPUTS * OUTPUTS
        y = tl.load(label + output)
        cdf, _, _ = mixture.sums(y, weight, loc, square, half, norm, FAMILY)
        cdf = tl.where(labelled, cdf, float("nan"))
        tl.store(first + output, cdf)
        tl.store(first + OUTPUTS + output, cdf)
        spread, narrowest = mixture.scales(weight, loc, square, norm, mean)
        for k in range(LEVELS):
            at = mixture.quantile(
                tl.load(levels + k), tl.load(levels + LEVELS + k), mean, spread,
                narrowest * mixture.TOLERANCE, weight, loc, square, half, norm, FAMILY,
            )  # fmt: skip
            tl.store(first + 2 * OUTPUTS + output * LEVELS + k, at)


@entry("slots", "entries", "wide", "columns", "window", "statistics")
def step(
    views: tl.tensor,
    rows: tl.tensor,
    lines: tl.tensor,
    inputs: tl.tensor,
    hazards: tl.tensor,
    levels: tl.tensor,
    table: tl.tensor,
    summary: tl.tensor,
    labels: tl.tensor,
    room: tl.tensor,
    slots: tl.tensor,
    entries: tl.tensor,
    wide: tl.tensor,
    columns: tl.tensor,
    window: tl.tensor,
    statistics: tl.tensor,
    SIZE: tl.constexpr,
    OUTPUTS: tl.constexpr,
    LEVELS: tl.constexpr,
    SUMMARISED: tl.constexpr,
    FEATURES: tl.constexpr,
    FAMILY: tl.constexpr,
    COMPONENT: tl.constexpr,
    LEARN: tl.constexpr,
) -> None:
    """One stream by one observation: the line `lines[i]` of inputs, hazards, table and summary.

    labels: room for the labels, (B, outputs). room: that of `prepared`, of models with features.
    """
    b = tl.load(lines + tl.program_id(0))
    row = tl.load(rows + b)
    number = inputs + b * wide
    line = table + b * (NUMBERS + 2 + 4 * OUTPUTS)
    label = labels + b * OUTPUTS
    own = prepared.line_of(room, b, slots, OUTPUTS, FEATURES)
    location = floats(views, STATISTICS + 2 * statistics) + row * OUTPUTS
    labelled = tl.load(number + LABELLED) > 0
    for output in range(OUTPUTS):  # what is no label may be anything, nan too
        y, unknown = tl.load(number + LABEL + output), tl.load(location + output)
        tl.store(label + output, tl.where(labelled, y, unknown))
    tl.debug_barrier()
    slot = tl.arange(0, SIZE)
    here = slot < slots
    at = row * slots + slot
    log_prob = tl.load(floats(views, LOG_PROB) + at, mask=here, other=-INF)
    path = tl.load(floats(views, SCORE) + at, mask=here, other=-INF)
    run_length = tl.load(integers(views, RUN_LENGTH) + at, mask=here, other=0)
    previous = tl.load(integers(views, PREVIOUS) + at, mask=here, other=-1)
    seq = tl.load(integers(views, SEQ) + row)
    rate = tl.load(number + RATE)
    grown, path, born, before = belief.grow(
        log_prob, run_length, path, seq, slot, slots, number, hazards + b * entries, entries
    )
    from_prior = (slot == born) | (slot >= slots)
    each = score(views, row, own, label, slot, slots, from_prior, OUTPUTS, COMPONENT, FAMILY)
    each, share = belief.with_outliers(each, slot, slots, rate, labelled)
    if SUMMARISED:
        chance = belief.mix(grown, slot, slots, rate)
        summarise(
            views, row, own, label, labelled, chance, slot, slots, from_prior, levels,
            summary + b * columns, OUTPUTS, LEVELS, COMPONENT, FAMILY,
        )  # fmt: skip
    posterior, path, log_score = belief.observe(grown, path, tl.where(here, each, 0.0))
    usual = tl.max(path, 0) == 0  # of any path that stays finite: scores are relative to the best
    log_prob, path, pruned = belief.prune(posterior, path, slot, slots)
    sums = floats(views, TOTALS) + row * (1 + 2 * OUTPUTS)
    fine = totals(sums, line + NUMBERS, label, location, labelled, OUTPUTS)
    stays = LEARN(views, row, own, label, share, slot, slots, from_prior, here, OUTPUTS, False)
    broken = tl.sum(tl.where((log_prob > -INF) & ~stays, 1, 0), 0)
    ok = fine & arithmetic.finite(log_score) & usual & (broken == 0)
    run_length = tl.where(slot == born, 0, run_length + 1)
    previous = tl.where(slot == born, before, previous)
    event = belief.read_out(log_prob, run_length, path, previous, seq, slot, number, window, line)
    tl.store(line + belief.LOG_SCORE, tl.where(labelled, log_score, float("nan")))
    chance_of_change = tl.exp(arithmetic.at(tl.where(here, posterior, 0.0), slot, born))
    tl.store(line + belief.CHANGEPOINT_PROBABILITY, chance_of_change)
    tl.store(line + belief.PRUNED_MASS, pruned)
    tl.store(line + belief.BORN_PREVIOUS_START, before.to(tl.float64))
    tl.store(line + OK, tl.where(ok, 1.0, 0.0))
    width = 1 + 2 * OUTPUTS
    starts = floats(views, TOTALS_AT_START) + row * slots * width
    for k in range(width):  # totals at the start that events are about, before any is written
        then = tl.load(sums + k)
        start = tl.where(event == born, then, tl.load(starts + event * width + k))
        tl.store(line + NUMBERS + width + k, start)
        tl.debug_barrier()
        tl.store(starts + born * width + k, then, mask=ok)
        tl.store(sums + k, tl.load(line + NUMBERS + k), mask=ok)
    kept = tl.where(ok, here, False)
    tl.debug_barrier()
    tl.store(floats(views, LOG_PROB) + at, log_prob, mask=kept)
    tl.store(floats(views, SCORE) + at, path, mask=kept)
    tl.store(integers(views, RUN_LENGTH) + at, run_length, mask=kept)
    tl.store(integers(views, PREVIOUS) + at, previous, mask=kept)
    tl.store(integers(views, SEQ) + row, seq + 1, mask=ok)
    LEARN(views, row, own, label, share, slot, slots, from_prior, kept, OUTPUTS, True)
