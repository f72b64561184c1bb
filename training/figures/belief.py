"""Charts of the run-length belief over time, alone and below what is predicted from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, to_rgb
from numpy.typing import ArrayLike, NDArray

from training.figures.drawing import (
    BELIEF,
    CHANGE,
    CHOSEN,
    CURRENT,
    EARLIER,
    INK,
    MOCA,
    QUIET,
    SEGMENTS,
    VALUE,
    Chart,
    Floats,
    canvas,
    colour_bar,
    finished,
    row,
    styled,
)

FLOOR = 1e-3  # probabilities below are not drawn
OLDEST = 60  # observations after which earlier data have faded
FAINT = 0.12  # their opacity
LETTERS = "abcdefghijklmnop"
LENGTH = 94.0  # of an NBA court, feet
WIDTH = 50.0  # likewise
BELOW = 5  # a switch is where the most probable run length falls below it


def draw_belief(axes: Axes, belief: Floats) -> None:
    """Run-length belief (T, R) by [t, r], probabilities, as a heat map."""
    visible = np.flatnonzero((np.nan_to_num(belief) >= FLOOR).any(0))
    longest = int(visible.max(initial=1))
    shown = belief[:, : longest + 1].T
    mesh = axes.pcolormesh(
        np.arange(len(belief) + 1) - 0.5,
        np.arange(longest + 2) - 0.5,
        np.ma.masked_where(~(shown >= FLOOR), shown),
        norm=LogNorm(FLOOR, 1.0),
        cmap=BELIEF,
        rasterized=True,
    )
    axes.grid(False)
    axes.set(xlabel="time (steps)", ylabel="run length (steps)")
    axes.set_xlim(-0.5, len(belief) - 0.5)
    axes.set_ylim(-0.5, longest + 0.5)
    colour_bar(axes, mesh, "probability")


def draw_rules(axes: Axes, at: ArrayLike, name: str, **look: Any) -> None:
    """Upright lines; the first has the name."""
    for k, x in enumerate(np.asarray(at)):
        axes.axvline(x, label=name if k == 0 else None, **look)


def _draw_switches(axes: Axes, switch: NDArray[np.bool_]) -> None:
    at = np.flatnonzero(switch)
    draw_rules(axes, at[at > 0] - 0.5, "true switch", color=CHANGE, lw=1.2)


def _description(switch: NDArray[np.bool_]) -> str:
    at = [str(time) for time in np.flatnonzero(switch) if time > 0]
    listed = ", ".join(at[:20]) + (" ..." if len(at) > 20 else "")
    return f"Run-length belief over {len(switch)} steps; tasks switch at {listed or 'no time'}."


@styled
def heat_map(belief: Floats, switch: NDArray[np.bool_], title: str = "Run-length belief") -> Chart:
    """Run-length belief over time, with lines where tasks start."""
    figure, (axes,) = row(8, 4.2, 1)
    draw_belief(axes, belief)
    _draw_switches(axes, switch)
    return finished(figure, title, _description(switch))


class Data(NamedTuple):
    """A sequence of real labels of real inputs, all (T,); `switch` true where a task starts."""

    x: Floats
    y: Floats
    switch: NDArray[np.bool_]


class Density(NamedTuple):
    """The predictive at `time`, given the data before: density (len(y), len(x)) on a grid."""

    time: int
    x: Floats
    y: Floats
    density: Floats


@styled
def sinusoid(data: Data, densities: Sequence[Density], belief: Floats, title: str) -> Chart:
    """Predictive densities in a row above the run-length belief, lettered by time.

    Darker is denser, each panel by its own largest density.
    """
    figure = canvas(9, 6.4)
    grid = figure.add_gridspec(2, len(densities))
    first: Axes | None = None
    for k, one in enumerate(densities):
        axes = figure.add_subplot(grid[0, k], sharey=first)
        _draw_density(axes, data, one)
        axes.set_title(f"{LETTERS[k]}) t = {one.time}")
        axes.set_xlabel("x")
        if first is None:
            axes.set_ylabel("y")
            first = axes
        else:
            axes.tick_params(labelleft=False)
    below = figure.add_subplot(grid[1, :])
    draw_belief(below, belief)
    _draw_switches(below, data.switch)
    times = [one.time for one in densities]
    draw_rules(below, times, "time shown above", color=CHOSEN, ls=":", lw=1.6)
    shown = ", ".join(map(str, times))
    text = f"Above: predictive density at times {shown}, with data. Below: "
    return finished(figure, title, text + _description(data.switch))


def _draw_density(axes: Axes, data: Data, one: Density) -> None:
    """The density as an image; data of the current task, fading data of those before."""
    now = one.time
    start = int(np.flatnonzero(data.switch[: now + 1]).max(initial=0))
    opacity = np.clip(1 - (now - np.arange(start)) / OLDEST, FAINT, 1.0)
    axes.pcolormesh(one.x, one.y, one.density, cmap=BELIEF, shading="nearest", rasterized=True)
    axes.grid(False)
    symbols: dict[str, Any] = {"s": 14, "ec": "white", "lw": 0.4, "zorder": 3}
    earlier = [(*to_rgb(EARLIER), alpha) for alpha in opacity]
    axes.scatter(
        data.x[:start], data.y[:start], fc=earlier, marker="s", label="earlier tasks", **symbols
    )
    axes.scatter(data.x[start:now], data.y[start:now], fc=CURRENT, label="current task", **symbols)
    axes.set_xlim(one.x[0], one.x[-1])
    axes.set_ylim(one.y[0], one.y[-1])


class Surface(NamedTuple):
    """Posterior mean reward (len(axis), len(axis)) on a grid, nan outside of the disc."""

    axis: Floats
    mean: Floats


@styled
def wheel(
    state: Floats,
    reward: Floats,
    surface: Surface,
    belief: Floats,
    switch: NDArray[np.bool_],
    at: int,
    title: str,
) -> Chart:
    """Samples of rewards (N,) at states (N, 2), the posterior mean at step `at`, and the belief."""
    figure = canvas(8, 7)
    grid = figure.add_gridspec(2, 2, height_ratios=(4, 3))
    left, right = (figure.add_subplot(grid[0, k]) for k in range(2))
    samples = left.scatter(state[:, 0], state[:, 1], c=reward, cmap=VALUE, s=14, lw=0)
    colour_bar(left, samples, "reward")
    mesh = right.pcolormesh(
        surface.axis,
        surface.axis,
        np.ma.masked_invalid(surface.mean),
        cmap=VALUE,
        shading="nearest",
        rasterized=True,
    )
    colour_bar(right, mesh, "mean reward")
    for axes, name in ((left, "reward samples"), (right, "posterior mean reward")):
        axes.grid(False)
        axes.set(xlabel="state x₁", ylabel="state x₂", title=name)
        axes.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), aspect="equal")
    below = figure.add_subplot(grid[1, :])
    draw_belief(below, belief)
    _draw_switches(below, switch)
    draw_rules(below, [at], "time shown above", color=CHOSEN, ls=":", lw=1.6)
    text = "Reward samples and posterior mean reward over the unit disc, and run-length belief."
    return finished(figure, title, text)


def switches(belief: Floats, below: int = BELOW) -> NDArray[np.bool_]:
    """Steps (T,) where the most probable run length of a belief (T, R) falls below `below`."""
    likeliest = np.asarray(belief).argmax(-1)
    falls = (likeliest[1:] < below) & (likeliest[:-1] >= below)
    return np.concatenate([[False], falls])


@styled
def trajectory(position: Floats, belief: Floats, title: str) -> Chart:
    """A player's path (T, 2) in feet, coloured by predicted segment; positions and belief below.

    Predicted switches are dashed gray lines; the belief (T, R) is by [t, r].
    """
    figure = canvas(8, 9)
    court, coordinates, below = figure.subplots(3, 1, height_ratios=(43, 19, 22))
    switch = np.flatnonzero(switches(belief))
    _draw_court(court)
    borders = [0, *switch.tolist(), len(position)]
    for k, (first, last) in enumerate(zip(borders[:-1], borders[1:], strict=True)):
        part = position[max(first - 1, 0) : last]  # from where the one before ends
        court.plot(*part.T, color=SEGMENTS[k % len(SEGMENTS)], lw=2.6)
    for place, name, marker in ((position[0], "start", "s"), (position[-1], "end", "D")):
        court.plot(*place, color=INK, marker=marker, ls="", label=name)
    court.grid(False)
    court.set(xlabel="x (ft)", ylabel="y (ft)", title="colour: predicted segment", aspect="equal")
    coordinates.plot(position[:, 0], color=MOCA, label="x position")
    coordinates.plot(position[:, 1], color=CURRENT, ls="--", label="y position")
    coordinates.set(xlabel="time (steps)", ylabel="position (ft)")
    coordinates.set_xlim(-0.5, len(position) - 0.5)
    draw_belief(below, belief)
    for axes in (coordinates, below):
        draw_rules(axes, switch - 0.5, "predicted switch", color=QUIET, ls="--", lw=1.2)
    count = len(borders) - 1
    text = f"A trajectory of {len(position)} steps in {count} segments, its positions and belief."
    return finished(figure, title, text)


def _draw_court(axes: Axes) -> None:
    """The lines of a court, in feet: sides, middle, keys, and three points.

    These are straight three feet from the sidelines, then 23.75 feet from the basket.
    """
    angle = np.linspace(0, 2 * np.pi, 61)
    middle = LENGTH / 2
    centre = WIDTH / 2
    arc = np.linspace(-1, 1, 41) * np.arcsin((centre - 3) / 23.75)
    three_x = [0, *(5.25 + 23.75 * np.cos(arc)), 0]
    three_y = centre + 23.75 * np.sin([arc[0], *arc, arc[-1]])
    lines: list[tuple[Any, Any]] = [
        ([0, LENGTH, LENGTH, 0, 0], [0, 0, WIDTH, WIDTH, 0]),
        ([middle, middle], [0, WIDTH]),
        (middle + 6 * np.cos(angle), centre + 6 * np.sin(angle)),
    ]
    for x, y in (([0, 19, 19, 0], centre + np.array([-8, -8, 8, 8])), (three_x, three_y)):
        lines += [(x, y), (LENGTH - np.array(x), y)]
    for x, y in lines:
        axes.plot(x, y, color="#9aa5b1", lw=1.0)
