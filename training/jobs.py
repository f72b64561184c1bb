"""Training jobs: from command-line options to finished runs, on an experiment or on own data."""

from __future__ import annotations

import contextlib
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
from rich import progress as bars
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.table import Column
from torch.utils.tensorboard import SummaryWriter

from training import catalogue
from training.catalogue import GRID, Ablation
from training.config import FOLDER, OWN, Config, Options, checked, merged, nested
from training.data.files import Place
from training.data.tables import DataSource
from training.data.windows import Series, Splits
from training.errors import BadConfig
from training.experiments import own
from training.learners import learner
from training.meta_training.loop import LOOK_EVERY, Job, Report, done
from training.meta_training.loop import train as loop
from training.meta_training.processes import world
from training.meta_training.runs import Progress, Run

LAGS = 5  # default number of lagged labels where there are no inputs


class Training(NamedTuple):
    """What to train and how: the options of `moca train` that are no settings of a run.

    hazards, modes, rates, seeds: axes of a grid; an empty one keeps the preset's value.
    """

    experiment: str
    preset: str
    runs: Path
    device: str = "cpu"
    resume: bool = False
    threads: int = 1
    ablation: str | None = None
    hazards: Sequence[float] = ()
    modes: Sequence[str] = ()
    rates: Sequence[float] = ()
    seeds: Sequence[int] = ()

    def cells(self, common: Options, asked: Ablation = GRID) -> Iterator[tuple[str, Options]]:
        """Folder name and settings of every run of the grid, or of an ablation's."""
        value = asked.axis.rpartition(".")[2]
        name = common.get("name", "")
        axes: tuple[list[tuple[str, Options]], ...] = (
            [
                (f"hazard-{h:g}", merged(nested("data.hazard", h), nested("model.hazard", h)))
                for h in self.hazards or asked.hazards
            ],
            [(m, nested("objective.mode", m)) for m in self.modes],
            [(f"rate-{r:g}", nested("optimiser.learning_rate", r)) for r in self.rates],
            [(f"seed-{s}", nested("seed", s)) for s in self.seeds],
            [(f"{value}-{v:g}", nested(asked.axis, v)) for v in asked.values],
            [(str(method.get("name", name)), method) for method in asked.methods or ({},)],
        )
        for chosen in product(*filter(None, axes)):
            settings = merged(common, *(setting for _, setting in chosen))
            yield "_".join(part for part, _ in chosen if part) or "run", settings


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


def train(wanted: Training, common: Options, place: Place) -> list[Run]:
    """Train the runs of a grid or ablation that are not done; raises TrainingError."""
    asked = GRID
    if wanted.ablation is not None:
        if wanted.hazards or wanted.modes or wanted.rates or wanted.seeds:
            raise BadConfig(
                f"--ablation {wanted.ablation} sets its own hazards, modes, learning rates and "
                "seeds: omit these options"
            )
        asked = catalogue.ablation(wanted.ablation, wanted.experiment)
    folder = wanted.runs / wanted.experiment / (wanted.ablation or wanted.preset)
    tasks = [
        (catalogue.preset(wanted.experiment, wanted.preset, settings), Run(folder / name))
        for name, settings in wanted.cells(common, asked)
    ]
    return fit(wanted, tasks, lambda config: catalogue.splits(config, place))


def train_own(wanted: Training, settings: Options, warn: Callable[[str], None]) -> list[Run]:
    """Train on `settings["data"]["path"]`; what is too short is reported to `warn` first.

    Runs are kept in RUNS/data/PRESET/, `wanted.preset` being a name. Raises TrainingError.
    """
    if not re.fullmatch(FOLDER, wanted.preset):
        raise BadConfig(f"--name: expected part of a folder's name, got {wanted.preset!r}")
    source = checked(DataSource, {**settings.get("data", {}), "digest": ""})
    series = own.read(source, catalogue.preset(OWN, "quick", settings))
    split: dict[str, str] = {}
    if "by" not in settings.get("data", {}) and own.by_streams_alone(source, series):
        split = {"by": "stream"}
        source = source.model_copy(update=split)
        warn(
            "the series are too short for a test at their ends: whole streams are held out, as "
            "with --hold-out stream"
        )
    settings = merged(
        settings,
        {"data": {"digest": own.digest(source.path), **split}},
        _default_lags(settings, series),
    )
    folder = wanted.runs / OWN / wanted.preset
    tasks = [
        (catalogue.preset(OWN, "quick", cell), Run(folder / name))
        for name, cell in wanted.cells(settings)
    ]
    # The axes do not change the data, but those of an oracle are checked for switches.
    *_, (splits, short) = [own.split(source, series, config) for config, _ in tasks]
    own.check_scaling(splits, tasks[0][0])
    for line in short:
        warn(line)
    return fit(wanted, tasks, lambda _: splits)


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


def fit(
    wanted: Training, tasks: Sequence[tuple[Config, Run]], sources: Callable[[Config], Splits]
) -> list[Run]:
    """Train every task that is not done; raises TrainingError."""
    torch.set_num_threads(wanted.threads)
    try:
        torch.zeros((), device=wanted.device).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise BadConfig(f"device {wanted.device!r} cannot be used: {reason}") from error
    with world(wanted.device) as processes, contextlib.ExitStack() as after:
        # Numbers below 1e-38 count as 0: gradients through hypotheses that are ruled out. A
        # processor takes many times longer over them: half the time of an iteration.
        torch.set_flush_denormal(True)
        after.callback(torch.set_flush_denormal, False)
        console = Console(quiet=not processes.leads)
        for config, run in tasks:
            name = run.folder.name
            if run.done:
                run.check(config)
                console.print(f"{name}: done before")
                continue
            if run.begun and not wanted.resume:
                console.print(f"{name}: begun before, starts anew; --resume would go on")
            splits = sources(config)
            job = Job(config, splits, learner(config, splits), run, wanted.device)
            lock = run.locked() if processes.leads else contextlib.nullcontext()
            quiet = contextlib.nullcontext(lambda progress, measured: None)
            shows = shown(job, console) if processes.leads else quiet
            with lock, shows as report:
                progress = loop(job, processes, report, resume=wanted.resume)
            best = progress.best_metric or 0.0
            if config.validation.metric == "accuracy":
                best = -best  # stored negated, so that lower is better
            console.print(
                f"{name}: {config.validation.metric} {best:.4f} at iteration "
                f"{progress.best_iteration} of {progress.iteration}, {progress.elapsed_s:.0f} s"
            )
    return [run for _, run in tasks]


# --- what a run shows while it trains -----------------------------------------------------------


@contextlib.contextmanager
def shown(job: Job, console: Console) -> Iterator[Report]:
    """Progress callback for `loop.train`."""
    folder = job.run.folder
    name = Column(no_wrap=True, overflow="ellipsis", ratio=1)  # it alone is shortened
    bar = bars.Progress(
        TextColumn("{task.description}", table_column=name),
        BarColumn(bar_width=10),
        TextColumn("{task.fields[numbers]}", table_column=Column(no_wrap=True)),
        TimeRemainingColumn(compact=True),
        console=console,
        disable=not console.is_terminal,  # a file gets a line for each validation instead
        expand=True,
    )
    with bar, SummaryWriter(str(folder / "tensorboard")) as logs:
        # Share of the iterations or of the minutes, whichever ends first.
        task = bar.add_task(folder.name, total=1.0, numbers="")
        latest: dict[str, float] = {}

        def report(progress: Progress, measured: dict[str, float]) -> None:
            latest.update(measured)
            iteration = progress.iteration
            speed = iteration / max(progress.elapsed_s, 1e-9)
            values = [f"{name.split('/')[-1]} {value:.3f}" for name, value in latest.items()]
            numbers = f"{iteration}: {' '.join(values)} {speed:.1f}/s"
            bar.update(task, completed=done(job.config, progress), numbers=numbers)
            validated = len(measured) > 1
            if validated and not console.is_terminal:
                console.print(f"{folder.name} {numbers}", highlight=False)
            if iteration % LOOK_EVERY == 0 or validated:
                for name, value in measured.items():
                    logs.add_scalar(name, value, iteration)

        yield report
