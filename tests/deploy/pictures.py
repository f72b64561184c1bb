"""Draw what a dashboard shows, panel by panel, from the answers of a Prometheus."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from tests.deploy.dashboards import Asked, of_the_service, panels
from tests.deploy.live import VARIABLES, Prometheus

BAND = ("5 %", "95 %")
WIDTH, UNIT = 12.0, 0.3  # inches of a page, and of one row of its grid
COLORS = {"green": "#3a9d5d", "yellow": "#d9a400", "red": "#c8403a", "blue": "#3b6fb5"}
SUFFIX = {"s": " s", "bytes": "B", "Bps": "B/s", "reqps": "/s", "cpm": "/min"}
Times = tuple[float, float]


def draw(dashboard: dict[str, Any], prometheus: Prometheus, times: Times, path: Path) -> None:
    """Write one picture of a dashboard as it looked over some time, in s since the epoch."""
    every = panels(dashboard)
    height = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in every)
    with mpl.rc_context({"font.size": 6.5, "axes.linewidth": 0.4, "axes.edgecolor": "#999999"}):
        figure = Figure((WIDTH, UNIT * height), dpi=80)
        for panel in every:
            _panel(figure, height, panel, prometheus, times)
        figure.savefig(path)
    with Image.open(path) as image:
        image.convert("RGB").quantize(200, dither=Image.Dither.NONE).save(path, optimize=True)


def _panel(figure: Figure, rows: int, panel: dict, prometheus: Prometheus, times: Times) -> None:
    at = panel["gridPos"]
    left, bottom = at["x"] / 24 + 0.034, 1 - (at["y"] + at["h"]) / rows
    if panel["type"] in ("row", "text"):
        title = panel["title"] if panel["type"] == "row" else panel["options"]["content"]
        title = title.replace("$stream", VARIABLES["$stream"])
        words = re.sub(r"\]\([^)]*\)|[\[`]", "", title)
        strong = "bold" if panel["type"] == "row" else "normal"
        figure.text(0.008, bottom + 0.4 / rows, words, weight=strong, size=8)
        return
    extent = (left, bottom + 1.1 / rows, at["w"] / 24 - 0.042, (at["h"] - 2.3) / rows)
    axes = figure.add_axes(extent)
    axes.set_title(panel["title"], loc="left", size=7, pad=3)
    axes.tick_params(length=2, width=0.4, pad=1.5)
    if any(of_the_service(target) for target in panel["targets"]):
        axes.axis("off")  # Prometheus has none of it
        return
    targets = [Asked(t["refId"], t["expr"], bool(t.get("instant"))) for t in panel["targets"]]
    answers = [prometheus.ask(target, *times) for target in targets]
    legends = [t.get("legendFormat", "") for t in panel["targets"]]
    kind = {"stat": _stat, "timeseries": _lines, "heatmap": _heat, "bargauge": _bars}
    if panel["type"] == "table":
        _table(axes, panel, answers)
    else:
        kind[panel["type"]](axes, panel, answers, legends, times)


def _name(legend: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), legend)


def _values(series: dict, times: Times) -> tuple[np.ndarray, np.ndarray]:
    at, values = np.array(series["values"], dtype=float).T
    return at - times[0], values


def _steps(panel: dict) -> list[tuple[float, str]]:
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    return [(-np.inf if s["value"] is None else s["value"], s["color"]) for s in steps]


def _text(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit in ("bytes", "Bps"):
        return f"{value / 1e6:.4g} M{SUFFIX[unit]}"
    return f"{value:,.4g}" + SUFFIX.get(unit, unit.removeprefix("suffix:") if ":" in unit else "")


def _stat(axes: Axes, panel: dict, answers: list, legends: list, times: Times) -> None:
    at, values = _values(answers[0][0], times)
    last = values[np.isfinite(values)][-1]
    color = COLORS[[color for bound, color in _steps(panel) if last >= bound][-1]]
    axes.plot(at, values, color=color, lw=0.8)
    axes.fill_between(at, values, min(0, np.nanmin(values)), color=color, alpha=0.15, lw=0)
    unit = panel["fieldConfig"]["defaults"]["unit"]
    decimals = panel["fieldConfig"]["defaults"].get("decimals")
    shown = last if decimals is None or unit == "percentunit" else round(last, decimals)
    axes.text(0.5, 0.5, _text(shown, unit), transform=axes.transAxes, size=12, color=color,
              ha="center", va="center", weight="bold")  # fmt: skip
    axes.set_xticks([])
    axes.set_yticks([])


def _lines(axes: Axes, panel: dict, answers: list, legends: list, times: Times) -> None:
    for legend, found in zip(legends, answers, strict=True):
        for series in found if legend not in BAND else ():
            name = _name(legend, series["metric"]) or "value"
            axes.plot(*_values(series, times), lw=1.0, label=name)
    if set(BAND) <= set(legends):
        (at, low), (_, high) = (_values(answers[legends.index(e)][0], times) for e in BAND)
        axes.fill_between(at, low, high, alpha=0.2, lw=0, label="5 % to 95 %")
    low, high = axes.get_ylim()
    for bound, color in _steps(panel)[1:]:
        if low <= bound <= high:
            axes.axhline(bound, color=COLORS[color], lw=0.7, ls="--")
    unit = panel["fieldConfig"]["defaults"]["unit"]
    axes.yaxis.set_major_formatter(lambda value, _: _text(value, unit))
    axes.set_xlim(0, times[1] - times[0])
    axes.grid(lw=0.3, color="#dddddd")
    axes.legend(loc="upper left", fontsize=5, ncols=2, framealpha=0.6, borderpad=0.3)


def _by_bucket(answers: list, times: Times) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Upper ends, times, and counts of each bucket alone (buckets, times)."""
    found = sorted(answers[0], key=lambda each: float(each["metric"]["le"]))
    rows = [_values(each, times) for each in found]
    at = max((row[0] for row in rows), key=len)
    cumulative = np.array([np.interp(at, *row) for row in rows])
    return [each["metric"]["le"] for each in found], at, np.diff(cumulative, axis=0, prepend=0.0)


def _heat(axes: Axes, panel: dict, answers: list, legends: list, times: Times) -> None:
    ends, at, counts = _by_bucket(answers, times)
    axes.pcolormesh(at, np.arange(len(ends)), counts.clip(0), cmap="Blues", shading="nearest")
    few = range(0, len(ends), max(1, len(ends) // 7))
    axes.set_yticks(few, [ends[i] for i in few])
    axes.set_xlim(0, times[1] - times[0])


def _bars(axes: Axes, panel: dict, answers: list, legends: list, times: Times) -> None:
    found = sorted(answers[0], key=lambda each: float(each["metric"]["le"]))
    values = np.diff([float(each["value"][1]) for each in found], prepend=0.0)
    steps = _steps(panel)
    colors = [COLORS[[color for bound, color in steps if v >= bound][-1]] for v in values]
    axes.bar(range(len(values)), values, color=colors)
    axes.set_xticks(range(len(values)), [each["metric"]["le"] for each in found])


def _table(axes: Axes, panel: dict, answers: list) -> None:
    named = panel["transformations"][1]["options"]["renameByName"]
    heads = ["Stream", "Model", *(named[name] for name in sorted(named) if "Value" in name)]
    rows: dict[tuple[str, str], list[str]] = {}
    for i, found in enumerate(answers):
        for each in found:
            key = each["metric"]["stream"], each["metric"]["model"]
            rows.setdefault(key, [""] * len(answers))[i] = f"{float(each['value'][1]):.3g}"
    ordered = sorted(rows.items(), key=lambda item: float(item[1][0] or "inf"))[:9]
    cells = [[*key, *values] for key, values in ordered]
    axes.axis("off")
    table = axes.table(cells, colLabels=heads, loc="upper center", edges="horizontal")
    table.auto_set_font_size(False)
    table.set_fontsize(6.5)
    for cell in table.get_celld().values():
        cell.set_linewidth(0.3)
