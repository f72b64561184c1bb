"""`upm.walk`: a random walk with momentum beside the hypotheses, in the column before the last."""

from __future__ import annotations

from model_core.compiled import LABEL, LABELLED
from model_core.compiled.arithmetic import maths
from model_core.compiled.jit import Floats, compiled, inlined
from model_core.maths.walk import FORGET
from model_core.upm.walk import COLUMNS

_CONTEXT = maths("context")
_WALK = maths("walk")
WEIGHT, COUNT, FIRST = range(3)  # places in the state; then COLUMNS for each output
LAST, CHANGE, SQUARE, AUTO, CROSS = range(COLUMNS)


@inlined
def location(kept: Floats, outputs: int, output: int) -> float:
    """Location of the forecast, in the stream's units."""
    at = FIRST + output
    return float(
        _WALK.location(
            kept[at], kept[at + CHANGE * outputs], kept[at + AUTO * outputs],
            kept[at + CROSS * outputs],
        )
    )  # fmt: skip


@inlined
def square(kept: Floats, outputs: int, output: int) -> float:
    """Squared scale of the forecast, in the stream's units."""
    return float(kept[FIRST + SQUARE * outputs + output] / kept[COUNT])


@compiled
def advance(
    outputs: int, number: Floats, outlying: bool, context: Floats, first: int, lead: float
) -> None:
    """One observation later; the walk is kept from `first` on in the context.

    lead: log density of the label by the walk less that by the hypotheses.
    """
    kept = context[first:]
    d = outputs
    for o in range(d):
        at = FIRST + o
        if number[LABELLED] == 0:
            kept[at + CHANGE * d] = 0.0
            continue
        y = _CONTEXT.in_units(number[LABEL + o], context[1 + o], context[1 + d + o])
        if outlying:
            kept[at] = y
            kept[at + CHANGE * d] = 0.0
            continue
        (
            kept[at],
            kept[at + CHANGE * d],
            kept[at + SQUARE * d],
            kept[at + AUTO * d],
            kept[at + CROSS * d],
        ) = _WALK.learned(
            kept[at], kept[at + CHANGE * d], kept[at + SQUARE * d], kept[at + AUTO * d],
            kept[at + CROSS * d], kept[COUNT], y,
        )  # fmt: skip
    if number[LABELLED] > 0 and not outlying:
        kept[COUNT] = FORGET * kept[COUNT] + 1.0
        kept[WEIGHT] = _WALK.reweighed(kept[WEIGHT], lead)
