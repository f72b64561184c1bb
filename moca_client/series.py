"""A series read from a file or a frame, every bad cell named by row and column."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Collection, Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from moca_client.times import Axis, BadTime, finite, time_axis

TIME_NAMES = ("time", "timestamp", "datetime", "date", "year")
SAMPLED = 20  # lines of a file that show what is between its cells
MOST_CLASSES = 20  # categories of a column of text that are named
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})

# A number with a decimal comma, or a whole one; points part thousands.
_decimal_comma = re.compile(
    r"[+-]?(\d+|\d{1,3}(\.\d{3})+)?(,\d+)?([eE][+-]?\d+)?", re.ASCII
).fullmatch
# One with commas that may as well part thousands.
_thousands = re.compile(r"0|[+-]?[1-9]\d{0,2}(,\d{3})?", re.ASCII).fullmatch


class SeriesError(ValueError):
    """A file that cannot be replayed as it is; the message says where and why."""


class Series(NamedTuple):
    """Labels, inputs and times, one entry per observation."""

    y: list[list[float | None] | None]  # None: the label is missing, or an output of it
    x: list[list[float]] | None  # None: the file has no inputs
    y_names: list[str]
    x_names: list[str]
    axis: Axis | None  # None: the file has no time column

    def observations(self, start: int, stop: int) -> list[dict[str, Any]]:
        """Return rows [start, stop) in the form the service takes."""
        return [self._observation(row) for row in range(start, min(stop, len(self.y)))]

    def _observation(self, row: int) -> dict[str, Any]:
        y = self.y[row]
        observation: dict[str, Any] = {"y": y[0] if y is not None and len(y) == 1 else y}
        if self.x is not None:
            observation["x"] = self.x[row]
        if self.axis is not None and self.axis.rfc3339 is not None:
            observation["time"] = self.axis.rfc3339[row]
        return observation


class Table(NamedTuple):
    """Columns by name, in the file's order; `first_line` is the file line of row 1."""

    columns: dict[str, list[Any]]
    first_line: int | None

    def where(self, row: int, name: str) -> str:
        """Return the place of a cell for a message; row: from 0."""
        line = "" if self.first_line is None else f" (line {row + self.first_line})"
        return f"row {row + 1}{line}, column {name!r}"


def read_series(
    file: Path,
    y_columns: Sequence[str] | None = None,
    x_columns: Sequence[str] | None = None,
    time_column: str | None = None,
    time_format: str | None = None,
) -> Series:
    """Read a series from `file` (Parquet by its suffix, CSV otherwise).

    Columns not named are found by their names: labels `y` or `y1, y2, ...`, inputs `x` or
    `x1, x2, ...`, time `time`, `timestamp`, `datetime`, `date` or `year`. A file without such
    labels must have exactly one numeric column besides time and inputs: that is the label. A label
    column is empty in every row by mistake; in a frame, of a few rows, it may be. A time column of
    another name is found where its cells are times as such, in Parquet and frames. time_format: of
    its texts, as `strptime` takes it.
    """
    series = _series(str(file), read_table(file), y_columns, x_columns, time_column, time_format)
    for place, name in enumerate(series.y_names):
        if all(label is None or label[place] is None for label in series.y):
            others = ",".join(label for label in series.y_names if label != name)
            raise SeriesError(f"label {name!r} is empty in every row; leave it out: --y {others}")
    return series


def read_streams(
    file: Path,
    by: str,
    y_columns: Sequence[str] | None = None,
    x_columns: Sequence[str] | None = None,
    time_column: str | None = None,
    time_format: str | None = None,
) -> dict[str, Series]:
    """Read a file of several streams: a series for each value of the column `by`, in its order.

    The other columns are found as by `read_series`, the same for all. Raises SeriesError where a
    cell of `by` is empty, as well.
    """
    streams = _streams(
        str(file), read_table(file), by, y_columns, x_columns, time_column, time_format
    )
    return {name: series for name, (_, series) in streams.items()}


def read_columns(
    file: Path,
    y_columns: Sequence[str] | None = None,
    x_columns: Sequence[str] | None = None,
    time_column: str | None = None,
    time_format: str | None = None,
) -> dict[str, Series]:
    """Read a file with a stream in each column: those of `y_columns`, or all of numbers.

    Inputs and times are the same for all, and found as by `read_series`.
    """
    table = read_table(file)
    x_names = list(x_columns) if x_columns is not None else numbered(table.columns, "x")
    time = time_column or _time_column(table, {*(y_columns or []), *x_names})
    names = list(y_columns) if y_columns else numeric(table, {*x_names, time})
    if not names:
        raise SeriesError(f"{file} has no numeric column; its columns: {listed(table.columns)}")
    return {
        name: _series(str(file), table, [name], x_columns, time_column, time_format)
        for name in names
    }


def read_table(file: Path) -> Table:
    """Read the columns of `file` (Parquet by its suffix, CSV otherwise); raises SeriesError."""
    return _read_parquet(file) if file.suffix.lower() in {".parquet", ".pq"} else _read_csv(file)


def series_of(
    columns: dict[str, list[Any]],
    y_columns: Sequence[str] | None = None,
    x_columns: Sequence[str] | None = None,
    time_column: str | None = None,
    time_format: str | None = None,
) -> Series:
    """Read a series from columns in memory, as `read_series` does from those of a file."""
    table = Table(columns, None)
    return _series("the frame", table, y_columns, x_columns, time_column, time_format)


def streams_of(
    columns: dict[str, list[Any]],
    by: str,
    y_columns: Sequence[str] | None = None,
    x_columns: Sequence[str] | None = None,
    time_column: str | None = None,
    time_format: str | None = None,
) -> dict[str, tuple[list[int], Series]]:
    """Read streams from columns in memory, as `read_streams`; with the rows that they are of."""
    table = Table(columns, None)
    return _streams("the frame", table, by, y_columns, x_columns, time_column, time_format)


def _streams(
    source: str,
    table: Table,
    by: str,
    y_columns: Sequence[str] | None,
    x_columns: Sequence[str] | None,
    time_column: str | None,
    time_format: str | None,
) -> dict[str, tuple[list[int], Series]]:
    if by not in table.columns:
        raise SeriesError(f"{source} has no column {by!r}; its columns: {listed(table.columns)}")
    rows: dict[str, list[int]] = {}
    for row, value in enumerate(table.columns[by]):
        if is_missing(value):
            raise SeriesError(f"{table.where(row, by)} is empty: expected the name of a stream")
        rows.setdefault(str(value), []).append(row)
    if not rows:
        raise SeriesError(f"{source} has no rows")
    others = {column: cells for column, cells in table.columns.items() if column != by}
    chosen = _chosen(source, Table(others, None), y_columns, x_columns, time_column)
    streams: dict[str, tuple[list[int], Series]] = {}
    for name, places in rows.items():
        columns = {column: [cells[row] for row in places] for column, cells in others.items()}
        own = f"{source}, {by} {name!r}"
        try:
            streams[name] = places, _series(own, Table(columns, None), *chosen, time_format)
        except SeriesError as error:  # rows count within the stream
            text = str(error)
            raise SeriesError(text if own in text else f"{own}: {text}") from error
    return streams


def _series(
    source: str,
    table: Table,
    y_columns: Sequence[str] | None,
    x_columns: Sequence[str] | None,
    time_column: str | None,
    time_format: str | None = None,
) -> Series:
    y_names, x_names, time_column = _chosen(source, table, y_columns, x_columns, time_column)
    return Series(
        y=_labels(table, y_names),
        x=_inputs(table, x_names) if x_names else None,
        y_names=y_names,
        x_names=x_names,
        axis=_axis(table, time_column, time_format) if time_column else None,
    )


def _chosen(
    source: str,
    table: Table,
    y_columns: Sequence[str] | None,
    x_columns: Sequence[str] | None,
    time_column: str | None,
) -> tuple[list[str], list[str], str | None]:
    """Return the columns of labels, inputs and time: those named, else those found."""
    if not table.columns or not len(next(iter(table.columns.values()))):
        raise SeriesError(f"{source} has no rows")
    for name in [*(y_columns or []), *(x_columns or []), *([time_column] if time_column else [])]:
        if name not in table.columns:
            raise SeriesError(
                f"{source} has no column {name!r}; its columns: {listed(table.columns)}"
            )
    x_names = list(x_columns) if x_columns is not None else numbered(table.columns, "x")
    if time_column is None:
        time_column = _time_column(table, {*(y_columns or []), *x_names})
    y_names = list(y_columns) if y_columns else _find_labels(source, table, {*x_names, time_column})
    return y_names, x_names, time_column


def _read_csv(file: Path) -> Table:
    lines, delimiter = _csv_lines(file)
    if not lines:
        return Table({}, None)
    names = [cell.strip() for cell in lines[0][1]]
    first = names if delimiter == "," else [cell.replace(",", ".") for cell in names]
    if all(finite(cell) is not None for cell in first):
        # No header: a single column of numbers is the label, several get their positions.
        names = ["y"] if len(names) == 1 else [str(place + 1) for place in range(len(names))]
        body = lines
    else:
        body = lines[1:]
    if len(set(names)) != len(names):
        raise SeriesError(f"{file} has duplicate columns: {listed(names)}")
    for row, (number, cells) in enumerate(body, start=1):
        if len(cells) != len(names):
            raise SeriesError(
                f"{file}: row {row} (line {number}) has {len(cells)} cells, the header {len(names)}"
            )
    columns = {name: [cells[k].strip() for _, cells in body] for k, name in enumerate(names)}
    if delimiter != ",":
        columns = {name: _with_points(cells, delimiter) for name, cells in columns.items()}
    first_line = body[0][0] if body else 0
    contiguous = all(number == first_line + k for k, (number, _) in enumerate(body))
    return Table(columns, first_line if contiguous else None)


def _with_points(cells: list[str], delimiter: str) -> list[str]:
    """Return numbers with decimal commas as those with points; other columns as they are.

    So are numbers between tabs whose commas may all part thousands.
    """
    present = [cell for cell in cells if not is_missing(cell)]
    if not any("," in cell for cell in present) or not all(map(_decimal_comma, present)):
        return cells
    if delimiter == "\t" and all(map(_thousands, present)):
        return cells
    return [cell.replace(".", "").replace(",", ".") for cell in cells]


def _csv_lines(file: Path) -> tuple[list[tuple[int, list[str]]], str]:
    """Rows that are neither empty nor comments, with the number of their (last) line.

    And what stands between their cells.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
        delimiter = _delimiter(text[:65536])
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        rows = [(reader.line_num, row) for row in reader if row and not row[0].startswith("#")]
        return rows, delimiter
    except (UnicodeDecodeError, csv.Error) as error:
        raise SeriesError(f"{file} is not a CSV file in UTF-8: {error}") from error


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


def _read_parquet(file: Path) -> Table:
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
    return Table({name: table.column(name).to_pylist() for name in table.column_names}, None)


def is_missing(cell: Any) -> bool:
    """Whether a cell is empty, or says so."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return True
    return isinstance(cell, str) and cell.strip().lower() in MISSING


def _number(table: Table, row: int, name: str) -> float | None:
    """Value of a cell; None when it is empty."""
    cell = table.columns[name][row]
    if is_missing(cell):
        return None
    value = finite(cell)
    if value is None:
        problem = "not finite" if str(cell).lower().lstrip("+-")[:3] == "inf" else "not a number"
        hint = _categories(table, name)
        raise SeriesError(f"{table.where(row, name)}: {str(cell)!r} is {problem}{hint}")
    return value


def _categories(table: Table, name: str) -> str:
    """Return how a column of text can be labels; empty: it has numbers, or too many texts."""
    present = [cell for cell in table.columns[name] if not is_missing(cell)]
    texts = list(dict.fromkeys(map(str, present)))
    if len(texts) > MOST_CLASSES or any(finite(cell) is not None for cell in present):
        return ""
    return (
        f"; {name!r} has {len(texts)} categories ({listed(texts)}): number them from 0, and choose "
        f"the model categorical with classes={len(texts)}"
    )


def _labels(table: Table, names: Sequence[str]) -> list[list[float | None] | None]:
    labels: list[list[float | None] | None] = []
    for row in range(len(table.columns[names[0]])):
        values = [_number(table, row, name) for name in names]
        labels.append(None if all(value is None for value in values) else values)
    if all(label is None for label in labels):
        raise SeriesError(f"label {listed(names)} is empty in every row")
    return labels


def _inputs(table: Table, names: Sequence[str]) -> list[list[float]]:
    rows = []
    for row in range(len(table.columns[names[0]])):
        values = []
        for name in names:
            if (value := _number(table, row, name)) is None:
                raise SeriesError(f"{table.where(row, name)}: empty; inputs are required")
            values.append(value)
        rows.append(values)
    return rows


def _axis(table: Table, name: str, time_format: str | None) -> Axis:
    cells = table.columns[name]
    for row, cell in enumerate(cells):
        if is_missing(cell):
            raise SeriesError(f"{table.where(row, name)}: empty; times are required")
    try:
        return time_axis(cells, name, time_format)
    except BadTime as error:
        where = table.where(error.row, name)
        raise SeriesError(f"{where}: {str(cells[error.row])!r} {error}") from None


def _time_column(table: Table, taken: Collection[str]) -> str | None:
    """Return the column of times: by its name, else the only one that has them as such."""
    by_name = named(table.columns, TIME_NAMES, taken)
    typed = [
        name
        for name, cells in table.columns.items()
        if name not in taken and cells and isinstance(cells[0], date)
    ]
    return typed[0] if by_name is None and len(typed) == 1 else by_name


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

    def fits(cells: Sequence[Any]) -> bool:
        present = [cell for cell in cells if not is_missing(cell)]
        return bool(present) and all(finite(cell) is not None for cell in present)

    return [name for name, cells in table.columns.items() if name not in taken and fits(cells)]


def _find_labels(source: str, table: Table, taken: set[str | None]) -> list[str]:
    if names := [name for name in numbered(table.columns, "y") if name not in taken]:
        return names
    numbers = numeric(table, taken)
    if len(numbers) == 1:
        return numbers
    problem = "no numeric column" if not numbers else f"several numeric columns: {listed(numbers)}"
    others = [] if numbers else [name for name in table.columns if name not in taken]
    raise SeriesError(
        f"{source} has no column y or y1, y2, ... and {problem}; name the label columns"
        f"{''.join(_categories(table, name) for name in others)}"
    )


def listed(names: Iterable[str]) -> str:
    """Names for a message."""
    return ", ".join(repr(name) for name in names)
