"""`moca calendar`: planned windows, in which streams learn nothing and confirm nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from moca_client.console import table
from moca_client.responses import Calendar
from service.commands.connection import (
    Json,
    Match,
    print_json,
    short_utc,
    with_client,
)

if TYPE_CHECKING:
    from moca_client import Client

app = typer.Typer(
    no_args_is_help=True,
    help="List, set and remove planned windows, in which streams learn and confirm nothing.",
)
Name = Annotated[str, typer.Argument(help="Name of the window.")]


def _show(calendar: Calendar) -> None:
    if not calendar.windows:
        typer.echo("no windows: `moca calendar set` makes one")
        return
    words = ("when", "streams", "note")
    made = table("window", *words, words=words)
    for window in calendar.windows:
        when = f"{window.start} to {window.end} {window.time_zone}, {window.repeat or 'once'}"
        made.add_row(window.name, when, ", ".join(window.match) or "all", window.note)
    Console().print(made)
    for time in calendar.times:
        span = f"{short_utc(time.start)} to {short_utc(time.end)} UTC"
        typer.echo(f"{span}  {time.window}")


@app.command("list")
@with_client(show=_show)
def list_windows(
    client: Client,
    since: Annotated[
        str | None,
        typer.Option(help="Only times that end after then: an age, or a time.", show_default="now"),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            help="Only times that begin before then.", show_default="7 days after --since"
        ),
    ] = None,
    stream: Annotated[
        str | None, typer.Option(help="Only windows for this stream.", show_default="all")
    ] = None,
) -> Calendar:
    """Print all windows, and their next times."""
    return client.calendar(since=since, until=until, stream=stream)


@app.command("set")
@with_client()
def put_window(
    client: Client,
    name: Name,
    start: Annotated[
        str,
        typer.Option(
            help="Local time of its first occurrence, such as 2024-05-04T22:00, or a date."
        ),
    ],
    end: Annotated[str, typer.Option(help="Local time at which it ends, or a date.")],
    time_zone: Annotated[str, typer.Option(help="Time zone, such as Europe/Berlin.")] = "UTC",
    repeat: Annotated[
        str,
        typer.Option(help="Rule such as 'FREQ=WEEKLY;BYDAY=SA,SU'.", show_default="once"),
    ] = "",
    match: Match = None,
    note: Annotated[str, typer.Option(help="Text for people.", show_default="none")] = "",
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


@app.command()
@with_client()
def remove(
    client: Client,
    name: Name,
) -> None:
    """Remove a window; what it excluded stays excluded."""
    client.delete_window(name)
    typer.echo(f"window {name!r} is removed")
