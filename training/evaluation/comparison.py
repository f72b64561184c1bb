"""Tables of the paper: every method at every hazard or other setting, on the same sequences."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.table import Table

from training.figures.drawing import Chart, ordered
from training.figures.performance import Curve, against, curve
from training.statistics import Estimate, estimate, formatted, paired

Values = NDArray[np.float64]
NO_HAZARD = "all"


class Comparison(NamedTuple):
    """Scores of methods by setting.

    values: by (setting, method), the metric of each test sequence, the same for all. metric: its
    name and unit. better: 1 where more is better, else -1. axis: the name of the settings.
    """

    name: str
    metric: str
    better: int
    values: Mapping[tuple[str, str], Values]
    axis: str = "hazard"

    def settings(self) -> list[str]:
        """Settings, ascending."""
        return sorted({setting for setting, _ in self.values}, key=number)

    def methods(self) -> list[str]:
        """Methods in the paper's order."""
        return ordered(dict.fromkeys(method for _, method in self.values))

    def estimate(self, setting: str, method: str) -> Estimate | None:
        """Mean with its 95 % interval over sequences; None where it was not trained."""
        values = self.values.get((setting, method))
        return None if values is None else estimate(values)

    def lead(self, setting: str, ours: str, others: Sequence[str]) -> tuple[str, Estimate] | None:
        """The best of others, and the paired lead over it: positive is better."""
        present = [name for name in others if (setting, name) in self.values]
        if not present or (setting, ours) not in self.values:
            return None
        best = max(present, key=lambda name: self.better * self.values[setting, name].mean())
        return best, self._lead((setting, ours), (setting, best))

    def ahead(self, method: str, setting: str, other: str) -> Estimate:
        """Paired lead of a method in one setting over another on the same sequences."""
        return self._lead((setting, method), (other, method))

    def _lead(self, ours: tuple[str, str], theirs: tuple[str, str]) -> Estimate:
        return paired(self.better * self.values[ours], self.better * self.values[theirs])

    def curves(self) -> list[Curve]:
        """Means of each method by setting, which are numbers."""
        curves = []
        for method in self.methods():
            at = [setting for setting in self.settings() if (setting, method) in self.values]
            estimates = [estimate(self.values[setting, method]) for setting in at]
            curves.append(curve(method, [number(setting) for setting in at], estimates))
        return curves


BASELINES = ("SW5", "SW10", "SW50", "TOE", "COE")
# What the paper has for methods (fig. 4), mean and half of the interval: on games of its own.
_PAPER_PLAYERS = {
    "MOCA": (-3.291, 0.074),
    "SW5": (-3.032, 0.058),
    "SW10": (-3.049, 0.054),
    "SW50": (-3.061, 0.054),
    "TOE": (0.889, 0.073),
    "COE": (-3.044, 0.059),
}
HERE, PAPERS = "here", "the paper, its games"
PAPER = {
    "players": {
        method: Estimate(mean, mean - half, mean + half, 200)
        for method, (mean, half) in _PAPER_PLAYERS.items()
    }
}


def tables(comparison: Comparison) -> list[Table]:
    """One row for each method, one column for each hazard; MOCA's lead over the best baseline.

    Where the paper has numbers in a table, they are the last column.
    """
    settings = comparison.settings()
    title = f"{comparison.name}: {comparison.metric}, mean and 95 % interval over test sequences"
    table = Table(box=SIMPLE_HEAD, title=title)
    # Numbers are broken before names are, where a terminal is too narrow for both.
    table.add_column("method", min_width=12)
    for setting in settings:
        heading = HERE if setting == NO_HAZARD else f"{comparison.axis} {setting}"
        table.add_column(heading, justify="right")
    if comparison.name in PAPER:
        table.add_column(PAPERS, justify="right")
    for method in comparison.methods():
        style = "bold" if method == "MOCA" else ""
        table.add_row(method, *_cells(comparison, method), style=style)
    table.add_section()
    leads = [comparison.lead(setting, "MOCA", BASELINES) for setting in settings]
    table.add_row("MOCA's lead", *("" if lead is None else formatted(lead[1]) for lead in leads))
    table.add_row("over", *("" if lead is None else lead[0] for lead in leads))
    return [table]


def ablation_table(comparison: Comparison, question: str) -> Table:
    """One row for each setting, one column for each method."""
    table = Table(comparison.axis, box=SIMPLE_HEAD, title=f"{question} {comparison.metric}")
    methods, (first, *others) = comparison.methods(), comparison.settings()
    for method in methods:
        table.add_column(method, justify="right", no_wrap=True)
    paired = len(methods) == 1 and bool(others)
    if paired:
        table.add_column(f"ahead of {first}", justify="right", no_wrap=True)
    for setting in (first, *others):
        estimates = [comparison.estimate(setting, method) for method in methods]
        cells = ["" if e is None else formatted(e) for e in estimates]
        if paired and setting != first:
            cells.append(formatted(comparison.ahead(methods[0], setting, first)))
        table.add_row(setting, *cells)
    return table


def chart(comparison: Comparison) -> Chart:
    """Performance against hazard, with error bars."""
    title = f"{comparison.name}: performance against hazard"
    return against(comparison.curves(), comparison.metric, title)


def as_json(comparison: Comparison, details: Mapping[tuple[str, str], Mapping[str, Any]]) -> str:
    """Numbers of the table, with the details of each run."""
    rows = []
    for (setting, method), values in comparison.values.items():
        mean, low, high, count = estimate(values)
        rows.append(
            {
                comparison.axis: None if setting == NO_HAZARD else float(setting),
                "method": method,
                "metric": comparison.metric,
                "mean": mean,
                "low": low,
                "high": high,
                "sequences": count,
                **details.get((setting, method), {}),
            }
        )
    return json.dumps({"name": comparison.name, "rows": rows}, indent=1)


def markdown(comparison: Comparison) -> str:
    """The table for a page of results."""
    settings = comparison.settings()
    heads = [HERE if setting == NO_HAZARD else setting for setting in settings]
    heads += [PAPERS] if comparison.name in PAPER else []
    what = (
        comparison.metric
        if settings == [NO_HAZARD]
        else f"{comparison.metric} by {comparison.axis}"
    )
    lines = [f"| {what} | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for method in comparison.methods():
        lines.append(f"| {method} | {' | '.join(_cells(comparison, method))} |")
    return "\n".join(lines) + "\n"


def _cells(comparison: Comparison, method: str) -> list[str]:
    """A method's numbers in each setting, then the paper's where it has any."""
    estimates = [comparison.estimate(setting, method) for setting in comparison.settings()]
    if comparison.name in PAPER:
        estimates.append(PAPER[comparison.name].get(method))
    return ["" if each is None else formatted(each) for each in estimates]


def save(
    comparison: Comparison, details: Mapping[tuple[str, str], Mapping[str, Any]], out: Path
) -> None:
    """Write `table.json` and `table.md`."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.json").write_text(as_json(comparison, details) + "\n")
    (out / "table.md").write_text(markdown(comparison))


def number(setting: str) -> float:
    """Position of a setting on an axis."""
    return 1.0 if setting == NO_HAZARD else float(setting)
