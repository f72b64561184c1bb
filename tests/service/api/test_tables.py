"""Observations and answers by columns: JSON and Arrow, both ways, and bodies that are hostile."""

import datetime
import json
import random
import struct
import sys
from pathlib import Path

import pytest

from service.api import tables
from service.api.parsing.bodies import ARROW
from service.problems import InvalidField, MalformedBody, ServiceError
from tests.service.api.calls import packed
from tests.service.api.conftest import BAD_LABEL, located, slug

pa = pytest.importorskip("pyarrow")
POST = "/v1/streams/s/observations"
MANY = "/v1/observations"
BODY = {"Content-Type": ARROW}
LIMITS = (10, 20)  # rows and columns
NAMES = ("stream", "time", "seq")


def forms(**columns):
    return json.loads(tables.forms_of(packed(pa.table(columns)), NAMES, *LIMITS))


def read(response):
    assert response.headers["content-type"] == ARROW, response.text
    return pa.ipc.open_stream(response.content).read_all().to_pydict()


# --- answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["columns", "arrow"])
async def test_answers_of_one_stream_by_columns(api, worker, layout):
    asked = {"format": layout}
    columns = {"columns": lambda response: response.json(), "arrow": read}[layout]
    one = columns(await api.post(POST, params=asked, json={"y": 1}))
    assert (one["seq"], one["warming_up"]) == ([0], [False])
    several = columns(await api.post(POST, params=asked, json=[{"y": 2}] * 600))
    assert several["seq"] == list(range(1, 601))
    assert {len(cells) for cells in several.values()} == {600}


@pytest.mark.parametrize("layout", ["columns", "arrow"])
async def test_answers_of_many_streams_by_columns_with_what_was_refused(api, worker, layout):
    items = [{"stream": "a", "y": 1}, {"stream": "b", "y": BAD_LABEL}, {"y": 1}, {"stream": "a"}]
    response = await api.post(MANY, params={"format": layout}, json=items)
    columns = response.json() if layout == "columns" else read(response)
    assert columns["stream"] == ["a", "b", None, "a"]
    assert columns["status"] == [200, 422, 422, 200]
    assert columns["problem"] == [None, "label-out-of-range", "invalid-field", None]
    assert columns["detail"][1] == "y: not this one"
    assert columns["seq"] == [0, None, None, 1]
    assert columns["warming_up"] == [False, None, None, False]
    fine = await api.post(MANY, params={"format": "columns"}, json=items[:1])
    assert not {"problem", "detail"} & fine.json().keys()


@pytest.mark.parametrize("path", [POST, MANY])
async def test_columns_have_details_where_they_are_asked_for(api, worker, path):
    items = [{"stream": "s", "y": 1}] if path == MANY else [{"y": 1}]
    details = {
        "variance", "log_score", "changepoint_probability", "recent_change_probability",
        "run_length_map", "run_length_mean", "hypotheses", "pruned_mass",
    }  # fmt: skip
    asked = {"params": {"format": "columns"}, "json": items}
    assert not details & (await api.post(path, **asked)).json().keys()
    asked["params"]["detail"] = "full"
    full = (await api.post(path, **asked)).json()
    assert details <= full.keys()
    assert {len(full[name]) for name in details} == {1}


async def test_a_list_that_stops_has_its_answers_by_columns(api, worker):
    posted = [{"y": 1}, {"y": 2}, {"y": BAD_LABEL}]
    for layout in ("columns", "arrow"):  # a problem is JSON in any case
        response = await api.post(POST, params={"format": layout}, json=posted)
        assert (response.status_code, slug(response)) == (422, "label-out-of-range")
        assert response.json()["applied"] == 2
        assert len(response.json()["answers"]["seq"]) == 2
    alone = await api.post(POST, params={"format": "columns"}, json=posted[2])
    assert (alone.status_code, slug(alone)) == (422, "label-out-of-range")


async def test_a_repeat_by_columns_says_that_it_is_one(api, worker):
    key = {"Idempotency-Key": "k"}
    asked = {"params": {"format": "columns"}, "json": [{"y": 1}, {"y": 2}], "headers": key}
    assert "duplicate" not in (await api.post(POST, **asked)).json()
    assert (await api.post(POST, **asked)).json()["duplicate"] == [True, True]
    items = [{"stream": "s", "key": "i", "y": 1}, {"stream": "t", "y": 1}, {"y": 1}]
    for duplicate in (None, [True, False, None]):
        response = await api.post(MANY, params={"format": "columns"}, json=items)
        assert response.json().get("duplicate") == duplicate
        assert "provisional" not in response.json()


async def test_columns_have_no_beliefs_or_components(api, worker):
    for other in ("belief", "components"):
        asked = {"format": "columns", other: "true"}
        response = await api.post(POST, params=asked, json={"y": 1})
        assert (response.status_code, slug(response)) == (422, "invalid-field")
        assert f"expected neither belief nor {other}"[:20] in response.text
    response = await api.post(POST, params={"format": "table"}, json={"y": 1})
    assert located(response) == ["query.format"]
    assert worker.commands == []


async def test_arrow_without_pyarrow_is_said_to_need_it(api, worker, monkeypatch):
    body = packed(pa.table({"stream": ["a"], "y": [1.0]}))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for path in (POST, MANY):
        response = await api.post(path, content=body, headers=BODY)
        assert (response.status_code, slug(response)) == (501, "not-installed")
        assert "pip install 'moca-service[parquet]'" in response.json()["detail"]
        asked = await api.post(path, params={"format": "arrow"}, json=[{"stream": "a", "y": 1}])
        assert (asked.status_code, slug(asked)) == (501, "not-installed")
    assert worker.commands == []


# --- observations -------------------------------------------------------------------------------


async def test_an_arrow_body_is_a_list(api, worker):
    noon = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)
    table = pa.table({"y1": [1.0, None, 3], "y2": [4, 5, 6], "x": [0.5, 1, 2], "time": [noon] * 3})
    key = {"Idempotency-Key": "k"}
    response = await api.post(POST, content=packed(table), headers=BODY | key)
    assert [answer["seq"] for answer in response.json()] == [0, 1, 2]
    seen = worker.commands[-1].observations
    assert [each.y for each in seen] == [[1, 4], [None, 5], [3, 6]]
    assert [each.x for each in seen] == [[0.5], [1.0], [2.0]]
    assert {each.time for each in seen} == {"2024-02-29T12:00:00Z"}
    again = await api.post(POST, content=packed(table), headers=BODY | key)
    assert [answer["duplicate"] for answer in again.json()] == [True] * 3


async def test_an_arrow_body_of_many_streams(api, worker):
    streams = pa.array(["a", "b", "a"]).dictionary_encode()
    table = pa.table({"stream": streams, "y": [1.0, float("nan"), 2.0], "seq": [0, None, 1]})
    response = await api.post(MANY, params={"format": "arrow"}, content=packed(table), headers=BODY)
    assert read(response)["seq"] == [0, 0, 1]
    posted = {command.stream: [o.y for o in command.observations] for command in worker.commands}
    assert posted["b"] == [None]
    bad = pa.table({"stream": ["a", "no name"], "y": [1.0, 2.0]})
    answers = (await api.post(MANY, content=packed(bad), headers=BODY)).json()
    assert [answer["status"] for answer in answers] == [200, 422]


def test_cells_become_what_json_says():
    date = datetime.date(2024, 1, 2)
    naive = pa.array([1_704_164_645_000_000], pa.timestamp("us"))
    assert forms(y=[1.5, None], time=[date, None]) == [
        {"y": 1.5, "time": "2024-01-02T00:00:00Z"},
        {"y": None},
    ]
    assert forms(y=[1], time=naive) == [{"y": 1, "time": "2024-01-02T03:04:05Z"}]
    nanoseconds = pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", "Asia/Tokyo"))
    (form,) = forms(y=[1], time=nanoseconds)
    assert datetime.datetime.fromisoformat(form["time"]).timestamp() == 1_700_000_000.123456
    assert forms(x1=[1.0], x2=[None]) == [{"x": [1.0, None]}]
    assert forms(y=pa.nulls(2)) == [{"y": None}, {"y": None}]


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"y": [1.0] * 11}, "at most 10 observations per request, got 11"),
        ({f"x{i}": [1.0] for i in range(21)}, "at most 20 columns, got 21"),
        ({"y": [1.0], "temperature": [2.0]}, "unknown column 'temperature'; expected y or"),
        ({"time": [["x"]]}, "column 'time': expected numbers, times or text, got list"),
        ({"y": [[1.0]]}, "column 'y': expected numbers, got list"),
        ({"x": pa.array(["x"]).dictionary_encode()}, "column 'x': expected numbers, got dict"),
        ({"y": [True]}, "got bool"),
        ({"y": [float("inf")]}, "column 'y': expected finite numbers"),
        ({"y": [1.0], "stream": ["x" * 1001]}, "at most 1000 characters in a cell, got 1001"),
        ({"time": pa.array([2**62], pa.timestamp("us"))}, "column 'time': "),
        ({"time": pa.array([2**60], pa.timestamp("s"))}, "column 'time': "),
        ({"time": pa.array([0], pa.timestamp("us", "Nowhere"))}, "column 'time': "),
    ],
)
def test_tables_that_are_none_of_observations(table, why):
    with pytest.raises(InvalidField, match="body: ") as error:
        tables.forms_of(packed(pa.table(table)), NAMES, *LIMITS)
    assert why in str(error.value)


def test_a_long_text_of_a_dictionary_is_refused_before_it_is_repeated():
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 10), pa.array(["x" * 100_000]))
    with pytest.raises(InvalidField, match="at most 1000 characters in a cell, got 100000"):
        tables.forms_of(packed(pa.table({"stream": texts})), NAMES, *LIMITS)


def test_a_dictionary_is_looked_at_with_few_batches():
    batch = pa.record_batch({"stream": pa.array(["a"]).dictionary_encode(), "y": [1.0]})
    few = packed(pa.Table.from_batches([batch] * tables.BATCHES))
    limits = (100, 20)
    assert len(json.loads(tables.forms_of(few, NAMES, *limits))) == tables.BATCHES
    many = packed(pa.Table.from_batches([batch] * (tables.BATCHES + 1)))
    with pytest.raises(InvalidField, match="at most 20 batches with dictionaries, got 21"):
        tables.forms_of(many, NAMES, *limits)
    plain = packed(pa.Table.from_batches([batch.drop_columns(["stream"])] * 100))
    assert len(json.loads(tables.forms_of(plain, NAMES, *limits))) == 100


def test_a_zone_that_is_no_text_is_refused():
    whole = packed(pa.table({"time": pa.array([0], pa.timestamp("us", "Europe/Berlin"))}))
    with pytest.raises(ServiceError):
        tables.forms_of(whole.replace(b"Europe/Berlin", b"Europe/B\xffrlin"), NAMES, *LIMITS)


def test_packed_buffers_are_refused_unread(monkeypatch):
    monkeypatch.setattr(pa.ipc, "open_stream", lambda body: pytest.fail("it was read"))
    bomb = packed(pa.table({"y": [0.0] * 9}), compression="zstd")
    with pytest.raises(MalformedBody, match="expected buffers without compression"):
        tables.forms_of(bomb, NAMES, *LIMITS)
    nothing = pa.DictionaryArray.from_arrays(pa.array([0]), pa.nulls(10**9))
    with pytest.raises(MalformedBody, match="a dictionary of 1000000000 values"):
        tables.forms_of(packed(pa.table({"y": nothing})), NAMES, *LIMITS)
    many = packed(pa.table({"y": pa.nulls(10**9)}))  # a few hundred bytes
    with pytest.raises(InvalidField, match="at most 10 observations per request, got 1000000000"):
        tables.forms_of(many, NAMES, *LIMITS)


def test_texts_may_be_views_as_polars_sends_them():
    names = pa.array(["a", None, "ß" * 300, "b"]).cast(pa.string_view())
    assert forms(stream=names, y=[1, 2, 3, 4])[::3] == [
        {"stream": "a", "y": 1},
        {"stream": "b", "y": 4},
    ]
    again = pa.DictionaryArray.from_arrays(pa.array([1, 0, 1]), names.slice(2))
    assert [form["stream"] for form in forms(stream=again)] == ["b", "ß" * 300, "b"]
    long = pa.array(["x" * 1001]).cast(pa.string_view())
    for texts in (long, pa.DictionaryArray.from_arrays(pa.array([0] * 10), long)):
        with pytest.raises(InvalidField, match="at most 1000 characters in a cell, got 1001"):
            forms(stream=texts)


def test_a_name_that_is_there_twice():
    table = pa.table([[1.0], [2.0]], names=["y", "y"])
    with pytest.raises(InvalidField, match="column 'y' is there twice"):
        tables.forms_of(packed(table), NAMES, *LIMITS)


# Found by fuzzing: a column `time` of months, a type that pyarrow reads and has no arrays of.
MONTHS = Path(__file__).parents[2] / "referees" / "corpus" / "arrow" / "months"


def test_a_type_that_pyarrow_has_no_arrays_of_is_refused():
    with pytest.raises(InvalidField, match="expected numbers, times or text, got month_interval"):
        tables.forms_of(MONTHS.read_bytes(), NAMES, *LIMITS)


def test_damaged_bodies_are_refused_and_nothing_worse():
    rng = random.Random(7)
    names = pa.array(["a", "b", "a"]).dictionary_encode()
    whole = packed(pa.table({"stream": names, "y": [1.0, None, 2.0], "time": ["x", "y", "z"]}))
    refused = 0
    for _ in range(3000):
        body = bytearray(whole[: rng.randint(1, len(whole))] if rng.random() < 0.2 else whole)
        for _ in range(rng.randint(1, 4)):
            body[rng.randrange(len(body))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        try:
            tables.forms_of(bytes(body), NAMES, *LIMITS)
        except ServiceError:
            refused += 1
    assert refused > 2000
    for body in (b"", b"[]", struct.pack("<iI", -1, 2**31), whole[:-9]):
        with pytest.raises(MalformedBody, match="invalid Arrow stream"):
            tables.forms_of(body, NAMES, *LIMITS)
