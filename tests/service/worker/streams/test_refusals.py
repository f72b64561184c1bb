"""What is refused names a field and changes nothing; a step that is not finite is not taken."""

import json
import math

import pytest

from model_core.upm.builtin import Options
from model_core.upm.conjugate import Gaussian
from service.observability import metrics
from service.wire import Configure, Delete, Observation, Observe, Predict, RunLength
from service.worker.streams import validation
from tests.service.worker.conftest import BAD, Fragile, slug
from tests.service.worker.kinds import KINDS, configure, series

ALL = [i / 100 for i in range(1, 100)]
KINDS_REFUSED = ("gaussian", "categorical", "exponential", "gamma", "linear-3",
                 "autoregressive-all", "poisson", "bernoulli", "multivariate-3")  # fmt: skip
DIMENSION, RANGE, CONFLICT = "dimension-mismatch", "label-out-of-range", "settings-conflict"


def label(stream, *labels, x=None, seq=None):
    return Observe(stream, [Observation(y=y, x=x) for y in labels], seq=seq)


def change(stream, **given):
    return Configure(stream, given)


REFUSED = [
    (label("gaussian", [1.0, 2.0]), 422, DIMENSION, "y"),
    (label("gaussian", 1.0, [1.0, 2.0]), 422, DIMENSION, "y"),
    (label("gaussian", 1.0, x=[1.0]), 422, DIMENSION, "x"),
    (label("gaussian", 1.1e100), 422, RANGE, "y"),
    (label("gaussian", math.nan), 422, RANGE, "y"),
    (label("gaussian", -math.inf), 422, RANGE, "y"),
    (label("gaussian", 1.0, seq=29), 409, "seq-conflict", None),
    (label("gaussian", 1.0, seq=31), 409, "seq-conflict", None),
    (Predict("gaussian", x=[[1.0]]), 422, DIMENSION, "x"),
    (change("gaussian", model="poisson"), 409, CONFLICT, "model"),
    (change("gaussian", model="nothing"), 422, "unknown-model", None),
    (change("gaussian", hazard=0.5, location=[0.5]), 409, CONFLICT, "location"),
    (change("gaussian", scale=[2.0]), 409, CONFLICT, "scale"),
    (change("gaussian", max_hypotheses=5, warmup=3), 409, CONFLICT, "warmup"),
    (label("poisson", 0.5), 422, RANGE, "y"),
    (label("poisson", -1.0), 422, RANGE, "y"),
    (label("poisson", 1e16), 422, RANGE, "y"),
    (label("bernoulli", 2.0), 422, RANGE, "y"),
    (label("categorical", 4.0), 422, RANGE, "y"),
    (label("categorical", -1.0), 422, RANGE, "y"),
    (label("categorical", 1.5), 422, RANGE, "y"),
    (label("categorical", 1.0, x=[1.0]), 422, DIMENSION, "x"),
    (label("exponential", -1e-9), 422, RANGE, "y"),
    (label("gamma", 0.0), 422, RANGE, "y"),
    (label("exponential", [1.0, 2.0]), 422, DIMENSION, "y"),
    (label("linear-3", [1.0, 2.0]), 422, DIMENSION, "x"),
    (label("linear-3", [1.0, 2.0], x=[1.0]), 422, DIMENSION, "x"),
    (label("linear-3", 1.0, x=[1.0, 2.0, 3.0]), 422, DIMENSION, "y"),
    (label("linear-3", [1.0, None], x=[1.0, 2.0, 3.0]), 422, DIMENSION, "y"),
    (label("multivariate-3", [1.0, None, 2.0]), 422, DIMENSION, "y"),
    (label("linear-3", None), 422, DIMENSION, "x"),
    (label("linear-3", [1.0, 2.0], x=[1.0, 2.0, 1e101]), 422, RANGE, "x"),
    (label("linear-3", [1.0, 2.0], x=[1.0, 2.0, math.nan]), 422, RANGE, "x"),
    (Predict("linear-3"), 422, DIMENSION, "x"),
    (Predict("linear-3", x=[[1.0, 2.0, 3.0], [1.0]]), 422, DIMENSION, "x"),
    (label("autoregressive-all", 1.0), 422, DIMENSION, "y"),
    (change("categorical", classes=5), 409, CONFLICT, "classes"),
    (change("categorical", classes=None), 409, CONFLICT, "classes"),
    (change("linear-3", location=[0.0, 0.0]), 409, CONFLICT, "location"),
    (change("linear-3", max_hypotheses=10**6), 422, "unfit-settings", "max_hypotheses"),
    (change("autoregressive-all", order=3), 409, CONFLICT, "order"),
    (change("autoregressive-all", trend=False), 409, CONFLICT, "trend"),
    (change("autoregressive-all", hazard=0.5, season=5), 409, CONFLICT, "season"),
    (change("gaussian", seasonal=True), 409, CONFLICT, "seasonal"),
]  # fmt: skip


def test_a_refusal_names_the_field_and_changes_nothing(bench):
    for name in KINDS_REFUSED:
        configure(bench, name, KINDS[name])
        bench.observe(name, series(KINDS[name], 30))
    before = {name: bench.stored(name) for name in KINDS_REFUSED}
    for i, (command, status, expected, field) in enumerate(REFUSED):
        if i % 6 == 0:  # a stream just loaded refuses as one that was there
            bench.crash()
        answer = bench.ask(command, status=status)
        assert slug(answer) == expected, command
        if field is not None:
            assert answer["field"] == field, command
        if isinstance(command, Observe):
            assert answer["applied"] == 0
        assert bench.stored(command.stream) == before[command.stream], command
    assert {name: bench.stored(name) for name in KINDS_REFUSED} == before
    for name in KINDS_REFUSED:  # the same again is no change
        configure(bench, name, KINDS[name], status=200)
        bench.observe(name, series(KINDS[name], 3))
    head = bench.head("gaussian")
    assert (head.settings.hazard, head.settings.max_hypotheses) == (None, 20)


WIDE = {"location": [0.0] * 256, "scale": [1.0] * 256}
UNFIT = [  # of new streams
    ({"model": "nothing"}, "unknown-model", None),
    ({"model": "poisson", "location": [1.0, 2.0]}, DIMENSION, "location"),
    ({"model": "poisson", "location": [0.0]}, RANGE, "location"),
    ({"location": [1.0, 2.0], "scale": [1.0]}, DIMENSION, "scale"),
    ({"model": "categorical"}, "unfit-settings", "classes"),
    ({"model": "linear", "location": [0.0]}, "unfit-settings", "location"),
    ({"model": "linear", "scale": [1.0]}, "unfit-settings", "scale"),
    ({"model": "exponential", "location": [0.0]}, RANGE, "location"),
    ({"model": "categorical", "classes": 3, "location": [0.0, 1.0]}, DIMENSION, "location"),
    ({"model": "poisson", "seasonal": True}, "unfit-settings", "seasonal"),
    ({"model": "multivariate", "location": [0.0] * 256, "max_hypotheses": 2000}, "unfit-settings",
     "max_hypotheses"),
    ({"model": "categorical", "classes": 1000, "max_hypotheses": 10**4}, "unfit-settings",
     "max_hypotheses"),
    ({"model": "autoregressive", "location": [0.0] * 9, "order": 32}, "unfit-settings", "order"),
    ({"order": 3}, "unfit-settings", "order"),
    ({"order": 3, "location": [0.0, 1.0]}, "unfit-settings", "order"),
    ({"model": "gaussian", "trend": True}, "unfit-settings", "trend"),
    ({"model": "categorical", "classes": 3, "season": 4}, "unfit-settings", "season"),
    ({"model": "linear", "classes": 3}, "unfit-settings", "classes"),
]  # fmt: skip


def test_settings_that_a_model_cannot_work_with_make_no_stream(bench):
    for settings, expected, field in UNFIT:
        answer = bench.ask(Configure("new", settings), status=422)
        assert slug(answer) == expected, settings
        assert field is None or answer["field"] == field, settings
    observed = [
        label("new", 1.0, x=[1.0]),
        label("new", 1.0, seq=1),
        label("new", 1.0, [1.0, 2.0]),
        Predict("new"),
        Delete("new"),
    ]
    for command in observed:
        (outcome,) = bench.send(command)
        assert 404 <= outcome.status <= 422, command
    stored = bench.stored("new")
    assert stored.pop("head") is None
    assert not any(stored.values())


@pytest.mark.parametrize(("model", "most"), [("gaussian", 1302), ("averaged", 72)])
def test_the_work_of_an_answer_is_bounded(make_bench, monkeypatch, model, most):
    bench = make_bench()
    given = {"model": model, **WIDE}
    bench.ask(Configure("a", {**given, "max_hypotheses": most}), status=201)
    answer = bench.ask(Configure("b", {**given, "max_hypotheses": most + 1}), status=422)
    assert (slug(answer), answer["field"]) == ("unfit-settings", "max_hypotheses")
    monkeypatch.setattr(validation, "MAX_STEP_EVALUATIONS", 2_000_000)
    bench.ask(Configure("b", {**given, "max_hypotheses": most + 1}), status=201)


@pytest.mark.parametrize(
    ("model", "settings", "seen", "field"),
    [
        ("linear", {}, Observation(y=1.0), "x"),
        ("linear", {"max_hypotheses": 2000}, Observation(y=1.0, x=[0.0] * 256), "max_hypotheses"),
        ("multivariate", {"max_hypotheses": 200}, Observation(y=[0.0] * 256), "max_hypotheses"),
        ("autoregressive", {"order": 32}, Observation(y=[0.0] * 256), "order"),
        ("autoregressive", {"order": 1}, Observation(y=[0.0] * 257), "order"),
    ],
)
def test_a_state_that_would_be_too_large(bench, model, settings, seen, field):
    """Refused before any memory is taken, at the observation that tells how large it would be."""
    bench.ask(Configure("a", {"model": model, **settings}), status=201)
    before = bench.stored("a")
    for command in (Observe("a", [seen]), Observe("a", [Observation(x=seen.x), seen])):
        assert bench.ask(command, status=422)["field"] == field
        assert bench.stored("a") == before
    assert not any(slab.rows for slab in bench.worker.engine._slabs.values())


def test_the_first_input_decides(bench):
    bench.ask(Configure("a", {"model": "linear"}), status=201)
    found = bench.ask(Predict("a", x=[[1.0, 2.0]]))
    assert found["predictions"] == [{"x": [1.0, 2.0], "predictive": None}]
    assert bench.head("a").x_dim is None
    several = [Observation(y=1.0, x=[1.0]), Observation(y=1.0, x=[1.0, 2.0])]
    answer = bench.ask(Observe("a", several), status=422)
    assert answer["detail"].startswith("observations[1].x: ")
    assert bench.head("a").x_dim is None
    bench.observe("a", [Observation(x=[1.0, 2.0])])
    assert (bench.head("a").x_dim, bench.head("a").y_dim) == (2, None)
    bench.crash()
    bench.ask(label("a", 1.0, x=[1.0]), status=422)
    bench.observe("a", [Observation(y=[1.0, 2.0], x=[1.0, 2.0])])
    assert bench.head("a").y_dim == 2


# --- reads that would take too long -------------------------------------------------------------


def test_reads_of_many_outputs_or_quantiles_are_refused(bench):
    bench.ask(Configure("wide", {"model": "linear", "warmup": 3}), status=201)
    seen = [Observation(x=[float(i)], y=[float(i * j % 7) for j in range(256)]) for i in range(4)]
    bench.observe("wide", seen)
    points = [[i / 1000] for i in range(1000)]
    many = {"location": [0.0], "scale": [1.0], "max_hypotheses": 2000, "model": "averaged"}
    bench.ask(Configure("many", many), status=201)
    bench.observe("many", [0.0, 1.0])
    for command in (
        Predict("wide", points),
        Predict("wide", points[:2], samples=1000),
        Predict("many", None, ALL, horizon=100),
        Predict("many", None, [0.5], horizon=100, samples=1000),
        Observe("many", [Observation(y=1.0)] * 32, quantiles=ALL),
    ):
        assert slug(bench.ask(command, status=422)) == "unfit-model", command
    assert len(bench.ask(Predict("wide", points[:2]))["predictions"]) == 2
    assert bench.ask(Predict("many", None, ALL, components=True))["predictions"]


def test_forecasts_of_many_outputs_are_as_short_as_a_worker_has_time_for(bench):
    """A worker that draws paths for longer than its lease loses its partitions."""
    settings = {"model": "joint", "location": [0.0] * 16, "scale": [1.0] * 16}
    bench.ask(Configure("vector", settings), status=201)
    bench.observe("vector", [[0.0] * 16, [1.0] * 16])
    refused = bench.ask(Predict("vector", None, [0.5], horizon=24), status=422)
    assert slug(refused) == "unfit-model"
    assert "at most 18 labels" in refused["detail"]
    assert len(bench.ask(Predict("vector", None, [0.5], horizon=2))["predictions"]) == 2
    for levels, most in ((ALL, 1), ([1e-6, 0.5], 4), ([0.5, 1 - 1e-4], 4)):
        refused = bench.ask(Predict("vector", None, levels, horizon=most + 1), status=422)
        assert f"at most {most} labels do not" in refused["detail"]
    assert len(bench.ask(Predict("vector", None, ALL, horizon=1))["predictions"]) == 1


# --- batches and numerical faults ---------------------------------------------------------------


def test_a_label_beyond_all_scales_is_the_senders_fault(bench):
    """Also within a list, which is applied up to there."""
    for model in ("gaussian", "averaged"):
        settings = {"model": model, "location": [1e100], "scale": [1e-100]}
        bench.ask(Configure(model, settings), status=201)
        (answer,) = bench.observe(model, [1000.0], status=422)
        assert slug(answer) == RANGE
        assert bench.ask(RunLength(model))["seq"] is None
        first, second, answer = bench.observe(model, [1e100, 1e100, 1000.0, 1e100], status=422)
        assert (slug(answer), answer["applied"], second["seq"]) == (RANGE, 2, 1)
        belief = bench.ask(RunLength(model))
        bench.crash()
        assert bench.ask(RunLength(model)) == belief
        assert belief["seq"] == 1


def serve(bench, model):
    bench.worker.engine.catalogue._built["gaussian", Options()] = model


@pytest.fixture
def fragile(make_bench):
    bench = make_bench(partitions=1)
    serve(bench, Fragile())
    for name in "ab":
        bench.ask(Configure(name, {"location": [0.0], "scale": [1.0]}), status=201)
    return bench


def test_a_step_that_is_not_finite_is_not_taken(fragile):
    fragile.observe("a", [1.0, 2.0])
    before, belief = fragile.stored("a"), fragile.ask(RunLength("a"))
    answer = fragile.ask(label("a", BAD), status=500)
    assert slug(answer) == "numerical-fault"
    assert (answer["seq"], answer["applied"]) == (2, 0)
    assert fragile.stored("a") == before
    assert fragile.ask(RunLength("a")) == belief
    assert fragile.observe("a", [1.5])[0]["seq"] == 2


def test_a_list_stops_at_a_fault_and_batch_mates_go_on(fragile):
    keyed = Observe("a", [Observation(y=v) for v in (1.0, BAD, 2.0)], key="k", digest="d")
    counter = metrics.OBSERVATIONS.labels("refused")
    before = counter._value.get()
    first, second, other = fragile.send(keyed, label("a", 3.0), label("b", 4.0))
    assert first.status == 500
    answers = [json.loads(each) for each in first.body]
    assert [each.get("seq") for each in answers] == [0, 1]
    assert answers[1]["applied"] == 1
    assert counter._value.get() == before + 2
    assert json.loads(second.body[0])["seq"] == 1
    assert other.status == 200
    # It was applied in part: a repeat must not apply that part again.
    (again,) = fragile.send(keyed)
    assert again.status == 500
    assert json.loads(again.body[0])["duplicate"]


def test_a_fault_without_effect_may_be_tried_again_under_its_key(fragile):
    keyed = Observe("a", [Observation(y=BAD)], key="k", digest="d")
    assert fragile.send(keyed)[0].status == 500
    serve(fragile, Gaussian())
    fragile.crash()
    assert fragile.send(keyed)[0].status == 200
