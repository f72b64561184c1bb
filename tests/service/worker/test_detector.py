"""A `Detector`, and `moca evaluate`, answer what a stream of the service does."""

import json
import math
import random

import numpy as np
import pytest
from msgspec.structs import replace

from model_core import Detector
from model_core.errors import BadInput
from model_core.stream import season, warmup
from model_core.stream.slab import Slab
from model_core.stream_settings import StreamSettings
from model_core.upm.builtin import Options, build
from service.schema import rendering
from service.wire import (
    Configure,
    Observation,
    Observe,
    Predict,
    SegmentHistory,
)
from service.worker.commands import rerun
from tests.service.worker.kinds import KINDS, publish, series
from training.online import follow

# Of the JSON answer: what a detector has, too.
MEMBERS = (
    "seq", "model", "predictive", "log_score", "changed_probability", "changepoint_probability",
    "recent_change_probability", "anomaly", "run_length", "warming_up",
)  # fmt: skip
LEVELS = [0.0, 3.0, -2.0, 5.0]
EXACT = 1e-12


def labels(model, count, seed=5):
    """Regimes of 30 observations, as labels of the model; some are missing."""
    rng = random.Random(seed)
    y = [rng.gauss(LEVELS[t // 30 % 4], 1.0) for t in range(count)]
    if model == "poisson":
        y = [float(round(abs(10 * value))) for value in y]
    if model in ("exponential", "gamma"):
        y = [abs(value) + 0.1 for value in y]
    if model == "bernoulli":
        y = [float(value > 2) for value in y]
    y[3] = y[45] = None
    return y


def observations(y, **more):
    return [Observation(y=value, **more) for value in y]


def agree(close, detector, answers, seen, tolerance=EXACT):
    """Take observations in one by one, and compare each answer."""
    for each, served in zip(seen, answers, strict=True):
        ours = detector.update(each.y, each.x, each.elapsed, each.changepoint).to_dict()
        at = f"seq {served['seq']}"
        for name in MEMBERS:
            if name != "model" or ours[name]:  # no label has decided on it yet
                close(ours[name], served[name], tolerance, at)
        assert ours.get("season") == served.get("season"), at
        close(ours.get("regime"), served.get("regime"), tolerance, at)
        for name in ("new_probability", "return_evidence"):
            close(ours.get(name), served.get(name), tolerance, at)
        event = served["event"]
        if event is not None:  # the detector has no clock
            assert event.pop("start_arrived") == (event.pop("start_time") is not None)
            assert ours["event"].pop("start_time") is None
        close(ours["event"], event, tolerance, at)


def listed(detector, bench, stream="a"):
    """Compare events, anomalies and the segmentation in hindsight."""
    every = detector._all.events(0, withdrawn=True)
    ours = [(each.id, each.state, each.start, each.direction) for each in every]
    theirs = bench.events(stream)
    assert ours == [(each.id, each.state, each.start, each.direction) for each in theirs]
    assert [each.id for each in detector.anomalies] == [e.id for e in bench.anomalies(stream)]
    bench.send(SegmentHistory(stream))
    head = bench.head(stream)
    segments = rendering.segmentation(head, bench.records(stream), theirs, bench.hindsight(stream))
    assert [(s.start, s.end) for s in detector.segments()] == [(s.start, s.end) for s in segments]


def foreseen(close, detector, bench, **more):
    """Compare forecasts."""
    served = bench.ask(Predict("a", horizon=3, **more))["predictions"]
    for ours, theirs in zip(detector.forecast(3, **more), served, strict=True):
        close(ours.to_dict(), theirs["predictive"], 1e-9)


@pytest.fixture
def detect(make_bench):
    """Build a bench and a detector of stream a."""

    def build(settings, model=None):
        bench = make_bench()
        if settings:
            bench.ask(Configure("a", settings), status=201)
        given = dict(settings)
        if isinstance(given.get("hazard"), list):
            given["hazard"] = tuple(given["hazard"])
        if model is not None:
            given["model"] = model
        return bench, Detector(**given, name="a")

    return build


def test_a_label_that_is_refused_at_the_end_of_its_list(detect, monkeypatch):
    """It is an error as anywhere else: neither passed over nor tried for ever."""
    far = {"model": "gaussian", "location": [1e100], "scale": [1e-100]}
    bench, detector = detect(far)
    tried, through = [], Slab.through

    def counting(*arguments, **more):
        tried.append(arguments)
        assert len(tried) <= 6, "it is tried for ever"
        return through(*arguments, **more)

    monkeypatch.setattr(Slab, "through", counting)
    labels = [1e100, 1e100, 1000.0]
    *served, problem = bench.observe("a", labels, status=422)
    assert problem["applied"] == 2
    with pytest.raises(BadInput) as caught:
        detector.update_many(labels)
    assert [each.seq for each in caught.value.answers] == [each["seq"] for each in served] == [0, 1]


@pytest.mark.parametrize(("seasonal", "calls"), [(None, [20, 1]), (True, [1] * 21)])
def test_the_warm_up_of_a_list_is_forecast_at_once(detect, monkeypatch, seasonal, calls):
    """One by one where each label moves the season of the next; as a label that is missing is."""
    bench, detector = detect({"model": "gaussian", "seasonal": seasonal})
    asked = []
    forecasts = warmup.forecasts

    def counted(slab, histories, *more):
        asked.append(len(histories))
        return forecasts(slab, histories, *more)

    monkeypatch.setattr(warmup, "forecasts", counted)
    y = [None, *np.random.default_rng(2).normal(size=29).tolist()]
    bench.observe("a", y)
    detector.update_many([math.nan if value is None else value for value in y])
    assert asked == calls * 2


@pytest.mark.parametrize(
    ("settings", "y", "x"),
    [
        ({"model": "categorical"}, 0.0, None),
        ({"model": "poisson", "seasonal": True}, 0.0, None),
        ({"model": "poisson", "location": [0.0]}, 0.0, None),
        ({"model": "poisson", "location": [1.0, 2.0]}, 0.0, None),
        ({"model": "linear", "scale": [1.0]}, 0.0, [1.0]),
        ({"model": "gaussian"}, [1.0, 2.0], None),
        ({"model": "gaussian"}, 1e101, None),
        ({"model": "gaussian"}, 1.0, [1.0]),
        ({"model": "poisson"}, 0.5, None),
        ({"model": "linear"}, 1.0, [1.0, 2.0, 3.0]),
        ({"model": "linear"}, 1.0, [1.0, 1e101]),
        ({"model": "linear"}, [1.0, None], [1.0, 2.0]),
        ({"model": "linear"}, 1.0, None),
    ],
    ids=str,
)
def test_a_refusal_has_the_same_words(bench, settings, y, x):
    """Of settings, and of a label or an input after a first one of two numbers."""
    known = {"linear": Observation(y=[0.5, 1.0] if isinstance(y, list) else 0.5, x=[1.0, 2.0])}
    first = known.get(settings["model"], Observation(y=1.0))
    with pytest.raises(BadInput) as caught:
        taken(settings, [first, Observation(y=y, x=x)])
    (outcome,) = bench.send(Configure("a", settings))
    if outcome.status == 201:
        bench.observe("a", [first])
        (outcome,) = bench.send(Observe("a", [Observation(y=y, x=x)]))
    problem = json.loads(outcome.body[0])
    assert problem["detail"] == str(caught.value)
    assert problem["field"] == caught.value.field


def taken(settings, seen):
    """A detector that has taken observations."""
    detector = Detector(**settings)
    for each in seen:
        detector.update(each.y, each.x)
    return detector


SETTINGS = [
    {"model": "averaged"},
    {"model": "averaged", "regimes": 4},
    {"model": "gaussian", "regimes": 8, "max_hypotheses": 12},
    {"model": "gaussian", "anomaly_alarm": 0.97},
    {"model": "poisson"},
    {"model": "exponential"},
    {"model": "gamma"},
    {"model": "bernoulli"},
    {"model": "gaussian", "confirm_after": 5, "hazard": 0.05},
    {"model": "gaussian", "false_alarm_every": 300.0, "max_hypotheses": 12, "outlier_rate": 0.02},
    {"model": "gaussian", "hazard": {"mean": 30.0, "shape": 4.0}, "warmup": 7},
    {"model": "gaussian", "min_size": 1.5, "min_shift": 1.0, "min_duration": 12},
    {"model": "gaussian", "hazard": [0.001, 0.01, 0.03], "location": [1.0], "scale": [2.0]},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_answers_events_and_segments(detect, close, settings):
    """Also where the worker is lost, labels are late, and others refused."""
    bench, detector = detect(settings)
    y = labels(settings["model"], 70)
    y[65] = None if settings["model"] == "bernoulli" else 60.0  # an anomaly
    seen = observations(y)
    seen[12].elapsed = 3.0
    seen[33].elapsed = 0.5
    seen[31].changepoint = 1.0
    seen[35].changepoint = 0.0
    answers = bench.observe("a", seen[:40])
    (bench.crash if settings["model"] == "gaussian" else bench.stop)()
    (refused,) = bench.send(Observe("a", observations([1e300])))
    assert refused.status == 422
    bench.observe("a", [Observation(y=None, pending=True)] * 4)
    answers += [bench.ask(Observe("a", [seen[t]], seq=t)) for t in range(40, 44)]
    answers += bench.observe("a", seen[44:])
    agree(close, detector, answers[:40], seen[:40])
    with pytest.raises(BadInput):
        detector.update(1e300)
    agree(close, detector, answers[40:], seen[40:])
    listed(detector, bench)
    assert detector.events


@pytest.mark.parametrize("model", ["gaussian", "averaged"])
def test_forecasts(detect, close, model):
    bench, detector = detect({"model": model})
    y = labels(model, 50)
    bench.observe("a", y)
    detector.update_many(y)
    foreseen(close, detector, bench, seed=7)


def test_vectors_have_a_model_of_their_own_and_may_lack_outputs(detect, close):
    bench, detector = detect({"max_hypotheses": 10})
    bench.default_model = "averaged"
    rng = random.Random(2)
    y = [[rng.gauss(9.0 * (t > 22), 1.0), rng.gauss(0, 2.0)] for t in range(27)]
    y[5] = y[25] = [None, 1.0]
    seen = observations([None, *y])
    agree(close, detector, bench.observe("a", seen), seen)
    assert detector.model == "joint"
    listed(detector, bench)


def test_a_held_series(detect, close):
    """Repeats have no score; state, looks and a sensor that sticks are those of the worker."""
    rng = np.random.default_rng(1)
    updates = np.append(rng.normal(size=60), rng.normal(6.0, 1.0, 15))
    y = [*np.repeat(updates, 3), *[updates[-1]] * 30, *np.repeat(rng.normal(6.0, 1.0, 10), 3)]
    y[100] = None
    bench, detector = detect({"model": "averaged"})
    seen = observations([None if value is None else float(value) for value in y])
    answers = bench.observe("a", seen[:130])
    bench.crash()
    answers += [bench.observe("a", [each])[0] for each in seen[130:160]]
    answers += bench.observe("a", seen[160:])
    agree(close, detector, answers, seen)
    scored = [answer["log_score"] is not None for answer in answers[70:100]]
    assert scored == [at % 3 == 0 for at in range(70, 100)][: len(scored)]
    listed(detector, bench)
    foreseen(close, detector, bench)
    assert [event.start for event in detector.events] == [180, 222]
    assert bench.head("a").resolution == detector._all.pipeline.series[0].resolution == [0.0, 8.0]


def test_outputs_that_were_constant_or_at_rest(detect, close):
    """Their scales are taken anew at the same labels, also where the worker is lost."""
    rng = np.random.default_rng(1)
    y = rng.standard_normal((160, 3))
    y[:80, 1] = 7.0
    y[:30, 2] /= 1000
    bench, detector = detect({"model": "joint", "max_hypotheses": 20})
    seen = observations(y.tolist())
    answers = bench.observe("a", seen[:70])
    answers += [bench.observe("a", [each])[0] for each in seen[70:90]]
    bench.crash()
    answers += bench.observe("a", seen[90:])
    agree(close, detector, answers, seen)
    listed(detector, bench)
    state = detector._all.pipeline.series[0]
    assert bench.head("a").scale == state.scale
    assert bench.head("a").resolution == state.resolution
    assert min(state.scale) > 0.01


@pytest.mark.parametrize("name", ["linear-3", "categorical", "alpaca-mixture"])
def test_inputs_classes_and_typical_regimes(detect, close, tmp_path, name):
    publish(tmp_path / "models")
    kind = KINDS[name]
    folder = tmp_path / "models" / kind.model / "1"
    settings = {"model": kind.model, "max_hypotheses": 20, **kind.settings}
    bench, detector = detect(settings, folder if folder.exists() else None)
    seen = [replace(each, time=None) for each in series(kind, 40)]  # a detector has no times
    agree(close, detector, bench.observe("a", seen), seen)
    x = [0.5] * kind.x_dim or None
    (served,) = bench.ask(Predict("a", x=None if x is None else [x]))["predictions"]
    close(detector.predict(x).to_dict(), served["predictive"], EXACT)


@pytest.mark.parametrize(
    ("outputs", "settings"), [(1, {}), (1, {"seasonal": True}), (3, {"seasonal": True})], ids=str
)
def test_seasons(detect, close, settings, outputs, monkeypatch):
    """Also where the worker is lost, and where labels are late, after the season was found."""
    monkeypatch.setattr(season, "SEASONS_FROM", 100)
    monkeypatch.setattr(rerun, "SEASONS_FROM", 100)
    rng = np.random.default_rng(0)
    t = np.arange(200)
    wave = 5 + 0.3 * rng.normal(size=200) + 1.2 * np.sin(2 * np.pi * t / 24)
    y = (wave + 2.0 * (t >= 170)).tolist()
    if outputs > 1:  # of other phases, the last without a season
        shifted = [1.2 * np.sin(2 * np.pi * t / 24 + phase) for phase in (0.0, 2.0)]
        several = np.column_stack((*shifted, 0.0 * t)) + 0.3 * rng.normal(size=(200, 3))
        y = (several + 2.0 * (t >= 170)[:, None]).tolist()
        y[120][1] = y[165][0] = y[181][2] = None
        y[0] = None
    y[10] = y[160] = None
    bench, detector = detect({"model": "gaussian" if outputs == 1 else "joint", **settings})
    seen = observations(y)
    answers = bench.observe("a", seen[:180])
    bench.crash()
    bench.observe("a", [Observation(y=None, pending=True)] * 3)
    answers += [bench.ask(Observe("a", [seen[t]], seq=t)) for t in range(180, 183)]
    answers += bench.observe("a", seen[183:])
    agree(close, detector, answers, seen)
    assert detector.last.season == [24]
    listed(detector, bench)
    foreseen(close, detector, bench)


@pytest.mark.parametrize("model", ["averaged", "gaussian"])
def test_labels_outgrow_the_scale_of_the_warm_up(detect, close, model):
    """The filter begins anew, in single labels and in lists, and where the worker is lost."""
    rng = np.random.default_rng(1)
    y = [*(1e-3 * rng.normal(size=40)), *(50.0 + rng.normal(size=90))]
    bench, detector = detect({"model": model})
    seen = observations([float(value) for value in y])
    answers = [bench.observe("a", [each])[0] for each in seen[:49]]
    assert bench.head("a").scale[0] < 0.01
    answers += bench.observe("a", seen[49:60])
    assert bench.head("a").scale[0] < 0.01  # a tenth of the labels may be anything
    bench.crash()
    answers += bench.observe("a", seen[60:110])
    assert bench.head("a").scale[0] > 0.5
    bench.crash()
    answers += bench.observe("a", seen[110:])
    agree(close, detector, answers, seen)
    listed(detector, bench)
    # Forecasts are in the units of now.
    width = [answers[-1]["predictive"]["quantiles"][level][0] for level in ("0.05", "0.95")]
    assert 1 < width[1] - width[0] < 10


@pytest.mark.parametrize(
    ("model", "rule"), [("averaged", {}), ("gaussian", {"confirm_after": 10})], ids=str
)
def test_an_evaluation_says_what_a_stream_says(bench, model, rule):
    rng = random.Random(5)
    y = [rng.gauss(LEVELS[t // 30], 1.0) for t in range(120)]
    bench.ask(Configure("a", {"model": model, "history": 60, **rule}), status=201)
    answers = bench.observe("a", y)
    bench.send(SegmentHistory("a"))
    hindsight = bench.hindsight("a")
    known = bench.records("a"), bench.events("a"), hindsight
    segments = rendering.segmentation(bench.head("a"), *known)
    confirmed = sorted(e.start for e in bench.events("a") if e.state == "confirmed")
    given = {"false_alarm_every": None, **rule} if rule else {}
    settings = StreamSettings(history=60, **given)
    evaluation = follow(build(model, Options()), [[value] for value in y], settings)
    assert evaluation.segmented() == [segment.start for segment in segments][1:] != []
    assert evaluation.confirmed() == confirmed != []
    anomalies = [math.nan if each["anomaly"] is None else each["anomaly"] for each in answers]
    assert evaluation.anomaly == pytest.approx(anomalies, nan_ok=True)
    told = {a["seq"]: a["event"] for a in answers if a["event"] and a["seq"] >= 20}
    news = [(t, each) for t, each in evaluation.events if each.news and t >= 20]
    last = {t: (each.id, each.state, each.start) for t, each in news}
    assert {t: (e["id"], e["state"], e["start"]) for t, e in told.items()} == last
