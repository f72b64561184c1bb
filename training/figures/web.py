"""Charts as interactive figures, by plotly."""

from __future__ import annotations

import html
from functools import singledispatch
from typing import Any

import numpy as np
from plotly import graph_objects, subplots

from training.figures import palette
from training.figures.chart import (
    Axis,
    Band,
    Bars,
    Chart,
    Coloured,
    Floats,
    Image,
    Layer,
    Line,
    Panel,
    Points,
    Rules,
    shown,
)

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


class _Place:
    """Where in a figure a layer goes."""

    def __init__(self, figure: Any, row: int, column: int) -> None:
        self.figure, self.row, self.column = figure, row, column

    def add(self, trace: Any) -> None:
        """Add a trace; of one name only the first has a key."""
        names = {each.name for each in self.figure.data}
        known = not trace.name or trace.name in names
        trace.update(showlegend=not known, legendgroup=trace.name or None)
        self.figure.add_trace(trace, self.row, self.column)

    def bar(self, label: str) -> dict[str, Any]:
        """A colour bar beside the panel."""
        axes = self.figure.get_subplot(self.row, self.column)
        low, high = axes.yaxis.domain
        title = {"text": _plain(label), "side": "right", "font": {"size": 11}}
        place = {"x": axes.xaxis.domain[1] + 0.005, "y": (low + high) / 2, "len": high - low}
        return {**place, "title": title, "thickness": 10, "outlinewidth": 0, "xpad": 2}


def figure(chart: Chart) -> Any:
    """The chart as a plotly figure."""
    made = _grid(chart)
    for row, column, _, panel in chart.places():
        place = _Place(made, row + 1, column + 1)
        for layer in panel.layers:
            draw(layer, place)
        _finish(place, panel)
    _link(made, chart)
    keys = any(trace.showlegend for trace in made.data)
    top = 44 if any(panel.title for panel in chart.rows[0]) else 24
    bottom = 90 if keys else 50
    made.update_layout(
        template="plotly_white",
        font={"family": FONT, "size": 12, "color": palette.INK},
        height=sum(chart.row_heights) + top + bottom,
        margin={"l": 60, "r": 20, "t": top, "b": bottom},
        legend={"orientation": "h", "y": 0, "yref": "container", "yanchor": "bottom", "x": 0},
        bargap=0,
        barmode="overlay",
        hovermode="closest",
    )
    return made


def _grid(chart: Chart) -> Any:
    rows, columns = len(chart.rows), chart.columns
    specs: list[list[Any]] = [[None] * columns for _ in range(rows)]
    titles = []
    for row, column, span, panel in chart.places():
        right = 0.09 if _has_bar(panel) and column + span < columns else 0.0
        specs[row][column] = {"colspan": span, "r": right}
        titles.append(_plain(panel.title))
    made = subplots.make_subplots(
        rows,
        columns,
        specs=specs,
        subplot_titles=titles,
        row_heights=[float(each) for each in chart.row_heights],
        horizontal_spacing=min(0.07, 0.3 / columns),
        vertical_spacing=min(0.16, 70 / sum(chart.row_heights)),
    )
    made.update_annotations(font_size=12)
    return made


def _has_bar(panel: Panel) -> bool:
    return any(isinstance(each, (Image, Coloured)) and each.label for each in panel.layers)


def _finish(place: _Place, panel: Panel) -> None:
    where = {"row": place.row, "col": place.column}
    place.figure.update_xaxes(**_axis(panel.x), **where)
    place.figure.update_yaxes(**_axis(panel.y), **where)
    if panel.equal:
        name = place.figure.get_subplot(place.row, place.column).xaxis.plotly_name
        anchor = name.replace("axis", "")
        place.figure.update_yaxes(scaleanchor=anchor, constrain="domain", **where)
        place.figure.update_xaxes(constrain="domain", **where)


def _axis(axis: Axis) -> dict[str, Any]:
    said: dict[str, Any] = {
        "title": {"text": _plain(axis.label), "standoff": 6},
        "type": "log" if axis.log else "linear",
        "showgrid": axis.grid,
        "gridcolor": palette.GRID,
        "zeroline": False,
        "showline": True,
        "linecolor": palette.QUIET,
    }
    if axis.range is not None:
        said["range"] = [float(np.log10(v)) if axis.log else v for v in axis.range]
    if axis.ticks:
        said["tickvals"] = [place for place, _ in axis.ticks]
        said["ticktext"] = [_plain(text) for _, text in axis.ticks]
    return said


def _link(made: Any, chart: Chart) -> None:
    linked = [(row + 1, column + 1) for row, column, _, panel in chart.places() if panel.linked]
    for place in linked[1:]:
        first = made.get_subplot(*linked[0]).xaxis.plotly_name.replace("axis", "")
        made.update_xaxes(matches=first, row=place[0], col=place[1])


@singledispatch
def draw(layer: Layer, place: _Place) -> None:
    """Add a layer."""
    raise TypeError(f"expected a layer, got {type(layer).__name__}")


@draw.register
def _(layer: Line, place: _Place) -> None:
    trace = graph_objects.Scatter(
        x=layer.x,
        y=layer.y,
        name=_plain(layer.name),
        mode="lines+markers" if layer.symbol else "lines",
        line={"color": layer.colour, "dash": layer.dash, "width": layer.width},
        marker={"symbol": layer.symbol or "circle", "size": 7},
    )
    trace.update(error_y=_errors(layer.y, layer.low, layer.high, layer.colour))
    place.add(trace)


@draw.register
def _(layer: Band, place: _Place) -> None:
    colour = _faint(layer.colour, layer.opacity)
    place.add(
        graph_objects.Scatter(
            x=np.concatenate([layer.x, layer.x[::-1]]),
            y=np.concatenate([layer.high, layer.low[::-1]]),
            name=_plain(layer.name),
            mode="lines",
            line={"width": 0, "color": colour},
            fill="toself",
            fillcolor=colour,
            hoverinfo="skip",
        )
    )


@draw.register
def _(layer: Points, place: _Place) -> None:
    if not len(layer.x):
        return
    look = {"color": layer.colour, "symbol": layer.symbol, "size": layer.size + 1}
    edge = {"color": "white", "width": 0.5}
    place.add(
        graph_objects.Scatter(
            x=layer.x,
            y=layer.y,
            name=_plain(layer.name),
            mode="markers",
            marker={**look, "opacity": layer.opacity, "line": edge},
        )
    )


@draw.register
def _(layer: Coloured, place: _Place) -> None:
    look = {"color": layer.value, "colorscale": layer.scale, "size": layer.size}
    place.add(
        graph_objects.Scatter(
            x=layer.x,
            y=layer.y,
            mode="markers",
            marker={**look, "showscale": True, "colorbar": place.bar(layer.label)},
        )
    )


@draw.register
def _(layer: Bars, place: _Place) -> None:
    trace = graph_objects.Bar(
        x=layer.x,
        y=layer.y,
        width=layer.width,
        name=_plain(layer.name),
        marker={"color": layer.colour, "pattern": {"shape": layer.hatch}},
    )
    trace.update(error_y=_errors(layer.y, layer.low, layer.high, palette.INK))
    place.add(trace)


@draw.register
def _(layer: Image, place: _Place) -> None:
    z = shown(layer)
    trace = graph_objects.Heatmap(
        x=layer.x, y=layer.y, z=z, colorscale=layer.scale, showscale=bool(layer.label)
    )
    trace.update(hoverongaps=False, hovertemplate="x %{x}<br>y %{y}<br>%{z:.4g}<extra></extra>")
    bar = place.bar(layer.label)
    if layer.log:
        low = float(np.log10(layer.floor))
        tens = np.arange(np.ceil(low), 1)
        bar.update(tickvals=tens, ticktext=[f"{10.0**each:g}" for each in tens])
        trace.update(z=np.log10(z), customdata=z, zmin=low, zmax=0.0)
        trace.update(hovertemplate="x %{x}<br>y %{y}<br>%{customdata:.4g}<extra></extra>")
    if layer.label:
        trace.update(colorbar=bar)
    if layer.written:
        trace.update(texttemplate="%{z:.3g}")
    place.add(trace)


@draw.register
def _(layer: Rules, place: _Place) -> None:
    look = {"color": layer.colour, "dash": layer.dash, "width": layer.width}
    rule = place.figure.add_vline if layer.upright else place.figure.add_hline
    for at in layer.at:
        rule(float(at), line=look, row=place.row, col=place.column, exclude_empty_subplots=False)
    if layer.name and len(layer.at):
        name = _plain(layer.name)
        place.add(graph_objects.Scatter(x=[None], y=[None], name=name, mode="lines", line=look))


def _errors(
    middle: Floats, low: Floats | None, high: Floats | None, colour: str
) -> dict[str, Any] | None:
    if low is None or high is None:
        return None
    up, down = np.maximum(high - middle, 0), np.maximum(middle - low, 0)
    look = {"color": colour, "thickness": 1.2, "width": 3}
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, **look}


def _faint(colour: str, opacity: float) -> str:
    red, green, blue = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def _plain(text: str) -> str:
    """Text that is not read as markup, which plotly would."""
    return html.escape(text, quote=False)
