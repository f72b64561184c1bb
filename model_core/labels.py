"""Which labels a model can produce."""

from __future__ import annotations

from model_core.upm.base import UnderlyingModel

# Squares and sums of squares of anything smaller stay finite, whatever the model does with them.
LARGEST = 1e100
LARGEST_COUNT = 1e12  # exact in a float, with room for sums of them


def mistake(value: float, model: UnderlyingModel) -> str | None:
    """What a finite label should have been, where the model cannot produce it."""
    whole = value == int(value)
    if model.label == "count" and not (whole and 0 <= value <= LARGEST_COUNT):
        return f"a count: a whole number from 0 to {LARGEST_COUNT:g}"
    if model.label == "binary" and value not in (0.0, 1.0):
        return "0 or 1"
    if model.label == "class" and not (whole and 0 <= value < model.classes):
        return f"the index of one of {model.classes} classes"
    if model.label == "positive" and not model.takes_zero and value <= 0:
        return "a number above 0"
    if model.label == "positive" and value < 0:
        return "a number of at least 0"
    return None
