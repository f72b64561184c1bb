"""Charts as PNG, by matplotlib."""

from __future__ import annotations

from functools import singledispatch
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.colors import LogNorm, to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from training.figures import palette
from training.figures.chart import (
    Axis,
    Band,
    Bars,
    Chart,
    Coloured,
    Image,
    Layer,
    Line,
    Panel,
    Points,
    Rules,
    edges,
    shown,
)

INCH = 100  # pixels of a chart's size
DPI = 200  # dots in an inch: twice as fine, for screens that are
SYMBOLS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "triangle-down": "v",
    "x": "X",
    "cross": "P",
}
EDGE = (1.0, 1.0, 1.0, 0.6)  # of symbols, so that those close together can be told apart
DASHES: dict[str, Any] = {"solid": "-", "dash": (0, (5, 2)), "dot": (0, (1, 1.5))}


def write(chart: Chart, file: Path) -> None:
    """Draw the chart to a file."""
    size = (chart.width / INCH, (sum(chart.row_heights) + 60) / INCH)
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(len(chart.rows), chart.columns, height_ratios=chart.row_heights)
    first: Axes | None = None
    for row, column, span, panel in chart.places():
        share = first if panel.linked else None
        axes = figure.add_subplot(grid[row, column : column + span], sharex=share)
        first = axes if panel.linked and first is None else first
        _prepare(axes, panel)
        for layer in panel.layers:
            draw(layer, axes)
        _finish(axes, panel)
    figure.suptitle(_plain(chart.title), fontsize=11, x=0.02, ha="left", color=palette.INK)
    _key(figure)
    figure.savefig(file, metadata={"Title": chart.title, "Description": chart.description})


def _prepare(axes: Axes, panel: Panel) -> None:
    # Scales first: bars and images are placed by them.
    axes.set_xscale("log" if panel.x.log else "linear")
    axes.set_yscale("log" if panel.y.log else "linear")


def _finish(axes: Axes, panel: Panel) -> None:
    axes.set_title(_plain(panel.title), fontsize=9, loc="left", color=palette.INK)
    axes.set_xlabel(_plain(panel.x.label), fontsize=9)
    axes.set_ylabel(_plain(panel.y.label), fontsize=9)
    _scale(axes, panel.x, "x")
    _scale(axes, panel.y, "y")
    axes.tick_params(labelsize=8, colors=palette.QUIET, labelcolor=palette.INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(palette.QUIET)
    axes.set_axisbelow(True)
    if panel.equal:
        axes.set_aspect("equal", adjustable="box")


def _scale(axes: Axes, axis: Axis, which: str) -> None:
    side = axes.xaxis if which == "x" else axes.yaxis
    if axis.ticks:
        places, texts = zip(*axis.ticks, strict=True)
        side.set_ticks(list(places), [_plain(text) for text in texts])
        side.set_minor_locator(NullLocator())
    if axis.range is not None:
        (axes.set_xlim if which == "x" else axes.set_ylim)(*axis.range)
    if axis.grid:
        side.grid(True, color=palette.GRID, lw=0.6)


def _key(figure: Figure) -> None:
    """One key for all panels."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(name, handle)
    if found:
        key = figure.legend(
            list(found.values()),
            list(found),
            loc="outside lower center",
            ncols=min(len(found), 7),
            frameon=False,
            fontsize=9,
        )
        for shown in key.legend_handles:
            if isinstance(shown, PathCollection):
                shown.set_alpha(1.0)  # that of the first point may be faint


@singledispatch
def draw(layer: Layer, axes: Axes) -> None:
    """Draw a layer."""
    raise TypeError(f"expected a layer, got {type(layer).__name__}")


@draw.register
def _(layer: Line, axes: Axes) -> None:
    look: dict[str, Any] = {
        "color": layer.colour,
        "ls": DASHES[layer.dash],
        "lw": layer.width,
        "marker": SYMBOLS.get(layer.symbol, ""),
        "ms": 5,
        "label": _plain(layer.name) or None,
    }
    if layer.low is None or layer.high is None:
        axes.plot(layer.x, layer.y, **look)
        return
    # A mean may lie outside its bootstrap interval; an error bar may not.
    reach = np.maximum([layer.y - layer.low, layer.high - layer.y], 0)
    axes.errorbar(layer.x, layer.y, yerr=reach, elinewidth=1.2, capsize=3, **look)


@draw.register
def _(layer: Band, axes: Axes) -> None:
    axes.fill_between(
        layer.x,
        layer.low,
        layer.high,
        color=layer.colour,
        alpha=layer.opacity,
        lw=0,
        label=_plain(layer.name) or None,
    )


@draw.register
def _(layer: Points, axes: Axes) -> None:
    if not len(layer.x):
        return  # nor a key, which would be blank
    colour = np.tile(to_rgba(layer.colour), (len(layer.x), 1))
    colour[:, 3] = layer.opacity
    edge = np.tile(EDGE, (len(layer.x), 1))
    edge[:, 3] *= layer.opacity
    axes.scatter(
        layer.x,
        layer.y,
        s=layer.size**2,
        facecolors=colour,
        marker=SYMBOLS[layer.symbol],
        lw=0.4,
        edgecolors=[tuple(each) for each in edge],
        label=_plain(layer.name) or None,
        zorder=3,
    )


@draw.register
def _(layer: Coloured, axes: Axes) -> None:
    shown = axes.scatter(
        layer.x, layer.y, s=layer.size**2, c=layer.value, cmap=layer.scale.lower(), lw=0
    )
    _bar(axes, shown, layer.label)


@draw.register
def _(layer: Bars, axes: Axes) -> None:
    reach = None
    if layer.low is not None and layer.high is not None:
        reach = np.maximum([layer.y - layer.low, layer.high - layer.y], 0)
    axes.bar(
        layer.x,
        layer.y,
        layer.width,
        color=layer.colour,
        hatch=layer.hatch * 3,
        edgecolor="white",
        linewidth=0.5,
        yerr=reach,
        error_kw={"elinewidth": 1, "ecolor": palette.INK},
        capsize=2,
        label=_plain(layer.name) or None,
    )


@draw.register
def _(layer: Image, axes: Axes) -> None:
    values = np.ma.masked_invalid(shown(layer))
    mesh = axes.pcolormesh(
        edges(layer.x),
        edges(layer.y),
        values,
        norm=LogNorm(layer.floor, 1.0) if layer.log else None,
        cmap=layer.scale if layer.scale == palette.BELIEF else layer.scale.lower(),
        rasterized=True,
    )
    if layer.label:
        _bar(axes, mesh, layer.label)
    if layer.written:
        _write_cells(axes, layer)


def _write_cells(axes: Axes, layer: Image) -> None:
    low, high = np.nanmin(layer.z), np.nanmax(layer.z)
    for i, y in enumerate(layer.y):
        for j, x in enumerate(layer.x):
            value = float(layer.z[i, j])
            dark = (value - low) > 0.5 * (high - low)
            # Blues end dark, Viridis ends light.
            pale = dark == (layer.scale == palette.BELIEF)
            colour = "white" if pale else palette.INK
            if np.isfinite(value):
                axes.text(x, y, f"{value:.3g}", ha="center", va="center", color=colour, size=8)


@draw.register
def _(layer: Rules, axes: Axes) -> None:
    rule = axes.axvline if layer.upright else axes.axhline
    for k, at in enumerate(layer.at):
        name = _plain(layer.name) if k == 0 else ""
        dash = DASHES[layer.dash]
        rule(float(at), color=layer.colour, ls=dash, lw=layer.width, label=name or None)


def _bar(axes: Axes, shown: Any, label: str) -> None:
    figure = axes.figure
    bar = figure.colorbar(shown, ax=axes, pad=0.01, aspect=25)
    bar.set_label(_plain(label), fontsize=8)
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_visible(False)


def _plain(text: str) -> str:
    """Text that is not read as mathematics."""
    return text.replace("$", r"\$")
