"""`moca train`: meta-train a model on unsegmented series."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

Experiment = Annotated[
    str | None,
    typer.Argument(
        envvar="MOCA_EXPERIMENT",
        help="sinusoid, bandit, players, rainbow or miniimagenet.",
        show_default=False,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", envvar="MOCA_CONFIG", help="TOML file over the preset's settings."),
]


def train(
    experiment: Experiment = None,
    preset: Annotated[
        str, typer.Option(envvar="MOCA_PRESET", help="quick, or paper: as published.")
    ] = "quick",
    ablation: Annotated[
        str | None,
        typer.Option(
            envvar="MOCA_ABLATION",
            help="Runs of one question in place of a grid: supervision, prior-weight, length, "
            "noise, model or prior-scale, all of the sinusoid.",
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

    Runs are kept in RUNS/EXPERIMENT/PRESET/; those that are done are not done again.
    """
    from training.errors import TrainingError
    from training.experiments import Place
    from training.jobs import Wanted, overrides
    from training.jobs import train as run

    if experiment is None:
        _fail("what to train is missing: an experiment, or --data FILE")
    try:
        wanted = Wanted(experiment, preset, runs, device, resume, threads, ablation)
        common: dict[str, Any] = overrides(config, setting or [])
        place = Place(datasets, runs / "cache")
        run(wanted, common, place, hazard or [], mode or [], rate or [], seed or [])
    except TrainingError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        _fail("stopped; --resume goes on from the last checkpoint")


def _fail(message: str) -> NoReturn:
    typer.secho(f"moca: {message}", err=True, fg="red")
    raise typer.Exit(2)
