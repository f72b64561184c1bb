"""A series read from a file or a frame, every bad cell named by row and column.

Times are read twice: as the service takes them (RFC 3339), and as a plot places them.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

TIME_NAMES = ("time", "timestamp", "datetime", "date", "year")
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SeriesError(ValueError):
    """A file that cannot be replayed as it is; the message says where and why."""


class Axis(NamedTuple):
    """A time column, one entry per observation."""

    name: str
    kind: Literal["year", "datetime", "number"]
    value: list[float]  # years; days since 1970-01-01 UTC; the numbers themselves
    label: list[str]  # how people read it
    rfc3339: list[str] | None  # None for plain numbers, which are no points in time


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


class _Table(NamedTuple):
    """Columns by name, in the file's order; `first_line` is the file line of row 1."""

    columns: dict[str, list[Any]]
    first_line: int | None

    def where(self, row: int, name: str) -> str:
        line = "" if self.first_line is None else f" (line {row + self.first_line})"
        return f"row {row + 1}{line}, column {name!r}"


def read_series(
    file: Path,
    y_columns: Sequence[str] | None = None,
    x_columns: Sequence[str] | None = None,
    time_column: str | None = None,
) -> Series:
    """Read a series from `file` (Parquet by its suffix, CSV otherwise).

    Columns not named are found by their names: labels `y` or `y1, y2, ...`, inputs `x` or
    `x1, x2, ...`, time `time`, `timestamp`, `datetime`, `date` or `year`. A file without such
    labels must have exactly one numeric column besides time and inputs: that is the label. A label
    column is empty in every row by mistake; in a frame, of a few rows, it may be.
    """
    series = _series(str(file), _read(file), y_columns, x_columns, time_column)
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
) -> dict[str, Series]:
    """Read a file of several streams: a series for each value of the column `by`, in its order.

    The other columns are found as by `read_series`, the same for all. Raises SeriesError where a
    cell of `by` is empty, as well.
    """
    streams = _streams(str(file), _read(file), by, y_columns, x_columns, time_column)
    return {name: series for name, (_, series) in streams.items()}


def read_columns(
    file: Path,
    y_columns: Sequence[str] | None = None,
    x_columns: Sequence[str] | None = None,
    time_column: str | None = None,
) -> dict[str, Series]:
    """Read a file with a stream in each column: those of `y_columns`, or all of numbers.

    Inputs and times are the same for all, and found as by `read_series`.
    """
    table = _read(file)
    x_names = list(x_columns) if x_columns is not None else numbered(table.columns, "x")
    time = time_column or named(table.columns, TIME_NAMES, {*(y_columns or []), *x_names})
    names = list(y_columns) if y_columns else _numeric(table, {*x_names, time})
    if not names:
        raise SeriesError(f"{file} has no numeric column; its columns: {listed(table.columns)}")
    return {name: _series(str(file), table, [name], x_columns, time_column) for name in names}


def _read(file: Path) -> _Table:
    return _read_parquet(file) if file.suffix.lower() in {".parquet", ".pq"} else _read_csv(file)


def series_of(
    columns: dict[str, list[Any]],
    y_columns: Sequence[str] | None = None,
    x_columns: Sequence[str] | None = None,
    time_column: str | None = None,
) -> Series:
    """Read a series from columns in memory, as `read_series` does from those of a file."""
    return _series("the frame", _Table(columns, None), y_columns, x_columns, time_column)


def streams_of(
    columns: dict[str, list[Any]],
    by: str,
    y_columns: Sequence[str] | None = None,
    x_columns: Sequence[str] | None = None,
    time_column: str | None = None,
) -> dict[str, tuple[list[int], Series]]:
    """Read streams from columns in memory, as `read_streams`; with the rows that they are of."""
    table = _Table(columns, None)
    return _streams("the frame", table, by, y_columns, x_columns, time_column)


def _streams(
    source: str,
    table: _Table,
    by: str,
    y_columns: Sequence[str] | None,
    x_columns: Sequence[str] | None,
    time_column: str | None,
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
    chosen = _chosen(source, _Table(others, None), y_columns, x_columns, time_column)
    streams: dict[str, tuple[list[int], Series]] = {}
    for name, places in rows.items():
        columns = {column: [cells[row] for row in places] for column, cells in others.items()}
        own = f"{source}, {by} {name!r}"
        try:
            streams[name] = places, _series(own, _Table(columns, None), *chosen)
        except SeriesError as error:  # rows count within the stream
            text = str(error)
            raise SeriesError(text if own in text else f"{own}: {text}") from error
    return streams


def _series(
    source: str,
    table: _Table,
    y_columns: Sequence[str] | None,
    x_columns: Sequence[str] | None,
    time_column: str | None,
) -> Series:
    y_names, x_names, time_column = _chosen(source, table, y_columns, x_columns, time_column)
    return Series(
        y=_labels(table, y_names),
        x=_inputs(table, x_names) if x_names else None,
        y_names=y_names,
        x_names=x_names,
        axis=_axis(table, time_column) if time_column else None,
    )


def _chosen(
    source: str,
    table: _Table,
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
        time_column = named(table.columns, TIME_NAMES, {*(y_columns or []), *x_names})
    y_names = list(y_columns) if y_columns else _find_labels(source, table, {*x_names, time_column})
    return y_names, x_names, time_column


def _read_csv(file: Path) -> _Table:
    lines = _csv_lines(file)
    if not lines:
        return _Table({}, None)
    names = [cell.strip() for cell in lines[0][1]]
    if all(_finite(cell) is not None for cell in names):
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
    first_line = body[0][0] if body else 0
    contiguous = all(number == first_line + k for k, (number, _) in enumerate(body))
    return _Table(columns, first_line if contiguous else None)


def _csv_lines(file: Path) -> list[tuple[int, list[str]]]:
    """Rows that are neither empty nor comments, with the number of their (last) line."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text[:65536]))
        return [(reader.line_num, row) for row in reader if row and not row[0].startswith("#")]
    except (UnicodeDecodeError, csv.Error) as error:
        raise SeriesError(f"{file} is not a CSV file in UTF-8: {error}") from error


def _delimiter(sample: str) -> str:
    """Whichever of comma, semicolon and tab the first line that is not a comment has most of."""
    first = next((line for line in sample.splitlines() if line and line[0] != "#"), "")
    return max(",;\t", key=first.count)


def _read_parquet(file: Path) -> _Table:
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
    return _Table({name: table.column(name).to_pylist() for name in table.column_names}, None)


def is_missing(cell: Any) -> bool:
    """Whether a cell is empty, or says so."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return True
    return isinstance(cell, str) and cell.strip().lower() in MISSING


def _finite(cell: Any) -> float | None:
    """A cell as a number; None if it is none, or not finite."""
    try:
        value = float(cell)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _number(table: _Table, row: int, name: str) -> float | None:
    """Value of a cell; None when it is empty."""
    cell = table.columns[name][row]
    if is_missing(cell):
        return None
    value = _finite(cell)
    if value is None:
        problem = "not finite" if str(cell).lower().lstrip("+-")[:3] == "inf" else "not a number"
        raise SeriesError(f"{table.where(row, name)}: {str(cell)!r} is {problem}")
    return value


def _labels(table: _Table, names: Sequence[str]) -> list[list[float | None] | None]:
    labels: list[list[float | None] | None] = []
    for row in range(len(table.columns[names[0]])):
        values = [_number(table, row, name) for name in names]
        labels.append(None if all(value is None for value in values) else values)
    if all(label is None for label in labels):
        raise SeriesError(f"label {listed(names)} is empty in every row")
    return labels


def _inputs(table: _Table, names: Sequence[str]) -> list[list[float]]:
    rows = []
    for row in range(len(table.columns[names[0]])):
        values = []
        for name in names:
            if (value := _number(table, row, name)) is None:
                raise SeriesError(f"{table.where(row, name)}: empty; inputs are required")
            values.append(value)
        rows.append(values)
    return rows


def _axis(table: _Table, name: str) -> Axis:
    cells = table.columns[name]
    for row, cell in enumerate(cells):
        if is_missing(cell):
            raise SeriesError(f"{table.where(row, name)}: empty; times are required")
    axis = time_axis(cells, name)
    if isinstance(axis, int):
        raise SeriesError(
            f"{table.where(axis, name)}: {str(cells[axis])!r} is not a time "
            "(RFC 3339, a date, a year, or a number)"
        )
    return axis


def named(columns: Iterable[str], names: Sequence[str], taken: Collection[str]) -> str | None:
    """Return the first column of one of these names, in any case, that is not taken."""
    by_lower = {name.lower(): name for name in reversed(list(columns)) if name not in taken}
    return next((by_lower[name] for name in names if name in by_lower), None)


def numbered(columns: Iterable[str], letter: str) -> list[str]:
    """Return the column called `letter`, or those called `letter1, letter2, ...` by number."""
    numbered = [name for name in columns if re.fullmatch(rf"{letter}_?\d*", name, re.IGNORECASE)]
    return sorted(numbered, key=lambda name: int(re.sub(r"\D", "", name) or "0"))


def _numeric(table: _Table, taken: set[str | None]) -> list[str]:
    """Return the columns of numbers alone, beside missing cells, of which not all are."""

    def fits(cells: Sequence[Any]) -> bool:
        present = [cell for cell in cells if not is_missing(cell)]
        return bool(present) and all(_finite(cell) is not None for cell in present)

    return [name for name, cells in table.columns.items() if name not in taken and fits(cells)]


def _find_labels(source: str, table: _Table, taken: set[str | None]) -> list[str]:
    if names := [name for name in numbered(table.columns, "y") if name not in taken]:
        return names
    numeric = _numeric(table, taken)
    if len(numeric) == 1:
        return numeric
    problem = "no numeric column" if not numeric else f"several numeric columns: {listed(numeric)}"
    raise SeriesError(
        f"{source} has no column y or y1, y2, ... and {problem}; name the label columns"
    )


def listed(names: Iterable[str]) -> str:
    """Names for a message."""
    return ", ".join(repr(name) for name in names)


# --- times ------------------------------------------------------------------------------------


def time_axis(cells: Sequence[Any], name: str) -> Axis | int:
    """Read a whole column; the answer is the index of a bad cell when there is one.

    In order of preference: plain years (1000 to 2999), dates and times (without an offset they
    are UTC), seconds or milliseconds since 1970, plain numbers.
    """
    numbers = [None if isinstance(cell, bool) else _finite(cell) for cell in cells]
    if all(value is not None for value in numbers):
        return _numeric_axis([value for value in numbers if value is not None], name)
    moments: list[datetime] = []
    for row, cell in enumerate(cells):
        moment = moment_of(cell)
        if moment is None:
            return row
        moments.append(moment)
    return _datetime_axis(moments, name)


def _numeric_axis(numbers: list[float], name: str) -> Axis:
    def all_within(low: float, high: float) -> bool:
        return all(low <= value < high for value in numbers)

    if all_within(1000, 3000) and all(value == int(value) for value in numbers):
        years = [f"{int(value):04d}" for value in numbers]
        return Axis(name, "year", numbers, years, [f"{year}-01-01T00:00:00Z" for year in years])
    for low, unit_s in ((1e8, 1.0), (1e11, 1e-3)):
        if all_within(low, low * 1e3 / 2):
            return _datetime_axis([EPOCH + timedelta(seconds=v * unit_s) for v in numbers], name)
    return Axis(name, "number", numbers, [f"{value:g}" for value in numbers], None)


def _datetime_axis(moments: list[datetime], name: str) -> Axis:
    return Axis(
        name,
        "datetime",
        [(moment - EPOCH) / timedelta(days=1) for moment in moments],
        [_written(moment) for moment in moments],
        [moment.isoformat().replace("+00:00", "Z") for moment in moments],
    )


def _written(moment: datetime) -> str:
    """Write a moment as short as it goes: no clock at midnight, no seconds on the minute."""
    if moment.time() == datetime.min.time():
        return moment.strftime("%Y-%m-%d")
    return moment.strftime("%Y-%m-%d %H:%M" + (":%S" if moment.second else ""))


def moment_of(cell: Any) -> datetime | None:
    """Read a date or time; without an offset it is UTC."""
    if isinstance(cell, datetime):
        moment = cell
    elif isinstance(cell, date):
        moment = datetime(cell.year, cell.month, cell.day, tzinfo=UTC)
    elif isinstance(cell, str):
        parsed = next((m for parse in _PARSERS if (m := _tried(parse, cell)) is not None), None)
        if parsed is None:
            return None
        moment = parsed
    else:
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _tried(parse: Callable[[str], datetime], text: str) -> datetime | None:
    try:
        return parse(text.strip())
    except ValueError:
        return None


# A naive result of either means UTC; `moment_of` says so in one place.
_PARSERS: tuple[Callable[[str], datetime], ...] = (
    datetime.fromisoformat,
    lambda text: datetime.strptime(text, "%Y-%m"),  # noqa: DTZ007
    lambda text: datetime.strptime(text, "%Y/%m/%d"),  # noqa: DTZ007
)
