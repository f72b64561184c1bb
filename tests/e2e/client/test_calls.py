"""Every call that the service has, by both clients, against the running service."""

import inspect
import uuid

import httpx
import numpy
import pandas
import polars
import pytest

from model_core.upm.builtin import BUILTIN
from service.client import AsyncClient, Client, InvalidRequest, errors
from service.schema.responses import Answer

KNOWN = {"model": "gaussian", "location": 0.0, "scale": 1.0, "hazard": 0.02}


@pytest.fixture
def stream():
    return f"s-{uuid.uuid4().hex[:8]}"


def test_both_clients_have_the_same_calls():
    def calls(kind):
        return {
            name: inspect.signature(method).parameters
            for name, method in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    sync, other = calls(Client), calls(AsyncClient)
    assert sync.keys() == other.keys()
    for name, parameters in sync.items():
        assert list(parameters) == list(other[name]), name
        for each in parameters:
            assert parameters[each].default == other[name][each].default, (name, each)


async def test_a_stream_from_its_making_to_its_end(client, stream):
    made = await client.put_stream(stream, KNOWN)
    assert (made.stream, made.seq, made.settings["hazard"]) == (stream, 0, 0.02)
    assert (await client.put_stream(stream, {"hazard": 0.05})).settings["hazard"] == 0.05
    assert (await client.stream(stream)).model == "gaussian@1"
    assert [each async for each in client.streams(stream)] == [stream]
    await client.delete_stream(stream)
    with pytest.raises(errors.UnknownStream) as caught:
        await client.stream(stream)
    problem = caught.value
    assert (problem.status, problem.type) == (404, "unknown-stream")
    assert stream in problem.detail
    assert problem.request_id


async def test_the_list_of_streams_goes_over_pages(client, stream):
    names = [f"{stream}-{i}" for i in range(7)]
    for name in names:
        await client.put_stream(name)
    assert [each async for each in client.streams(stream, limit=3)] == names


async def test_observing_one_and_many(client, stream):
    await client.put_stream(stream, KNOWN)
    one = await client.observe(stream, 0.5)
    assert isinstance(one, Answer)
    assert (one.seq, one.predictive.mean, one.duplicate) == (0, [0.0], False)
    whole = {"y": [0.1], "time": "2024-05-01T12:00:00Z", "elapsed": 2.0}
    assert (await client.observe(stream, whole)).time == "2024-05-01T12:00:00Z"
    answers = await client.observe(stream, [0.2, None, {"y": 0.3}], belief=True)
    assert [answer.seq for answer in answers] == [2, 3, 4]
    assert answers[1].log_score is None
    assert sum(answers[-1].run_length.belief.probability) == pytest.approx(1)
    assert await client.observe(stream, []) == []


async def test_a_key_of_ones_own(client, stream):
    first = await client.observe(stream, 1.0, key="mine")
    again = await client.observe(stream, 1.0, key="mine")
    assert (first.seq, again.seq, again.duplicate) == (0, 0, True)
    with pytest.raises(errors.KeyReused):
        await client.observe(stream, 2.0, key="mine")


async def test_items_of_many_streams(client, stream):
    other = stream + "-other"
    items = [
        {"stream": stream, "y": 1.0},
        {"stream": other, "y": 5.0, "key": "k"},
        {"stream": stream, "y": [1.0, 2.0]},
        {"stream": stream, "y": 2.0},
        {"stream": other, "y": 5.0, "key": "k"},
    ]
    found = await client.observe_many(items)
    assert [type(each).__name__ for each in found] == [
        "Answer",
        "Answer",
        "DimensionMismatch",
        "EarlierItemFailed",
        "Answer",
    ]
    assert [found[1].seq, found[4].seq, found[4].duplicate] == [0, 0, True]
    with pytest.raises(InvalidRequest, match=r"items\[0\]: expected a `stream`"):
        await client.observe_many([{"y": 1.0}])


async def test_reads(client, stream):
    await client.put_stream(stream, KNOWN)
    labels = [(0.5, -0.5)[i % 2] + (6.0 if i >= 30 else 0.0) for i in range(60)]
    await client.observe(stream, labels)
    asked = {"quantiles": [0.1, 0.9], "samples": 3, "seed": 0, "components": True}
    found = await client.predict(stream, **asked)
    (said,) = found.predictions
    assert list(said.predictive.quantiles) == ["0.1", "0.9"]
    assert len(said.samples) == 3
    assert sum(each.weight for each in said.components) == pytest.approx(1)
    again = await client.predict(stream, **asked)
    assert again == found
    belief = await client.run_length(stream)
    assert belief.seq == 59
    assert sum(each.probability for each in belief.belief) == pytest.approx(1)
    changes = await client.changepoints(stream)
    assert changes.events[-1].state == "confirmed"
    assert changes.segmentation[-1].end == 60
    pages = [page async for page in client.history(stream, limit=25)]
    assert [len(page.observations) for page in pages] == [25, 25, 10]
    assert [each.y for page in pages for each in page.observations] == labels
    latest = [page async for page in client.history(stream, start=None, limit=10)]
    assert [len(page.observations) for page in latest] == [10]


async def test_inputs(client, stream):
    await client.put_stream(stream, {"model": "linear"})
    rows = [{"x": [float(i % 7)], "y": 2.0 * (i % 7) + i % 2 / 10} for i in range(40)]
    await client.observe(stream, rows)
    found = await client.predict(stream, [[1.0], [3.0]])
    assert [each.predictive.mean[0] for each in found.predictions] == pytest.approx([2, 6], abs=0.3)
    with pytest.raises(errors.DimensionMismatch):
        await client.predict(stream, [[1.0, 2.0]])


async def test_models(client):
    names = {model.name for model in await client.models()}
    assert {"gaussian", "averaged", "regimes"} <= names
    assert (await client.model("gaussian")).versions[0].version == "1"
    with pytest.raises(errors.NotFound, match="no model 'nonesuch'"):
        await client.model("nonesuch")


async def test_refusals_of_a_list_say_what_was_applied(client, stream):
    with pytest.raises(errors.DimensionMismatch) as caught:
        await client.observe(stream, [*map(float, range(520)), {"y": [1.0, 2.0]}])
    assert caught.value.document["applied"] == 512
    assert [answer.seq for answer in caught.value.answers] == list(range(512))


async def test_what_cannot_be_sent(client, stream):
    with pytest.raises(InvalidRequest, match=r"body\[1\]\.y: expected a finite number, got inf"):
        await client.observe(stream, [1.0, float("inf")])
    with pytest.raises(InvalidRequest, match=r"body\.y\[1\]: expected a finite number, got -inf"):
        await client.observe(stream, {"y": numpy.array([1.0, -numpy.inf], numpy.float32)})
    with pytest.raises(InvalidRequest, match=r"body\.x\[0\]: .* got nan; only labels may be"):
        await client.observe(stream, {"y": 1.0, "x": [numpy.nan]})
    masked = numpy.ma.array([1.0, 2.0], mask=[False, True])
    for x in ([None], [pandas.NA], masked, {numpy.nan}, numpy.longdouble("nan"), numpy.ma.masked):
        with pytest.raises(InvalidRequest, match=r"body\.x.*: expected .*; only labels may be"):
            await client.observe(stream, {"y": 1.0, "x": x})
    with pytest.raises(InvalidRequest, match=r"body\.x\[0\]\[0\]: .* got None; only labels may"):
        await client.predict(stream, [[None]])
    with pytest.raises(InvalidRequest, match="clongdouble|complex256"):
        await client.observe(stream, numpy.clongdouble(1))
    with pytest.raises(InvalidRequest, match=r"body\.outlier_rate: .* got nan"):
        await client.put_stream(stream, {"outlier_rate": float("nan")})
    with pytest.raises(InvalidRequest, match="expected a stream id"):
        await client.observe("", 1.0)
    with pytest.raises(InvalidRequest, match="JSON"):
        await client.observe(stream, {"y": object()})
    with pytest.raises(errors.UnknownStream):
        await client.stream(stream)


async def test_refusals_by_the_service(client, stream):
    with pytest.raises(errors.InvalidField) as caught:
        await client.observe(stream, {"y": "high", "why": 1})
    assert [each.loc for each in caught.value.errors] == ["body.y", "body.why"]
    with pytest.raises(errors.UnknownModel):
        await client.put_stream(stream, {"model": "nonesuch"})
    await client.put_stream(stream, {"model": "bernoulli"})
    with pytest.raises(errors.LabelOutOfRange):
        await client.observe(stream, 3.0)
    await client.observe(stream, 1)
    with pytest.raises(errors.SettingsConflict):
        await client.put_stream(stream, {"location": 3.0})
    with pytest.raises(errors.SeqConflict) as conflict:
        await client.observe(stream, {"y": 1, "seq": 7})
    assert conflict.value.seq == 1


async def test_nobody_there(connect):
    client = connect("http://127.0.0.1:1", retry_for_s=0.2)
    with pytest.raises(errors.Unavailable, match="ConnectError") as caught:
        await client.observe("s", 1.0)
    assert not isinstance(caught.value, errors.OutcomeUnknown)  # nothing was ever sent
    with pytest.raises(InvalidRequest, match="http"):
        await connect("localhost:8000").stream("a")


async def test_the_mixture_and_levels_of_ones_own(client, stream):
    await client.put_stream(stream, KNOWN)
    await client.observe(stream, [0.1, -0.3, 5.0])
    (expected,) = (await client.predict(stream, quantiles=[0.1, 0.9], components=True)).predictions
    answer = await client.observe(stream, 0.5, components=True, quantiles=[0.1, 0.9])
    assert answer.components == expected.components
    assert answer.components[0].family == "StudentT"
    assert list(answer.predictive.quantiles) == ["0.1", "0.9"]
    items = [{"stream": stream, "y": 0.5}]
    (one,) = await client.observe_many(items, components=True, quantiles=[0.5])
    assert len(one.components) == 6
    assert list(one.predictive.quantiles) == ["0.5"]
    plain = await client.observe(stream, 0.5)
    assert plain.components is None
    assert list(plain.predictive.quantiles) == ["0.05", "0.5", "0.95"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("model", "outputs"),
    [
        (name, n)
        for name, each in BUILTIN.items()
        for n in (1, 2)
        if n == 1 or "y_dim" in each.takes
    ],
)
async def test_the_mixture_of_every_model_and_number_of_outputs(client, stream, model, outputs):
    entry = BUILTIN[model]
    await client.put_stream(stream, {"model": model} | ({"classes": 4} if entry.needs else {}))
    labels = [0, 1] if model.startswith("bernoulli") else [1, 2, 3]
    x = {"x": [0.5]} if "x_dim" in entry.takes else {}
    seen = [
        {"y": [labels[(i * i + k) % len(labels)] for k in range(outputs)]} | x for i in range(30)
    ]
    last = (await client.observe(stream, seen, components=True))[-1]
    points = {"x": [[0.5]]} if x else {}
    (next_,) = (await client.predict(stream, components=True, **points)).predictions
    for components in (last.components, next_.components):
        assert sum(each.weight for each in components) == pytest.approx(1)
    names = {"joint_df", "joint_loc", "joint_factor", "choice"}
    assert names.issubset(next_.components[0].parameters) == (model == "joint@1")


@pytest.mark.parametrize("levels", ["quantiles=1", "quantiles=0.5,x", "quantiles=nan"])
def test_levels_that_are_none(stream, levels, service_url):
    answer = httpx.post(f"{service_url}/v1/streams/{stream}/observations?{levels}", json={"y": 1.0})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["loc"].startswith("query.quantiles")


@pytest.mark.parametrize("several", [numpy.array, pandas.Series, polars.Series, list, tuple])
async def test_several_labels_are_several_observations(client, stream, several):
    answers = await client.observe(stream, several([1.0, 2.0, 3.0]))
    assert [answer.seq for answer in answers] == [0, 1, 2]


async def test_rows_of_an_array_are_observations_of_several_outputs(client, stream):
    answers = await client.observe(stream, numpy.array([[1.0, 2.0], [3.0, 4.0]]))
    assert [answer.seq for answer in answers] == [0, 1]
    assert (await client.stream(stream)).y_dim == 2


async def test_an_output_may_be_missing(client, stream):
    labels = [[1.0, None], [None, 2.0], [3.0, 4.0], [None, None]]
    await client.observe(stream, [{"y": y} for y in labels])
    assert (await client.stream(stream)).last == [3.0, 4.0]
    await client.observe(stream, [{"y": [5.0, float("nan")]}])
    await client.observe(stream, numpy.array([[numpy.nan, 6.0], [numpy.nan, numpy.nan]]))
    await client.observe(stream, {"y": numpy.array([7.0, numpy.nan], numpy.float32)})
    labels += [[5.0, None], [None, 6.0], [None, None], [7.0, None]]
    assert [each.y async for page in client.history(stream) for each in page.observations] == [
        None if y == [None, None] else y for y in labels
    ]


async def test_nan_is_a_missing_label(client, stream):
    nan = float("nan")
    assert (await client.observe(stream, nan)).log_score is None
    await client.observe(stream, [1.0, numpy.float32(nan), numpy.float64(nan), {"y": numpy.nan}])
    await client.observe(stream, numpy.array([2.0, nan]))
    await client.observe_many([{"stream": stream, "y": nan}])
    await client.observe(stream, [pandas.NA, {"y": pandas.NaT}, numpy.ma.masked])
    await client.observe(stream, pandas.Series([3.0, None], dtype="Float64"))
    found = [each.y async for page in client.history(stream) for each in page.observations]
    assert found == [None, 1.0, None, None, None, 2.0, *[None] * 5, 3.0, None]


async def test_numbers_of_numpy_are_labels(client, stream):
    assert isinstance(await client.observe(stream, numpy.float64(1.5)), Answer)
    assert isinstance(await client.observe(stream, numpy.array(1.5)), Answer)
    assert isinstance(await client.observe(stream, {"y": numpy.array([1.0])}), Answer)
    await client.observe(stream, [numpy.longdouble(0.25), numpy.array(0.5, numpy.longdouble)])
    await client.observe(stream, numpy.array([0.75], numpy.longdouble))
    found = [each.y async for page in client.history(stream) for each in page.observations]
    assert found == [1.5, 1.5, [1.0], 0.25, 0.5, 0.75]
    await client.put_stream(f"{stream}-x", {"model": "linear"})
    await client.observe(f"{stream}-x", {"y": 1.0, "x": numpy.array([2], numpy.longdouble)})


async def test_a_frame_is_refused_by_name(client, stream):
    with pytest.raises(InvalidRequest, match="observe_frame"):
        await client.observe(stream, pandas.DataFrame({"y": [1.0]}))


async def test_what_if_is_typed(client, stream):
    await client.put_stream(stream, {"model": "gaussian", "location": 0, "scale": 1})
    await client.observe(stream, [0.1, -0.2] * 10)
    found = await client.what_if(stream, {"settings": {"hazard": 0.05}, "series": True})
    assert (found.stream, found.first, found.seq, found.warming_up) == (stream, 0, 20, False)
    assert (found.settings["hazard"], found.settings["model"]) == (0.05, "gaussian@1")
    assert len(found.log_score) == 20
    assert found.events == []
