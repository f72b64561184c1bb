"""Data frames in and out: pandas or polars, whichever the caller has. Neither is needed otherwise.

Needs narwhals: `pip install 'moca-client[frames]'`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, TypeVar, cast

from moca_client import calls
from moca_client.errors import ClientError, InvalidRequest, PartlyObserved
from moca_client.plans import Calls
from moca_client.responses import (
    Answer,
    Changepoints,
    Event,
    ExplainedEvent,
    HistoryPage,
    Recorded,
    StreamChange,
)
from moca_client.series import Series, SeriesError, series_of, streams_of
from moca_client.tables import Columns, columns_of

BACKENDS = ("pandas", "polars", "pyarrow")
T = TypeVar("T")


class Answers(list[Answer]):
    """Answers in order. `backend` is the library of the frame that was observed.

    by: its column with the names of the streams; None: it was of one stream.
    """

    backend: str | None = None
    by: str | None = None

    def to_frame(self, backend: str | None = None) -> Any:
        """Return a row for each answer, in the library of the frame that was observed."""
        columns = columns_of(self, Answer)
        if self.by is not None:
            names: Columns = {self.by: [answer.stream for answer in self]}
            columns = names | columns | names  # the first column, in place of one of the answers'
        return _frame(columns, backend or self.backend)


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
    items, kind_of_rows = _rows(rows)
    return _frame(columns_of(items, kind or kind_of_rows), backend)


def _frame(columns: Columns, backend: str | None) -> Any:
    import_narwhals()
    import narwhals as nw

    chosen = backend or next((name for name in BACKENDS if find_spec(name) is not None), None)
    if chosen is None:
        raise InvalidRequest(f"data frames need one of {', '.join(BACKENDS)}")
    if chosen not in BACKENDS:
        raise InvalidRequest(f"backend: expected one of {', '.join(BACKENDS)}, got {chosen!r}")
    return nw.from_dict(columns, backend=cast(Any, chosen)).to_native()


def _rows(source: Any) -> tuple[list[Any], type]:
    """Return the items to make rows of, and their type."""
    if isinstance(source, Changepoints):
        return source.events, ExplainedEvent
    if isinstance(source, HistoryPage):
        source = [source]
    try:
        rows = list(source)
    except TypeError:
        rows = [source]
    if any(isinstance(row, HistoryPage) for row in rows):
        return [observed for page in rows for observed in page.observations], Recorded
    kind = type(rows[0]) if rows else Event
    if not issubclass(kind, Answer | Recorded | Event | StreamChange):
        raise InvalidRequest(f"expected answers, history or changes, got {kind.__name__}")
    return rows, kind


def import_narwhals() -> None:
    """Raise InvalidRequest, with what to install, where narwhals is missing."""
    if find_spec("narwhals") is None:
        raise InvalidRequest("data frames need narwhals: pip install 'moca-client[frames]'")


def observe_frame(
    frame: Any,
    stream: str,
    y: str | Sequence[str] | None,
    x: str | Sequence[str] | None,
    time: str | None,
    belief: bool,
    batch: int,
) -> Calls[Answers]:
    """Post a frame's rows in order, `batch` in a request."""
    if batch < 1:
        raise InvalidRequest(f"batch: expected at least 1, got {batch}")
    columns, backend = read_frame(frame)
    series = _read(series_of, columns, _names(y), _names(x), time)
    streams = {stream: (range(len(series.y)), series)}
    return (yield from _observed(streams, None, backend, belief, batch))


def observe_streams(
    frame: Any,
    by: str,
    y: str | Sequence[str] | None,
    x: str | Sequence[str] | None,
    time: str | None,
    belief: bool,
    batch: int,
) -> Calls[Answers]:
    """Post the rows of a frame of many streams, those of each in order; answers as its rows are."""
    if batch < 1:
        raise InvalidRequest(f"batch: expected at least 1, got {batch}")
    columns, backend = read_frame(frame)
    streams = _read(streams_of, columns, by, _names(y), _names(x), time)
    return (yield from _observed(streams, by, backend, belief, batch))


def _observed(
    streams: Mapping[str, tuple[Sequence[int], Series]],
    by: str | None,
    backend: str | None,
    belief: bool,
    batch: int,
) -> Calls[Answers]:
    """Post the series of streams, with their rows in the frame; answers in the order of the rows.

    by, backend: as of `Answers`.
    """
    answers: dict[int, Answer] = {}

    def in_order() -> Answers:
        observed = Answers(answers[row] for row in sorted(answers))
        observed.backend = backend
        observed.by = by
        return observed

    for name, (rows, series) in streams.items():
        for start in range(0, len(rows), batch):
            own = series.observations(start, start + batch)
            places = rows[start : start + batch]
            try:
                posted = yield calls.observe_list(name, own, calls.AnswerOptions(belief), None)
            except ClientError as error:
                answers |= dict(zip(places, getattr(error, "answers", []), strict=False))
                where = f"rows {start + 1} to {start + len(own)}"
                where = where if by is None else f"{by} {name!r}, {where} of it"
                text = f"{where}: {error}; {len(answers)} rows are known to be applied"
                raise PartlyObserved(text, in_order()) from error
            answers |= dict(zip(places, posted, strict=True))
    return in_order()


def read_frame(frame: Any) -> tuple[dict[str, list[Any]], str | None]:
    """Return a frame's columns, and the name of its library."""
    import_narwhals()
    import narwhals as nw

    try:
        table = nw.from_native(frame, eager_only=True)
    except TypeError as error:
        kind = type(frame).__name__
        raise InvalidRequest(f"expected a pandas or polars frame, got {kind}: {error}") from error
    columns = {str(name): _cells(table[name]) for name in table.columns}
    backend = table.implementation.value
    return columns, backend if backend in BACKENDS else None


def _read(read: Callable[..., T], *arguments: Any) -> T:
    """Read series; what is wrong with a frame is an invalid request."""
    try:
        return read(*arguments)
    except SeriesError as error:
        raise InvalidRequest(str(error)) from error


def _cells(column: Any) -> list[Any]:
    """Values of a column; missing ones of any library are None."""
    missing = column.is_null().to_list()
    return [None if no else value for value, no in zip(column.to_list(), missing, strict=True)]


def _names(columns: str | Sequence[str] | None) -> list[str] | None:
    return None if columns is None else [columns] if isinstance(columns, str) else list(columns)
