"""The results of `moca evaluate all`: tables, JSON, and one page with figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from training import figures
from training.figures import Chart, Dots, dots
from training.quality.measures import SPREAD, ChangeRow, FamilyRow, ForecastRow, Results
from training.quality.scores import REPETITIONS, RUNAWAY
from training.quality.series import MARGINS, Sizes
from training.results import Table, plain, rendered
from training.results import write as write_json
from training.statistics import Estimate

NONE = "-"
INTERVAL = "mean and 95 % bootstrap interval over series"
TARGET = 0.5  # false alarms per 1,000 that are asked for
LEAST_RATE = 0.02  # where rates below are drawn
COMPARED = ("normal", "Student-t3", "lognormal", "AR(0.5)", "season of 24")  # by their delays
WORST = -50  # NAB's scores below are not drawn


def tables(results: Results) -> list[Table]:
    """Tables of all results."""
    sizes = Sizes()
    content = [
        _table(
            "Simulated families",
            f"False alarms per 1,000 quiet observations ({INTERVAL}); then for each size of shift "
            f"the median delay, in observations, and the share found within {sizes.within}. A "
            "method that alarms all the time also finds shifts.",
            ("family", "method", "false per 1,000", *(f"{by:g} sd" for by in sizes.shifts)),
            results.families,
            lambda row: (
                row.family,
                row.method,
                f"{row.false:.2f}",
                *(
                    f"{_whole(delay)} ({share:.0%})"
                    for delay, share in zip(row.delay, row.found, strict=True)
                ),
            ),
        ),
        _table(
            "Sensitivity",
            "False alarms per 1,000 quiet observations that the setting `sensitivity` requests, "
            "and those that are confirmed: with the threshold by draws from the model's prior, and "
            "with the one calibrated on the stream's own labels, for which the calibration itself "
            "expects some. Then the median delays at shifts of 1, 2 and 3 sd.",
            (
                "family",
                "method",
                "requested",
                "by the prior",
                "by own labels",
                "expected",
                "delays by the prior",
                "by own labels",
            ),
            results.sensitivity,
            lambda row: (
                row.family,
                row.method,
                f"{row.requested:g}",
                f"{row.false[0]:.2f}",
                f"{row.false[1]:.2f}",
                f"{row.expected:.2f}",
                *(", ".join(map(_whole, delays)) for delays in row.delay),
            ),
        ),
    ]
    for corpus in dict.fromkeys(row.corpus for row in results.changes):
        content.append(_change_table(corpus, results.changes))
    content += [
        _table(
            "Choices: TCPD",
            f"The best of the defaults and {sizes.candidates} random settings around them (each "
            f"constant times 1/{SPREAD:g} to {SPREAD:g}) on a random half of the series, scored on "
            "the other half; the defaults on the same halves; mean and standard deviation over "
            f"{REPETITIONS} splits. Beaten: share of the random settings that the defaults beat on "
            "all series.",
            ("method", "output", "chosen: F1", "covering", "defaults: F1", "covering", "beaten"),
            results.selection,
            lambda row: (
                row.method,
                row.row.output,
                *(f"{mean:.3f} ± {sd:.3f}" for mean, sd in (*row.row.chosen, *row.row.default)),
                f"{row.row.beaten:.0%}",
            ),
        ),
        _table(
            "Forecasts: log score and CRPS",
            f"One step ahead, each series in the scale of its warm-up, {INTERVAL}. Lead: log score "
            "less that of the last value, median over series. Relative: CRPS as a share of the "
            "last value's, geometric mean over series.",
            ("corpus", "method", "log score", "lead", "CRPS", "relative"),
            results.forecasts,
            lambda row: (
                row.corpus,
                row.method,
                _rounded(row.score.log_score),
                _fixed(row.score.lead),
                _rounded(row.score.crps),
                _rounded(row.score.relative_crps),
            ),
        ),
        _table(
            "Forecasts: error and runaways",
            f"Mean absolute error in the scale of the warm-up, {INTERVAL}; as a share of the last "
            "value's, geometric mean over series. Runaway: largest distance of a predictive mean "
            "from the range of the labels, in their standard deviations, and the number of series "
            f"with more than {RUNAWAY:g}.",
            ("corpus", "method", "error", "relative", "runaway", "series"),
            results.forecasts,
            lambda row: (
                row.corpus,
                row.method,
                _rounded(row.score.error),
                _rounded(row.score.relative_error),
                f"{row.score.runaway:.2g}",
                str(row.score.runaways),
            ),
        ),
        _table(
            "Calibration",
            "Share of labels in 90 % intervals: pooled, and of the series with the lowest and the "
            "highest. KS: distance of the pooled PITs from uniform.",
            ("corpus", "method", "coverage", "lowest", "highest", "KS"),
            results.forecasts,
            lambda row: (
                row.corpus,
                row.method,
                _fixed(row.score.coverage),
                _fixed(row.score.lowest),
                _fixed(row.score.highest),
                _fixed(row.score.ks),
            ),
        ),
        _table(
            "Anomalies: NAB, standard profile",
            "Other half: the threshold is the best one of a random half of the series, the score "
            f"that of the other half; mean and standard deviation over {REPETITIONS} splits. "
            "In-sample: with the best threshold of all series. Alarms are at least 100 "
            "observations apart; without that every observation above the threshold is a "
            "detection.",
            ("anomaly score", "other half", "in-sample", "at .999"),
            results.nab,
            lambda row: (
                row.method,
                NONE
                if math.isnan(row.score.mean)
                else f"{row.score.mean:.1f} ± {row.score.sd:.1f}",
                f"{row.score.in_sample:.1f}",
                NONE if math.isnan(row.score.fixed) else f"{row.score.fixed:.1f}",
            ),
            1,
        ),
    ]
    return [table for table in content if table.rows]


def _table(
    title: str,
    caption: str,
    heads: tuple[str, ...],
    rows: Iterable[Any],
    cells: Callable[[Any], tuple[str, ...]],
    named: int = 2,
) -> Table:
    return Table(title, caption, heads, [cells(row) for row in rows], named)


def _change_table(corpus: str, rows: Iterable[ChangeRow]) -> Table:
    chosen = [row for row in rows if row.corpus == corpus]
    margin = MARGINS.get(corpus)
    if margin is None:
        return _table(
            f"Changes: {corpus}",
            f"F1 (margin 5) and covering by the benchmark's scorer, {INTERVAL}.",
            ("method", "F1", "covering", "detections"),
            chosen,
            lambda row: (
                row.method,
                str(row.f1),
                str(row.cover),
                str(row.detections),
            ),
            1,
        )
    return _table(
        f"Changes: {corpus}",
        f"F1 of detected changes within {margin} observations, {INTERVAL}.",
        ("method", "F1", "detections"),
        chosen,
        lambda row: (row.method, str(row.f1), str(row.detections)),
        1,
    )


def _whole(value: float) -> str:
    return f"{value:g}" if math.isfinite(value) else NONE


def _rounded(value: Estimate) -> str:
    """Mean and interval to three digits: scales of a warm-up may be tiny."""
    if math.isnan(value.half_width):
        return f"{value.mean:.3g}"
    return f"{value.mean:.3g} ± {value.half_width:.2g}"


def _fixed(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else NONE


def show(results: Results, console: Console) -> None:
    """Print every table, and what was not measured."""
    for table in tables(results):
        console.print(table.for_terminal())
    if results.missing:
        console.print(f"not measured, as it is not there: {', '.join(results.missing)}")
    console.print(f"{results.took_s:.0f} s, torch {results.torch}, Python {results.python}")


def write_numbers(file: Path, results: Results) -> None:
    """Write all numbers as JSON; those that are not finite are null."""
    fields: dict[str, Any] = plain(results)
    for row in fields["forecasts"]:
        del row["score"]["pit"]
    write_json(file, fields)


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
    drawn: dict[str, Chart] = {}
    if results.families:
        drawn["false_alarms"] = _false_alarms(results.families)
        drawn["delays"] = _delays(results.families)
    for corpus in dict.fromkeys(row.corpus for row in results.changes):
        rows = [row for row in results.changes if row.corpus == corpus]
        drawn[f"changes_{corpus.lower()}"] = _changes(corpus, rows)
    if results.forecasts:
        drawn["forecasts"] = _forecasts(results.forecasts)
    for row in results.forecasts:
        if row.method == results.models[0]:
            title = f"Calibration of {row.method} on {row.corpus}"
            chart = figures.calibration(row.score.pit, title)
            drawn[f"calibration_{row.corpus.lower()}"] = chart
    if results.nab:
        drawn["nab"] = _nab(results)
    return drawn


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
    crps = {(row.corpus, row.method): row.score.relative_crps for row in rows}
    error = {(row.corpus, row.method): row.score.relative_error for row in rows}
    panels = [
        Dots("CRPS, share of the last value's", crps, rule=1.0),
        Dots("absolute error, share of the last value's", error, rule=1.0),
    ]
    text = (
        "Shares of the last value's CRPS and absolute error, geometric means over series with "
        "95 % intervals."
    )
    return dots("Forecasts beside the last value", panels, text)


def _nab(results: Results) -> Chart:
    scores: dict[tuple[str, str], Estimate] = {}
    for row in results.nab:
        mean = row.score.mean
        sd = row.score.sd
        scores[row.method, "other half"] = Estimate(mean, mean - sd, mean + sd, 2)
        scores[row.method, "in-sample"] = _alone(row.score.in_sample)
    panel = Dots("score", {key: score for key, score in scores.items() if score.mean > WORST})
    text = (
        "NAB's standard profile: with the best threshold of the other half of the series, mean "
        "and standard deviation over random halves, and with the best of all. Scores below "
        f"{WORST} are not drawn."
    )
    return dots("Anomalies: NAB", [panel], text)
