"""The results of `moca evaluate all` as one page with plots, and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from training.evaluation.quality.changes import ChangeRow, FamilyRow, Sizes
from training.evaluation.quality.evaluate import ForecastRow, NabRow, Results
from training.evaluation.quality.tables import tables
from training.figures import calibration
from training.figures.drawing import Chart
from training.figures.performance import Dots, dots
from training.report.page import rendered
from training.statistics import Estimate

TARGET = 0.5  # false alarms per 1,000 that are asked for
LEAST_RATE = 0.02  # where rates below are drawn
COMPARED = ("normal", "Student-t3", "lognormal", "AR(0.5)", "season of 24")  # by their delays
WORST = -50  # NAB's scores below are not drawn


def write(folder: Path, results: Results) -> list[Path]:
    """Write `quality.html`, `tables.md` and a PNG and SVG of each figure; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = charts(results)
    document = folder / "quality.html"
    about = [
        ("models", ", ".join(results.models)),
        ("seed", results.seed),
        ("date", results.day),
        ("torch, Python", f"{results.torch}, {results.python}"),
        ("wall time", f"{results.took_s:.0f} s"),
        ("not measured", ", ".join(results.missing) or "nothing was missing"),
    ]
    page = rendered(
        "quality.html",
        title="Quality of the default settings",
        about=about,
        charts=drawn.values(),
        tables=tables(results),
    )
    document.write_text(page, "utf-8")
    text = folder / "tables.md"
    text.write_text("\n".join(table.markdown() for table in tables(results)), "utf-8")
    pictures = [file for name, chart in drawn.items() for file in chart.save(folder / name)]
    return [document, text, *pictures]


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
            figures[f"calibration_{row.corpus.lower()}"] = calibration.real(row.score.pit, title)
    if results.nab:
        figures["nab"] = _nab(results.nab)
    return figures


def _alone(value: float) -> Estimate:
    """A number without an interval."""
    return Estimate(value, math.nan, math.nan, 1)


def _false_alarms(rows: Sequence[FamilyRow]) -> Chart:
    rates = {(row.family, row.method): row.false for row in rows}
    panel = Dots("false alarms per 1,000 observations", rates, floor=LEAST_RATE, rule=TARGET)
    text = (
        "False alarms on quiet series, with 95 % intervals over series. "
        f"The dashed line is at {TARGET:g}."
    )
    return dots("False alarms on simulated families", [panel], text)


def _delays(rows: Sequence[FamilyRow]) -> Chart:
    panels = []
    for k, shift in enumerate(Sizes().shifts):
        delays = {
            (row.family, row.method): _alone(row.delay[k]) for row in rows if row.family in COMPARED
        }
        panels.append(Dots("median delay (observations)", delays, f"shift of {shift:g} sd"))
    text = (
        "Median delay at shifts of so many standard deviations, the first observation included; "
        "none where fewer than half of the shifts are found."
    )
    return dots("Delay of alarms on simulated families", panels, text)


def _changes(corpus: str, rows: Sequence[ChangeRow]) -> Chart:
    measures = {
        "F1": {(row.method, ""): row.f1 for row in rows},
        "covering": {(row.method, ""): row.cover for row in rows if row.cover is not None},
    }
    panels = [Dots(measure, values) for measure, values in measures.items() if values]
    text = f"{' and '.join(panel.measure for panel in panels)}, mean and 95 % interval over series."
    return dots(f"Changes found: {corpus}", panels, text)


def _forecasts(rows: Sequence[ForecastRow]) -> Chart:
    places = [(row.corpus, row.method) for row in rows]
    measures = {
        "CRPS": [row.score.relative_crps for row in rows],
        "absolute error": [row.score.relative_error for row in rows],
    }
    panels = [
        Dots(f"{name}, share of the last value's", dict(zip(places, values, strict=True)), rule=1.0)
        for name, values in measures.items()
    ]
    text = (
        "Shares of the last value's CRPS and absolute error, geometric means over series with "
        "95 % intervals."
    )
    return dots("Forecasts beside the last value", panels, text)


def _nab(rows: Sequence[NabRow]) -> Chart:
    scores: dict[tuple[str, str], Estimate] = {}
    for row in rows:
        mean, sd = row.score.mean, row.score.sd
        scores[row.method, "other half"] = Estimate(mean, mean - sd, mean + sd, 2)
        scores[row.method, "in-sample"] = _alone(row.score.in_sample)
    panel = Dots("score", {key: each for key, each in scores.items() if each.mean > WORST})
    text = (
        "NAB's standard profile: with the best threshold of the other half of the series, mean "
        "and standard deviation over random halves, and with the best of all. Scores below "
        f"{WORST} are not drawn."
    )
    return dots("Anomalies: NAB", [panel], text)
