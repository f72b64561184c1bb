"""A series read from a file or a frame, every bad cell named by row and column."""

from __future__ import annotations

import codecs
import csv
import io
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import date
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from moca_client.times import AmbiguousTime, Axis, BadTime, finite, is_clock, is_day, time_axis

TIME_NAMES = ("time", "timestamp", "datetime", "date", "ts", "year")
LABEL_NAMES = ("value", "label")  # of the labels among other numbers
SAMPLED = 20  # lines of a file that show what is between its cells
MOST_LISTED = 50  # columns or categories that a message names
MOST_EXPLAINED = 3  # columns that are no labels, and why
MOST_CLASSES = 20  # categories of a column of text that are named
SERIES_ROWS = 20  # of each value of a column that may name series: a warm-up
MISSING = frozenset({"", "-", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "?"})

# A number with a decimal comma, or a whole one; points part thousands.
_decimal_comma = re.compile(
    r"[+-]?(\d+|\d{1,3}(\.\d{3})+)?(,\d+)?([eE][+-]?\d+)?", re.ASCII
).fullmatch
# A year of four digits; or a day, month and year of two each: `10.2.14` may be a version.
_has_year = re.compile(r"(?<!\d)(\d{4}|\d\d([./-])\d\d\2\d\d)(?!\d)", re.ASCII).search
# One with commas that may as well part thousands.
_thousands = re.compile(r"0|[+-]?[1-9]\d{0,2}(,\d{3})?", re.ASCII).fullmatch
# One with a decimal point; commas part thousands.
_parted = re.compile(r"[+-]?(\d+|\d{1,3}(,\d{3})+)(\.\d*)?", re.ASCII).fullmatch


class SeriesError(ValueError):
    """A file that cannot be replayed as it is; the message says where and why."""


class SeveralLabels(SeriesError):
    """A file with several columns of numbers, none of them named as the label."""


class Series(NamedTuple):
    """Labels, inputs and times, one entry per observation."""

    y: list[list[float | None] | None]  # None: the label is missing, or an output of it
    x: list[list[float]] | None  # None: the file has no inputs
    y_names: list[str]
    x_names: list[str]
    axis: Axis | None  # None: the file has no time column
    rows: Sequence[int] = ()  # of the table that it was read from
    notice: str = ""  # what may be meant otherwise than it was read, beside its times

    def at(self, rows: Sequence[int]) -> Series:
        """Return the series of some rows alone."""
        return self._replace(
            y=[self.y[row] for row in rows],
            x=self.x and [self.x[row] for row in rows],
            axis=self.axis and self.axis.at(rows),
            rows=rows,
        )

    def observations(self, start: int, stop: int) -> list[dict[str, Any]]:
        """Return rows [start, stop) in the form the service takes."""
        observations = []
        for row in range(start, min(stop, len(self.y))):
            observation: dict[str, Any] = {"y": self.label(row)}
            if self.x is not None:
                observation["x"] = self.x[row]
            if self.axis is not None and self.axis.rfc3339 is not None:
                observation["time"] = self.axis.rfc3339[row]
            observations.append(observation)
        return observations

    def label(self, row: int) -> float | list[float | None] | None:
        """Return the label of a row in the form the service takes: one number is no vector."""
        y = self.y[row]
        return y[0] if y is not None and len(y) == 1 else y


class Table(NamedTuple):
    """Columns by name, in their order. source: file, or `the frame`, for messages.

    first_line: that of row 1 in the file; None: rows are not one line each.
    """

    columns: dict[str, list[Any]]
    source: str = "the frame"
    first_line: int | None = None

    def where(self, row: int, name: str) -> str:
        """Return the place of a cell for a message; row: from 0."""
        line = "" if self.first_line is None else f" (line {row + self.first_line})"
        return f"row {row + 1}{line}, column {name!r}"


class ColumnRoles(NamedTuple):
    """Which columns are labels, inputs and times; None: found by their names.

    Labels are `y` or `y1, y2, ...`, inputs `x` or `x1, x2, ...`, times `time`, `timestamp`,
    `datetime`, `date`, `ts` or `year`. Without such labels there must be exactly one numeric column
    besides times and inputs, or one called `value` or `label`: that is the label. A column of times
    of another name is found where its cells are times as such, in Parquet and frames. time_format:
    of texts, as `strptime` has it.
    """

    y: Sequence[str] | None = None
    x: Sequence[str] | None = None
    time: str | None = None
    time_format: str | None = None


ANY = ColumnRoles()
STREAM = "stream"  # column that names the stream of a row
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_table(file: Path) -> Table:
    """Read the columns of `file` (Parquet by its suffix, CSV otherwise); raises SeriesError."""
    if file.suffix.lower() not in {".parquet", ".pq"}:
        return read_csv(file.read_bytes(), str(file))
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise SeriesError(
            f"reading {file} needs pyarrow: pip install 'moca-client[replay]'"
        ) from error
    try:
        table = parquet.read_table(file)
    except pa.ArrowInvalid as error:
        raise SeriesError(f"{file} is not a Parquet file: {error}") from error
    return Table({name: table.column(name).to_pylist() for name in table.column_names}, str(file))


def read_series(file: Path, roles: ColumnRoles = ANY) -> Series:
    """Read a series from a file; raises SeriesError.

    A label column is empty in every row by mistake; in a frame, of a few rows, it may be.
    """
    table = read_table(file)
    series = series_of(table, roles)
    streams = len({*table.columns.get(STREAM, ())})
    if streams > 1 and STREAM not in (*series.y_names, *series.x_names):
        raise SeriesError(
            f"{table.source}: column {STREAM!r} names {streams} streams, whose rows would be one "
            f"stream: use --by {STREAM}"
        )
    for place, name in enumerate(series.y_names):
        if all(label is None or label[place] is None for label in series.y):
            others = ",".join(label for label in series.y_names if label != name)
            raise SeriesError(f"label {name!r} is empty in every row; leave it out: --y {others}")
    return series._replace(notice=_several(table, series))


def _several(table: Table, series: Series) -> str:
    """Return that a column which was left out may name several series; empty: none does."""
    used = {*series.y_names, *series.x_names, *([series.axis.name] if series.axis else [])}
    for name, cells in table.columns.items():
        present = [cell for cell in cells if not is_missing(cell)]
        if name in used or not present or finite(present[0]) is not None:
            continue
        rows = Counter(map(str, present))
        if len(rows) > 1 and min(rows.values()) >= SERIES_ROWS:
            return (
                f"column {name!r} is left out: if its {len(rows)} values name series, whose rows "
                f"are one stream now, use --by {name}"
            )
    return ""


def streams_by_column(table: Table, roles: ColumnRoles = ANY) -> dict[str, Series]:
    """Return a series for each column of labels: those of `roles.y`, or all of numbers.

    Inputs and times are the same for all. Raises SeriesError.
    """
    x_names = list(roles.x) if roles.x is not None else numbered(table.columns, "x")
    time = roles.time or _time_column(table, roles, {*(roles.y or []), *x_names})
    names = list(roles.y) if roles.y else numeric(table, {*x_names, time})
    if not any(len(cells) for cells in table.columns.values()):
        raise SeriesError(f"{table.source} has no rows")
    if not names:
        others = [name for name in table.columns if name not in {*x_names, time}]
        raise SeriesError(
            f"{table.source} has no numeric column; its columns: {listed(table.columns)}"
            f"{_whys(table, others[:MOST_EXPLAINED])}"
        )
    whole = series_of(table, ColumnRoles(names, x_names, time, roles.time_format))
    streams = {}
    for place, name in enumerate(names):
        labels = [None if y is None or y[place] is None else [y[place]] for y in whole.y]
        streams[name] = _labelled(whole._replace(y=labels, y_names=[name]))
    return streams


def streams_of(table: Table, by: str, roles: ColumnRoles = ANY) -> dict[str, Series]:
    """Return a series for each value of the column `by`, in its order; raises SeriesError.

    The other columns have the same roles for all, and times the same form.
    """
    source = table.source
    if by not in table.columns:
        raise SeriesError(f"{source} has no column {by!r}; its columns: {listed(table.columns)}")
    rows = rows_by(table, by)
    others = {column: cells for column, cells in table.columns.items() if column != by}
    if not rows:
        raise SeriesError(f"{source} has no rows")
    whole = series_of(table._replace(columns=others), roles)
    return {
        name: _labelled(whole.at(places), f"{source}, {by} {name!r}: ")
        for name, places in rows.items()
    }


def rows_by(table: Table, by: str) -> dict[str, list[int]]:
    """Return the rows of each value of a column, in its order; raises SeriesError."""
    rows: dict[str, list[int]] = {}
    for row, value in enumerate(table.columns[by]):
        name = str(value)
        if name not in rows and is_missing(value):
            raise SeriesError(f"{table.where(row, by)} is empty: expected the name of a stream")
        rows.setdefault(name, []).append(row)
    return rows


def series_of(table: Table, roles: ColumnRoles = ANY) -> Series:
    """Return the series of a table; raises SeriesError."""
    if not table.columns or not len(next(iter(table.columns.values()))):
        raise SeriesError(f"{table.source} has no rows")
    for name in [*(roles.y or []), *(roles.x or []), *([roles.time] if roles.time else [])]:
        if name not in table.columns:
            raise SeriesError(
                f"{table.source} has no column {name!r}; its columns: {listed(table.columns)}"
            )
    x_names = list(roles.x) if roles.x is not None else numbered(table.columns, "x")
    time = roles.time or _time_column(table, roles, {*(roles.y or []), *x_names})
    y_names = list(roles.y) if roles.y else _find_labels(table, {*x_names, time})
    axis = None if time is None else _axis(table, time, roles.time_format)
    rows = zip(*[_numbers(table, name) for name in y_names], strict=True)
    series = Series(
        y=[None if row.count(None) == len(row) else [*row] for row in rows],
        x=_inputs(table, x_names) if x_names else None,
        y_names=y_names,
        x_names=x_names,
        axis=axis,
        rows=range(len(table.columns[y_names[0]])),
    )
    return _labelled(series)


def _labelled(series: Series, where: str = "") -> Series:
    """Refuse a series without any label."""
    if all(label is None for label in series.y):
        raise SeriesError(f"{where}label {listed(series.y_names)} is empty in every row")
    return series


def notices_of(streams: Iterable[Series]) -> list[str]:
    """Return what may be meant otherwise: columns left out, how times were read or are ordered."""
    every = list(streams)
    axes = [series.axis for series in every if series.axis is not None]
    notices = [series.notice for series in every if series.notice]
    notices += [f"column {axis.name!r}: {axis.notice}" for axis in axes[:1] if axis.notice]
    if len(axes) == 1 and 2 * (repeated := axes[0].repeated()) >= len(axes[0].value):
        notices.append(
            f"column {axes[0].name!r}: {repeated} of {len(axes[0].value)} rows have the time of "
            "the row before: if they are of several series, name the column of their names (by)"
        )
    for axis in axes:
        if (row := axis.earlier()) is not None:
            notices.append(
                f"column {axis.name!r}: {axis.label(row)} comes after {axis.label(row - 1)}; rows "
                "are sent in the order of the file: sort them by time if it is another"
            )
            break
    return notices


def read_csv(content: bytes, source: str) -> Table:
    """Read the columns of a CSV file by its content; raises SeriesError."""
    lines, delimiter = _csv_lines(content, source)
    if not lines:
        return Table({}, source)
    names = [cell.strip() for cell in lines[0][1]]
    first = names if delimiter == "," else [cell.replace(",", ".") for cell in names]
    if all(finite(cell) is not None for cell in first):
        # No header: a single column of numbers is the label, several get their positions.
        names = ["y"] if len(names) == 1 else [str(place + 1) for place in range(len(names))]
        body = lines
    else:
        body = lines[1:]
    if len(set(names)) != len(names):
        raise SeriesError(f"{source} has duplicate columns: {listed(names)}")
    for row, (number, cells) in enumerate(body, start=1):
        if len(cells) != len(names):
            raise SeriesError(
                f"{source}: row {row} (line {number}) has {len(cells)} cells, "
                f"the header {len(names)}"
            )
    columns = {name: [cells[k].strip() for _, cells in body] for k, name in enumerate(names)}
    columns = {name: _with_points(cells, delimiter) for name, cells in columns.items()}
    columns = _with_clocks(columns)
    first_line = body[0][0] if body else 0
    contiguous = all(number == first_line + k for k, (number, _) in enumerate(body))
    return Table(columns, source, first_line if contiguous else None)


def _with_points(cells: list[str], delimiter: str) -> list[str]:
    """Return numbers with decimal commas as those with points; other columns as they are.

    So are numbers between tabs whose commas may all part thousands. In a file with commas between
    cells those of a number part thousands, if a point after them shows it.
    """
    with_comma = [cell for cell in cells if "," in cell]
    if not with_comma:
        return cells
    present = [cell for cell in cells if not is_missing(cell)]
    if delimiter == ",":
        shown = any("." in cell for cell in with_comma)
        parted = shown and all(map(_parted, present))
        return [cell.replace(",", "") for cell in cells] if parted else cells
    if not all(map(_decimal_comma, present)):
        return cells
    if delimiter == "\t" and all(map(_thousands, present)):
        return cells
    return [cell.replace(".", "").replace(",", ".") for cell in cells]


def _with_clocks(columns: dict[str, list[str]]) -> dict[str, list[str]]:
    """Join times of day to dates in the column beside them; other columns as they are."""
    for pair in pairwise(columns):
        for day, clock in (pair, pair[::-1]):
            dates = [date for date in columns[day] if date]
            if dates and all(map(is_day, dates)) and all(map(is_clock, columns[clock])):
                rows = zip(columns[day], columns[clock], strict=True)
                moments = [f"{date} {time}" if date else "" for date, time in rows]
                kept = {name: cells for name, cells in columns.items() if name != clock}
                return kept | {day: moments}
    return columns


def _csv_lines(content: bytes, source: str) -> tuple[list[tuple[int, list[str]]], str]:
    """Rows that are neither empty nor comments, with the number of their (last) line.

    And what stands between their cells.
    """
    try:
        text = re.sub("\r\n?", "\n", content.decode("utf-8-sig"))
        delimiter = _delimiter(text[:65536])
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        rows = [(reader.line_num, row) for row in reader if row and not row[0].startswith("#")]
        return rows, delimiter
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        encoding = "UTF-16" if content.startswith(UTF_16) else "WINDOWS-1252"
        raise SeriesError(
            f"{source} is not a CSV file in UTF-8: got byte 0x{byte:02x} at offset {error.start}; "
            f"save it as UTF-8 (in Excel 'CSV UTF-8'), or convert it: iconv -f {encoding} -t UTF-8"
        ) from error
    except csv.Error as error:
        raise SeriesError(f"{source} is not a CSV file: {error}") from error


def _delimiter(sample: str) -> str:
    """Semicolon or tab, if the first lines have as many of it: between them commas are decimal.

    Else whichever of all the first line that is not a comment has most of.
    """
    lines = [line for line in sample.splitlines() if line and line[0] != "#"][:SAMPLED]
    for delimiter in ";\t":
        counts = {line.count(delimiter) for line in lines}
        if len(counts) == 1 and counts != {0}:
            return delimiter
    return max(",;\t", key=(lines or [""])[0].count)


def is_missing(cell: Any) -> bool:
    """Whether a cell is empty, or says so."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return True
    return isinstance(cell, str) and cell.strip().lower() in MISSING


def _numbers(table: Table, name: str) -> list[float | None]:
    """Values of a column; None when a cell is empty."""
    cells = table.columns[name]
    values = list(map(finite, cells))
    for row, value in enumerate(values):
        cell = cells[row]
        if value is not None or is_missing(cell):
            continue
        problem = "not finite" if str(cell).lower().lstrip("+-")[:3] == "inf" else "not a number"
        hint = _categories(table, name)
        if any(finite(other) is not None for other in table.columns[name]):
            hint = "; leave the cell of a missing label empty"
        raise SeriesError(f"{table.where(row, name)}: {str(cell)!r} is {problem}{hint}")
    return values


def _categories(table: Table, name: str) -> str:
    """Return how a column of text can be labels; empty: it has numbers, or texts hardly repeat."""
    present = [cell for cell in table.columns[name] if not is_missing(cell)]
    texts = list(dict.fromkeys(map(str, present)))
    if len(texts) > min(MOST_CLASSES, len(present) / 2) or any(
        finite(cell) is not None for cell in present
    ):
        return ""
    return (
        f"; {name!r} has {len(texts)} categories ({listed(texts)}): number them from 0, and choose "
        f"the model categorical with classes={len(texts)}"
    )


def _inputs(table: Table, names: Sequence[str]) -> list[list[float]]:
    columns: list[list[float]] = []
    for name in names:
        columns.append([])
        for row, value in enumerate(_numbers(table, name)):
            if value is None:
                raise SeriesError(f"{table.where(row, name)}: empty; inputs are required")
            columns[-1].append(value)
    return [[*row] for row in zip(*columns, strict=True)]


def _axis(table: Table, name: str, time_format: str | None) -> Axis:
    cells = table.columns[name]
    for row, cell in enumerate(cells):
        if is_missing(cell):
            raise SeriesError(f"{table.where(row, name)}: empty; times are required")
    try:
        return time_axis(cells, name, time_format)
    except BadTime as error:
        where = table.where(error.row, name)
        option = " (--time-format)" if isinstance(error, AmbiguousTime) else ""
        raise SeriesError(f"{where}: {str(cells[error.row])!r} {error}{option}") from None


def _time_column(table: Table, roles: ColumnRoles, taken: Collection[str]) -> str | None:
    """Return the column of times: by its name, else the only one whose cells are times."""
    by_name = named(table.columns, TIME_NAMES, taken)
    if by_name is not None:
        return by_name
    times = (
        name
        for name, cells in table.columns.items()
        if name not in taken and cells and _are_times(cells, roles.time_format)
    )
    first_two = list(islice(times, 2))
    return first_two[0] if len(first_two) == 1 else None


def _are_times(cells: Sequence[Any], time_format: str | None) -> bool:
    """Whether cells are times as such, or text that reads so; a number may be anything.

    Whether their day or their month is first does not matter here.
    """
    first = cells[0]
    if isinstance(first, date):
        return True
    if not isinstance(first, str) or finite(first) is not None:
        return False
    if time_format is None and not _has_year(first):
        return False
    try:
        time_axis(cells, "", time_format)
    except AmbiguousTime:
        return True
    except BadTime:
        return False
    return True


def named(columns: Iterable[str], names: Sequence[str], taken: Collection[str]) -> str | None:
    """Return the first column of one of these names, in any case, that is not taken."""
    by_lower = {name.lower(): name for name in reversed(list(columns)) if name not in taken}
    return next((by_lower[name] for name in names if name in by_lower), None)


def numbered(columns: Iterable[str], letter: str) -> list[str]:
    """Return the column called `letter`, or those called `letter1, letter2, ...` by number."""
    numbered = [name for name in columns if re.fullmatch(rf"{letter}_?\d*", name, re.IGNORECASE)]
    return sorted(numbered, key=lambda name: int(re.sub(r"\D", "", name) or "0"))


def numeric(table: Table, taken: Collection[str | None]) -> list[str]:
    """Return the columns of numbers alone, beside missing cells, of which not all are."""

    def fits(name: str) -> bool:
        present = [cell for cell in table.columns[name] if not is_missing(cell)]
        return bool(present) and all(finite(cell) is not None for cell in present)

    return [name for name in table.columns if name not in taken and fits(name)]


def _find_labels(table: Table, taken: set[str | None]) -> list[str]:
    if names := [name for name in numbered(table.columns, "y") if name not in taken]:
        return names
    numbers = numeric(table, taken)
    if len(numbers) == 1:
        return numbers
    if (label := named(numbers, LABEL_NAMES, ())) is not None:
        return [label]
    missing = f"{table.source} has no column y or y1, y2, ... and"
    if numbers:
        raise SeveralLabels(
            f"{missing} several numeric columns: {listed(numbers)}; name the label columns as y"
        )
    others = [name for name in table.columns if name not in taken]
    raise SeriesError(
        f"{missing} no numeric column; name the label columns as y{_whys(table, others)}"
    )


def _whys(table: Table, names: Iterable[str]) -> str:
    """Return why columns are no labels, each by its first cell that is no number."""
    reasons = []
    for name in names:
        try:
            _numbers(table, name)
        except SeriesError as error:
            reasons.append(f"; {error}")
    return "".join(reasons)


def listed(names: Iterable[str]) -> str:
    """Names for a message, the first of many."""
    shown = list(map(repr, names))
    more = len(shown) - MOST_LISTED
    return ", ".join(shown[:MOST_LISTED]) + (f" and {more:,} more" if more > 0 else "")
