"""`moca models`, `mcp` and `bench`: tools around the service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from moca_client import DEFAULT_URL
from moca_client.console import table
from service.commands.common import fail, names, option
from service.commands.connection import ApiKey, Url, print_json, print_table
from service.commands.options import with_settings
from service.settings import Settings

bench = typer.Typer(no_args_is_help=True, help="Measure the service on this machine.")


@with_settings({"models_dir"})
def models(
    settings: Settings,
    as_json: Annotated[bool, option("Print JSON instead of a table.", "--json")] = False,
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
    print_table(made)


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
    option(
        "File for all values, with the machine, versions and date, as JSON.",
        "--json",
        default=False,
    ),
]


@bench.command("serve")
def bench_serve(
    seconds: Annotated[
        float, option("Duration of measured load of single observations, per model.")
    ] = 30.0,
    connections: Annotated[int, option("Concurrent connections.", min=1)] = 32,
    streams: Annotated[int, option("Number of streams.", min=1)] = 500,
    rounds: Annotated[int, option("Time slices per server, in turn.", min=1)] = 3,
    workers: Annotated[int, option("Workers of a service started here.", min=1)] = 1,
    model: Annotated[
        str | None,
        option(
            "Models, comma-separated, or all built-in ones: all.", default="the service's default"
        ),
    ] = None,
    lists: Annotated[
        int, option("Length of lists of one stream, and of many; 0: no lists.", min=0)
    ] = 1000,
    replay: Annotated[int, option("Rows of a replay in each round; 0: no replay.", min=0)] = 20_000,
    json_file: JsonFile = None,
) -> None:
    """Measure throughput, latency and CPU, relative to a bare FastAPI echo endpoint.

    Single observations, lists and replays, once kernels are compiled.
    """
    from service.bench.serve import ServePlan
    from service.bench.serve import bench_serve as run

    plan = ServePlan(seconds, connections, streams, rounds, lists, replay)
    _measured(lambda: run(plan, names(model), workers), json_file)


def _measured(run: Callable[[], Mapping[str, Any]], json_file: Path | None) -> None:
    """Make measurements, and write them to a file where one is named."""
    from moca_client import ClientError
    from service.bench.report import BenchError, write_json

    try:
        results = run()
        if json_file is not None:
            write_json(json_file, results)
    except (BenchError, ClientError, OSError) as error:
        fail(str(error), 1)


@bench.command("device")
def bench_device(
    device: Annotated[str, option("cuda, cuda:0; cpu to try it.")] = "cuda",
    model: Annotated[str, option("Built-in models, comma-separated.")] = "averaged",
    streams: Annotated[int, option("Streams per batch.", min=1, max=4096)] = 4096,
    max_hypotheses: Annotated[int, option("Hypotheses per stream.", min=2)] = 50,
    early: Annotated[int, option("Steps before.", min=1)] = 200,
    rounds: Annotated[int, option("Measurements.", min=1)] = 11,
    json_file: JsonFile = None,
) -> None:
    """Measure a filter step that torch compiles for a device: time, host time, bandwidth."""
    from service.bench.step import bench_device as run

    measure = partial(
        run,
        models=names(model) or [],
        device=device,
        streams=streams,
        max_hypotheses=max_hypotheses,
        early=early,
        rounds=rounds,
    )
    _measured(measure, json_file)


@bench.command("step")
def bench_step(
    model: Annotated[str | None, option("Built-in models, comma-separated.", default="all")] = None,
    streams: Annotated[str, option("Streams per batch, comma-separated.")] = "1,16,256",
    max_hypotheses: Annotated[int, option("Hypotheses per stream.", min=2)] = 50,
    early: Annotated[int, option("Early step number.", min=1)] = 500,
    late: Annotated[int, option("Late step number.", min=2)] = 20_000,
    rounds: Annotated[int, option("Measurements of each, in turn.", min=1)] = 11,
    json_file: JsonFile = None,
) -> None:
    """Measure the processor time of a filter step, early and late, beside fast-bocpd and FOCuS."""
    from service.bench.step import bench_step as run

    try:
        batches = [int(word) for word in streams.split(",")]
    except ValueError:
        fail(f"--streams: expected comma-separated integers such as 1,16,256, got {streams!r}")
    measure = partial(
        run,
        models=names(model),
        batches=batches,
        max_hypotheses=max_hypotheses,
        early=early,
        late=late,
        rounds=rounds,
    )
    _measured(measure, json_file)
