"""A whole step of rows in place: what `filter.step`, `readout.table` and a summary compute.

A model is a NamedTuple of its dimensions, and implementations of `predict`, `score`, `learn`,
`remember` and `summarise` for it; everything else is here and shared. Arrays have W columns, whole
vectors: after those of the slots the last one holds the prior, which outliers are drawn from (with
a wider scale), the one before it what a model has `beside` its hypotheses, if anything, and those
that are left in between are as slots that nothing was seen in. Models
whose statistics are too large to be copied for a step have a `load` and a `store` of their own,
those that score their inputs a `mix`, and those that count less than all evidence for run lengths a
`count`.
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
from model_core.compiled.jit import (
    LANES,
    Floats,
    Ints,
    called,
    compiled,
    floats,
    implements_otherwise,
    inlined,
    matrix,
    whole,
)


def load(model: Any, views: Ints, row: int, slot: int, number: Floats, own: Floats) -> None:
    """Fill `own` from the statistics, with the prior's in the column of `slot` and after all."""


def mix(model: Any, rate: float, params: Floats, work: Floats) -> None:
    """Take in the input, then turn CHANCE into weights of the mixture; see `belief.mix`."""


def store(model: Any, views: Ints, row: int, slot: int, number: Floats, own: Floats) -> None:
    """Write the statistics that `own` has become, once the step is known to stay finite."""


def predict(
    model: Any, number: Floats, context: Floats, location: Floats, own: Floats, params: Floats
) -> None:
    """Fill `params` (model.params, W) from the statistics `own` (model.rows, W).

    number: the inputs of the row. context: the stream's, before the step.
    """


def score(model: Any, number: Floats, own: Floats, params: Floats, each: Floats) -> None:
    """Log density `each` (W) of the label under each hypothesis, the outlier's last."""


def count(model: Any, context: Floats) -> float:
    """Share of a label's evidence that counts for run lengths; see `evidence_share` of models."""
    return 1.0


def learn(
    model: Any, number: Floats, context: Floats, share: Floats, own: Floats, params: Floats
) -> None:
    """Update `own` by the label with inlier responsibilities `share`; the last column is spare."""


def believe(model: Any, number: Floats, work: Floats, params: Floats, log_score: float) -> float:
    """Keep in `params` what is believed of the label, if `remember` is to know; see `filter`.

    log_score: of the hypotheses. Returns that of the answer, with what is beside them.
    """
    return log_score


def remember(model: Any, number: Floats, params: Floats, context: Floats) -> None:
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
    """Fill a row of the summary: see `Kernel`. chance: (W) weights in the mixture."""


@inlined
def load_leaf(views: Ints, row: int, slot: int, leaf: int, count: int, own: Floats) -> int:
    """One of `count` statistics as the first rows of `own`; returns how many rows it has."""
    slots = views[LOG_PROB, 1]
    values, prior = floats(views, leaf, row), floats(views, leaf + count, row)
    width: int = prior.shape[0]
    for k in range(width):
        own_row = own[k]
        for i in range(slots):
            own_row[i] = values[i * width + k]
        own_row[slot] = prior[k]
        for i in range(slots, own_row.shape[0]):
            own_row[i] = prior[k]
    return width


@inlined
def store_leaf(views: Ints, row: int, leaf: int, count: int, own: Floats) -> int:
    """Put the slots' columns of a statistic back; returns how many rows it has."""
    slots = views[LOG_PROB, 1]
    values = floats(views, leaf, row)
    width: int = views[leaf + count, 1]
    for k in range(width):
        own_row = own[k]
        for i in range(slots):
            values[i * width + k] = own_row[i]
    return width


@implements_otherwise(load)
def _load(model: Any, views: Ints, row: int, slot: int, number: Floats, own: Floats) -> None:
    at = 0
    for leaf in range(STATISTICS, STATISTICS + model.statistics):
        at += load_leaf(views, row, slot, leaf, model.statistics, own[at:])


@implements_otherwise(store)
def _store(model: Any, views: Ints, row: int, slot: int, number: Floats, own: Floats) -> None:
    at = 0
    for leaf in range(STATISTICS, STATISTICS + model.statistics):
        at += store_leaf(views, row, leaf, model.statistics, own[at:])


@implements_otherwise(mix)
def _mix(model: Any, rate: float, params: Floats, work: Floats) -> None:
    belief.mix(rate, work)


@implements_otherwise(count)
def _count(model: Any, context: Floats) -> float:
    return 1.0


@implements_otherwise(believe)
def _believe(model: Any, number: Floats, work: Floats, params: Floats, log_score: float) -> float:
    return log_score


@compiled
def _finite(own: Floats, rows: int, sums: Floats) -> bool:
    """Whether all statistics are; a sum of finite numbers that overflows counts as not."""
    n = whole(sums)
    arithmetic.fill(sums, 0.0)
    for k in range(rows):
        own_row = own[k]
        for i in range(n):
            sums[i] += own_row[i]
    return math.isfinite(arithmetic.total(sums, n))


def rows_of(model: Any) -> int:
    """How many rows the memory has that a step works in; the totals follow."""
    return int(belief.ROWS + model.rows + model.params + model.spare * model.parts)


@called
def advance(
    model: Any,
    views: Ints,
    rows: Ints,
    inputs: Floats,
    hazards: Floats,
    levels: Floats,
    window: int,
    memory: Floats,
    table: Floats,
    summary: Floats,
    beliefs: Floats,
) -> None:
    """Step distinct rows by one observation each. A row that is not `ok` stays as it was.

    Shapes and order of the arguments: see `Kernel.advance`. memory: see `rows_of`.
    """
    leaves = model.statistics
    width = (views[LOG_PROB, 1] + 1 + LANES) & -LANES  # of `padded`
    after = belief.ROWS + model.rows
    spares = after + model.params
    work = matrix(memory, 0, belief.ROWS, width)
    own = matrix(memory, belief.ROWS * width, model.rows, width)
    params = matrix(memory, after * width, model.params, width)
    spare = matrix(memory, spares * width, model.spare, model.parts * width)
    totals = memory[(spares + model.spare * model.parts) * width :]
    for b in range(rows.shape[0]):
        row, number, line = rows[b], inputs[b], table[b]
        line[OK] = 0.0
        location = floats(views, STATISTICS + 2 * leaves, row)
        context = floats(views, belief.CONTEXT, row)
        rate = number[OUTLIER_RATE] if model.outliers else 0.0
        labelled = number[LABELLED] > 0
        slot, previous = belief.grow(views, row, number, hazards[b], work)
        load(model, views, row, slot, number, own)
        predict(model, number, context, location, own, params)
        mix(model, rate, params, work)
        arithmetic.fill(work[EACH], 0.0)
        arithmetic.fill(work[SHARE], 1.0)
        if labelled:
            score(model, number, own, params, work[EACH])
        if labelled and rate > 0:
            belief.with_outliers(work)
        log_score = belief.observe(work, count(model, context))
        known = belief.totals_after(views, row, number, location, totals)
        best = arithmetic.largest(work[PATH], width)
        if not (known and math.isfinite(log_score) and math.isfinite(best)):
            continue
        if summary.shape[1] > 0:
            summarise(model, number, work[CHANCE], params, levels, spare, summary[b])
        if labelled:
            log_score = believe(model, number, work, params, log_score)
            learn(model, number, context, work[SHARE], own, params)
        if not _finite(own, model.kept, work[belief.SPARE]):
            continue
        belief.keep(views, row, slot, previous, totals, work, line)
        store(model, views, row, slot, number, own)
        remember(model, number, params, context)
        belief.read_out(views, row, number, window, work, line)
        belief.copy(work, beliefs[b : b + 1])
        line[LOG_SCORE] = log_score if labelled else np.nan
        line[OK] = 1.0
