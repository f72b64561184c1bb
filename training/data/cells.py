"""Tables of CSV and Parquet files and the values of their cells, as in `moca replay`."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from training.errors import BadData

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
PARQUET = frozenset({".parquet", ".pq"})
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Table(NamedTuple):
    """Columns by name in the file's order; `lines` holds the file line of each row of a CSV."""

    file: Path
    columns: dict[str, list[Any]]
    lines: list[int] | None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.columns.values()), []))

    def where(self, row: int, name: str) -> str:
        """Name the place of a cell; rows count from 1 below the header."""
        line = "" if self.lines is None else f" (line {self.lines[row]})"
        return f"{self.file}: row {row + 1}{line}, column {name!r}"


def read_table(file: Path) -> Table:
    """Read a table: Parquet by its suffix, else CSV; BadData if unreadable or without rows."""
    parquet = file.suffix.lower() in PARQUET
    try:
        table = _read_parquet(file) if parquet else _read_csv(file)
    except OSError as error:
        raise BadData(f"{file} cannot be read: {error.strerror or error}") from error
    if not table.rows:
        raise BadData(f"{file} has no rows")
    return table


def missing(cell: Any) -> bool:
    """Whether a cell is empty or a word for it."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return True
    return isinstance(cell, str) and cell.strip().lower() in MISSING


NUMBERS = "--y and --x name the columns to train on"


def number(table: Table, row: int, name: str, advice: str = NUMBERS) -> float | None:
    """Value of a cell, None when it is missing; BadData if it is text or not finite."""
    cell = table.columns[name][row]
    if missing(cell):
        return None
    value = plain_number(cell)
    if value is None:
        raise BadData(f"{table.where(row, name)}: {str(cell)!r} is not a number; {advice}")
    if not math.isfinite(value):
        raise BadData(f"{table.where(row, name)}: {str(cell)!r} is not finite")
    return value


def plain_number(cell: Any) -> float | None:
    """Value of a cell if it is a number."""
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return None


class Times(NamedTuple):
    """A time column: what orders its rows, exactly; and how much of that is a second, or one."""

    order: list[float]
    unit: float


def times(table: Table, name: str) -> Times:
    """The numbers of a column, or microseconds since 1970 of its dates.

    BadData for a cell that is missing or neither, in a column that is not all numbers.
    """
    cells = table.columns[name]
    for row, cell in enumerate(cells):
        if missing(cell):
            raise BadData(f"{table.where(row, name)}: empty; a time cannot be missing")
    if all(_exact(cell) is not None for cell in cells):
        return Times([value for cell in cells if (value := _exact(cell)) is not None], 1.0)
    moments: list[float] = []
    for row, cell in enumerate(cells):
        moment = _moment(cell)
        if moment is None:
            raise BadData(
                f"{table.where(row, name)}: {str(cell)!r} is not a time "
                "(RFC 3339, a date, a year, or a number)"
            )
        moments.append((moment - EPOCH) // timedelta(microseconds=1))
    return Times(moments, 1e6)


def _exact(cell: Any) -> float | None:
    """A number without rounding: integers of any size, so that nanoseconds stay distinct."""
    try:
        if isinstance(cell, str) or type(cell) is int:
            return int(cell)
    except ValueError:
        pass
    return _finite(cell)


def _finite(cell: Any) -> float | None:
    value = None if isinstance(cell, bool) else plain_number(cell)
    return value if value is not None and math.isfinite(value) else None


def _moment(cell: Any) -> datetime | None:
    """Read a date or time; without an offset it is UTC."""
    moment: datetime | None = None
    if isinstance(cell, datetime):
        moment = cell
    elif isinstance(cell, date):
        moment = datetime(cell.year, cell.month, cell.day, tzinfo=UTC)
    elif isinstance(cell, str):
        moment = _parsed(cell.strip())
    if moment is None:
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _parsed(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        pass
    for form in ("%Y-%m", "%Y/%m/%d"):
        try:
            return datetime.strptime(text, form).replace(tzinfo=UTC)
        except ValueError:
            continue
    return None


def _read_csv(file: Path) -> Table:
    lines = _csv_lines(file)
    if not lines:
        return Table(file, {}, None)
    names = [cell.strip() for cell in lines[0][1]]
    if all(_finite(cell) is not None for cell in names):
        # No header: a single column of numbers is the label, several get their positions.
        names = ["y"] if len(names) == 1 else [str(place + 1) for place in range(len(names))]
        body = lines
    else:
        body = lines[1:]
    if len(set(names)) != len(names):
        raise BadData(f"{file} names a column twice: {listed(names)}")
    for row, (line, cells) in enumerate(body, start=1):
        if len(cells) != len(names):
            raise BadData(
                f"{file}: row {row} (line {line}) has {len(cells)} cells, the header {len(names)}"
            )
    columns = {name: [cells[k].strip() for _, cells in body] for k, name in enumerate(names)}
    return Table(file, columns, [line for line, _ in body])


def _csv_lines(file: Path) -> list[tuple[int, list[str]]]:
    """Rows that are neither empty nor comments, with the number of their (last) line."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        first = next((line for line in text.splitlines() if line and line[0] != "#"), "")
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=first.count))
        return [(reader.line_num, row) for row in reader if row and not row[0].startswith("#")]
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadData(f"{file} is not a CSV file in UTF-8: {error}") from error


def _read_parquet(file: Path) -> Table:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise BadData(f"reading {file} needs pyarrow: pip install 'moca-service[train]'") from error
    try:
        table = parquet.read_table(file)
        return Table(file, {n: table.column(n).to_pylist() for n in table.column_names}, None)
    except (pa.ArrowException, ValueError) as error:
        raise BadData(f"{file} is not a Parquet file that can be used: {error}") from error


def listed(names: Sequence[str] | dict[str, Any]) -> str:
    """Names for a message."""
    return ", ".join(repr(name) for name in names)
