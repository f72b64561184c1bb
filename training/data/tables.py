"""A user's own series: CSV or Parquet files, one row per observation.

Columns are recognised by name unless they are named: labels `y`, or `y1, y2, ...`, or `y_...`;
inputs `x` likewise, or none; `stream`, the series of a row (without it a file is one series with
the file's name); `time` (also `timestamp`, `datetime`, `date`, `year`), the order of a series' rows
(without it their order in the file); `changepoint`, 0 or 1, whether a regime starts. Without labels
of such a name, the only other column of numbers is the label.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pyarrow import csv as arrow_csv
from pyarrow import parquet, types
from torch import Tensor

from training.data.base import Splits
from training.data.windows import Series, Windows, consecutive
from training.errors import BadData

TIME_NAMES = ("time", "timestamp", "datetime", "date", "year")
PARQUET = frozenset({".parquet", ".pq"})
SUFFIXES = PARQUET | {".csv", ".tsv"}
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})  # in any case of letters
MAX_CLASSES = 1000  # as in the service
LISTED = 10  # streams named in a message
NUMBERS = "--y and --x name the columns to train on"
CODED = "for an input, give a column of 0 and 1 for each of its values"

Floats = NDArray[np.float64]


class Columns(NamedTuple):
    """Columns by role; None: not in the file."""

    y: list[str]
    x: list[str]
    stream: str | None
    time: str | None
    changepoint: str | None


class _Wanted(NamedTuple):
    y: Sequence[str] | None
    x: Sequence[str] | None
    stream: str | None
    time: str | None
    changepoint: str | None


def read(
    path: Path,
    *,
    y: Sequence[str] | None = None,
    x: Sequence[str] | None = None,
    stream: str | None = None,
    time: str | None = None,
    changepoint: str | None = None,
    interval: float | None = None,
    classes: bool = False,
    partial: bool = False,
) -> list[Series]:
    """Series (float64) of a file, or of all `.csv`, `.tsv`, `.parquet` and `.pq` in a folder.

    `interval`: time in one unit of the hazard, in seconds, or of numbers in their unit; None: each
    observation is one. `classes`: labels are class indices. partial: whether some labels of a row
    may be empty. An empty label is a missing one (nan). BadData names file, row and column of
    unusable content: a missing column, text or an infinity among numbers, an empty input or time, a
    time twice in a series, a label that is not a class, or a column without any.
    """
    wanted = _Wanted(y, x, stream, time, changepoint)
    by_name: dict[str, tuple[Path, Series]] = {}
    first: tuple[Path, Columns] | None = None
    for file in files(path):
        table = _table(file, stream or "stream")
        columns = _columns(file, table, wanted)
        first = first or (file, columns)
        if columns[:2] != first[1][:2]:
            raise BadData(
                f"{file} has labels {columns.y} and inputs {columns.x}, "
                f"{first[0]} {first[1].y} and {first[1].x}"
            )
        if interval is not None and columns.time is None:
            raise BadData(f"{file} has no time column for --interval; name it with --time")
        for one in _series(file, table, columns, interval, classes, partial):
            if one.name in by_name:
                raise BadData(f"stream {one.name!r} is in {by_name[one.name][0]} and in {file}")
            by_name[one.name] = (file, one)
    series = [one for _, one in by_name.values()]
    assert first is not None
    _check_labels(path, series, first[1].y, classes)
    return series


def split(
    series: Sequence[Series],
    length: int,
    *,
    before: int = 0,
    train: float = 0.7,
    validation: float = 0.15,
    by: Literal["time", "stream"] = "time",
    classes: bool = False,
) -> tuple[Splits, list[str]]:
    """Split the series in windows of `length`; also returns what of it was too short, in lines.

    By time, the first share `train` of every series is for training, the next `validation`, the
    rest the test; by stream, the first of the series, the next, the rest, each whole. Training
    windows are random, those of validation and test disjoint and consecutive. Each has `before`
    more observations, its first. What is shorter than a window, but longer than `before`, is one,
    padded with missing labels. BadData if one of the three has no window.
    """
    if length < 1 or not (train > 0 and validation > 0 and train + validation < 1):
        raise ValueError(
            "expected a length of at least 1 and shares above 0 that leave some for the test, "
            f"got length {length}, train {train}, validation {validation}"
        )
    shares = (0.0, train, train + validation, 1.0)
    parts = {
        name: part(series, low, high, by)
        for name, low, high in zip(
            ("training", "validation", "test"), shares[:-1], shares[1:], strict=True
        )
    }
    lines: list[str] = []
    fitted = {}
    for name, some in parts.items():
        lines += _short(name, some, length, before, by)
        fitted[name] = [one.padded(before + length) for one in some if len(one.y) > before]
        if not any(bool((~one.y[before:].isnan()).any()) for one in fitted[name]):
            raise BadData(
                f"no row for {name} by {by} has a label; name other columns with --y, or change "
                "the shares"
            )
    first = series[0]
    splits = Splits(
        Windows(fitted["training"]),
        consecutive(fitted["validation"], before + length),
        consecutive(fitted["test"], before + length),
        x_dim=0 if first.x is None else first.x.shape[1],
        y_dim=first.y.shape[1],
        classes=1 + int(max(one.y.nan_to_num(0).max() for one in series)) if classes else 0,
    )
    return splits, lines


def part(series: Sequence[Series], low: float, high: float, by: str) -> list[Series]:
    """The share [low, high) of every series, or of the series, in their order."""
    if by == "stream":
        return list(series[round(low * len(series)) : round(high * len(series))])
    return [one.part(round(low * len(one.y)), round(high * len(one.y))) for one in series]


def _short(name: str, parts: Sequence[Series], length: int, before: int, by: str) -> list[str]:
    """Messages about series too short for a window, or for anything; BadData if all are."""
    why = "" if not before else f", more than the {before} that give a stream its units are needed"
    lines = [
        f"stream {one.name!r}: {len(one.y)} observations for {name}{why}"
        for one in parts
        if len(one.y) <= before
    ]
    if len(lines) == len(parts):
        more = "" if len(lines) <= LISTED else f"; and {len(lines) - LISTED} more"
        raise BadData(
            f"no window for {name} by {by}: "
            + ("; ".join(lines[:LISTED]) + more if lines else "there is no stream left for it")
        )
    padded = [one.name for one in parts if before < len(one.y) < before + length]
    lines = [f"left out: {line}" for line in lines]
    if padded:
        more = "" if len(padded) <= LISTED else f" and {len(padded) - LISTED} more"
        lines.append(
            f"shorter than a window of {before + length}, padded with missing labels: "
            f"{len(padded)} of {len(parts)} streams for {name}, {listed(padded[:LISTED])}{more}"
        )
    return lines


def files(path: Path) -> list[Path]:
    """The file, or those of a folder that can be read, by name; raises BadData."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
    if not files:
        raise BadData(f"{path} holds none of {', '.join(sorted(SUFFIXES))}")
    return files


def listed(names: Iterable[str]) -> str:
    """Names for a message."""
    return ", ".join(repr(name) for name in names)


def _table(file: Path, stream: str) -> pa.Table:
    """Read a file: Parquet by its suffix, else CSV; BadData if unreadable or without rows."""
    is_parquet = file.suffix.lower() in PARQUET
    try:
        table = parquet.read_table(file) if is_parquet else _csv(file, stream)
    except OSError as error:
        raise BadData(f"{file} cannot be read: {error.strerror or error}") from error
    except (pa.ArrowException, ValueError, csv.Error) as error:
        kind = "a Parquet file" if is_parquet else "a CSV file in UTF-8"
        raise BadData(f"{file} is not {kind} that can be used: {error}") from error
    names = table.column_names
    if len(set(names)) != len(names):
        raise BadData(f"{file} names a column twice: {listed(names)}")
    if not table.num_rows:
        raise BadData(f"{file} has no rows")
    return table


def _csv(file: Path, stream: str) -> pa.Table:
    """A CSV table; its names stay text in the column of streams."""
    text = re.sub(r"^#.*(\n|$)", "", file.read_text(encoding="utf-8-sig"), flags=re.MULTILINE)
    first = next((line for line in text.splitlines() if line), "")
    delimiter = max(",;\t", key=first.count)
    names = [cell.strip() for cell in next(csv.reader([first], delimiter=delimiter), [])]
    if not names:
        return pa.table({})
    bare = all(_number(name) is not None for name in names)
    if bare:
        # No header: a single column of numbers is the label, several get their positions.
        names = ["y"] if len(names) == 1 else [str(place + 1) for place in range(len(names))]
    content = text.encode()
    words = {form for word in MISSING for form in (word, word.upper(), word.title(), "NaN")}
    return arrow_csv.read_csv(
        pa.BufferReader(content),
        # In one block: types come from the whole file.
        read_options=arrow_csv.ReadOptions(
            column_names=names,
            skip_rows_after_names=0 if bare else 1,
            block_size=len(content) + 1,
            use_threads=False,  # for rows in messages
        ),
        parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(
            null_values=list(words),
            column_types={name: pa.string() for name in names if stream in (name, name.lower())},
        ),
    )


def _is_number(kind: pa.DataType) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _is_missing(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and cell.strip().lower() in MISSING)


def _number(cell: Any) -> float | None:
    try:
        return None if isinstance(cell, bool) else float(cell)
    except (TypeError, ValueError):
        return None


def _where(file: Path, row: int, name: str) -> str:
    """Name the place of a cell; rows count from 1 below the header."""
    return f"{file}: row {row + 1}, column {name!r}"


def _numbers(file: Path, table: pa.Table, name: str, advice: str = NUMBERS) -> Floats:
    """A column (N,), nan where a cell is missing; BadData for text and what is not finite."""
    column = table[name]
    if _is_number(column.type) or types.is_null(column.type):
        values: Floats = column.cast(pa.float64(), safe=False).to_numpy()
    else:
        cells = column.to_pylist()
        found = [np.nan if _is_missing(cell) else _number(cell) for cell in cells]
        if None in found:
            row = found.index(None)
            raise BadData(
                f"{_where(file, row, name)}: {str(cells[row])!r} is not a number; {advice}"
            )
        values = np.array(found, np.float64)
    infinite = np.flatnonzero(np.isinf(values))
    if len(infinite):
        row = int(infinite[0])
        raise BadData(f"{_where(file, row, name)}: {values[row]} is not finite")
    return values


def _times(file: Path, table: pa.Table, name: str) -> tuple[NDArray[Any], float]:
    """What orders the rows, exactly, and how much of that is a second, or one of plain numbers.

    Dates are microseconds since 1970. BadData for a cell that is missing or neither, in a column
    that is not all numbers.
    """
    column = table[name]
    cells = column.to_pylist()
    for row, cell in enumerate(cells):
        if _is_missing(cell) or cell != cell:
            raise BadData(f"{_where(file, row, name)}: empty; a time cannot be missing")
    if _is_number(column.type):
        return column.to_numpy(), 1.0
    if types.is_timestamp(column.type) or types.is_date(column.type):
        stamps = column.cast(pa.timestamp("us", getattr(column.type, "tz", None)), safe=False)
        return stamps.cast(pa.int64()).to_numpy(), 1e6
    moments = [_moment(cell) for cell in cells]
    if None in moments:
        row = moments.index(None)
        raise BadData(
            f"{_where(file, row, name)}: {str(cells[row])!r} is not a time "
            "(RFC 3339, a date, a year, or a number)"
        )
    return np.array(moments, "datetime64[us]").astype(np.int64), 1e6


def _moment(cell: Any) -> datetime | None:
    """A date or time as text, in UTC; without an offset it is UTC."""
    for read in (
        datetime.fromisoformat,
        lambda text: datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC),
        lambda text: datetime.strptime(text, "%Y/%m/%d").replace(tzinfo=UTC),
    ):
        try:
            moment = read(str(cell).strip())
        except ValueError:
            continue
        return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)
    return None


def _columns(file: Path, table: pa.Table, wanted: _Wanted) -> Columns:
    single = [name for name in wanted[2:] if isinstance(name, str)]
    for name in [*(wanted.y or []), *(wanted.x or []), *single]:
        if name not in table.column_names:
            raise BadData(f"{file} has no column {name!r}; it has {listed(table.column_names)}")
    x = list(wanted.x) if wanted.x is not None else _named(table, "x", set(wanted.y or []))
    taken = {*(wanted.y or []), *x, *single}
    stream = wanted.stream or _find(table, ("stream",), taken)
    time = wanted.time or _find(table, TIME_NAMES, taken)
    changepoint = wanted.changepoint or _find(table, ("changepoint",), taken)
    taken |= {name for name in (stream, time, changepoint) if name is not None}
    y = list(wanted.y) if wanted.y else _find_labels(file, table, taken)
    twice = [name for name, count in Counter([*y, *x]).items() if count > 1]
    if twice:
        raise BadData(f"{file}: column {twice[0]!r} is given twice as a label or an input")
    return Columns(y, x, stream, time, changepoint)


def _find(table: pa.Table, names: Sequence[str], taken: set[str]) -> str | None:
    by_lower = {name.lower(): name for name in reversed(table.column_names) if name not in taken}
    return next((by_lower[name] for name in names if name in by_lower), None)


def _named(table: pa.Table, letter: str, taken: set[str]) -> list[str]:
    """Columns `letter` or `letter1, letter2, ...` by number; without any, all `letter_...`."""
    free = [name for name in table.column_names if name not in taken]
    numbered = [name for name in free if re.fullmatch(rf"{letter}_?\d*", name, re.IGNORECASE)]
    if numbered:
        return sorted(numbered, key=lambda name: int(re.sub(r"\D", "", name) or "0"))
    return [name for name in free if re.match(rf"{letter}_", name, re.IGNORECASE)]


def _find_labels(file: Path, table: pa.Table, taken: set[str]) -> list[str]:
    if names := _named(table, "y", taken):
        return names
    numeric = [
        field.name
        for field in table.schema
        if field.name not in taken and (_is_number(field.type) or types.is_null(field.type))
    ]
    if len(numeric) == 1:
        return numeric
    other = "no numeric column" if not numeric else f"several numeric columns: {listed(numeric)}"
    raise BadData(f"{file} has no column y or y1, y2, ... and {other}; name the label columns")


def _series(
    file: Path,
    table: pa.Table,
    columns: Columns,
    interval: float | None,
    classes: bool,
    partial: bool,
) -> list[Series]:
    rows = _rows(file, table, columns.stream)
    elapsed: dict[str, Tensor] = {}
    if columns.time is not None:
        when, unit = _times(file, table, columns.time)
        for name, of in rows.items():
            rows[name] = _ordered(file, table, columns, when, of)
            if interval is not None:
                # Differences first: those of nanoseconds since 1970 are exact.
                steps = np.diff(when[rows[name]]) / (unit * interval)
                elapsed[name] = torch.tensor([1.0, *steps], dtype=torch.float64)
    y = torch.from_numpy(_labels(file, table, columns.y, classes, partial))
    x = _inputs(file, table, columns.x)
    switch = None
    if columns.changepoint is not None:
        switch = torch.tensor(_switches(file, table, columns.changepoint))
    return [
        Series(
            None if x is None else torch.from_numpy(x[of]),
            y[of],
            None if switch is None else switch[of],
            name,
            elapsed.get(name),
        )
        for name, of in rows.items()
    ]


def _rows(file: Path, table: pa.Table, column: str | None) -> dict[str, NDArray[np.int64]]:
    """Rows of each stream."""
    if column is None:
        return {file.stem: np.arange(table.num_rows)}
    rows: dict[str, list[int]] = {}
    for row, cell in enumerate(table[column].to_pylist()):
        name = "" if cell is None else str(cell).strip()
        if not name:
            raise BadData(f"{_where(file, row, column)}: empty; every row is of a stream")
        rows.setdefault(name, []).append(row)
    return {name: np.array(of) for name, of in rows.items()}


def _ordered(
    file: Path, table: pa.Table, columns: Columns, when: NDArray[Any], rows: NDArray[np.int64]
) -> NDArray[np.int64]:
    column = str(columns.time)
    ordered = rows[np.argsort(when[rows], kind="stable")]
    twice = np.flatnonzero(when[ordered][1:] == when[ordered][:-1])
    if len(twice):
        before, row = ordered[twice[0]], ordered[twice[0] + 1]
        raise BadData(
            f"{_where(file, row, column)}: {str(table[column][int(row)])!r} is also the "
            f"time of row {before + 1} of the same stream"
            + ("" if columns.stream else "; --by names the column that tells series apart")
        )
    return ordered


def _inputs(file: Path, table: pa.Table, names: list[str]) -> Floats | None:
    """Inputs (N, x_dim)."""
    if not names:
        return None
    values = np.stack([_numbers(file, table, name, CODED) for name in names], 1)
    for row, column in np.argwhere(np.isnan(values)):
        raise BadData(f"{_where(file, row, names[column])}: empty; an input cannot be missing")
    return values


def _labels(file: Path, table: pa.Table, names: list[str], classes: bool, partial: bool) -> Floats:
    """Labels (N, y_dim)."""
    values = np.stack([_numbers(file, table, name) for name in names], 1)
    gone = np.isnan(values)
    some = gone & ~gone.all(1, keepdims=True)
    if not partial:
        for row, column in np.argwhere(some):
            raise BadData(
                f"{_where(file, row, names[column])}: empty while other labels of the row "
                "are not; fill it, empty the whole row, or use --model fleet"
            )
    if classes:
        for row, column in np.argwhere(~gone & ((values < 0) | (values != np.floor(values)))):
            label = f"{values[row, column]:g}"
            raise BadData(
                f"{_where(file, row, names[column])}: {label} is not a class 0, 1, 2, ..."
            )
    return values


def _switches(file: Path, table: pa.Table, name: str) -> list[bool]:
    known = {"0": False, "1": True, "false": False, "true": True}
    found = []
    for row, cell in enumerate(table[name].to_pylist()):
        value = known.get(str(cell).strip().lower().removesuffix(".0"))
        if value is None:
            raise BadData(f"{_where(file, row, name)}: {str(cell)!r} is not 0 or 1")
        found.append(value)
    return found


def _check_labels(
    path: Path, series: Sequence[Series], names: Sequence[str], classes: bool
) -> None:
    labels = torch.cat([one.y for one in series])
    gaps = labels.isnan()
    known = labels[~gaps]
    if not len(known):
        raise BadData(f"{path}: the label is empty in every row")
    empty = [name for name, gone in zip(names, gaps.all(0).tolist(), strict=True) if gone]
    if empty:
        rest = ",".join(name for name in names if name not in empty)
        raise BadData(
            f"{path}: column {empty[0]!r} is empty in every row; leave it out: --y {rest}"
        )
    if classes and labels.shape[1] > 1:
        raise BadData(f"{path}: a class is one column, got {labels.shape[1]}")
    if classes and bool((known == known[0]).all()):
        raise BadData(f"{path}: every label is class {known[0]:g}; two classes are needed")
    if classes and float(known.max()) >= MAX_CLASSES:
        raise BadData(f"{path}: there is a class {known.max():.0f}; {MAX_CLASSES - 1} is the last")
