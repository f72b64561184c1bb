"""`moca snapshot`: export and import a stream's state."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.commands.connection import (
    DEFAULT_URL,
    ApiKey,
    Json,
    Stream,
    Url,
    connected,
    print_json,
)
from service.commands.options import fail, input_file

app = typer.Typer(no_args_is_help=True, help="Export and import a stream's state.")


@app.command("export")
def export(
    stream: Stream,
    out: Annotated[
        Path | None,
        typer.Option(help="File; `-`: standard output.", show_default="STREAM.snapshot"),
    ] = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
) -> None:
    """Export a stream's whole state to a file. Only this service can read it."""
    with connected(url, api_key) as client:
        snapshot = client.snapshot(stream)
    if out is not None and str(out) == "-":
        typer.echo(snapshot.content, nl=False)
        return
    file = out or Path(f"{stream}.snapshot")
    try:
        # Whole or not at all: a cut one would be found out only when it is needed.
        part = file.with_name(file.name + ".part")
        part.write_bytes(snapshot.content)
        part.replace(file)
    except OSError as error:
        fail(str(error), 1)
    typer.echo(f"wrote {file}, {len(snapshot.content)} bytes")


@app.command("import")
def import_(
    stream: Stream,
    file: Annotated[Path, input_file("Snapshot file written by `moca snapshot export`.")],
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Replace an existing stream."),
    ] = False,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """Create a stream from a snapshot."""
    from moca_client.responses import Snapshot

    with connected(url, api_key) as client:
        summary = client.put_snapshot(stream, Snapshot(file.read_bytes()), replace=replace)
    if as_json:
        print_json(summary)
    else:
        typer.echo(f"imported {stream}, {summary.seq} observations")
