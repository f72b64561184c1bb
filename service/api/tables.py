"""Observations and answers by columns: JSON objects of columns, and Arrow IPC streams.

Columns of answers are named as in the tables of `moca replay`; those of vectors are numbered.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from moca_client.responses import Answer
from moca_client.series import numbered
from moca_client.tables import Columns, columns_of
from service.api.parsing.bodies import misfit
from service.problems import TYPE_PREFIX, MalformedBody, NotInstalled

STREAM = "stream"  # column with the names of streams
LONGEST_TEXT = 1000  # characters of a cell: more than a name or a time has
BATCHES = 20  # of a table with dictionaries: with each batch the whole dictionary is looked at
# Numbers of the fields that are read of a message: see Message.fbs of the Arrow format.
HEADER = 2
DATA = 1  # of a dictionary
LENGTH = 0
COMPRESSION = 3
_encode = msgspec.json.Encoder().encode
Document = Mapping[str, Any]  # a problem document


# --- answers --------------------------------------------------------------------------------------


def answer_columns(answers: Sequence[Answer], full: bool) -> Columns:
    """Lay out answers, with details where `full`; those of what is rarely so only where it is."""
    rare: Columns = {
        "duplicate": [answer.duplicate for answer in answers],
        "provisional": [answer.provisional for answer in answers],
    }
    rare = {name: cells for name, cells in rare.items() if any(cells)}
    return columns_of(answers, Answer, full) | rare


def item_columns(items: Sequence[Answer | Document], full: bool) -> Columns:
    """Lay out answers to items of many streams, and why others were refused.

    full: whether answers have details.
    """
    streams: list[str | None] = []
    statuses: list[int] = []
    problems: list[tuple[str, str] | None] = []
    answers: list[Answer] = []
    for item in items:
        if isinstance(item, Answer):
            streams.append(item.stream)
            statuses.append(200)
            problems.append(None)
            answers.append(item)
            continue
        streams.append(item.get("stream"))
        statuses.append(item["status"])
        problems.append((item["type"].removeprefix(TYPE_PREFIX), item.get("detail", "")))
        nothing: Any = None  # a cell that has no value, whatever its type
        blank = {"warming_up": nothing, "duplicate": nothing, "provisional": nothing}
        answers.append(Answer("", nothing, "", **blank))
    columns: Columns = {STREAM: streams, "status": statuses}
    if any(problems):
        columns["problem"] = [problem and problem[0] for problem in problems]
        columns["detail"] = [problem and problem[1] for problem in problems]
    return columns | answer_columns(answers, full)


def rendered(columns: Columns, form: str) -> bytes:
    """Return columns as JSON, or as an Arrow IPC stream where `form` is `arrow`."""
    if form != "arrow":
        return _encode(columns)
    pa = pyarrow()
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


# --- observations ---------------------------------------------------------------------------------


def forms_of(body: bytes, names: Collection[str], most_rows: int, most_columns: int) -> bytes:
    """Return the rows of an Arrow body as a JSON list of observations.

    A cell may take no byte of the body, and a hundred in memory: so rows and columns are limited.
    names: of columns beside those of labels and inputs, `y`, `x` or `y1, y2, ...`, `x1, x2, ...`.
    Missing cells, nan among them, are left out. Raises MalformedBody, InvalidField, NotInstalled.
    """
    columns = _read(body, names, most_rows, most_columns)
    vectors = {letter: numbered(columns, letter) for letter in ("y", "x")}
    rows: list[dict[str, Any]] = [{} for _ in range(len(next(iter(columns.values()), [])))]
    for name in names:
        for row, cell in zip(rows, columns.get(name, ()), strict=False):
            if cell is not None:
                row[name] = cell
    for letter, own in vectors.items():
        values = zip(*(columns[name] for name in own), strict=True)
        for row, cells in zip(rows, values, strict=False):  # none where there is no such column
            row[letter] = list(cells) if len(own) > 1 or letter == "x" else cells[0]
    return _encode(rows)


def _read(body: bytes, names: Collection[str], most_rows: int, most_columns: int) -> Columns:
    """Read a table: columns of numbers, and those of `names`; nan and null are None."""
    pa = pyarrow()
    try:
        _check_messages(pa, body, most_rows)
        table = pa.ipc.open_stream(body).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        raise MalformedBody(f"body: invalid Arrow stream: {error}") from None
    if table.num_columns > most_columns:
        raise misfit(f"expected at most {most_columns} columns, got {table.num_columns}")
    known = {*numbered(table.column_names, "y"), *numbered(table.column_names, "x"), *names}
    if unknown := [name for name in table.column_names if name not in known]:
        listed = ", ".join(("y or y1, y2, ...", "x or x1, x2, ...", *names))
        raise misfit(f"unknown column {unknown[0]!r}; expected {listed}")
    columns: Columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if name in columns:
            raise misfit(f"column {name!r} is there twice")
        _check_kind(pa, name, column, only_numbers=name not in names)
        columns[name] = _cells(pa, name, column)
    return columns


def _check_messages(pa: Any, body: bytes, most: int) -> None:
    """Look at messages before they are unpacked, which may take a thousand times their size.

    Raises InvalidField for too many rows or batches, and ValueError for what cannot be looked at.
    """
    rows = 0
    batches = 0
    dictionaries = 0
    for message in pa.ipc.MessageReader.open_stream(body):
        if message.type == "dictionary":
            dictionaries += 1
            if _count(message) > len(body):  # of its texts each takes a place in the body
                raise ValueError(f"a dictionary of {_count(message)} values")
        elif message.type == "record batch":
            batches += 1
            rows += _count(message)
            if rows > most:
                raise misfit(f"expected at most {most} observations per request, got {rows}")
    if dictionaries and batches > BATCHES:
        raise misfit(f"expected at most {BATCHES} batches with dictionaries, got {batches}")


def _count(message: Any) -> int:
    """Number of rows of a record batch, or of values of a dictionary; their buffers are plain."""
    metadata = message.metadata.to_pybytes()
    batch = _table_in(metadata, _target(metadata, 0), HEADER)
    if message.type == "dictionary":
        batch = _table_in(metadata, batch, DATA)
    if _field(metadata, batch, COMPRESSION) is not None:
        raise ValueError("expected buffers without compression (the whole body may be gzip)")
    length = _field(metadata, batch, LENGTH)
    count: int = 0 if length is None else struct.unpack_from("<q", metadata, length)[0]
    if count < 0:
        raise ValueError(f"a {message.type} of {count} values")
    return count


def _target(metadata: bytes, at: int) -> int:
    """Place that an offset leads to, which is relative to its own."""
    offset: int = struct.unpack_from("<I", metadata, at)[0]
    return at + offset


def _field(metadata: bytes, table: int, number: int) -> int | None:
    """Place of a field of a table; None: it is left out."""
    back: int = struct.unpack_from("<i", metadata, table)[0]
    size: int = struct.unpack_from("<H", metadata, table - back)[0]
    at = 4 + 2 * number  # after the sizes of both tables
    if at >= size:
        return None
    offset: int = struct.unpack_from("<H", metadata, table - back + at)[0]
    return table + offset if offset else None


def _table_in(metadata: bytes, table: int, number: int) -> int:
    """Place of the table that a field of another one is."""
    field = _field(metadata, table, number)
    if field is None:
        raise ValueError("a message without its table")
    return _target(metadata, field)


def _cells(pa: Any, name: str, column: Any) -> list[Any]:
    """Numbers, times or text of a column; missing ones, nan among them, are None."""
    kind = column.type
    if pa.types.is_floating(kind):
        column = pa.compute.if_else(pa.compute.is_nan(column), None, column)
        if pa.compute.any(pa.compute.is_inf(column)).as_py():
            raise misfit(f"column {name!r}: expected finite numbers")
    try:
        if pa.types.is_temporal(kind):
            time = pa.timestamp("us", getattr(kind, "tz", None) or "UTC")
            options = pa.compute.CastOptions(time, allow_time_truncate=True)
            column = column.cast(options=options)
        cells: list[Any] = column.to_pylist()
    except KeyError as error:  # pyarrow asks pytz, where that is installed
        raise misfit(f"column {name!r}: expected a time zone that is known, got {error}") from None
    except (ValueError, OverflowError) as error:  # a time after the year 9999, or an unknown zone
        raise misfit(f"column {name!r}: {error}") from None
    return cells


def _check_kind(pa: Any, name: str, column: Any, only_numbers: bool) -> None:
    """Refuse what is nested or long; of a dictionary each text is looked at once."""
    kind = column.type
    types = pa.types
    if types.is_floating(kind) or types.is_integer(kind) or types.is_null(kind):
        return
    if only_numbers:  # of so many columns texts would be too long
        raise misfit(f"column {name!r}: expected numbers, got {kind}")
    if types.is_timestamp(kind) or types.is_date(kind):
        return
    encoded = types.is_dictionary(kind)
    kind = kind.value_type if encoded else kind
    if not any(
        fits(kind) for fits in (types.is_string, types.is_large_string, types.is_string_view)
    ):
        raise misfit(f"column {name!r}: expected numbers, times or text, got {kind}")
    for part in column.chunks:  # which pyarrow has not of every type
        longest = _longest(pa, part.dictionary if encoded else part)
        if longest > LONGEST_TEXT:
            detail = f"expected at most {LONGEST_TEXT} characters in a cell, got {longest}"
            raise misfit(f"column {name!r}: {detail}")


def _longest(pa: Any, texts: Any) -> int:
    """Characters of the longest text; bytes of it, where texts are views."""
    if not pa.types.is_string_view(texts.type):
        return pa.compute.max(pa.compute.utf8_length(texts)).as_py() or 0
    # A view begins with the length of what it is of, which pyarrow does not tell.
    views = np.frombuffer(texts.buffers()[1], np.int32).reshape(-1, 4)
    own = views[texts.offset : texts.offset + len(texts), 0]
    return int(own[texts.is_valid().to_numpy(zero_copy_only=False)].max(initial=0))


def pyarrow() -> Any:
    """Return the module; raises NotInstalled, with what to install, where it is missing."""
    try:
        import pyarrow as pa
        import pyarrow.compute
        import pyarrow.ipc
    except ImportError:
        detail = "Arrow needs pyarrow, which is not installed: pip install 'moca-service[parquet]'"
        raise NotInstalled(detail) from None
    return pa
