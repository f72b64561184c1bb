"""Every method at every hazard or other setting, on the same sequences: the paper's tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.table import Table

from training.figures import palette
from training.figures.chart import Chart
from training.figures.performance import Facet, against, curve
from training.intervals import Estimate, differences, estimate, formatted

Values = NDArray[np.float64]
NO_HAZARD = "all"


class Comparison(NamedTuple):
    """values: of each (setting, method) the metric of each test sequence, the same for all.

    metric: what it is, with its unit. better: 1 where more is better, else -1. axis: what the
    settings are.
    """

    name: str
    metric: str
    better: int
    values: Mapping[tuple[str, str], Values]
    axis: str = "hazard"

    def settings(self) -> list[str]:
        """From low to high."""
        return sorted({setting for setting, _ in self.values}, key=number)

    def methods(self) -> list[str]:
        """In the paper's order."""
        return palette.ordered(dict.fromkeys(method for _, method in self.values))

    def estimate(self, setting: str, method: str) -> Estimate | None:
        """Mean with its 95 % interval over sequences; None where it was not trained."""
        found = self.values.get((setting, method))
        return None if found is None else estimate(found)

    def lead(self, setting: str, ours: str, others: Sequence[str]) -> tuple[str, Estimate] | None:
        """The best of others, and the paired lead over it: positive is better."""
        there = [name for name in others if (setting, name) in self.values]
        if not there or (setting, ours) not in self.values:
            return None
        best = max(there, key=lambda name: self.better * self.values[setting, name].mean())
        each = differences(self.values[setting, ours], self.values[setting, best])
        return best, estimate(self.better * each)


BASELINES = ("SW5", "SW10", "SW50", "TOE", "COE")


def tables(found: Comparison) -> list[Table]:
    """One row for each method, one column for each hazard; MOCA's lead over the best baseline."""
    settings = found.settings()
    title = f"{found.name}: {found.metric}, mean and 95 % interval over test sequences"
    table = Table("method", box=SIMPLE_HEAD, title=title)
    for setting in settings:
        heading = "" if setting == NO_HAZARD else f"{found.axis} {setting}"
        table.add_column(heading, justify="right", no_wrap=True)
    for method in found.methods():
        each = [found.estimate(setting, method) for setting in settings]
        style = "bold" if method == "MOCA" else ""
        table.add_row(method, *("" if e is None else formatted(e) for e in each), style=style)
    table.add_section()
    leads = [found.lead(setting, "MOCA", BASELINES) for setting in settings]
    table.add_row(
        "MOCA's lead", *("" if each is None else f"{formatted(each[1])}" for each in leads)
    )
    table.add_row("over", *("" if each is None else each[0] for each in leads))
    return [table]


def ablation_table(found: Comparison, question: str) -> Table:
    """One row for each setting, one column for each method."""
    table = Table(found.axis, box=SIMPLE_HEAD, title=f"{question} {found.metric}")
    for method in found.methods():
        table.add_column(method, justify="right", no_wrap=True)
    for setting in found.settings():
        each = [found.estimate(setting, method) for method in found.methods()]
        table.add_row(setting, *("" if e is None else formatted(e) for e in each))
    return table


def chart(found: Comparison) -> Chart:
    """Performance against hazard, with error bars."""
    curves = []
    for method in found.methods():
        at = [setting for setting in found.settings() if (setting, method) in found.values]
        estimates = [estimate(found.values[setting, method]) for setting in at]
        curves.append(curve(method, [number(setting) for setting in at], estimates))
    return against([Facet(found.name, found.metric, curves)])


def as_json(found: Comparison, about: Mapping[tuple[str, str], Mapping[str, Any]]) -> str:
    """Numbers of the table, with what is to be said about each run."""
    rows = []
    for (setting, method), values in found.values.items():
        mean, low, high, count = estimate(values)
        rows.append(
            {
                found.axis: None if setting == NO_HAZARD else float(setting),
                "method": method,
                "metric": found.metric,
                "mean": mean,
                "low": low,
                "high": high,
                "sequences": count,
                **about.get((setting, method), {}),
            }
        )
    return json.dumps({"name": found.name, "rows": rows}, indent=1)


def markdown(found: Comparison) -> str:
    """The table for a page of results."""
    settings = found.settings()
    heads = ["" if each == NO_HAZARD else each for each in settings]
    what = found.metric if settings == [NO_HAZARD] else f"{found.metric} by {found.axis}"
    lines = [f"| {what} | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for method in found.methods():
        each = [found.estimate(setting, method) for setting in settings]
        cells = " | ".join("" if e is None else formatted(e) for e in each)
        lines.append(f"| {method} | {cells} |")
    return "\n".join(lines) + "\n"


def save(found: Comparison, about: Mapping[tuple[str, str], Mapping[str, Any]], out: Path) -> None:
    """Write `table.json` and `table.md`."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.json").write_text(as_json(found, about) + "\n")
    (out / "table.md").write_text(markdown(found))


def number(setting: str) -> float:
    """Where a setting stands on an axis."""
    return 1.0 if setting == NO_HAZARD else float(setting)
