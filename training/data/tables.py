"""A user's own series: CSV or Parquet files, one row per observation.

Columns are recognised by name unless they are named: labels `y`, or `y1, y2, ...`, or `y_...`;
inputs `x` likewise, or none; `stream`, the series of a row (without it a file is one series with
the file's name); `time` (also `timestamp`, `datetime`, `date`, `year`), the order of a series' rows
(without it their order in the file); `changepoint`, 0 or 1, whether a regime starts. Without labels
of such a name, the only other column of numbers is the label.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from training.data.base import Splits
from training.data.cells import PARQUET, Table, listed, missing, number, plain_number, read_table
from training.data.cells import times as read_times
from training.data.windows import Series, Windows, consecutive
from training.errors import BadData

TIME_NAMES = ("time", "timestamp", "datetime", "date", "year")
SUFFIXES = PARQUET | {".csv", ".tsv"}
MAX_CLASSES = 1000  # as in the service
LISTED = 10  # streams named in a message


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
        table = read_table(file)
        columns = _columns(table, wanted)
        first = first or (file, columns)
        if columns[:2] != first[1][:2]:
            raise BadData(
                f"{file} has labels {columns.y} and inputs {columns.x}, "
                f"{first[0]} {first[1].y} and {first[1].x}"
            )
        if interval is not None and columns.time is None:
            raise BadData(f"{file} has no time column for --interval; name it with --time")
        for one in _series(table, columns, interval, classes, partial):
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


def _columns(table: Table, wanted: _Wanted) -> Columns:
    single = [name for name in wanted[2:] if isinstance(name, str)]
    for name in [*(wanted.y or []), *(wanted.x or []), *single]:
        if name not in table.columns:
            raise BadData(f"{table.file} has no column {name!r}; it has {listed(table.columns)}")
    x = list(wanted.x) if wanted.x is not None else _named(table, "x", set(wanted.y or []))
    taken = {*(wanted.y or []), *x, *single}
    stream = wanted.stream or _find(table, ("stream",), taken)
    time = wanted.time or _find(table, TIME_NAMES, taken)
    changepoint = wanted.changepoint or _find(table, ("changepoint",), taken)
    taken |= {name for name in (stream, time, changepoint) if name is not None}
    y = list(wanted.y) if wanted.y else _find_labels(table, taken)
    twice = [name for name, count in Counter([*y, *x]).items() if count > 1]
    if twice:
        raise BadData(f"{table.file}: column {twice[0]!r} is given twice as a label or an input")
    return Columns(y, x, stream, time, changepoint)


def _find(table: Table, names: Sequence[str], taken: set[str]) -> str | None:
    by_lower = {name.lower(): name for name in reversed(table.columns) if name not in taken}
    return next((by_lower[name] for name in names if name in by_lower), None)


def _named(table: Table, letter: str, taken: set[str]) -> list[str]:
    """Columns `letter` or `letter1, letter2, ...` by number; without any, all `letter_...`."""
    free = [name for name in table.columns if name not in taken]
    numbered = [name for name in free if re.fullmatch(rf"{letter}_?\d*", name, re.IGNORECASE)]
    if numbered:
        return sorted(numbered, key=lambda name: int(re.sub(r"\D", "", name) or "0"))
    return [name for name in free if re.match(rf"{letter}_", name, re.IGNORECASE)]


def _find_labels(table: Table, taken: set[str]) -> list[str]:
    if names := _named(table, "y", taken):
        return names
    numeric = [
        name
        for name, cells in table.columns.items()
        if name not in taken and all(missing(c) or plain_number(c) is not None for c in cells)
    ]
    if len(numeric) == 1:
        return numeric
    other = "no numeric column" if not numeric else f"several numeric columns: {listed(numeric)}"
    raise BadData(
        f"{table.file} has no column y or y1, y2, ... and {other}; name the label columns"
    )


def _series(
    table: Table, columns: Columns, interval: float | None, classes: bool, partial: bool
) -> list[Series]:
    rows: dict[str, list[int]] = {}
    for row in range(table.rows):
        rows.setdefault(_stream(table, columns.stream, row), []).append(row)
    elapsed: dict[str, Tensor] = {}
    if columns.time is not None:
        when, unit = read_times(table, columns.time)
        rows = {name: _ordered(table, columns, when, of) for name, of in rows.items()}
        if interval is not None:
            elapsed = {name: _elapsed(when, of, unit * interval) for name, of in rows.items()}
    y = [_label(table, row, columns.y, classes, partial) for row in range(table.rows)]
    x = [[_input(table, row, name) for name in columns.x] for row in range(table.rows)]
    switch = None
    if columns.changepoint is not None:
        switch = [_switch(table, row, columns.changepoint) for row in range(table.rows)]
    return [
        Series(
            torch.tensor([x[row] for row in of], dtype=torch.float64) if columns.x else None,
            torch.tensor([y[row] for row in of], dtype=torch.float64),
            torch.tensor([switch[row] for row in of]) if switch is not None else None,
            name,
            elapsed.get(name),
        )
        for name, of in rows.items()
    ]


def _stream(table: Table, column: str | None, row: int) -> str:
    if column is None:
        return table.file.stem
    cell = table.columns[column][row]
    if cell is None or str(cell).strip() == "":
        raise BadData(f"{table.where(row, column)}: empty; every row is of a stream")
    return str(cell).strip()


def _ordered(table: Table, columns: Columns, when: list[float], rows: list[int]) -> list[int]:
    column = str(columns.time)
    ordered = sorted(rows, key=when.__getitem__)
    for before, row in zip(ordered[:-1], ordered[1:], strict=True):
        if when[before] == when[row]:
            raise BadData(
                f"{table.where(row, column)}: {str(table.columns[column][row])!r} is also the "
                f"time of row {before + 1} of the same stream"
                + ("" if columns.stream else "; --by names the column that tells series apart")
            )
    return ordered


def _elapsed(when: list[float], rows: list[int], unit: float) -> Tensor:
    """Time (N,) since the row before, 1 of the first."""
    # Differences first: those of nanoseconds since 1970 are exact.
    steps = [when[row] - when[before] for before, row in zip(rows[:-1], rows[1:], strict=True)]
    return torch.tensor([1.0, *(step / unit for step in steps)], dtype=torch.float64)


def _input(table: Table, row: int, name: str) -> float:
    value = number(
        table, row, name, "for an input, give a column of 0 and 1 for each of its values"
    )
    if value is None:
        raise BadData(f"{table.where(row, name)}: empty; an input cannot be missing")
    return value


def _label(table: Table, row: int, names: list[str], classes: bool, partial: bool) -> list[float]:
    values = [number(table, row, name) for name in names]
    if not partial and None in values and any(value is not None for value in values):
        raise BadData(
            f"{table.where(row, names[values.index(None)])}: empty while other labels of the row "
            "are not; fill it, empty the whole row, or use --model fleet"
        )
    for name, value in zip(names, values, strict=True):
        if classes and value is not None and (value < 0 or value != int(value)):
            raise BadData(f"{table.where(row, name)}: {value:g} is not a class 0, 1, 2, ...")
    return [math.nan if value is None else value for value in values]


def _switch(table: Table, row: int, name: str) -> bool:
    cell: Any = table.columns[name][row]
    known: dict[str, bool] = {"0": False, "1": True, "false": False, "true": True}
    value = known.get(str(cell).strip().lower().removesuffix(".0"))
    if value is None:
        raise BadData(f"{table.where(row, name)}: {str(cell)!r} is not 0 or 1")
    return value


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
