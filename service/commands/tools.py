"""`moca models`, `moca replay` and `moca bench`: tools around the service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from service.commands.connection import DEFAULT_URL, ApiKey, Url
from service.commands.connection import setting as _setting
from service.commands.options import fail, input_file, with_settings
from service.settings import Settings

bench = typer.Typer(no_args_is_help=True, help="Measure the service on this machine.")


@with_settings({"models_dir"})
def models(
    settings: Settings,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the models in this models folder, and the built-in ones."""
    import msgspec

    from service.models.catalogue import Catalogue

    found = Catalogue(settings.models_dir).models()
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
        return
    table = Table(box=SIMPLE_HEAD)
    for heading in ("model", "kind", "inputs", "labels", "hazard", "description"):
        table.add_column(heading, no_wrap=heading == "model")
    for model in found:
        inputs, labels = ("any" if n is None else str(n) for n in (model.x_dim, model.y_dim))
        number = isinstance(model.hazard, float)
        hazard = f"{model.hazard:.4g}" if number else "" if model.hazard is None else model.hazard
        about = f"not usable: {model.error}" if model.error else model.description
        table.add_row(model.reference, model.kind, inputs, labels, str(hazard), about)
    Console().print(table)


def replay(
    file: Annotated[Path, input_file("CSV or Parquet file, one observation per row.")],
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    stream: Annotated[
        str | None,
        typer.Option(help="Stream to post to.", show_default="the file's name"),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model.", show_default="the service's default"),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Stream setting such as hazard=0.01; may be repeated.",
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(help="Folder for the results, or one .csv, .parquet or .png file."),
    ] = Path(),
    y: Annotated[
        str | None,
        typer.Option(help="Label columns, comma-separated.", show_default="y, y1, y2, ..."),
    ] = None,
    x: Annotated[
        str | None,
        typer.Option(help="Input columns, comma-separated.", show_default="x, x1, x2, ..."),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(help="Time column.", show_default="time, timestamp, date, year"),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Observations per request.")] = 1000,
    belief: Annotated[
        bool,
        typer.Option(help="Request the run-length belief (for the heat map)."),
    ] = True,
    append: Annotated[bool, typer.Option("--append", help="Append to an existing stream.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Delete the stream first.")] = False,
) -> None:
    """Replay a file through a running service; write the answers and a plot."""
    from service.client import ClientError
    from service.replay import ReplayError, SeriesError
    from service.replay import replay as run

    if append and replace:
        fail("--append and --replace exclude each other")
    try:
        run(
            file,
            url=url,
            api_key=api_key,
            stream=stream,
            model=model,
            settings=dict(_setting(text) for text in setting or []),
            out=out,
            y_columns=_names(y),
            x_columns=_names(x),
            time_column=time,
            batch=batch,
            belief=belief,
            existing="append" if append else "replace" if replace else "refuse",
        )
    except (ReplayError, SeriesError, ClientError, OSError) as error:
        fail(str(error), 1)


@bench.command("serve")
def bench_serve(
    url: Annotated[
        str | None,
        typer.Option(
            envvar="MOCA_URL",
            help="Address of a running service.",
            show_default="one is started for the measurement",
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Duration of measured load.")] = 30.0,
    connections: Annotated[int, typer.Option(min=1, help="Concurrent connections.")] = 32,
    streams: Annotated[int, typer.Option(min=1, help="Number of streams.")] = 500,
    rounds: Annotated[int, typer.Option(min=1, help="Time slices per server, in turn.")] = 3,
    workers: Annotated[int, typer.Option(min=1, help="Workers of a service started here.")] = 1,
    model: Annotated[str, typer.Option(help="Model of a service started here.")] = "gaussian",
    overload: Annotated[
        float | None,
        typer.Option(
            "--overload",
            min=0.1,
            help="Overload: send this many times the capacity for --seconds, then half of it.",
        ),
    ] = None,
) -> None:
    """Measure throughput and latency relative to a bare FastAPI echo endpoint.

    With --overload, measure accepted and rejected load, latency and recovery.
    """
    from service.bench import BenchError, bench_overload
    from service.bench import bench_serve as run
    from service.client import ClientError

    try:
        if overload is not None:
            bench_overload(
                urls=None if url is None else [url],
                factor=overload,
                seconds=seconds,
                streams=streams,
                workers=workers,
                model=model,
            )
            return
        run(
            url=url,
            seconds=seconds,
            connections=connections,
            streams=streams,
            rounds=rounds,
            workers=workers,
            model=model,
        )
    except (BenchError, ClientError) as error:
        fail(str(error), 1)


@bench.command("scale")
def bench_scale(
    streams: Annotated[int, typer.Option(min=1, help="Number of streams.")] = 100_000,
    seconds: Annotated[float, typer.Option(help="Duration of measured load.")] = 30.0,
    rounds: Annotated[int, typer.Option(min=1, help="Time slices of each, in turn.")] = 3,
    model: Annotated[str, typer.Option(help="Model of the streams.")] = "gaussian",
    json: Annotated[
        Path | None, typer.Option("--json", help="Write the numbers to this file, too.")
    ] = None,
) -> None:
    """Compare the throughput with many streams in one worker to that with 1,000.

    Also the memory that a stream takes, and the CPU time of the worker's housekeeping.
    """
    from service.bench import BenchError
    from service.bench import bench_scale as run

    try:
        run(streams=streams, seconds=seconds, rounds=rounds, model=model, file=json)
    except BenchError as error:
        fail(str(error), 1)


@bench.command("step")
def bench_step(
    models: Annotated[
        str | None,
        typer.Option(
            "--model", help="Models, comma-separated: built-in ones, alpaca.", show_default="all"
        ),
    ] = None,
    streams: Annotated[str, typer.Option(help="Streams per batch, comma-separated.")] = "1,16,256",
    max_hypotheses: Annotated[int, typer.Option(min=2, help="Hypotheses per stream.")] = 50,
    early: Annotated[int, typer.Option(min=1, help="Early step number.")] = 500,
    late: Annotated[int, typer.Option(min=2, help="Late step number.")] = 20_000,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each, in turn.")] = 11,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="File for all times and ratios, as JSON.")
    ] = None,
) -> None:
    """Measure the processor time of a filter step: by torch, compiled, early and late.

    Beside it those of fast-bocpd, changepoint and river, where they are installed.
    """
    from service.bench import BenchError
    from service.bench import bench_step as run

    try:
        run(
            models=_names(models),
            batches=_sizes(streams),
            max_hypotheses=max_hypotheses,
            early=early,
            late=late,
            rounds=rounds,
            json_file=json_file,
        )
    except BenchError as error:
        fail(str(error), 1)


def _sizes(text: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        fail(f"--streams: expected numbers between commas such as 1,16,256, got {text!r}", 2)


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]
