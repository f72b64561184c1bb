"""`moca evaluate EXPERIMENT`: trained runs on the paper's test protocol, tables and ablations."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from training import catalogue, figures, trained
from training.config import Objective
from training.data.files import Place
from training.data.windows import Batch, Splits
from training.errors import BadRun
from training.figures import Chart, Curves
from training.meta_training.runs import Run
from training.results import Table
from training.statistics import Estimate, estimate, paired
from training.trained import Protocol

Values = NDArray[np.float64]
Charts = list[tuple[str, Chart]]  # by the name of their files
Setting = float | None  # the hazard; None if that of the data is unknown

BASELINES = ("SW5", "SW10", "SW50", "TOE", "COE")
# Names of the crossed methods in tables and figures (paper, app. D.3).
SUPERVISED = "MOCA, told in the test"
UNSUPERVISED = "oracle, untold in the test"
# Trained without switches and tested with them, and the other way round: mode of the test, name.
CROSSED = {"MOCA": ("oracle", SUPERVISED), "oracle": ("moca", UNSUPERVISED)}
# What the paper has for methods (fig. 4), mean and half of the interval: on games of its own.
PAPERS = {
    "players": {
        "MOCA": (-3.291, 0.074),
        "SW5": (-3.032, 0.058),
        "SW10": (-3.049, 0.054),
        "SW50": (-3.061, 0.054),
        "TOE": (0.889, 0.073),
        "COE": (-3.044, 0.059),
    }
}
STEPS = 150  # of a sequence whose belief is drawn


class Comparison(NamedTuple):
    """Scores of methods by setting.

    values: by (setting, method), the metric of each test sequence, the same for all. metric: its
    name and unit. better: 1 where more is better, else -1. axis: the name of the settings.
    """

    name: str
    metric: str
    better: int
    values: Mapping[tuple[Setting, str], Values]
    axis: str = "hazard"

    def settings(self) -> list[Setting]:
        """Settings, ascending."""
        return sorted({setting for setting, _ in self.values}, key=lambda setting: setting or 0.0)

    def methods(self) -> list[str]:
        """Methods in the paper's order."""
        return list(figures.looks({method: None for _, method in self.values}))

    def cell(self, setting: Setting, method: str) -> str:
        """Mean with its 95 % interval over sequences; empty where it was not trained."""
        values = self.values.get((setting, method))
        return "" if values is None else str(estimate(values))

    def ahead(self, ours: tuple[Setting, str], theirs: tuple[Setting, str]) -> Estimate:
        """Paired lead of a setting and method over another on the same sequences."""
        return paired(self.better * self.values[ours], self.better * self.values[theirs])

    def lead(self, setting: Setting) -> tuple[str, Estimate] | None:
        """The best baseline, and MOCA's paired lead over it: positive is better."""
        present = [name for name in BASELINES if (setting, name) in self.values]
        if not present or (setting, "MOCA") not in self.values:
            return None
        best = max(present, key=lambda name: self.better * self.values[setting, name].mean())
        return best, self.ahead((setting, "MOCA"), (setting, best))

    def curves(self) -> Curves:
        """Means of each method by setting, which are numbers."""
        return {
            method: {
                setting or 0.0: estimate(self.values[setting, method])
                for setting in self.settings()
                if (setting, method) in self.values
            }
            for method in self.methods()
        }

    def hazard_chart(self) -> Chart:
        """Performance against hazard, with error bars."""
        title = f"{self.name}: performance against hazard"
        return figures.against(self.curves(), self.metric, title)


def method_table(comparison: Comparison) -> Table:
    """One row for each method, one column for each hazard; MOCA's lead over the best baseline.

    Where the paper has numbers in a table, they are the last column.
    """
    settings = comparison.settings()
    heads = ["here" if setting is None else f"hazard {setting:g}" for setting in settings]
    rows = [
        [method, *(comparison.cell(setting, method) for setting in settings)]
        for method in comparison.methods()
    ]
    leads = [comparison.lead(setting) for setting in settings]
    cells = ["" if lead is None else f"{lead[1]} over {lead[0]}" for lead in leads]
    rows.append(["MOCA's lead", *cells])
    if comparison.name in PAPERS:
        heads.append("the paper, its games")
        papers = PAPERS[comparison.name]
        for row in rows:
            row.append("{:.3f} ± {:.3f}".format(*papers[row[0]]) if row[0] in papers else "")
    title = f"{comparison.name}: {comparison.metric}"
    caption = "Mean and 95 % interval over test sequences; paired lead over the best baseline."
    return Table(title, caption, ("method", *heads), [tuple(row) for row in rows])


def ablation_table(comparison: Comparison, question: str) -> Table:
    """One row for each setting, one column for each method."""
    methods = comparison.methods()
    first, *others = comparison.settings()
    heads = [comparison.axis, *methods]
    compared = len(methods) == 1 and bool(others)
    if compared:
        heads.append(f"ahead of {first:g}")
    rows = []
    for setting in (first, *others):
        cells = [comparison.cell(setting, method) for method in methods]
        if compared:
            ahead = comparison.ahead((setting, methods[0]), (first, methods[0]))
            cells.append("" if setting == first else str(ahead))
        rows.append((f"{setting:g}", *cells))
    caption = f"{comparison.metric}, mean and 95 % interval over test sequences."
    return Table(question, caption, tuple(heads), rows)


def show_table(
    comparison: Comparison,
    table: Table,
    runs: Mapping[tuple[Setting, str], Run],
    out: Path,
    console: Console,
) -> None:
    """Print a table; write `table.md`, and `table.json` with details of the runs that are there."""
    console.print(table.for_terminal())
    rows = []
    for (setting, method), values in comparison.values.items():
        mean, low, high, count = estimate(values)
        row = {
            comparison.axis: setting,
            "method": method,
            "metric": comparison.metric,
            "mean": mean,
            "low": low,
            "high": high,
            "sequences": count,
        }
        run = runs.get((setting, method))
        if run is not None:
            row |= {
                "learning_rate": run.config.optimiser.learning_rate,
                "iterations": run.result["iterations"],
                "seconds": round(run.result["elapsed_s"], 1),
                "seed": run.config.seed,
            }
        rows.append(row)
    table.save(out, {"name": comparison.name, "rows": rows})


def save_charts(charts: Charts, out: Path, console: Console) -> None:
    """Write figures beside the tables."""
    for name, chart in charts:
        chart.save(out / name)
    console.print(f"tables and figures in {out}")


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

    def chosen(self) -> dict[tuple[Setting, str], Run]:
        """The best run of each hazard and method; raises BadRun where nothing is trained."""
        chosen = trained.best(trained.finished(self.folder))
        if not chosen:
            raise BadRun(f"{self.folder}: no finished run; run moca train {self.experiment}")
        return chosen


class Evaluated(NamedTuple):
    """Runs, data and scores that the figures of an experiment are drawn from."""

    wanted: Study
    chosen: Mapping[tuple[Setting, str], Run]
    splits: Mapping[Setting, Splits]
    comparison: Comparison

    def mocas(self) -> list[tuple[Setting, Run, Splits]]:
        """Setting, MOCA's run and the data of each setting."""
        return [
            (setting, run, self.splits[setting])
            for (setting, method), run in self.chosen.items()
            if method == "MOCA"
        ]


def evaluate(wanted: Study) -> Comparison:
    """Print the table, write it and the figures; raises BadRun where nothing is trained."""
    torch.set_num_threads(1)
    console = Console()
    chosen = wanted.chosen()
    first: dict[Setting, Run] = {}
    for (setting, _), run in chosen.items():
        # Methods are compared on the same sequences, so at a hazard all have the same data.
        other = first.setdefault(setting, run)
        if other.config.data != run.config.data:
            names = f"{other.folder.name} and {run.folder.name}"
            raise BadRun(
                f"{wanted.folder}: {names} have different data; use a folder or preset for each"
            )
    splits = {setting: catalogue.splits(run.config, wanted.place) for setting, run in first.items()}
    values: dict[tuple[Setting, str], Values] = {}
    experiment = catalogue.module(wanted.experiment)
    protocol: Protocol = experiment.PROTOCOL
    for (setting, method), run in track(chosen.items(), "testing", console=console, transient=True):
        values[setting, method] = trained.scores(run, splits[setting], protocol)
        if method in CROSSED:
            mode, name = CROSSED[method]
            # Not where the switches of the data are unknown.
            with suppress(ValueError):
                values[setting, name] = trained.scores(
                    run, splits[setting], protocol, Objective(mode=mode)
                )
    comparison = Comparison(wanted.experiment, protocol.measure, protocol.better, values)
    show_table(comparison, method_table(comparison), chosen, wanted.out, console)
    charts: Charts = []
    if len(comparison.settings()) > 1:
        charts.append(("performance", comparison.hazard_chart()))
    charts += experiment.draw(Evaluated(wanted, chosen, splits, comparison))
    save_charts(charts, wanted.out, console)
    return comparison


def evaluate_ablation(wanted: Study, name: str) -> Comparison:
    """Test the runs of one question on the same sequences: print and write table and figure.

    Raises BadRun where runs are missing.
    """
    torch.set_num_threads(1)
    console = Console()
    ablation = catalogue.ablation(name, wanted.experiment)
    protocol: Protocol = catalogue.module(wanted.experiment).PROTOCOL
    values: dict[tuple[Setting, str], Values] = {}
    runs: dict[tuple[Setting, str], Run] = {}
    shares = ablation.supervision
    pairs = [(variation, share) for variation in ablation.variations for share in shares]
    for variation, share in track(pairs, "testing", console=console, transient=True):
        run = Run(wanted.folder / variation.name)
        if not run.done:
            raise BadRun(
                f"{run.folder}: not finished; run moca train {wanted.experiment} --ablation {name}"
            )
        method = variation.method if len(shares) == 1 else f"told {share:g} in the test"
        tested = Objective(mode=ablation.mode or run.config.objective.mode, supervision=share)
        splits = catalogue.splits(run.config, wanted.place)
        values[variation.setting, method] = trained.scores(run, splits, protocol, tested)
        runs[variation.setting, method] = run
    comparison = Comparison(name, protocol.measure, protocol.better, values, ablation.axis)
    table = ablation_table(comparison, ablation.question)
    show_table(comparison, table, runs, wanted.out, console)
    chart = figures.against(comparison.curves(), protocol.measure, ablation.question, ablation.axis)
    save_charts([(name, chart)], wanted.out, console)
    return comparison


def first_sequence(run: Run, splits: Splits) -> Batch:
    """The first test sequence, as far as its belief is drawn."""
    return trained.sequences(splits, trained.protocol(run)).part(slice(0, 1)).cut(0, STEPS)


def classifier_charts(evaluated: Evaluated) -> Charts:
    """MOCA's belief and calibration at each hazard, and validation of every method."""
    charts: Charts = []
    for setting, run, splits in evaluated.mocas():
        batch = first_sequence(run, splits)
        assert batch.switch is not None
        belief = trained.trace(trained.load(run, splits).model(), batch).belief[0].numpy()
        _, calibration = trained.calibration(run, splits)
        histories = {
            method: other.result["history"]
            for (at, method), other in evaluated.chosen.items()
            if at == setting
        }
        panels = (("elapsed_s", "nll"), ("elapsed_s", "accuracy"))
        losses = figures.validation(histories, f"Validation at hazard {setting:g}", panels)
        charts += [
            (f"belief-{setting:g}", figures.heat_map(belief, batch.switch[0].numpy())),
            (f"calibration-{setting:g}", calibration),
            (f"losses-{setting:g}", losses),
        ]
    return charts
