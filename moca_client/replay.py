"""`replay`: stream a file through a running service; write the answers and pictures.

A file is one stream, or has many: then some are posted at once, into one table of all answers, and
pictures are drawn of the streams whose changes are largest. Tables on the console need rich,
pictures matplotlib: extras of the wheel.
"""

from __future__ import annotations

import gc
import math
import re
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import accumulate, chain
from os.path import commonprefix
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import structs
from rich.console import Console
from rich.table import Table

from moca_client import DEFAULT_URL
from moca_client.client import Client
from moca_client.console import progress_bar, table
from moca_client.errors import ClientError, Problem, SeqConflict, Unavailable
from moca_client.replayed import Replayed
from moca_client.responses import (
    Answer,
    EventMembers,
    StreamChange,
)
from moca_client.series import Series, notices_of
from moca_client.tables import (
    Columns,
    answer_columns,
    describe_evidence,
    describe_regime,
    describe_season,
    describe_segmentation,
    describe_start,
    magnitude,
)

SILENT_WAIT_S = 2.0  # for the service, before it is said
REACH_WAIT_S = 10.0  # for one that does not answer
START_WAIT_S = 180.0  # for one that answers and starts: it may compile kernels on a busy machine
BATCH = 500  # observations in a request: at most 512 are one command of the service
IN_FLIGHT = 4  # requests, two of a stream
HEAD_START_S = 0.02  # of a request on the next, which is not to overtake it
HINDSIGHT_WAIT_S = 10.0
PLOTS = 5  # streams with a picture of their own
SHOWN = 20  # changes in the table on the console
LISTED = 500  # changes in a page of the service's list of them
HINDSIGHT_POLL_S = 0.2
# Changes from which on, and observations of each up to which, they may be a season. It is looked
# for from so many observations on, in labels of one output, by the models that need no choice.
MANY = 5
RARELY = 100
SEASONS_FROM = 200
SEASONAL = ("averaged", "joint")
QUOTED = re.compile(r"[\",\r\n]")  # what a cell of CSV with it stands between quotes for
# The package that writes a kind of file, and the extra that installs it.
_NEEDS = {".parquet": ("pyarrow", "replay"), ".png": ("matplotlib", "plots")}
# Endings of a path that is meant as a file, and is none that can be written.
OTHER_FILES = {".xlsx", ".xls", ".json", ".tsv", ".txt", ".svg", ".pdf", ".jpg", ".jpeg"}


class ReplayError(RuntimeError):
    """The replay cannot go on; the message says why and what to do."""


def stream_name(file: Path) -> str:
    """Return the stream that the rows of a file are of, unless another is named."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem)


def replay(
    file: Path,
    streams: Mapping[str, Series],
    *,
    many: bool = False,
    url: str = DEFAULT_URL,
    api_key: str | None = None,
    settings: Mapping[str, Any] | None = None,
    out: Path | None = None,
    batch: int = BATCH,
    belief: bool = True,
    plots: int = PLOTS,
    existing: Literal["refuse", "append", "replace"] = "refuse",
    console: Console | None = None,
) -> list[Replayed]:
    """Stream the series of `file` through the service at `url`; write answers, print changes, plot.

    streams: of the series, by name; many: the file may have others than one, of which some are
    posted at once. Into the folder `out` (default: the current one) go `STREAM-answers.csv`,
    `STREAM.png` and, where pyarrow is installed, `STREAM-answers.parquet`; of many
    `FILE-answers.csv` likewise, with a column of their names, and `FILE-STREAM.png` of the streams
    with the largest changes, at most `plots` of them. `out` ending in .csv, .parquet or .png is
    that one file. batch: observations in a request. belief: of one stream, whether the whole
    run-length belief comes with each answer, which the plot's heat map shows. existing: what to do
    where a stream already has observations: refuse, append to them, or replace it.
    """
    console = console or Console()
    replays = [Replayed(name, series) for name, series in streams.items()]
    first = replays[0]
    name = file.stem if many else first.stream
    files = output_files(out or Path(), name, console, pictures=plots > 0 or not many)
    tables: dict[str, Columns] = {}

    def lay_out(replayed: Replayed) -> None:
        tables[replayed.stream] = _with_name(replayed) if many else columns_of(replayed)

    def write() -> None:
        for replayed in replays:
            if replayed.stream not in tables:
                lay_out(replayed)
        write_table(_joined([tables[replayed.stream] for replayed in replays]), files)

    with Client(url, api_key=api_key) as client:
        ask = (
            partial(ask_confirmed, client, replays) if many else partial(ask_changes, client, first)
        )
        with collecting_nothing():
            upload = Upload(client, replays, batch, belief and not many, finished=lay_out)
            upload.prepare(file, files, settings or {}, existing, console)
            upload.run(f"{len(replays)} streams" if many else name, write)
            with ThreadPoolExecutor(1) as pool:
                asked = pool.submit(ask)  # the service answers while tables are written
                write()
                asked.result()
            if not many:
                _show(client, first, files, console, seasonal="seasonal" in (settings or {}))
        if many:
            _print_changes(changes_table(replays), console)
            files = _draw_largest(client, replays, files, plots, console)
    for path in files:
        console.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)
    return replays


def _with_name(replayed: Replayed) -> Columns:
    """Lay out the answers of one of many streams, with its name in the first column."""
    series = replayed.series
    if series.y_names == [replayed.stream]:  # a column of a wide file
        series = series._replace(y_names=["y"])
    names: Columns = {"stream": [replayed.stream] * len(replayed.answers)}
    return names | columns_of(replace(replayed, series=series))


def _show(
    client: Client, replayed: Replayed, files: Sequence[Path], console: Console, seasonal: bool
) -> None:
    """Print and draw the changes of a stream; seasonal: as of `_describe`."""
    _print_changes(events_table(replayed), console)
    _describe(replayed, console, seasonal)
    for picture in filter(_picture, files):
        draw(client, replayed, picture)


def _draw_largest(
    client: Client, replays: Sequence[Replayed], files: Sequence[Path], plots: int, console: Console
) -> list[Path]:
    """Draw the streams with the largest changes; returns the files that are written."""
    written = [path for path in files if not _picture(path)]
    largest = by_largest_change(replays)
    for picture in filter(_picture, files):
        for replayed in largest[:plots]:
            ask_changes(client, replayed)
            own = f"{picture.stem}-{quote(replayed.stream, safe='')}.png"
            written.append(picture.with_name(own))
            draw(client, replayed, written[-1])
        if len(largest) > plots:
            text = f"pictures of {plots} of {len(largest)} streams that changed: see --plots"
            console.print(text)
    return written


def by_largest_change(replays: Sequence[Replayed]) -> list[Replayed]:
    """Return the streams with confirmed changes, those with the largest first."""
    changed = [replayed for replayed in replays if replayed.confirmed]
    return sorted(changed, key=lambda own: -max(map(magnitude, own.confirmed)))


def _describe(replayed: Replayed, console: Console, seasonal: bool) -> None:
    """Print the regimes of a stream, and the season and the typical regime that it has now.

    seasonal: whether a setting says when to look for a season.
    """
    regimes = describe_segmentation(replayed.segmentation, replayed.hindsight)
    console.print(regimes, highlight=False)
    if not replayed.answers:
        return
    last = replayed.answers[-1]
    if last.season is not None:
        console.print(f"season: {describe_season(last.season)}", highlight=False)
    if last.regime is not None:
        console.print(f"typical regime now: {describe_regime(last.regime)}", highlight=False)
    if not seasonal and may_recur(replayed):
        text = "many changes: if they recur, as each day, --set seasonal=true learns the season"
        console.print(text, highlight=False)


def may_recur(replayed: Replayed) -> bool:
    """Whether changes are so many that they may be a season that is not looked for yet."""
    if not replayed.answers:
        return False
    last = replayed.answers[-1]
    searched = last.seq >= SEASONS_FROM and len(replayed.series.y_names) == 1
    changes = len(replayed.confirmed)
    often = changes >= MANY and len(replayed.answers) < RARELY * changes
    return often and not searched and last.season is None and last.model in SEASONAL


def _picture(path: Path) -> bool:
    return path.suffix.lower() == ".png"


def output_files(out: Path, name: str, console: Console, pictures: bool = True) -> list[Path]:
    """Return the files to write, without those that optional packages are missing for.

    Into a folder Parquet only where its package is installed. Raises ReplayError where nothing is
    left: before the first observation is sent, not after the last.
    """
    files = [out]
    if out.suffix.lower() not in {".csv", ".parquet", ".png"}:
        if out.suffix.lower() in OTHER_FILES and not out.is_dir():
            raise ReplayError(
                f"out: expected a folder, or a .csv, .parquet or .png file, got {out}"
            )
        stem = quote(name, safe="")  # no two streams have one file
        ends = (".csv",) if find_spec("pyarrow") is None else (".csv", ".parquet")
        files = [out / f"{stem}-answers{end}" for end in ends]
        files += [out / f"{stem}.png"] if pictures else []
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


def draw(client: Client, replayed: Replayed, path: Path) -> None:
    """Draw the picture of a stream, with its settings."""
    from moca_client.plots import plot_replay  # matplotlib is optional

    with suppress(ClientError):
        replayed.settings = client.stream(replayed.stream).settings
    plot_replay(replayed, path)


def columns_of(replayed: Replayed) -> Columns:
    """Lay the answers out as columns; a label with several dimensions gets numbered columns."""
    series = replayed.series
    answers = replayed.answers
    rows = len(answers)
    columns: Columns = {"seq": [answer.seq for answer in answers]}
    if series.axis is not None:
        columns[series.axis.name] = (series.axis.rfc3339 or series.axis.value)[:rows]
    for place, name in enumerate(series.x_names):
        columns[name] = [x[place] for x in (series.x or [])[:rows]]
    for place, name in enumerate(series.y_names):
        columns[name] = [None if y is None else y[place] for y in series.y[:rows]]
    columns.update(answer_columns(answers, full=True))
    return columns


def _joined(tables: Sequence[Columns]) -> Columns:
    """One table of those of all streams, whose columns need not be the same."""
    joined: Columns = {name: [] for columns in tables for name in columns}
    for columns in tables:
        for name, cells in joined.items():
            cells += columns.get(name) or [None] * len(columns["seq"])
    return joined


def write_table(columns: Columns, files: Sequence[Path]) -> None:
    """Write columns to each file but pictures, as its suffix says."""
    for file in files:
        if _picture(file):
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix.lower() == ".csv":
            rows = zip(*map(_cells, columns.values()), strict=True)
            lines = (msgspec.json.encode(row)[1:-1] for row in chain([_cells([*columns])], rows))
            with file.open("wb") as handle:
                handle.writelines(line + b"\r\n" for line in lines)
        else:
            import pyarrow as pa
            from pyarrow import parquet

            table = pa.table({name: _arrow_array(cells) for name, cells in columns.items()})
            # Hardly a number is there twice: to look for that takes longer than all else.
            parquet.write_table(table, file, use_dictionary=False)


def _cells(column: list[Any]) -> list[Any]:
    """Cells of CSV for JSON, whose digits are several times as fast as those of csv.

    Texts are as they are; nothing is where nothing is, nor a finite number.
    """
    kinds = {*map(type, column)}
    if str in kinds:
        texts = ["" if cell is None else str(cell) for cell in column]
        quoted = [f'"{t.replace(chr(34), 2 * chr(34))}"' if QUOTED.search(t) else t for t in texts]
        return [msgspec.Raw(text.encode()) for text in quoted]
    nothing = msgspec.Raw(b"")
    finite = math.isfinite(sum(filter(None, column)))
    if finite and type(None) not in kinds:
        return column
    return [
        nothing if cell is None or not (finite or math.isfinite(cell)) else cell for cell in column
    ]


def _arrow_array(column: list[Any]) -> Any:
    """A column for Arrow, from buffers: for a list it imports pandas, which takes a quarter second.

    Cells are texts, truth values or numbers, or None.
    """
    import pyarrow as pa

    kinds = {*map(type, column)} - {type(None)}
    if not kinds:
        return pa.nulls(len(column))
    filled = column.copy()
    for row in [row for row, cell in enumerate(column) if cell is None]:
        filled[row] = "" if str in kinds else 0
    buffers: list[Any] = [_bits([cell is not None for cell in column])]
    if str in kinds:
        kind = pa.string()
        texts = [text.encode() for text in filled]
        buffers += [array("i", accumulate(map(len, texts), initial=0)), b"".join(texts)]
    elif bool in kinds:
        kind = pa.bool_()
        buffers.append(_bits(filled))
    else:
        kind = pa.float64() if float in kinds else pa.int64()
        buffers.append(array("d" if float in kinds else "q", filled))
    return pa.Array.from_buffers(kind, len(column), [*map(pa.py_buffer, buffers)])


def _bits(flags: Sequence[bool]) -> bytes:
    """Flags as Arrow has them: eight in a byte, the first as its lowest bit."""
    number = int("".join(["1" if flag else "0" for flag in reversed(flags)]), 2)
    return number.to_bytes(-(-len(flags) // 8), "little")


def import_soon(files: Sequence[Path]) -> None:
    """Import what writes the files in the background, while the service computes."""

    def load() -> None:
        if any(path.suffix.lower() == ".parquet" for path in files):
            from pyarrow import parquet  # noqa: F401

        if any(map(_picture, files)):
            from moca_client import plots  # noqa: F401

    threading.Thread(target=load, name="import").start()


@contextmanager
def collecting_nothing() -> Iterator[None]:
    """Leave the garbage collector out: it would go through all rows and answers again and again.

    They contain no reference cycles.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            # What was made meanwhile is old by that, and not gone through at once.
            gc.freeze()
            gc.unfreeze()
            gc.enable()


def wait_ready(client: Client, console: Console) -> None:
    """Wait for the service, longer for one that starts; raises ReplayError if it is not in time."""
    reason = _not_ready(client, SILENT_WAIT_S)
    if reason and reason.problem is None:
        text = f"no service answers at {client.url}: waiting for one, {REACH_WAIT_S:.0f} s at most"
        console.print(text, highlight=False, markup=False, soft_wrap=True)
        reason = _not_ready(client, REACH_WAIT_S)
    if reason and reason.problem is not None:
        text = (
            f"the service at {client.url} is starting ({reason.problem.detail}): a first start "
            f"compiles its kernels, about a minute; waiting, {START_WAIT_S:.0f} s at most"
        )
        console.print(text, highlight=False, markup=False, soft_wrap=True)
        reason = _not_ready(client, START_WAIT_S)
    if reason and reason.problem is None:
        raise ReplayError(
            f"no service answers at {client.url} ({reason}): start one with `moca serve`, or give "
            "the address of another"
        )
    if reason:
        raise ReplayError(
            f"the service at {client.url} did not get ready in {START_WAIT_S:.0f} s ({reason}): "
            "see the log of `moca serve`, and repeat this command"
        )


def _not_ready(client: Client, wait_s: float) -> Unavailable | None:
    try:
        client.wait_ready(wait_s)
    except Unavailable as error:
        return error
    return None


def _has_observations(seqs: Mapping[str, int], streams: int) -> str:
    """Say which streams have observations, and what to do; streams: how many were asked for."""
    name, seq = next(iter(seqs.items()))
    text = f"stream {name!r} already has {seq} observations"
    if streams == 1:
        hint = "choose another name (--stream), append to it (--append), or delete it first"
        return f"{text}: {hint} (--replace)"
    if len(seqs) > 1:
        text += f", and {len(seqs) - 1} others of {streams} have some"
    return f"{text}: append to them (--append), or delete them first (--replace)"


class Upload:
    """Sends all rows; no stream is much more than `batch` ahead of another that has more.

    Requests are on their way while those before them are computed. Each names the position that its
    rows are to have, and is refused where it has overtaken another of its stream: then it is sent
    again when no other is on its way. finished: gets each stream that has all its answers, while
    the service computes others.
    """

    def __init__(
        self,
        client: Client,
        replays: Sequence[Replayed],
        batch: int,
        belief: bool = False,
        finished: Callable[[Replayed], object] = lambda _: None,
    ) -> None:
        if batch < 1:
            raise ReplayError(f"expected batch >= 1, got {batch}")
        self._client = client
        self._replays = replays
        self._seqs: list[int] = []  # positions of the first rows
        self._batch = batch
        self._belief = belief
        self._finished = finished
        self._lengths = [len(replayed.series.y) for replayed in replays]
        self._in_flight = min(2 * len(replays), IN_FLIGHT)
        # Stream and first row of the requests on their way, and their answers.
        self._sent: deque[tuple[int, int, Future[list[Answer]]]] = deque()

    def prepare(
        self,
        file: Path,
        outputs: Sequence[Path],
        settings: Mapping[str, Any],
        existing: str,
        console: Console,
    ) -> None:
        """Make streams ready, those that are there as `existing` says; raises ReplayError.

        All are looked at before any is changed, once everything else can be done that is asked
        for. One without settings of its own is created by its first observation.
        """
        if file.resolve() in {path.resolve() for path in outputs}:
            raise ReplayError(f"the answers would overwrite {file}: choose another output")
        # What may be meant otherwise than it was read.
        for notice in notices_of(replayed.series for replayed in self._replays):
            console.print(notice, highlight=False, markup=False, soft_wrap=True)
        self._console = console
        wait_ready(self._client, console)

        def ready(stream: str, seq: int | None) -> int:
            if seq is not None and existing == "replace":
                self._client.delete_stream(stream)
                seq = 0
            return self._client.put_stream(stream, settings).seq if settings else seq or 0

        streams = [replayed.stream for replayed in self._replays]
        with ThreadPoolExecutor(IN_FLIGHT) as pool:
            seqs = list(pool.map(self._seq_of, streams))
            filled = {stream: seq for stream, seq in zip(streams, seqs, strict=True) if seq}
            if filled and existing == "refuse":
                raise ReplayError(_has_observations(filled, len(streams)))
            self._seqs = list(pool.map(ready, streams, seqs))
        import_soon(outputs)

    def _seq_of(self, stream: str) -> int | None:
        try:
            return self._client.stream(stream).seq
        except Problem as problem:
            if problem.status == 422:
                raise ReplayError(f"{stream!r} cannot name a stream: {problem}") from problem
            if problem.status != 404:
                raise
            return None

    def run(self, title: str, keep: Callable[[], object]) -> None:
        """Send until all is answered; raises ReplayError, when all on its way is answered.

        keep: writes what the service has applied and answered of an upload that did not end.
        """
        try:
            with (
                progress_bar(self._console, "observations") as progress,
                ThreadPoolExecutor(self._in_flight) as pool,
            ):
                task = progress.add_task(title, total=sum(self._lengths))
                advance = partial(progress.advance, task)
                for own, start in self._parts():
                    self._settle(self._in_flight - 1, advance)
                    before = [answers for other, _, answers in self._sent if other == own]
                    wait(before, HEAD_START_S)
                    self._sent.append((own, start, pool.submit(self._post, own, start)))
                self._settle(0, advance)
        except (ReplayError, KeyboardInterrupt):
            for own, start, answers in self._sent:
                with suppress(ReplayError):
                    self._take(own, start, answers.result)
            if rows := sum(len(replayed.answers) for replayed in self._replays):
                keep()
                first = "the first " if len(self._replays) == 1 else ""
                self._console.print(f"interrupted: wrote the answers to {first}{rows} rows")
            raise

    def _parts(self) -> Iterator[tuple[int, int]]:
        """Streams and first rows of the requests, in their order."""
        for start in range(0, max(self._lengths), self._batch):
            for own, rows in enumerate(self._lengths):
                if start < rows:
                    yield own, start

    def _post(self, own: int, start: int) -> list[Answer]:
        replayed = self._replays[own]
        observations = replayed.series.observations(start, start + self._batch)
        observations[0]["seq"] = self._seqs[own] + start
        return self._client.observe(
            replayed.stream, observations, detail="full", belief=self._belief
        )

    def _settle(self, most: int, advance: Callable[[int], None]) -> None:
        """Take answers over, in order, until so few requests are on their way."""
        while len(self._sent) > most:
            own, start, answers = self._sent[0]
            answers_of = answers.result
            if isinstance(answers.exception(), SeqConflict):
                wait([others for _, _, others in self._sent])
                answers_of = partial(self._post, own, start)
                most = 0  # those of its stream were refused, too
            self._sent.popleft()
            advance(self._take(own, start, answers_of))
            if len(self._replays[own].answers) == self._lengths[own]:
                self._finished(self._replays[own])

    def _take(self, own: int, start: int, answers_of: Callable[[], list[Answer]]) -> int:
        """Take the answers to rows over; returns how many there are."""
        replayed = self._replays[own]
        stop = min(start + self._batch, self._lengths[own])
        where = f"rows {start + 1} to {stop}"
        if len(self._replays) > 1:
            where = f"{replayed.stream!r}, {where}"
        another = f"{where}: another client writes to {replayed.stream!r} too"
        try:
            answers = answers_of()
        except SeqConflict as error:
            raise ReplayError(another) from error
        except ClientError as error:
            replayed.add(getattr(error, "answers", []))  # of the rows before the one refused
            raise ReplayError(f"{where}: {error}") from error
        if len(answers) != stop - start:
            raise ReplayError(f"{where}: sent {stop - start}, got {len(answers)} answers")
        replayed.add(answers)
        if answers[-1].seq != replayed.first_seq + len(replayed.answers) - 1:
            raise ReplayError(another)
        return len(answers)


def ask_changes(client: Client, replayed: Replayed) -> None:
    """Fill events and segmentation in; that in hindsight is waited for, for a while."""
    give_up = time.monotonic() + HINDSIGHT_WAIT_S
    while True:
        try:
            answer = client.changepoints(replayed.stream)
        except ClientError as error:
            raise ReplayError(f"changepoints: {error}") from error
        pending = answer.hindsight is not None and answer.hindsight.status == "pending"
        if not pending or time.monotonic() > give_up:
            break
        time.sleep(HINDSIGHT_POLL_S)
    replayed.events = list(answer.events)
    replayed.segmentation = answer.segmentation
    replayed.hindsight = answer.hindsight


def _print_changes(made: Table, console: Console) -> None:
    """Print a table of changes; its title alone where there are none."""
    if made.row_count:
        console.print(made)
    else:
        console.print(made.title, highlight=False, markup=False)


def _counted(confirmed: int) -> str:
    return f"{confirmed or 'no'} confirmed change{'' if confirmed == 1 else 's'}"


def events_table(replayed: Replayed) -> Table:
    """Return the table of changepoint events of the replayed rows."""
    axis = replayed.series.axis
    events = [event for event in replayed.events if event.start >= replayed.first_seq]
    confirmed = sum(event.state == "confirmed" for event in events)
    title = (
        f"{replayed.stream} ({replayed.model}): {len(replayed.answers)} observations, "
        f"{_counted(confirmed)}"
    )
    if replayed.answers and replayed.answers[-1].warming_up:
        title += ", warming up"
    headings = [*([axis.name] if axis else []), "start", "what changed", "evidence", "state"]
    made = table(*headings, words=("what changed", "state"), title=title)
    if axis and axis.kind == "datetime":
        made.padding = 0  # a sentence fits 80 characters
    for event in events:
        made.add_row(
            *([replayed.when(event.start)] if axis else []),
            describe_start(event),
            replayed.sentence(event),
            describe_evidence(event.evidence),
            event.state,
            style="bold" if event.state == "confirmed" else "dim",
        )
    return made


# --- many streams of a file --------------------------------------------------------------------


def ask_confirmed(client: Client, replays: Sequence[Replayed]) -> None:
    """Fill changes in as the answers have them: of confirmed ones, when they were confirmed.

    The service estimates a start anew after that, which no answer has. A change that it does not
    list any more stays as it was.
    """
    for replayed in replays:
        events = [a.event for a in replayed.answers if a.event is not None]
        last = {event.id: event for event in events if event.kind == "change"}
        replayed.events = [*last.values()]
    changed = [replayed for replayed in replays if replayed.confirmed]
    if not changed:
        return
    prefix = commonprefix([replayed.stream for replayed in changed])
    listed: dict[tuple[str, int, int | None], StreamChange] = {}
    for row in client.changes(states=["confirmed"], prefix=prefix or None, limit=LISTED):
        listed.setdefault((row.stream, row.id, row.confirmed_at), row)
    for replayed in changed:
        for place, event in enumerate(replayed.events):
            now = listed.get((replayed.stream, event.id, event.confirmed_at))
            if now is not None:
                members = {name: getattr(now, name) for name in EventMembers.__struct_fields__}
                replayed.events[place] = structs.replace(event, **members)


def changes_table(replays: Sequence[Replayed]) -> Table:
    """Return the table of confirmed changes, the latest first."""
    changes = [(replayed, event) for replayed in replays for event in replayed.confirmed]
    rows = sum(len(replayed.answers) for replayed in replays)
    changed = sum(bool(replayed.confirmed) for replayed in replays)
    # Narrow, so that a sentence fits a line: where there are times, positions are in the answers.
    timed = replays[0].series.axis is not None
    headings = ("stream", "since" if timed else "start", "what changed", "evidence")
    title = f"{changed} of {len(replays)} streams changed; {rows:,} observations, "
    made = table(*headings, words=("what changed",), title=title + _counted(len(changes)))
    if len(changes) > SHOWN:
        made.caption = f"the latest {SHOWN}; all of them are in the answers"
    latest = sorted(changes, key=lambda change: -change[0].place(change[1].start))
    for replayed, event in latest[:SHOWN]:
        made.add_row(
            replayed.stream,
            replayed.when(event.start) if timed else describe_start(event),
            replayed.sentence(event),
            describe_evidence(event.evidence),
        )
    return made
