"""A stream's context of time and lags, as `upm.lags` keeps it."""

from __future__ import annotations

from model_core.compiled import LABEL, LABELLED, arithmetic
from model_core.compiled.arithmetic import maths
from model_core.compiled.jit import Floats, Ints, called, compiled

_CONTEXT = maths("context")


@compiled
def advance(outputs: int, number: Floats, context: Floats) -> None:
    """Context one observation later: time, location, scale, two labels before (2 d), lags (p d)."""
    context[0] += 1.0
    d = outputs
    recent = 1 + 2 * outputs
    first = 1 + 4 * outputs
    size = context.shape[0] - first
    if size == 0:
        return
    for k in range(size - 1, d - 1, -1):
        context[first + k] = context[first + k - d]
    if number[LABELLED] == 0:
        return
    for o in range(d):
        value = _CONTEXT.in_units(number[LABEL + o], context[1 + o], context[1 + d + o])
        one = context[recent + o]
        context[first + o] = _CONTEXT.lag_of(value, one, context[recent + d + o])
        context[recent + d + o] = one
        context[recent + o] = value


@called
def contexts(outputs: int, rows: Ints, inputs: Floats, out: Floats) -> None:
    """Contexts before each observation, from those of the rows (B, c), in place.

    A row that is named again has moved on since it was named before.
    """
    for b in range(rows.shape[0]):
        for before in range(b - 1, -1, -1):
            if rows[before] == rows[b]:
                arithmetic.copy(out[before], out[b])
                advance(outputs, inputs[before], out[b])
                break
