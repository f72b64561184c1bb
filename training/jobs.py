"""From what was asked on the command line to runs that are done."""

from __future__ import annotations

import contextlib
import math
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from training import ablations, experiments, grid
from training.config import Config, Options, merged
from training.console import shown
from training.data.base import Splits
from training.errors import BadConfig
from training.experiments import Place
from training.learners import Learner, build
from training.learners.base import Scaling
from training.loop import Job
from training.loop import train as loop
from training.processes import World, world
from training.runs import Run


class Wanted(NamedTuple):
    """What to train and how to go about it."""

    experiment: str
    preset: str
    runs: Path
    device: str = "cpu"
    resume: bool = False
    threads: int = 1
    ablation: str | None = None


class Task(NamedTuple):
    """A run: its name as it is shown, what it is, and where it is kept."""

    name: str
    config: Config
    run: Run


# Splits of a run's data and, where it is not none, how inputs and labels are scaled.
Source = Callable[[Config], tuple[Splits, Scaling | None]]


def overrides(config: Path | None, settings: Sequence[str]) -> Options:
    """Settings of a TOML file and of `SECTION.NAME=VALUE`; raises BadConfig."""
    found: Options = {}
    if config is not None:
        try:
            found = tomllib.loads(config.read_text())
        except (OSError, ValueError) as error:  # no text, or no TOML
            raise BadConfig(f"{config}: {error}") from error
    for each in settings:
        name, _, value = each.partition("=")
        try:
            found = merged(found, tomllib.loads(f"{name} = {value}"))
        except tomllib.TOMLDecodeError as error:
            raise BadConfig(f"--set {each}: {error}; a text needs quotes") from error
    return found


def learner(config: Config, splits: Splits, scaling: Scaling | None = None) -> Learner:
    """A learner of a run with its first parameters; raises BadConfig."""
    _check(config, splits)
    found = scaling or Scaling.none(splits.x_dim, splits.y_dim)
    adapts = config.objective.mode != "toe"
    try:
        made = build(config.model, found, splits.classes, config.seed, adapts=adapts)
    except ValueError as error:
        raise BadConfig(f"model: {error}") from error
    if config.objective.mode != "moca":
        made.hazard_logit.requires_grad_(False)  # nothing else reads it
    return made


def _check(config: Config, splits: Splits) -> None:
    """Raise BadConfig where model and data do not go together."""
    kind, image = config.model.kind, config.model.image
    if (kind == "pcoc") != (splits.classes > 0):
        labels = "classes" if splits.classes else "numbers"
        raise BadConfig(f"model.kind: {kind} cannot predict labels that are {labels}")
    if image is not None and math.prod(image) != splits.x_dim:
        raise BadConfig(f"model.image: inputs are of {splits.x_dim} numbers, not {image}")
    if config.validation.metric == "accuracy" and not splits.classes:
        raise BadConfig("validation.metric: accuracy is of labels that are classes")


def train(
    wanted: Wanted,
    common: Options,
    place: Place,
    hazards: Sequence[float],
    modes: Sequence[str],
    rates: Sequence[float],
    seeds: Sequence[int],
) -> list[Run]:
    """Every run of the grid that is not done yet; raises TrainingError."""
    cells = list(grid.cells(hazards, modes, rates, seeds, common))
    if wanted.ablation is not None:
        if any((hazards, modes, rates, seeds)):
            raise BadConfig(
                "an ablation is not a grid: its hazards, modes, rates and seeds are set"
            )
        asked = ablations.ablation(wanted.ablation, wanted.experiment)
        cells = [ablations.cell(each) for each in asked.variations]
        cells = [each._replace(settings=merged(common, each.settings)) for each in cells]
    kept = wanted.ablation or wanted.preset
    tasks = [
        Task(
            cell.name,
            experiments.preset(wanted.experiment, wanted.preset, cell.settings),
            Run(grid.folder(wanted.runs, wanted.experiment, kept, cell)),
        )
        for cell in cells
    ]
    return fit(wanted, tasks, lambda config: (experiments.splits(config, place), None))


def fit(wanted: Wanted, tasks: Sequence[Task], source: Source) -> list[Run]:
    """Every task that is not done yet; raises TrainingError."""
    torch.set_num_threads(wanted.threads)
    _reach(wanted.device)
    with world(wanted.device) as processes, _no_denormals():
        console = Console(quiet=not processes.leads)
        return [_one(wanted, task, source, processes, console) for task in tasks]


@contextlib.contextmanager
def _no_denormals() -> Iterator[None]:
    """Numbers below 1e-38, gradients through hypotheses long ruled out, count as 0.

    A processor takes many times longer over them: half the time of an iteration.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def _reach(device: str) -> None:
    try:
        torch.zeros((), device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise BadConfig(f"device {device!r} cannot be used: {reason}") from error


def _one(wanted: Wanted, task: Task, source: Source, processes: World, console: Console) -> Run:
    name, config, run = task
    if run.done:
        run.check(config)
        console.print(f"{name}: done before")
        return run
    if run.begun and not wanted.resume:
        console.print(f"{name}: begun before, starts anew; --resume would go on")
    splits, scaling = source(config)
    job = Job(config, splits, learner(config, splits, scaling), run, wanted.device)
    alone = run.alone() if processes.leads else contextlib.nullcontext()
    with alone, shown(config, run.folder, name, console, leads=processes.leads) as report:
        progress = loop(job, processes, report, resume=wanted.resume)
    best = progress.best_metric or 0.0
    if config.validation.metric == "accuracy":
        best = -best  # kept so that lower is better
    console.print(
        f"{name}: {config.validation.metric} {best:.4f} at iteration "
        f"{progress.best_iteration} of {progress.iteration}, {progress.elapsed_s:.0f} s"
    )
    return run
