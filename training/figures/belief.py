"""Charts of the run-length belief over time, and of predictive densities at chosen times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.figures import palette
from training.figures.chart import Axis, Chart, Floats, Image, Layer, Line, Panel, Points, Rules

FLOOR = 1e-3  # probabilities below are not drawn
OLDEST = 60  # observations after which earlier data have faded
FAINT = 0.12  # their opacity
LETTERS = "abcdefghijklmnop"


class Data(NamedTuple):
    """A sequence of real labels of real inputs, all (T,); `switch` true where a task starts."""

    x: Floats
    y: Floats
    switch: NDArray[np.bool_]


class Density(NamedTuple):
    """The predictive at `time`, given the data before: density (len(y), len(x)) on a grid.

    truth: (len(x),) the current task's function, None where unknown.
    """

    time: int
    x: Floats
    y: Floats
    density: Floats
    truth: Floats | None = None


def panel(
    belief: Floats,
    switch: NDArray[np.bool_],
    chosen: Sequence[float] = (),
    name: str = "true switch",
) -> Panel:
    """Run-length belief (T, R) by [t, r], probabilities, as a heat map; lines where tasks start."""
    longest = _longest(belief)
    steps = np.arange(len(belief), dtype=np.float64)
    lengths = np.arange(longest + 1, dtype=np.float64)
    layers: list[Layer] = [
        Image(steps, lengths, belief[:, : longest + 1].T, "probability", log=True, floor=FLOOR),
        _switches(switch, name),
    ]
    if chosen:
        at = np.asarray(chosen, np.float64)
        layers.append(Rules(at, "time shown above", palette.CHOSEN, "dot", width=1.6))
    return Panel(
        Axis("time (steps)", (-0.5, len(belief) - 0.5), grid=False),
        Axis("run length (steps)", (-0.5, longest + 0.5), grid=False),
        tuple(layers),
    )


def heat_map(belief: Floats, switch: NDArray[np.bool_], title: str = "Run-length belief") -> Chart:
    """Chart of the run-length belief over time."""
    return Chart(title, ((panel(belief, switch),),), _description(switch))


def sinusoid(
    data: Data, densities: Sequence[Density], belief: Floats, title: str = "Predictive and belief"
) -> Chart:
    """Predictive densities in a row above the run-length belief, lettered by time.

    Darker is denser, each panel by its own largest density.
    """
    above = []
    for k, one in enumerate(densities):
        mine = _density(data, one)
        y = mine.y if k == 0 else mine.y._replace(label="")
        above.append(mine._replace(title=f"{LETTERS[k]}) t = {one.time}", y=y))
    below = panel(belief, data.switch, [one.time for one in densities])
    times = ", ".join(str(one.time) for one in densities)
    below_text = _description(data.switch)
    text = f"Above: predictive density at times {times}, with data. Below: {below_text}"
    return Chart(title, (tuple(above), (below,)), text, (300, 280), 900)


def _density(data: Data, one: Density) -> Panel:
    """The density as an image; data of the current task, fading data of those before."""
    now = one.time
    start = int(np.flatnonzero(data.switch[: now + 1]).max(initial=0))
    age = now - np.arange(start)
    opacity = np.clip(1 - age / OLDEST, FAINT, 1.0)
    layers: list[Layer] = [
        Image(one.x, one.y, one.density),
        Points(
            data.x[:start], data.y[:start], "earlier tasks", palette.EARLIER, "square", 4, opacity
        ),
    ]
    if one.truth is not None:
        layers.append(Line(one.x, one.truth, "true function", palette.CURRENT))
    current = slice(start, now)
    layers.append(
        Points(data.x[current], data.y[current], "current task", palette.CURRENT, "circle", 4.5)
    )
    return Panel(
        Axis("x", (float(one.x[0]), float(one.x[-1])), grid=False),
        Axis("y", (float(one.y[0]), float(one.y[-1])), grid=False),
        tuple(layers),
    )


def _switches(switch: NDArray[np.bool_], name: str) -> Rules:
    at = np.flatnonzero(switch).astype(np.float64)
    return Rules(at[at > 0] - 0.5, name)


def _longest(belief: Floats) -> int:
    """The longest visible run length."""
    visible = np.flatnonzero((np.nan_to_num(belief) >= FLOOR).any(0))
    return int(visible.max(initial=1))


def _description(switch: NDArray[np.bool_]) -> str:
    at = [str(time) for time in np.flatnonzero(switch) if time > 0]
    listed = ", ".join(at[:20]) + (" ..." if len(at) > 20 else "")
    return f"Run-length belief over {len(switch)} steps; tasks switch at {listed or 'no time'}."
