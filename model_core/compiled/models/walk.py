"""`upm.walk`: a random walk with momentum beside the hypotheses, in the column before the last."""

from __future__ import annotations

import math

from model_core.compiled import LABEL, LABELLED
from model_core.compiled.jit import Floats, compiled, inlined
from model_core.upm.base import FARTHEST
from model_core.upm.walk import COLUMNS, FLOOR, FORGET, FORGET_MOMENTUM, SHARE, TAILS

WEIGHT, COUNT, FIRST = range(3)  # places in the state; then COLUMNS for each output
LAST, CHANGE, SQUARE, AUTO, CROSS = range(COLUMNS)


@inlined
def location(kept: Floats, outputs: int, output: int) -> float:
    """Location of the forecast, in the stream's units."""
    at = FIRST + output
    momentum = kept[at + CROSS * outputs] / kept[at + AUTO * outputs]
    held: float = min(max(momentum, -1.0), 1.0)
    return float(kept[at + LAST * outputs] + held * kept[at + CHANGE * outputs])


@inlined
def square(kept: Floats, outputs: int, output: int) -> float:
    """Squared scale of the forecast, in the stream's units."""
    return float(kept[FIRST + SQUARE * outputs + output] / kept[COUNT])


@compiled
def advance(outputs: int, number: Floats, context: Floats, first: int, lead: float) -> None:
    """One observation later; the walk is kept from `first` on in the context.

    lead: log density of the label by the walk less that by the hypotheses.
    """
    kept, d = context[first:], outputs
    if number[LABELLED] == 0:
        for o in range(d):
            kept[FIRST + CHANGE * d + o] = 0.0
        return
    for o in range(d):
        at = FIRST + o
        y = (number[LABEL + o] - context[1 + o]) / context[1 + d + o]
        if math.isfinite(number[LABEL + o]):
            y = min(max(y, -FARTHEST), FARTHEST)
        error, precision = y - location(kept, d, o), 1.0 / square(kept, d, o)
        change, moved = kept[at + CHANGE * d], y - kept[at + LAST * d]
        g = (TAILS + 1.0) / (TAILS + precision * error * error)
        pull = g * precision * change
        kept[at + LAST * d] = y
        kept[at + CHANGE * d] = min(g, 1.0) * moved
        kept[at + SQUARE * d] = FORGET * kept[at + SQUARE * d] + g * error * error + FLOOR
        auto, cross = kept[at + AUTO * d], kept[at + CROSS * d]
        kept[at + AUTO * d] = FORGET_MOMENTUM * auto + (1.0 - FORGET_MOMENTUM) + pull * change
        kept[at + CROSS * d] = FORGET_MOMENTUM * cross + pull * moved
    kept[COUNT] = FORGET * kept[COUNT] + 1.0
    odds = math.log(kept[WEIGHT]) - math.log1p(-kept[WEIGHT]) + lead
    won = 1.0 / (1.0 + math.exp(-odds)) if odds > -700.0 else 0.0
    kept[WEIGHT] = (1.0 - SHARE) * won + SHARE / 2.0
