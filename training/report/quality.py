"""The results of `moca evaluate all` as one page with plots, and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from training.evaluation.quality.changes import ChangeRow, FamilyRow, Sizes
from training.evaluation.quality.evaluate import ForecastRow, NabRow, Results
from training.evaluation.quality.tables import Table, interval, markdown, tables
from training.figures import calibration, rendering
from training.figures.chart import Chart
from training.figures.dots import Facet, Marks, dots
from training.report.page import STYLE, Number, figure, section, table
from training.statistics.intervals import Estimate

TARGET = 0.5  # false alarms per 1,000 that are asked for
LEAST_RATE = 0.02  # where rates below are drawn

Estimates = Mapping[tuple[str, str], Estimate]  # by category and method


def write(folder: Path, results: Results) -> list[Path]:
    """Write `quality.html`, `tables.md` and a PNG of each figure; returns the files."""
    from training.figures import png  # matplotlib, which the page does without

    folder.mkdir(parents=True, exist_ok=True)
    drawn = charts(results)
    document = folder / "quality.html"
    document.write_text(page(results, drawn), "utf-8")
    text = folder / "tables.md"
    text.write_text(markdown(tables(results)), "utf-8")
    pictures = []
    for name, chart in drawn.items():
        pictures.append(folder / f"{name}.png")
        png.write(chart, rendering.figure(chart), pictures[-1])
    return [document, text, *pictures]


def page(results: Results, drawn: Mapping[str, Chart]) -> str:
    """One self-contained HTML document."""
    figures = "".join(figure(chart, name) for name, chart in drawn.items())
    parts = [
        section("Measurement", table("what was measured, and where", ("", ""), _about(results))),
        section("Figures", figures),
        *(section(each.title, _table(each)) for each in tables(results)),
    ]
    return rendering.document(
        "Quality of the default settings", STYLE, "".join(parts), rendering.library()
    )


def _about(results: Results) -> list[tuple[str, str]]:
    return [
        ("models", ", ".join(results.models)),
        ("seed", str(results.seed)),
        ("date", results.day),
        ("torch, Python", f"{results.torch}, {results.python}"),
        ("wall time", f"{results.took_s:.0f} s"),
        ("not measured", ", ".join(results.missing) or "nothing was missing"),
    ]


def _table(content: Table) -> str:
    rows = ([*row[: content.named], *map(Number, row[content.named :])] for row in content.rows)
    return table(content.caption, content.heads, rows)


def charts(results: Results) -> dict[str, Chart]:
    """Figures of all results, by name."""
    figures: dict[str, Chart] = {}
    if results.families:
        figures["false_alarms"] = _false_alarms(results.families)
        figures["delays"] = _delays(results.families)
    for corpus in dict.fromkeys(row.corpus for row in results.changes):
        rows = [row for row in results.changes if row.corpus == corpus]
        figures[f"changes_{corpus.lower()}"] = _changes(corpus, rows)
    if results.forecasts:
        figures["forecasts"] = _forecasts(results.forecasts)
    for row in results.forecasts:
        if row.method == results.models[0]:
            title = f"Calibration of {row.method} on {row.corpus}"
            chart = calibration.real(torch.from_numpy(row.score.pit), title=title)
            figures[f"calibration_{row.corpus.lower()}"] = chart
    if results.nab:
        figures["nab"] = _nab(results.nab)
    return figures


def _false_alarms(rows: Sequence[FamilyRow]) -> Chart:
    rates = {(row.family, row.method): row.false for row in rows}
    facet = _facet("false alarms per 1,000 observations", rates)._replace(
        floor=LEAST_RATE, rule=TARGET
    )
    text = (
        "False alarms on quiet series, with 95 % intervals over series. "
        f"The dashed line is at {TARGET:g}."
    )
    return dots("False alarms on simulated families", [facet], text)


def _delays(rows: Sequence[FamilyRow]) -> Chart:
    facets = []
    for k, shift in enumerate(Sizes().shifts):
        delays = {
            (row.family, row.method): Estimate(row.delay[k], math.nan, math.nan, 1)
            for row in rows
            if row.family in _COMPARED
        }
        facets.append(_facet("observations", delays)._replace(title=f"{shift:g} sd"))
    text = (
        "Median delay at shifts of so many standard deviations, the first observation included; "
        "none where fewer than half of the shifts are found."
    )
    return dots("Delay of alarms on simulated families", facets, text)


_COMPARED = ("normal", "Student-t3", "lognormal", "AR(0.5)", "season of 24")


def _changes(corpus: str, rows: Sequence[ChangeRow]) -> Chart:
    measures: dict[str, dict[tuple[str, str], Estimate]] = {
        "F1": {(row.method, ""): row.f1 for row in rows},
        "covering": {(row.method, ""): row.cover for row in rows if row.cover is not None},
    }
    facets = [_facet(measure, values) for measure, values in measures.items() if values]
    text = f"{' and '.join(facet.measure for facet in facets)}, mean and 95 % interval over series."
    return dots(f"Changes found: {corpus}", facets, text)


def _forecasts(rows: Sequence[ForecastRow]) -> Chart:
    places = [(row.corpus, row.method) for row in rows]
    measures = {
        "CRPS": [row.score.relative_crps for row in rows],
        "absolute error": [row.score.relative_error for row in rows],
    }
    facets = [
        _facet("share of the last value's", dict(zip(places, values, strict=True)))._replace(
            title=name, rule=1.0
        )
        for name, values in measures.items()
    ]
    text = (
        "Shares of the last value's CRPS and absolute error, geometric means over series with "
        "95 % intervals."
    )
    return dots("Forecasts beside the last value", facets, text)


def _nab(rows: Sequence[NabRow]) -> Chart:
    scores: dict[tuple[str, str], Estimate] = {}
    for row in rows:
        mean, sd = row.score.mean, row.score.sd
        scores[row.method, "other half"] = Estimate(mean, mean - sd, mean + sd, 2)
        scores[row.method, "in-sample"] = Estimate(row.score.in_sample, math.nan, math.nan, 1)
    facet = _facet("score", {key: each for key, each in scores.items() if each.mean > -50})
    text = (
        "NAB's standard profile: with the best threshold of the other half of the series, mean "
        "and standard deviation over random halves, and with the best of all. Scores below -50 "
        "are not drawn."
    )
    return dots("Anomalies: NAB", [facet], text)


def _facet(measure: str, values: Estimates) -> Facet:
    """Categories and methods in the order of their first appearance."""
    categories = list(dict.fromkeys(category for category, _ in values))
    marks = []
    for method in dict.fromkeys(method for _, method in values):
        row = [values.get((category, method)) for category in categories]
        ends = [(math.nan, math.nan) if each is None else interval(each) for each in row]
        marks.append(
            Marks(
                method,
                _numbers(math.nan if each is None else each.mean for each in row),
                _numbers(low for low, _ in ends),
                _numbers(high for _, high in ends),
            )
        )
    return Facet(measure, categories, marks)


def _numbers(values: Iterable[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array(list(values), dtype=np.float64)
