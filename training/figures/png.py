"""PNG of a chart: the traces of its plotly figure, drawn by matplotlib."""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.colors import LinearSegmentedColormap, LogNorm, to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from training.figures import palette
from training.figures.chart import Chart, Floats, Panel, Rules, edges

INCH = 100  # pixels of a chart's size
DPI = 200  # dots in an inch: twice as fine, for screens with two dots to a pixel
POINTS = 0.8  # points of a PNG's marker to a pixel of the page's
KEY_WIDTH, LETTER_WIDTH = 55, 6  # pixels of a key in the legend, and of each letter beside it
EDGE = (1.0, 1.0, 1.0, 0.6)  # of markers, so that those close together stay distinct
MARKERS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "triangle-down": "v",
    "x": "X",
    "cross": "P",
}
DASHES: dict[str, Any] = {"solid": "-", "dash": (0, (5, 2)), "dot": (0, (1, 1.5))}


def write(chart: Chart, made: Any, file: Path) -> None:
    """Draw the chart, with the traces of its plotly figure `made`, to a file."""
    size = (chart.width / INCH, (sum(chart.row_heights) + 60) / INCH)
    canvas = Figure(figsize=size, dpi=DPI, layout="constrained")
    FigureCanvasAgg(canvas)
    grid = canvas.add_gridspec(len(chart.rows), chart.columns, height_ratios=chart.row_heights)
    first: Axes | None = None
    for row, column, span, panel in chart.places():
        share = first if panel.linked else None
        axes = canvas.add_subplot(grid[row, column : column + span], sharex=share)
        first = axes if panel.linked and first is None else first
        # Scales first: bars and images are placed by them.
        axes.set_xscale("log" if panel.x.log else "linear")
        axes.set_yscale("log" if panel.y.log else "linear")
        for trace in made.select_traces(row=row + 1, col=column + 1):
            _DRAW[trace.type](axes, trace)
        for layer in panel.layers:
            if isinstance(layer, Rules):
                _draw_rules(axes, layer)
        _finish(axes, panel)
    canvas.suptitle(_literal(chart.title), fontsize=11, x=0.02, ha="left", color=palette.INK)
    _legend(canvas)
    canvas.savefig(file, metadata={"Title": chart.title, "Description": chart.description})


def _draw_scatter(axes: Axes, trace: Any) -> None:
    label = _literal(html.unescape(trace.name)) or None
    marker = trace.marker
    if trace.fill:
        upper = len(trace.x) // 2  # the band is one outline: the upper side, the lower backwards
        low = trace.y[upper:][::-1]
        colour = {"color": trace.fillcolor, "alpha": trace.opacity, "lw": 0, "label": label}
        axes.fill_between(trace.x[:upper], low, trace.y[:upper], **colour)
    elif trace.mode != "markers":
        look = {"color": trace.line.color, "ls": DASHES[trace.line.dash], "lw": trace.line.width}
        symbol = MARKERS[marker.symbol] if "markers" in trace.mode else ""
        look |= {"marker": symbol, "ms": POINTS * (marker.size or 0), "label": label}
        # A key without points draws nothing: matplotlib needs numbers.
        x, y = np.array([trace.x, trace.y], np.float64)
        reach = _reach(trace)
        if reach is None:
            axes.plot(x, y, **look)
        else:
            axes.errorbar(x, y, yerr=reach, elinewidth=1.2, capsize=3, **look)
    elif marker.showscale:
        colours = {"c": marker.color, "cmap": _colours(marker.colorscale), "lw": 0}
        dots = axes.scatter(trace.x, trace.y, s=marker.size**2, **colours)
        _draw_colour_bar(axes, dots, marker.colorbar)
    else:
        face = np.tile(to_rgba(marker.color), (len(trace.x), 1))
        edge = np.tile(EDGE, (len(trace.x), 1))
        face[:, 3] = marker.opacity
        edge[:, 3] *= marker.opacity
        look = {"s": (POINTS * marker.size) ** 2, "marker": MARKERS[marker.symbol], "lw": 0.4}
        colours = {"facecolors": face, "edgecolors": [tuple(one) for one in edge]}
        axes.scatter(trace.x, trace.y, label=label, zorder=3, **look, **colours)


def _draw_bars(axes: Axes, trace: Any) -> None:
    axes.bar(
        trace.x,
        trace.y,
        trace.width,
        color=trace.marker.color,
        hatch=trace.marker.pattern.shape * 3,
        edgecolor="white",
        linewidth=0.5,
        yerr=_reach(trace),
        error_kw={"elinewidth": 1, "ecolor": palette.INK},
        capsize=2,
        label=_literal(html.unescape(trace.name)) or None,
    )


def _draw_heatmap(axes: Axes, trace: Any) -> None:
    log = trace.customdata is not None
    values = np.array(trace.customdata if log else trace.z, np.float64)
    mesh = axes.pcolormesh(
        edges(trace.x),
        edges(trace.y),
        np.ma.masked_invalid(values),
        norm=LogNorm(10.0**trace.zmin, 1.0) if log else None,
        cmap=_colours(trace.colorscale),
        rasterized=True,
    )
    if trace.showscale:
        _draw_colour_bar(axes, mesh, trace.colorbar)
    if trace.texttemplate:
        for (i, j), value in np.ndenumerate(values):
            if np.isfinite(value):
                light = np.dot(mesh.to_rgba(np.array(value))[:3], (0.299, 0.587, 0.114)) > 0.5
                colour = palette.INK if light else "white"
                cell = axes.text(trace.x[j], trace.y[i], f"{value:.3g}", color=colour, size=8)
                cell.set(ha="center", va="center")


_DRAW: dict[str, Callable[[Axes, Any], None]] = {
    "scatter": _draw_scatter,
    "bar": _draw_bars,
    "heatmap": _draw_heatmap,
}


def _draw_rules(axes: Axes, layer: Rules) -> None:
    rule = axes.axvline if layer.upright else axes.axhline
    for at in layer.at:
        rule(float(at), color=layer.colour, ls=DASHES[layer.dash], lw=layer.width)


def _draw_colour_bar(axes: Axes, coloured: Any, look: Any) -> None:
    bar = axes.figure.colorbar(coloured, ax=axes, pad=0.01, aspect=25)
    bar.set_label(_literal(html.unescape(look.title.text)), fontsize=8)
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_visible(False)


def _reach(trace: Any) -> Floats | None:
    """Lengths (2, n) of error bars, below and above."""
    if trace.error_y.array is None:
        return None
    return np.array([trace.error_y.arrayminus, trace.error_y.array], np.float64)


def _colours(scale: Any) -> LinearSegmentedColormap:
    """A plotly colour scale for matplotlib."""
    stops = []
    for place, colour in scale:
        if colour.startswith("rgb"):
            channels = colour[colour.index("(") + 1 : -1].split(",")
            colour = tuple(float(channel) / 255 for channel in channels)
        stops.append((place, colour))
    return LinearSegmentedColormap.from_list("scale", stops)


def _finish(axes: Axes, panel: Panel) -> None:
    axes.set_title(_literal(panel.title), fontsize=9, loc="left", color=palette.INK)
    axes.set_xlabel(_literal(panel.x.label), fontsize=9)
    axes.set_ylabel(_literal(panel.y.label), fontsize=9)
    sides = ((panel.x, axes.xaxis, axes.set_xlim), (panel.y, axes.yaxis, axes.set_ylim))
    for axis, side, limit in sides:
        if axis.ticks:
            places, texts = zip(*axis.ticks, strict=True)
            side.set_ticks(list(places), [_literal(text) for text in texts])
            side.set_minor_locator(NullLocator())
        if axis.range is not None:
            limit(*axis.range)
        if axis.grid:
            side.grid(True, color=palette.GRID, lw=0.6)
    axes.tick_params(labelsize=8, colors=palette.QUIET, labelcolor=palette.INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(palette.QUIET)
    axes.set_axisbelow(True)
    if panel.equal:
        axes.set_aspect("equal", adjustable="box")


def _legend(canvas: Figure) -> None:
    """One legend for all panels."""
    keys: dict[str, Any] = {}
    for axes in canvas.axes:
        for key, name in zip(*axes.get_legend_handles_labels(), strict=True):
            keys.setdefault(name, key)
    if keys:
        legend = canvas.legend(
            list(keys.values()),
            list(keys),
            loc="outside lower center",
            ncols=_legend_columns(canvas, list(keys)),
            frameon=False,
            fontsize=9,
        )
        for handle in legend.legend_handles:
            if isinstance(handle, PathCollection):
                handle.set_alpha(1.0)  # that of the first point may be faint


def _legend_columns(canvas: Figure, names: list[str]) -> int:
    """Columns of keys that fit into the width, at most 7."""
    widest = KEY_WIDTH + LETTER_WIDTH * max(map(len, names))
    return max(1, min(len(names), 7, int(canvas.get_figwidth() * INCH / widest)))


def _literal(text: str) -> str:
    """Text that matplotlib does not read as mathematics."""
    return text.replace("$", r"\$")
