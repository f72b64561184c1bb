"""`moca evaluate EXPERIMENT`: trained runs on the paper's test protocol, tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import track

from training import experiments
from training.config import Objective
from training.data.base import Splits
from training.errors import BadRun
from training.evaluation import comparison as tables
from training.evaluation.comparison import NO_HAZARD, Comparison, Values
from training.evaluation.trained import PROTOCOLS, Trained, best, scores, trained
from training.experiments import Place
from training.figures.chart import Chart
from training.figures.save import save

UNITS = {"nll": "test NLL (nats)", "accuracy": "test accuracy"}
TOLD, UNTOLD = "MOCA, told in the test", "oracle, untold in the test"


class Wanted(NamedTuple):
    """What to evaluate, and where results go."""

    experiment: str
    preset: str
    runs: Path
    place: Place
    out: Path

    @property
    def folder(self) -> Path:
        """Of the runs; an ablation's are kept under its name in place of the preset's."""
        return self.runs / self.experiment / self.preset


class Evaluated(NamedTuple):
    """What the figures of an experiment are drawn from."""

    wanted: Wanted
    chosen: Mapping[tuple[str, str], Trained]
    splits: Mapping[str, Splits]
    found: Comparison


def evaluate(wanted: Wanted, draw: Callable[[Evaluated], list[tuple[str, Chart]]]) -> Comparison:
    """Print the table, write it and the figures; raises BadRun where nothing is trained."""
    torch.set_num_threads(1)
    console = Console()
    chosen = {
        (NO_HAZARD if hazard is None else f"{hazard:g}", method): each
        for (hazard, method), each in best(list(trained(wanted.folder))).items()
    }
    if not chosen:
        raise BadRun(f"{wanted.folder}: no run that is done; moca train {wanted.experiment}")
    _check_alike(chosen, wanted.folder)
    splits = {
        setting: experiments.splits(each.config, wanted.place)
        for (setting, _), each in chosen.items()
    }
    values: dict[tuple[str, str], Values] = {}
    protocol = PROTOCOLS[wanted.experiment]
    for (setting, method), each in track(
        chosen.items(), "testing", console=console, transient=True
    ):
        values[setting, method] = scores(each, splits[setting], protocol)
        values |= _crossed(setting, method, each, splits[setting])
    found = Comparison(wanted.experiment, UNITS[protocol.metric], protocol.better, values)
    for table in tables.tables(found):
        console.print(table)
    tables.save(found, {key: about(each) for key, each in chosen.items()}, wanted.out)
    charts = [("performance", tables.chart(found))] if len(found.settings()) > 1 else []
    charts += draw(Evaluated(wanted, chosen, splits, found))
    for name, chart in charts:
        save(chart, wanted.out / name)
    console.print(f"tables and {len(charts)} figures in {wanted.out}")
    return found


def _check_alike(chosen: Mapping[tuple[str, str], Trained], folder: Path) -> None:
    """Methods are compared on the same sequences, so at a hazard all have the same data."""
    first: dict[str, Trained] = {}
    for (setting, _), each in chosen.items():
        other = first.setdefault(setting, each)
        if other.config.data != each.config.data:
            names = f"{other.run.folder.name} and {each.run.folder.name}"
            raise BadRun(f"{folder}: {names} have different data; one folder or preset for each")


def _crossed(
    setting: str, method: str, each: Trained, splits: Splits
) -> dict[tuple[str, str], Values]:
    """Trained without switches and tested with them, and the other way round (paper, app. D.3)."""
    if method not in ("MOCA", "oracle"):
        return {}
    other, name = ("oracle", TOLD) if method == "MOCA" else ("moca", UNTOLD)
    protocol = PROTOCOLS[each.config.experiment]
    try:
        value = scores(each, splits, protocol, Objective(mode=other))
    except ValueError:  # nobody knows the switches
        return {}
    return {(setting, name): value}


def about(each: Trained) -> dict[str, Any]:
    """What is to be said about a run beside its numbers."""
    return {
        "learning_rate": each.config.optimiser.learning_rate,
        "iterations": each.result["iterations"],
        "seconds": round(each.result["elapsed_s"], 1),
        "seed": each.config.seed,
    }
