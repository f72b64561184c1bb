"""Chart of a trajectory on a court, in the segments that the filter finds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.figures import belief as beliefs
from training.figures import palette
from training.figures.chart import Axis, Chart, Floats, Layer, Line, Panel, Points, Rules

BELOW = 5  # a switch is where the most probable run length falls below it
LENGTH = 94.0  # of an NBA court, feet
WIDTH = 50.0  # likewise
LINE = "#9aa5b1"


class Court(NamedTuple):
    """Units in a foot of the court, and their name; the origin is a corner."""

    per_foot: float = 1.0
    unit: str = "ft"


def switches(belief: Floats, below: int = BELOW) -> NDArray[np.bool_]:
    """Steps (T,) where the most probable run length of a belief (T, R) falls below `below`."""
    likeliest = np.asarray(belief).argmax(-1)
    falls = (likeliest[1:] < below) & (likeliest[:-1] >= below)
    return np.concatenate([[False], falls])


def segmented(
    position: Floats,
    belief: Floats,
    court: Court | None = None,
    title: str = "Segmented trajectory",
    below: int = BELOW,
) -> Chart:
    """A trajectory (T, 2) coloured by predicted segment, then positions and belief over time.

    Run-length beliefs (T, R) are by [t, r]. Switches are dashed gray lines.
    """
    court = court or Court()
    switch = switches(belief, below)
    time = np.arange(len(position), dtype=np.float64)
    at = np.flatnonzero(switch).astype(np.float64) - 0.5
    marks = Rules(at, "predicted switch", palette.QUIET, "dash")
    coordinates = [
        Line(time, position[:, k], f"{name} position", colour, dash)
        for k, (name, colour, dash) in enumerate(
            (("x", palette.METHODS["MOCA"].colour, "solid"), ("y", palette.CURRENT, "dash"))
        )
    ]
    reach = (-0.5, len(position) - 0.5)
    against_time = Panel(
        Axis("time (steps)", reach),
        Axis(f"position ({court.unit})"),
        (*coordinates, marks),
        linked=True,
    )
    below_it = beliefs.panel(belief, np.zeros(len(belief), bool))
    below_it = below_it._replace(layers=(below_it.layers[0], marks), linked=True)
    text = f"A trajectory of {len(position)} steps in {int(switch.sum()) + 1} segments."
    rows = ((_on_court(position, switch, court),), (against_time,), (below_it,))
    return Chart(title, rows, f"{text} Positions and run-length belief over time.", (430, 190, 220))


def _on_court(position: Floats, switch: NDArray[np.bool_], court: Court) -> Panel:
    layers: list[Layer] = [
        Line(x * court.per_foot, y * court.per_foot, colour=LINE, width=1.0) for x, y in _lines()
    ]
    borders = [0, *(int(step) for step in np.flatnonzero(switch)), len(position)]
    for k, (first, last) in enumerate(zip(borders[:-1], borders[1:], strict=True)):
        colour = palette.SEGMENTS[k % len(palette.SEGMENTS)]
        part = position[max(first - 1, 0) : last]  # from where the one before ends
        layers.append(Line(part[:, 0], part[:, 1], colour=colour, width=2.6))
    layers.append(Points(position[:1, 0], position[:1, 1], "start", palette.INK, "square", 7))
    layers.append(Points(position[-1:, 0], position[-1:, 1], "end", palette.INK, "diamond", 7))
    room = 2 * court.per_foot
    unit = court.unit
    x = Axis(f"x ({unit})", (-room, LENGTH * court.per_foot + room), grid=False)
    y = Axis(f"y ({unit})", (-room, WIDTH * court.per_foot + room), grid=False)
    return Panel(x, y, tuple(layers), "colour: predicted segment", equal=True)


def _lines() -> list[tuple[Floats, Floats]]:
    """The court's lines, in feet."""
    middle = LENGTH / 2
    sides = np.array([0, LENGTH, LENGTH, 0, 0]), np.array([0, 0, WIDTH, WIDTH, 0])
    half = np.array([middle, middle]), np.array([0, WIDTH])
    whole = np.linspace(0, 2 * np.pi, 61)
    circle = middle + 6 * np.cos(whole), WIDTH / 2 + 6 * np.sin(whole)
    left = [_key(), _three_points()]
    right = [(LENGTH - x, y) for x, y in left]
    return [sides, half, circle, *left, *right]


def _key() -> tuple[Floats, Floats]:
    return np.array([0.0, 19, 19, 0]), WIDTH / 2 + np.array([-8.0, -8, 8, 8])


def _three_points() -> tuple[Floats, Floats]:
    """Straight three feet from the sidelines, then 23.75 feet from the basket."""
    basket = 5.25
    radius = 23.75
    straight = WIDTH / 2 - 3
    reach = np.arcsin(straight / radius)
    angle = np.linspace(-reach, reach, 41)
    x = basket + radius * np.cos(angle)
    y = WIDTH / 2 + radius * np.sin(angle)
    return np.concatenate([[0], x, [0]]), np.concatenate([[y[0]], y, [y[-1]]])
