"""Dot plots: methods beside each other in each of several categories, with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from training.figures import palette
from training.figures.chart import Axis, Chart, Floats, Layer, Line, Panel, Points, Rules

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "x", "cross")
SPREAD = 0.7  # of a category's height that its marks take
ROW = 18  # pixels of a mark
MARGIN = 60  # pixels of a panel beside its marks


class Marks(NamedTuple):
    """Values (n,) of a method by category, nan where there is none, and ends of their intervals."""

    method: str
    value: Floats
    low: Floats | None = None
    high: Floats | None = None


class Facet(NamedTuple):
    """One panel: categories from top to bottom.

    measure: with its unit. floor: where the axis is logarithmic, what values below are drawn at.
    rule: a value that is marked, as a target.
    """

    measure: str
    categories: Sequence[str]
    marks: Sequence[Marks]
    title: str = ""
    floor: float | None = None
    rule: float | None = None


def dots(title: str, facets: Sequence[Facet], description: str) -> Chart:
    """A panel for each facet, side by side; a method looks the same in all."""
    methods = list(dict.fromkeys(marks.method for facet in facets for marks in facet.marks))
    row = tuple(_panel(facet, methods) for facet in facets)
    most = max(len(facet.categories) * len(facet.marks) for facet in facets)
    height = MARGIN + max(ROW * most * 2 // 3, 120)
    return Chart(title, (row,), description, (height,), 900)


def _panel(facet: Facet, methods: Sequence[str]) -> Panel:
    count = len(facet.categories)
    places = np.arange(count, 0, -1, dtype=np.float64)
    layers: list[Layer] = []
    if facet.rule is not None:
        layers.append(Rules(np.array([facet.rule]), "", palette.QUIET, "dash"))
    for k, marks in enumerate(facet.marks):
        # Side by side, so that equal values do not hide each other.
        y = places - (k - (len(facet.marks) - 1) / 2) * SPREAD / len(facet.marks)
        layers += _mark(facet, marks, methods.index(marks.method), y)
    ticks = tuple((float(at), name) for at, name in zip(places, facet.categories, strict=True))
    y_axis = Axis("", (0.4, count + 0.6), ticks=ticks, grid=False)
    return Panel(_axis(facet), y_axis, tuple(layers), facet.title)


def _mark(facet: Facet, marks: Marks, at: int, y: Floats) -> list[Layer]:
    colour = palette.SEGMENTS[at % len(palette.SEGMENTS)]
    shown = np.isfinite(marks.value)
    layers: list[Layer] = []
    if marks.low is not None and marks.high is not None:
        for low, high, place in zip(marks.low[shown], marks.high[shown], y[shown], strict=True):
            ends = _raised(facet, np.array([low, high]))
            layers.append(Line(ends, np.array([place, place]), "", colour, width=1.2))
    symbol = SYMBOLS[(at + at // len(palette.SEGMENTS)) % len(SYMBOLS)]  # none has a twin
    value = _raised(facet, marks.value[shown])
    layers.append(Points(value, y[shown], marks.method, colour, symbol, 7.0))
    return layers


def _raised(facet: Facet, value: Floats) -> Floats:
    return value if facet.floor is None else np.maximum(value, facet.floor)


def _axis(facet: Facet) -> Axis:
    if facet.floor is None:
        return Axis(facet.measure)
    values = [float(v) for marks in facet.marks for v in marks.value if np.isfinite(v)]
    top = 10 ** np.ceil(np.log10(max([*values, 10 * facet.floor])))
    tens = 10.0 ** np.arange(np.ceil(np.log10(2 * facet.floor)), np.log10(top) + 0.5)
    ticks = ((facet.floor, f"≤ {facet.floor:g}"), *((float(ten), f"{ten:g}") for ten in tens))
    return Axis(facet.measure, (0.8 * facet.floor, 1.5 * float(top)), True, ticks)
