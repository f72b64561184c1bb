"""A training report as files: a page that needs no network, and its numbers as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from training.figures import rendering as figures
from training.figures.chart import Chart
from training.figures.rendering import FONT
from training.report.contents import Calibration, Comparison, Metric, Report, as_json
from training.statistics.intervals import Estimate, formatted

# Figures stay on white in dark mode: their colours were chosen for it.
STYLE = f"""
:root {{ color-scheme: light dark; --ink: #1f2933; --quiet: #52606d; --line: #d9dee4;
  --paper: #fff; --stripe: #f5f7fa; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e6e9ed; --quiet: #a9b4c0; --line: #3a4552; --paper: #14191f;
    --stripe: #1c232b; }}
}}
body {{ font: 16px/1.55 {FONT}; color: var(--ink); background: var(--paper);
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.7rem; }} h2 {{ font-size: 1.25rem; margin-top: 2.2rem; }}
h3 {{ font-size: 1.05rem; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: .5rem 0; }}
caption {{ text-align: left; color: var(--quiet); padding-bottom: .3rem; }}
th, td {{ text-align: left; padding: .3rem .9rem .3rem .5rem; vertical-align: top;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }}
tbody tr:nth-child(odd) {{ background: var(--stripe); }}
td.number {{ font-variant-numeric: tabular-nums; white-space: nowrap; text-align: right; }}
figure {{ margin: 1rem 0 2rem; }} figcaption {{ color: var(--quiet); }}
.chart {{ background: #fff; border: 1px solid var(--line); border-radius: 6px; overflow-x: auto; }}
""".strip()


def write(folder: Path, report: Report) -> list[Path]:
    """Write `report.html` and `report.json` to the folder; returns the files."""
    numbers = write_numbers(folder, report)
    document = folder / "report.html"
    document.write_text(page(report), "utf-8")
    return [document, numbers]


def write_numbers(folder: Path, report: Report) -> Path:
    """Write `report.json` alone, to ship it with a small model."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = folder / "report.json"
    text = json.dumps(as_json(report), indent=2, ensure_ascii=False, allow_nan=False)
    numbers.write_text(text + "\n", "utf-8")
    return numbers


def page(report: Report) -> str:
    """The report as one self-contained HTML document."""
    sections = [
        _about(report),
        _metrics(report.metrics),
        _comparisons(
            "Comparison",
            "other methods on the same sequences; differences are paired, with 95 % intervals",
            report.comparisons,
        ),
        _comparisons(
            "Built-in models",
            "untrained models on held-out data, in nats an observation, more is better; means over "
            "blocks of a window, with 95 % intervals",
            report.untrained,
        ),
        _calibration(report.calibration),
        _figures(report),
        _configuration(report.configuration),
    ]
    scripts = figures.library() if report.figures else ""
    return figures.document(f"Training report: {report.name}", STYLE, "".join(sections), scripts)


def _about(report: Report) -> str:
    environment = report.environment
    rows = [
        ("model kind", report.kind),
        ("data digest", report.data_digest),
        ("torch", environment.torch),
        ("device", environment.device),
        ("seed", environment.seed),
        ("time of training", f"{environment.wall_time_s:.1f} s"),
    ]
    return section("Model", table("what was trained, and where", ("", ""), rows))


def _metrics(metrics: Iterable[Metric]) -> str:
    rows = [
        (one.name, one.unit, Number(formatted(one.estimate)), *_ends(one.estimate))
        for one in metrics
    ]
    heads = ("metric", "unit", "mean", "95 % from", "to", "sequences")
    return section("Metrics", table("mean over sequences with its 95 % interval", heads, rows))


def _comparisons(title: str, caption: str, comparisons: Iterable[Comparison]) -> str:
    rows = [
        (
            one.method,
            one.metric,
            Number(formatted(one.estimate)),
            Number("" if one.difference is None else formatted(one.difference)),
            Number(one.estimate.count),
        )
        for one in comparisons
    ]
    heads = ("method", "metric", "mean", "model less method", "sequences")
    return section(title, table(caption, heads, rows)) if rows else ""


def _calibration(calibration: Calibration | None) -> str:
    if calibration is None:
        return ""
    parts = []
    rows: list[tuple[Any, ...]] = []
    if calibration.pit_distance is not None:
        rows.append(("distance of PITs from uniform", Number(f"{calibration.pit_distance:.4f}")))
    if calibration.class_error is not None:
        rows.append(("expected calibration error", Number(f"{calibration.class_error:.4f}")))
    if rows:
        parts.append(table("0 is perfect", ("measure", "value"), rows))
    if calibration.coverage:
        levels = [(Number(f"{a:.0%}"), Number(f"{b:.1%}")) for a, b in calibration.coverage]
        caption = "share of labels inside central predictive intervals"
        parts.append(table(caption, ("level", "inside"), levels))
    return section("Calibration", "".join(parts))


def _figures(report: Report) -> str:
    parts = [
        f"<h3>{escape(chart.title)}</h3>\n{figure(chart, f'figure-{k}')}"
        for k, chart in enumerate(report.figures)
    ]
    return section("Figures", "".join(parts)) if parts else ""


def _configuration(configuration: Mapping[str, Any]) -> str:
    rows = list(_flat(configuration))
    return section("Configuration", table("as it was given", ("setting", "value"), rows))


def _flat(settings: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, str]]:
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", str(value)


class Number(str):
    """A cell in a column of numbers."""

    __slots__ = ()

    def __new__(cls, value: object) -> Number:
        """Of any value, by its text."""
        return super().__new__(cls, value)


def _ends(estimate: Estimate) -> tuple[Number, ...]:
    if estimate.count == 1:
        return Number(""), Number(""), Number(1)
    low = Number(f"{estimate.low:.3f}")
    high = Number(f"{estimate.high:.3f}")
    return low, high, Number(estimate.count)


def figure(chart: Chart, identity: str) -> str:
    """A chart with its description; identity: its own in the page."""
    return (
        f"<figure>{figures.div(chart, identity)}"
        f"<figcaption>{escape(chart.description)}</figcaption></figure>\n"
    )


def section(title: str, inner: str) -> str:
    """A section of a page; inner: HTML."""
    identity = re.sub("[^a-z0-9]+", "-", title.lower())
    return (
        f'<section aria-labelledby="{identity}">\n<h2 id="{identity}">{escape(title)}</h2>\n'
        f"{inner}</section>\n"
    )


def table(caption: str, heads: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A table whose first column names its rows; empty `heads` are omitted."""
    named = [head for head in heads if head]
    top = "".join(f'<th scope="col">{escape(head)}</th>' for head in named)
    head = f"<thead><tr>{top}</tr></thead>\n" if named else ""
    body = "".join(f"<tr>{_row(list(row))}</tr>\n" for row in rows)
    return (
        f'<div class="scroll"><table>\n<caption>{escape(caption)}</caption>\n{head}'
        f"<tbody>\n{body}</tbody></table></div>\n"
    )


def _row(cells: list[Any]) -> str:
    first = f'<th scope="row">{escape(str(cells[0]))}</th>'
    rest = (
        f"<td{' class=number' if isinstance(cell, Number) else ''}>{escape(str(cell))}</td>"
        for cell in cells[1:]
    )
    return first + "".join(rest)
