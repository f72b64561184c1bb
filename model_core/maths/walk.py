"""A random walk with momentum, in the units of a stream; see `upm.walk` for the model."""

from __future__ import annotations

from model_core.maths.ops import exp, log, log1p, maximum, minimum

TAILS = 3.0  # degrees of freedom
FORGET = 0.98  # `F`
FORGET_MOMENTUM = 0.99  # `G`
SHARE = 0.01
FLOOR = 1e-8  # of a squared scale, of the stream's: constant labels leave no noise


def location(last: float, change: float, auto: float, cross: float) -> float:
    """Of the label to come."""
    return last + minimum(maximum(cross / auto, -1.0), 1.0) * change


def learned(
    last: float, change: float, square: float, auto: float, cross: float, count: float, y: float
) -> tuple[float, float, float, float, float]:
    """The five numbers after a label."""
    error = y - location(last, change, auto, cross)
    precision = count / square
    moved = y - last
    g = (TAILS + 1.0) / (TAILS + precision * (error * error))
    pull = g * precision * change
    return (
        y,
        minimum(g, 1.0) * moved,
        FORGET * square + g * (error * error) + FLOOR,
        FORGET_MOMENTUM * auto + (1.0 - FORGET_MOMENTUM) + pull * change,
        FORGET_MOMENTUM * cross + pull * moved,
    )


def reweighed(weight: float, lead: float) -> float:
    """Weight in the answer after a label; lead: log density by the walk over the hypotheses'."""
    won = 1.0 / (1.0 + exp(-(log(weight) - log1p(-weight) + lead)))
    return (1.0 - SHARE) * won + SHARE / 2.0
