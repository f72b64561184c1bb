"""Files: what a CSV file has for streams, before any of it is posted."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from moca_client.responses import FileStream, FileStreams
from moca_client.series import (
    Series,
    SeriesError,
    Table,
    named,
    notices_of,
    read_csv,
    streams_by_column,
    streams_of,
)
from service.api import openapi
from service.api.http import context_of, json_response, read_kind
from service.api.parsing.bodies import CSV, misfit
from service.api.routes.calls import Calls
from service.schema.observations import STREAM_CHARACTERS, STREAM_ID_RULE, is_stream
from service.schema.queries import FileQuery
from service.tasks import apart

# A file of more is for `moca replay`. A cell takes two bytes of it, and 140 of memory: 56 MB.
MOST_ROWS = 50_000
MOST_CELLS = 400_000
MOST_COLUMNS = 1_000
MOST_STREAMS = 50
_not_of_ids = re.compile(f"[^{STREAM_CHARACTERS}]+")
calls = Calls("observations")


@calls.declare("POST", "/v1/files", FileStreams, body=openapi.CSV_BODY)
async def read_file(request: Request, query: Annotated[FileQuery, Query()]) -> Response:
    """Read a CSV file as observations of streams. Nothing is posted.

    Each column of numbers becomes the stream `NAME.COLUMN`; with a column `stream`, each id in it
    becomes one. Cells, times and the columns of labels and inputs are read as `moca replay` does.
    """
    body = await read_kind(request, CSV)
    read = partial(streams_in, body, query.name)
    return json_response(await apart(context_of(request).thread, read))


def streams_in(content: bytes, name: str) -> FileStreams:
    """Return the streams of a CSV file that is called `name`; raises InvalidField."""
    # Old ends of lines are one byte, those of Windows two.
    rows = max(content.count(b"\n"), content.count(b"\r"))
    _check("rows", rows, MOST_ROWS + 1)  # names first
    _check("cells", rows + sum(map(content.count, (b",", b";", b"\t"))), MOST_CELLS)
    try:
        table = read_csv(content, "the file")
        _check("columns", len(table.columns), MOST_COLUMNS)
        series = _series(table, name)
    except SeriesError as error:
        raise misfit(str(error)) from None
    _check("streams", len(series), MOST_STREAMS)
    # Inputs are answered with each of the streams, though a file has them once.
    columns = [len(one.y) * (len(one.y_names) + len(one.x_names)) for one in series.values()]
    _check("numbers", sum(columns), MOST_CELLS)
    for stream in series:
        if not is_stream(stream):
            raise misfit(f"stream {stream!r}: expected {STREAM_ID_RULE}")
    streams = {}
    for stream, one in series.items():
        labels = list(map(one.label, range(len(one.y))))
        streams[stream] = FileStream(labels, one.x, one.axis and one.axis.rfc3339)
    return FileStreams(streams, notices_of(series.values()))


def _check(unit: str, count: int, most: int) -> None:
    if count > most:
        raise misfit(f"expected at most {most:,} {unit}, got {count:,}: use `moca replay`")


def _series(table: Table, name: str) -> dict[str, Series]:
    by = named(table.columns, ("stream",), ())
    if by is not None:
        return streams_of(table, by)
    columns = streams_by_column(table)
    series = {_not_of_ids.sub("-", f"{name}.{column}"): one for column, one in columns.items()}
    if len(series) < len(columns):
        raise misfit("two columns would be one stream: rename one, in letters and digits")
    return series
