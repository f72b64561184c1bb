"""The results of `moca evaluate all`: tables, JSON, and one page with figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from rich.console import Console

from training import figures
from training.figures import Chart, Dots, dots
from training.quality.baselines import ALWAYS, EVEN
from training.quality.measures import (
    LITTLE,
    SETTLED_FROM,
    SPREAD,
    ChangeRow,
    FamilyRow,
    ForecastRow,
    Results,
)
from training.quality.scores import MARGIN, REPETITIONS, RUNAWAY, WIDEST, WITHIN
from training.quality.series import MARGINS, TCPD, Sizes
from training.results import Table, plain, rendered
from training.results import write as write_json
from training.statistics import Estimate, alone

NONE = "-"
INTERVAL = "mean and 95 % bootstrap interval over series"
TARGET = 0.5  # false alarms per 1,000 that are asked for
LEAST_RATE = 0.02  # where rates below are drawn
CHEAP = (
    f"In-sample: {EVEN} has the true number of changes of each series, {ALWAYS} marks every mean "
    "regime of the corpus, which no detector knows."
)
COMPARED = ("normal", "Student-t3", "lognormal", "AR(0.5)", "season of 24")  # by their delays
WORST = -50  # NAB's scores below are not drawn


# A column of a table: its head, and the cell of a row.
Column = tuple[str, Callable[[Any], str]]
FAMILY: Column = ("family", attrgetter("family"))
CORPUS: Column = ("corpus", attrgetter("corpus"))
METHOD: Column = ("method", attrgetter("method"))


def tables(results: Results) -> list[Table]:
    """Tables of all results."""
    sizes = Sizes()
    one = sizes.periods[-1] / (sizes.quiet * sizes.quiet_length)
    content = [
        _table(
            "Simulated families",
            f"False alarms per 1,000 quiet observations ({INTERVAL}); then for each size of shift "
            f"the median delay, in observations, and the share found within {sizes.within}. A "
            "method that alarms all the time also finds shifts. FOCuS is an oracle: it knows the "
            "scale of the noise, and its threshold is in-sample, the lowest at which it has no "
            "more false alarms on these very series than the method it is named for.",
            results.families,
            FAMILY,
            METHOD,
            ("false per 1,000", lambda row: f"{row.false:.2f}"),
            *(
                (f"{by:g} sd", lambda row, k=k: f"{_whole(row.delay[k])} ({row.found[k]:.0%})")
                for k, by in enumerate(sizes.shifts)
            ),
        ),
        _table(
            "Alarms asked for and got",
            "Confirmed changes on quiet series over those asked for, by `false_alarm_every` "
            f"({INTERVAL}). Steady: share of the observations from {SETTLED_FROM} on at which "
            f"`changed_probability` is at most {LITTLE:g}. Of the longest period one alarm in all "
            f"the series of a family is {one:g}.",
            results.periods,
            FAMILY,
            METHOD,
            ("every", lambda row: f"{row.every:,.0f}"),
            ("got over asked", lambda row: f"{row.got:.2f}"),
            ("steady", lambda row: f"{row.steady:.1%}"),
            named=3,
        ),
        _table(
            "Delays early and later",
            "Observations up to the confirmation of a shift of a normal series that comes after so "
            f"many, the first one included; {sizes.aged} series each; and the share found within "
            f"{sizes.within}.",
            results.ages,
            ("after", lambda row: str(row.after)),
            METHOD,
            ("shift", lambda row: f"{row.shift:g} sd"),
            ("median", lambda row: _whole(row.delay)),
            ("90 %", lambda row: _whole(row.late)),
            ("found", lambda row: f"{row.found:.0%}"),
            named=3,
        ),
    ]
    for corpus in dict.fromkeys(row.corpus for row in results.changes):
        f1: Column = ("F1", lambda row: str(row.f1))
        detections: Column = ("detections", lambda row: str(row.detections))
        if corpus == TCPD:
            caption = f"F1 (margin {MARGIN}) and covering by the benchmark's scorer, {INTERVAL}. "
            columns = [METHOD, f1, ("covering", lambda row: str(row.cover)), detections]
        else:
            within = MARGINS[corpus]
            caption = f"F1 of detected changes within {within} observations, {INTERVAL}. "
            columns = [METHOD, f1, detections]
        caption += CHEAP
        rows = [row for row in results.changes if row.corpus == corpus]
        content.append(_table(f"Changes: {corpus}", caption, rows, *columns, named=1))
    content += [
        _table(
            "Choices: TCPD",
            f"The best of the defaults and {sizes.candidates} random settings around them (each "
            f"constant times 1/{SPREAD:g} to {SPREAD:g}) on a random half of the series, scored on "
            "the other half; the defaults on the same halves; mean and standard deviation over "
            f"{REPETITIONS} splits. Beaten: share of the random settings that the defaults beat on "
            "all series.",
            results.selection,
            METHOD,
            ("output", lambda row: row.output),
            ("chosen: F1", lambda row: "{:.3f} ± {:.3f}".format(*row.chosen[0])),
            ("covering", lambda row: "{:.3f} ± {:.3f}".format(*row.chosen[1])),
            ("defaults: F1", lambda row: "{:.3f} ± {:.3f}".format(*row.default[0])),
            ("covering", lambda row: "{:.3f} ± {:.3f}".format(*row.default[1])),
            ("beaten", lambda row: f"{row.beaten:.0%}"),
        ),
        _table(
            "Forecasts: log score and CRPS",
            f"One step ahead, each series in the scale of its warm-up, {INTERVAL}. Lead: log score "
            "less that of the last value, median over series. Relative: CRPS as a share of the "
            "last value's, geometric mean over series.",
            results.forecasts,
            CORPUS,
            METHOD,
            ("log score", lambda row: _rounded(row.score.log_score)),
            ("lead", lambda row: _fixed(row.score.lead)),
            ("CRPS", lambda row: _rounded(row.score.crps)),
            ("relative", lambda row: _rounded(row.score.relative_crps)),
        ),
        _table(
            "Forecasts: error and runaways",
            f"Mean absolute error in the scale of the warm-up, {INTERVAL}; as a share of the last "
            "value's, geometric mean over series. Behind: series where it is larger than the last "
            "value's; worst: the largest share of that. Runaway: largest distance of a forecast "
            "from the range of the labels, in their standard deviations; runaways: series with "
            f"more than {RUNAWAY:g}.",
            results.forecasts,
            CORPUS,
            METHOD,
            ("error", lambda row: _rounded(row.score.error)),
            ("relative", lambda row: _rounded(row.score.relative_error)),
            ("behind", lambda row: str(row.score.behind)),
            ("worst", lambda row: f"{row.score.worst:.2f}"),
            ("runaway", lambda row: f"{row.score.runaway:.2g}"),
            ("runaways", lambda row: str(row.score.runaways)),
        ),
        _table(
            "Calibration",
            "Share of labels in 90 % intervals: pooled, and of the series with the lowest and the "
            f"highest. Calibrated: share of the series with {WITHIN[0]:g} to {WITHIN[1]:g}. KS: "
            "distance of the pooled PITs from uniform, of models before they are corrected.",
            results.forecasts,
            CORPUS,
            METHOD,
            ("coverage", lambda row: _fixed(row.score.coverage)),
            ("lowest", lambda row: _fixed(row.score.lowest)),
            ("highest", lambda row: _fixed(row.score.highest)),
            ("calibrated", lambda row: f"{row.score.calibrated:.0%}"),
            ("KS", lambda row: _fixed(row.score.ks)),
        ),
        _table(
            "Anomalies: NAB, standard profile",
            "Other half: the threshold is the best one of a random half of the series, the score "
            f"that of the other half; mean and standard deviation over {REPETITIONS} splits. "
            "In-sample: with the best threshold of all series. Alarms are at least 100 "
            "observations apart; without that every observation above the threshold is a "
            "detection.",
            results.nab,
            ("anomaly score", attrgetter("method")),
            (
                "other half",
                lambda row: (
                    NONE
                    if math.isnan(row.score.mean)
                    else f"{row.score.mean:.1f} ± {row.score.sd:.1f}"
                ),
            ),
            ("in-sample", lambda row: f"{row.score.in_sample:.1f}"),
            ("at .999", lambda row: _fixed(row.score.fixed, 1)),
            named=1,
        ),
        _table(
            "Anomalies: NAB, VUS-PR",
            "Volume under the surface of precision, recall and the width of a buffer around "
            f"labelled windows, 0 to {WIDEST} observations, {INTERVAL} that have one. It needs no "
            "threshold. In-sample: the form of the anomaly was chosen on these series.",
            results.vus,
            ("anomaly score", attrgetter("method")),
            ("VUS-PR", lambda row: str(row.vus)),
            named=1,
        ),
    ]
    return [table for table in content if table.rows]


def _table(
    title: str, caption: str, rows: Sequence[Any], *columns: Column, named: int = 2
) -> Table:
    heads = tuple(head for head, _ in columns)
    cells = [tuple(cell(row) for _, cell in columns) for row in rows]
    return Table(title, caption, heads, cells, named)


def _whole(value: float) -> str:
    return f"{value:g}" if math.isfinite(value) else NONE


def _rounded(value: Estimate) -> str:
    """Mean and interval to three digits: scales of a warm-up may be tiny."""
    if math.isnan(value.half_width):
        return f"{value.mean:.3g}"
    return f"{value.mean:.3g} ± {value.half_width:.2g}"


def _fixed(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else NONE


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
            (row.family, row.method): alone(row.delay[k]) for row in rows if row.family in COMPARED
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
        scores[row.method, "in-sample"] = alone(row.score.in_sample)
    panel = Dots("score", {key: score for key, score in scores.items() if score.mean > WORST})
    text = (
        "NAB's standard profile: with the best threshold of the other half of the series, mean "
        "and standard deviation over random halves, and with the best of all. Scores below "
        f"{WORST} are not drawn."
    )
    return dots("Anomalies: NAB", [panel], text)
