"""Tables of the paper: every method at every hazard or other setting, on the same sequences."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.figures.drawing import Chart, ordered
from training.figures.performance import Curve, against, curve
from training.results import Table
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


def table(comparison: Comparison) -> Table:
    """One row for each method, one column for each hazard; MOCA's lead over the best baseline.

    Where the paper has numbers in a table, they are the last column.
    """
    settings = comparison.settings()
    heads = [HERE if setting == NO_HAZARD else f"hazard {setting}" for setting in settings]
    rows = []
    papers = PAPER.get(comparison.name)
    for method in comparison.methods():
        estimates = [comparison.estimate(setting, method) for setting in settings]
        if papers is not None:
            estimates.append(papers.get(method))
        cells = ["" if value is None else formatted(value) for value in estimates]
        rows.append((method, *cells))
    leads = [comparison.lead(setting, "MOCA", BASELINES) for setting in settings]
    cells = ["" if lead is None else f"{formatted(lead[1])} over {lead[0]}" for lead in leads]
    rows.append(("MOCA's lead", *cells, *([] if papers is None else [""])))
    if papers is not None:
        heads.append(PAPERS)
    title = f"{comparison.name}: {comparison.metric}"
    caption = "Mean and 95 % interval over test sequences; paired lead over the best baseline."
    return Table(title, caption, ("method", *heads), rows)


def ablation_table(comparison: Comparison, question: str) -> Table:
    """One row for each setting, one column for each method."""
    methods = comparison.methods()
    first, *others = comparison.settings()
    heads = [comparison.axis, *methods]
    compared = len(methods) == 1 and bool(others)
    if compared:
        heads.append(f"ahead of {first}")
    rows = []
    for setting in (first, *others):
        estimates = [comparison.estimate(setting, method) for method in methods]
        cells = ["" if value is None else formatted(value) for value in estimates]
        if compared:
            ahead = comparison.ahead(methods[0], setting, first)
            cells.append("" if setting == first else formatted(ahead))
        rows.append((setting, *cells))
    caption = f"{comparison.metric}, mean and 95 % interval over test sequences."
    return Table(question, caption, tuple(heads), rows)


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


def save(
    comparison: Comparison,
    printed: Table,
    details: Mapping[tuple[str, str], Mapping[str, Any]],
    out: Path,
) -> None:
    """Write `table.json` and `table.md`."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.json").write_text(as_json(comparison, details) + "\n")
    (out / "table.md").write_text(printed.markdown())


def number(setting: str) -> float:
    """Position of a setting on an axis."""
    return 1.0 if setting == NO_HAZARD else float(setting)
