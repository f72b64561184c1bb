"""`replay`: stream a file through a running service; write the answers and a plot.

Its tables on the console need rich, its pictures matplotlib: extras of the wheel.
"""

from __future__ import annotations

import gc
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from moca_client import Client, ClientError, Problem
from moca_client.responses import Changepoints, Event
from moca_client.tables.answers import (
    Replayed,
    describe_regime,
    describe_season,
    describe_segmentation,
    import_writer,
    write_answers,
)
from moca_client.tables.series import Series, read_series

READY_WAIT_S = 10.0
BATCH = 1000  # observations in a request
HINDSIGHT_WAIT_S = 10.0
HINDSIGHT_POLL_S = 0.2
# The package that writes a kind of file, and the extra that installs it.
_NEEDS = {".parquet": ("pyarrow", "parquet"), ".png": ("matplotlib", "plots")}


class ReplayError(RuntimeError):
    """The replay cannot go on; the message says why and what to do."""


def replay(
    file: Path,
    *,
    url: str = "http://127.0.0.1:8000",
    api_key: str | None = None,
    stream: str | None = None,
    model: str | None = None,
    settings: Mapping[str, Any] | None = None,
    out: Path | None = None,
    series: Series | None = None,
    y_columns: Sequence[str] | None = None,
    x_columns: Sequence[str] | None = None,
    time_column: str | None = None,
    batch: int = BATCH,
    belief: bool = True,
    existing: Literal["refuse", "append", "replace"] = "refuse",
    console: Console | None = None,
) -> Replayed:
    """Stream `file` through the service at `url`; write answers and plot; print the events.

    `out` ending in .csv, .parquet or .png is that one file; anything else is a folder that gets
    `STREAM-answers.csv`, `STREAM.png` and, where pyarrow is installed, `STREAM-answers.parquet`
    (default: the current one).
    `series` is what was read of the file already, in place of the columns.
    `stream` defaults to the file's name. `existing` says what to do when the stream already has
    observations: refuse, append to them, or replace the stream. `belief` asks for the whole
    run-length belief with each answer, which the plot's heat map shows.
    """
    if batch < 1:
        raise ReplayError(f"expected batch >= 1, got {batch}")
    console = console or Console()
    stream = stream or re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem)
    files = _writable(output_files(out or Path(), stream), console)
    if file.resolve() in {path.resolve() for path in files}:
        raise ReplayError(f"the answers would overwrite {file}: choose another output")
    read = series or read_series(file, y_columns, x_columns, time_column)
    replayed = Replayed(stream, read)
    wanted = {**({"model": model} if model else {}), **(settings or {})}
    with Client(url, api_key=api_key) as client:
        client.wait_ready(READY_WAIT_S)
        _prepare(client, stream, wanted, existing)
        _import_soon(files)
        try:
            with _collecting_nothing():
                _stream(client, replayed, batch, belief, console)
        except (ReplayError, KeyboardInterrupt):
            _write_partial(replayed, files, console)
            raise
    with _collecting_nothing():
        _write(replayed, files)
    console.print(events_table(replayed))
    console.print(describe_segmentation(replayed), highlight=False)
    if replayed.answers and (season := replayed.answers[-1].season) is not None:
        console.print(f"season: {describe_season(season)}", highlight=False)
    if replayed.answers and (regime := replayed.answers[-1].regime) is not None:
        console.print(f"typical regime now: {describe_regime(regime)}", highlight=False)
    for path in files:
        console.print(f"wrote {path}", highlight=False)
    return replayed


def output_files(out: Path, stream: str) -> list[Path]:
    """Return the files to write; into a folder Parquet only where its package is installed."""
    if out.suffix.lower() in {".csv", ".parquet", ".png"}:
        return [out]
    name = quote(stream, safe="")  # no two streams have one file
    tables = (".csv",) if find_spec("pyarrow") is None else (".csv", ".parquet")
    return [*(out / f"{name}-answers{end}" for end in tables), out / f"{name}.png"]


def _writable(files: list[Path], console: Console) -> list[Path]:
    """Leave out what the optional packages are missing for; refuse when nothing is left.

    Before the first observation is sent, not after the last.
    """
    missing: dict[Path, str] = {}
    for path in files:
        package, extra = _NEEDS.get(path.suffix.lower(), (None, ""))
        if package is not None and find_spec(package) is None:
            missing[path] = f"{path} needs {package}: pip install 'moca-client[{extra}]'"
    if len(missing) == len(files):
        raise ReplayError("; ".join(missing.values()))
    for reason in missing.values():
        console.print(f"not written: {reason}", highlight=False, markup=False, soft_wrap=True)
    return [path for path in files if path not in missing]


def _write(replayed: Replayed, files: Sequence[Path]) -> None:
    write_answers(replayed, [path for path in files if path.suffix.lower() != ".png"])
    for path in files:
        if path.suffix.lower() == ".png":
            from moca_client.plots import plot_replay  # matplotlib is optional

            plot_replay(replayed, path)


def _import_soon(files: Sequence[Path]) -> None:
    """Import what writes the files in the background, while the service computes."""
    suffixes = {path.suffix.lower() for path in files}

    def load() -> None:
        if ".parquet" in suffixes:
            import_writer()
        if ".png" in suffixes:
            from moca_client import plots  # noqa: F401

    threading.Thread(target=load, name="import").start()


@contextmanager
def _collecting_nothing() -> Iterator[None]:
    """Leave the garbage collector out: it would go through all answers again and again.

    The answers contain no reference cycles.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _write_partial(replayed: Replayed, files: Sequence[Path], console: Console) -> None:
    """Keep what the service has already applied and answered."""
    if replayed.answers:
        _write(replayed, files)
        console.print(f"interrupted: wrote the answers to the first {len(replayed.answers)} rows")


def _prepare(client: Client, stream: str, settings: Mapping[str, Any], existing: str) -> None:
    """Create the stream, or do with an existing one what was asked."""
    try:
        seq = client.stream(stream).seq
        if existing == "replace":
            client.delete_stream(stream)
        elif existing == "refuse" and seq > 0:
            raise ReplayError(
                f"stream {stream!r} already has {seq} observations: choose another name "
                "(--stream), append to it (--append), or delete it first (--replace)"
            )
    except Problem as problem:
        if problem.status != 404:
            raise
    client.put_stream(stream, settings)


def _stream(client: Client, replayed: Replayed, batch: int, belief: bool, console: Console) -> None:
    """Send every row, then ask for the events; `replayed` holds whatever was answered."""
    rows = len(replayed.series.y)
    with _progress(console) as progress:
        task = progress.add_task(replayed.stream, total=rows)
        for start in range(0, rows, batch):
            observations = replayed.series.observations(start, start + batch)
            where = f"rows {start + 1} to {start + len(observations)}"
            try:
                answers = client.observe(replayed.stream, observations, belief=belief)
            except ClientError as error:
                raise ReplayError(f"{where}: {error}") from error
            if len(answers) != len(observations):
                raise ReplayError(f"{where}: sent {len(observations)}, got {len(answers)} answers")
            replayed.add(answers)
            if answers[-1].seq != replayed.first_seq + len(replayed.answers) - 1:
                raise ReplayError(f"{where}: another client writes to {replayed.stream!r} too")
            progress.advance(task, len(answers))
    try:
        changepoints = _changepoints(client, replayed.stream)
    except ClientError as error:
        raise ReplayError(f"changepoints: {error}") from error
    replayed.events = list(changepoints.events)
    replayed.segmentation = changepoints.segmentation
    replayed.hindsight = changepoints.hindsight


def _changepoints(client: Client, stream: str) -> Changepoints:
    """Ask until the segmentation in hindsight is there, for a while."""
    give_up = time.monotonic() + HINDSIGHT_WAIT_S
    while True:
        answer = client.changepoints(stream)
        pending = answer.hindsight is not None and answer.hindsight.status == "pending"
        if not pending or time.monotonic() > give_up:
            return answer
        time.sleep(HINDSIGHT_POLL_S)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("observations"),
        TimeRemainingColumn(),
        console=console,
    )


def events_table(replayed: Replayed) -> Table:
    """Return the table of changepoint events of the replayed rows."""
    axis = replayed.series.axis
    events = [event for event in replayed.events if event.start >= replayed.first_seq]
    confirmed = sum(event.state == "confirmed" for event in events)
    table = Table(
        title=f"{replayed.stream} ({replayed.model}): {len(replayed.answers)} observations, "
        f"{confirmed} confirmed change{'' if confirmed == 1 else 's'}",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=0 if axis and axis.kind == "datetime" else (0, 1, 0, 0),  # 80 characters
    )
    headings = ["id", "state", *([axis.name] if axis else []), "start", "suspected", "confirmed"]
    for heading in [*headings, "delay", "prob.", "size (sd)"]:
        table.add_column(heading, justify="left" if heading == "state" else "right", no_wrap=True)
    for event in events:
        when = [replayed.when(event.start)] if axis else []
        style = "bold" if event.state == "confirmed" else "dim"
        table.add_row(
            str(event.id), event.state, *when, *_cells(event, replayed.series.y_names), style=style
        )
    return table


def _cells(event: Event, names: Sequence[str]) -> list[str]:
    return [
        str(event.start),
        str(event.suspected_at),
        "" if event.confirmed_at is None else str(event.confirmed_at),
        str(event.delay),
        f"{event.probability:.3f}",
        _size(event.size, names),
    ]


def _size(size: float | list[float | None] | None, names: Sequence[str]) -> str:
    """Size of a change; of several labels the one that changed most, by name."""
    sizes = size if isinstance(size, list) else [size]
    present = [
        (value, name) for value, name in zip(sizes, names, strict=False) if value is not None
    ]
    if not present:
        return ""
    value, name = max(present, key=lambda pair: abs(pair[0]))
    return f"{value:+.2f}" + (f" {name}" if len(names) > 1 else "")
