"""A user's own files: what is read, what is refused and where, how it is split."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from training.data import tables
from training.data.tables import DataSource
from training.errors import BadData


def read(path, classes=False, partial=False, **settings):
    return tables.read(DataSource(path=path, **settings), classes=classes, partial=partial)


@pytest.fixture
def write(tmp_path):
    def written(text, name="own.csv"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return written


def test_streams_times_inputs_and_changepoints(write):
    file = write(
        "# a comment\n"
        "stream,time,x2,x1,y,changepoint\n"
        "a,2024-01-02,4,3,11,1\n"
        "b,2024-01-01,0,0,20,0\n"
        "a,2024-01-01,2,1,10,0\n"
        "a,2024-01-03,6,5,,0\n"
    )
    a, b = read(file)
    assert (a.name, b.name) == ("a", "b")
    assert a.x.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert a.y[:2].tolist() == [[10], [11]]
    assert a.y[2].isnan().all()
    assert a.switch.tolist() == [False, True, False]
    assert b.y.tolist() == [[20]]
    assert a.y.dtype == a.x.dtype == torch.float64


COLUMNS = [
    ("y\n1\n2\n", None, [[1], [2]]),
    ("1\n2\n", None, [[1], [2]]),
    ("date;level\n2020-01;1\n2020-02;2\n", None, [[1], [2]]),
    ("y_b,y_a,x_speed\n1,2,3\n4,5,6\n", [[3], [6]], [[1, 2], [4, 5]]),
    ("Y1\tX_2\tX_1\n1\t2\t3\n4\t5\t6\n", [[3, 2], [6, 5]], [[1], [4]]),
    ("x;y\n1,5;2\n4;5,25\n", [[1.5], [4]], [[2], [5.25]]),  # decimal commas
    ("x,y,y_hat\n1,2,3\n4,5,6\n", [[1], [4]], [[2], [5]]),
]


def test_columns_are_found_by_name(write):
    for text, x, y in COLUMNS:
        (one,) = read(write(text))
        assert (one.x if x is None else one.x.tolist()) == x, text
        assert one.y.tolist() == y, text
        assert (one.name, one.switch) == ("own", None)


def test_types_are_those_of_the_whole_file_and_names_of_streams_are_text(write):
    rows = [f"{k % 2:03d},{k}" for k in range(150_000)]  # over a megabyte of whole numbers
    one, other = read(write("\n".join(["stream,y", *rows, "000,0.5", "001,n/a"])))
    assert (one.name, other.name) == ("000", "001")
    assert one.y[-2:].flatten().tolist() == [149_998, 0.5]
    assert other.y[-1].isnan()


def test_columns_can_be_named(write):
    file = write("k,when,u,v,w,new\nq,2,1,2,3,1\nq,1,4,5,6,0\n")
    names = {"stream": "k", "time": "when", "changepoint": "new"}
    (one,) = read(file, y=["w"], x=["v", "u"], **names)
    assert one.x.tolist() == [[5, 4], [2, 1]]
    assert one.y.tolist() == [[6], [3]]
    assert one.switch.tolist() == [False, True]
    (one,) = read(write("x,y\n1,2\n"), x=[])
    assert one.x is None


def test_a_folder_is_read_in_the_order_of_its_names(write):
    write("y\n3\n", "b.csv")
    file = write("y\n1\n2\n", "a.csv")
    write("not read", "notes.txt")
    parquet.write_table(pa.table({"y": [5.0, None]}), file.parent / "c.parquet")
    series = read(file.parent)
    assert [(one.name, len(one.y)) for one in series] == [("a", 2), ("b", 1), ("c", 2)]
    assert series[2].y.isnan().flatten().tolist() == [False, True]


def test_parquet_has_times_and_booleans(tmp_path):
    days = [datetime(2024, 1, day, tzinfo=UTC) for day in (2, 1)]
    table = pa.table({"time": days, "y": [1, 2], "stream": [7, 7], "changepoint": [True, False]})
    parquet.write_table(table, tmp_path / "own.parquet")
    (one,) = read(tmp_path / "own.parquet")
    assert one.y.tolist() == [[2], [1]]
    assert one.switch.tolist() == [False, True]
    assert one.name == "7"


REFUSED = [
    ("x,y\n1,2\nnan,3\n", r"own.csv: row 2 .*column 'x'"),
    ("# note\nx,y\n\n1,2\ninf,3\n", r"row 2 .*column 'x'"),
    ("x,y\n1,2\n1,-Infinity\n", r"row 2 .*column 'y'"),
    ("x,y\n1,two\n", r"row 1 .*column 'y'.* --y and --x name"),
    ("x,y\non,2\noff,3\n", r"column 'x': 'on'.* a column of 0 and 1 for each"),
    ("y1,y2\n1,2\n1,\n", r"row 2 .*column 'y2'"),
    ("y\n\n", "own.csv has no rows"),
    ("y,x\n,1\n,2\n", "empty in every row"),
    ("time,y\n1,2\n1,3\n", r"also the time of row 1 of the same stream"),
    ("a,b\n1,2\n", r"no column y .*: 'a', 'b'"),
    ("a,b\nq,r\n", r"no column y .* no numeric column"),
    ("y,y\n1,2\n", "has duplicate columns: 'y', 'y'"),
    ("x,y\n1,2\n1\n", r"row 2 \(line 3\) has 1 cells, the header 2"),
    ("time,y\n1,2\nsoon,3\n", r"row 1 .*column 'time'"),
    ("time,y\n1,2\n,3\n", r"row 2 .*column 'time'"),
    ("stream,y\na,1\n,2\n", r"row 2 .*column 'stream'"),
    ("changepoint,y\n0,1\n2,2\n", r"row 2 .*column 'changepoint'"),
]
NO_CLASSES = [
    ("y\n0\n1.5\n", r"row 2 .*column 'y'"),
    ("y\n0\n-1\n", r"row 2 .*column 'y'"),
    ("y\n2\n2\n", "every label is class 2"),
    ("y1,y2\n2,1\n", "one column, got 2"),
]


def test_refusals_name_row_and_column(write):
    for text, message in REFUSED:
        with pytest.raises(BadData, match=message):
            read(write(text))
    for text, message in NO_CLASSES:
        file = write(text)
        with pytest.raises(BadData, match=message):
            read(file, classes=True)
        assert read(file)[0].y.isfinite().all()


def test_rows_that_lack_some_labels(write):
    (one,) = read(write("y1,y2\n1,2\n3,\n,4\n,\n"), partial=True)
    assert one.y.isnan().tolist() == [[False, False], [False, True], [True, False], [True, True]]
    assert one.y.nansum(0).tolist() == [4, 6]
    with pytest.raises(BadData, match=r"column 'y2' .*--y y1,y3"):
        read(write("y1,y2,y3\n1,,5\n3,,6\n"), partial=True)


def test_time_between_rows_in_units_of_the_hazard(write):
    text = "stream,time,y\na,2024-01-01T00:01:00Z,1\nb,2024-01-01,7\na,2024-01-01T00:00:30Z,0\n"
    text += "a,2024-01-01T00:05:00Z,2\n"
    a, b = read(write(text), interval=60.0)
    assert a.y.flatten().tolist() == [0, 1, 2]
    assert a.elapsed.tolist() == [1, 0.5, 4]
    assert b.elapsed.tolist() == [1]
    (numbers,) = read(write("time,y\n3,1\n4.5,2\n10,3\n"), interval=0.5)
    assert numbers.elapsed.tolist() == [1, 3, 11]
    (late,) = read(write("time,y\n1700000000030,1\n1700000000000,0\n"), interval=0.01)
    assert late.elapsed.tolist() == [1, 3]  # thousandths of seconds since 1970
    (dates,) = read(write("time,y\n31.12.2024,0\n1.1.2025,1\n"), interval=86400.0)
    assert dates.elapsed.tolist() == [1, 1]
    assert read(write("time,y\n3,1\n"))[0].elapsed is None
    with pytest.raises(BadData, match="has no time column for --interval; name it with --time"):
        read(write("y\n3\n"), interval=1.0)


def test_files_that_cannot_be_read(write, tmp_path):
    with pytest.raises(BadData, match=r"none.csv cannot be read: No such file"):
        read(tmp_path / "none.csv")
    with pytest.raises(BadData, match="holds none of"):
        read(tmp_path)
    with pytest.raises(BadData, match=r"own.parquet is not a Parquet file"):
        read(write("y\n1\n", "own.parquet"))
    (tmp_path / "bytes.csv").write_bytes(b"y\n\xff\n")
    with pytest.raises(
        BadData,
        match=r"bytes.csv is not a CSV file in UTF-8: got byte 0xff at offset 2; save it as",
    ):
        read(tmp_path / "bytes.csv")
    with pytest.raises(BadData, match="has no column 'z'; it has 'y'"):
        read(write("y\n1\n"), x=["z"])


def test_files_of_a_folder_must_agree(write):
    file = write("x,y\n1,2\n", "a.csv")
    write("y\n1\n", "b.csv")
    with pytest.raises(BadData, match=r"b.csv has labels \['y'\] and inputs \[\], .*a.csv"):
        read(file.parent)
    write("x,y,stream\n1,2,a\n", "b.csv")
    with pytest.raises(BadData, match=r"stream 'a' is in .*a.csv and in .*b.csv"):
        read(file.parent)
