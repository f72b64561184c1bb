"""Frames of pandas and polars: rows out, answers back in the same library."""

import math
import random
from datetime import UTC, datetime

import httpx
import msgspec
import pytest

from moca_client import Client, InvalidRequest, PartlyObserved, frames
from moca_client.frames import to_frame
from moca_client.responses import (
    Answer,
    Changepoints,
    Event,
    Explanation,
    HistoryPage,
    Predictive,
    Recorded,
    RegimeStatistics,
    StreamChange,
)

WHEN = [datetime(2024, 1, day, tzinfo=UTC) for day in (1, 2, 3)]


@pytest.fixture(params=["pandas", "polars", "pyarrow"])
def library(request):
    return pytest.importorskip(request.param, reason=f"{request.param} is not installed")


def frame_of(library, columns):
    return library.table(columns) if library.__name__ == "pyarrow" else library.DataFrame(columns)


def column(frame, name):
    values = frame[name].to_pylist() if hasattr(frame[name], "to_pylist") else list(frame[name])
    return [None if v is None or (isinstance(v, float) and math.isnan(v)) else v for v in values]


class FrameService:
    """Answers lists of observations, by columns where it is asked to; refuses label `bad`."""

    def __init__(self, bad="none"):
        self.posted, self.bad, self.requests = {}, bad, []

    def __call__(self, request):
        rows = msgspec.json.decode(request.content)
        self.requests.append(len(rows))
        stream = request.url.path.split("/")[3]
        seen = self.posted.setdefault(stream, [])
        if request.url.params.get("format") != "columns":
            seen += rows
            return httpx.Response(
                200, json=[{"stream": stream, "seq": 0, "model": "m"}] * len(rows)
            )
        columns = {"seq": [], "mean": [], "season": []}
        for own in rows:
            if own["y"] == self.bad:
                return httpx.Response(422, json={"title": "bad", "answers": columns})
            for name, value in zip(columns, (len(seen), own["y"], None), strict=True):
                columns[name].append(value)
            seen.append(own)
        if len(seen) > 20:
            columns["extra"] = columns["seq"]
        return httpx.Response(200, json=columns)

    def labels(self):
        return {stream: [row["y"] for row in rows] for stream, rows in self.posted.items()}


def observed(service, frame, **asked):
    asked = asked if "by" in asked else {"stream": "s", **asked}
    with Client(transport=httpx.MockTransport(service)) as client:
        return client.observe_frame(frame, **asked)


def test_rows_are_posted_and_answers_come_back_as_the_same_kind(library):
    service = FrameService()
    frame = frame_of(
        library, {"time": WHEN, "y": [1.5, None, 3.0], "x1": [1, 2, 3], "x2": [0.5] * 3}
    )
    back = observed(service, frame, batch=2)
    assert service.posted["s"] == [
        {"y": 1.5, "x": [1.0, 0.5], "time": "2024-01-01T00:00:00Z"},
        {"y": None, "x": [2.0, 0.5], "time": "2024-01-02T00:00:00Z"},
        {"y": 3.0, "x": [3.0, 0.5], "time": "2024-01-03T00:00:00Z"},
    ]
    assert type(back) is type(frame)
    assert column(back, "seq") == [0, 1, 2]
    assert column(back, "mean") == [1.5, None, 3.0]


def test_answers_of_streams_of_every_kind_keep_their_predictives(library):
    vector = Predictive([1.0, 2.0], [[1.0, 0.0], [0.0, 4.0]], {"0.5": [1.5, 2.5]})
    number = Predictive([3.0], [[9.0]], {"0.9": [3.5]})
    two = Predictive(probabilities=[0.25, 0.75])
    three = Predictive(probabilities=[0.5, 0.25, 0.25])
    answers = [
        Answer(stream, 0, "m", predictive)
        for stream, predictive in zip("abcde", (two, number, vector, three, None), strict=True)
    ]
    frame = to_frame(answers, library.__name__)
    expected = {
        "mean1": [None, 3.0, 1.0, None, None],
        "mean2": [None, None, 2.0, None, None],
        "variance1": [None, 9.0, 1.0, None, None],
        "variance2": [None, None, 4.0, None, None],
        "quantile_0.5_1": [None, None, 1.5, None, None],
        "quantile_0.9_1": [None, 3.5, None, None, None],
        "probability1": [0.75, None, None, 0.25, None],
        "probability2": [None, None, None, 0.25, None],
    }
    assert {name: column(frame, name) for name in expected} == expected


def test_a_frame_of_many_streams_comes_back_in_the_order_of_its_rows(library):
    """A column of names that answers have too, such as `season`, has the names."""
    service = FrameService()
    rng = random.Random(2)
    hosts = [rng.choice("abc") for _ in range(300)]
    frame = frame_of(library, {"season": hosts, "y": [float(row) for row in range(300)]})
    back = observed(service, frame, by="season", batch=20)
    expected = {
        host: [float(row) for row, own in enumerate(hosts) if own == host] for host in "abc"
    }
    assert service.labels() == expected
    assert sum(service.requests) == 300
    assert max(service.requests) <= 20
    assert type(back) is type(frame)
    assert column(back, "season") == hosts
    seqs = [hosts[:row].count(host) for row, host in enumerate(hosts)]
    assert column(back, "seq") == seqs
    assert column(back, "mean") == [float(row) for row in range(300)]
    # The first page of a stream has no such column.
    assert column(back, "extra") == [None if seq < 20 else seq for seq in seqs]


def test_a_stream_or_a_column_is_given_by_name():
    pandas = pytest.importorskip("pandas")
    frame = frame_of(pandas, {"id": ["a", "b"], "y": [1.0, 2.0]})
    with Client(transport=httpx.MockTransport(FrameService())) as client:
        with pytest.raises(InvalidRequest, match=r"expected stream='id', .* or by='id', the col"):
            client.observe_frame(frame, "id")
        with pytest.raises(InvalidRequest, match=r"expected stream=\.\.\., .* of each$"):
            client.observe_frame("pump-7", frame)
        with pytest.raises(InvalidRequest, match="got both"):
            client.observe_frame(frame, stream="s", by="id")
        for wrong in ({}, {"by": "pump"}, {"by": "id", "batch": 0}):
            with pytest.raises(InvalidRequest):
                client.observe_frame(frame, **wrong)


def test_a_frame_that_is_refused_in_part_has_the_answers_that_are_known():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"y": [1.0, 2.0, 3.0, 4.0, 5.0]})
    for bad, known in ((4.0, 3), (1.0, 0)):
        with pytest.raises(PartlyObserved) as failed:
            observed(FrameService(bad), frame, batch=2)
        assert f"{known} rows are known to be applied" in str(failed.value)
        assert len(failed.value.answers) == known
    with pytest.raises(PartlyObserved, match="0 rows are"):
        observed(lambda _: httpx.Response(400), frame)
    frame = pandas.DataFrame({"host": ["a", "b", "a", "b"], "y": [1.0, 2.0, 3.0, 4.0]})
    with pytest.raises(PartlyObserved) as failed:
        observed(FrameService(bad=2.0), frame, by="host")
    assert "host 'b', rows 1 to 2 of it" in str(failed.value)
    assert list(failed.value.answers["host"]) == ["a", "a"]


def test_columns_are_named_and_a_missing_cell_of_several_labels_is_a_missing_output(library):
    service = FrameService()
    frame = frame_of(library, {"flow": [1, 2], "level": [3, 4], "y": [9, 9]})
    observed(service, frame, y=["flow", "level"])
    assert service.labels() == {"s": [[1.0, 3.0], [2.0, 4.0]]}
    service.posted.clear()
    observed(service, frame, y="flow", x="level")
    assert service.posted["s"][0] == {"y": 1.0, "x": [3.0]}
    service.posted.clear()
    frame = frame_of(library, {"y1": [1.0, None, None], "y2": [2.0, 3.0, None]})
    observed(service, frame)
    assert service.labels() == {"s": [[1.0, 2.0], [None, 3.0], None]}


def test_every_way_that_pandas_says_missing():
    pandas = pytest.importorskip("pandas")
    for dtype in ("Int64", "float64", "object", "string"):
        service = FrameService()
        values = ["1", None] if dtype == "string" else [1, None]
        observed(service, pandas.DataFrame({"y": pandas.array(values, dtype=dtype)}))
        assert service.labels() == {"s": [1.0, None]}, dtype


def test_names_of_columns_may_be_numbers():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([[1.0, 5.0], [2.0, 6.0]])
    for y, labels in ((1, [5.0, 6.0]), ([0, 1], [[1.0, 5.0], [2.0, 6.0]])):
        service = FrameService()
        observed(service, frame, y=y)
        assert service.labels() == {"s": labels}
    service = FrameService()
    observed(service, pandas.DataFrame([["a", 5.0], ["b", 6.0]]), by=0, y=1)
    assert service.labels() == {"a": [5.0], "b": [6.0]}


def test_names_of_columns_may_be_an_index_or_an_array():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0], "b": [5.0, 6.0]})
    for y in (frame.columns[1:], frame.columns[1:].to_numpy(), {"b"}):
        service = FrameService()
        observed(service, frame, y=y)
        assert service.labels() == {"s": [5.0, 6.0]}


def test_what_is_refused():
    pandas = pytest.importorskip("pandas")
    good = pandas.DataFrame({"y": [1.0, 2.0, 3.0, 4.0]})
    for frame, options, named in (
        (pandas.DataFrame({"y": [1.0, math.inf]}), {}, "row 2, column 'y'"),
        (good, {"y": "z"}, "'z'"),
        ({"y": [1.0]}, {}, "dict"),
        (pandas.DataFrame([[1.0, 2.0]], columns=["y", "y"]), {}, "names of their own"),
        (good, {"batch": 0}, "batch"),
    ):
        with pytest.raises(InvalidRequest, match=named):
            observed(FrameService(), frame, **options)


def test_history_and_changepoints(library):
    name = library.__name__
    said = Predictive(mean=[1.0, 2.0], variance=[[1.0, 0.0], [0.0, 4.0]])
    page = HistoryPage("s", 1, "m", 0, [Recorded(0, y=[1.0, 2.0], x=[3.0], predictive=said)])
    back = to_frame(page, name)
    assert [column(back, n) for n in ("y1", "y2", "x", "mean2", "variance2")] == [
        [1.0],
        [2.0],
        [3.0],
        [2.0],
        [4.0],
    ]
    page = HistoryPage("s", 2, "m", 0, [Recorded(0, y=[None, 2.0]), Recorded(1)])
    back = to_frame(page, name)
    assert [column(back, n) for n in ("y1", "y2")] == [[None, None], [2.0, None]]
    events = [
        Event(
            id=1,
            state="confirmed",
            start=5,
            suspected_at=7,
            size=[1.0, -2.0],
            before=RegimeStatistics(5, [3.0, 4.0], [0.5, None]),
            explanation=Explanation("mean rose"),
            sentence="mean rose",
        ),
        Event(id=2, state="suspected", start=9, suspected_at=9),
    ]
    back = to_frame(Changepoints("s", 20, events=events), name)
    assert column(back, "start") == [5, 9]
    assert column(back, "size2") == [-2.0, None]
    assert column(back, "sentence") == ["mean rose", ""]
    assert column(back, "before_mean2") == [4.0, None]
    assert column(back, "before_count") == [5, None]
    assert column(back, "kind") == ["change", "change"]
    assert column(to_frame(Changepoints("s", 0), name), "start") == []
    assert column(to_frame([], name, Answer), "anomaly") == []


def test_changes_of_streams_with_different_outputs(library):
    name = library.__name__
    both = RegimeStatistics(9, [1.0, 2.0], [0.5, None])
    places = {"id": 1, "state": "confirmed", "start": 5, "suspected_at": 7}
    rows = [
        StreamChange(stream="a", size=1.5, before=RegimeStatistics(4, 3.0, 0.1), **places),
        StreamChange(stream="b", size=[None, -2.0], before=both, **places),
        StreamChange(stream="c", **places),
    ]
    back = to_frame(rows, name)
    assert column(back, "stream") == ["a", "b", "c"]
    assert column(back, "size1") == [1.5, None, None]
    assert column(back, "size2") == [None, -2.0, None]
    assert column(back, "before_mean1") == [3.0, 1.0, None]
    assert column(back, "before_sd2") == [None, None, None]
    assert column(back, "before_count") == [4, 9, None]
    assert column(to_frame(rows[:1], name), "size") == [1.5]
    assert column(to_frame(iter(()), name, StreamChange), "sentence") == []


def test_a_frame_without_a_library_to_make_it(monkeypatch):
    answers = [Answer("s", 0, "m")]
    with pytest.raises(InvalidRequest, match="expected one of pandas, polars, pyarrow, got 'r'"):
        to_frame(answers, "r")
    monkeypatch.setattr(frames, "find_spec", lambda name: None)
    with pytest.raises(InvalidRequest, match=r"pip install 'moca-client\[frames\]'"):
        to_frame(answers)


def test_all_pages_of_a_history_are_one_frame():
    pages = (HistoryPage("s", 4, "m", 0, [Recorded(i, y=1.0), Recorded(i + 1)]) for i in (0, 2))
    assert column(to_frame(pages, "pandas"), "seq") == [0, 1, 2, 3]
    assert column(to_frame(iter([Answer("s", 7, "m")]), "pandas"), "seq") == [7]
    with pytest.raises(InvalidRequest, match="expected answers, history or changes, got str"):
        to_frame("text", "pandas")
    with pytest.raises(InvalidRequest, match="got Predictive"):
        to_frame(Predictive(), "pandas")


def test_an_index_of_times_is_kept():
    pd = pytest.importorskip("pandas")
    index = pd.date_range("2024-01-01", periods=3, freq="D", tz="Europe/Rome", name="when")
    frame = pd.DataFrame({"date": ["a", "b", "c"], "y": [1.0, 2.0, 3.0]}, index=index)
    sent = [f"{day}T23:00:00Z" for day in ("2023-12-31", "2024-01-01", "2024-01-02")]
    service = FrameService()
    with Client(transport=httpx.MockTransport(service)) as client:
        client.observe_frame(frame, stream="s")
        posted = service.posted["s"]
        assert [row["time"] for row in posted] == sent
        client.observe_frame(frame.tz_localize(None), stream="s")
        assert posted[3]["time"] == "2024-01-01T00:00:00Z"
        client.observe("s", frame["y"])
        assert posted[6:] == [{"y": y, "time": t} for y, t in zip([1, 2, 3], sent, strict=True)]
        gap = pd.Series([4.0, 5.0], index=pd.DatetimeIndex(["2024-01-01", pd.NaT]))
        client.observe("s", gap)
        assert posted[9:] == [{"y": 4.0, "time": "2024-01-01T00:00:00Z"}, {"y": 5.0}]
        client.observe("s", pd.Series([6.0]))
        assert posted[11:] == [{"y": 6.0}]


def test_a_column_of_times_is_found_by_its_type(library):
    frame = frame_of(library, {"when": WHEN, "flow": [1.0, 2.0, 3.0]})
    service = FrameService()
    observed(service, frame)
    assert [row["time"] for row in service.posted["s"]] == [
        f"2024-01-0{day}T00:00:00Z" for day in (1, 2, 3)
    ]
