"""Data frames in and out: pandas or polars, whichever the caller has. Neither is needed otherwise.

Needs narwhals: `pip install 'moca-client[frames]'`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any, cast

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
from moca_client.series import Series, SeriesError, series_of
from moca_client.tables import columns_of

BACKENDS = ("pandas", "polars", "pyarrow")


class Answers(list[Answer]):
    """Answers in order. `backend` is the library of the frame that was observed."""

    backend: str | None = None

    def to_frame(self, backend: str | None = None) -> Any:
        """Return a row for each answer, in the library of the frame that was observed."""
        return to_frame(self, backend or self.backend, Answer)


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
    import_narwhals()
    import narwhals as nw

    chosen = backend or next((name for name in BACKENDS if find_spec(name) is not None), None)
    if chosen is None:
        raise InvalidRequest(f"data frames need one of {', '.join(BACKENDS)}")
    if chosen not in BACKENDS:
        raise InvalidRequest(f"backend: expected one of {', '.join(BACKENDS)}, got {chosen!r}")
    items, kind_of_rows = _rows(rows)
    columns = columns_of(items, kind or kind_of_rows)
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
    series, backend = read_frame(frame, y, x, time)
    answers = Answers()
    answers.backend = backend
    for start in range(0, len(series.y), batch):
        rows = series.observations(start, start + batch)
        try:
            answers += yield calls.observe_list(stream, rows, calls.AnswerOptions(belief), None)
        except ClientError as error:
            answers += getattr(error, "answers", [])
            where = f"rows {start + 1} to {start + len(rows)}"
            text = f"{where}: {error}; {len(answers)} rows are known to be applied"
            raise PartlyObserved(text, answers) from error
    return answers


def read_frame(
    frame: Any, y: str | Sequence[str] | None, x: str | Sequence[str] | None, time: str | None
) -> tuple[Series, str | None]:
    """Return a frame's series, and the name of its library."""
    import_narwhals()
    import narwhals as nw

    try:
        table = nw.from_native(frame, eager_only=True)
    except TypeError as error:
        kind = type(frame).__name__
        raise InvalidRequest(f"expected a pandas or polars frame, got {kind}: {error}") from error
    columns = {str(name): _cells(table[name]) for name in table.columns}
    try:
        series = series_of(columns, _names(y), _names(x), time)
    except SeriesError as error:
        raise InvalidRequest(str(error)) from error
    backend = table.implementation.value
    return series, backend if backend in BACKENDS else None


def _cells(column: Any) -> list[Any]:
    """Values of a column; missing ones of any library are None."""
    missing = column.is_null().to_list()
    return [None if no else value for value, no in zip(column.to_list(), missing, strict=True)]


def _names(columns: str | Sequence[str] | None) -> list[str] | None:
    return None if columns is None else [columns] if isinstance(columns, str) else list(columns)
