"""Streams whose model needs to be told its shape: what is refused, by name, and leaves no trace."""

import math

import pytest

from service.wire import Configure, Observation, Observe, Predict
from service.worker.streams import limits
from tests.service.worker.kinds import KINDS, configure, publish, series

STREAMS = ("categorical", "exponential", "linear-3", "autoregressive-all", "pcoc")


def label(stream, y, x=None):
    return Observe(stream, [Observation(y=y, x=x)])


def change(stream, **given):
    return Configure(stream, given)


REFUSED = [
    (label("categorical", 4.0), 422, "label-out-of-range", "y"),
    (label("categorical", -1.0), 422, "label-out-of-range", "y"),
    (label("categorical", 1.5), 422, "label-out-of-range", "y"),
    (label("categorical", math.nan), 422, "label-out-of-range", "y"),
    (label("categorical", [1.0, 2.0]), 422, "dimension-mismatch", "y"),
    (label("categorical", 1.0, [1.0]), 422, "dimension-mismatch", "x"),
    (label("exponential", -1e-9), 422, "label-out-of-range", "y"),
    (label("exponential", [1.0, 2.0]), 422, "dimension-mismatch", "y"),
    (label("linear-3", [1.0, 2.0]), 422, "dimension-mismatch", "x"),
    (label("linear-3", [1.0, 2.0], [1.0]), 422, "dimension-mismatch", "x"),
    (label("linear-3", 1.0, [1.0, 2.0, 3.0]), 422, "dimension-mismatch", "y"),
    (label("linear-3", None), 422, "dimension-mismatch", "x"),
    (label("linear-3", [1.0, 2.0], [1.0, 2.0, 1e101]), 422, "label-out-of-range", "x"),
    (Predict("linear-3"), 422, "dimension-mismatch", "x"),
    (Predict("linear-3", x=[[1.0, 2.0, 3.0], [1.0]]), 422, "dimension-mismatch", "x"),
    (label("autoregressive-all", 1.0), 422, "dimension-mismatch", "y"),
    (label("pcoc", 3.0, [1.0, 2.0]), 422, "label-out-of-range", "y"),
    (label("pcoc", 0.5, [1.0, 2.0]), 422, "label-out-of-range", "y"),
    (label("pcoc", 1.0), 422, "dimension-mismatch", "x"),
    (change("categorical", classes=5), 409, "settings-conflict", "classes"),
    (change("categorical", classes=None), 409, "settings-conflict", "classes"),
    (change("categorical", model="bernoulli"), 409, "settings-conflict", "model"),
    (change("linear-3", location=[0.0, 0.0]), 409, "settings-conflict", "location"),
    (change("linear-3", max_hypotheses=10**6), 422, "unfit-settings", "max_hypotheses"),
    (change("autoregressive-all", order=3), 409, "settings-conflict", "order"),
    (change("autoregressive-all", trend=False), 409, "settings-conflict", "trend"),
    (change("autoregressive-all", season=None), 409, "settings-conflict", "season"),
    (change("autoregressive-all", hazard=0.5, season=5), 409, "settings-conflict", "season"),
    (change("pcoc", model="linear"), 409, "settings-conflict", "model"),
]


@pytest.fixture
def bench(make_bench, tmp_path):
    publish(tmp_path / "models")
    return make_bench()


def test_a_refusal_names_the_field_and_changes_nothing(bench):
    for name in STREAMS:
        configure(bench, name, KINDS[name])
        bench.observe(name, series(KINDS[name], 30))
    before = {name: bench.stored(name) for name in STREAMS}
    for command, status, slug, field in REFUSED:
        answer = bench.ask(command, status=status)
        assert answer["type"].endswith(f"/{slug}"), command
        assert answer["field"] == field, command
        assert field in answer["detail"]
        assert {name: bench.stored(name) for name in STREAMS} == before, command
    for name in STREAMS:  # the same again is no change
        configure(bench, name, KINDS[name], status=200)
        bench.observe(name, series(KINDS[name], 3))


@pytest.mark.parametrize(
    ("settings", "slug", "field"),
    [
        ({"model": "categorical"}, "unfit-settings", "classes"),
        ({"model": "linear", "location": [0.0]}, "unfit-settings", "location"),
        ({"model": "linear", "scale": [1.0]}, "unfit-settings", "scale"),
        ({"model": "exponential", "location": [0.0]}, "label-out-of-range", "location"),
        ({"model": "exponential", "location": [1.0, 1.0]}, "dimension-mismatch", "location"),
        ({"model": "categorical", "classes": 3, "location": [0.0, 1.0]}, "dimension-mismatch",
         "location"),
        ({"model": "gaussian", "location": [0.0] * 256, "scale": [1.0] * 256,
          "max_hypotheses": 10**5}, "unfit-settings", "max_hypotheses"),
        ({"model": "gaussian", "location": [0.0] * 256, "scale": [1.0] * 256,
          "max_hypotheses": 652}, "unfit-settings", "max_hypotheses"),
        ({"model": "averaged", "location": [0.0] * 256, "scale": [1.0] * 256,
          "max_hypotheses": 218}, "unfit-settings", "max_hypotheses"),
        ({"model": "multivariate", "location": [0.0] * 256, "max_hypotheses": 2000},
         "unfit-settings", "max_hypotheses"),
        ({"model": "autoregressive", "location": [0.0] * 9, "order": 32}, "unfit-settings",
         "order"),
        ({"model": "autoregressive", "location": [0.0] * 256, "order": 32}, "unfit-settings",
         "order"),
    ],
)  # fmt: skip
def test_settings_that_the_model_cannot_work_with(bench, settings, slug, field):
    answer = bench.ask(Configure("new", settings), status=422)
    assert answer["type"].endswith(f"/{slug}")
    assert answer["field"] == field
    assert bench.stored("new")["head"] is None


@pytest.mark.parametrize(
    ("model", "settings", "seen", "field"),
    [
        ("linear", {}, Observation(y=1.0), "x"),
        ("linear", {"max_hypotheses": 2000}, Observation(y=1.0, x=[0.0] * 256), "max_hypotheses"),
        ("linear", {}, Observation(y=[0.0] * 256, x=[0.0] * 256), "max_hypotheses"),
        ("multivariate", {"max_hypotheses": 200}, Observation(y=[0.0] * 256), "max_hypotheses"),
        ("autoregressive", {"order": 32}, Observation(y=[0.0] * 256), "order"),
        ("autoregressive", {"order": 1}, Observation(y=[0.0] * 257), "order"),
        ("autoregressive", {"max_hypotheses": 2000, "order": 32}, Observation(y=[0.0] * 8),
         "max_hypotheses"),
        ("categorical", {"classes": 1000, "max_hypotheses": 10**4}, None, "max_hypotheses"),
    ],
)  # fmt: skip
def test_a_state_that_would_be_too_large(bench, model, settings, seen, field):
    """Refused before any memory is taken, at whichever command tells how large it would be."""
    made = Configure("a", {"model": model, **settings})
    if seen is None:
        assert bench.ask(made, status=422)["field"] == field
        return
    bench.ask(made, status=201)
    before = bench.stored("a")
    for command in (Observe("a", [seen]), Observe("a", [Observation(x=seen.x), seen])):
        assert bench.ask(command, status=422)["field"] == field
        assert bench.stored("a") == before
    assert not any(slab.rows for slab in bench.worker.engine._slabs.values())


@pytest.mark.parametrize(
    ("model", "seen"),
    [
        ("multivariate", Observation(y=[0.0] * 256)),
        ("linear", Observation(y=1.0, x=[0.0] * 256)),
        ("gaussian", Observation(y=[0.0] * 256)),
        ("averaged", Observation(y=[0.0] * 256)),
        ("autoregressive", Observation(y=[0.0] * 128)),
    ],
)
def test_the_widest_streams_fit_with_the_default_hypotheses(bench, model, seen):
    bench.ask(Configure("a", {"model": model, "max_hypotheses": 50}), status=201)
    bench.observe("a", [seen])


def test_the_first_input_decides(bench):
    bench.ask(Configure("a", {"model": "linear"}), status=201)
    found = bench.ask(Predict("a", x=[[1.0, 2.0]]))
    assert found["predictions"] == [{"x": [1.0, 2.0], "predictive": None}]
    assert bench.head("a").x_dim is None
    several = [Observation(y=1.0, x=[1.0]), Observation(y=1.0, x=[1.0, 2.0])]
    answer = bench.ask(Observe("a", several), status=422)
    assert answer["detail"].startswith("observations[1].x: expected 1 number, got 2")
    assert bench.head("a").x_dim is None
    bench.observe("a", [Observation(x=[1.0, 2.0])])
    assert (bench.head("a").x_dim, bench.head("a").y_dim) == (2, None)
    bench.crash()
    bench.ask(label("a", 1.0, [1.0]), status=422)
    bench.observe("a", [Observation(y=[1.0, 2.0], x=[1.0, 2.0])])
    assert bench.head("a").y_dim == 2


def test_shape_may_change_before_the_first_observation(bench):
    bench.ask(Configure("a", {"model": "categorical", "classes": 3}), status=201)
    bench.ask(label("a", 3.0), status=422)
    bench.ask(Configure("a", {"classes": 5}))
    assert bench.ask(Configure("a", {"classes": None}), status=422)["field"] == "classes"
    (answer,) = bench.observe("a", [4.0])
    assert answer["predictive"]["probabilities"] == pytest.approx([0.2] * 5)
    bench.ask(Configure("b", {"model": "autoregressive", "order": 3, "season": 7}), status=201)
    bench.ask(Configure("b", {"model": "linear", "order": 1, "season": None}))
    bench.observe("b", [Observation(y=1.0, x=[1.0])])


def test_wide_answers_are_whole_and_their_records_short(bench):
    """A covariance of 30 x 30 is answered, and not kept with each record."""
    bench.ask(Configure("a", {"model": "multivariate", "warmup": 3}), status=201)
    labels = [[float(i * (j % 7 + 1) % 11) for j in range(30)] for i in range(1, 10)]
    answers = bench.observe("a", labels)
    assert len(answers[-1]["predictive"]["variance"]) == 30
    (*_, record) = bench.records("a")
    assert record.variance is None
    assert record.mean == answers[-1]["predictive"]["mean"]


@pytest.mark.parametrize(("model", "most"), [("gaussian", 651), ("averaged", 93)])
def test_the_work_of_an_answer_is_bounded(make_bench, monkeypatch, model, most):
    bench = make_bench()
    told = {"model": model, "location": [0.0] * 256, "scale": [1.0] * 256}
    bench.ask(Configure("a", {**told, "max_hypotheses": most}), status=201)
    refused = bench.ask(Configure("a", {**told, "max_hypotheses": most + 1}), status=422)
    assert f"at most {most} fit" in refused["detail"]
    monkeypatch.setattr(limits, "MAX_STEP_EVALUATIONS", 1_000_000)
    wide = make_bench(db=1)
    wide.ask(Configure("a", {**told, "max_hypotheses": most + 1}), status=201)
