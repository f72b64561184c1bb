"""Training jobs: from command-line options to finished runs, on an experiment or on own data."""

from __future__ import annotations

import contextlib
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from training.config import OWN, Config, Options, merged
from training.data import own
from training.data.base import Splits
from training.data.windows import Series
from training.errors import BadConfig
from training.experiments import catalogue, grid
from training.learners import Learner, build
from training.learners.base import Scaling
from training.meta_training.loop import Job
from training.meta_training.loop import train as loop
from training.meta_training.processes import World, world
from training.meta_training.progress import shown
from training.meta_training.runs import Run

NAME = re.compile(r"[^/\\.][^/\\]*")  # part of a folder's name
LAGS = 5  # default number of lagged labels where there are no inputs


class Training(NamedTuple):
    """What to train and how: the options of `moca train` that are no settings of a run."""

    experiment: str
    preset: str
    runs: Path
    device: str = "cpu"
    resume: bool = False
    threads: int = 1
    ablation: str | None = None


class Axes(NamedTuple):
    """Axes of a grid on one's own data."""

    modes: Sequence[str] = ()
    rates: Sequence[float] = ()
    seeds: Sequence[int] = ()


class Task(NamedTuple):
    """A run: its displayed name, its configuration, and its folder."""

    name: str
    config: Config
    run: Run


# Splits of a run's data, and the scaling of inputs and labels where there is one.
Source = Callable[[Config], tuple[Splits, Scaling | None]]


def overrides(config: Path | None, settings: Sequence[str]) -> Options:
    """Settings of a TOML file and of `SECTION.NAME=VALUE`; raises BadConfig."""
    options: Options = {}
    if config is not None:
        try:
            options = tomllib.loads(config.read_text())
        except (OSError, ValueError) as error:  # no text, or no TOML
            raise BadConfig(f"{config}: {error}") from error
    for setting in settings:
        name, _, value = setting.partition("=")
        try:
            options = merged(options, tomllib.loads(f"{name} = {value}"))
        except tomllib.TOMLDecodeError as error:
            raise BadConfig(f"--set {setting}: {error}; quote a string: name='value'") from error
    return options


def learner(config: Config, splits: Splits, scaling: Scaling | None = None) -> Learner:
    """A run's learner with its initial parameters; raises BadConfig."""
    _check(config, splits)
    scaling = scaling or Scaling.none(splits.x_dim, splits.y_dim)
    adapts = config.objective.mode != "toe"
    try:
        built = build(config.model, scaling, splits.classes, config.seed, adapts=adapts)
    except ValueError as error:
        raise BadConfig(f"model: {error}") from error
    if config.objective.mode != "moca":
        built.hazard_logit.requires_grad_(False)  # no other objective depends on it
    return built


def _check(config: Config, splits: Splits) -> None:
    """Raise BadConfig where model and data do not go together."""
    kind = config.model.kind
    image = config.model.image
    if (kind == "pcoc") != (splits.classes > 0):
        labels = "classes" if splits.classes else "numbers"
        raise BadConfig(f"model.kind: {kind} cannot predict labels that are {labels}")
    if image is not None and math.prod(image) != splits.x_dim:
        raise BadConfig(f"model.image: inputs are of {splits.x_dim} numbers, not {image}")
    if config.validation.metric == "accuracy" and not splits.classes:
        raise BadConfig("validation.metric: accuracy needs labels that are classes; use nll")


def train(
    wanted: Training,
    common: Options,
    place: catalogue.Place,
    hazards: Sequence[float],
    modes: Sequence[str],
    rates: Sequence[float],
    seeds: Sequence[int],
) -> list[Run]:
    """Train the runs of a grid or ablation that are not done; raises TrainingError."""
    cells = list(grid.cells(hazards, modes, rates, seeds, common))
    if wanted.ablation is not None:
        if any((hazards, modes, rates, seeds)):
            raise BadConfig(
                f"--ablation {wanted.ablation} sets its own hazards, modes, learning rates and "
                "seeds: omit these options"
            )
        variations = grid.ablation(wanted.ablation, wanted.experiment).variations
        cells = [grid.cell(variation) for variation in variations]
        cells = [cell._replace(settings=merged(common, cell.settings)) for cell in cells]
    kept = wanted.ablation or wanted.preset
    tasks = [
        Task(
            cell.name,
            catalogue.preset(wanted.experiment, wanted.preset, cell.settings),
            Run(grid.folder(wanted.runs, wanted.experiment, kept, cell)),
        )
        for cell in cells
    ]
    return fit(wanted, tasks, lambda config: (catalogue.splits(config, place), None))


def train_own(
    wanted: Training,
    settings: Options,
    axes: Axes,
    warn: Callable[[str], None],
) -> list[Run]:
    """Train on `settings["data"]["path"]`; what is too short is reported to `warn` first.

    Runs are kept in RUNS/data/PRESET/, `wanted.preset` being a name. Raises TrainingError.
    """
    if not NAME.fullmatch(wanted.preset):
        raise BadConfig(f"--name: expected part of a folder's name, got {wanted.preset!r}")
    source = own.source(settings)
    series = own.read(source, catalogue.preset(OWN, "quick", settings))
    settings = merged(
        settings, {"data": {"digest": own.digest(source.path)}}, _default_lags(settings, series)
    )
    tasks = []
    for cell in grid.cells((), axes.modes, axes.rates, axes.seeds, settings):
        config = catalogue.preset(OWN, "quick", cell.settings)
        run = Run(grid.folder(wanted.runs, OWN, wanted.preset, cell))
        tasks.append(Task(cell.name, config, run))
    # The axes do not change the data, but those of an oracle are checked for switches.
    *_, data = [own.split(source, series, task.config) for task in tasks]
    own.check_scaling(data.scaling, tasks[0].config)
    for line in data.short:
        warn(line)
    return fit(wanted, tasks, lambda _: (data.splits, data.scaling))


def _default_lags(settings: Options, series: Sequence[Series]) -> Options:
    """Lags for a model that would have no inputs; raises BadConfig where lags are impossible."""
    model = catalogue.preset(OWN, "quick", settings).model
    has_x = series[0].x is not None
    if model.kind == "pcoc":
        if not has_x:
            raise BadConfig("a pcoc model needs input columns (x, or x1, x2, ...), got none")
        if model.lags:
            raise BadConfig("a pcoc model takes no lags: its labels are classes")
        return {}
    if (has_x and model.kind != "fleet") or "lags" in settings.get("model", {}):
        if not (has_x or model.lags):
            raise BadConfig("--lags 0: without input columns there is nothing to predict from")
        return {}
    return {"model": {"lags": LAGS}}


def fit(wanted: Training, tasks: Sequence[Task], source: Source) -> list[Run]:
    """Train every task that is not done; raises TrainingError."""
    torch.set_num_threads(wanted.threads)
    _check_device(wanted.device)
    with world(wanted.device) as processes, _no_denormals():
        console = Console(quiet=not processes.leads)
        return [_fit_one(wanted, task, source, processes, console) for task in tasks]


@contextlib.contextmanager
def _no_denormals() -> Iterator[None]:
    """Flush numbers below 1e-38 to 0: gradients through hypotheses that are ruled out.

    A processor takes many times longer over them: half the time of an iteration.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def _check_device(device: str) -> None:
    try:
        torch.zeros((), device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise BadConfig(f"device {device!r} cannot be used: {reason}") from error


def _fit_one(
    wanted: Training,
    task: Task,
    source: Source,
    processes: World,
    console: Console,
) -> Run:
    name, config, run = task
    if run.done:
        run.check(config)
        console.print(f"{name}: done before")
        return run
    if run.begun and not wanted.resume:
        console.print(f"{name}: begun before, starts anew; --resume would go on")
    splits, scaling = source(config)
    built = learner(config, splits, scaling)
    job = Job(config, splits, built, run, wanted.device)
    lock = run.locked() if processes.leads else contextlib.nullcontext()
    with lock, shown(config, run.folder, name, console, leads=processes.leads) as report:
        progress = loop(job, processes, report, resume=wanted.resume)
    best = progress.best_metric or 0.0
    if config.validation.metric == "accuracy":
        best = -best  # stored negated, so that lower is better
    console.print(
        f"{name}: {config.validation.metric} {best:.4f} at iteration "
        f"{progress.best_iteration} of {progress.iteration}, {progress.elapsed_s:.0f} s"
    )
    return run
