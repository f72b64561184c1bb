"""Charts as SVG and PNG: performance of methods, calibration, and the run-length belief.

Colours are safe for the colour-blind (Okabe & Ito); a method looks the same in every chart.
"""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from numpy.typing import ArrayLike, NDArray

from training.results import (
    BINS,
    Estimate,
    Reliability,
    calibration_error,
    coverage,
    distance,
    uniform_band,
)

Floats = NDArray[np.float64]
INK = "#1f2933"
QUIET = "#5f6b7a"
CURRENT = "#d55e00"  # data of the current task
EARLIER = "#009e73"  # data of earlier tasks
CHANGE = "#c8102e"  # true switches
CHOSEN = "#0072b2"  # selected times
SEGMENTS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#5f6b7a")
BELIEF = "Blues"
VALUE = "viridis"
DPI = 200
LEGEND_LETTERS = 150  # of keys and names in a row of the legend, 10 inches wide
KEY_LETTERS = 7  # of a key without its name
ACROSS = 3  # panels in a row
# Of the space between neighbouring ticks or categories, what the marks of all methods take.
SPREAD = 0.25
MARKERS = ("o", "s", "D", "^", "v", "X", "P")
FLOOR = 1e-3  # probabilities below are not drawn
STYLE = mpl.rc_params_from_file(
    Path(__file__).with_name("charts.mplstyle"), use_default_template=False
)
styled = mpl.rc_context(STYLE)  # of a function that draws: in the look of all charts


Look = dict[str, Any]  # of a method: colour, marker and line style each identify it

METHODS: dict[str, Look] = {
    "MOCA": {"color": "#0072b2", "marker": "o", "ls": "-"},
    "oracle": {"color": "#1f2933", "marker": "D", "ls": "--"},
    "SW5": {"color": "#e69f00", "marker": "s", "ls": "-"},
    "SW10": {"color": "#d55e00", "marker": "^", "ls": "-"},
    "SW50": {"color": "#cc79a7", "marker": "v", "ls": "-"},
    "TOE": {"color": "#009e73", "marker": "X", "ls": ":"},
    "COE": {"color": "#56b4e9", "marker": "P", "ls": ":"},
}
MOCA: str = METHODS["MOCA"]["color"]


def looks(methods: Collection[str]) -> dict[str, Look]:
    """Looks of methods in the paper's order, others after them, in their own order.

    Those of the paper look the same in every figure; no two of the others have one colour and one
    marker.
    """
    others = [method for method in methods if method not in METHODS]
    known = {method: look for method, look in METHODS.items() if method in methods}
    count = len(SEGMENTS)
    return known | {
        method: {
            "color": SEGMENTS[-1 - k % count],
            "marker": MARKERS[(k + k // count) % count],
            "ls": "--",
        }
        for k, method in enumerate(others)
    }


class Chart(NamedTuple):
    """A drawn figure. description: its alternative text."""

    title: str
    description: str
    figure: Figure

    def svg(self) -> bytes:
        """The figure as an SVG document."""
        written = io.BytesIO()
        with mpl.rc_context(STYLE):
            self.figure.savefig(written, format="svg", metadata={"Date": None}, dpi=DPI)
        return written.getvalue()

    def save(self, stem: Path) -> list[Path]:
        """Write `stem.svg` and `stem.png`; returns the files."""
        stem.parent.mkdir(parents=True, exist_ok=True)
        vector = stem.with_name(stem.name + ".svg")
        picture = stem.with_name(stem.name + ".png")
        vector.write_bytes(self.svg())
        about = {"Title": self.title, "Description": self.description}
        self.figure.savefig(picture, metadata=about, dpi=DPI)
        return [vector, picture]


def finished(figure: Figure, title: str, description: str) -> Chart:
    """Add the title, and below all panels one legend of all named artists."""
    figure.suptitle(title, fontsize=11, x=0.02, ha="left", color=INK)
    keys: dict[str, Any] = {}
    for axes in figure.axes:
        for key, name in zip(*axes.get_legend_handles_labels(), strict=True):
            keys.setdefault(name, key)
    if keys:
        widest = KEY_LETTERS + max(map(len, keys))
        fitting = int(figure.get_figwidth() / 10 * LEGEND_LETTERS / widest)
        legend = figure.legend(
            list(keys.values()),
            list(keys),
            loc="outside lower center",
            ncols=max(1, min(fitting, len(keys))),
        )
        for handle in legend.legend_handles:
            if isinstance(handle, PathCollection):
                handle.set_alpha(1.0)  # that of the first point may be faint
    return Chart(title, description, figure)


def colour_bar(axes: Axes, coloured: Any, label: str) -> None:
    """A colour bar beside the panel."""
    assert isinstance(axes.figure, Figure)
    bar = axes.figure.colorbar(coloured, ax=axes, pad=0.01, aspect=25, format="{x:g}")
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=7)
    bar.ax.grid(False)
    bar.outline.set_visible(False)


def reach(mean: Floats, low: Floats, high: Floats) -> Floats:
    """Lengths (2, n) of error bars: a mean may lie outside of its bootstrap interval."""
    return np.maximum([mean - low, high - mean], 0)


Curves = Mapping[str, Mapping[float, Estimate]]  # by method, then by x


def _numbers(curve: Mapping[float, Estimate]) -> Floats:
    """x, mean, low and high of a curve (4, n)."""
    return np.array([(x, *value[:3]) for x, value in curve.items()], np.float64).T


@styled
def against(curves: Curves, measure: str, title: str, setting: str) -> Chart:
    """Methods against a setting, logarithmic, with error bars."""
    figure = Figure((8, 4.3))
    axes = figure.subplots()
    settings = sorted({x for curve in curves.values() for x in curve})
    # A logarithmic axis has no 0: it is drawn a step below the smallest.
    above = [x for x in settings if x > 0]
    ratio = above[1] / above[0] if len(above) > 1 else 10.0
    place = {x: x or above[0] / ratio for x in settings}
    step = min(np.diff(np.log(list(place.values()))), default=1.0)
    axes.set_xscale("log")
    for k, (method, look) in enumerate(looks(curves).items()):
        x, mean, low, high = _numbers(curves[method])
        # Side by side, so that equal values do not hide each other.
        aside = (k - (len(curves) - 1) / 2) * SPREAD * step / len(curves)
        axes.errorbar(
            np.array([place[setting] for setting in x]) * np.exp(aside),
            mean,
            yerr=reach(mean, low, high),
            elinewidth=1.2,
            label=method,
            **look,
        )
    axes.set_xticks(list(place.values()), [f"{x:g}" for x in settings])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel=setting, ylabel=measure)
    text = f"{measure}, mean and 95 % interval of each method against {setting}."
    return finished(figure, title, text)


@styled
def over_time(panels: Mapping[str, Curves], measure: str, title: str) -> Chart:
    """Methods over time with bands of 95 %; a panel for each problem, by its name."""
    across = min(ACROSS, len(panels))
    down = math.ceil(len(panels) / across)
    figure = Figure((8, 3.6 * down + 0.6))
    grid = figure.subplots(down, across, squeeze=False).flat
    for axes, (problem, curves) in zip(grid, panels.items(), strict=False):
        for method, look in looks(curves).items():
            x, mean, low, high = _numbers(curves[method])
            axes.fill_between(x, low, high, color=look["color"], alpha=0.2, lw=0)
            axes.plot(x, mean, color=look["color"], ls=look["ls"], label=method)
        axes.set(xlabel="time (steps)", ylabel=measure, title=problem)
    for axes in list(grid):
        axes.set_visible(False)
    text = f"{measure}, mean and 95 % interval over time, {', '.join(panels)}."
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
    figure = Figure((8, 4.0))
    places = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (x, y) in zip(places, panels, strict=True):
        for method, look in looks(histories).items():
            history = histories[method]
            axes.plot(
                [record[x] for record in history],
                [record[y] for record in history],
                ms=3.5,
                label=method,
                **look,
            )
        axes.set(xlabel=LABELS[x], ylabel=LABELS[y])
    shown = "; ".join(f"{LABELS[y]} against {LABELS[x]}" for x, y in panels)
    return finished(figure, title, f"{', '.join(histories)}: {shown}.")


class Dots(NamedTuple):
    """A panel of dots: categories from top to bottom, methods beside each other in each.

    values: by category and method, in their order. measure: with its unit. floor: where the axis
    is logarithmic, what it is linear below. rule: a value that is marked, as a target.
    """

    measure: str
    values: Mapping[tuple[str, str], Estimate]
    title: str = ""
    floor: float | None = None
    rule: float | None = None


@styled
def dots(title: str, panels: Sequence[Dots], description: str) -> Chart:
    """Means with their intervals; a method looks the same in all panels, side by side."""
    methods = looks(dict.fromkeys(method for panel in panels for _, method in panel.values))
    most = max(len(panel.values) for panel in panels)
    figure = Figure((9, 1.6 + max(0.12 * most, 1.2)))
    places = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, panel in zip(places, panels, strict=True):
        _draw_dots(axes, panel, methods)
    return finished(figure, title, description)


def _draw_dots(axes: Axes, panel: Dots, methods: Mapping[str, Look]) -> None:
    categories = list(dict.fromkeys(category for category, _ in panel.values))
    own = [name for name in methods if any(method == name for _, method in panel.values)]
    if panel.rule is not None:
        axes.axvline(panel.rule, color=QUIET, ls="--", lw=1.2)
    for k, method in enumerate(own):
        # Side by side, so that equal values do not hide each other.
        aside = ((len(own) - 1) / 2 - k) * 0.7 / len(own)
        rows = [
            (len(categories) - i + aside, *panel.values[category, method][:3])
            for i, category in enumerate(categories)
            if math.isfinite(panel.values.get((category, method), NONE).mean)
        ]
        y, mean, low, high = np.array(rows).reshape(-1, 4).T
        axes.errorbar(
            mean,
            y,
            xerr=np.nan_to_num(reach(mean, low, high)),
            color=methods[method]["color"],
            marker=methods[method]["marker"],
            ls="",
            ms=5,
            elinewidth=1.2,
            capsize=0,
            label=method,
        )
    axes.set(xlabel=panel.measure, title=panel.title, ylim=(0.4, len(categories) + 0.6))
    axes.set_yticks(range(len(categories), 0, -1), categories)
    axes.grid(False, axis="y")
    if panel.floor is not None:
        axes.set_xscale("symlog", linthresh=panel.floor, linscale=0.3)
        axes.set_xlim(left=-0.5 * panel.floor)  # room for marks at 0
        axes.xaxis.set_major_formatter("{x:g}")


NONE = Estimate(math.nan, math.nan, math.nan, 0)
LEVELS = np.linspace(0.05, 0.95, 19)


@styled
def calibration(pits: Floats) -> Chart:
    """Histogram of PITs with the 95 % band of uniform ones, and coverage of central intervals.

    pits: nan where a label is missing.
    """
    pits = pits[~np.isnan(pits)]
    figure = Figure((8, 4.2))
    left, right = figure.subplots(1, 2)
    unit = BINS / len(pits)  # densities do not depend on the number of labels and bins
    heights, edges = np.histogram(pits, BINS, (0, 1))
    low, high = uniform_band(len(pits))
    colour = METHODS["COE"]["color"]
    width = 0.92 / BINS
    left.bar((edges[1:] + edges[:-1]) / 2, heights * unit, width, color=colour, label="labels")
    left.axhspan(
        low * unit, high * unit, color=CURRENT, alpha=0.3, lw=0, label="95 % of uniform, each bin"
    )
    left.axhline(1, color=QUIET, ls="--", lw=1.2)
    top = 1.1 * max(heights.max(), high) * unit
    left.set(xlabel="PIT", ylabel="density", title="PIT histogram", xlim=(0, 1), ylim=(0, top))
    _diagonal(right)
    right.plot(LEVELS, coverage(pits, LEVELS), color=MOCA, marker="o", label="coverage")
    right.set(
        xlabel="level of the central interval",
        ylabel="share of labels inside",
        title="coverage",
        xlim=(0, 1),
        ylim=(0, 1),
    )
    text = f"{len(pits)} PITs, {distance(pits):.3f} from uniform (Kolmogorov-Smirnov)."
    return finished(figure, "Calibration of the predictive", text)


@styled
def classifier(reliability: Reliability) -> Chart:
    """Accuracy against confidence, above the frequency of each confidence."""
    figure = Figure((5.6, 5.6))
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(7, 3))
    count = reliability.count
    bins = len(count)
    error = calibration_error(reliability)
    full = count > 0
    _diagonal(above)
    above.plot(
        reliability.confidence[full],
        reliability.accuracy[full],
        color=MOCA,
        marker="o",
        label="accuracy",
    )
    above.set(
        ylabel="accuracy",
        title=f"expected calibration error {error:.3f}",
        xlim=(0, 1),
        ylim=(0, 1),
    )
    below.bar((np.arange(bins) + 0.5) / bins, count / count.sum(), 0.92 / bins, color=MOCA)
    below.set(xlabel="confidence", ylabel="share of labels")
    text = f"Accuracy by confidence of {int(count.sum())} labels; calibration error {error:.3f}."
    return finished(figure, "Calibration of the classifier", text)


def _diagonal(axes: Axes) -> None:
    axes.plot((0, 1), (0, 1), color=QUIET, ls="--", lw=1.2, label="calibrated")


def draw_belief(axes: Axes, belief: Floats, switch: NDArray[np.bool_] | None = None) -> None:
    """Run-length belief (T, R) by [t, r], probabilities, as a heat map; lines at switches (T,)."""
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
    if switch is not None:
        at = np.flatnonzero(switch)
        draw_rules(axes, at[at > 0] - 0.5, "true switch", color=CHANGE, lw=1.2)


def draw_rules(axes: Axes, at: ArrayLike, name: str, **look: Any) -> None:
    """Upright lines; the first has the name."""
    for k, x in enumerate(np.asarray(at)):
        axes.axvline(x, label=name if k == 0 else None, **look)


def belief_text(switch: NDArray[np.bool_]) -> str:
    """Alternative text of a belief with its switches (T,)."""
    at = [str(time) for time in np.flatnonzero(switch) if time > 0]
    listed = ", ".join(at[:20]) + (" ..." if len(at) > 20 else "")
    return f"Run-length belief over {len(switch)} steps; tasks switch at {listed or 'no time'}."


@styled
def heat_map(belief: Floats, switch: NDArray[np.bool_]) -> Chart:
    """Run-length belief over time, with lines where tasks start."""
    figure = Figure((8, 4.2))
    draw_belief(figure.subplots(), belief, switch)
    return finished(figure, "Run-length belief", belief_text(switch))
