"""`moca changes` and `moca incidents`: which streams changed, since when, what, and together."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from moca_client.console import table
from moca_client.responses import ChangesPage, IncidentDetail, Mover, StreamChange
from moca_client.tables import change_lines
from service.commands.common import argument, option
from service.commands.connection import (
    Json,
    Match,
    change_cells,
    print_json,
    print_table,
    with_client,
)

if TYPE_CHECKING:
    from moca_client import Client
    from moca_client.retry import Call

PAGE = 200  # changes of one request
EVER = "all"


class EventState(StrEnum):
    """States of an event; typer takes a list of these, of a Literal it does not."""

    SUSPECTED = "suspected"
    CONFIRMED = "confirmed"
    WITHDRAWN = "withdrawn"


Kind = Annotated[
    Literal["change", "returned", "all"],
    option("`returned`: to a remembered regime; `change`: to a new one."),
]

Since = Annotated[
    str,
    option("Only those from then on: an age such as 30m, 24h, 7d, or a time; all: of all times."),
]
Until = Annotated[str | None, option("Only those before then.", default="now")]
Prefix = Annotated[str | None, option("Only of streams with this prefix.", default="all")]
MinSize = Annotated[
    float | None,
    option("Smallest size of a change in standard deviations.", min=0, default="any"),
]


@with_client()
def changes(
    client: Client,
    since: Since = "24h",
    until: Until = None,
    kind: Kind = "change",
    state: Annotated[
        list[EventState] | None, option("State; may be repeated.", default="suspected, confirmed")
    ] = None,
    model: Annotated[str | None, option("NAME or NAME@VERSION.", default="all")] = None,
    prefix: Prefix = None,
    contains: Annotated[
        str | None, option("Only streams with this text in their id.", default="all")
    ] = None,
    match: Match = None,
    min_size: MinSize = None,
    min_evidence: Annotated[
        float | None, option("Smallest evidence: 1 in so many observations.", min=0, default="any")
    ] = None,
    sort: Annotated[Literal["time", "size", "evidence"], option("What comes first.")] = "time",
    limit: Annotated[int, option("Most changes to print.", min=1)] = 1000,
    as_csv: Annotated[
        bool, option("Print CSV, as is done where the output is no terminal.", "--csv")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the changes of all streams: which, since when, what changed, and how sure that is."""
    from moca_client import calls

    ask = partial(
        calls.changes,
        until=until,
        kinds=[kind],
        states=state or [],
        model=model,
        prefix=prefix,
        contains=contains,
        min_size=min_size,
        min_evidence=min_evidence,
        sort=sort,
        match=match or (),
    )
    first = None if since == EVER else since
    call: Call[ChangesPage] | None = ask(since=first, limit=min(limit, PAGE), movers=True)
    rows: list[StreamChange] = []
    movers: Sequence[Mover] = ()
    unreadable: set[str] = set()
    while call is not None and len(rows) < limit:
        page = client.call(call)
        unreadable.update(page.unreadable)
        rows += page.changes
        movers = page.movers or ()
        call = calls.following(call, page)
    del rows[limit:]
    _warn_unreadable(unreadable)
    if as_json:
        print_json(rows)
    elif as_csv or not on_terminal():
        typer.echo(change_lines(rows), nl=False)
    elif rows:
        _show(rows)
        _show_movers(movers)
    if not rows:
        earlier = client.call(ask(limit=1)).total if first else 0
        _say_nothing("change", first, earlier)


@with_client()
def incidents(
    client: Client,
    incident: Annotated[
        str | None, argument("Id of one, to print its changes.", default="list them")
    ] = None,
    since: Since = "24h",
    until: Until = None,
    kind: Kind = "change",
    prefix: Prefix = None,
    match: Match = None,
    min_streams: Annotated[int, option("Smallest number of streams.", min=2)] = 2,
    min_size: MinSize = None,
    limit: Annotated[int, option("Most incidents to print.", min=1)] = 100,
    as_json: Json = False,
) -> None:
    """Print the changes that began together, a line for each incident, and what its streams share.

    With an id: that incident and each of its changes.
    """
    if incident is not None:
        one = client.incident(incident, kinds=[kind])
        if as_json:
            print_json(one)
        else:
            _show_incident(one)
        return
    ask = partial(
        client.incidents,
        until=until,
        kinds=[kind],
        prefix=prefix,
        match=match or (),
        min_streams=min_streams,
        min_size=min_size,
    )
    first = None if since == EVER else since
    rows = list(islice(ask(since=first, limit=min(limit, PAGE)), limit))
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            typer.echo(f"{row.id}  {row.headline}")
    if not rows:
        earlier = sum(1 for _ in ask(limit=PAGE)) if first else 0
        _say_nothing("incident", first, earlier)


def _say_nothing(what: str, since: str | None, earlier: int) -> None:
    """Print to standard error that nothing matches, with the option for earlier rows."""
    if since is None:
        text = f"no {what}s; see --help for what is left out"
    elif earlier:
        text = f"no {what}s with --since {since}; {earlier} before that: --since {EVER}"
    else:
        text = f"no {what}s with --since {since}, and none before that"
    typer.echo(text, err=True)


def _show_incident(one: IncidentDetail) -> None:
    typer.echo(one.headline)
    typer.echo(
        f"began between {one.earliest_time} and {one.latest_time}; "
        f"by chance {one.by_chance.per_day:.2g} such incidents a day"
    )
    _show_movers(one.movers)
    _warn_unreadable(one.unreadable)
    _show(one.changes)


def _show_movers(movers: Sequence[Mover]) -> None:
    for mover in movers:
        typer.echo(
            f"{mover.name}: {mover.changed} of {mover.streams} changed, "
            f"{mover.expected:.2g} expected"
        )


def _warn_unreadable(names: Collection[str]) -> None:
    """Warn that an answer lacks what is damaged in the store."""
    if names:
        text = f"moca: warning: cannot read the state or history of {', '.join(sorted(names))}"
        typer.secho(f"{text}: damaged in the store", err=True, fg="yellow")


def on_terminal() -> bool:
    """Whether people read the output."""
    return sys.stdout.isatty()


def _show(rows: list[StreamChange]) -> None:
    headings = ("stream", "since (UTC)", "what changed", "evidence", "state")
    made = table(*headings, words=("what changed", "state"))
    for change in rows:
        made.add_row(change.stream, *change_cells(change), change.state)
    print_table(made)
