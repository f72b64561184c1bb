"""`moca train`: meta-train a model on unsegmented series."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from training.saying import fail

if TYPE_CHECKING:
    from training.jobs import Wanted

OWN = "Series of your own"

Experiment = Annotated[
    str | None,
    typer.Argument(
        envvar="MOCA_EXPERIMENT",
        help="sinusoid, bandit, players, rainbow, miniimagenet or regimes.",
        show_default=False,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", envvar="MOCA_CONFIG", help="TOML file over the preset's settings."),
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
        envvar="MOCA_TRAIN_MODEL",
        help="alpaca, lstm, or pcoc where labels are classes.",
        show_default="alpaca",
        rich_help_panel=OWN,
    ),
]
Length = Annotated[
    int | None,
    typer.Option(
        envvar="MOCA_LENGTH",
        min=2,
        help="Observations in a window; several regimes should fit.",
        show_default="100",
        rich_help_panel=OWN,
    ),
]
Lags = Annotated[
    int | None,
    typer.Option(
        envvar="MOCA_LAGS",
        min=0,
        help="Labels before that are inputs too.",
        show_default="5 without inputs, else 0",
        rich_help_panel=OWN,
    ),
]
Labels = Annotated[
    str | None,
    typer.Option(
        envvar="MOCA_Y",
        help="Label columns, comma-separated.",
        show_default="y, y1, y2, ...",
        rich_help_panel=OWN,
    ),
]
Inputs = Annotated[
    str | None,
    typer.Option(
        envvar="MOCA_X",
        help="Input columns, comma-separated.",
        show_default="x, x1, x2, ..., or none",
        rich_help_panel=OWN,
    ),
]
Stream = Annotated[
    str | None,
    typer.Option(
        envvar="MOCA_STREAM",
        help="Column that says which series a row is of.",
        show_default="stream; without it a file is one series",
        rich_help_panel=OWN,
    ),
]
Time = Annotated[
    str | None,
    typer.Option(
        envvar="MOCA_TIME",
        help="Column that orders the rows of a series.",
        show_default="time, timestamp, date, year, or the order of the rows",
        rich_help_panel=OWN,
    ),
]
Changepoint = Annotated[
    str | None,
    typer.Option(
        envvar="MOCA_CHANGEPOINT",
        help="Column of 0 and 1: whether a regime starts. Only oracles and supervision read it.",
        show_default="changepoint",
        rich_help_panel=OWN,
    ),
]
By = Annotated[
    str | None,
    typer.Option(
        envvar="MOCA_BY",
        help="What is kept for the test: the later part of every series (time), or whole ones "
        "(stream).",
        show_default="time",
        rich_help_panel=OWN,
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        envvar="MOCA_NAME",
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
    stream: Stream = None,
    time: Time = None,
    changepoint: Changepoint = None,
    by: By = None,
    name: Name = None,
    preset: Annotated[
        str, typer.Option(envvar="MOCA_PRESET", help="quick, or paper: as published.")
    ] = "quick",
    ablation: Annotated[
        str | None,
        typer.Option(
            envvar="MOCA_ABLATION",
            help="Runs of one question in place of a grid: supervision, prior-weight, length, "
            "noise, model or prior-scale of the sinusoid; model of the players.",
        ),
    ] = None,
    config: Config = None,
    hazard: Annotated[
        list[float] | None,
        typer.Option(envvar="MOCA_HAZARD", help="Hazard of the data; several make a grid."),
    ] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(
            envvar="MOCA_MODE", help="moca, oracle, toe, coe or swN; several make a grid."
        ),
    ] = None,
    rate: Annotated[
        list[float] | None,
        typer.Option("--learning-rate", envvar="MOCA_LEARNING_RATE", help="Several make a grid."),
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(envvar="MOCA_SEED", help="Several make a grid.")
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            envvar="MOCA_SET",
            metavar="SECTION.NAME=VALUE",
            help="Any setting, such as optimiser.iterations=500; a TOML value.",
        ),
    ] = None,
    device: Annotated[str, typer.Option(envvar="MOCA_DEVICE", help="cpu, cuda, cuda:0.")] = "cpu",
    runs: Annotated[Path, typer.Option(envvar="MOCA_RUNS", help="Folder of the runs.")] = Path(
        "runs"
    ),
    datasets: Annotated[
        Path | None,
        typer.Option(envvar="MOCA_DATASETS", help="Folder of the data sets.", show_default=False),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", envvar="MOCA_RESUME", help="Go on where runs stopped.")
    ] = False,
    threads: Annotated[
        int, typer.Option(envvar="MOCA_THREADS", min=1, help="CPU threads of torch.")
    ] = 1,
) -> None:
    """Meta-train a model on unsegmented series.

    Runs are kept in RUNS/EXPERIMENT/PRESET/, those of one's own data in RUNS/data/NAME/. Those that
    are done are not done again.
    """
    from training.errors import TrainingError
    from training.experiments import Place
    from training.jobs import Wanted, overrides
    from training.jobs import train as run

    own = _own(model, length, lags, _names(y), _names(x), stream, time, changepoint, by)
    _check(experiment, data, ablation, own, hazard or [])
    try:
        common: dict[str, Any] = overrides(config, setting or [])
        axes = mode or [], rate or [], seed or []
        if data is None:
            wanted = Wanted(str(experiment), preset, runs, device, resume, threads, ablation)
            run(wanted, common, Place(datasets, runs / "cache"), hazard or [], *axes)
        else:
            wanted = Wanted("data", name or data.resolve().stem, runs, device, resume, threads)
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
    """Settings that only data of one's own have, those that were given."""
    names = ("y", "x", "stream", "time", "changepoint", "by")
    found: dict[str, dict[str, Any]] = {
        "model": {"kind": model, "lags": lags},
        "optimiser": {"length": length},
        "data": dict(zip(names, columns, strict=True)),
    }
    given = {
        section: {name: value for name, value in each.items() if value is not None}
        for section, each in found.items()
    }
    return {section: each for section, each in given.items() if each}


def _check(
    experiment: str | None,
    data: Path | None,
    ablation: str | None,
    own: dict[str, Any],
    hazards: list[float],
) -> None:
    if experiment is None and data is None:
        fail("what to train is missing: an experiment, or --data FILE")
    if experiment is not None and data is not None:
        fail(f"--data is of your own series, {experiment!r} has its own: one of the two")
    if data is None and own:
        fail("--model, --length, --lags, --by and columns are for --data; see --set")
    if data is not None and ablation is not None:
        fail("--ablation is of an experiment")
    if data is not None and len(hazards) > 1:
        fail("--hazard: the data have theirs; one value is what the model starts from")


def _train_own(
    wanted: Wanted,
    data: Path,
    common: dict[str, Any],
    own: dict[str, Any],
    hazards: list[float] | None,
    axes: tuple[list[str], list[float], list[int]],
) -> None:
    from training.config import merged
    from training.own import Axes, train

    asked = {"data": {"path": str(data)}, "model": {"hazard": hazards[0]} if hazards else {}}
    settings = merged(common, own, asked)
    for run in train(wanted, settings, Axes(*axes), _say):
        typer.echo(str(run.folder))


def _say(line: str) -> None:
    typer.secho(f"moca: {line}", err=True, fg="yellow")


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]
