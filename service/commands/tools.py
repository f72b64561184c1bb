"""`moca models`, `replay`, `mcp` and `bench`: tools around the service."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from service.commands.connection import DEFAULT_URL, ApiKey, GivenSettings, Url, print_json, table
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
    from service.models.catalogue import Catalogue

    listed = Catalogue(settings.models_dir).models()
    if as_json:
        print_json(listed)
        return
    words = ("kind", "hazard", "description")
    made = table("model", "kind", "inputs", "labels", "hazard", "description", words=words)
    for model in listed:
        inputs, labels = ("any" if n is None else str(n) for n in (model.x_dim, model.y_dim))
        number = isinstance(model.hazard, float)
        learned = "learned" if model.hazard is None else model.hazard
        hazard = f"{model.hazard:.4g}" if number else learned
        about = f"not usable: {model.error}" if model.error else model.description
        made.add_row(model.reference, model.kind, inputs, labels, str(hazard), about)
    Console().print(made)


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
    setting: GivenSettings = None,
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
        typer.Option(
            help="Time column.",
            show_default="time, timestamp, datetime, date, year, or the only one of times",
        ),
    ] = None,
    time_format: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="Form of its times, as `%d/%m/%Y %H:%M`.",
            show_default="as the column shows it",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="Column that names the stream of each row: all of them.",
            show_default="one stream",
        ),
    ] = None,
    wide: Annotated[
        bool, typer.Option("--wide", help="Each label column is a stream: all of them.")
    ] = False,
    plots: Annotated[
        int,
        typer.Option(
            min=0,
            help="With --by or --wide: pictures of so many streams, those with the largest "
            "changes; 0: no pictures.",
        ),
    ] = 5,
    batch: Annotated[int, typer.Option(min=1, help="Observations per request.")] = 500,
    belief: Annotated[
        bool,
        typer.Option(help="Of one stream: request the run-length belief (for the heat map)."),
    ] = True,
    append: Annotated[bool, typer.Option("--append", help="Append to an existing stream.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Delete the stream first.")] = False,
) -> None:
    """Replay a file through a running service; write the answers and a plot."""
    from moca_client import ClientError
    from moca_client.replay import ReplayError
    from moca_client.replay import replay as replay_one
    from moca_client.replay_many import replay_many
    from moca_client.series import (
        ColumnRoles,
        SeriesError,
        read_series,
        read_table,
        streams_by_column,
        streams_of,
    )

    if append and replace:
        fail("--append and --replace exclude each other")
    if sum((stream is not None, by is not None, wide)) > 1:
        fail("--stream, --by and --wide exclude each other: columns name the streams of the latter")
    if (wide or by is not None) and out.suffix.lower() in {".csv", ".parquet", ".png"}:
        fail(f"--out: expected a folder with --by or --wide, got {out}")
    roles = ColumnRoles(_names(y), _names(x), time, time_format)
    run: Callable[..., Any]
    try:
        if by is not None:
            streams = streams_of(read_table(file), by, roles)
            run = functools.partial(replay_many, streams=streams, plots=plots)
        elif wide:
            streams = streams_by_column(read_table(file), roles)
            run = functools.partial(replay_many, streams=streams, plots=plots)
        else:
            series = read_series(file, roles)
            run = functools.partial(replay_one, stream=stream, series=series, belief=belief)
        run(
            file=file,
            url=url,
            api_key=api_key,
            model=model,
            settings=dict(_setting(text) for text in setting or []),
            out=out,
            batch=batch,
            existing="append" if append else "replace" if replace else "refuse",
        )
    except (ReplayError, SeriesError, ClientError, OSError) as error:
        fail(str(error), 1)


def mcp(url: Url = DEFAULT_URL, api_key: ApiKey = None) -> None:
    """Serve an assistant the tools that read a running service (Model Context Protocol, stdio)."""
    from moca_client import AsyncClient

    try:
        from service.assistant import server
    except ModuleNotFoundError:
        fail("this needs mcp, which is not installed: pip install 'moca-service[mcp]'")
    server(lambda _: AsyncClient(url, api_key=api_key, retry_for_s=5)).run("stdio")


JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json",
        help="File for all values, with the machine, versions and date, as JSON.",
        show_default=False,
    ),
]


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
    seconds: Annotated[
        float, typer.Option(help="Duration of measured load of single observations, per model.")
    ] = 30.0,
    connections: Annotated[int, typer.Option(min=1, help="Concurrent connections.")] = 32,
    streams: Annotated[int, typer.Option(min=1, help="Number of streams.")] = 500,
    rounds: Annotated[int, typer.Option(min=1, help="Time slices per server, in turn.")] = 3,
    workers: Annotated[int, typer.Option(min=1, help="Workers of a service started here.")] = 1,
    model: Annotated[
        str | None,
        typer.Option(
            help="Models, comma-separated, or all built-in ones: all.",
            show_default="the service's default",
        ),
    ] = None,
    lists: Annotated[
        int,
        typer.Option(min=0, help="Length of lists of one stream, and of many; 0: no lists."),
    ] = 1000,
    replay: Annotated[
        int, typer.Option(min=0, help="Rows of a replay in each round; 0: no replay.")
    ] = 20_000,
    json_file: JsonFile = None,
) -> None:
    """Measure throughput, latency and CPU, relative to a bare FastAPI echo endpoint.

    Single observations, lists and replays, once kernels are compiled.
    """
    from moca_client import ClientError
    from service.bench.report import BenchError, write_json
    from service.bench.serve import ServePlan
    from service.bench.serve import bench_serve as run

    plan = ServePlan(seconds, connections, streams, rounds, lists, replay)
    try:
        results = run(plan, _names(model), url, workers)
        if json_file is not None:
            write_json(json_file, results)
    except (BenchError, ClientError, OSError) as error:
        fail(str(error), 1)


@bench.command("step")
def bench_step(
    model: Annotated[
        str | None,
        typer.Option(help="Built-in models, comma-separated.", show_default="all"),
    ] = None,
    streams: Annotated[str, typer.Option(help="Streams per batch, comma-separated.")] = "1,16,256",
    max_hypotheses: Annotated[int, typer.Option(min=2, help="Hypotheses per stream.")] = 50,
    early: Annotated[int, typer.Option(min=1, help="Early step number.")] = 500,
    late: Annotated[int, typer.Option(min=2, help="Late step number.")] = 20_000,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each, in turn.")] = 11,
    json_file: JsonFile = None,
) -> None:
    """Measure the processor time of a filter step, early and late, beside fast-bocpd and FOCuS."""
    from service.bench.report import BenchError, write_json
    from service.bench.step import bench_step as run

    try:
        batches = [int(word) for word in streams.split(",")]
    except ValueError:
        fail(f"--streams: expected comma-separated integers such as 1,16,256, got {streams!r}")
    try:
        results = run(
            models=_names(model),
            batches=batches,
            max_hypotheses=max_hypotheses,
            early=early,
            late=late,
            rounds=rounds,
        )
        if json_file is not None:
            write_json(json_file, results)
    except (BenchError, OSError) as error:
        fail(str(error), 1)


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]
