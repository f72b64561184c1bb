"""Numbers of each hypothesis that a model's `prepare` computes for the step and for its `absorb`.

A line's numbers are columns over the slots, of which the last stands for the prior: the new
hypothesis and the outliers read that one. After the columns comes a vector for each slot.
"""

from __future__ import annotations

import triton.language as tl

from model_core.fused.jit import compiled

# Columns; the first four have one for each output. ERROR: residual in the model's units. FINE: 1
# where the update stays finite. SHARE: inlier responsibility, written by the step.
LOC, SQUARE, HALF, ERROR = map(tl.constexpr, range(4))
GRAM, FINE, SHARE = map(tl.constexpr, range(3))
EACH, ALONE = tl.constexpr(4), tl.constexpr(3)  # how many there are of either


def numbers_of(outputs: int, features: int, slots: int) -> int:
    """Numbers of a line; none without features."""
    if features == 0:
        return 0
    of_slot: int = EACH.value * outputs + ALONE.value + features
    return of_slot * (slots + 1)


@compiled
def line_of(
    room: tl.tensor,
    line: tl.tensor,
    slots: tl.tensor,
    OUTPUTS: tl.constexpr,
    FEATURES: tl.constexpr,
) -> tl.tensor:
    """Where a line's numbers begin."""
    return room + line * (EACH * OUTPUTS + ALONE + FEATURES) * (slots + 1)


@compiled
def by_output(
    own: tl.tensor, what: tl.tensor, output: tl.tensor, slots: tl.tensor, OUTPUTS: tl.constexpr
) -> tl.tensor:
    """Where a column of an output begins."""
    return own + (what * OUTPUTS + output) * (slots + 1)


@compiled
def alone(own: tl.tensor, what: tl.tensor, slots: tl.tensor, OUTPUTS: tl.constexpr) -> tl.tensor:
    """Where a column begins that is the same for all outputs."""
    return own + (EACH * OUTPUTS + what) * (slots + 1)


@compiled
def vector(
    own: tl.tensor,
    slot: tl.tensor,
    slots: tl.tensor,
    OUTPUTS: tl.constexpr,
    FEATURES: tl.constexpr,
) -> tl.tensor:
    """Where the vector of a slot begins."""
    return own + (EACH * OUTPUTS + ALONE) * (slots + 1) + slot * FEATURES


@compiled
def component(
    views: tl.tensor,
    row: tl.tensor,
    own: tl.tensor,
    output: tl.tensor,
    slot: tl.tensor,
    slots: tl.tensor,
    from_prior: tl.tensor,
    OUTPUTS: tl.constexpr,
) -> tl.tensor:
    """Location, squared scale and half the degrees of freedom of an output's predictives."""
    at = tl.where(from_prior, slots, slot)
    loc = tl.load(by_output(own, LOC, output, slots, OUTPUTS) + at)
    square = tl.load(by_output(own, SQUARE, output, slots, OUTPUTS) + at)
    return loc, square, tl.load(by_output(own, HALF, output, slots, OUTPUTS) + at)


@compiled
def learn(
    views: tl.tensor,
    row: tl.tensor,
    own: tl.tensor,
    label: tl.tensor,
    share: tl.tensor,
    slot: tl.tensor,
    slots: tl.tensor,
    from_prior: tl.tensor,
    kept: tl.tensor,
    OUTPUTS: tl.constexpr,
    KEEP: tl.constexpr,
) -> tl.tensor:
    """Return which slots stay finite; leave the responsibilities to the model's `absorb`."""
    if KEEP:
        tl.store(alone(own, SHARE, slots, OUTPUTS) + slot, share, mask=kept)
    return tl.load(alone(own, FINE, slots, OUTPUTS) + tl.where(from_prior, slots, slot)) > 0
