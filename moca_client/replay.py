"""`replay`: stream a file through a running service; write the answers and a plot.

Its tables on the console need rich, its pictures matplotlib: extras of the wheel.
"""

from __future__ import annotations

import csv
import gc
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from moca_client.errors import ClientError, Problem, SeqConflict
from moca_client.replayed import Replayed
from moca_client.responses import Answer, Changepoints
from moca_client.series import Series, notices_of, read_series
from moca_client.sync import Client
from moca_client.tables import (
    answer_columns,
    describe_evidence,
    describe_regime,
    describe_season,
    describe_segmentation,
    describe_start,
)

READY_WAIT_S = 10.0
BATCH = 500  # observations in a request: at most 512 are one command of the service
IN_FLIGHT = 2  # requests
HEAD_START_S = 0.02  # of a request on the next, which is not to overtake it
HINDSIGHT_WAIT_S = 10.0
HINDSIGHT_POLL_S = 0.2
QUOTED = re.compile(r"[\",\r\n]")  # what a cell of CSV with it stands between quotes for
# The package that writes a kind of file, and the extra that installs it.
_NEEDS = {".parquet": ("pyarrow", "replay"), ".png": ("matplotlib", "plots")}


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
    batch: int = BATCH,
    belief: bool = True,
    existing: Literal["refuse", "append", "replace"] = "refuse",
    console: Console | None = None,
) -> Replayed:
    """Stream `file` through the service at `url`; write answers and plot; print the events.

    `out` ending in .csv, .parquet or .png is that one file; anything else is a folder that gets
    `STREAM-answers.csv`, `STREAM.png` and, where pyarrow is installed, `STREAM-answers.parquet`
    (default: the current one).
    `series` is what was read of the file already; by default its columns are found by their names.
    `stream` defaults to the file's name. `existing` says what to do when the stream already has
    observations: refuse, append to them, or replace the stream. `belief` asks for the whole
    run-length belief with each answer, which the plot's heat map shows.
    """
    if batch < 1:
        raise ReplayError(f"expected batch >= 1, got {batch}")
    console = console or Console()
    stream = stream or re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem)
    files = writable(output_files(out or Path(), stream), console)
    if file.resolve() in {path.resolve() for path in files}:
        raise ReplayError(f"the answers would overwrite {file}: choose another output")
    series = series or read_series(file)
    print_notices([series], console)
    replayed = Replayed(stream, series)
    wanted = {**({"model": model} if model else {}), **(settings or {})}
    with Client(url, api_key=api_key) as client:
        client.wait_ready(READY_WAIT_S)
        seq = prepare(client, stream, wanted, existing)
        import_soon(files)
        try:
            with collecting_nothing():
                _stream(client, replayed, seq, batch, belief, console)
                # The service segments the stream while tables are written.
                with ThreadPoolExecutor(1) as pool:
                    asked = pool.submit(ask_changes, client, replayed)
                    _write_tables(replayed, files)
                    asked.result()
        except (ReplayError, KeyboardInterrupt):
            if replayed.answers:  # keep what the service has applied and answered
                _write_tables(replayed, files)
                draw(client, replayed, files)
                rows = len(replayed.answers)
                console.print(f"interrupted: wrote the answers to the first {rows} rows")
            raise
        with collecting_nothing():
            draw(client, replayed, files)
    console.print(events_table(replayed))
    regimes = describe_segmentation(replayed.segmentation, replayed.hindsight)
    console.print(regimes, highlight=False)
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


def writable(files: list[Path], console: Console) -> list[Path]:
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


def print_notices(streams: Iterable[Series], console: Console) -> None:
    """Print what may be meant otherwise than it was read."""
    for notice in notices_of(streams):
        console.print(notice, highlight=False, markup=False, soft_wrap=True)


def _write_tables(replayed: Replayed, files: Sequence[Path]) -> None:
    if tables := [path for path in files if path.suffix.lower() != ".png"]:
        write_table(columns_of(replayed), tables, partial(_lists, replayed))


def draw(client: Client, replayed: Replayed, files: Sequence[Path]) -> None:
    """Draw the picture among the files, if there is one, with the settings of the stream."""
    for path in files:
        if path.suffix.lower() == ".png":
            from moca_client.plots import plot_replay  # matplotlib is optional

            with suppress(ClientError):
                replayed.settings = client.stream(replayed.stream).settings
            plot_replay(replayed, path)


def columns_of(replayed: Replayed) -> dict[str, list[Any]]:
    """Lay the answers out as columns; a label with several dimensions gets numbered columns."""
    series = replayed.series
    answers = replayed.answers
    rows = len(answers)
    columns: dict[str, list[Any]] = {"seq": [answer.seq for answer in answers]}
    if series.axis is not None:
        columns[series.axis.name] = (series.axis.rfc3339 or series.axis.value)[:rows]
    for place, name in enumerate(series.x_names):
        columns[name] = [x[place] for x in (series.x or [])[:rows]]
    for place, name in enumerate(series.y_names):
        columns[name] = [None if y is None else y[place] for y in series.y[:rows]]
    columns.update(answer_columns(answers, full=True))
    return columns


def write_table(
    columns: dict[str, list[Any]],
    files: Sequence[Path],
    lists: Callable[[], dict[str, Any]] = dict,
) -> None:
    """Write columns to each file, as its suffix says.

    lists: gives columns of lists, such as run-length beliefs, which Parquet holds as well; a CSV
    cell cannot.
    """
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix.lower() == ".csv":
            _write_csv(columns, file)
        else:
            import pyarrow as pa
            from pyarrow import parquet

            # Hardly a number is there twice: to look for that takes longer than all else.
            table = pa.table({**columns, **lists()})
            parquet.write_table(table, file, use_dictionary=False)


def _import_writer() -> None:
    """Import what Parquet files are written by, and what that imports with its first array."""
    import pyarrow as pa
    from pyarrow import parquet  # noqa: F401

    pa.array([])


def _write_csv(columns: dict[str, list[Any]], file: Path) -> None:
    rows = zip(*map(_cells, columns.values()), strict=True)
    with file.open("w", newline="", encoding="utf-8") as handle:
        csv.writer(handle).writerow(columns)
        handle.writelines(f"{','.join(row)}\r\n" for row in rows)


def _cells(column: list[Any]) -> list[str]:
    """A column as CSV has it: truth values in small letters, nothing where nothing is."""
    if str in {*map(type, column)}:
        return [_quoted(str(cell)) if cell is not None else "" for cell in column]
    # The digits of numbers are several times as fast as those of csv, a cell at a time.
    cells = msgspec.json.encode(column).decode()[1:-1]
    return cells.replace("null", "").split(",") if column else []


def _quoted(text: str) -> str:
    """Text as a cell of CSV."""
    return f'"{text.replace(chr(34), 2 * chr(34))}"' if QUOTED.search(text) else text


def _lists(replayed: Replayed) -> dict[str, Any]:
    """Columns of lists, for Parquet."""
    import pyarrow as pa

    lists: dict[str, Any] = {}
    beliefs = replayed.beliefs
    if beliefs.run_length:
        ends = pa.array(accumulate(beliefs.counts, initial=0), pa.int32())
        missing = pa.array([count == 0 for count in beliefs.counts])
        for name, kind in (("run_length", pa.int32()), ("probability", pa.float32())):
            own = getattr(beliefs, name)
            values = pa.Array.from_buffers(kind, len(own), [None, pa.py_buffer(own)])
            lists[f"belief_{name}"] = pa.ListArray.from_arrays(ends, values, mask=missing)
    predictives = [answer.predictive for answer in replayed.answers]
    if any(p is not None and p.mean is not None and len(p.mean) > 1 for p in predictives):
        lists["covariance"] = [None if p is None else p.variance for p in predictives]
    return lists


def import_soon(files: Sequence[Path]) -> None:
    """Import what writes the files in the background, while the service computes."""
    suffixes = {path.suffix.lower() for path in files}

    def load() -> None:
        if ".parquet" in suffixes:
            _import_writer()
        if ".png" in suffixes:
            from moca_client import plots  # noqa: F401

    threading.Thread(target=load, name="import").start()


@contextmanager
def collecting_nothing() -> Iterator[None]:
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


def prepare(client: Client, stream: str, settings: Mapping[str, Any], existing: str) -> int:
    """Make a stream ready, one that is there as `existing` says; returns its next position.

    One without settings of its own is created by its first observation.
    """
    seq = 0
    try:
        seq = client.stream(stream).seq
        if existing == "replace":
            client.delete_stream(stream)
            seq = 0
        elif existing == "refuse" and seq > 0:
            raise ReplayError(
                f"stream {stream!r} already has {seq} observations: choose another name "
                "(--stream), append to it (--append), or delete it first (--replace)"
            )
    except Problem as problem:
        if problem.status != 404:
            raise
    return client.put_stream(stream, settings).seq if settings else seq


def _stream(
    client: Client, replayed: Replayed, seq: int, batch: int, belief: bool, console: Console
) -> None:
    """Send every row; `replayed` holds whatever was answered.

    A request is on its way while the one before is computed and answered. Each names the position
    that its rows are to have, from `seq` on, and is refused where it has overtaken another: then
    it is sent again after that one is answered, and the others one at a time.
    """
    rows = len(replayed.series.y)
    with progress_bar(console, "observations") as progress, ThreadPoolExecutor(IN_FLIGHT) as pool:
        task = progress.add_task(replayed.stream, total=rows)
        sent: deque[Future[list[Answer]]] = deque()
        in_flight = IN_FLIGHT
        unsent = 0
        while (start := len(replayed.answers)) < rows:
            while unsent < rows and len(sent) < in_flight:
                wait(sent, HEAD_START_S)
                post = partial(_post, client, replayed, unsent, batch, belief, seq + unsent)
                sent.append(pool.submit(post))
                unsent += batch
            own = sent.popleft()
            if isinstance(own.exception(), SeqConflict):
                wait(sent)  # they were refused, too
                sent.clear()
                in_flight = 1
                unsent = start + batch
                own = pool.submit(_post, client, replayed, start, batch, belief, seq + start)
            progress.advance(task, _take(replayed, start, batch, own.result))


def post_rows(client: Client, replayed: Replayed, start: int, batch: int) -> int:
    """Post the rows from `start` on, at most `batch`; returns how many were answered."""
    return _take(replayed, start, batch, lambda: _post(client, replayed, start, batch))


def _post(
    client: Client,
    replayed: Replayed,
    start: int,
    batch: int,
    belief: bool = False,
    seq: int | None = None,
) -> list[Answer]:
    """Post rows; seq: position that the first of them is to have."""
    observations = replayed.series.observations(start, start + batch)
    if seq is not None:
        observations[0]["seq"] = seq
    return client.observe(replayed.stream, observations, detail="full", belief=belief)


def _take(
    replayed: Replayed, start: int, batch: int, answers_of: Callable[[], list[Answer]]
) -> int:
    """Take the answers to rows over; returns how many there are."""
    stop = min(start + batch, len(replayed.series.y))
    where = f"rows {start + 1} to {stop}"
    another = f"{where}: another client writes to {replayed.stream!r} too"
    try:
        answers = answers_of()
    except SeqConflict as error:
        raise ReplayError(another) from error
    except ClientError as error:
        replayed.add(getattr(error, "answers", []))  # of the rows before the one that is refused
        raise ReplayError(f"{where}: {error}") from error
    if len(answers) != stop - start:
        raise ReplayError(f"{where}: sent {stop - start}, got {len(answers)} answers")
    replayed.add(answers)
    if answers[-1].seq != replayed.first_seq + len(replayed.answers) - 1:
        raise ReplayError(another)
    return len(answers)


def progress_bar(console: Console, unit: str) -> Progress:
    """Return a bar that counts units."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
        console=console,
    )


def ask_changes(client: Client, replayed: Replayed) -> None:
    """Fill events and segmentation in."""
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


def events_table(replayed: Replayed) -> Table:
    """Return the table of changepoint events of the replayed rows."""
    axis = replayed.series.axis
    events = [event for event in replayed.events if event.start >= replayed.first_seq]
    confirmed = sum(event.state == "confirmed" for event in events)
    title = (
        f"{replayed.stream} ({replayed.model}): {len(replayed.answers)} observations, "
        f"{confirmed} confirmed change{'' if confirmed == 1 else 's'}"
    )
    table = Table(
        title=title,
        min_width=len(title) + 2,
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=0 if axis and axis.kind == "datetime" else (0, 1, 0, 0),  # 80 characters
    )
    headings = [*([axis.name] if axis else []), "start", "what changed", "evidence", "state"]
    for heading in headings:
        words = heading in ("what changed", "state")
        table.add_column(heading, justify="left" if words else "right", no_wrap=not words)
    for event in events:
        table.add_row(
            *([replayed.when(event.start)] if axis else []),
            describe_start(event),
            replayed.sentence(event),
            describe_evidence(event.evidence),
            event.state,
            style="bold" if event.state == "confirmed" else "dim",
        )
    return table
