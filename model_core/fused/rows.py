"""A row's numbers in the memory of its slab: `views` is a table of the leaves' addresses.

Leaves are those of `filter.leaves`, then the prior's statistics, location and context. `slot` is a
vector that counts the slots, then beyond them; `slots` is how many there are. `from_prior` marks
what has the prior's statistics: the new hypothesis, and all beyond the slots.
"""

from __future__ import annotations

import triton.language as tl

from model_core.fused.jit import compiled

(
    LOG_PROB, RUN_LENGTH, SCORE, PREVIOUS, SEQ, TOTALS, TOTALS_AT_START, CONTEXT, STATISTICS,
) = map(tl.constexpr, range(9))  # fmt: skip


@compiled
def floats(views: tl.tensor, leaf: tl.tensor) -> tl.tensor:
    """Where a leaf of floating-point numbers is."""
    return tl.load(views + leaf).to(tl.pointer_type(tl.float64))


@compiled
def integers(views: tl.tensor, leaf: tl.tensor) -> tl.tensor:
    """Where a leaf of integers is."""
    return tl.load(views + leaf).to(tl.pointer_type(tl.int64))


@compiled
def read(
    views: tl.tensor,
    row: tl.tensor,
    leaf: tl.tensor,
    count: tl.tensor,
    width: tl.tensor,
    column: tl.tensor,
    slot: tl.tensor,
    slots: tl.tensor,
    from_prior: tl.tensor,
) -> tl.tensor:
    """A column of a statistic, of which each slot has `width`; `count`: of statistics."""
    at = (row * slots + slot) * width + column
    kept = tl.load(floats(views, STATISTICS + leaf) + at, mask=~from_prior, other=0.0)
    prior = tl.load(floats(views, STATISTICS + count + leaf) + row * width + column)
    return tl.where(from_prior, prior, kept)


@compiled
def write(
    views: tl.tensor,
    row: tl.tensor,
    leaf: tl.tensor,
    width: tl.tensor,
    column: tl.tensor,
    slot: tl.tensor,
    slots: tl.tensor,
    values: tl.tensor,
    mask: tl.tensor,
) -> None:
    """Put a column of a statistic back."""
    at = (row * slots + slot) * width + column
    tl.store(floats(views, STATISTICS + leaf) + at, values, mask=mask)
