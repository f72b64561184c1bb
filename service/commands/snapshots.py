"""`moca snapshot`: a stream's whole state to a file, and back."""

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

app = typer.Typer(no_args_is_help=True, help="Take a stream's whole state out, and put it in.")


@app.command("export")
def export(
    stream: Stream,
    out: Annotated[
        Path | None,
        typer.Option(
            envvar="MOCA_OUT", help="File; `-`: standard output.", show_default="STREAM.snapshot"
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
) -> None:
    """Write a stream's whole state to a file, which only this service reads."""
    with connected(url, api_key) as client:
        found = client.snapshot(stream)
    if out is not None and str(out) == "-":
        typer.echo(found.content, nl=False)
        return
    file = out or Path(f"{stream}.snapshot")
    try:
        # Whole or not at all: a cut one would be found out only when it is needed.
        part = file.with_name(file.name + ".part")
        part.write_bytes(found.content)
        part.replace(file)
    except OSError as error:
        fail(str(error), 1)
    typer.echo(f"wrote {file}, {len(found.content)} bytes")


@app.command("import")
def import_(
    stream: Stream,
    file: Annotated[Path, input_file("What `moca snapshot export` wrote.")],
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", envvar="MOCA_REPLACE", help="Put it in place of a stream that is there."
        ),
    ] = False,
    content_type: Annotated[
        str,
        typer.Option(envvar="MOCA_CONTENT_TYPE", help="Content type of the file."),
    ] = "application/octet-stream",
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    as_json: Json = False,
) -> None:
    """Make a stream what a snapshot says."""
    from service.documents import Snapshot

    with connected(url, api_key) as client:
        found = client.put_snapshot(
            stream, Snapshot(file.read_bytes(), content_type), replace=replace
        )
    if as_json:
        print_json(found)
    else:
        typer.echo(f"imported {stream}, {found.seq} observations")
