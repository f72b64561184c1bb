"""Charts as data: panels in rows, layers in panels.

Arrays are one-dimensional numpy arrays unless noted. Text is plain: `rendering` escapes it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.figures import palette

Floats = NDArray[np.float64]


class Axis(NamedTuple):
    """An axis; the label names the unit. ticks: positions and texts, () for automatic."""

    label: str
    range: tuple[float, float] | None = None
    log: bool = False
    ticks: tuple[tuple[float, str], ...] = ()
    grid: bool = True


class Line(NamedTuple):
    """A line; low and high: ends of an error bar at each point. Layers of one name share a key."""

    x: Floats
    y: Floats
    name: str = ""
    colour: str = palette.INK
    dash: str = "solid"
    symbol: str = ""
    width: float = 1.8
    low: Floats | None = None
    high: Floats | None = None


class Band(NamedTuple):
    """The area between low and high."""

    x: Floats
    low: Floats
    high: Floats
    name: str = ""
    colour: str = palette.INK
    opacity: float = 0.2


class Points(NamedTuple):
    """Symbols; opacity may differ from point to point."""

    x: Floats
    y: Floats
    name: str = ""
    colour: str = palette.INK
    symbol: str = "circle"
    size: float = 6.0
    opacity: float | Floats = 1.0


class Coloured(NamedTuple):
    """Symbols coloured by a value, which `label` names."""

    x: Floats
    y: Floats
    value: Floats
    label: str
    scale: str = palette.VALUE
    size: float = 4.0


class Bars(NamedTuple):
    """Bars from zero; low and high: ends of an error bar each."""

    x: Floats
    y: Floats
    width: float
    name: str = ""
    colour: str = palette.INK
    low: Floats | None = None
    high: Floats | None = None
    hatch: str = ""


class Image(NamedTuple):
    """Values z (len(y), len(x)) at cell centres; those that are nan, or below `floor`, are blank.

    label: of the colour bar, none if empty. log: colours by the logarithm, from `floor` to 1.
    written: whether each cell shows its value.
    """

    x: Floats
    y: Floats
    z: Floats
    label: str = ""
    scale: str = palette.BELIEF
    log: bool = False
    floor: float = -math.inf
    written: bool = False


class Rules(NamedTuple):
    """Lines across the panel, upright at x or, if not `upright`, level at y."""

    at: Floats
    name: str = ""
    colour: str = palette.CHANGE
    dash: str = "solid"
    upright: bool = True
    width: float = 1.2


Layer = Line | Band | Points | Coloured | Bars | Image | Rules


class Panel(NamedTuple):
    """Axes and their layers, the last on top.

    equal: one unit of x is as long as one of y. linked: x is shared by all linked panels.
    """

    x: Axis
    y: Axis
    layers: tuple[Layer, ...]
    title: str = ""
    equal: bool = False
    linked: bool = False


class Chart(NamedTuple):
    """A figure. description: alternative text. Sizes in pixels."""

    title: str
    rows: tuple[tuple[Panel, ...], ...]
    description: str
    heights: tuple[int, ...] = (360,)  # of each row, or one for all
    width: int = 800

    @property
    def row_heights(self) -> tuple[int, ...]:
        """One for each row."""
        return self.heights * len(self.rows) if len(self.heights) == 1 else self.heights

    @property
    def columns(self) -> int:
        """Columns of the grid in which every row's panels are equally wide."""
        return math.lcm(*(len(row) for row in self.rows))

    def places(self) -> list[tuple[int, int, int, Panel]]:
        """Row, first column, columns and panel of each, from 0."""
        places = []
        for at, row in enumerate(self.rows):
            span = self.columns // len(row)
            places += [(at, k * span, span, panel) for k, panel in enumerate(row)]
        return places


def edges(centres: Floats) -> Floats:
    """Borders of cells (n + 1,) half-way between their centres (n,)."""
    if len(centres) == 1:
        return np.array([centres[0] - 0.5, centres[0] + 0.5])
    middle = (centres[1:] + centres[:-1]) / 2
    first = 2 * centres[0] - middle[0]
    last = 2 * centres[-1] - middle[-1]
    return np.concatenate([[first], middle, [last]])


def shown(image: Image) -> Floats:
    """Values with nan where a cell is blank."""
    z = np.asarray(image.z, np.float64)
    return np.where(z >= image.floor, z, np.nan)
