"""F1 and covering on the Turing Change Point Dataset: online, in hindsight, and of no change.

There are two kinds of hindsight: the segmentation that the service gives of a stream, whose
location and scale are those of its warm-up, and one with those of all labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from model_core.upm.builtin import Options, build
from training.data.tcpd import Series
from training.online import Settings, follow, segmentation
from training.scoring import Score, score


class Scores(NamedTuple):
    """Scores of one series, or their means."""

    online: Score
    served: Score
    hindsight: Score
    zero: Score


def evaluate(series: Series, model: str, settings: Settings) -> Scores:
    """Score one series as a stream of the service with these settings."""
    length = len(series.values)
    built = build(model, Options(y_dim=len(series.values[0])))
    (followed,) = follow(built, [series.values], settings)
    best = segmentation(built, series.values, settings)
    found: tuple[Sequence[int], ...] = followed.confirmed(), followed.served, best, ()
    return Scores(*(score(series.annotations, each, length) for each in found))


def mean(scores: Sequence[Scores]) -> Scores:
    """Average of each number."""
    return Scores(
        *(
            Score(*(sum(each) / len(scores) for each in zip(*column, strict=True)))
            for column in zip(*scores, strict=True)
        )
    )


def report(series: Sequence[Series], model: str, console: Console | None = None) -> Scores:
    """Print a table of all series and of the means; returns that of the univariate ones."""
    torch.set_num_threads(1)
    console = console or Console()
    settings = Settings()
    scored = [
        (each, evaluate(each, model, settings))
        for each in track(series, "scoring", console=console, transient=True)
    ]
    title = f"{model}: confirmed online, segmentation as served, best in hindsight, no change"
    table = Table(box=SIMPLE_HEAD, title=title, padding=0)  # 80 characters
    table.add_column("series", no_wrap=True)
    table.add_column("obs", justify="right")
    for heading in ("online", "served", "hindsight", "zero"):
        table.add_column(f"{heading}\nF1", justify="right", no_wrap=True)
        table.add_column("\ncover", justify="right", no_wrap=True)
    groups = {
        "univariate": [pair for pair in scored if len(pair[0].values[0]) == 1],
        "multivariate": [pair for pair in scored if len(pair[0].values[0]) > 1],
    }
    means = {}
    for name, group in groups.items():
        for each, scores in group:
            table.add_row(each.name, str(len(each.values)), *_cells(scores))
        if group:
            table.add_section()
            means[name] = mean([scores for _, scores in group])
            table.add_row(f"{name} ({len(group)})", "", *_cells(means[name]), style="bold")
            table.add_section()
    console.print(table)
    return means["univariate"]


def _cells(scores: Scores) -> list[str]:
    return [f"{value:.3f}" for each in scores for value in each]
