"""`moca evaluate EXPERIMENT`: trained runs on the paper's test protocol, and its ablations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from training.config import Objective
from training.data.base import Splits
from training.errors import BadRun
from training.evaluation import comparison as comparisons
from training.evaluation.comparison import NO_HAZARD, Comparison, Values
from training.evaluation.trained import PROTOCOLS, Trained, best, scores, trained
from training.experiments import catalogue, grid
from training.experiments.catalogue import Place
from training.experiments.grid import Ablation
from training.figures import performance
from training.figures.drawing import Chart
from training.meta_training.runs import Run

UNITS = {"nll": "test NLL (nats)", "accuracy": "test accuracy"}
# Names of the crossed methods in tables and figures (paper, app. D.3).
SUPERVISED = "MOCA, told in the test"
UNSUPERVISED = "oracle, untold in the test"


class Wanted(NamedTuple):
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

    wanted: Wanted
    chosen: Mapping[tuple[str, str], Trained]
    splits: Mapping[str, Splits]
    comparison: Comparison


def evaluate(wanted: Wanted, draw: Callable[[Evaluated], list[tuple[str, Chart]]]) -> Comparison:
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
    table = comparisons.table(comparison)
    console.print(table.for_terminal())
    details = {key: about(run) for key, run in chosen.items()}
    comparisons.save(comparison, table, details, wanted.out)
    charts = []
    if len(comparison.settings()) > 1:
        charts.append(("performance", comparisons.chart(comparison)))
    charts += draw(Evaluated(wanted, chosen, splits, comparison))
    for name, chart in charts:
        chart.save(wanted.out / name)
    console.print(f"tables and {len(charts)} figures in {wanted.out}")
    return comparison


def evaluate_ablation(wanted: Wanted, name: str) -> Comparison:
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
    table = comparisons.ablation_table(comparison, ablation.question)
    console.print(table.for_terminal())
    comparisons.save(comparison, table, details, wanted.out)
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
