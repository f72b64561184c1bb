"""Which labels a model can produce."""

from __future__ import annotations

from math import ulp
from typing import NamedTuple

from model_core.upm.base import UnderlyingModel

# Squares and sums of squares of anything smaller stay finite, whatever the model does with them.
LARGEST = 1e100
LARGEST_COUNT = 1e12  # exact in a float, with room for sums of them


class Range(NamedTuple):
    """Numbers that the labels of a model can be."""

    least: float
    largest: float
    whole: bool

    def has(self, value: float) -> bool:
        """Whether a number is one of them; not one that is not finite."""
        within = self.least <= value <= self.largest
        return within and (not self.whole or value == int(value))


def range_of(model: UnderlyingModel) -> Range:
    """Return what each number of a label of the model can be."""
    if model.label == "count":
        return Range(0.0, LARGEST_COUNT, True)
    if model.label == "binary":
        return Range(0.0, 1.0, True)
    if model.label == "class":
        return Range(0.0, model.classes - 1.0, True)
    if model.label == "positive":
        return Range(0.0 if model.takes_zero else ulp(0.0), LARGEST, False)
    return Range(-LARGEST, LARGEST, False)


def mistake(value: float, model: UnderlyingModel) -> str | None:
    """What a label should have been that is no larger than LARGEST, where it is out of range."""
    if range_of(model).has(value):
        return None
    if model.label == "count":
        return f"a count: a whole number from 0 to {LARGEST_COUNT:g}"
    if model.label == "binary":
        return "0 or 1"
    if model.label == "class":
        return f"the index of one of {model.classes} classes"
    return "a number of at least 0" if model.takes_zero else "a number above 0"
