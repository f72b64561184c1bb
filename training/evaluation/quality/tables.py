"""The results as tables."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from training.evaluation.quality.changes import ChangeRow, FamilyRow, Sizes
from training.evaluation.quality.corpora import MARGINS
from training.evaluation.quality.evaluate import ForecastRow, NabRow, Results, SelectionRow
from training.evaluation.quality.forecasts import RUNAWAY
from training.evaluation.quality.selection import REPETITIONS, SPREAD
from training.evaluation.quality.sensitivities import SensitivityRow
from training.results import Table, plain
from training.statistics import Estimate, formatted

NONE = "-"


def tables(results: Results) -> list[Table]:
    """Tables of all results."""
    corpora = dict.fromkeys(row.corpus for row in results.changes)
    content = [_families(results.families), _sensitivity(results.sensitivity)]
    content += [_changes(corpus, results.changes) for corpus in corpora]
    content += [_selection(results.selection)]
    content += [_densities(results.forecasts), _errors(results.forecasts)]
    content += [_calibration(results.forecasts), _anomalies(results.nab)]
    return [each for each in content if each.rows]


def _families(rows: Iterable[FamilyRow]) -> Table:
    sizes = Sizes()
    shifts = [f"{shift:g} sd" for shift in sizes.shifts]
    return Table(
        "Simulated families",
        f"False alarms per 1,000 quiet observations ({INTERVAL}); then for each size of shift the "
        f"median delay, in observations, and the share found within {sizes.within}. A method "
        "that alarms all the time also finds shifts.",
        ("family", "method", "false per 1,000", *shifts),
        [
            (
                row.family,
                row.method,
                formatted(row.false, 2),
                *(
                    f"{_whole(delay)} ({found:.0%})"
                    for delay, found in zip(row.delay, row.found, strict=True)
                ),
            )
            for row in rows
        ],
        2,
    )


def _sensitivity(rows: Sequence[SensitivityRow]) -> Table:
    def delays(values: tuple[float, ...]) -> str:
        return ", ".join(map(_whole, values))

    return Table(
        "Sensitivity",
        "False alarms per 1,000 quiet observations that the setting `sensitivity` requests, and "
        "those that are confirmed: with the threshold by draws from the model's prior, and with "
        "the one calibrated on the stream's own labels, for which the calibration itself expects "
        "some. Then the median delays at shifts of 1, 2 and 3 sd.",
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
        [
            (
                row.family,
                row.method,
                f"{row.requested:g}",
                f"{row.false[0]:.2f}",
                f"{row.false[1]:.2f}",
                f"{row.expected:.2f}",
                delays(row.delay[0]),
                delays(row.delay[1]),
            )
            for row in rows
        ],
        2,
    )


INTERVAL = "mean and 95 % bootstrap interval over series"


def _changes(corpus: str, rows: Iterable[ChangeRow]) -> Table:
    chosen = [row for row in rows if row.corpus == corpus]
    margin = MARGINS.get(corpus)
    heads = ["method", "F1", "detections"]
    if margin is None:
        caption = f"F1 (margin 5) and covering by the benchmark's scorer, {INTERVAL}."
        heads.insert(2, "covering")
    else:
        caption = f"F1 of detected changes within {margin} observations, {INTERVAL}."
    return Table(
        f"Changes: {corpus}",
        caption,
        tuple(heads),
        [
            (
                row.method,
                formatted(row.f1),
                *([] if row.cover is None else [formatted(row.cover)]),
                str(row.detections),
            )
            for row in chosen
        ],
        1,
    )


def _selection(rows: Iterable[SelectionRow]) -> Table:
    def halves(values: tuple[tuple[float, float], tuple[float, float]]) -> tuple[str, str]:
        first, second = (f"{mean:.3f} ± {sd:.3f}" for mean, sd in values)
        return first, second

    return Table(
        "Choices: TCPD",
        f"The best of the defaults and {Sizes().candidates} random settings around them (each "
        f"constant times 1/{SPREAD:g} to {SPREAD:g}) on a random half of the series, scored on the "
        "other half; the defaults on the same halves; mean and standard deviation over "
        f"{REPETITIONS} splits. Beaten: share of the random settings that the defaults beat on "
        "all series.",
        ("method", "output", "chosen: F1", "covering", "defaults: F1", "covering", "beaten"),
        [
            (
                row.method,
                row.row.output,
                *halves(row.row.chosen),
                *halves(row.row.default),
                f"{row.row.beaten:.0%}",
            )
            for row in rows
        ],
        2,
    )


def _densities(rows: Iterable[ForecastRow]) -> Table:
    return Table(
        "Forecasts: log score and CRPS",
        f"One step ahead, each series in the scale of its warm-up, {INTERVAL}. Lead: log score "
        "less that of the last value, median over series. Relative: CRPS as a share of the last "
        "value's, geometric mean over series.",
        ("corpus", "method", "log score", "lead", "CRPS", "relative"),
        [
            (
                row.corpus,
                row.method,
                _rounded(row.score.log_score),
                _fixed(row.score.lead),
                _rounded(row.score.crps),
                _rounded(row.score.relative_crps),
            )
            for row in rows
        ],
        2,
    )


def _errors(rows: Iterable[ForecastRow]) -> Table:
    return Table(
        "Forecasts: error and runaways",
        f"Mean absolute error in the scale of the warm-up, {INTERVAL}; as a share of the last "
        "value's, geometric mean over series. Runaway: largest distance of a predictive mean from "
        "the range of the labels, in their standard deviations, and the number of series with "
        f"more than {RUNAWAY:g}.",
        ("corpus", "method", "error", "relative", "runaway", "series"),
        [
            (
                row.corpus,
                row.method,
                _rounded(row.score.error),
                _rounded(row.score.relative_error),
                f"{row.score.runaway:.2g}",
                str(row.score.runaways),
            )
            for row in rows
        ],
        2,
    )


def _calibration(rows: Iterable[ForecastRow]) -> Table:
    return Table(
        "Calibration",
        "Share of labels in 90 % intervals: pooled, and of the series with the lowest and the "
        "highest. KS: distance of the pooled PITs from uniform.",
        ("corpus", "method", "coverage", "lowest", "highest", "KS"),
        [
            (
                row.corpus,
                row.method,
                *map(_fixed, (row.score.coverage, row.score.lowest, row.score.highest)),
                _fixed(row.score.ks),
            )
            for row in rows
        ],
        2,
    )


def _anomalies(rows: Iterable[NabRow]) -> Table:
    return Table(
        "Anomalies: NAB, standard profile",
        "Other half: the threshold is the best one of a random half of the series, the score that "
        "of the other half; mean and standard deviation over 20 splits. In-sample: with the best "
        "threshold of all series. Alarms are at least 100 observations apart; without that every "
        "observation above the threshold is a detection.",
        ("anomaly score", "other half", "in-sample", "at .999"),
        [
            (
                row.method,
                NONE
                if math.isnan(row.score.mean)
                else f"{row.score.mean:.1f} ± {row.score.sd:.1f}",
                f"{row.score.in_sample:.1f}",
                NONE if math.isnan(row.score.fixed) else f"{row.score.fixed:.1f}",
            )
            for row in rows
        ],
        1,
    )


def show(results: Results, console: Console) -> None:
    """Print every table, and what was not measured."""
    for table in tables(results):
        console.print(table.for_terminal())
    if results.missing:
        console.print(f"not measured, as it is not there: {', '.join(results.missing)}")
    console.print(f"{results.took_s:.0f} s, torch {results.torch}, Python {results.python}")


def write_numbers(file: Path, results: Results) -> None:
    """Write all numbers as JSON."""
    text = json.dumps(as_json(results), indent=1, ensure_ascii=False, allow_nan=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n", "utf-8")


def as_json(results: Results) -> dict[str, Any]:
    """All numbers in JSON types; those that are not finite are null."""
    fields: dict[str, Any] = plain(results)
    for row in fields["forecasts"]:
        del row["score"]["pit"]
    return fields


def _whole(value: float) -> str:
    return f"{value:g}" if math.isfinite(value) else NONE


def _rounded(value: Estimate) -> str:
    """Mean and interval to three digits: scales of a warm-up may be tiny."""
    if math.isnan(value.half_width):
        return f"{value.mean:.3g}"
    return f"{value.mean:.3g} ± {value.half_width:.2g}"


def _fixed(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else NONE
