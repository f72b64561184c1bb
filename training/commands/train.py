"""`moca train`: meta-train a model on unsegmented series."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from training.commands import Datasets, Runs, fail, names, refusals


def _own(text: str, default: str | bool, *names: str, **more: Any) -> Any:
    """An option that is for series of one's own."""
    panel = "Series of your own"
    return typer.Option(*names, help=text, show_default=default, rich_help_panel=panel, **more)


def train(
    experiment: Annotated[
        str | None,
        typer.Argument(
            help="sinusoid, bandit, players, rainbow, miniimagenet or regimes.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        _own(
            "Series of your own instead of an experiment: a CSV or Parquet file, one row per "
            "observation, or a folder of them.",
            True,
            "--data",
            envvar="MOCA_TRAIN_DATA",
        ),
    ] = None,
    model: Annotated[
        str | None, _own("fleet, alpaca, lstm, or pcoc where labels are classes.", "fleet")
    ] = None,
    length: Annotated[
        int | None,
        _own(
            "Observations in a window; several regimes should fit. A fleet needs the 20 before "
            "it, too.",
            "100",
            min=2,
        ),
    ] = None,
    lags: Annotated[
        int | None,
        _own("Labels before that are inputs too.", "5; of alpaca and lstm with inputs 0", min=0),
    ] = None,
    y: Annotated[str | None, _own("Label columns, comma-separated.", "y, y1, y2, ...")] = None,
    x: Annotated[
        str | None, _own("Input columns, comma-separated.", "x, x1, x2, ..., or none")
    ] = None,
    by: Annotated[
        str | None,
        _own(
            "Column that says which series a row is of.",
            "stream; without it a file is one series",
            "--by",
            metavar="COLUMN",
        ),
    ] = None,
    time: Annotated[
        str | None,
        _own(
            "Column that orders the rows of a series.",
            "time, timestamp, date, year, or the order of the rows",
        ),
    ] = None,
    changepoint: Annotated[
        str | None,
        _own(
            "Column of 0 and 1: whether a regime starts. Only oracles and supervision read it.",
            "changepoint",
        ),
    ] = None,
    interval: Annotated[
        float | None,
        _own(
            "Time in one unit of the hazard, as the streams' setting: seconds, or for a time "
            "column of plain numbers their unit. Gaps are then as long as the column says.",
            "every row is one unit after the last",
        ),
    ] = None,
    hold_out: Annotated[
        Literal["time", "stream"] | None,
        _own(
            "Data held out for the test: the later part of every series (time), or whole series "
            "(stream).",
            "time; stream where the series are too short for a test at their ends",
        ),
    ] = None,
    name: Annotated[
        str | None, _own("Folder of the runs, RUNS/data/NAME/.", "the file's name")
    ] = None,
    preset: Annotated[str, typer.Option(help="quick, or paper: as published.")] = "quick",
    ablation: Annotated[
        str | None,
        typer.Option(
            help="Runs of one question in place of a grid: supervision, prior-weight, length, "
            "noise, model, prior-scale or priors of the sinusoid; model or priors of the players.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="TOML file over the preset's settings."),
    ] = None,
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
    runs: Runs = Path("runs"),
    datasets: Datasets = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where runs stopped.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of torch.")] = 1,
) -> None:
    """Meta-train a model on unsegmented series. It needs `make install`, or the extra `train`.

    Runs are kept in RUNS/EXPERIMENT/PRESET/, those of one's own data in RUNS/data/NAME/. Those that
    are done are not done again.
    """
    from training import jobs
    from training.config import merged
    from training.data.files import Place
    from training.jobs import Training

    sections: dict[str, dict[str, Any]] = {
        "model": {"kind": model, "lags": lags},
        "optimiser": {"length": length},
        "data": {
            "y": names(y),
            "x": names(x),
            "stream": by,
            "time": time,
            "changepoint": changepoint,
            "interval": interval,
            "by": hold_out,
        },
    }
    own = {
        section: {name: value for name, value in settings.items() if value is not None}
        for section, settings in sections.items()
    }
    hazards = hazard or []
    _check(experiment, data, ablation, any(own.values()), hazards)
    try:
        with refusals():
            common = jobs.overrides(config, setting or [])
            wanted = Training(
                experiment=experiment or "data",
                preset=preset if data is None else name or data.resolve().stem,
                runs=runs,
                device=device,
                resume=resume,
                threads=threads,
                ablation=ablation,
                hazards=hazards if data is None else (),
                modes=mode or (),
                rates=rate or (),
                seeds=seed or (),
            )
            if data is None:
                jobs.train(wanted, common, Place(datasets, runs / "cache"))
                return
            initial: dict[str, Any] = {"data": {"path": str(data.resolve())}}
            if hazards:
                initial["model"] = {"hazard": hazards[0]}
            settings = merged(common, own, initial)
            for run in jobs.train_own(wanted, settings, _warn):
                typer.echo(str(run.folder))
    except KeyboardInterrupt:
        fail("stopped; --resume goes on from the last checkpoint")


def _check(
    experiment: str | None,
    data: Path | None,
    ablation: str | None,
    has_own: bool,
    hazards: list[float],
) -> None:
    """Refuse options that do not go together."""
    if experiment is None and data is None:
        fail("nothing to train: name an experiment, or use --data FILE")
    if experiment is not None and data is not None:
        fail(f"--data and experiment {experiment!r} exclude each other: use one of the two")
    if data is None and has_own:
        fail(
            "--model, --length, --lags, --hold-out and column options are for --data; use --set "
            "instead"
        )
    if data is not None and ablation is not None:
        fail("--ablation needs an experiment; it does not apply to --data")
    if data is not None and len(hazards) > 1:
        fail("--hazard: --data takes one value, the model's initial hazard")


def _warn(line: str) -> None:
    typer.secho(f"moca: {line}", err=True, fg="yellow")
