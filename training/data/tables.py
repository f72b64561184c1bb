"""A user's own series: CSV or Parquet files, one row per observation.

They are read as `moca replay` reads them. Columns are recognised by name unless they are named:
labels `y`, or `y1, y2, ...`, or `y_...`; inputs `x` likewise, or none; `stream`, the series of a
row (without it a file is one series with the file's name); `time` (also `timestamp`, `datetime`,
`date`, `year`), the order of a series' rows (without it their order in the file); `changepoint`, 0
or 1, whether a regime starts. Without labels of such a name, the only other column of numbers is
the label, or one called `value` or `label`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from moca_client import series as client
from moca_client.series import ColumnRoles, SeriesError, Table, listed, named, numbered
from moca_client.times import Axis
from training.config import Section
from training.data.windows import Series
from training.errors import BadData

SUFFIXES = frozenset({".csv", ".tsv", ".parquet", ".pq"})
SWITCHES = {"0": False, "1": True, "false": False, "true": True}
MAX_CLASSES = 1000  # as in the service
ADVICE = (  # in place of that for a replay
    "; --y and --x name the columns to train on; leave the cell of a missing label empty; for text "
    "as an input, give a column of 0 and 1 for each of its values"
)

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
    roles: dict[Path, str] = {}
    for file in files(source.path):
        try:
            whole, own = _read(file, source, classes=classes, partial=partial)
        except OSError as error:
            raise BadData(f"{file} cannot be read: {error.strerror or error}") from error
        except SeriesError as error:
            text = str(error)
            if "is not a number" in text:
                text = text.partition("; ")[0] + ADVICE
            where = "" if text.startswith(str(file)) else f"{file}: "
            raise BadData(f"{where}{text}") from error
        roles[file] = f"labels {whole.y_names} and inputs {whole.x_names}"
        first = next(iter(roles))
        if roles[file] != roles[first]:
            raise BadData(f"{file} has {roles[file]}, {first} {roles[first]}")
        for one in own:
            if one.name in origin:
                raise BadData(f"stream {one.name!r} is in {origin[one.name]} and in {file}")
            origin[one.name] = file
        series += own
    labels = np.concatenate([one.y.numpy() for one in series])
    _check_labels(source.path, labels, whole.y_names, classes)
    return series


def files(path: Path) -> list[Path]:
    """The file, or those of a folder that can be read, by name; raises BadData."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
    if not files:
        raise BadData(f"{path} holds none of {', '.join(sorted(SUFFIXES))}")
    return files


def _read(
    file: Path, source: DataSource, *, classes: bool, partial: bool
) -> tuple[client.Series, list[Series]]:
    """All rows of a file, and its series; raises OSError or SeriesError."""
    table = client.read_table(file)
    taken = {*(source.y or ()), *(source.x or ())}
    stream = source.stream or named(table.columns, ("stream",), taken)
    changepoint = source.changepoint or named(table.columns, ("changepoint",), taken)
    for name in [*taken, *filter(None, (source.time, stream, changepoint))]:
        if name not in table.columns:
            raise SeriesError(f"{file} has no column {name!r}; it has {listed(table.columns)}")
    columns = {n: own for n, own in table.columns.items() if n not in (stream, changepoint)}
    x = list(_numbered(columns, "x") if source.x is None else source.x)
    y = list(source.y or _numbered((name for name in columns if name not in x), "y"))
    if twice := [name for name, count in Counter([*y, *x]).items() if count > 1]:
        raise SeriesError(f"column {twice[0]!r} is given twice as a label or an input")
    whole = client.series_of(
        table._replace(columns=columns), ColumnRoles(y or None, x, source.time)
    )
    if source.interval is not None and whole.axis is None:
        raise SeriesError(f"{file} has no time column for --interval; name it with --time")
    labels = np.array([label or [None] * len(whole.y_names) for label in whole.y], np.float64)
    _check_cells(table, whole.y_names, labels, classes=classes, partial=partial)
    inputs = None if whole.x is None else torch.tensor(whole.x, dtype=torch.float64)
    switches = None if changepoint is None else _switches(table, changepoint)
    series = []
    every = {file.stem: range(len(labels))} if stream is None else client.rows_by(table, stream)
    for name, places in every.items():
        elapsed = None
        rows = np.array(places)
        if whole.axis is not None:
            rows, steps = _in_order(table, whole.axis, rows)
            if source.interval is not None:
                elapsed = torch.tensor([1.0, *steps / source.interval], dtype=torch.float64)
        series.append(
            Series(
                None if inputs is None else inputs[rows],
                torch.from_numpy(labels[rows]),
                None if switches is None else switches[rows],
                elapsed,
                name,
            )
        )
    return whole, series


def _numbered(columns: Iterable[str], letter: str) -> list[str]:
    """Columns `letter` or `letter1, letter2, ...` by number; without any, all `letter_...`."""
    names = list(columns)
    begun = [name for name in names if name.lower().startswith(f"{letter}_")]
    return numbered(names, letter) or begun


def _check_cells(
    table: Table, names: Sequence[str], y: Floats, *, classes: bool, partial: bool
) -> None:
    """Raise SeriesError at the first label (N, columns) that cannot be learned from."""
    missing = np.isnan(y)
    if not partial:
        for row, column in np.argwhere(missing & ~missing.all(1, keepdims=True)):
            raise SeriesError(
                f"{table.where(row, names[column])}: empty while other labels of the row are not; "
                "fill it, empty the whole row, or use --model fleet"
            )
    if classes:
        for row, column in np.argwhere(~missing & ((y < 0) | (y != np.floor(y)))):
            where = table.where(row, names[column])
            raise SeriesError(f"{where}: {y[row, column]:g} is not a class 0, 1, 2, ...")


def _switches(table: Table, column: str) -> torch.Tensor:
    cells = [str(cell) for cell in table.columns[column]]
    known = [SWITCHES.get(cell.strip().lower().removesuffix(".0")) for cell in cells]
    if None in known:
        row = known.index(None)
        raise SeriesError(f"{table.where(row, column)}: {cells[row]!r} is not 0 or 1")
    return torch.tensor(known)


def _in_order(table: Table, axis: Axis, rows: Rows) -> tuple[Rows, Floats]:
    """Rows by time, and seconds between them, or so many of plain numbers; all times differ."""
    values = np.array([axis.value[row] for row in rows])
    if axis.kind == "datetime" and axis.rfc3339 is not None:  # of days the digits do not suffice
        values = np.array([axis.rfc3339[row][:-1] for row in rows], "datetime64[us]")
    order = np.argsort(values, kind="stable")
    steps = np.diff(values[order])
    ordered: Rows = rows[order]
    if not steps.all():
        before, row = ordered[np.argmin(steps.astype(bool)) :][:2].tolist()
        raise SeriesError(
            f"{table.where(row, axis.name)}: {str(table.columns[axis.name][row])!r} is also the "
            f"time of row {before + 1} of the same stream; --by names the column of the streams"
        )
    return ordered, steps / np.timedelta64(1, "s") if steps.dtype.kind == "m" else steps


def _check_labels(path: Path, labels: Floats, names: Sequence[str], classes: bool) -> None:
    """Raise BadData where all labels (N, y_dim) together cannot be learned from."""
    missing = np.isnan(labels)
    present = labels[~missing]
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
