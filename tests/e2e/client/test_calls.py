"""Every call that the service has, by the client, against the running service.

That both clients do the same: tests/moca_client/test_client.py.
"""

import re
from pathlib import Path

import httpx
import numpy
import pandas
import pytest

from moca_client import InvalidRequest, errors
from moca_client.frames import to_frame
from moca_client.responses import Answer
from tests.e2e.calling import KNOWN
from tests.e2e.client.conftest import labels

PAGE = (Path(__file__).parents[3] / "docs" / "client.md").read_text()


def test_a_stream_from_its_making_to_its_end(client, stream):
    made = client.put_stream(stream, KNOWN)
    assert (made.stream, made.seq, made.settings["hazard"]) == (stream, 0, 0.02)
    assert (client.put_stream(stream, {"hazard": 0.05})).settings["hazard"] == 0.05
    assert (client.stream(stream)).model == "gaussian"
    names = [f"{stream}-{i}" for i in range(4)]
    for name in names:
        client.put_stream(name, KNOWN)
    assert list(client.streams(f"{stream}-", limit=3)) == names
    client.delete_stream(stream)
    with pytest.raises(errors.UnknownStream) as caught:
        client.stream(stream)
    problem = caught.value
    assert (problem.status, problem.type) == (404, "unknown-stream")
    assert stream in problem.detail
    assert problem.request_id


def test_observing_one_many_and_items_of_many_streams(client, stream):
    client.put_stream(stream, KNOWN)
    one = client.observe(stream, 0.5)
    assert isinstance(one, Answer)
    assert (one.seq, one.predictive.mean, one.duplicate) == (0, [0.0], False)
    whole = {"y": [0.1], "time": "2024-05-01T12:00:00Z", "elapsed": 2.0}
    assert (client.observe(stream, whole)).time == "2024-05-01T12:00:00Z"
    answers = client.observe(stream, [0.2, None, {"y": 0.3}], belief=True)
    assert [answer.seq for answer in answers] == [2, 3, 4]
    assert answers[1].log_score is None
    assert sum(answers[-1].run_length.belief.probability) == pytest.approx(1)
    assert client.observe(stream, []) == []
    other = stream + "-other"
    client.put_stream(other, KNOWN)
    results = client.observe_many([
        {"stream": stream, "y": 1.0},
        {"stream": other, "y": 5.0, "key": "k"},
        {"stream": stream, "y": [1.0, 2.0]},
        {"stream": stream, "y": 2.0},
        {"stream": other, "y": 5.0, "key": "k"},
    ])  # fmt: skip
    kinds = [type(result).__name__ for result in results]
    assert kinds == ["Answer", "Answer", "Invalid", "EarlierItemFailed", "Answer"]
    assert [results[1].seq, results[4].seq, results[4].duplicate] == [0, 0, True]
    again = client.observe(other, 1.0, key="mine")
    assert (client.observe(other, 1.0, key="mine")).seq == again.seq
    with pytest.raises(errors.Invalid) as caught:
        client.observe(other, 2.0, key="mine")
    assert caught.value.type == "key-reused"
    with pytest.raises(errors.Invalid) as caught:
        client.observe(other, [*(i % 2 for i in range(520)), {"y": [1.0, 2.0]}])
    assert caught.value.type == "dimension-mismatch"
    assert caught.value.document["applied"] == 512
    assert [answer.seq for answer in caught.value.answers] == list(range(2, 514))


def test_what_a_stream_answers_when_it_is_asked(client, stream):
    client.put_stream(stream, KNOWN)
    observed = [(0.5, -0.5)[i % 2] + (6.0 if i >= 30 else 0.0) for i in range(60)]
    client.observe(stream, observed)
    asked = {"quantiles": [0.1, 0.9], "samples": 3, "seed": 0, "components": True}
    predicted = client.predict(stream, **asked)
    (forecast,) = predicted.predictions
    assert list(forecast.predictive.quantiles) == ["0.1", "0.9"]
    assert len(forecast.samples) == 3
    assert sum(component.weight for component in forecast.components) == pytest.approx(1)
    assert client.predict(stream, **asked) == predicted
    belief = client.run_length(stream)
    assert belief.seq == 59
    assert sum(hypothesis.probability for hypothesis in belief.belief) == pytest.approx(1)
    changes = client.changepoints(stream)
    assert changes.events[-1].state == "confirmed"
    assert changes.segmentation[-1].end == 60
    pages = list(client.history(stream, limit=25))
    assert [len(page.observations) for page in pages] == [25, 25, 10]
    assert [record.y for page in pages for record in page.observations] == observed
    latest = list(client.history(stream, start=None, limit=10))
    assert [len(page.observations) for page in latest] == [10]
    tried = client.what_if(stream, {"settings": {"hazard": 0.05}, "series": True})
    assert (tried.stream, tried.first, tried.seq) == (stream, 0, 60)
    assert (tried.settings["hazard"], len(tried.log_score)) == (0.05, 60)
    answer = client.observe(stream, 5.5, components=True, quantiles=[0.1, 0.9])
    assert answer.components == forecast.components
    assert list(answer.predictive.quantiles) == ["0.1", "0.9"]
    (one,) = client.observe_many([{"stream": stream, "y": 6.5}], quantiles=[0.5])
    assert list(one.predictive.quantiles) == ["0.5"]


def test_regimes_are_listed_and_named(client, stream):
    client.put_stream(stream, {**KNOWN, "regimes": 4})
    client.observe(stream, [(0.5, -0.5)[i % 2] + 6.0 * (i // 30 % 2) for i in range(100)])
    low, high = client.regimes(stream)
    assert low.predictive.mean == pytest.approx([0.0], abs=0.2)
    assert high.predictive.mean == pytest.approx([6.0], abs=0.2)
    assert (high.seen, high.last_seen, high.name) == (1, 59, None)
    named = client.name_regime(stream, high.id, "busy")
    assert named.name == "busy"
    assert client.regimes(stream) == [low, named]
    assert client.observe(stream, [6.5, 5.5] * 10)[-1].regime.name == "busy"
    with pytest.raises(errors.Problem, match="remembers no regime 9"):
        client.name_regime(stream, 9, "idle")


def test_inputs_and_models(client, stream):
    client.put_stream(stream, {"model": "linear"})
    rows = [{"x": [float(i % 7)], "y": 2.0 * (i % 7) + i % 2 / 10} for i in range(40)]
    client.observe(stream, rows)
    predictions = client.predict(stream, [[1.0], [3.0]]).predictions
    assert [prediction.predictive.mean[0] for prediction in predictions] == pytest.approx(
        [2, 6], abs=0.3
    )
    with pytest.raises(errors.Invalid, match="422 Dimension mismatch: "):
        client.predict(stream, [[1.0, 2.0]])
    assert {"gaussian", "averaged", "regimes"} <= {model.name for model in client.models()}
    assert (client.model("gaussian")).versions[0].version is None
    assert (client.model("regimes")).versions[0].version == "1"
    with pytest.raises(errors.NotFound):
        client.model("nonesuch")


def test_answers_by_columns_are_those_of_the_objects(client, stream):
    rows = {"y": [float(i * i % 7) + (i > 30) * 20 for i in range(60)]}
    rows["time"] = pandas.date_range("2024-01-01", periods=60, freq="h", tz="UTC")
    frame = pandas.DataFrame(rows)
    table = client.observe_frame(frame, stream=stream, batch=25)
    other = f"{stream}-other"
    items = [{"y": y, "time": time.isoformat()} for y, time in frame.itertuples(index=False)]
    objects = to_frame(client.observe(other, items), "pandas")
    same = table.columns.drop("time")
    pandas.testing.assert_frame_equal(table[same], objects[same])
    assert set(table["event_state"].dropna()) >= {"confirmed"}
    names = [stream, other] * 4
    many = pandas.DataFrame({"stream": names, "y": [1.0, 2.0] * 4})
    back = client.observe_frame(many, by="stream")
    assert list(back["stream"]) == names
    assert list(back["seq"]) == [60, 60, 61, 61, 62, 62, 63, 63]


def test_what_cannot_be_sent_is_refused_by_the_name_of_its_place(client, stream):
    nan, inf = float("nan"), float("inf")
    masked = numpy.ma.array([1.0, 2.0], mask=[False, True])
    bad = {
        r"body\[1\]\.y": [1.0, inf],
        r"body\.y\[1\]": {"y": numpy.array([1.0, -inf], numpy.float32)},
        r"body\.x\[0\]": {"y": 1.0, "x": [nan]},
        r"body\.x": {"y": 1.0, "x": masked},
        "clongdouble|complex256": numpy.clongdouble(1),
        "JSON": {"y": object()},
        "observe_frame": pandas.DataFrame({"y": [1.0]}),
    }
    for place, observation in bad.items():
        with pytest.raises(InvalidRequest, match=place):
            client.observe(stream, observation)
    for x in ([None], [pandas.NA], numpy.longdouble("nan"), numpy.ma.masked):
        with pytest.raises(InvalidRequest, match=r"body\.x"):
            client.observe(stream, {"y": 1.0, "x": x})
    with pytest.raises(InvalidRequest, match=r"body\.x\[0\]\[0\]"):
        client.predict(stream, [[None]])
    with pytest.raises(InvalidRequest, match=r"body\.outlier_rate"):
        client.put_stream(stream, {"outlier_rate": nan})
    with pytest.raises(InvalidRequest, match="stream id"):
        client.observe("", 1.0)
    with pytest.raises(InvalidRequest, match=r"items\[0\]"):
        client.observe_many([{"y": 1.0}])
    with pytest.raises(errors.UnknownStream):
        client.stream(stream)


def test_numbers_of_numpy_pandas_and_polars_are_labels(client, stream):
    polars = pytest.importorskip("polars", reason="polars is not installed")
    client.put_stream(stream, KNOWN)
    nan = float("nan")
    expected = []
    for given, kept in (
        (numpy.float64(1.5), [1.5]),
        (numpy.array(2.5), [2.5]),
        ({"y": numpy.array([1.0])}, [[1.0]]),
        ([numpy.longdouble(0.25), numpy.array(0.5, numpy.longdouble)], [0.25, 0.5]),
        (numpy.array([2.0, nan]), [2.0, None]),
        (nan, [None]),
        ([1.0, numpy.float32(nan), {"y": numpy.nan}], [1.0, None, None]),
        ([pandas.NA, {"y": pandas.NaT}, numpy.ma.masked], [None, None, None]),
        (pandas.Series([3.0, None], dtype="Float64"), [3.0, None]),
        (polars.Series([4.0, 5.0]), [4.0, 5.0]),
        ((6.0, 7.0), [6.0, 7.0]),
        ({"y": 8.0, "time": pandas.Timestamp("2024-05-01", tz="Europe/Berlin")}, [8.0]),
    ):
        answers = client.observe(stream, given)
        count = len(answers) if isinstance(answers, list) else 1
        assert count == len(kept), given
        expected += kept
    assert labels(client, stream) == expected


def test_rows_of_an_array_are_labels_of_several_outputs_of_which_some_are_missing(client, stream):
    client.put_stream(stream, {"model": "joint", "max_hypotheses": 8})
    nan = float("nan")
    client.observe(stream, [{"y": y} for y in ([1.0, None], [3.0, 4.0], [None, None])])
    client.observe(stream, [{"y": [5.0, nan]}])
    client.observe(stream, numpy.array([[nan, 6.0], [nan, nan]]))
    client.observe(stream, {"y": numpy.array([7.0, nan], numpy.float32)})
    expected = [[1.0, None], [3.0, 4.0], None, [5.0, None], [None, 6.0], None, [7.0, None]]
    assert labels(client, stream) == expected
    summary = client.stream(stream)
    assert (summary.y_dim, summary.last) == (2, [7.0, 6.0])


def test_the_examples_of_the_page_run(url, tmp_path, monkeypatch):
    """In a copy of the page's order, as its reader types them."""
    monkeypatch.chdir(tmp_path)
    known = httpx.get(f"{url}/openapi.json").json()["paths"]
    blocks = re.findall(r"(?:<!-- needs: (\S+) -->\n)?```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) > 5
    for needs, code in blocks:
        assert "http://127.0.0.1:8000" in code
        if not needs or needs in known:
            exec(compile(code.replace("http://127.0.0.1:8000", url), "client.md", "exec"), {})
