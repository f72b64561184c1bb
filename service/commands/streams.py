"""`moca streams`, `snapshot` and `calendar`: streams, their states in files, planned windows."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moca_client.console import table
from moca_client.responses import Calendar, Snapshot, StreamSummary
from moca_client.tables import describe_evidence, describe_regime, describe_season
from service.commands.common import argument, fail, input_file, option
from service.commands.connection import (
    GivenSettings,
    Json,
    Match,
    Stream,
    event_text,
    number,
    print_json,
    print_table,
    setting,
    short_utc,
    with_client,
)

if TYPE_CHECKING:
    from moca_client import Client

app = typer.Typer(no_args_is_help=True, help="List, show, create, change and delete streams.")
snapshots = typer.Typer(no_args_is_help=True, help="Export and import a stream's state.")
calendar = typer.Typer(
    no_args_is_help=True,
    help="List, set and remove planned windows, in which streams learn and confirm nothing.",
)


def _show(state: StreamSummary) -> None:
    rows = {
        "stream": state.stream,
        "model": state.model,
        "observations": f"{state.seq}" + (", warming up" if state.warming_up and state.seq else ""),
        "regime since": "" if state.regime_start is None else f"seq {state.regime_start}",
        "changed": number(state.changed_probability),
        "evidence": describe_evidence(state.evidence),
        "last label": number(state.last),
        "mean log score": number(state.mean_log_score),
        "typical regime": "" if state.regime is None else describe_regime(state.regime),
        "season": "" if state.season is None else describe_season(state.season),
    }
    for name in ("event", "last_event"):
        if (event := getattr(state, name)) is not None:
            rows[name.replace("_", " ")] = event_text(event)
    settings = {n: v for n, v in state.settings.items() if v is not None and n != "model"}
    rows["settings"] = ", ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())
    made = table("", "value", words=("value",))
    made.show_header = False
    for name, text in rows.items():
        if text:
            made.add_row(name, text)
    print_table(made)


@app.command("list")
@with_client()
def list_streams(
    client: Client,
    prefix: Annotated[str, option("Only ids with this prefix.")] = "",
    match: Match = None,
    as_json: Json = False,
) -> None:
    """Print the ids of all streams, one per line."""
    names = client.streams(prefix, limit=1000, match=match or ())
    if as_json:
        print_json([{"stream": name} for name in names])
        return
    for name in names:
        typer.echo(name)


@app.command()
@with_client(show=_show)
def show(client: Client, stream: Stream) -> StreamSummary:
    """Show a stream's model, settings and current state."""
    return client.stream(stream)


@app.command()
@with_client(show=_show)
def create(
    client: Client,
    stream: Stream,
    model: Annotated[
        str | None,
        option("NAME or NAME@VERSION, see `moca models`.", default="the service's default"),
    ] = None,
    given: GivenSettings = None,
) -> StreamSummary:
    """Create a stream; exits with status 1 if it already exists."""
    from moca_client.errors import UnknownStream

    settings: dict[str, Any] = dict(setting(text) for text in given or [])
    if model:
        settings["model"] = model
    with suppress(UnknownStream):
        seq = client.stream(stream).seq
        fail(
            f"stream {stream!r} already exists, with {seq} observations: use `moca streams set`, "
            "or delete it",
            1,
        )
    return client.put_stream(stream, settings)


@app.command("set")
@with_client(show=_show)
def change(
    client: Client,
    stream: Stream,
    given: Annotated[
        list[str], argument("Settings such as hazard=0.01.", metavar="NAME=VALUE", default=False)
    ],
) -> StreamSummary:
    """Change settings of an existing stream.

    `model=NAME`, by itself, moves the stream to another model by a replay of what is retained.
    """
    from moca_client.errors import Problem

    settings = dict(setting(text) for text in given)
    client.stream(stream)  # a wrong id must not make a stream
    try:
        return client.put_stream(stream, settings)
    except Problem as error:
        if error.type != "settings-conflict" or error.document.get("field") != "model":
            raise
    if len(settings) > 1:
        fail(
            f"model: set it by itself, `moca streams set {stream} model={settings['model']}`, "
            "which moves the stream by a replay; then the other settings",
            1,
        )
    return client.move_model(stream, settings["model"])


@app.command()
@with_client()
def delete(
    client: Client,
    stream: Stream,
    yes: Annotated[bool, option("Do not ask for confirmation.", "--yes")] = False,
) -> None:
    """Delete a stream and all its data."""
    state = client.stream(stream)
    if not yes:
        typer.confirm(f"Delete {stream!r} with its {state.seq} observations?", abort=True)
    client.delete_stream(stream)
    typer.echo(f"deleted {stream}")


@snapshots.command("export")
@with_client()
def export(
    client: Client,
    stream: Stream,
    out: Annotated[
        Path | None, option("File; `-`: standard output.", default="STREAM.snapshot")
    ] = None,
) -> None:
    """Export a stream's whole state to a file. Only this service can read it."""
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


@snapshots.command("import")
@with_client(show=lambda made: typer.echo(f"imported {made.stream}, {made.seq} observations"))
def import_(
    client: Client,
    stream: Stream,
    file: Annotated[Path, input_file("Snapshot file written by `moca snapshot export`.")],
    replace: Annotated[bool, option("Replace an existing stream.", "--replace")] = False,
) -> StreamSummary:
    """Create a stream from a snapshot."""
    from moca_client.errors import Conflict

    try:
        return client.put_snapshot(stream, Snapshot(file.read_bytes()), replace=replace)
    except Conflict as problem:
        if problem.type != "stream-exists":
            raise
        fail(f"stream {stream!r} already exists: choose another name, or --replace it", 1)


# --- planned windows: streams learn nothing in them, and confirm nothing -------------------------

Name = Annotated[str, argument("Name of the window.")]


def _show_calendar(planned: Calendar) -> None:
    if not planned.windows:
        typer.echo("no windows: `moca calendar set` makes one")
        return
    words = ("when", "streams", "note")
    made = table("window", *words, words=words)
    for window in planned.windows:
        when = f"{window.start} to {window.end} {window.time_zone}, {window.repeat or 'once'}"
        made.add_row(window.name, when, ", ".join(window.match) or "all", window.note)
    print_table(made)
    for time in planned.times:
        span = f"{short_utc(time.start)} to {short_utc(time.end)} UTC"
        typer.echo(f"{span}  {time.window}")


@calendar.command("list")
@with_client(show=_show_calendar)
def list_windows(
    client: Client,
    since: Annotated[
        str | None, option("Only times that end after then: an age, or a time.", default="now")
    ] = None,
    until: Annotated[
        str | None, option("Only times that begin before then.", default="7 days after --since")
    ] = None,
    stream: Annotated[str | None, option("Only windows for this stream.", default="all")] = None,
) -> Calendar:
    """Print all windows, and their next times."""
    return client.calendar(since=since, until=until, stream=stream)


@calendar.command("set")
@with_client()
def put_window(
    client: Client,
    name: Name,
    start: Annotated[
        str, option("Local time of its first occurrence, such as 2024-05-04T22:00, or a date.")
    ],
    end: Annotated[str, option("Local time at which it ends, or a date.")],
    time_zone: Annotated[str, option("Time zone, such as Europe/Berlin.")] = "UTC",
    repeat: Annotated[str, option("Rule such as 'FREQ=WEEKLY;BYDAY=SA,SU'.", default="once")] = "",
    match: Match = None,
    note: Annotated[str, option("Text for people.", default="none")] = "",
    as_json: Json = False,
) -> None:
    """Set a window; in place of one of this name, if there is one."""
    window = client.put_window(
        name,
        start=start,
        end=end,
        time_zone=time_zone,
        repeat=repeat,
        match=match or (),
        note=note,
    )
    times = client.calendar().times
    if as_json:
        print_json(window)
        return
    coming = next((time for time in times if time.window == name), None)
    when = "" if coming is None else f", next from {coming.start} to {coming.end}"
    typer.echo(f"window {name!r} is set{when}")


@calendar.command()
@with_client()
def remove(
    client: Client,
    name: Name,
) -> None:
    """Remove a window; what it excluded stays excluded."""
    client.delete_window(name)
    typer.echo(f"window {name!r} is removed")
