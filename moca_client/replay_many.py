"""`replay` of a file of many streams: some at once, one table of all answers, what changed first.

Pictures are drawn of all changes together, and of the streams whose changes are largest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import repeat
from os.path import commonprefix
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from msgspec import structs
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from moca_client.replay import (
    BATCH,
    READY_WAIT_S,
    ReplayError,
    ask_changes,
    collecting_nothing,
    columns_of,
    draw,
    import_soon,
    output_files,
    post_rows,
    prepare,
    print_notices,
    progress_bar,
    writable,
    write_table,
)
from moca_client.replayed import Replayed, ReplayedChange
from moca_client.responses import Event, StreamChange
from moca_client.series import Series
from moca_client.sync import Client
from moca_client.tables import Columns, describe_evidence, describe_start

PLOTS = 5  # streams with a picture of their own
SHOWN = 20  # changes in the table on the console
LISTED = 500  # changes in a page of the service's list of them
MANY_IN_FLIGHT = 4  # requests, each of another stream


def replay_many(
    file: Path,
    streams: Mapping[str, Series],
    *,
    url: str = "http://127.0.0.1:8000",
    api_key: str | None = None,
    model: str | None = None,
    settings: Mapping[str, Any] | None = None,
    out: Path | None = None,
    batch: int = BATCH,
    plots: int = PLOTS,
    existing: Literal["refuse", "append", "replace"] = "refuse",
    console: Console | None = None,
) -> list[Replayed]:
    """Stream the series of a file through the service at `url`, some at once.

    Into the folder `out` (default: the current one) go `FILE-answers.csv`, and, where pyarrow is
    installed, `FILE-answers.parquet`, with the answers to all rows; `FILE.png` with all confirmed
    changes; and `FILE-STREAM.png` of the streams with the largest changes, at most `plots` of them,
    and no picture at all where that is 0. batch: observations in a request. The others are as of
    `replay`, without run-length beliefs.
    """
    if batch < 1:
        raise ReplayError(f"expected batch >= 1, got {batch}")
    console = console or Console()
    out = out or Path()
    wanted_files = [path for path in output_files(out, file.stem) if plots or not _picture(path)]
    files = writable(wanted_files, console)
    if file.resolve() in {path.resolve() for path in files}:
        raise ReplayError(f"the answers would overwrite {file}: choose another output")
    print_notices(streams.values(), console)
    replays = [Replayed(name, series) for name, series in streams.items()]
    wanted = {**({"model": model} if model else {}), **(settings or {})}
    with Client(url, api_key=api_key) as client:
        client.wait_ready(READY_WAIT_S)
        with ThreadPoolExecutor(MANY_IN_FLIGHT) as pool:
            names = [replayed.stream for replayed in replays]
            list(pool.map(lambda name: prepare(client, name, wanted, existing), names))
        import_soon(files)
        tables: dict[str, Columns] = {}
        with collecting_nothing():
            try:
                _post(client, replays, batch, console, tables)
            except (ReplayError, KeyboardInterrupt):
                rows = sum(len(replayed.answers) for replayed in replays)
                if rows:  # keep what the service has applied and answered
                    _write_answers(replays, tables, files)
                    console.print(f"interrupted: wrote the answers to {rows} rows")
                raise
            _write_answers(replays, tables, files)
        confirmed = [change for replayed in replays for change in _changes(replayed)]
        changes = _refined(client, confirmed)
        console.print(_table(replays, changes))
        if any(map(_picture, files)):
            files += _draw(client, replays, changes, files, plots, console)
    for path in files:
        console.print(f"wrote {path}", highlight=False)
    return replays


def _picture(path: Path) -> bool:
    return path.suffix.lower() == ".png"


def _post(
    client: Client,
    replays: Sequence[Replayed],
    batch: int,
    console: Console,
    tables: dict[str, Columns],
) -> None:
    """Post all rows; no stream is more than `batch` ahead of another that has more.

    Several requests are on their way, each of another stream. tables: gets that of each stream
    that has all its answers, which is laid out while the service computes the others.
    """
    rows = sum(len(replayed.series.y) for replayed in replays)
    longest = max(len(replayed.series.y) for replayed in replays)

    def post(replayed: Replayed, start: int) -> int:
        try:
            count = post_rows(client, replayed, start, batch)
        except ReplayError as error:
            raise ReplayError(f"{replayed.stream!r}, {error}") from error
        if len(replayed.answers) == len(replayed.series.y):
            tables[replayed.stream] = _table_of(replayed)
        return count

    with (
        progress_bar(console, "observations") as progress,
        ThreadPoolExecutor(MANY_IN_FLIGHT) as pool,
    ):
        task = progress.add_task(f"{len(replays)} streams", total=rows)
        for start in range(0, longest, batch):
            left = [replayed for replayed in replays if start < len(replayed.series.y)]
            for count in pool.map(post, left, repeat(start)):
                progress.advance(task, count)


def _changes(replayed: Replayed) -> list[ReplayedChange]:
    """Confirmed changes of a stream, as its answers have them: when they were confirmed."""
    last: dict[int, Event] = {}
    for answer in replayed.answers:
        if answer.event is not None and answer.event.kind == "change":
            last[answer.event.id] = answer.event
    confirmed = [event for event in last.values() if event.state == "confirmed"]
    return [ReplayedChange(replayed, event) for event in confirmed]


def _refined(client: Client, changes: Sequence[ReplayedChange]) -> list[ReplayedChange]:
    """Changes as they are by now: the service estimates a start anew after the confirmation.

    No answer has that. One that the service does not list any more stays as it was.
    """
    if not changes:
        return []
    prefix = commonprefix([change.replayed.stream for change in changes])
    listed: dict[tuple[str, int, int | None], StreamChange] = {}
    for row in client.changes(states=["confirmed"], prefix=prefix or None, limit=LISTED):
        listed.setdefault((row.stream, row.id, row.confirmed_at), row)
    refined = []
    for change in changes:
        event = change.event
        now = listed.get((change.replayed.stream, event.id, event.confirmed_at))
        if now is not None:
            shared = set(now.__struct_fields__) & set(event.__struct_fields__)
            event = structs.replace(event, **{name: getattr(now, name) for name in shared})
        refined.append(change._replace(event=event))
    return refined


def _table_of(replayed: Replayed) -> Columns:
    """The answers of a stream, with its name in the first column."""
    if replayed.series.y_names == [replayed.stream]:  # a column of a wide file
        replayed = replace(replayed, series=replayed.series._replace(y_names=["y"]))
    return {"stream": [replayed.stream] * len(replayed.answers), **columns_of(replayed)}


def _write_answers(
    replays: Sequence[Replayed], tables: Mapping[str, Columns], files: Sequence[Path]
) -> None:
    """Write one table of all streams; tables: of those that are laid out already."""
    every = [tables.get(replayed.stream) or _table_of(replayed) for replayed in replays]
    names = list(dict.fromkeys(name for table in every for name in table))
    joined: Columns = {name: [] for name in names}
    for table in every:
        for name in names:
            joined[name] += table.get(name) or [None] * len(table["stream"])
    write_table(joined, [path for path in files if not _picture(path)])


def _table(replays: Sequence[Replayed], changes: Sequence[ReplayedChange]) -> Table:
    """Return the table of changes, the latest first."""
    rows = sum(len(replayed.answers) for replayed in replays)
    changed = len({change.replayed.stream for change in changes})
    table = Table(
        title=f"{changed} of {len(replays)} streams changed; {rows:,} observations, "
        f"{len(changes)} confirmed change{'' if len(changes) == 1 else 's'}",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    if len(changes) > SHOWN:
        table.caption = f"the latest {SHOWN}; all of them are in the answers"
    # Narrow, so that a sentence fits a line: where there are times, positions are in the answers.
    timed = _axis(replays)
    for heading in ("stream", "since" if timed else "start", "what changed", "evidence"):
        words = heading in ("stream", "what changed")
        table.add_column(heading, justify="left" if words else "right", no_wrap=not words)
    for replayed, event in sorted(changes, key=lambda change: -change.place)[:SHOWN]:
        table.add_row(
            replayed.stream,
            replayed.when(event.start) if timed else describe_start(event),
            replayed.sentence(event),
            describe_evidence(event.evidence),
        )
    return table


def _axis(replays: Sequence[Replayed]) -> bool:
    return replays[0].series.axis is not None


def _draw(
    client: Client,
    replays: Sequence[Replayed],
    changes: Sequence[ReplayedChange],
    files: Sequence[Path],
    plots: int,
    console: Console,
) -> list[Path]:
    """Draw all changes, and each of the streams with the largest; returns the latters' files."""
    from moca_client.plots import plot_changes  # matplotlib is optional

    (overview,) = filter(_picture, files)
    plot_changes(replays, changes, overview)
    by_size = sorted(changes, key=lambda change: -change.magnitude)
    largest = list({id(change.replayed): change.replayed for change in by_size}.values())
    drawn: list[Path] = []
    with progress_bar(console, "pictures") as progress:
        task = progress.add_task("drawing", total=len(largest[:plots]))
        for replayed in largest[:plots]:
            ask_changes(client, replayed)
            name = f"{overview.stem}-{quote(replayed.stream, safe='')}.png"
            path = overview.with_name(name)
            draw(client, replayed, [path])
            drawn.append(path)
            progress.advance(task)
    if len(largest) > plots:
        console.print(f"pictures of {plots} of {len(largest)} streams that changed: see --plots")
    return drawn
