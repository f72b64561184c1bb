"""`moca train`: meta-train a model on unsegmented series."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from training.commands.cli_errors import fail

if TYPE_CHECKING:
    from training.experiments.jobs import Axes, Training

OWN = "Series of your own"


class Held(StrEnum):
    """Data held out for the test: the later part of every series, or whole series."""

    TIME = "time"
    STREAM = "stream"


Experiment = Annotated[
    str | None,
    typer.Argument(
        help="sinusoid, bandit, players, rainbow, miniimagenet or regimes.",
        show_default=False,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="TOML file over the preset's settings."),
]

Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        envvar="MOCA_TRAIN_DATA",
        help="Series of your own instead of an experiment: a CSV or Parquet file, one row per "
        "observation, or a folder of them.",
        rich_help_panel=OWN,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="fleet, alpaca, lstm, or pcoc where labels are classes.",
        show_default="fleet",
        rich_help_panel=OWN,
    ),
]
Length = Annotated[
    int | None,
    typer.Option(
        min=2,
        help="Observations in a window; several regimes should fit. A fleet needs the 20 before "
        "it, too.",
        show_default="100",
        rich_help_panel=OWN,
    ),
]
Lags = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Labels before that are inputs too.",
        show_default="5; of alpaca and lstm with inputs 0",
        rich_help_panel=OWN,
    ),
]
Labels = Annotated[
    str | None,
    typer.Option(
        help="Label columns, comma-separated.",
        show_default="y, y1, y2, ...",
        rich_help_panel=OWN,
    ),
]
Inputs = Annotated[
    str | None,
    typer.Option(
        help="Input columns, comma-separated.",
        show_default="x, x1, x2, ..., or none",
        rich_help_panel=OWN,
    ),
]
Column = Annotated[
    str | None,
    typer.Option(
        "--by",
        metavar="COLUMN",
        help="Column that says which series a row is of.",
        show_default="stream; without it a file is one series",
        rich_help_panel=OWN,
    ),
]
Time = Annotated[
    str | None,
    typer.Option(
        help="Column that orders the rows of a series.",
        show_default="time, timestamp, date, year, or the order of the rows",
        rich_help_panel=OWN,
    ),
]
Changepoint = Annotated[
    str | None,
    typer.Option(
        help="Column of 0 and 1: whether a regime starts. Only oracles and supervision read it.",
        show_default="changepoint",
        rich_help_panel=OWN,
    ),
]
Interval = Annotated[
    float | None,
    typer.Option(
        help="Time in one unit of the hazard, as the streams' setting: seconds, or for a time "
        "column of plain numbers their unit. Gaps are then as long as the column says.",
        show_default="every row is one unit after the last",
        rich_help_panel=OWN,
    ),
]
HoldOut = Annotated[
    Held | None,
    typer.Option(
        help="Data held out for the test: the later part of every series (time), or whole series "
        "(stream).",
        show_default="time",
        rich_help_panel=OWN,
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        help="Folder of the runs, RUNS/data/NAME/.",
        show_default="the file's name",
        rich_help_panel=OWN,
    ),
]


def train(
    experiment: Experiment = None,
    data: Data = None,
    model: Model = None,
    length: Length = None,
    lags: Lags = None,
    y: Labels = None,
    x: Inputs = None,
    by: Column = None,
    time: Time = None,
    changepoint: Changepoint = None,
    interval: Interval = None,
    hold_out: HoldOut = None,
    name: Name = None,
    preset: Annotated[str, typer.Option(help="quick, or paper: as published.")] = "quick",
    ablation: Annotated[
        str | None,
        typer.Option(
            help="Runs of one question in place of a grid: supervision, prior-weight, length, "
            "noise, model, prior-scale or priors of the sinusoid; model or priors of the players.",
        ),
    ] = None,
    config: Config = None,
    hazard: Annotated[
        list[float] | None,
        typer.Option(help="Hazard of the data; several make a grid."),
    ] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(help="moca, oracle, toe, coe or swN; several make a grid."),
    ] = None,
    rate: Annotated[
        list[float] | None,
        typer.Option("--learning-rate", help="Several make a grid."),
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Several make a grid.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SECTION.NAME=VALUE",
            help="Any setting, such as optimiser.iterations=500; a TOML value.",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:0.")] = "cpu",
    runs: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs"),
    datasets: Annotated[
        Path | None,
        typer.Option(help="Folder of the data sets.", show_default=False),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where runs stopped.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of torch.")] = 1,
) -> None:
    """Meta-train a model on unsegmented series.

    Runs are kept in RUNS/EXPERIMENT/PRESET/, those of one's own data in RUNS/data/NAME/. Those that
    are done are not done again.
    """
    from training.errors import TrainingError
    from training.experiments import jobs
    from training.experiments.catalogue import Place
    from training.experiments.jobs import Axes, Training

    held = None if hold_out is None else hold_out.value
    own = _own(model, length, lags, _names(y), _names(x), by, time, changepoint, interval, held)
    _check(experiment, data, ablation, own, hazard or [])
    try:
        common: dict[str, Any] = jobs.overrides(config, setting or [])
        axes = Axes(mode or [], rate or [], seed or [])
        if data is None:
            wanted = Training(str(experiment), preset, runs, device, resume, threads, ablation)
            place = Place(datasets, runs / "cache")
            jobs.train(wanted, common, place, hazard or [], *axes)
        else:
            wanted = Training("data", name or data.resolve().stem, runs, device, resume, threads)
            _train_own(wanted, data, common, own, hazard, axes)
    except (TrainingError, OSError) as error:  # such as a folder that cannot be written
        fail(str(error))
    except KeyboardInterrupt:
        fail("stopped; --resume goes on from the last checkpoint")


def _own(
    model: str | None,
    length: int | None,
    lags: int | None,
    *columns: Any,
) -> dict[str, Any]:
    """Settings that only own data have, as far as their options were used."""
    names = ("y", "x", "stream", "time", "changepoint", "interval", "by")
    sections: dict[str, dict[str, Any]] = {
        "model": {"kind": model, "lags": lags},
        "optimiser": {"length": length},
        "data": dict(zip(names, columns, strict=True)),
    }
    used = {
        section: {name: value for name, value in settings.items() if value is not None}
        for section, settings in sections.items()
    }
    return {section: settings for section, settings in used.items() if settings}


def _check(
    experiment: str | None,
    data: Path | None,
    ablation: str | None,
    own: dict[str, Any],
    hazards: list[float],
) -> None:
    if experiment is None and data is None:
        fail("nothing to train: name an experiment, or use --data FILE")
    if experiment is not None and data is not None:
        fail(f"--data and experiment {experiment!r} exclude each other: use one of the two")
    if data is None and own:
        fail(
            "--model, --length, --lags, --hold-out and column options are for --data; use --set "
            "instead"
        )
    if data is not None and ablation is not None:
        fail("--ablation needs an experiment; it does not apply to --data")
    if data is not None and len(hazards) > 1:
        fail("--hazard: --data takes one value, the model's initial hazard")


def _train_own(
    wanted: Training,
    data: Path,
    common: dict[str, Any],
    own: dict[str, Any],
    hazards: list[float] | None,
    axes: Axes,
) -> None:
    from training.config import merged
    from training.experiments.jobs import train_own

    initial = {
        "data": {"path": str(data.resolve())},
        "model": {"hazard": hazards[0]} if hazards else {},
    }
    settings = merged(common, own, initial)
    for run in train_own(wanted, settings, axes, _warn):
        typer.echo(str(run.folder))


def _warn(line: str) -> None:
    typer.secho(f"moca: {line}", err=True, fg="yellow")


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]
