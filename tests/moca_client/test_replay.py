"""Reading series, and whole replays to a client that is made up."""

import csv
import io
import math
import threading
from contextlib import nullcontext
from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pytest
from pyarrow import parquet
from rich.console import Console

from moca_client import times
from moca_client.errors import Unavailable, problem_of
from moca_client.replay import (
    SEASONS_FROM,
    ReplayError,
    may_recur,
    stream_name,
    wait_ready,
    write_table,
)
from moca_client.replay import replay as replay_streams
from moca_client.replayed import Replayed
from moca_client.responses import (
    Answer,
    Changepoints,
    Event,
    Hindsight,
    Season,
    Segment,
    StreamSummary,
)
from moca_client.series import (
    ColumnRoles,
    Series,
    SeriesError,
    notices_of,
    read_csv,
    read_series,
    read_table,
    series_of,
    streams_by_column,
    streams_of,
)
from moca_client.times import BadTime, time_axis
from model_core import stream_settings
from tests.moca_client.test_plots import row
from tests.waiting import PATIENCE_S


def written(tmp_path, text, name="series.csv"):
    file = tmp_path / name
    file.write_text(text)
    return file


def quiet(width=80):
    return Console(file=io.StringIO(), width=width)


# --- reading --------------------------------------------------------------------------------


def test_columns_of_a_file(tmp_path):
    def read(text, *columns):
        return read_series(written(tmp_path, text), ColumnRoles(*columns))

    series = read("time,x2,x1,y\n2024-01-01,2,1,5\n2024-01-02,4,3,\n")
    assert series.x_names == ["x1", "x2"]
    assert series.observations(0, 9) == [
        {"y": 5.0, "x": [1.0, 2.0], "time": "2024-01-01T00:00:00Z"},
        {"y": None, "x": [3.0, 4.0], "time": "2024-01-02T00:00:00Z"},
    ]
    names = [f"y{k}" for k in range(10, 0, -1)]
    text = ",".join(names) + "\n" + ",".join(n[1:] for n in names) + "\n"
    assert read(text).y == [[float(k) for k in range(1, 11)]]
    series = read("# annual flow\nyear,station,flow\n1871,Aswan,1120\n")
    assert series.observations(0, 1) == [{"y": 1120.0, "time": "1871-01-01T00:00:00Z"}]
    assert read("1.5\n2.5\n").y == [[1.5], [2.5]]
    assert read("\ufeffy;note\n1;a, b\nNA;c\n").y == [[1.0], None]
    series = read("y1,y2\n1,\n,NaN\n3,4\nnull,5\n")
    assert series.y == [[1.0, None], None, [3.0, 4.0], [None, 5.0]]
    series = read("when,load,temperature,y\n2020,7,8,9\n", ["load"], ["temperature"], "when")
    assert (series.y, series.x, series.axis.label(0)) == ([[7.0]], [[8.0]], "2020")
    file = tmp_path / "series.parquet"
    parquet.write_table(pa.table({"time": [0.5, 1.5], "y": [1, None], "x": [math.pi, 0.0]}), file)
    series = read_series(file)
    assert (series.y, series.x) == ([[1.0], None], [[math.pi], [0.0]])
    assert series.axis.rfc3339 is None  # plain numbers are no points in time
    streams = streams_of(read_table(written(tmp_path, "pump,value,note\na,1,on\nb,3,\n")), "pump")
    assert {name: series.y for name, series in streams.items()} == {"a": [[1.0]], "b": [[3.0]]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("host,y\na,1\nb,2\na,abc\n", r"^row 3 \(line 4\), column 'y': 'abc' is not a number"),
        ("host,y\na,1\nb,\nb,\n", r"series.csv, host 'b': label 'y' is empty in every row"),
        ("host,y,time\na,1,2020-01-01\nb,2,\n", r"^row 2 \(line 3\), column 'time': empty"),
    ],
)
def test_what_is_refused_of_many_streams_is_named_by_its_place_in_the_file(tmp_path, text, message):
    with pytest.raises(SeriesError, match=message):
        streams_of(read_table(written(tmp_path, text)), "host")


def test_each_column_of_a_wide_file_needs_a_label(tmp_path):
    table = read_table(written(tmp_path, "a,b\n1,\n2,\n"))
    with pytest.raises(SeriesError, match="label 'b' is empty in every row"):
        streams_by_column(table, ColumnRoles(y=["a", "b"]))


def test_what_is_refused_is_named(tmp_path):
    for text, named in (
        ("y\n1\nabc\n", r"row 2 \(line 3\), column 'y': 'abc'"),
        ("y\n1\n-inf\n", r"row 2 \(line 3\), column 'y': '-inf'"),
        ("x,y\n1,1\n,2\n", r"row 2 \(line 3\), column 'x'"),
        ("y1,y2\n,\nna,null\n", "'y1', 'y2'"),
        ("y1,y2,y3\n1,,2\n,,3\n", "'y2'"),
        ("time,y\n2020-01-01,1\nsoon,2\n", r"row 2 \(line 3\), column 'time': 'soon'"),
        ("time,y\n,1\n", r"row 1 \(line 2\), column 'time'"),
        ("y,z\n1,2\n3\n", r"row 2 \(line 3\)"),
        ("a,b\n1,2\n", "'a', 'b'"),
        ("a,b\nu,v\n", "numeric"),
        ("y,y\n1,2\n", "duplicate"),
        ("y,z\n,1\n,2\n", "'y'"),
        ("y\n", "no rows"),
        ("", "no rows"),
    ):
        with pytest.raises(SeriesError, match=named):
            read_series(written(tmp_path, text))
    for name in ("a.parquet", "a.csv"):
        (tmp_path / name).write_bytes(b"\xff\xfe\x00\x01" * 20)
        with pytest.raises(SeriesError, match="not a"):
            read_series(tmp_path / name)
    with pytest.raises(SeriesError, match="'flow'"):
        read_series(written(tmp_path, "y\n1\n"), ColumnRoles(["flow"]))


def test_rows_of_several_streams_are_not_one_stream(tmp_path):
    file = written(tmp_path, "stream,y\na,1\nb,2\na,3\n")
    with pytest.raises(SeriesError, match="column 'stream' names 2 streams, .* --by stream"):
        read_series(file)
    assert read_series(written(tmp_path, "stream,y\na,1\na,3\n")).y == [[1.0], [3.0]]
    numbers = written(tmp_path, "stream,y\n1,1\n2,3\n")
    assert read_series(numbers, ColumnRoles(["stream", "y"])).y == [[1.0, 1.0], [2.0, 3.0]]


def test_a_column_of_text_that_may_name_several_series_is_noticed(tmp_path):
    def file(rows, names="ab"):
        lines = [f"{name},{row}" for row in range(rows) for name in names]
        return written(tmp_path, "\n".join(["host,y", *lines, ",1"]))

    (notice,) = notices_of([read_series(file(20))])
    assert notice.startswith("column 'host' is left out: if its 2 values name series")
    assert notice.endswith("use --by host")
    for other in (file(19), file(40, "a"), file(20, "12")):
        assert notices_of([read_series(other, ColumnRoles(["y"]))]) == []
    assert notices_of([read_series(file(20, "12"), ColumnRoles(["host"]))]) == []
    named = streams_of(read_table(written(tmp_path, "host,y\n" + "a,1\nb,2\n" * 20)), "host")
    assert notices_of(named.values()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no rows$"),
        ("y\n", "has no rows$"),
        (
            "y\n1\n-inf\n",
            r"no numeric column; its columns: 'y'; row 2 \(line 3\), column 'y': '-inf'",
        ),
        ("a,b,c,d\nu,v,w,x\n", "column 'c': 'w' is not a number$"),
    ],
)
def test_why_no_column_is_a_stream_is_said(tmp_path, text, message):
    with pytest.raises(SeriesError, match=message):
        streams_by_column(read_table(written(tmp_path, text)))


@pytest.mark.parametrize(
    ("cells", "shown"),
    [
        (["1871", "1872"], ["1871", "1872"]),
        (["0.5", "2"], ["0.5", "2"]),
        (["2026-03-01", "2026-03-01T09:30"], ["2026-03-01", "2026-03-01 09:30"]),
        (["2026-03-01T09:30:05"], ["2026-03-01 09:30:05"]),
    ],
)
def test_times_are_shown_as_short_as_they_go(cells, shown):
    axis = time_axis(cells, "time")
    assert [axis.label(row) for row in range(len(cells))] == shown


def test_streams_of_a_file_have_their_own_inputs(tmp_path):
    table = read_table(written(tmp_path, "pump,x,y\na,1,5\nb,2,6\na,3,7\n"))
    streams = streams_of(table, "pump")
    assert {name: series.x for name, series in streams.items()} == {"a": [[1], [3]], "b": [[2]]}


@pytest.mark.parametrize("encoding", ["utf-16", "windows-1252"])
def test_another_encoding_is_named_as_it_is_to_be_converted(tmp_path, encoding):
    file = tmp_path / "it.csv"
    file.write_bytes("y\n1\n# Größe\n".encode(encoding))
    with pytest.raises(SeriesError, match=f"iconv -f {encoding.upper()} -t UTF-8"):
        read_series(file)


def test_times():
    for cells, kind, sent in (
        (["1871", "1872"], "year", ["1871-01-01T00:00:00Z", "1872-01-01T00:00:00Z"]),
        (["2024-03", "2024-04"], "datetime", ["2024-03-01T00:00:00Z", "2024-04-01T00:00:00Z"]),
        (["2024-03-01 10:30"], "datetime", ["2024-03-01T10:30:00Z"]),
        (["2024-03-01T10:30:00+02:00"], "datetime", ["2024-03-01T08:30:00Z"]),
        (["1700000000"], "datetime", ["2023-11-14T22:13:20Z"]),
        (["1700000000500"], "datetime", ["2023-11-14T22:13:20.500000Z"]),
        (["0", "1", "2"], "number", None),
    ):
        axis = time_axis(cells, "time")
        assert (axis.kind, axis.rfc3339) == (kind, sent), cells


def test_dates_as_people_write_them():
    new_year = "2024-12-31T00:00:00Z"
    for cells, sent in (
        (["31.12.2024"], [new_year]),
        (["31.12.24"], [new_year]),
        (["01.02.2024"], ["2024-02-01T00:00:00Z"]),  # between points the day is first
        (["2024/12/31"], [new_year]),
        (["2024.12.31"], [new_year]),
        (["20241231"], [new_year]),
        (["01/02/2024", "31/12/2024"], ["2024-02-01T00:00:00Z", new_year]),
        (["1/2/2024", "12/31/2024"], ["2024-01-02T00:00:00Z", new_year]),
        (["31.12.2024 08:05"], ["2024-12-31T08:05:00Z"]),
        (["31-12-99"], ["1999-12-31T00:00:00Z"]),
        (["31-12-2024, 08:05:09,25"], ["2024-12-31T08:05:09.250000Z"]),
        (["12/31/2024 12:30 AM", "12/31/2024 12:30 pm"],
         ["2024-12-31T00:30:00Z", "2024-12-31T12:30:00Z"]),
        (["2024-12-31 10:05", "2024-12-31 9:05"], ["2024-12-31T10:05:00Z", "2024-12-31T09:05:00Z"]),
        (["1700000000500000"], ["2023-11-14T22:13:20.500000Z"]),
        (["1700000000500000000"], ["2023-11-14T22:13:20.500000Z"]),
    ):  # fmt: skip
        axis = time_axis(cells, "time")
        assert (axis.kind, axis.rfc3339) == ("datetime", sent), cells
    assert time_axis(["20249931"], "time").kind == "number"
    for cells, place, reason in (
        (["01/02/2024", "03/04/2024"], 0, "'%d/%m/%Y' or '%m/%d/%Y'"),
        (["01/02/24", "03/04/24"], 0, "'%d/%m/%y' or '%m/%d/%y' or '%y/%m/%d'"),
        (["24-12-30", "24-12-31"], 0, "'%d-%m-%y' or '%y-%m-%d'"),
        (["31.12.2024", "32.12.2024"], 1, "no date of day, month, year"),
        (["31/12/2024", "12/31/2024"], 1, "no date of day, month, year"),
        (["31.12.2024", "12/2024"], 1, "is not a time"),
        (["2024-12-31", "31.12.2024"], 1, "is not a time"),
        (["31.12.2024 25:00"], 0, "no date"),
        (["31.12.202"], 0, "no date"),
        ([True], 0, "is not a time"),
        (["2024-01-01", "0001-01-01T00:00:00+05:00"], 1, "is not a time"),
        (["9999-12-31T23:59:59-05:00"], 0, "is not a time"),
        ([datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))], 0, "is not a time"),
        (["2024-13"], 0, "is not a time"),
    ):
        with pytest.raises(BadTime, match=reason) as refused:
            time_axis(cells, "time")
        assert refused.value.row == place, cells


def test_a_moment_that_utc_has_no_year_for_is_none_of_the_named_form():
    with pytest.raises(BadTime, match="no time of the form"):
        time_axis(["0001-01-01 +0500"], "time", "%Y-%m-%d %z")


def test_cells_after_the_first_that_is_no_time_are_not_read(monkeypatch):
    """Of a column of text, which is most of them: it would cost seconds of a large file."""
    read = []
    moment_of = times.moment_of
    monkeypatch.setattr(times, "moment_of", lambda cell: read.append(cell) or moment_of(cell))
    text = "at,note,y\n" + "2024-01-01,of 2024,1\n" * 50
    series = series_of(read_csv(text.encode(), "f"))
    assert series.axis.name == "at"
    assert read.count("of 2024") == 1


def test_years_of_two_digits_are_noticed():
    for cells, read in (
        (["31.12.2024"], ""),
        (["2024/12/31"], ""),
        (["31.12.24"], "'31.12.24' was read as 2024-12-31: "),
        (["05.01.23"], "such as '%y.%m.%d'"),
        (["31/12/2099", "31/12/99"], "'31/12/99' was read as 1999-12-31: "),
    ):
        notice = time_axis(cells, "time").notice
        assert read in notice, cells
        assert bool(read) == bool(notice), cells


def test_a_column_of_times_is_found_by_its_cells(tmp_path):
    def axis(text, **roles):
        return read_series(written(tmp_path, text), ColumnRoles(**roles)).axis

    found = axis("Datum;Durchfluss\n31.12.2023;1,5\n01.01.2024;2,5\n")
    assert (found.name, found.rfc3339[0]) == ("Datum", "2023-12-31T00:00:00Z")
    assert axis("y,when\n1,2024-05-01 12:00\n2,2024-05-01 13:00\n").name == "when"
    # Versions, numbers, names, a column with one cell that is no time, and two columns of times.
    for text in (
        "y,version\n1,10.2.14\n2,10.2.15\n",
        "y,place\n1,2024\n2,2025\n",
        "y,place\n1,room 2024\n2,room 2025\n",
        "y,when\n1,2024-05-01\n2,later\n",
        "y,from,to\n1,2024-05-01,2024-05-02\n2,2024-05-02,2024-05-03\n",
    ):
        assert axis(text) is None
    ambiguous = "y,when\n1,03/04/2024\n2,04/04/2024\n"
    with pytest.raises(SeriesError, match="'%d/%m/%Y' or '%m/%d/%Y'"):
        axis(ambiguous)
    assert axis(ambiguous, time_format="%d/%m/%Y").rfc3339[0] == "2024-04-03T00:00:00Z"


def test_a_date_and_a_clock_in_two_columns_are_one_time(tmp_path):
    def axis(text, **roles):
        return read_series(written(tmp_path, text), ColumnRoles(**roles)).axis

    text = "Date;Time;Flow\n31.12.2024;23:59:30;1,5\n01.01.2025;0:05;2,5\n"
    sent = ["2024-12-31T23:59:30Z", "2025-01-01T00:05:00Z"]
    for roles in ({}, {"time": "Date"}, {"time": "Date", "time_format": "%d.%m.%Y %H:%M"}):
        if "time_format" in roles:
            text = text.replace("23:59:30", "23:59")
            sent[0] = "2024-12-31T23:59:00Z"
        found = axis(text, **roles)
        assert (found.name, found.rfc3339) == ("Date", sent)
    assert axis("date,time,y\n2024-05-01,10:05 PM,1\n").rfc3339 == ["2024-05-01T22:05:00Z"]
    assert axis("y;Uhrzeit;Datum\n1;8:05;05.01.23\n").rfc3339 == ["2023-01-05T08:05:00Z"]
    # A time of its own is one, and not each text with a colon is a clock.
    assert axis("date,y,time\n2024-05-01,1,1:2:3\n2024-05-02,1,1:2:4\n", time="date").rfc3339 == [
        "2024-05-01T00:00:00Z",
        "2024-05-02T00:00:00Z",
    ]
    assert axis("date,time,y\n2024-05-01,2024-05-02T10:00Z,1\n").name == "time"
    with pytest.raises(SeriesError, match=r"row 2 .*column 'date': empty"):
        axis("date,time,y\n2024-05-01,10:05,1\n,10:10,2\n")


def test_a_form_of_times_is_named(tmp_path):
    file = written(tmp_path, "when,y,pump\n01/02/2024,1,a\n03/04/2024,2,a\n")
    named = ColumnRoles(["y"], None, "when")
    american = named._replace(time_format="%m/%d/%Y")
    with pytest.raises(
        SeriesError, match=r"column 'when': '01/02/2024' may have its day.*--time-f"
    ):
        read_series(file, named)
    sent = ["2024-01-02T00:00:00Z", "2024-03-04T00:00:00Z"]
    (column,) = streams_by_column(read_table(file), american).values()
    (stream,) = streams_of(read_table(file), "pump", american).values()
    for series in (read_series(file, american), column, stream):
        assert series.axis.rfc3339 == sent
    with pytest.raises(SeriesError, match=r"row 1 \(line 2\).*no time of the form '%Y-%m-%d'"):
        read_series(file, named._replace(time_format="%Y-%m-%d"))


def test_decimal_commas_are_read_where_commas_part_no_cells(tmp_path):
    text = "time;y;z;note\n31.12.2024 23:00;1.234,5;-0,5;a,b\n01.01.2025 00:00;2;;1,2\n"
    series = read_series(written(tmp_path, text), ColumnRoles(["y", "z"]))
    assert series.y == [[1234.5, -0.5], [2.0, None]]
    assert series.axis.rfc3339[0] == "2024-12-31T23:00:00Z"
    assert read_series(written(tmp_path, "0,5;1\n1,5;2\n"), ColumnRoles(["1"])).y == [[0.5], [1.5]]
    assert read_series(written(tmp_path, "y\tx\n1.5\t2\n")).y == [[1.5]]  # points stay
    assert read_series(written(tmp_path, "y\tx\n1,5\t2\n0,250\t2\n")).y == [[1.5], [0.25]]
    with pytest.raises(SeriesError, match="'1,234' is not a number"):  # or a thousand and more
        read_series(written(tmp_path, "y\tx\n1,234\t2\n0\t2\n"), ColumnRoles(["y"]))
    with pytest.raises(SeriesError, match="'1,5' is not a number"):
        read_series(written(tmp_path, 'y,x\n"1,5",2\n'))


def test_text_is_named_as_categories_and_truth_is_no_number(tmp_path):
    text = "state,site\n" + "".join(f"{s},n{i}\n" for i, s in enumerate(["on", "off"] * 15))
    for columns in (None, ["state"]):
        with pytest.raises(SeriesError) as refused:
            read_series(written(tmp_path, text), ColumnRoles(columns))
        assert "'state' has 2 categories ('on', 'off')" in str(refused.value)
        assert "categorical with classes=2" in str(refused.value)
        assert "'site' has" not in str(refused.value)
    with pytest.raises(SeriesError) as refused:  # one bad cell makes no categories
        read_series(written(tmp_path, "y\n1\nabc\n"))
    assert "categories" not in str(refused.value)
    assert "leave the cell of a missing label empty" in str(refused.value)
    file = tmp_path / "series.parquet"
    parquet.write_table(pa.table({"up": [True, False], "load": [1.5, 2.5]}), file)
    assert read_series(file).y_names == ["load"]
    with pytest.raises(SeriesError, match="'True' is not a number"):
        read_series(file, ColumnRoles(["up"]))


# --- replay ---------------------------------------------------------------------------------


class ClientOfItself:
    """A service that is made up, and its own client: of one that is ready."""

    def __call__(self, url, api_key):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def wait_ready(self, seconds):
        pass


class Starting:
    """A service whose readiness comes after so many refusals, each a problem or None: no answer."""

    url = "http://service"

    def __init__(self, refusals):
        self.refusals = list(refusals)
        self.waits = []

    def wait_ready(self, seconds):
        self.waits.append(seconds)
        if self.refusals:
            problem = self.refusals.pop(0)
            raise Unavailable("GET /readyz: reason", problem)


@pytest.mark.parametrize(
    ("refusals", "waits", "shown", "ends"),
    [
        ("", [2.0], [], ""),
        ("u", [2.0, 10.0], ["no service answers at http://service"], ""),
        ("uu", [2.0, 10.0], ["no service answers"], "start one with `moca serve`"),
        ("p", [2.0, 180.0], ["is starting (no worker): a first start compiles"], ""),
        ("up", [2.0, 10.0, 180.0], ["no service answers", "is starting"], ""),
        ("pp", [2.0, 180.0], ["is starting"], "did not get ready in 180 s"),
    ],
)
def test_a_service_that_starts_is_waited_for(refusals, waits, shown, ends):
    problem = problem_of(503, {"type": "x/not-ready", "detail": "no worker"})
    service = Starting(problem if letter == "p" else None for letter in refusals)
    console = quiet()
    with pytest.raises(ReplayError, match=ends) if ends else nullcontext():
        wait_ready(service, console)
    assert service.waits == waits
    lines = console.file.getvalue().splitlines()
    assert len(lines) == len(shown)
    for line, text in zip(lines, shown, strict=True):
        assert text in line


def test_seasons_are_looked_for_from_as_many_observations_on_as_a_stream_does():
    """The client installs without `model_core`."""
    assert SEASONS_FROM == stream_settings.SEASONS_FROM


@pytest.mark.parametrize(
    ("rows", "changes", "outputs", "model", "many"),
    [
        (400, 5, 1, "averaged", False),
        (199, 4, 1, "averaged", False),
        (199, 5, 1, "averaged", True),
        (1001, 20, 1, "averaged", False),
        (1001, 20, 2, "joint", True),
        (400, 5, 1, "poisson", False),
    ],
)
def test_many_changes_may_be_a_season(rows, changes, outputs, model, many):
    names = [f"y{k}" for k in range(outputs)]
    replayed = Replayed("s", Series([[0.0] * outputs] * rows, None, names, [], None))
    replayed.answers = [Answer("s", rows - 1, model)] * rows
    replayed.events = [
        Event(id=k, state="confirmed", start=k, suspected_at=k) for k in range(changes)
    ]
    assert may_recur(replayed) is many
    replayed.answers[-1] = Answer("s", rows - 1, model, season=Season([24]))
    assert not may_recur(replayed)


class ShiftService(ClientOfItself):
    """A service with one stream that changes at 40, by the calls of a client that it takes."""

    def __init__(self):
        self.settings, self.seq = None, 0
        self.bodies = []
        self.refused_from = None  # seq of the first observation that is refused
        self.others = 0  # observations of another writer after each list
        self.waits = {}  # what comes before a list is looked at, by the position that it is to have
        self.conflicts = 0
        self.hindsight = iter(())  # of the next answers about changepoints
        self.warming_up = False
        self.events = [
            Event(id=1, state="confirmed", start=40, suspected_at=42, confirmed_at=50, size=-1.9)
        ]

    def stream(self, name):
        if self.settings is None:
            raise problem_of(404, {"type": "x/unknown-stream"})
        return StreamSummary(name, "gaussian", self.seq, settings=self.settings)

    def put_stream(self, name, settings):
        self.settings = settings
        return StreamSummary(name, "averaged", self.seq, settings=settings)

    def delete_stream(self, name):
        self.settings, self.seq = None, 0

    def observe(self, name, rows, detail, belief):
        assert detail == "full"  # the file has every column
        self.waits.pop(rows[0]["seq"], lambda: None)()
        if rows[0]["seq"] != self.seq:
            self.conflicts += 1
            raise problem_of(409, {"type": "x/seq-conflict", "seq": self.seq})
        if self.seq == self.refused_from:
            raise problem_of(422, {"title": "busy", "detail": "try again"})
        self.bodies.append(rows)
        self.settings = self.settings or {"false_alarm_every": 10_000.0}
        answers = [row(seq) for seq in range(self.seq, self.seq + len(rows))]
        answers[0].changepoint_probability = None
        answers[-1].warming_up = self.warming_up
        self.seq += len(rows) + self.others
        return answers

    def changepoints(self, name):
        segments = [Segment(0, 40), Segment(40, self.seq)]
        hindsight = next(self.hindsight, None)
        return Changepoints(name, self.seq, "gaussian", self.events, segments, hindsight)


def replay(file, stream=None, **options):
    """A file of one stream."""
    streams = {stream or stream_name(file): read_series(file)}
    return replay_streams(file, streams, **options)[0]


@pytest.fixture
def service(monkeypatch):
    service = ShiftService()
    monkeypatch.setattr("moca_client.replay.Client", service)
    return service


@pytest.fixture
def shift(tmp_path):
    """40 years about 0, then 40 about 6."""
    values = [(-1) ** k * 0.5 + (6 if k >= 40 else 0) for k in range(80)]
    rows = "".join(f"{1900 + k},{value}\n" for k, value in enumerate(values))
    return written(tmp_path, "year,flow\n" + rows, "a shift.csv")


def test_notices_of_times_are_printed(service, tmp_path):
    """How a year of two digits was read, that the newest row is first, that series are mixed."""
    for days, read, falls, repeated in (
        ("31.12.23 01.01.24", True, False, ""),
        ("2024-01-01 2023-12-31", False, True, ""),
        ("2023-12-31 2023-12-31", False, False, "1 of 2"),
        ("2023-12-31 2023-12-31 2024-01-01", False, False, ""),
        ("2023-12-31 2023-12-31 2024-01-01 2024-01-01", False, False, "2 of 4"),
    ):
        rows = [f"{day},{y}" for y, day in enumerate(days.split())]
        file = tmp_path / "short.csv"
        file.write_text("\n".join(["date,y", *rows]))
        console = quiet()
        replay(file, out=tmp_path / "a.csv", existing="replace", console=console)
        shown = console.file.getvalue()
        assert ("column 'date': '31.12.23' was read as 2023-12-31: " in shown) is read
        assert ("column 'date': 2023-12-31 comes after 2024-01-01; " in shown) is falls
        assert (f"{repeated} rows have the time of the row before" in shown) is bool(repeated)
        assert shown.count("rows have the time") == bool(repeated)


def test_numbers_whose_commas_part_thousands(tmp_path):
    file = tmp_path / "prices.csv"
    for cells, y in (
        (['"1,234.50"', "999", '"-12,345,678"'], [1234.5, 999.0, -12345678.0]),
        (['"1,234.50"', "-"], [1234.5, None]),
    ):
        file.write_text("\n".join(["price", *cells]))
        assert [label and label[0] for label in read_series(file).y] == y
    for cells in (['"1,234"'], ['"1,234.5"', '"12,34"']):  # may be decimal
        file.write_text("\n".join(["price", *cells]))
        with pytest.raises(SeriesError, match=r"column 'price': .* is not a number"):
            read_series(file)


def test_the_cell_that_is_no_number_is_named(tmp_path):
    file = tmp_path / "units.csv"
    file.write_text("time,took\n2024-01-01,93.1\n2024-01-02,94.2 ms\n")
    with pytest.raises(SeriesError, match=r"row 2 \(line 3\), column 'took': '94.2 ms' is not"):
        read_series(file)


def test_replay(service, shift, tmp_path):
    console = quiet()
    out = tmp_path / "out"
    settings = {"model": "gaussian", "scale": 1.0}
    replayed = replay(shift, settings=settings, out=out, batch=33, console=console)
    assert (replayed.stream, service.settings) == ("a-shift", {"model": "gaussian", "scale": 1.0})
    assert replayed.settings == service.settings  # as the picture has them
    assert [len(body) for body in service.bodies] == [33, 33, 14]
    assert service.bodies[0][0] == {"y": 0.5, "time": "1900-01-01T00:00:00Z", "seq": 0}
    assert [event.start for event in replayed.events] == [40]
    assert replayed.when(40) == "1940"
    said = console.file.getvalue()
    assert "80 observations, 1 confirmed change" in said
    assert "1940" in said
    with (out / "a-shift-answers.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [int(row["seq"]) for row in rows] == list(range(80))
    assert float(rows[3]["flow"]) == -0.5
    assert float(rows[3]["quantile_0.05"]) < float(rows[3]["quantile_0.95"])
    assert rows[33]["changepoint_probability"] == ""
    table = parquet.read_table(out / "a-shift-answers.parquet").to_pydict()
    assert table["mean"] == [answer.predictive.mean[0] for answer in replayed.answers]
    assert (out / "a-shift.png").read_bytes()[:4] == b"\x89PNG"


def test_a_replay_without_changes_is_a_sentence_and_no_empty_table(service, shift, tmp_path):
    service.events = []
    console = quiet()
    replay(shift, out=tmp_path / "a.csv", console=console)
    lines = console.file.getvalue().splitlines()
    assert "a-shift (gaussian): 80 observations, no confirmed changes" in lines
    assert "what changed" not in console.file.getvalue()
    service.warming_up = True
    replay(shift, out=tmp_path / "a.csv", existing="replace", console=console)
    assert "80 observations, no confirmed changes, warming up" in console.file.getvalue()


def test_a_stream_without_settings_is_created_by_its_first_observation(service, shift, tmp_path):
    service.put_stream = None
    replayed = replay(shift, out=tmp_path / "out", console=quiet())
    assert replayed.settings == {"false_alarm_every": 10_000.0}
    replay(shift, out=tmp_path / "out", existing="replace", console=quiet())
    assert (service.seq, len(service.bodies)) == (80, 2)


def test_cells_of_a_csv_file_are_read_as_they_were(tmp_path):
    columns = {
        "text, quoted": ["a,b", 'say "no"', "two\nlines", None, "plain"],
        "number": [1e-5, 0.1 + 0.2, None, math.nan, 1234567],
        "truth": [True, None, False, True, False],
    }
    write_table(columns, [tmp_path / "a.csv"])
    with (tmp_path / "a.csv").open(newline="") as handle:
        names, *rows = csv.reader(handle)
    assert names == list(columns)
    text, number, truth = map(list, zip(*rows, strict=True))
    assert text == ["a,b", 'say "no"', "two\nlines", "", "plain"]
    assert [cell and float(cell) for cell in number] == [1e-5, 0.1 + 0.2, "", "", 1234567]
    assert truth == ["true", "", "false", "true", "false"]


def test_columns_of_parquet_are_those_that_pyarrow_makes(tmp_path):
    columns = {
        "whole": [2**60 + 1, None, *range(18)],
        "number": [None, 0.1 + 0.2, 1, *[-1e300] * 17],
        "text": ["ü", None, "", *map(str, range(17))],
        "truth": [None, True, False, *[True] * 17],
        "nothing": [None] * 20,
    }
    write_table(columns, [tmp_path / "a.parquet"])
    assert parquet.read_table(tmp_path / "a.parquet").equals(pa.table(columns))
    write_table({name: [] for name in columns}, [tmp_path / "b.parquet"])
    assert parquet.read_table(tmp_path / "b.parquet").num_rows == 0


def test_an_existing_stream(service, shift, tmp_path):
    def again(existing):
        return replay(shift, out=tmp_path / "a.csv", existing=existing, console=quiet())

    again("refuse")
    with pytest.raises(ReplayError, match="already has 80 observations"):
        again("refuse")
    assert again("append").first_seq == 80
    assert again("replace").first_seq == 0
    assert service.seq == 80


def test_a_stream_whose_name_is_refused_is_named(service, shift, tmp_path):
    def refuse(name):
        raise problem_of(422, {"title": "Invalid field", "detail": "path.stream: expected letters"})

    service.stream = refuse
    with pytest.raises(ReplayError, match=r"'Süd' cannot name a stream: 422 .*expected letters"):
        replay(shift, stream="Süd", out=tmp_path / "a.csv", console=quiet())


def test_a_refusal_midway_names_the_rows_and_keeps_what_was_answered(service, shift, tmp_path):
    console, out = quiet(), tmp_path / "a.csv"
    service.refused_from = 50
    with pytest.raises(ReplayError, match="rows 51 to 60: 422 busy: try again"):
        replay(shift, out=out, batch=10, console=console)
    assert len(out.read_text().splitlines()) == 51
    assert "first 50 rows" in console.file.getvalue()


def test_a_list_that_overtakes_the_one_before_is_sent_again(service, shift, tmp_path):
    """Two are on their way at a time; the others keep their order."""
    overtaken = threading.Event()
    service.waits = {20: lambda: overtaken.wait(PATIENCE_S)}
    observe = service.observe

    def observed(name, rows, **options):
        try:
            return observe(name, rows, **options)
        finally:
            if rows[0]["seq"] == 40:
                overtaken.set()

    service.observe = observed
    replayed = replay(shift, out=tmp_path / "a.csv", batch=20, console=quiet())
    assert service.conflicts == 2  # the list that came too early, and the one sent after it
    assert [body[0]["seq"] for body in service.bodies] == [0, 20, 40, 60]
    assert [answer.seq for answer in replayed.answers] == list(range(80))


def test_another_writer_is_noticed(service, shift, tmp_path):
    service.others = 1
    with pytest.raises(ReplayError, match="rows 11 to 20: another client writes to 'a-shift'"):
        replay(shift, out=tmp_path / "a.csv", batch=10, console=quiet())


def test_nothing_is_sent_where_nothing_can_be_written(service, shift, tmp_path, monkeypatch):
    """The input is not overwritten; a picture needs a package, without which tables are written."""
    with pytest.raises(ReplayError, match="would overwrite"):
        replay(shift, out=shift, console=quiet())
    with pytest.raises(ReplayError, match=r"folder, or a .csv, .* file, got .*a.xlsx$"):
        replay(shift, out=tmp_path / "a.xlsx", console=quiet())
    monkeypatch.setattr("moca_client.replay.find_spec", lambda name: None)
    with pytest.raises(
        ReplayError, match=r"a.png needs matplotlib: pip install 'moca-client\[plots\]'"
    ):
        replay(shift, out=tmp_path / "a.png", console=quiet())
    assert service.bodies == []
    replay(shift, out=tmp_path / "out", console=quiet())
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a-shift-answers.csv"]


def test_hindsight_is_waited_for_and_not_without_end(service, shift, tmp_path, monkeypatch):
    monkeypatch.setattr("moca_client.replay.HINDSIGHT_POLL_S", 0.01)
    pending, current = Hindsight("pending"), Hindsight("current", 0, 80)
    service.hindsight = iter([pending, pending, pending, current])
    console = quiet()
    replayed = replay(shift, out=tmp_path / "a.csv", console=console)
    assert replayed.hindsight == current
    said = " ".join(console.file.getvalue().split())
    assert "best segmentation, by seq: 0-39, 40-79 (in hindsight for 0-79)" in said
    monkeypatch.setattr("moca_client.replay.HINDSIGHT_WAIT_S", 0.0)
    service.hindsight = iter([pending] * 9)
    replayed = replay(shift, out=tmp_path / "a.csv", existing="replace", console=quiet())
    assert replayed.hindsight.status == "pending"
    assert len(list(service.hindsight)) >= 7
