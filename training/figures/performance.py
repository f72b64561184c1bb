"""Performance of methods: against settings, over time, in categories, while training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from training.figures.drawing import (
    INK,
    QUIET,
    SEGMENTS,
    VALUE,
    Chart,
    Floats,
    canvas,
    colour_bar,
    finished,
    look,
    ordered,
    reach,
    row,
    styled,
)
from training.statistics import Estimate

HAZARD = "hazard (changes per step)"
ACROSS = 3  # panels in a row
# Of the space between neighbouring ticks or categories, what the marks of all methods take.
SPREAD = 0.25
MARKERS = ("o", "s", "D", "^", "v", "X", "P")
# Trained without and tested without, without and with, with and without, with and with.
CROSSED = (("#0072b2", ""), ("#cc79a7", "///"), ("#009e73", ""), ("#5f6b7a", "///"))


class Curve(NamedTuple):
    """A method's mean with its interval at each x; all (n,)."""

    method: str
    x: Floats
    mean: Floats
    low: Floats
    high: Floats


def curve(method: str, x: Sequence[float], estimates: Sequence[Estimate]) -> Curve:
    """A curve of one estimate at each x."""
    numbers = np.array([(one.mean, one.low, one.high) for one in estimates], np.float64)
    return Curve(method, np.asarray(x, np.float64), *numbers.T)


def _in_order(curves: Sequence[Curve]) -> list[Curve]:
    by_name = {one.method: one for one in curves}
    return [by_name[name] for name in ordered(by_name)]


@styled
def against(
    curves: Sequence[Curve],
    measure: str,
    title: str = "Performance against hazard",
    setting: str = HAZARD,
) -> Chart:
    """Methods against a setting, logarithmic, with error bars."""
    figure, (axes,) = row(8, 4.3, 1)
    settings = sorted({float(x) for one in curves for x in one.x})
    # A logarithmic axis has no 0: it is drawn a step below the smallest.
    above = [x for x in settings if x > 0]
    ratio = above[1] / above[0] if len(above) > 1 else 10.0
    place = {x: x or above[0] / ratio for x in settings}
    step = min(np.diff(np.log(list(place.values()))), default=1.0)
    axes.set_xscale("log")
    for k, one in enumerate(_in_order(curves)):
        style = look(one.method)
        # Side by side, so that equal values do not hide each other.
        aside = (k - (len(curves) - 1) / 2) * SPREAD * step / len(curves)
        axes.errorbar(
            np.array([place[float(x)] for x in one.x]) * np.exp(aside),
            one.mean,
            yerr=reach(one.mean, one.low, one.high),
            color=style.colour,
            ls=style.line,
            marker=style.marker,
            elinewidth=1.2,
            label=one.method,
        )
    axes.set_xticks(list(place.values()), [f"{x:g}" for x in settings])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel=setting, ylabel=measure)
    text = f"{measure}, mean and 95 % interval of each method against {setting}."
    return finished(figure, title, text)


@styled
def over_time(panels: Mapping[str, Sequence[Curve]], measure: str, title: str) -> Chart:
    """Methods over time with bands of 95 %; a panel for each problem, by its name."""
    across = min(ACROSS, len(panels))
    down = math.ceil(len(panels) / across)
    figure = canvas(8, 3.6 * down + 0.6)
    grid = figure.subplots(down, across, squeeze=False).flat
    for axes, (problem, curves) in zip(grid, panels.items(), strict=False):
        for one in _in_order(curves):
            style = look(one.method)
            axes.fill_between(one.x, one.low, one.high, color=style.colour, alpha=0.2, lw=0)
            axes.plot(one.x, one.mean, color=style.colour, ls=style.line, label=one.method)
        axes.set(xlabel="time (steps)", ylabel=measure, title=problem)
    for axes in list(grid):
        axes.set_visible(False)
    text = f"{measure}, mean and 95 % interval over time, {', '.join(panels)}."
    return finished(figure, title, text)


@styled
def table(
    values: Floats,
    rows: tuple[str, Sequence[float]],
    columns: tuple[str, Sequence[float]],
    measure: str,
    title: str,
) -> Chart:
    """Values (rows, columns) by two settings, each with its label, as a heat map."""
    figure, (axes,) = row(6.4, 4.8, 1)
    mesh = axes.pcolormesh(np.ma.masked_invalid(values), cmap=VALUE)
    for (i, j), value in np.ndenumerate(values):
        if np.isfinite(value):
            light = np.dot(mesh.to_rgba(np.array(value))[:3], (0.299, 0.587, 0.114)) > 0.5
            colour = INK if light else "white"
            axes.text(j + 0.5, i + 0.5, f"{value:.3g}", color=colour, size=8, ha="center")
    axes.set_xticks(np.arange(len(columns[1])) + 0.5, [f"{value:g}" for value in columns[1]])
    axes.set_yticks(np.arange(len(rows[1])) + 0.5, [f"{value:g}" for value in rows[1]])
    axes.grid(False)
    axes.set(xlabel=columns[0], ylabel=rows[0])
    colour_bar(axes, mesh, measure)
    return finished(figure, title, f"{measure} by {rows[0]} (rows) and {columns[0]} (columns).")


@styled
def grouped(curves: Sequence[Curve], measure: str, title: str) -> Chart:
    """Bars of methods side by side at each hazard; all curves have the same x."""
    figure, (axes,) = row(8, 4.3, 1)
    places = np.arange(len(curves[0].x))
    width = 0.84 / len(curves)
    for k, one in enumerate(curves):
        colour, hatch = CROSSED[k % len(CROSSED)]
        axes.bar(
            places + (k - (len(curves) - 1) / 2) * width,
            one.mean,
            0.92 * width,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            linewidth=0.5,
            yerr=reach(one.mean, one.low, one.high),
            error_kw={"elinewidth": 1, "ecolor": INK, "capsize": 2},
            label=one.method,
        )
    axes.set_xticks(places, [f"{x:g}" for x in curves[0].x])
    axes.grid(False, axis="x")
    axes.set(xlabel=HAZARD, ylabel=measure)
    text = f"{measure} at each hazard, bars with 95 % intervals."
    return finished(figure, title, text)


LABELS = {
    "iteration": "iteration",
    "elapsed_s": "time of training (s)",
    "nll": "validation NLL (nats)",
    "accuracy": "validation accuracy",
}
BY_ITERATION_AND_TIME = (("iteration", "nll"), ("elapsed_s", "nll"))


@styled
def validation(
    histories: Mapping[str, Sequence[Mapping[str, float]]],
    title: str,
    panels: Sequence[tuple[str, str]] = BY_ITERATION_AND_TIME,
) -> Chart:
    """Validations of each method while it trained; panels: names of x and y in the histories."""
    figure, places = row(8, 4.0, len(panels))
    for axes, (x, y) in zip(places, panels, strict=True):
        for method in ordered(histories):
            style = look(method)
            history = histories[method]
            axes.plot(
                [record[x] for record in history],
                [record[y] for record in history],
                color=style.colour,
                ls=style.line,
                marker=style.marker,
                ms=3.5,
                label=method,
            )
        axes.set(xlabel=LABELS[x], ylabel=LABELS[y])
    shown = "; ".join(f"{LABELS[y]} against {LABELS[x]}" for x, y in panels)
    return finished(figure, title, f"{', '.join(histories)}: {shown}.")


class Dots(NamedTuple):
    """A panel of dots: categories from top to bottom, methods beside each other in each.

    values: by category and method, in their order. measure: with its unit. floor: where the axis
    is logarithmic, what values below are drawn at. rule: a value that is marked, as a target.
    """

    measure: str
    values: Mapping[tuple[str, str], Estimate]
    title: str = ""
    floor: float | None = None
    rule: float | None = None


@styled
def dots(title: str, panels: Sequence[Dots], description: str) -> Chart:
    """Means with their intervals; a method looks the same in all panels, side by side."""
    methods = list(dict.fromkeys(method for panel in panels for _, method in panel.values))
    most = max(len(panel.values) for panel in panels)
    figure, places = row(9, 1.6 + max(0.12 * most, 1.2), len(panels))
    for axes, panel in zip(places, panels, strict=True):
        _draw_dots(axes, panel, methods)
    return finished(figure, title, description)


def _draw_dots(axes: Axes, panel: Dots, methods: Sequence[str]) -> None:
    categories = list(dict.fromkeys(category for category, _ in panel.values))
    own = [name for name in methods if any(method == name for _, method in panel.values)]
    floor = -math.inf if panel.floor is None else panel.floor
    if panel.rule is not None:
        axes.axvline(panel.rule, color=QUIET, ls="--", lw=1.2)
    for k, method in enumerate(own):
        at = methods.index(method)
        # Side by side, so that equal values do not hide each other.
        aside = ((len(own) - 1) / 2 - k) * 0.7 / len(own)
        rows = [
            (len(categories) - i + aside, panel.values[category, method])
            for i, category in enumerate(categories)
            if math.isfinite(panel.values.get((category, method), NONE).mean)
        ]
        y = [height for height, _ in rows]
        mean = np.array([max(value.mean, floor) for _, value in rows])
        ends = [(v.mean, v.mean) if math.isnan(v.low) else (v.low, v.high) for _, v in rows]
        low, high = np.maximum(np.array(ends).reshape(-1, 2).T, floor)
        axes.errorbar(
            mean,
            y,
            xerr=reach(mean, low, high),
            color=SEGMENTS[at % len(SEGMENTS)],
            ls="",
            # No two methods have one colour and one marker.
            marker=MARKERS[(at + at // len(SEGMENTS)) % len(MARKERS)],
            ms=5,
            elinewidth=1.2,
            capsize=0,
            label=method,
        )
    axes.set(xlabel=panel.measure, title=panel.title, ylim=(0.4, len(categories) + 0.6))
    axes.set_yticks(range(len(categories), 0, -1), categories)
    axes.grid(False, axis="y")
    if panel.floor is not None:
        top = max([value.mean for value in panel.values.values()] + [10 * panel.floor])
        tens = 10.0 ** np.arange(
            math.ceil(math.log10(2 * panel.floor)), math.ceil(math.log10(top)) + 1
        )
        axes.set_xscale("log")
        axes.set_xlim(0.8 * panel.floor, 1.5 * tens[-1])
        names = [f"≤ {panel.floor:g}", *(f"{ten:g}" for ten in tens)]
        axes.set_xticks([panel.floor, *tens], names)
        axes.xaxis.set_minor_locator(NullLocator())


NONE = Estimate(math.nan, math.nan, math.nan, 0)
