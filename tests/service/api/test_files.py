"""CSV files over HTTP: read as streams, and nothing is posted."""

import pytest

from service.api.routes import files
from service.api.routes.files import streams_in
from service.problems import InvalidField
from tests.service.api.conftest import slug

CSV = {"Content-Type": "text/csv; charset=utf-8"}


async def test_a_file_is_read_and_nothing_is_posted(api):
    text = "\ufeffDate;Time;Flow (l/s);x\r\n31.12.24;9:05;1,5;1\r\n31.12.24;10:05;;2\r\n"
    response = await api.post("/v1/files?name=plant", content=text.encode(), headers=CSV)
    assert response.status_code == 200, response.text
    read = response.json()
    assert read["streams"] == {
        "plant.Flow-l-s-": {
            "y": [1.5, None],
            "x": [[1.0], [2.0]],
            "time": ["2024-12-31T09:05:00Z", "2024-12-31T10:05:00Z"],
        }
    }
    (notice,) = read["notices"]
    assert "was read as 2024-12-31" in notice
    assert (await api.get("/v1/streams")).json()["streams"] == []
    other = await api.post("/v1/files", json=[1])
    assert slug(other) == "unsupported-media-type"
    for content, why in ((b"a\nx\n", "no numeric column"), (b"y\n\xff\n", "UTF-8")):
        refused = await api.post("/v1/files", content=content, headers=CSV)
        assert slug(refused) == "invalid-field"
        assert why in refused.json()["errors"][0]["detail"]


def test_streams_of_a_file():
    def labels(text, name="f"):
        return {stream: one.y for stream, one in streams_in(text.encode(), name).streams.items()}

    assert labels("1\n2\n") == {"f.y": [1.0, 2.0]}
    assert labels("a,b\n1,\n2,3\n") == {"f.a": [1.0, 2.0], "f.b": [None, 3.0]}
    assert labels("stream,value,count\np,1,7\nq,2,8\np,3,9\n") == {"p": [1.0, 3.0], "q": [2.0]}
    assert labels("Stream,y1,y2\np,1,\n,,\n"[:-3]) == {"p": [[1.0, None]]}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no rows"),
        ("a,b\n", "no rows"),
        ("a,b\n1,2\n3\n", "row 2 (line 3) has 1 cells"),
        ("stream,a,b\ns,1,2\n", "several numeric columns"),
        ("stream,y\na b,1\n", "stream 'a b': expected 1 to 200"),
        ("stream,y\n..,1\n", "expected 1 to 200"),
        ("a b,a-b\n1,2\n", "two columns would be one stream"),
        ("time,y\n0001-01-01T00:00:00+05:00,1\n", "'0001-01-01T00:00:00+05:00' is not a time"),
        ("time,y\nnoon,1\n", "row 1 (line 2), column 'time': 'noon' is not a time"),
        ('y,z\n1,"2\n', "is not a CSV file: unexpected end of data"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(text, why):
    with pytest.raises(InvalidField) as refused:
        streams_in(text.encode(), "f")
    assert why in str(refused.value)


def test_a_file_is_bounded(monkeypatch):
    monkeypatch.setattr(files, "MOST_ROWS", 60)
    monkeypatch.setattr(files, "MOST_CELLS", 200)
    monkeypatch.setattr(files, "MOST_COLUMNS", 100)
    assert len(streams_in(b"y\n" + b"1\n" * 60, "f").streams["f.y"].y) == 60
    for content, why in (
        (b"y\n" + b"1\n" * 61, "at most 61 rows, got 62"),
        (b"y\r\n" + b"1\r\n" * 61, "at most 61 rows, got 62"),
        (b";" * 201, "at most 200 cells, got 201"),
        (b",".join(b"x%d,y%d" % (i, i) for i in range(10)) + (b"\n1" + b",1" * 19) * 3,
         "at most 200 numbers, got 330"),  # each of the ten streams has all ten inputs
        (b",".join(b"c%d" % i for i in range(101)), "at most 100 columns, got 101"),
        (b",".join([b"y"] * 100), "'y', 'y' and 50 more"),
        (b"stream,y\n" + b"".join(b"s%d,1\n" % i for i in range(51)), "at most 50 streams, got 51"),
    ):  # fmt: skip
        with pytest.raises(InvalidField) as refused:
            streams_in(content, "f")
        assert why in str(refused.value)
