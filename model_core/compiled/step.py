"""A whole step of rows in place: what `filter.step`, `readout.table` and a summary compute.

A model is a NamedTuple of its dimensions, and implementations of `predict`, `score`, `learn`,
`remember` and `summarise` for it; everything else is here and shared. One more column than there
are slots holds the prior, which outliers are drawn from (with a wider scale).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from model_core.compiled import LABELLED, OUTLIER_RATE, arithmetic, belief
from model_core.compiled.belief import (
    CHANCE,
    EACH,
    LOG_PROB,
    LOG_SCORE,
    OK,
    PATH,
    SHARE,
    STATISTICS,
)
from model_core.compiled.jit import Floats, Ints, compiled, floats


def predict(
    model: Any, number: Floats, context: Floats, location: Floats, own: Floats, params: Floats
) -> None:
    """Fill `params` (model.params, S + 1) from the statistics `own` (model.rows, S + 1).

    number: the inputs of the row. context: the stream's, before the step.
    """


def score(model: Any, number: Floats, own: Floats, params: Floats, each: Floats) -> None:
    """Log density `each` (S + 1) of the label under each hypothesis, the outlier's last."""


def learn(
    model: Any, number: Floats, context: Floats, share: Floats, own: Floats, params: Floats
) -> None:
    """Update `own` by the label with inlier responsibilities `share`; the last column is spare."""


def remember(model: Any, number: Floats, context: Floats) -> None:
    """Move the context on by an observation, labelled or not."""


def summarise(
    model: Any,
    number: Floats,
    chance: Floats,
    params: Floats,
    levels: Floats,
    spare: Floats,
    out: Floats,
) -> None:
    """Fill a row of the summary: see `Kernel`. chance: (S + 1) weights in the mixture."""


@compiled
def _load(views: Ints, row: int, slot: int, count: int, own: Floats) -> None:
    """Statistics as columns: those of the slots, with the prior's in the new one and last."""
    slots = views[LOG_PROB, 1]
    at = 0
    for leaf in range(STATISTICS, STATISTICS + count):
        values, prior = floats(views, leaf, row), floats(views, leaf + count, row)
        width = prior.shape[0]
        for k in range(width):
            own_row = own[at + k]
            for i in range(slots):
                own_row[i] = values[i * width + k]
            own_row[slot] = prior[k]
            own_row[slots] = prior[k]
        at += width


@compiled
def _store(views: Ints, row: int, count: int, own: Floats) -> None:
    """Put the columns of the slots back."""
    slots = views[LOG_PROB, 1]
    at = 0
    for leaf in range(STATISTICS, STATISTICS + count):
        values, width = floats(views, leaf, row), views[leaf + count, 1]
        for k in range(width):
            own_row = own[at + k]
            for i in range(slots):
                values[i * width + k] = own_row[i]
        at += width


@compiled
def _finite(own: Floats, rows: int, slots: int) -> bool:
    """Whether all statistics are; a sum of finite numbers that overflows counts as not."""
    total = 0.0
    for k in range(rows):
        total += arithmetic.total(own[k], slots)
    return math.isfinite(total)


@compiled
def advance(
    model: Any,
    views: Ints,
    rows: Ints,
    inputs: Floats,
    hazards: Floats,
    levels: Floats,
    window: int,
    table: Floats,
    summary: Floats,
) -> None:
    """Step distinct rows by one observation each. A row that is not `ok` stays as it was.

    Shapes and order of the arguments: see `Kernel.advance`.
    """
    slots, count = views[LOG_PROB, 1], model.statistics
    work = np.empty((belief.ROWS, slots + 1))
    own = np.empty((model.rows, slots + 1))
    params = np.empty((model.params, slots + 1))
    spare = np.empty((model.spare, model.parts * (slots + 1)))
    totals = np.empty(views[belief.TOTALS, 1])
    for b in range(rows.shape[0]):
        row, number, line = rows[b], inputs[b], table[b]
        line[OK] = 0.0
        location = floats(views, STATISTICS + 2 * count, row)
        context = floats(views, belief.CONTEXT, row)
        rate = number[OUTLIER_RATE] if model.outliers else 0.0
        labelled = number[LABELLED] > 0
        slot, previous = belief.grow(views, row, number, hazards[b], work)
        belief.mix(rate, work)
        _load(views, row, slot, count, own)
        predict(model, number, context, location, own, params)
        work[EACH] = 0.0
        work[SHARE] = 1.0
        if labelled:
            score(model, number, own, params, work[EACH])
        if labelled and rate > 0:
            belief.with_outliers(rate, work)
        log_score = belief.observe(work)
        known = belief.totals_after(views, row, number, location, totals)
        best = arithmetic.largest(work[PATH], slots)
        if not (known and math.isfinite(log_score) and math.isfinite(best)):
            continue
        if summary.shape[1] > 0:
            summarise(model, number, work[CHANCE], params, levels, spare, summary[b])
        if labelled:
            learn(model, number, context, work[SHARE], own, params)
        if not _finite(own, model.kept, slots):
            continue
        belief.keep(views, row, slot, previous, totals, work, line)
        _store(views, row, count, own)
        remember(model, number, context)
        belief.read_out(views, row, number, window, work, line)
        line[LOG_SCORE] = log_score if labelled else np.nan
        line[OK] = 1.0
