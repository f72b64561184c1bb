"""Renderer of charts: one plotly figure of each, written as a self-contained web page and as PNG.

`png` draws the traces of that same figure: plotly's own export needs a browser.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from plotly import graph_objects, io, offline, subplots

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
    Points,
    Rules,
    shown,
)

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
# The browser then refuses whatever a page might still ask of the network.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)


def save(chart: Chart, stem: Path) -> list[Path]:
    """Write the chart as `stem.html` and `stem.png`; returns the files."""
    from training.figures import png  # matplotlib, which pages do without

    web_page = stem.with_name(stem.name + ".html")
    picture = stem.with_name(stem.name + ".png")
    stem.parent.mkdir(parents=True, exist_ok=True)
    drawn = figure(chart)
    web_page.write_text(_page(chart, drawn), "utf-8")
    png.write(chart, drawn, picture)
    return [web_page, picture]


def div(chart: Chart, identity: str, drawn: Any = None) -> str:
    """The chart as a part of a page that has `library` before it."""
    config = {"responsive": True, "displaylogo": False}
    inner: str = io.to_html(
        drawn or figure(chart), config, include_plotlyjs=False, full_html=False, div_id=identity
    )
    label = html.escape(chart.description)
    return f'<div class="chart" role="figure" aria-label="{label}">{inner}</div>'


def library() -> str:
    """The script that `div`s need, once in a page."""
    return f"<script>{offline.get_plotlyjs()}</script>"


def document(title: str, style: str, content: str, scripts: str = "") -> str:
    """A page that loads nothing; `content` and `scripts` are HTML."""
    title = html.escape(title)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
{scripts}
</head>
<body>
<main>
<h1>{title}</h1>
{content}</main>
</body>
</html>
"""


def _page(chart: Chart, drawn: Any) -> str:
    style = f"""body {{ font: 16px/1.5 {FONT}; max-width: {chart.width + 160}px; margin: 2rem auto;
padding: 0 1rem; color: {palette.INK}; background: #fff; }} h1 {{ font-size: 1.3rem; }}"""
    content = f"{div(chart, 'chart', drawn)}\n<p>{html.escape(chart.description)}</p>\n"
    return document(chart.title, style, content, library())


def figure(chart: Chart) -> Any:
    """The chart as a plotly figure."""
    made = _grid(chart)
    linked = ""
    for row, column, _, panel in chart.places():
        where = {"row": row + 1, "col": column + 1}
        for layer in panel.layers:
            _add(made, layer, where)
        made.update_xaxes(**_axis(panel.x), **where)
        made.update_yaxes(**_axis(panel.y), **where)
        name = _subplot(made, where).xaxis.plotly_name.replace("axis", "")
        if panel.equal:
            made.update_yaxes(scaleanchor=name, constrain="domain", **where)
            made.update_xaxes(constrain="domain", **where)
        if panel.linked and linked:
            made.update_xaxes(matches=linked, **where)
        elif panel.linked:
            linked = name
    top = 44 if any(panel.title for panel in chart.rows[0]) else 24
    bottom = 90 if any(trace.showlegend for trace in made.data) else 50
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
    specs: list[list[Any]] = [[None] * chart.columns for _ in chart.rows]
    for row, column, span, panel in chart.places():
        bar = any(isinstance(layer, (Image, Coloured)) and layer.label for layer in panel.layers)
        right = 0.09 if bar and column + span < chart.columns else 0.0
        specs[row][column] = {"colspan": span, "r": right}
    made = subplots.make_subplots(
        len(chart.rows),
        chart.columns,
        specs=specs,
        subplot_titles=[_escaped(panel.title) for *_, panel in chart.places()],
        row_heights=[float(height) for height in chart.row_heights],
        horizontal_spacing=min(0.07, 0.3 / chart.columns),
        vertical_spacing=min(0.16, 70 / sum(chart.row_heights)),
    )
    made.update_annotations(font_size=12)
    return made


def _subplot(made: Any, where: Mapping[str, int]) -> Any:
    return made.get_subplot(where["row"], where["col"])


def _axis(axis: Axis) -> dict[str, Any]:
    look: dict[str, Any] = {
        "title": {"text": _escaped(axis.label), "standoff": 6},
        "type": "log" if axis.log else "linear",
        "showgrid": axis.grid,
        "gridcolor": palette.GRID,
        "zeroline": False,
        "showline": True,
        "linecolor": palette.QUIET,
    }
    if axis.range is not None:
        look["range"] = [float(np.log10(v)) if axis.log else v for v in axis.range]
    if axis.ticks:
        look["tickvals"] = [place for place, _ in axis.ticks]
        look["ticktext"] = [_escaped(text) for _, text in axis.ticks]
    return look


def _add(made: Any, layer: Layer, where: Mapping[str, int]) -> None:
    """Add a layer's trace; of several with one name only the first has a key in the legend."""
    if isinstance(layer, Rules):
        rule = made.add_vline if layer.upright else made.add_hline
        for at in layer.at:
            rule(float(at), line=_stroke(layer), exclude_empty_subplots=False, **where)
    trace = _TRACES[type(layer)](layer)
    if trace is None:
        return
    if getattr(layer, "label", ""):
        bar = _colour_bar(made, layer.label, where)  # type: ignore[union-attr]
        (trace.marker if trace.type == "scatter" else trace).colorbar.update(bar)
    name = _escaped(getattr(layer, "name", ""))
    key = bool(name) and name not in {other.name for other in made.data}
    trace.update(name=name, showlegend=key, legendgroup=name or None)
    made.add_trace(trace, **where)


def _colour_bar(made: Any, label: str, where: Mapping[str, int]) -> dict[str, Any]:
    """A colour bar beside the panel."""
    axes = _subplot(made, where)
    low, high = axes.yaxis.domain
    title = {"text": _escaped(label), "side": "right", "font": {"size": 11}}
    place = {"x": axes.xaxis.domain[1] + 0.005, "y": (low + high) / 2, "len": high - low}
    return {**place, "title": title, "thickness": 10, "outlinewidth": 0, "xpad": 2}


def _line(layer: Line) -> Any:
    return graph_objects.Scatter(
        x=layer.x,
        y=layer.y,
        mode="lines+markers" if layer.symbol else "lines",
        line=_stroke(layer),
        marker={"symbol": layer.symbol or "circle", "size": 7},
        error_y=_errors(layer, layer.colour),
    )


def _band(layer: Band) -> Any:
    return graph_objects.Scatter(
        x=np.concatenate([layer.x, layer.x[::-1]]),
        y=np.concatenate([layer.high, layer.low[::-1]]),
        mode="lines",
        line={"width": 0, "color": layer.colour},
        fill="toself",
        fillcolor=layer.colour,
        opacity=layer.opacity,
        hoverinfo="skip",
    )


def _points(layer: Points) -> Any:
    if not len(layer.x):
        return None
    look = {"color": layer.colour, "symbol": layer.symbol, "size": layer.size + 1}
    edge = {"color": "white", "width": 0.5}
    marker = {**look, "opacity": layer.opacity, "line": edge}
    return graph_objects.Scatter(x=layer.x, y=layer.y, mode="markers", marker=marker)


def _coloured(layer: Coloured) -> Any:
    look = {"color": layer.value, "colorscale": layer.scale, "size": layer.size}
    marker = {**look, "showscale": True, "symbol": "circle"}
    return graph_objects.Scatter(x=layer.x, y=layer.y, mode="markers", marker=marker)


def _bars(layer: Bars) -> Any:
    return graph_objects.Bar(
        x=layer.x,
        y=layer.y,
        width=layer.width,
        marker={"color": layer.colour, "pattern": {"shape": layer.hatch}},
        error_y=_errors(layer, palette.INK),
    )


def _image(layer: Image) -> Any:
    z = shown(layer)
    trace = graph_objects.Heatmap(
        x=layer.x, y=layer.y, z=z, colorscale=layer.scale, showscale=bool(layer.label)
    )
    value = "z"
    if layer.log:
        low = float(np.log10(layer.floor))
        tens = np.arange(np.ceil(low), 1)
        value = "customdata"
        trace.update(z=np.log10(z), customdata=z, zmin=low, zmax=0.0)
        trace.colorbar.update(tickvals=tens, ticktext=[f"{10.0**ten:g}" for ten in tens])
    hover = f"x %{{x}}<br>y %{{y}}<br>%{{{value}:.4g}}<extra></extra>"
    trace.update(hoverongaps=False, hovertemplate=hover)
    if layer.written:
        trace.update(texttemplate="%{z:.3g}")
    return trace


def _rules_key(layer: Rules) -> Any:
    """The rules' key in the legend: shapes have none."""
    if not (layer.name and len(layer.at)):
        return None
    return graph_objects.Scatter(x=[None], y=[None], mode="lines", line=_stroke(layer))


_TRACES: dict[type[Layer], Callable[[Any], Any]] = {
    Line: _line,
    Band: _band,
    Points: _points,
    Coloured: _coloured,
    Bars: _bars,
    Image: _image,
    Rules: _rules_key,
}


def _stroke(layer: Line | Rules) -> dict[str, Any]:
    return {"color": layer.colour, "dash": layer.dash, "width": layer.width}


def _errors(layer: Line | Bars, colour: str) -> dict[str, Any] | None:
    if layer.low is None or layer.high is None:
        return None
    # A mean may lie outside its bootstrap interval; an error bar may not.
    up = np.maximum(layer.high - layer.y, 0)
    down = np.maximum(layer.y - layer.low, 0)
    look = {"color": colour, "thickness": 1.2, "width": 3}
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, **look}


def _escaped(text: str) -> str:
    """Text that plotly does not read as markup."""
    return html.escape(text, quote=False)
