"""`moca evaluate EXPERIMENT`: trained runs on the paper's test protocol, tables and ablations."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from training.config import Objective
from training.data.base import Splits
from training.errors import BadRun
from training.evaluation.trained import PROTOCOLS, Trained, best, scores, trained
from training.experiments import catalogue, grid
from training.experiments.catalogue import Place
from training.experiments.grid import Ablation
from training.figures import performance
from training.figures.drawing import Chart, ordered
from training.figures.performance import Curve, against, curve
from training.meta_training.runs import Run
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


def method_table(comparison: Comparison) -> Table:
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


def hazard_chart(comparison: Comparison) -> Chart:
    """Performance against hazard, with error bars."""
    title = f"{comparison.name}: performance against hazard"
    return against(comparison.curves(), comparison.metric, title)


def table_json(comparison: Comparison, details: Mapping[tuple[str, str], Mapping[str, Any]]) -> str:
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


def save_table(
    comparison: Comparison,
    printed: Table,
    details: Mapping[tuple[str, str], Mapping[str, Any]],
    out: Path,
) -> None:
    """Write `table.json` and `table.md`."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.json").write_text(table_json(comparison, details) + "\n")
    (out / "table.md").write_text(printed.markdown())


def number(setting: str) -> float:
    """Position of a setting on an axis."""
    return 1.0 if setting == NO_HAZARD else float(setting)


UNITS = {"nll": "test NLL (nats)", "accuracy": "test accuracy"}
# Names of the crossed methods in tables and figures (paper, app. D.3).
SUPERVISED = "MOCA, told in the test"
UNSUPERVISED = "oracle, untold in the test"


class Study(NamedTuple):
    """What to evaluate, and where results go."""

    experiment: str
    preset: str
    runs: Path
    place: Place
    out: Path

    @property
    def folder(self) -> Path:
        """Folder of the runs; an ablation's are kept under its name in place of the preset's."""
        return self.runs / self.experiment / self.preset


class Evaluated(NamedTuple):
    """Runs, data and scores that the figures of an experiment are drawn from."""

    wanted: Study
    chosen: Mapping[tuple[str, str], Trained]
    splits: Mapping[str, Splits]
    comparison: Comparison


def evaluate(wanted: Study, draw: Callable[[Evaluated], list[tuple[str, Chart]]]) -> Comparison:
    """Print the table, write it and the figures; raises BadRun where nothing is trained."""
    torch.set_num_threads(1)
    console = Console()
    chosen = {
        (NO_HAZARD if hazard is None else f"{hazard:g}", method): run
        for (hazard, method), run in best(list(trained(wanted.folder))).items()
    }
    if not chosen:
        raise BadRun(f"{wanted.folder}: no finished run; run moca train {wanted.experiment}")
    _check_alike(chosen, wanted.folder)
    splits = {
        setting: catalogue.splits(run.config, wanted.place) for (setting, _), run in chosen.items()
    }
    values: dict[tuple[str, str], Values] = {}
    protocol = PROTOCOLS[wanted.experiment]
    for (setting, method), run in track(chosen.items(), "testing", console=console, transient=True):
        values[setting, method] = scores(run, splits[setting], protocol)
        values |= _crossed(setting, method, run, splits[setting])
    comparison = Comparison(wanted.experiment, UNITS[protocol.metric], protocol.better, values)
    table = method_table(comparison)
    console.print(table.for_terminal())
    details = {key: about(run) for key, run in chosen.items()}
    save_table(comparison, table, details, wanted.out)
    charts = []
    if len(comparison.settings()) > 1:
        charts.append(("performance", hazard_chart(comparison)))
    charts += draw(Evaluated(wanted, chosen, splits, comparison))
    for name, chart in charts:
        chart.save(wanted.out / name)
    console.print(f"tables and {len(charts)} figures in {wanted.out}")
    return comparison


def evaluate_ablation(wanted: Study, name: str) -> Comparison:
    """Test the runs of one question on the same sequences: print and write table and figure.

    Raises BadRun where runs are missing.
    """
    torch.set_num_threads(1)
    console = Console()
    ablation = grid.ablation(name, wanted.experiment)
    protocol = PROTOCOLS[wanted.experiment]
    values: dict[tuple[str, str], Values] = {}
    details = {}
    shares = ablation.supervision
    pairs = [(variation, share) for variation in ablation.variations for share in shares]
    for variation, share in track(pairs, "testing", console=console, transient=True):
        run = Run(wanted.folder / grid.cell(variation).name)
        if not run.done:
            raise BadRun(
                f"{run.folder}: not finished; run moca train {wanted.experiment} --ablation {name}"
            )
        done = Trained(run, run.config(), run.result())
        splits = catalogue.splits(done.config, wanted.place)
        alone = len(shares) == 1
        method = variation.method if alone else f"told {share:g} in the test"
        mode = ablation.mode or done.config.objective.mode
        tested = Objective(mode=mode, supervision=share)
        values[variation.setting, method] = scores(done, splits, protocol, tested)
        details[variation.setting, method] = about(done)
    unit = UNITS[protocol.metric]
    comparison = Comparison(name, unit, protocol.better, values, ablation.axis)
    table = ablation_table(comparison, ablation.question)
    console.print(table.for_terminal())
    save_table(comparison, table, details, wanted.out)
    _ablation_chart(comparison, ablation).save(wanted.out / name)
    console.print(f"table and figure in {wanted.out}")
    return comparison


def _ablation_chart(comparison: Comparison, ablation: Ablation) -> Chart:
    if len(ablation.supervision) == 1:
        curves = comparison.curves()
        return performance.against(curves, comparison.metric, ablation.question, ablation.axis)
    settings = comparison.settings()
    methods = comparison.methods()
    means = [[comparison.values[s, m].mean() for m in methods] for s in settings]
    trained = (ablation.axis, [float(setting) for setting in settings])
    tested = ("share of switches told in the test", ablation.supervision)
    return performance.table(np.array(means), trained, tested, comparison.metric, ablation.question)


def _check_alike(chosen: Mapping[tuple[str, str], Trained], folder: Path) -> None:
    """Methods are compared on the same sequences, so at a hazard all have the same data."""
    first: dict[str, Trained] = {}
    for (setting, _), run in chosen.items():
        other = first.setdefault(setting, run)
        if other.config.data != run.config.data:
            names = f"{other.run.folder.name} and {run.run.folder.name}"
            raise BadRun(f"{folder}: {names} have different data; use a folder or preset for each")


def _crossed(
    setting: str, method: str, run: Trained, splits: Splits
) -> dict[tuple[str, str], Values]:
    """Trained without switches and tested with them, and the other way round (paper, app. D.3)."""
    if method not in ("MOCA", "oracle"):
        return {}
    other, name = ("oracle", SUPERVISED) if method == "MOCA" else ("moca", UNSUPERVISED)
    protocol = PROTOCOLS[run.config.experiment]
    try:
        value = scores(run, splits, protocol, Objective(mode=other))
    except ValueError:  # the switches of the data are unknown
        return {}
    return {(setting, name): value}


def about(run: Trained) -> dict[str, Any]:
    """Details of a run beside its numbers in `table.json`."""
    return {
        "learning_rate": run.config.optimiser.learning_rate,
        "iterations": run.result["iterations"],
        "seconds": round(run.result["elapsed_s"], 1),
        "seed": run.config.seed,
    }
