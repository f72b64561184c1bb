"""Data frames in and out: pandas or polars, whichever the caller has. Neither is needed otherwise.

Needs narwhals: `pip install 'moca-client[frames]'`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple, TypedDict, cast

from moca_client import calls
from moca_client.calls import is_time_index, times_of
from moca_client.errors import ClientError, InvalidRequest, PartlyObserved, Problem
from moca_client.responses import (
    Answer,
    Changepoints,
    Event,
    HistoryPage,
    Recorded,
    StreamChange,
)
from moca_client.retry import Calls
from moca_client.series import ColumnRoles, Series, SeriesError, Table, series_of, streams_of
from moca_client.tables import Columns, columns_of

BACKENDS = ("pandas", "polars", "pyarrow")


def to_frame(
    rows: Iterable[Answer | Recorded | Event | HistoryPage | StreamChange]
    | HistoryPage
    | Changepoints,
    backend: str | None = None,
    kind: type | None = None,
) -> Any:
    """Return answers, history (a page, or all that `history` gives) or changes, a row each.

    backend: "pandas", "polars" or "pyarrow"; default: the first of them that is installed.
    kind: type of the rows, if there may be none. Vectors get numbered columns, as in the
    files that `moca replay` writes.
    """
    source: Any = rows.events if isinstance(rows, Changepoints) else rows
    try:
        items = [source] if isinstance(source, HistoryPage) else list(source)
    except TypeError:
        items = [source]
    kind_of_items = type(items[0]) if items else Event
    if any(isinstance(item, HistoryPage) for item in items):
        items = [observed for page in items for observed in page.observations]
        kind_of_items = Recorded
    elif not issubclass(kind_of_items, Answer | Recorded | Event | StreamChange):
        name = kind_of_items.__name__
        raise InvalidRequest(f"expected answers, history or changes, got {name}")
    return _frame(columns_of(items, kind or kind_of_items), backend)


def _frame(columns: Columns, backend: str | None) -> Any:
    import_narwhals()
    import narwhals as nw

    chosen = backend or next((name for name in BACKENDS if find_spec(name) is not None), None)
    if chosen is None:
        raise InvalidRequest(f"data frames need one of {', '.join(BACKENDS)}")
    if chosen not in BACKENDS:
        raise InvalidRequest(f"backend: expected one of {', '.join(BACKENDS)}, got {chosen!r}")
    return nw.from_dict(columns, backend=cast(Any, chosen)).to_native()


def import_narwhals() -> None:
    """Raise InvalidRequest, with what to install, where narwhals is missing."""
    if find_spec("narwhals") is None:
        raise InvalidRequest("data frames need narwhals: pip install 'moca-client[frames]'")


class Source(TypedDict, total=False):
    """Whose rows a frame has, which of its columns are what, and how many rows go in a request.

    stream: of all rows; or by: the column that names the stream of each.
    """

    stream: str | None
    by: str | None
    y: str | Sequence[str] | None
    x: str | Sequence[str] | None
    time: str | None
    batch: int


class _Posting(NamedTuple):
    """A frame that was read, and the series of each stream."""

    columns: Columns
    backend: str | None  # name of its library
    by: str | None
    batch: int
    series: Mapping[str, Series]


def observe_frame(
    frame: Any, unnamed: Sequence[Any], source: Source, detail: calls.Detail
) -> Calls[Any]:
    """Post a frame's rows; the answers come by columns, as a frame, in the order of the rows."""
    posting = _read(frame, *unnamed, **source)
    options = {"detail": detail, "format": "columns"}
    pages: list[tuple[Sequence[int], Columns]] = []
    for name, series in posting.series.items():
        for start in range(0, len(series.rows), posting.batch):
            own = series.observations(start, start + posting.batch)
            places = series.rows[start : start + len(own)]
            try:
                page: Columns = yield calls.observe(name, own, Columns, options)
                pages.append((places, page))
            except ClientError as error:
                applied = error.document.get("answers") if isinstance(error, Problem) else None
                page = applied or {}
                pages.append((places[: len(next(iter(page.values()), ()))], page))
                where = f"rows {start + 1} to {start + len(own)}"
                where = where if posting.by is None else f"{posting.by} {name!r}, {where} of it"
                count = sum(len(answered) for answered, _ in pages)
                text = f"{where}: {error}; {count} rows are known to be applied"
                raise PartlyObserved(text, _answers(posting, pages)) from error
    return _answers(posting, pages)


def _answers(posting: _Posting, pages: Sequence[tuple[Sequence[int], Columns]]) -> Any:
    """Return columns of all pages as a frame, in the order of their rows; None: a page has none."""
    order = sorted(row for rows, _ in pages for row in rows)
    place = {row: i for i, row in enumerate(order)}
    names = dict.fromkeys(name for _, page in pages for name in page)
    columns: Columns = {name: [None] * len(order) for name in names}
    for rows, page in pages:
        for name, values in page.items():
            for row, value in zip(rows, values, strict=True):
                columns[name][place[row]] = value
    if posting.by is not None:
        streams: Columns = {posting.by: [str(posting.columns[posting.by][row]) for row in order]}
        columns = streams | columns | streams  # the first column, in place of one of the answers'
    return _frame(columns, posting.backend)


def _read(
    frame: Any,
    *unnamed: Any,
    stream: str | None = None,
    by: str | None = None,
    y: str | Sequence[str] | None = None,
    x: str | Sequence[str] | None = None,
    time: str | None = None,
    batch: int = 1000,
) -> _Posting:
    """Read a frame as `Source` says; raises InvalidRequest.

    An index of times is its column of times, unless one is named.
    """
    if unnamed or (stream is None) == (by is None):
        both = stream is not None and by is not None
        name = repr(unnamed[0]) if unnamed and isinstance(unnamed[0], str) else "..."
        raise InvalidRequest(
            f"expected stream={name}, if all rows are of one stream, or by={name}, the column that "
            f"names the stream of each{'; got both' if both else ''}"
        )
    if batch < 1:
        raise InvalidRequest(f"batch: expected at least 1, got {batch}")
    columns, backend = read_frame(frame)
    by = None if by is None else str(by)
    time = None if time is None else str(time)
    index: Any = getattr(frame, "index", None)
    if time is None and is_time_index(index):
        time = str(index.name or "time")
        columns = {**columns, time: times_of(index)}
    roles = ColumnRoles(_names(y), _names(x), time)
    table = Table(columns)
    try:
        if by is None:
            series = {str(stream): series_of(table, roles)}
        else:
            series = streams_of(table, by, roles)
    except SeriesError as error:
        raise InvalidRequest(str(error)) from error
    return _Posting(columns, backend, by, batch, series)


def read_frame(frame: Any) -> tuple[dict[str, list[Any]], str | None]:
    """Return a frame's columns, and the name of its library."""
    import_narwhals()
    import narwhals as nw

    try:
        table = nw.from_native(frame, eager_only=True)
        columns = {str(name): _cells(table.get_column(name)) for name in table.columns}
    except TypeError as error:
        kind = type(frame).__name__
        raise InvalidRequest(f"expected a pandas or polars frame, got {kind}: {error}") from error
    except nw.exceptions.DuplicateError:
        raise InvalidRequest("expected a frame whose columns have names of their own") from None
    backend = table.implementation.value
    return columns, backend if backend in BACKENDS else None


def _names(columns: Any) -> list[str] | None:
    """Names of one column or several, also of an index or an array; numbers are read as text."""
    if columns is None:
        return None
    several = isinstance(columns, Iterable) and not isinstance(columns, str)
    return list(map(str, columns)) if several else [str(columns)]


def _cells(column: Any) -> list[Any]:
    """Values of a column; missing ones of any library are None."""
    missing = column.is_null().to_list()
    return [None if no else value for value, no in zip(column.to_list(), missing, strict=True)]
