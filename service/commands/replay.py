"""`moca replay`: a file through a running service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from moca_client import DEFAULT_URL
from service.commands.common import fail, input_file, names, option
from service.commands.connection import ApiKey, GivenSettings, Url
from service.commands.connection import setting as read_setting


def replay(
    file: Annotated[Path, input_file("CSV or Parquet file, one observation per row.")],
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    stream: Annotated[str | None, option("Stream to post to.", default="the file's name")] = None,
    model: Annotated[str | None, option("Model.", default="the service's default")] = None,
    setting: GivenSettings = None,
    out: Annotated[
        Path, option("Folder for the results, or one .csv, .parquet or .png file.")
    ] = Path(),
    y: Annotated[
        str | None, option("Label columns, comma-separated.", default="y, y1, y2, ...")
    ] = None,
    x: Annotated[
        str | None, option("Input columns, comma-separated.", default="x, x1, x2, ...")
    ] = None,
    time: Annotated[
        str | None,
        option(
            "Time column.",
            default="time, timestamp, datetime, date, year, or the only one of times",
        ),
    ] = None,
    time_format: Annotated[
        str | None,
        option(
            "Form of its times, as `%d/%m/%Y %H:%M`.",
            metavar="FORMAT",
            default="as the column shows it",
        ),
    ] = None,
    by: Annotated[
        str | None,
        option("Column that names the stream of each row: all of them.", default="one stream"),
    ] = None,
    wide: Annotated[bool, option("Each label column is a stream: all of them.", "--wide")] = False,
    plots: Annotated[
        int,
        option(
            "With --by or --wide: pictures of so many streams, those with the largest "
            "changes; 0: no pictures.",
            min=0,
        ),
    ] = 5,
    batch: Annotated[int, option("Observations per request.", min=1)] = 500,
    belief: Annotated[
        bool, option("Of one stream: request the run-length belief (for the heat map).")
    ] = True,
    append: Annotated[bool, option("Append to an existing stream.", "--append")] = False,
    replace: Annotated[bool, option("Delete the stream first.", "--replace")] = False,
) -> None:
    """Replay a file through a running service; write the answers and a plot."""
    from moca_client.errors import ClientError
    from moca_client.replay import ReplayError, collecting_nothing, stream_name
    from moca_client.replay import replay as replay_streams
    from moca_client.series import (
        ColumnRoles,
        SeriesError,
        SeveralLabels,
        read_series,
        read_table,
        streams_by_column,
        streams_of,
    )

    if append and replace:
        fail("--append and --replace exclude each other")
    if sum((stream is not None, by is not None, wide)) > 1:
        fail("--stream, --by and --wide exclude each other: columns name the streams of the latter")
    many = wide or by is not None
    if many and out.suffix.lower() in {".csv", ".parquet", ".png"}:
        fail(f"--out: expected a folder with --by or --wide, got {out}")
    roles = ColumnRoles(names(y), names(x), time, time_format)
    settings = {"model": model} if model else {}
    try:
        with collecting_nothing():
            if by is not None:
                streams = streams_of(read_table(file), by, roles)
            elif wide:
                streams = streams_by_column(read_table(file), roles)
            else:
                streams = {stream or stream_name(file): read_series(file, roles)}
        replay_streams(
            file,
            streams,
            many=many,
            url=url,
            api_key=api_key,
            settings=settings | dict(read_setting(text) for text in setting or []),
            out=out,
            batch=batch,
            belief=belief,
            plots=plots,
            existing="append" if append else "replace" if replace else "refuse",
        )
    except SeveralLabels as error:
        hint = "" if by is not None else ", or each as a stream of its own by --wide"
        fail(f"{error} by --y{hint}", 1)
    except (ReplayError, SeriesError, ClientError, OSError) as error:
        fail(str(error), 1)
