"""A user's own series: CSV or Parquet files, one row per observation.

Columns are recognised by name unless they are named: labels `y`, or `y1, y2, ...`, or `y_...`;
inputs `x` likewise, or none; `stream`, the series of a row (without it a file is one series with
the file's name); `time` (also `timestamp`, `datetime`, `date`, `year`), the order of a series' rows
(without it their order in the file); `changepoint`, 0 or 1, whether a regime starts. Without labels
of such a name, the only other column of numbers is the label.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from moca_client.series import (
    TIME_NAMES,
    SeriesError,
    is_missing,
    listed,
    named,
    numbered,
    numeric,
    read_table,
)
from moca_client.times import EPOCH, BadTime, finite, moment_of, time_axis
from training.config import Section
from training.data.windows import Series
from training.errors import BadData

SUFFIXES = frozenset({".csv", ".tsv", ".parquet", ".pq"})
SWITCHES = {"0": False, "1": True, "false": False, "true": True}
MAX_CLASSES = 1000  # as in the service
NUMBERS = "--y and --x name the columns to train on"
CODED = "for an input, give a column of 0 and 1 for each of its values"

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


class DataSource(Section):
    """The section `data` of a run on own series.

    y to changepoint: columns by role; None is to be recognised. interval: None where each
    observation is one unit of the hazard after the last. digest: of the file's bytes; a run can
    only be resumed with the same bytes.
    """

    path: Path
    digest: str = ""
    y: tuple[str, ...] | None = None
    x: tuple[str, ...] | None = None
    stream: str | None = None
    time: str | None = None
    changepoint: str | None = None
    interval: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Time in one unit of the hazard, as the setting of streams: seconds.",
    )
    by: Literal["time", "stream"] = "time"
    train: float = Field(default=0.7, gt=0, lt=1)
    validation: float = Field(default=0.15, gt=0, lt=1)


def read(source: DataSource, *, classes: bool = False, partial: bool = False) -> list[Series]:
    """Series (float64) of a file, or of all `.csv`, `.tsv`, `.parquet` and `.pq` in a folder.

    classes: labels are class indices. partial: whether some labels of a row may be empty. An empty
    label is a missing one (nan). BadData names file, row and column of unusable content: a missing
    column, text or an infinity among numbers, an empty input or time, a time twice in a series, a
    label that is not a class, or a column without any.
    """
    origin: dict[str, Path] = {}
    series: list[Series] = []
    first: _Table | None = None
    for file in files(source.path):
        table = _Table(file, source)
        first = first or table
        if (table.y, table.x) != (first.y, first.x):
            raise BadData(
                f"{file} has labels {table.y} and inputs {table.x}, "
                f"{first.file} {first.y} and {first.x}"
            )
        if source.interval is not None and table.time is None:
            raise BadData(f"{file} has no time column for --interval; name it with --time")
        for one in table.series(source.interval, classes, partial):
            if one.name in origin:
                raise BadData(f"stream {one.name!r} is in {origin[one.name]} and in {file}")
            origin[one.name] = file
            series.append(one)
    assert first is not None
    _check_labels(source.path, np.concatenate([one.y.numpy() for one in series]), first.y, classes)
    return series


def files(path: Path) -> list[Path]:
    """The file, or those of a folder that can be read, by name; raises BadData."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
    if not files:
        raise BadData(f"{path} holds none of {', '.join(sorted(SUFFIXES))}")
    return files


class _Table:
    """The content of a file and its columns by role."""

    def __init__(self, file: Path, wanted: DataSource) -> None:
        """Raise BadData for a file that cannot be read, has no rows, or lacks a column."""
        self.file = file
        try:
            self._table = read_table(file)
        except OSError as error:
            raise BadData(f"{file} cannot be read: {error.strerror or error}") from error
        except SeriesError as error:
            raise BadData(str(error)) from error
        self._columns = self._table.columns
        if not any(self._columns.values()):
            raise BadData(f"{file} has no rows")
        self._recognise(wanted)

    def _recognise(self, wanted: DataSource) -> None:
        single = [name for name in (wanted.stream, wanted.time, wanted.changepoint) if name]
        for name in [*(wanted.y or []), *(wanted.x or []), *single]:
            if name not in self._columns:
                raise BadData(f"{self.file} has no column {name!r}; it has {listed(self._columns)}")
        taken = set(wanted.y or [])
        self.x = self._numbered("x", taken) if wanted.x is None else list(wanted.x)
        taken |= {*self.x, *single}
        self.stream = wanted.stream or named(self._columns, ("stream",), taken)
        self.time = wanted.time or named(self._columns, TIME_NAMES, taken)
        self.changepoint = wanted.changepoint or named(self._columns, ("changepoint",), taken)
        taken |= {name for name in (self.stream, self.time, self.changepoint) if name is not None}
        self.y = list(wanted.y or self._numbered("y", taken))
        if not self.y:
            self.y = numeric(self._table, taken)
            if len(self.y) != 1:
                several = f"several numeric columns: {listed(self.y)}"
                raise BadData(
                    f"{self.file} has no column y or y1, y2, ... and "
                    f"{several if self.y else 'no numeric column'}; name the label columns"
                )
        twice = [name for name, count in Counter([*self.y, *self.x]).items() if count > 1]
        if twice:
            raise BadData(f"{self.file}: column {twice[0]!r} is given twice as a label or an input")

    def _numbered(self, letter: str, taken: set[str]) -> list[str]:
        """Columns `letter` or `letter1, letter2, ...` by number; without any, all `letter_...`."""
        free = [name for name in self._columns if name not in taken]
        begun = [name for name in free if name.lower().startswith(f"{letter}_")]
        return numbered(free, letter) or begun

    def series(self, interval: float | None, classes: bool, partial: bool) -> list[Series]:
        """The series of the file; raises BadData."""
        rows = self._rows()
        elapsed = {}
        if self.time is not None:
            when, unit = self._times(self.time)
            for name, own in rows.items():
                rows[name] = self._in_order(self.time, when, own)
                if interval is not None:
                    # Differences first: those of nanoseconds since 1970 are exact.
                    steps = np.diff(when[rows[name]]) / (unit * interval)
                    elapsed[name] = torch.tensor([1.0, *steps], dtype=torch.float64)
        y = self._labels(classes, partial)
        x = self._numbers(self.x, CODED) if self.x else None
        if x is not None:
            self._refuse(np.isnan(x), self.x, "empty; an input cannot be missing")
        switches = None
        if self.changepoint is not None:
            cells = [str(cell) for cell in self._columns[self.changepoint]]
            known = [SWITCHES.get(cell.strip().lower().removesuffix(".0")) for cell in cells]
            if None in known:
                row = known.index(None)
                raise self._bad(row, self.changepoint, f"{cells[row]!r} is not 0 or 1")
            switches = torch.tensor(known)
        return [
            Series(
                None if x is None else torch.from_numpy(x[own]),
                torch.from_numpy(y[own]),
                None if switches is None else switches[own],
                elapsed.get(name),
                name,
            )
            for name, own in rows.items()
        ]

    def _labels(self, classes: bool, partial: bool) -> Floats:
        y = self._numbers(self.y, NUMBERS)
        missing = np.isnan(y)
        if not partial:
            some = missing & ~missing.all(1, keepdims=True)
            advice = "fill it, empty the whole row, or use --model fleet"
            self._refuse(some, self.y, f"empty while other labels of the row are not; {advice}")
        if classes:
            fractions = ~missing & ((y < 0) | (y != np.floor(y)))
            label = f"{y[fractions][0]:g}" if fractions.any() else ""
            self._refuse(fractions, self.y, f"{label} is not a class 0, 1, 2, ...")
        return y

    def _bad(self, row: int, name: str, text: str) -> BadData:
        return BadData(f"{self.file}: {self._table.where(row, name)}: {text}")

    def _refuse(self, wrong: NDArray[np.bool_], names: Sequence[str], text: str) -> None:
        """Raise BadData at the first wrong cell (N, columns)."""
        for row, column in np.argwhere(wrong):
            raise self._bad(row, names[column], text)

    def _rows(self) -> dict[str, Rows]:
        if self.stream is None:
            count = len(next(iter(self._columns.values())))
            return {self.file.stem: np.arange(count)}
        rows: dict[str, list[int]] = {}
        for row, cell in enumerate(self._columns[self.stream]):
            name = "" if cell is None else str(cell).strip()
            if not name:
                raise self._bad(row, self.stream, "empty; every row is of a stream")
            rows.setdefault(name, []).append(row)
        return {name: np.array(own) for name, own in rows.items()}

    def _times(self, name: str) -> tuple[NDArray[Any], float]:
        """What orders the rows, exactly, and how much of that is a second, or one of plain numbers.

        Dates are microseconds since 1970. BadData for a cell that is missing or neither, in a
        column that is not all numbers.
        """
        cells = self._columns[name]
        for row, cell in enumerate(cells):
            if is_missing(cell):
                raise self._bad(row, name, "empty; a time cannot be missing")
        numbers = [finite(cell) for cell in cells]
        if None not in numbers:
            # Nanoseconds since 1970 are whole numbers that a float rounds.
            whole = all(re.fullmatch(r"[+-]?\d{1,19}", str(cell)) for cell in cells)
            return np.array([int(cell) for cell in cells] if whole else numbers), 1.0
        try:
            moments = map(moment_of, time_axis(cells, name).rfc3339 or [])
        except BadTime as error:
            raise self._bad(error.row, name, f"{str(cells[error.row])!r} {error}") from None
        since = [(moment - EPOCH) // timedelta(microseconds=1) for moment in moments if moment]
        return np.array(since), 1e6

    def _in_order(self, name: str, when: NDArray[Any], rows: Rows) -> Rows:
        ordered = rows[np.argsort(when[rows], kind="stable")]
        twice = np.flatnonzero(when[ordered][1:] == when[ordered][:-1])
        if len(twice):
            before, row = ordered[twice[0] : twice[0] + 2].tolist()
            advice = "" if self.stream else "; --by names the column that tells series apart"
            cell = str(self._columns[name][row])
            text = f"{cell!r} is also the time of row {before + 1} of the same stream{advice}"
            raise self._bad(row, name, text)
        return ordered

    def _numbers(self, names: Sequence[str], advice: str) -> Floats:
        """Columns (N, columns), nan where a cell is missing; BadData for what is not finite."""
        columns = []
        for name in names:
            cells = self._columns[name]
            values = [np.nan if is_missing(cell) else finite(cell) for cell in cells]
            if None in values:
                row = values.index(None)
                raise self._bad(row, name, f"{str(cells[row])!r} is not a finite number; {advice}")
            columns.append(np.array(values, np.float64))
        return np.stack(columns, 1)


def _check_labels(path: Path, labels: Floats, names: Sequence[str], classes: bool) -> None:
    """Raise BadData where all labels (N, y_dim) together cannot be learned from."""
    missing = np.isnan(labels)
    present = labels[~missing]
    if not present.size:
        raise BadData(f"{path}: the label is empty in every row")
    empty = [name for k, name in enumerate(names) if missing[:, k].all()]
    if empty:
        others = ",".join(name for name in names if name not in empty)
        raise BadData(
            f"{path}: column {empty[0]!r} is empty in every row; leave it out: --y {others}"
        )
    if classes and labels.shape[1] > 1:
        raise BadData(f"{path}: a class is one column, got {labels.shape[1]}")
    if classes and (present == present[0]).all():
        raise BadData(f"{path}: every label is class {present[0]:g}; two classes are needed")
    if classes and present.max() >= MAX_CLASSES:
        raise BadData(
            f"{path}: there is a class {present.max():.0f}; {MAX_CLASSES - 1} is the last"
        )
