"""A `Detector` answers what a stream of the service does, to the last digits."""

import math
import random

import numpy as np
import pytest
from msgspec.structs import replace

from model_core import Detector, season
from service.schema import rendering
from service.store import keys
from service.wire import Configure, Observation, Predict, SegmentHistory
from service.worker.filtering import seasons
from tests.service.worker.commands.test_calibrate import calibrate, started
from tests.service.worker.commands.test_calibrate import labels as two_levels
from tests.service.worker.commands.test_hindsight import labels, stored
from tests.service.worker.kinds import KINDS, publish, series

# Of the JSON answer: what a detector has, too.
MEMBERS = (
    "seq", "model", "predictive", "log_score", "changed_probability", "changepoint_probability",
    "recent_change_probability", "anomaly", "run_length", "warming_up",
)  # fmt: skip


def same(ours, theirs, tolerance=1e-12):
    """Whether two JSON values are alike: numbers within a tolerance, relative or absolute."""
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(
            same(ours[name], each, tolerance) for name, each in theirs.items()
        )
    if isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs, [tolerance] * len(ours)))
    if isinstance(theirs, float) and isinstance(ours, float):
        return math.isclose(ours, theirs, rel_tol=tolerance, abs_tol=tolerance)
    return ours == theirs


def agree(detector, answers, seen, tolerance=1e-12):
    """Take observations in one by one, and compare each answer."""
    for each, served in zip(seen, answers, strict=True):
        answer = detector.update(each.y, each.x, each.elapsed, each.changepoint)
        found = answer.to_dict()
        for name in MEMBERS:
            ours, theirs = found[name], served[name]
            if name == "model" and not ours:  # no label has decided on it yet
                continue
            assert same(ours, theirs, tolerance), (served["seq"], name, ours, theirs)
        assert found.get("season") == served.get("season")
        assert same(found.get("regime"), served.get("regime"))
        event = served["event"] and {k: v for k, v in served["event"].items() if k != "verdict"}
        assert same(found["event"], event, tolerance), (served["seq"], found["event"], event)


def observations(y, **more):
    return [Observation(y=value, **more) for value in y]


def listed(detector, bench, stream):
    """Compare events and segmentations."""
    kept = bench.events(stream)
    ours = [(each.id, each.state, each.start, each.direction) for each in detector.events]
    assert ours == [(each.id, each.state, each.start, each.direction) for each in kept]
    bench.send(SegmentHistory(stream))
    head = bench.head(stream)
    online = rendering.segmentation(head, bench.records(stream))
    found = rendering.in_hindsight(head, online, stored(bench, stream))
    assert [(s.start, s.end) for s in detector.segments()] == [(s.start, s.end) for s in found]


@pytest.mark.parametrize("model", ["averaged", "gaussian", "poisson", "exponential", "bernoulli"])
def test_answers_events_and_segments(bench, model):
    y = labels(model, 100, 3)
    y[45] = y[3] = None
    if model in ("averaged", "gaussian"):
        y[75] = 60.0  # an anomaly
    settings = {"model": model, "anomaly_alarm": 0.97}
    bench.ask(Configure("a", settings), status=201)
    seen = observations(y)
    detector = Detector(**settings, name="a", kernels=False)
    agree(detector, bench.observe("a", seen), seen)
    listed(detector, bench, "a")
    raised = sorted(map(int, bench.client.hkeys(keys.anomalies(bench.partition("a"), "a"))))
    assert [each.id for each in detector.anomalies] == raised
    assert raised or model not in ("averaged", "gaussian")


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "settings",
    [
        {"confirm_after": 5, "hazard": 0.05},
        {"confirm_probability": 0.8, "max_hypotheses": 12, "outlier_rate": 0.02},
        {"hazard": {"mean": 30.0, "shape": 4.0}, "warmup": 7},
        {"hazard": [0.001, 0.01, 0.03], "location": [1.0], "scale": [2.0]},
        {"sensitivity": {"false_alarms_per_1000": 1.0}},
    ],
)
def test_settings_are_those_of_a_stream(bench, settings):
    given = dict(settings)
    if isinstance(given.get("hazard"), list):
        given["hazard"] = tuple(given["hazard"])
    bench.ask(Configure("a", {"model": "gaussian", **settings}), status=201)
    seen = observations(labels("gaussian", 80, 4))
    detector = Detector("gaussian", kernels=False, **given)
    agree(detector, bench.observe("a", seen), seen)
    listed(detector, bench, "a")


def test_elapsed_times_and_supervision(bench):
    bench.ask(Configure("a", {"model": "gaussian"}), status=201)
    rng = random.Random(1)
    seen = [
        Observation(y=rng.gauss(0, 1), elapsed=rng.choice([0.5, 1.0, 3.0]), changepoint=told)
        for told in [None, 0.5, None, 1.0, 0.0] * 12
    ]
    agree(Detector("gaussian", kernels=False), bench.observe("a", seen), seen)


def test_vectors_have_a_model_of_their_own_and_may_lack_outputs(bench):
    bench.default_model = "averaged"
    rng = random.Random(2)
    y = [[rng.gauss(4.0 * (t > 40), 1.0), rng.gauss(0, 2.0)] for t in range(70)]
    y[30] = y[50] = [None, 1.0]
    y[35] = None
    seen = observations([None, None, *y])
    detector = Detector(kernels=False)
    agree(detector, bench.observe("a", seen), seen)
    assert detector.model == "joint@1"
    listed(detector, bench, "a")


def test_inputs_of_a_regression(bench):
    rng = random.Random(3)
    bench.ask(Configure("a", {"model": "linear"}), status=201)
    seen = []
    for t in range(70):
        x = [rng.gauss(0, 1), rng.gauss(0, 1)]
        slope = 2.0 if t < 40 else -2.0
        seen.append(Observation(y=slope * x[0] + x[1] + rng.gauss(0, 0.3), x=x))
    detector = Detector("linear", kernels=False)
    agree(detector, bench.observe("a", seen), seen)
    served = bench.ask(Predict("a", x=[[1.0, 0.5]]))["predictions"][0]["predictive"]
    assert same(detector.predict([1.0, 0.5]).to_dict(), served)


def test_typical_regimes(make_bench, tmp_path):
    publish(tmp_path / "models")
    bench, kind = make_bench(), KINDS["alpaca-mixture"]
    bench.ask(Configure("a", {"model": kind.model}), status=201)
    seen = [replace(each, time=None) for each in series(kind, 60)]  # a detector has no times
    detector = Detector(tmp_path / "models" / kind.model / "1", kernels=False)
    agree(detector, bench.observe("a", seen), seen)
    assert detector.last.regime.probability > 1 / len(detector._all.pipeline.model.typical)


def test_classes(bench):
    rng = random.Random(4)
    settings = {"model": "categorical", "classes": 3}
    bench.ask(Configure("a", settings), status=201)
    seen = observations([float(rng.choice([0, 0, 1] if t < 40 else [2, 2, 1])) for t in range(70)])
    agree(Detector(**settings, kernels=False), bench.observe("a", seen), seen)


@pytest.mark.parametrize("model", ["gaussian", "averaged", "joint"])
def test_forecasts(bench, model):
    y = labels(model, 60, 6)
    bench.ask(Configure("a", {"model": model}), status=201)
    bench.observe("a", y)
    detector = Detector(model, kernels=False)
    detector.update_many(y)
    served = bench.ask(Predict("a", horizon=3, seed=7))["predictions"]
    for ours, theirs in zip(detector.forecast(3, seed=7), served, strict=True):
        assert same(ours.to_dict(), theirs["predictive"], 1e-9 if model != "gaussian" else 1e-12)
    at_once = bench.ask(Predict("a"))["predictions"][0]["predictive"]
    assert same(detector.predict().to_dict(), at_once)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seasonal", [None, True])
@pytest.mark.parametrize("model", ["gaussian", "averaged"])
def test_seasons(bench, model, seasonal, monkeypatch):
    monkeypatch.setattr(season, "SEASONS_FROM", 150)
    monkeypatch.setattr(seasons, "SEASONS_FROM", 150)
    rng = np.random.default_rng(0)
    t = np.arange(260)
    y = (
        5 + 0.3 * rng.normal(size=260) + 1.2 * np.sin(2 * np.pi * t / 24) + 2.0 * (t >= 230)
    ).tolist()
    y[10] = y[200] = None
    bench.ask(Configure("a", {"model": model, "seasonal": seasonal}), status=201)
    seen = observations(y)
    detector = Detector(model, name="a", kernels=False, seasonal=seasonal)
    agree(detector, bench.observe("a", seen), seen)
    assert detector.last.season == [24]
    listed(detector, bench, "a")
    served = bench.ask(Predict("a", horizon=3))["predictions"]
    for ours, theirs in zip(detector.forecast(3), served, strict=True):
        assert same(ours.to_dict(), theirs["predictive"], 1e-9)


def test_a_threshold_that_is_calibrated_on_own_labels(bench):
    """Of more observations than are looked at, some of them missing; then it confirms changes."""
    pytest.importorskip("numba")
    started(bench, model="gaussian")
    y = two_levels(30, seed=9) + two_levels(2100)
    y[1500] = None
    bench.observe("a", y[30:], part=300)
    served = calibrate(bench)
    detector = Detector("gaussian", name="a", sensitivity=0.5)
    detector.update_many(y)
    found = detector.calibrate()
    assert found.threshold == pytest.approx(served.threshold, rel=1e-9)
    assert found.false_alarms_per_1000 == served.calibration.false_alarms_per_1000
    seen = observations([*two_levels(60, seed=5), *(9.0 + each for each in two_levels(60))])
    agree(detector, bench.observe("a", seen), seen, 1e-7)
    listed(detector, bench, "a")
    late = [each for each in detector.events if (each.confirmed_at or 0) >= 2190]
    assert "confirmed" in {each.state for each in late}


def test_by_kernels_but_for_the_error_of_quantiles(bench):
    pytest.importorskip("numba")
    seen = observations(labels("gaussian", 120, 8))
    bench.ask(Configure("a", {"model": "gaussian"}), status=201)
    agree(Detector("gaussian"), bench.observe("a", seen), seen, 1e-7)
