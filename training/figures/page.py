"""Interactive charts in HTML pages that load nothing."""

from __future__ import annotations

import html

from plotly import io, offline

from training.figures import palette
from training.figures.chart import Chart
from training.figures.web import FONT, figure

# The browser then refuses whatever a page might still ask of the network.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)


def div(chart: Chart, identity: str) -> str:
    """The chart as a part of a page that has `library` before it."""
    config = {"responsive": True, "displaylogo": False}
    inner: str = io.to_html(
        figure(chart), config, include_plotlyjs=False, full_html=False, div_id=identity
    )
    label = html.escape(chart.description)
    return f'<div class="chart" role="figure" aria-label="{label}">{inner}</div>'


def library() -> str:
    """The script that `div`s need, once in a page."""
    return f"<script>{offline.get_plotlyjs()}</script>"


def page(chart: Chart) -> str:
    """The chart as a page of its own."""
    title, text = html.escape(chart.title), html.escape(chart.description)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>body {{ font: 16px/1.5 {FONT}; max-width: {chart.width + 160}px; margin: 2rem auto;
padding: 0 1rem; color: {palette.INK}; background: #fff; }} h1 {{ font-size: 1.3rem; }}</style>
{library()}
</head>
<body>
<main>
<h1>{title}</h1>
{div(chart, "chart")}
<p>{text}</p>
</main>
</body>
</html>
"""
