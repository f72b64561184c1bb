"""The results of `moca evaluate all`: tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from training.figures import Chart, Dots, dots
from training.quality.baselines import ALWAYS, EVEN
from training.quality.measures import LITTLE, SETTLED_FROM, SPREAD
from training.quality.scores import MARGIN, REPETITIONS, RUNAWAY, WIDEST, WITHIN
from training.quality.series import MARGINS, TCPD, Sizes
from training.results import Table
from training.statistics import alone

Results = dict[str, Any]  # as of `measures.evaluate`
INTERVAL = "mean and 95 % bootstrap interval over series"
TARGET = 0.5  # false alarms per 1,000 that are asked for
LEAST_RATE = 0.02  # below which the axis of rates is linear
CHEAP = (
    f"In-sample: {EVEN} has the true number of changes of each series, {ALWAYS} marks every mean "
    "regime of the corpus, which no detector knows."
)
COMPARED = ("normal", "Student-t3", "lognormal", "AR(0.5)", "season of 24")  # by their delays
FAMILY = ("family", "{family}")
CORPUS = ("corpus", "{corpus}")
METHOD = ("method", "{method}")
SCORED = ("anomaly score", "{method}")


def tables(results: Results) -> list[Table]:
    """Tables of all results."""
    sizes = Sizes()
    one = sizes.periods[-1] / (sizes.quiet * sizes.quiet_length)
    content = [
        Table.of(
            "Simulated families",
            f"False alarms per 1,000 quiet observations ({INTERVAL}); then for each size of shift "
            f"the median delay, in observations, and the share found within {sizes.within}. A "
            "method that alarms all the time also finds shifts. FOCuS is an oracle: it knows the "
            "scale of the noise, and its threshold is in-sample, the lowest at which it has no "
            "more false alarms on these very series than the method it is named for.",
            results["families"],
            FAMILY,
            METHOD,
            ("false per 1,000", "{false:.2f}"),
            *(
                (f"{by:g} sd", f"{{delay[{k}]:g}} ({{found[{k}]:.0%}})")
                for k, by in enumerate(sizes.shifts)
            ),
            named=2,
        ),
        Table.of(
            "Alarms asked for and got",
            "Confirmed changes on quiet series over those asked for, by `false_alarm_every` "
            f"({INTERVAL}). Steady: share of the observations from {SETTLED_FROM} on at which "
            f"`changed_probability` is at most {LITTLE:g}. Of the longest period one alarm in all "
            f"the series of a family is {one:g}.",
            results["periods"],
            FAMILY,
            METHOD,
            ("every", "{every:,.0f}"),
            ("got over asked", "{got:.2f}"),
            ("steady", "{steady:.1%}"),
            named=3,
        ),
        Table.of(
            "Delays early and later",
            "Observations up to the confirmation of a shift of a normal series that comes after so "
            f"many, the first one included; {sizes.aged} series each; and the share found within "
            f"{sizes.within}.",
            results["ages"],
            ("after", "{after}"),
            METHOD,
            ("shift", "{shift:g} sd"),
            ("median", "{delay:g}"),
            ("90 %", "{late:g}"),
            ("found", "{found:.0%}"),
            named=3,
        ),
    ]
    for corpus in corpora(results):
        f1 = ("F1", "{f1}")
        detections = ("detections", "{detections}")
        if corpus == TCPD:
            caption = f"F1 (margin {MARGIN}) and covering by the benchmark's scorer, {INTERVAL}. "
            columns = [METHOD, f1, ("covering", "{cover}"), detections]
        else:
            within = MARGINS[corpus]
            caption = f"F1 of detected changes within {within} observations, {INTERVAL}. "
            columns = [METHOD, f1, detections]
        rows = [row for row in results["changes"] if row["corpus"] == corpus]
        content.append(Table.of(f"Changes: {corpus}", caption + CHEAP, rows, *columns))
    content += [
        Table.of(
            "Choices: TCPD",
            f"The best of the defaults and {sizes.candidates} random settings around them (each "
            f"constant times 1/{SPREAD:g} to {SPREAD:g}) on a random half of the series, scored on "
            "the other half; the defaults on the same halves; mean and standard deviation over "
            f"{REPETITIONS} splits. Beaten: share of the random settings that the defaults beat on "
            "all series.",
            results["selection"],
            METHOD,
            ("output", "{output}"),
            ("chosen: F1", "{chosen[0][0]:.3f} ± {chosen[0][1]:.3f}"),
            ("covering", "{chosen[1][0]:.3f} ± {chosen[1][1]:.3f}"),
            ("defaults: F1", "{default[0][0]:.3f} ± {default[0][1]:.3f}"),
            ("covering", "{default[1][0]:.3f} ± {default[1][1]:.3f}"),
            ("beaten", "{beaten:.0%}"),
            named=2,
        ),
        Table.of(
            "Forecasts: log score and CRPS",
            f"One step ahead, each series in the scale of its warm-up, {INTERVAL}. Lead: log score "
            "less that of the last value, median over series. Relative: CRPS as a share of the "
            "last value's, geometric mean over series.",
            results["forecasts"],
            CORPUS,
            METHOD,
            ("log score", _rounded("log_score")),
            ("lead", "{score[lead]:.3f}"),
            ("CRPS", _rounded("crps")),
            ("relative", _rounded("relative_crps")),
            named=2,
        ),
        Table.of(
            "Forecasts: error and runaways",
            f"Mean absolute error in the scale of the warm-up, {INTERVAL}; as a share of the last "
            "value's, geometric mean over series. Behind: series where it is larger than the last "
            "value's; worst: the largest share of that. Runaway: largest distance of a forecast "
            "from the range of the labels, in their standard deviations; runaways: series with "
            f"more than {RUNAWAY:g}.",
            results["forecasts"],
            CORPUS,
            METHOD,
            ("error", _rounded("error")),
            ("relative", _rounded("relative_error")),
            ("behind", "{score[behind]}"),
            ("worst", "{score[worst]:.2f}"),
            ("runaway", "{score[runaway]:.2g}"),
            ("runaways", "{score[runaways]}"),
            named=2,
        ),
        Table.of(
            "Calibration",
            "Share of labels in 90 % intervals: pooled, and of the series with the lowest and the "
            f"highest. Calibrated: share of the series with {WITHIN[0]:g} to {WITHIN[1]:g}. KS: "
            "distance of the pooled PITs from uniform, of models before they are corrected.",
            results["forecasts"],
            CORPUS,
            METHOD,
            ("coverage", "{score[coverage]:.3f}"),
            ("lowest", "{score[lowest]:.3f}"),
            ("highest", "{score[highest]:.3f}"),
            ("calibrated", "{score[calibrated]:.0%}"),
            ("KS", "{score[ks]:.3f}"),
            named=2,
        ),
        Table.of(
            "Anomalies: NAB, standard profile",
            "Other half: the threshold is the best one of a random half of the series, the score "
            f"that of the other half; mean and standard deviation over {REPETITIONS} splits. "
            "In-sample: with the best threshold of all series. Alarms are at least 100 "
            "observations apart; without that every observation above the threshold is a "
            "detection.",
            results["nab"],
            SCORED,
            ("other half", "{score.mean:.1f} ± {score.sd:.1f}"),
            ("in-sample", "{score.in_sample:.1f}"),
            ("at .999", "{score.fixed:.1f}"),
        ),
        Table.of(
            "Anomalies: NAB, VUS-PR",
            "Volume under the surface of precision, recall and the width of a buffer around "
            f"labelled windows, 0 to {WIDEST} observations, {INTERVAL} that have one. It needs no "
            "threshold. In-sample: the form of the anomaly was chosen on these series.",
            results["vus"],
            SCORED,
            ("VUS-PR", "{vus}"),
        ),
    ]
    return [table for table in content if table.rows]


def _rounded(name: str) -> str:
    """Mean and interval to three digits: scales of a warm-up may be tiny."""
    return f"{{score[{name}].mean:.3g}} ± {{score[{name}].half_width:.2g}}"


def corpora(results: Results) -> list[str]:
    """Names of the corpora whose changes were scored."""
    return list(dict.fromkeys(row["corpus"] for row in results["changes"]))


def show(results: Results, console: Console) -> None:
    """Print every table, and what was not measured."""
    for table in tables(results):
        console.print(table.for_terminal())
    if results["missing"]:
        console.print(f"not measured, as it is not there: {', '.join(results['missing'])}")
    console.print("{took_s:.0f} s, torch {torch}, Python {python}".format(**results))


def write(folder: Path, results: Results) -> None:
    """Write `tables.md`, and each figure as PNG and SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n".join(table.markdown() for table in tables(results))
    (folder / "tables.md").write_text(text, "utf-8")
    for name, chart in charts(results["families"]).items():
        chart.save(folder / name)


def charts(families: Sequence[Mapping[str, Any]]) -> dict[str, Chart]:
    """Figures of the simulated families, by name."""
    rates = {(row["family"], row["method"]): row["false"] for row in families}
    false_alarms = dots(
        "False alarms on simulated families",
        [Dots("false alarms per 1,000 observations", rates, floor=LEAST_RATE, rule=TARGET)],
        "False alarms on quiet series, with 95 % intervals over series. "
        f"The dashed line is at {TARGET:g}.",
    )
    compared = [row for row in families if row["family"] in COMPARED]
    panels = [
        Dots(
            "median delay (observations)",
            {(row["family"], row["method"]): alone(row["delay"][k]) for row in compared},
            f"shift of {shift:g} sd",
        )
        for k, shift in enumerate(Sizes().shifts)
    ]
    delays = dots(
        "Delay of alarms on simulated families",
        panels,
        "Median delay at shifts of so many standard deviations, the first observation "
        "included; none where fewer than half of the shifts are found.",
    )
    return {"false_alarms": false_alarms, "delays": delays}
