"""`moca evaluate EXPERIMENT --ablation NAME`: the runs of one question, on the same sequences."""

from __future__ import annotations

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from training import experiments
from training.ablations import Ablation, ablation, cell
from training.config import Objective
from training.errors import BadRun
from training.evaluation import comparison as tables
from training.evaluation.comparison import Comparison, Values
from training.evaluation.experiments import UNITS, Wanted, about
from training.evaluation.trained import PROTOCOLS, Trained, scores
from training.figures.chart import Chart
from training.figures.performance import Facet, Table, against, curve, table
from training.figures.save import save
from training.intervals import estimate
from training.runs import Run


def evaluate(wanted: Wanted, name: str) -> Comparison:
    """Print the table, write it and its figure; raises BadRun where runs are missing."""
    torch.set_num_threads(1)
    console, asked = Console(), ablation(name, wanted.experiment)
    protocol = PROTOCOLS[wanted.experiment]
    values: dict[tuple[str, str], Values] = {}
    said = {}
    pairs = [(each, told) for each in asked.variations for told in asked.told]
    for each, told in track(pairs, "testing", console=console, transient=True):
        run = Run(wanted.folder / cell(each).name)
        if not run.done:
            raise BadRun(
                f"{run.folder}: not done; moca train {wanted.experiment} --ablation {name}"
            )
        done = Trained(run, run.config(), run.result())
        splits = experiments.splits(done.config, wanted.place)
        method = each.method if len(asked.told) == 1 else f"told {told:g} in the test"
        tested = Objective(mode=asked.mode or done.config.objective.mode, supervision=told)
        values[each.setting, method] = scores(done, splits, protocol, tested)
        said[each.setting, method] = about(done)
    found = Comparison(name, UNITS[protocol.metric], protocol.better, values, asked.axis)
    console.print(tables.ablation_table(found, asked.question))
    tables.save(found, said, wanted.out)
    save(_chart(found, asked), wanted.out / name)
    console.print(f"table and figure in {wanted.out}")
    return found


def _chart(found: Comparison, asked: Ablation) -> Chart:
    settings, methods = found.settings(), found.methods()
    if len(asked.told) > 1:
        means = np.array([[found.values[s, m].mean() for m in methods] for s in settings])
        rates = [float(each) for each in settings]
        axes = asked.axis, rates, "share of switches told in the test", list(asked.told)
        return table(Table(*axes, means), found.metric, asked.question)
    curves = []
    for method in methods:
        at = [s for s in settings if (s, method) in found.values]
        each = [estimate(found.values[s, method]) for s in at]
        curves.append(curve(method, [tables.number(s) for s in at], each))
    return against([Facet(found.name, found.metric, curves)], asked.question, asked.axis)
