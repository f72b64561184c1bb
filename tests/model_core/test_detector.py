"""Detectors without a server: input, files, many series at once, the protocols of others.

That their numbers are the service's is in tests/service/worker/test_detector.py.
"""

import itertools
import json
import math
import re
import shutil
import subprocess
import sys
import zlib
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
import torch

from model_core import Detector, Detectors
from model_core.errors import BadArtifact, BadInput, BadState, WarmingUp
from model_core.stream import season, storage, warmup
from model_core.stream.rows import PREVIOUS, times_of
from model_core.stream.slab import Slab
from model_core.table import GAP, LOG_PROB, RUN_LENGTH
from model_core.upm.averaged import Averaged
from model_core.upm.builtin import Options, build
from model_core.upm.conjugate import Gaussian
from model_core.upm.joint import Joint
from training.online import segmentation

SINUSOID = Path(__file__).parents[2] / "service/samples/models/sinusoid/1"


def step(size=3.0, at=60, count=90, seed=0):
    y = np.random.default_rng(seed).normal(size=count)
    y[at:] += size
    return y.tolist()


def gaussian(**more):
    return Detector("gaussian", **more)


def same(ours, theirs):
    """Whether answers are the same to the last bit."""
    return json.dumps(ours.to_dict()) == json.dumps(theirs.to_dict())


def test_a_change_is_detected_once_and_dated():
    detector = gaussian()
    detected = [t for t, y in enumerate(step()) if detector.update(y).drift_detected]
    assert [60 <= t < 65 for t in detected] == [True]
    (event,) = [each for each in detector.events if each.state == "confirmed"]
    assert (event.start, event.direction) == (60, "up")
    assert event.size == pytest.approx(3.0, abs=1.0)
    assert [tuple(each) for each in detector.segments()] == [(0, 60), (60, 90)]
    assert detector.last.predictive.mean == pytest.approx(3.0, abs=0.5)


@pytest.mark.parametrize("elapsed", [10_080, 1e7])
@pytest.mark.parametrize(("size", "least", "most"), [(0.0, 0.0, 2000.0), (3.0, 10_000.0, math.inf)])
@pytest.mark.parametrize("settings", [{}, {"hazard": 0.01}, {"max_hypotheses": 2}])
def test_a_long_gap_confirms_no_change_but_one_that_the_labels_after_it_show(
    elapsed, size, least, most, settings
):
    """That a change has become probable, or certain, is no evidence of one."""
    detector = Detector(**settings)
    y = step(size=size, at=500, count=560)
    detector.update_many(y[:500])
    first = detector.update(y[500], elapsed=elapsed)
    assert first.changed_probability > 0.5
    found = [answer.evidence for answer in detector.update_many(y[501:])]
    assert least < max(found) < most
    assert bool(size) == any(event.state == "confirmed" for event in detector.events)


@pytest.mark.parametrize(
    ("label", "settings", "confirmed"),
    [
        (20.0, {}, 0),
        (-9999.0, {}, 0),
        (-9999.0, {"outlier_rate": 0.0}, 2),
        (None, {"outlier_rate": 0.0}, 0),
    ],
)
def test_an_error_code_is_no_change_but_two_without_outliers(label, settings, confirmed):
    detector = Detector(**settings)
    y = step(size=0.0, count=300)
    detector.update_many([*y[:150], label, *y[150:]])
    assert sum(event.state == "confirmed" for event in detector.events) == confirmed


@pytest.mark.parametrize("model", ["averaged", "joint"])
def test_a_spike_now_and_then_is_no_change_and_hides_none(model):
    rng = np.random.default_rng(3)
    y = rng.normal(size=(400, 2 if model == "joint" else 1))
    y[49::50, 0] += 200.0
    y[300:] += 4.0
    detector = Detector(model=model, seasonal=False)  # they are evenly spaced here
    answers = detector.update_many(y if model == "joint" else y[:, 0])
    after = [np.ravel(answer.predictive.mean)[0] for answer in answers[100:300:50]]
    assert np.abs(after).max() < 20.0  # of a spike of 200
    (event,) = [event for event in detector.events if event.state == "confirmed"]
    assert event.start == 300
    assert event.confirmed_at < 306


@pytest.mark.parametrize("shift", [[4.0] * 6, [2.0, 0, 0, 0, 0, 0]], ids=["of all", "of one"])
def test_a_shift_of_outputs_that_are_alike_is_found(shift):
    rng = np.random.default_rng(4)
    y = np.sqrt(0.9) * rng.normal(size=(300, 1)) + np.sqrt(0.1) * rng.normal(size=(300, 6))
    y[200:] += shift
    detector = Detector()
    detector.update_many(y)
    (event,) = [event for event in detector.events if event.state == "confirmed"]
    assert abs(event.start - 200) <= 2
    assert event.confirmed_at < 210


@pytest.mark.parametrize("outputs", [16, 32])
def test_many_outputs_that_are_alike_are_quiet(outputs):
    """Their correlations are of fewer labels than outputs, at first."""
    rng = np.random.default_rng((7, outputs, 4))
    detector = Detector()
    y = rng.normal(size=(200, 1)) + rng.normal(size=(200, outputs))
    detector.update_many(y)
    assert not [event for event in detector.events if event.state == "confirmed"]
    detector.update_many(6.0 + y[:20])
    assert [event.start for event in detector.events if event.state == "confirmed"] == [200]


def test_outputs_that_share_a_long_season_are_quiet_once_half_of_it_was_seen():
    """Labels keep a share of their trend's distance from the level."""
    rng = np.random.default_rng(0)
    season = 2 * np.sin(2 * np.pi * np.arange(900) / 288)[:, None]
    detector = Detector()
    detector.update_many(season + 0.5 * rng.normal(size=(900, 4)) + 0.5 * rng.normal(size=(900, 1)))
    confirmed = [event.start for event in detector.events if event.state == "confirmed"]
    assert not [start for start in confirmed if start > 144]


@pytest.mark.parametrize(("outputs", "apart"), [(2, 5.0), (8, 5.0), (16, 45.0)])
def test_correlations_begin_with_errors_that_are_not_alike_more_of_many_outputs(outputs, apart):
    model = Joint(y_dim=outputs)
    _, context = model.fresh(np.zeros((1, outputs)), np.ones((1, outputs)))
    context = torch.as_tensor(context)
    _, watched, products, *_ = model._split(context)  # views
    watched[:, outputs : 2 * outputs] += 30.0
    products[:] = 15.0
    stats, _ = model.fresh(np.zeros((1, outputs)), np.ones((1, outputs)))
    phi = model.encode(None, context)[0, -(outputs**2) :].reshape(outputs, outputs)
    assert phi[1, 0].item() / stats.psi[0, 0, 0, 0] == pytest.approx(
        15.0 / (30.0 + apart), rel=1e-5
    )


@pytest.mark.parametrize(("outputs", "freedom"), [(2, 8), (8, 8), (16, 24)])
def test_the_covariance_of_many_outputs_is_nearer_to_the_expected_one(outputs, freedom):
    stats, _ = Joint(y_dim=outputs).fresh(np.zeros((1, outputs)), np.ones((1, outputs)))
    (nu,) = stats.nu.ravel()
    assert nu - outputs + 1 == freedom
    expected = stats.psi[0, 0] / (nu - outputs - 1)
    np.testing.assert_allclose(expected, 0.7 * np.eye(outputs), rtol=1e-12)


def test_an_outlier_is_in_no_number_of_the_change_after_it():
    y = 20 + np.array(step(size=4.0, at=300, count=400))
    y[200] = -9999.0
    detector = Detector()
    detector.update_many(y)
    (event,) = [event for event in detector.events if event.state == "confirmed"]
    assert event.size == pytest.approx(4.0, rel=0.15)
    assert (event.before.mean, event.before.sd) == pytest.approx((20.0, 1.0), abs=0.2)
    assert re.fullmatch(r"mean rose by (3\.\d|4\.\d) sd, (19.9|20.0) → 24.0", event.sentence)


@pytest.mark.parametrize("far", [20.0, -100.0, 1e6])
def test_an_outlier_in_the_warm_up_hides_no_change(far):
    y = step(at=200, count=240)
    y[7] = far
    detector = Detector()
    detector.update_many(y)
    (event,) = [event for event in detector.events if event.state == "confirmed"]
    assert abs(event.start - 200) <= 2
    assert event.confirmed_at < 215


def test_quantiles_of_few_labels_are_those_of_numpy_to_the_bit():
    rng = np.random.default_rng(11)
    for count in range(1, 60):
        labels = sorted((1e3 + rng.normal(size=count) ** 3).tolist())
        shares = (0.25, 0.5, 0.75)
        ours = [warmup._quantile(labels, share) for share in shares]
        assert ours == np.quantile(labels, shares).tolist()


def test_the_scale_is_the_deviation_of_all_labels_unless_that_is_an_outliers():
    model = build("gaussian", Options())
    normal = np.random.default_rng(0).normal(5.0, 2.0, 20)
    (location,), (scale,) = warmup.estimate(normal[:, None].tolist(), model)
    assert (location, scale) == pytest.approx((np.median(normal), normal.std(ddof=1)))
    normal[3] = 1e4
    (location,), (scale,) = warmup.estimate(normal[:, None].tolist(), model)
    low, high = np.quantile(normal, (0.25, 0.75))
    wide = 1.4826 * np.median(np.abs(normal - np.median(normal)))
    assert scale == pytest.approx(max(wide, (high - low) / 1.349))
    # Of more labels than a warm-up takes it may be that of changes.
    many = np.random.default_rng(0).normal(5.0, 2.0, warmup.LONGEST + 1)
    many[:20] = 1e4
    for labels, outlying in ((many, False), (many[:-1], True)):
        _, (scale,) = warmup.estimate(labels[:, None].tolist(), model)
        assert (scale < 0.1 * labels.std()) == outlying
    # Where half of the labels are the same, their spread is in the others.
    still = [*[1.0] * 11, *normal[:9]]
    _, (scale,) = warmup.estimate([[value] for value in still], model)
    assert scale == pytest.approx(np.std(still, ddof=1))


def test_hindsight_takes_no_confirmed_change_away():
    """The scale of all labels hides the first change."""
    y = np.random.default_rng(1).normal(size=180)
    y[60:] += 4.0
    y[120:] += 500.0
    assert segmentation(Averaged(), y) == [120]
    detector = Detector()
    detector.update_many(y)
    confirmed = [event.start for event in detector.events if event.state == "confirmed"]
    assert confirmed[:2] == [60, 120]
    assert [segment.start for segment in detector.segments()] == [0, *confirmed]


# --- input ----------------------------------------------------------------------------------------


def test_lists_arrays_columns_tensors_and_single_updates_are_the_same():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    y = step(count=12)
    y[8] = math.nan
    expected = gaussian(warmup=5).update_many(y)
    low, high = expected[-1].predictive.interval
    assert low < expected[-1].predictive.mean < high
    one = gaussian(warmup=5)
    singles = [one.update(torch.tensor(each, dtype=torch.float64)) for each in y[:-1]]
    singles.append(one.update([y[-1]]))
    columns = (np.array, pandas.Series, polars.Series, lambda y: torch.tensor(np.array(y)))
    for found in (singles, *(gaussian(warmup=5).update_many(make(y)) for make in columns)):
        assert all(map(same, found, expected))


def test_withdrawn_changes_are_listed_where_they_are_asked_for():
    rng = np.random.default_rng(4)
    detectors = Detectors(["a"], false_alarm_every=100)
    for label in rng.normal(size=2000):
        detectors.update([label])
    every = detectors.events("a", withdrawn=True)
    assert {event.state for event in every} == {"withdrawn", "confirmed"}
    assert detectors.events("a") == [event for event in every if event.state != "withdrawn"]


def test_events_say_when_they_were_by_the_index_of_a_column(tmp_path):
    pandas = pytest.importorskip("pandas")
    labels = [math.nan, *step(count=79)]  # at 61
    days = pandas.date_range("2024-02-01", periods=80, tz="Europe/Berlin")
    column = pandas.Series(labels, index=days)
    detector = gaussian(warmup=5)
    detector.update_many(column[:1])
    for part in (column[1:3], column[3:40], column[40:]):
        detector.save(tmp_path / "it")
        detector = Detector.load(tmp_path / "it")
        answers = detector.update_many(part)
    (event,) = [each for each in detector.events if each.state == "confirmed"]
    assert event.start_time == "2024-04-01T22:00:00Z"  # the clocks have gone forward
    assert datetime.fromisoformat(event.time) == days[event.refined_at].to_pydatetime()
    plain = gaussian(warmup=5)
    assert same(answers[-1], plain.update_many(labels)[-1])
    assert {each.start_time for each in plain.events} == {None}


def test_a_pruned_hypothesis_leaves_nothing_that_is_not_stored():
    """Else a series that was read back would go on by other numbers, though in the last bit."""
    detector = gaussian(max_hypotheses=4)
    labels = step(30.0)
    detector.update_many(labels[:25])
    series = detector._all._series(0)
    for at, y in enumerate(labels[25:]):
        none = at % 9 == 8
        detector.update(y, elapsed=40.0 if at % 30 == 3 else 1.0, changepoint=0.0 if none else None)
        lines = series.slab.row(series.row).lines
        assert not lines[GAP, np.isinf(lines[LOG_PROB])].any()
        assert (series.retained.rows[-1, PREVIOUS] == -1) == none


def test_events_say_when_they_were_by_the_times_given():
    detectors = Detectors(2, "gaussian")
    began = datetime.fromisoformat("2024-05-01T12:00:00")  # UTC
    for minute, y in enumerate(step()):
        detectors.update([y, None], time=began + timedelta(minutes=minute))
    (event,) = [each for each in detectors.events(0) if each.state == "confirmed"]
    assert event.start_time == "2024-05-01T13:00:00Z"
    detector = gaussian()
    zone = timezone(timedelta(hours=2))
    for minute, y in enumerate(step()):
        detector.update(y, time=began.replace(tzinfo=zone) + timedelta(minutes=minute))
    assert detector.events[-1].start_time == "2024-05-01T11:00:00Z"


@pytest.mark.parametrize(
    ("time", "message"),
    [
        (["2024-05-01"], "time: expected a datetime, got '2024-05-01'"),
        ([], "time: expected one for each of 1 labels, got 0"),
        (7, "time: expected a datetime, got 7"),
        (
            [datetime.fromisoformat("9999-12-31T23:59:59.999999")],
            "time: expected one from year 1 to 9999 in UTC, got 9999-12-31 23:59",
        ),
        ([datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))], "got 0001-01-01 00:00"),
    ],
)
def test_wrong_times_are_refused(time, message):
    detector = gaussian(location=[0.0], scale=[1.0])
    with pytest.raises(BadInput, match=message):
        detector.update_many([1.0], time=time)
    assert detector.seq == 0
    detector.update(1.0)


def test_a_time_that_is_missing_is_none():
    pandas = pytest.importorskip("pandas")
    days = pandas.DatetimeIndex(["2024-05-01", None, "2024-05-03"])
    detector = gaussian(location=[0.0], scale=[1.0])
    detector.update_many(pandas.Series([0.0, 0.5, 1.0], index=days))
    _, rows = detector.retained()
    assert times_of(rows) == ["2024-05-01T00:00:00Z", None, "2024-05-03T00:00:00Z"]


def test_labels_and_inputs_that_are_mappings_are_taken_by_name():
    by_name, by_place = Detector(warmup=5), Detector(warmup=5)
    rng = np.random.default_rng(1)
    for a, b in rng.normal(size=(10, 2)).tolist():
        answer = by_name.update({"b": b, "a": a})
        assert same(answer, by_place.update([b, a]))  # in the order of the first
    assert by_name.model == "joint"
    assert len(answer.predictive.mean) == len(answer.predictive.sd) == 2
    assert [len(each) for each in answer.predictive.interval] == [2, 2]
    assert same(by_name.update({"a": 1.0}), by_place.update([None, 1.0]))
    with pytest.raises(BadInput, match="'c'"):
        by_name.update({"c": 1.0})
    by_name, by_place = Detector("linear"), Detector("linear")
    for t, (a, b, y) in enumerate(rng.normal(size=(25, 3)).tolist()):
        x = {"b": b, "a": a} if t % 2 else {"a": a, "b": b}
        assert same(by_name.update(y, x), by_place.update(y, [a, b]))
    assert by_name.predict({"b": 1.0, "a": 2.0}) == by_place.predict([2.0, 1.0])
    for x in ({"a": 1.0, "c": 1.0}, {"a": 1.0}):
        with pytest.raises(BadInput, match=r"'c'|nan"):
            by_name.update(0.0, x)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hasard": 0.1}, "hazard"),
        ({"ttl": 3}, "ttl"),
        ({"hazard": 1.5}, "hazard"),
        ({"hazard": 10**400}, "hazard"),
        ({"hazard": "0.1"}, r"hazard: expected a number.*'0\.1'"),
        ({"hazard": ["0.1"]}, r"hazard: expected a number.*'0\.1'"),
        ({"hazard": {"mean": 5, "shape": 1e-12}}, "hazard: shape: expected.*at least 0.001"),
        ({"regimes": "8"}, r"regimes: expected a whole number.*'8'"),
        ({"max_hypotheses": True}, "max_hypotheses: expected a whole number.*True"),
        ({"max_hypotheses": 1}, "max_hypotheses"),
        ({"warmup": 2.5}, "warmup"),
        ({"false_alarm_every": 9.0}, "false_alarm_every"),
        ({"false_alarm_every": 1000.0, "confirm_after": 3}, "confirm_after"),
        ({"anomaly_alarm": "high"}, "anomaly_alarm"),
        ({"scale": 0}, "scale"),
        ({"seasonal": 1}, "seasonal"),
        ({"quantiles": [0.5, 2]}, "quantiles"),
        ({"model": "gausian"}, "gaussian"),
        ({"model": [1.0, 2.0]}, r"^model: expected a name.*got \[1.0, 2.0\]"),
        ({"model": "categorical"}, "classes"),
        (
            {"order": 3},
            r"order: expected 1 for model averaged, .* got 3; .* choose the model autoregressive$",
        ),
        ({"model": "joint", "season": 12}, "season: expected none for model joint"),
        ({"model": "categorical", "classes": 2, "trend": True}, "trend: expected false"),
        ({"model": Gaussian(), "classes": 2}, "classes: expected none for model gaussian"),
        ({"model": "poisson", "seasonal": True}, "seasonal"),
        ({"location": [1.0, 2.0], "model": "poisson"}, "location"),
        ({"location": 10**400}, "location"),
    ],
)
def test_wrong_settings_are_refused_by_name(given, message):
    with pytest.raises(BadInput, match=message):
        Detector(**given).update(1.0)


@pytest.mark.parametrize("text", ["10.2\n", "1,5", "", "nan"])
def test_text_is_refused_with_what_to_do(text):
    detector = Detector()
    with pytest.raises(BadInput, match=r"^y: expected a number .* convert text to numbers"):
        detector.update(text)
    with pytest.raises(BadInput, match="convert text"):
        detector.update_many([1.0, text])


@pytest.mark.parametrize(("truth", "label"), [(True, 1), (np.bool_(False), 0)])
def test_a_truth_value_is_refused_with_the_label_that_it_is(truth, label):
    with pytest.raises(BadInput, match=rf"^y: expected a number .*; as a label it is {label}$"):
        Detector().update(truth)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_columns_of_a_frame_are_known_by_their_names_and_in_sentences(tmp_path, library):
    frame = pytest.importorskip(library).DataFrame
    rng = np.random.default_rng(2)
    load, heat = rng.normal(size=(2, 120))
    heat[60:] += 8.0
    days = [datetime(2024, 2, 1, tzinfo=UTC) + timedelta(days=day) for day in range(120)]
    expected = Detector()
    expected.update_many(np.column_stack((load, heat)))
    (event,) = expected.events
    assert event.sentence.startswith("output 2: mean rose")
    detector = Detector()
    detector.update_many(frame({"load": load[:50], "heat": heat[:50]}))
    rows = frame({"at": days[50:], "heat": heat[50:], "load": load[50:]})
    answers = detector.update_many(rows)
    (named,) = detector.events
    assert named.sentence == event.sentence.replace("output 2", "heat")
    assert named.start == event.start
    moved = [each for answer in answers for each in answer.events]
    assert moved[-1].sentence == named.sentence
    assert answers[-1].predictive.mean == expected.last.predictive.mean
    detector.save(tmp_path / "detector")
    loaded = Detector.load(tmp_path / "detector")
    assert loaded.events == [named]
    (answer,) = loaded.update_many(frame({"heat": [7.0], "load": [0.0]}))
    (given,) = detector.update_many([[0.0, 7.0]])  # by their places
    assert answer.log_score == given.log_score
    with pytest.raises(BadInput, match=r"expected the names \['load', 'heat'\], got \['up'\]"):
        loaded.update_many(frame({"up": [0.0], "load": [0.0]}))


def test_columns_are_known_by_numbers_and_several_levels_but_not_by_a_name_of_two(tmp_path):
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(120, 3))
    rows[60:, 1] += 8.0
    levels = pandas.MultiIndex.from_tuples([("pump", "load"), ("pump", "heat"), ("fan", "load")])
    for columns, name in (([101, 102, 7], "102"), (levels, "pump heat")):
        frame = pandas.DataFrame(rows, columns=columns)
        detector = Detector()
        detector.update_many(frame[:0])
        detector.update_many(frame[:50])
        detector.update_many(frame[50:].iloc[:, [2, 0, 1]])
        (event,) = detector.events
        assert event.sentence.startswith(f"{name}: mean rose")
        detector.save(tmp_path / "detector")
        loaded = Detector.load(tmp_path / "detector")
        (alone,) = loaded.update_many(frame[-1:].iloc[:, [1]])  # the others are missing
        assert alone.log_score == detector.update([None, rows[-1, 1], None]).log_score
        (mapped,) = loaded.update_many([dict(zip(frame.columns, rows[0], strict=True))])
        assert mapped.log_score == detector.update(rows[0]).log_score
    unnamed = Detector()
    unnamed.update_many(pandas.DataFrame(columns=["none", "of", "these"], dtype=float))
    unnamed.update_many(pandas.DataFrame(rows))
    assert unnamed.events[0].sentence.startswith("output 2: mean rose")
    with pytest.raises(BadInput, match=r"names of their own, got several \['a'\]; rename them"):
        unnamed.update_many(pandas.DataFrame(rows, columns=["a", "b", "a"]))


def test_events_of_few_labels_and_anomalies_name_the_output(tmp_path):
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(4)
    rows = pandas.DataFrame(rng.normal(size=(110, 2)), columns=["load", "heat"])
    rows.loc[80, "heat"] += 30.0
    rows.loc[100:, "heat"] += 8.0
    detector = Detector(anomaly_alarm=0.9, location=[0.0, 0.0], scale=[1.0, 1.0])
    events = [event for answer in detector.update_many(rows) for event in answer.events]
    unexplained = [event for event in events if event.before is None]
    assert {event.kind for event in unexplained} == {"change", "anomaly"}
    assert all(event.sentence.startswith(("heat: ", "load: ")) for event in unexplained)
    assert detector.anomalies[0].sentence.startswith("heat: below the forecast by ")


def test_events_are_dictionaries_of_what_json_has():
    detector = Detector("gaussian", location=0.0, scale=1.0)
    labels = [(0.5, -0.5)[i % 2] + (6.0 if i >= 30 else 0.0) for i in range(60)]
    answers = detector.update_many(labels)
    told = [answer.to_dict()["event"] for answer in answers if answer.event is not None]
    (event,) = detector.events
    fields = json.loads(json.dumps(event.to_dict()))
    assert fields.items() >= {"start": 30, "state": "confirmed", "sentence": event.sentence}.items()
    assert all(each.keys() == fields.keys() for each in told)


def test_inputs_of_a_frame_are_known_by_their_names():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(3)
    x = pandas.DataFrame(rng.normal(size=(120, 2)), columns=["speed", "load"])
    y = 3.0 * x["speed"] - 3.0 * x["load"] + 0.1 * rng.normal(size=120)
    expected, detector = Detector("linear"), Detector("linear")
    scores = [answer.log_score for answer in expected.update_many(y, x=x.to_numpy())]
    detector.update_many(y[:60], x=x[:60])
    answers = detector.update_many(y[60:], x=x[60:][["load", "speed"]])
    assert [answer.log_score for answer in answers] == scores[60:]


def test_frames_have_their_column_of_dates_as_times_and_name_columns_without_numbers():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    labels = step(count=80)
    first = datetime(2024, 2, 1, tzinfo=UTC)
    days = [first + timedelta(days=day) for day in range(80)]
    expected = Detector()
    expected.update_many(labels, time=days)
    assert expected.events[0].start_time
    periods = pandas.period_range("2024-02-01", periods=80, freq="D")
    for rows in (
        pandas.DataFrame({"at": days, "load": labels}),
        pandas.DataFrame({"load": labels, "at": pandas.DatetimeIndex(days).tz_localize(None)}),
        pandas.DataFrame({"load": labels}, index=periods),
        polars.DataFrame({"at": days, "load": labels}),
        polars.DataFrame({"at": [day.date() for day in days], "load": labels}),
    ):
        detector = Detector()
        detector.update_many(rows)
        assert detector.events == expected.events
    wrong = {"load": labels, "host": ["a"] * 80, "up": [True] * 80, "at": days}
    for frame in (pandas.DataFrame, polars.DataFrame):
        with pytest.raises(BadInput, match=r"\['host', 'up'\] have none"):
            Detector().update_many(frame(wrong))
        with pytest.raises(BadInput, match=r"one column of dates, got \['at', 'to'\]"):
            Detector().update_many(frame({"at": days, "to": days, "load": labels}))
    objects = polars.Series("at", days, dtype=polars.Object)  # as of pandas' `to_pydatetime()`
    with pytest.raises(BadInput, match=r"\['at'\] have none"):
        Detector().update_many(polars.DataFrame([objects, polars.Series("load", labels)]))
    with pytest.raises(BadInput, match=r"LazyFrame; call its collect\(\) first"):
        Detector().update_many(polars.DataFrame({"load": labels}).lazy())


def test_missing_labels_are_those_of_pandas_too():
    pandas = pytest.importorskip("pandas")
    missing = [None, math.nan, pandas.NA, pandas.NaT, pandas.Series([pandas.NA], dtype="Int64")[0]]
    expected = [each.to_dict() for each in gaussian(warmup=5).update_many([0, 1, 2, None, 3] * 5)]
    vectors = [
        each.to_dict() for each in Detector(warmup=5).update_many([[0, 1], [2, 0], [None, 3]] * 5)
    ]
    for value in missing:
        alone = gaussian(warmup=5).update_many([0, 1, 2, value, 3] * 5)
        assert [each.to_dict() for each in alone] == expected
        several = Detector(warmup=5).update_many([[0, 1], [2, 0], [value, 3]] * 5)
        assert [each.to_dict() for each in several] == vectors


def test_the_error_of_one_of_many_names_its_place():
    for call, message in (
        (lambda: gaussian().update_many([1.0, 2.0, math.inf]), r"^y\[2\]: expected numbers up to"),
        (lambda: gaussian().update_many([1.0, 2.0, "x"]), r"^y\[2\]: expected a number or a list"),
        (lambda: Detectors(2, "poisson").update([1, -1]), r"^y\[1\]: .* whole number from 0 to 1e"),
        (
            lambda: Detector("linear").update_many([1.0, 2.0], x=[[1.0], [1.0, 2.0]]),
            r"^x\[1\]: exp",
        ),
        (lambda: gaussian().update_many([1.0, 2.0], elapsed=[1, 0]), r"^elapsed\[1\]: expected"),
        (lambda: gaussian().update_many([1.0, 2.0], time=[None, 3]), r"^time\[1\]: expected"),
        (lambda: Detectors(2).update([1.0]), "^y: expected one for each of 2 series, got 1$"),
        (lambda: gaussian().update_many({1.0, 2.0}), "list or an array of observations, got set"),
    ):
        with pytest.raises(BadInput, match=message):
            call()


def test_a_label_of_another_size_is_refused_with_the_size_expected():
    detector = Detector("gaussian")
    detector.update(1.0)
    with pytest.raises(BadInput, match=r"^y: expected 1 number, got 2$"):
        detector.update([1.0, 2.0])


def test_wrong_labels_are_refused_by_name_and_change_nothing():
    for model, y in (
        ("gaussian", "3"),
        ("gaussian", [1.0, 2.0]),
        ("gaussian", math.inf),
        ("gaussian", 10**400),
        ("poisson", 2.5),
        ("bernoulli", 2),
        ("bernoulli", True),
        ("gaussian", [np.True_]),
    ):
        detector, other = (Detector(model, warmup=5) for _ in range(2))
        for each in (detector, other):
            each.update_many([0, 1] * 3)
        for call, message in (
            (lambda d, y=y: d.update(y), "y"),
            (lambda d: d.update(1.0, x=[2.0]), "x"),
            (lambda d: d.update(1.0, elapsed=0.0), "elapsed"),
            (lambda d: d.update(1.0, elapsed="a"), "elapsed"),
            (lambda d: d.update(1.0, changepoint=2), "changepoint"),
            (lambda d: d.update_many([1.0], elapsed=[1.0, 2.0]), "elapsed"),
            (lambda d: d.update_many(3.0), "list"),
            (lambda d: d.predict(elapsed=math.nan), "elapsed"),
            (lambda d: d.forecast(0), "horizon"),
        ):
            with pytest.raises(BadInput, match=message):
                call(detector)
        assert same(detector.update(1.0), other.update(1.0))
    for streams in ("pump", 0, 1.5):
        with pytest.raises(BadInput, match="streams"):
            Detectors(streams)


def test_a_refused_first_label_decides_on_nothing():
    detector = Detector()
    for y, more in (
        ({"a": 1.0, "b": math.inf}, {}),
        ([1.0, 2.0], {"elapsed": -1.0}),
        ([1.0, 2.0], {"x": [1.0]}),
    ):
        with pytest.raises(BadInput):
            detector.update(y, **more)
        assert (detector.model, detector.seq) == ("", 0)
    detector.update(None)
    assert detector.score_one({"a": 1.0, "b": 2.0}) == 0.0
    assert (detector.model, detector.seq) == ("", 1)
    detector.update({"c": 1.0})
    assert (detector.model, detector.seq) == ("averaged", 2)
    many = Detectors(warmup.LONGEST_WAIT)  # each waits as long as one alone
    many.update([None] * len(many))
    assert many.model == ""
    with pytest.raises(BadInput, match="input"):
        Detector("linear").update(None, None)
    detector = Detector("linear")
    detector.update(None, [1.0, 2.0])
    for x in ([1.0], [math.nan, 1.0], 5.0):
        with pytest.raises(BadInput):
            detector.update(None, x)
        assert (detector.seq, detector.warming_up) == (1, True)
    assert detector.update_many(step(count=2), [[1.0, -1.0]] * 2)[-1].seq == 2


# --- one stream -----------------------------------------------------------------------------------


def test_forecasts_wait_for_the_warm_up():
    detector = gaussian()
    assert detector.predict() is None
    detector.update_many([1.0, 2.0, 1.5])
    with pytest.raises(WarmingUp):
        detector.forecast(2)
    assert detector.predict().mean == pytest.approx(1.5, abs=0.1)
    detector.update_many(step())
    assert detector.paths(4, 10, seed=1).shape == (10, 4, 1)
    assert len(detector.forecast(3)) == 3


def test_a_forecast_takes_what_is_known_of_a_change():
    detector = gaussian()
    detector.update_many(step(count=40))
    following = detector.predict(changepoint=1.0)
    assert following.sd > 1.5 * detector.predict().sd
    with pytest.raises(BadInput, match="changepoint"):
        detector.predict(changepoint=2.0)
    answer = detector.update(0.5, changepoint=1.0)
    assert following == answer.predictive


def test_how_far_a_forecast_looks_is_bounded():
    detector = gaussian(warmup=5)
    detector.update_many(step(count=8))
    for horizon in (0, 10_001, 10**6):
        with pytest.raises(BadInput, match=f"expected 1 to 10,000 labels, got {horizon:,}"):
            detector.forecast(horizon)
    with pytest.raises(BadInput, match="expected 1 to 10,000 paths of 1,000 labels, got 10,001"):
        detector.paths(1000, 10_001)
    for count in (2.5, "3", None, True):
        with pytest.raises(BadInput, match=f"^horizon: expected 1 to .*got {count!r}$"):
            detector.forecast(count)
        with pytest.raises(BadInput, match=f"^count: expected 1 to .*got {count!r}$"):
            detector.paths(3, count)
    assert len(detector.forecast(np.int64(3))) == 3


def test_bounds_of_a_forecast_are_steadier_than_its_paths():
    """In heavy tails: 90 % intervals of ten steps ahead, by eight seeds."""
    detector = Detector("autoregressive", seasonal=False)
    detector.update_many(np.random.default_rng(0).standard_t(3, size=150).tolist())
    levels = (0.05, 0.95)
    bounds = [detector.forecast(10, seed)[-1].quantiles for seed in range(8)]
    paths = [np.quantile(detector.paths(10, 256, seed)[:, -1, 0], levels) for seed in range(8)]
    noise = np.std([[each[level] for level in levels] for each in bounds], axis=0)
    assert (noise < 0.6 * np.std(paths, axis=0)).all()


def test_answers_before_a_refused_label_are_on_the_error():
    detector = gaussian()
    labels = [each * 1e-140 for each in step(count=70, at=62)]
    detector.update_many(labels[:62])
    with pytest.raises(BadInput, match="the 8 before it were") as caught:
        detector.update_many([*labels[62:], 1e99, 0.0])
    assert [each.seq for each in caught.value.answers] == list(range(62, 70))
    assert any(each.drift_detected for each in caught.value.answers)
    assert detector.last is caught.value.answers[-1]


def test_a_score_is_that_of_the_next_answer_and_changes_nothing():
    detector, other = gaussian(warmup=5), gaussian(warmup=5)
    for y in step(count=30):
        before = detector.score_one(y)
        answer = detector.update(y)
        assert same(answer, other.update(y))
        assert before == (answer.anomaly or 0.0)
    assert detector.score_one(40.0) > detector.score_one(3.0)
    detector.learn_one(1.0)  # as river calls it
    assert (detector.seq, detector.clone().seq) == (31, 0)


def test_memory_is_bounded():
    detector = gaussian(history=40, seasonal=False, max_hypotheses=10)
    detector.update_many(np.random.default_rng(5).normal(size=150))
    layout, rows = detector.retained()
    assert rows.shape == (40, layout.width)
    kept = detector._all.pipeline.series[0].retained
    assert kept._rows.shape[0] <= 128
    assert kept.previous(109) is None
    assert kept.previous(110) == rows[0, PREVIOUS]
    assert detector.segments()[0].start == 110


def test_importing_it_brings_neither_servers_nor_pictures():
    code = (
        "import sys, model_core; assert 'torch' not in sys.modules\n"
        "from model_core import Detector\n"
        "found = {'matplotlib', 'fastapi', 'redis', 'safetensors', 'numba'} & set(sys.modules)\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_pictures(monkeypatch):
    pytest.importorskip("matplotlib")
    for detector, y in (
        (gaussian(name="pump <7>"), step(count=25)),
        (Detector(warmup=5), np.random.default_rng(0).normal(size=(8, 2))),
        (Detector("categorical", classes=3), [0, 1, 2] * 4),
    ):
        with pytest.raises(BadInput, match="nothing is retained"):
            detector.plot()
        assert "<table>" in detector._repr_html_()
        detector.update_many(y)
        assert len(detector.plot().axes) == (3 if detector.model == "joint" else 2)
    detector = gaussian()
    detector.update_many(step())
    table = detector._repr_html_()
    for part in ("<svg", "90 (1 change confirmed)", ", sd "):
        assert part in table
    assert detector._confirmed() == [60]
    with pytest.raises(BadInput, match="last: expected at least 1 observation, got 0"):
        detector.plot(last=0)
    level, line = detector.plot(last=50).axes[1].lines
    assert level.get_ydata()[0] == detector.settings.false_alarm_every
    assert line.get_xdata()[0] == 59.5
    unlined = gaussian(confirm_after=3)
    unlined.update_many(step())
    assert len(unlined.plot().axes[1].lines) == len(unlined._confirmed())
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(BadInput, match="matplotlib"):
        detector.plot()


def test_a_picture_of_many_outputs_has_those_that_changed_by_their_names():
    pytest.importorskip("matplotlib")
    y = np.random.default_rng(3).normal(size=(120, 9))
    y[60:, 7] += 12.0
    detector = Detector()
    detector.update_many([dict(zip("abcdefghi", row, strict=True)) for row in y.tolist()])
    assert detector.events[-1].sentence.startswith("h: mean rose")
    *panels, _ = detector.plot().axes
    assert [panel.get_ylabel() for panel in panels] == ["h", "a", "b", "c", "d", "e"]
    assert panels[0].lines[1].get_ydata()[-1] == y[-1, 7]
    assert "6 of 9 outputs" in panels[0].get_title(loc="left")


@pytest.mark.parametrize("count", [1, pytest.param(None, marks=pytest.mark.slow)])
def test_the_documentation_prints_what_it_says(count, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs" / "detector.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", text, re.M | re.S)
    assert len(blocks) > 3
    names = {}
    for code, printed in blocks[:count]:
        exec(code, names)
        assert capsys.readouterr().out == printed


# --- files ----------------------------------------------------------------------------------------


class Own(Gaussian):
    """A model of one's own, which has no kernel."""


@pytest.mark.parametrize("model", [Gaussian(), Own()])
def test_chunks_files_and_single_updates_are_the_same(tmp_path, model):
    missing = {0, 5, 20, 63}
    saved = 62
    y = [None if t in missing else each for t, each in enumerate(step(count=80))]
    alone, chunked = (Detector(model, history=50, max_hypotheses=10) for _ in range(2))
    singles = [alone.update(each) for each in y[:saved]]
    alone.save(tmp_path / "a.moca")
    stored = Detector.load(tmp_path / "a.moca", model)
    singles += [alone.update(each) for each in y[saved:]]
    pairs = itertools.pairwise((0, 7, 19, 61, 80))
    pieces = [each for a, b in pairs for each in chunked.update_many(y[a:b])]
    assert all(map(same, singles, pieces))
    assert all(map(same, stored.update_many(y[saved:]), singles[saved:]))
    for other in (chunked, stored):
        assert alone.events == other.events
        assert alone.segments() == other.segments()


def test_a_file_has_seasons_vectors_and_what_came_before_the_first_label(tmp_path, monkeypatch):
    monkeypatch.setattr(season, "SEASONS_FROM", 60)
    rng = np.random.default_rng(2)
    daily = (np.sin(2 * np.pi * np.arange(72) / 12) + 0.1 * rng.normal(size=72)).tolist()
    rows = rng.normal(size=(12, 3)).tolist()
    for detector, y, at in (
        (gaussian(), daily, 66),
        (gaussian(seasonal=True), daily, 60),
        (Detector(warmup=5), [None, None, *rows], 1),
        (Detector(warmup=5), [None, *rows], 9),
        (gaussian(history=0, seasonal=False, warmup=5), step(count=12), 8),  # no retained rows
        (gaussian(warmup=5), step(count=10), 0),
    ):
        detector.update_many(y[:at])
        detector.save(tmp_path / "a")
        stored = Detector.load(tmp_path / "a")
        assert (stored.model, stored.seq) == (detector.model, detector.seq)
        assert all(map(same, stored.update_many(y[at:]), detector.update_many(y[at:])))
        assert stored.segments() == detector.segments()
        assert stored.predict() == detector.predict()
        if detector.model == "gaussian":
            assert stored.forecast(3) == detector.forecast(3)


def test_a_file_that_no_detector_wrote(tmp_path):
    path = tmp_path / "values.csv"
    path.write_text("10.0\n" * 100)
    with pytest.raises(BadState, match=r"values\.csv: expected a file that `save` wrote"):
        Detector.load(path)


def test_a_file_after_the_longest_times(tmp_path):
    """Steps that a hazard is learned from stay finite: it is read, and changes are found."""
    detector = gaussian()
    detector.update_many(step(count=30))
    for _ in range(2):
        detector.update(0.0, elapsed=1e308)
    detector.update_many(step(count=20, seed=1))
    detector.save(tmp_path / "a")
    again = Detector.load(tmp_path / "a")
    answers = again.update_many(step(size=9.0, at=0, count=20, seed=2))
    assert any(answer.drift_detected for answer in answers)


def test_a_damaged_file_is_refused(tmp_path):
    file = tmp_path / "a"
    detector = gaussian()
    detector.update_many(step(count=30))
    detector.save(file)
    blob = file.read_bytes()
    unknown = blob[:-4].replace(b'"seq":30', b'"sea":30')
    unknown += zlib.crc32(unknown).to_bytes(4, "little")
    before = blob[:4] + (3).to_bytes(2, "little") + blob[6:-4]  # hazards were not learned then
    before += zlib.crc32(before).to_bytes(4, "little")
    others = b"MOCA" + blob[4:], b"", unknown, before
    for damaged in (blob[:-9], blob[:40] + b"x" + blob[41:], *others):
        file.write_bytes(damaged)
        with pytest.raises(BadState):
            Detector.load(file)


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("filter 0", (0, RUN_LENGTH, 0), 40.0),
        ("filter 1", (0, 0), math.nan),
        ("filter 2", (0, 0), 1e9),  # a sketch of so many values would be read far beyond its row
        ("retained 0", (30, PREVIOUS), 30.0),  # a path that never ends
    ],
)
def test_a_file_of_impossible_numbers_is_refused(tmp_path, name, place, value):
    detector = gaussian()
    detector.update_many(step(count=40))
    detector.save(tmp_path / "a")
    header, arrays = storage.read(tmp_path / "a")
    arrays[name][place] = value
    del header["arrays"]
    storage.write(tmp_path / "a", header, arrays)
    with pytest.raises(BadState):
        Detector.load(tmp_path / "a")


def test_a_model_of_ones_own_is_given_again(tmp_path):
    detector = Detector(Gaussian())
    detector.update_many(step(count=40))
    detector.save(tmp_path / "a")
    with pytest.raises(BadInput, match="model="):
        Detector.load(tmp_path / "a")
    stored = Detector.load(tmp_path / "a", Gaussian())
    assert same(stored.update(1.0), detector.update(1.0))
    with pytest.raises(BadState, match="kind"):
        Detector.load(tmp_path / "a", "poisson")


def test_a_trained_model_is_known_by_its_folder_and_what_was_loaded(tmp_path):
    folder = tmp_path / "sinusoid" / "1"
    shutil.copytree(SINUSOID, folder)
    with pytest.raises(
        BadArtifact, match=r"expected model.json in .*; name one of its versions, 1$"
    ):
        Detector(folder.parent)
    detector = Detector(folder)
    for x, noise in np.random.default_rng(7).normal(size=(12, 2)):
        detector.update(math.sin(x) + 0.1 * noise, x=[x])
    assert detector.model == "sinusoid@1"
    detector.save(tmp_path / "a")
    assert Detector.load(tmp_path / "a").predict([0.5]) == detector.predict([0.5])
    with pytest.raises(BadInput, match="predict"):
        detector.forecast(2)
    described = json.loads((folder / "model.json").read_text())
    for words in ({"description": "said anew"}, {"regimes": None}):
        (folder / "model.json").write_text(json.dumps(described | words))
        assert Detector.load(tmp_path / "a").clone().model == "sinusoid@1"
    (folder / "model.json").write_text(json.dumps(described | {"hazard": 0.5}))
    detector.save(tmp_path / "b")  # what it runs is what it was loaded as
    for file in ("a", "b"):
        with pytest.raises(BadState, match="another artifact"):
            Detector.load(tmp_path / file)
    shutil.rmtree(folder)
    detector.save(tmp_path / "c")


# --- many series ----------------------------------------------------------------------------------


def test_series_at_other_positions_are_stored_each_with_its_own(tmp_path):
    detectors = Detectors(2, "gaussian", history=50)
    detectors.update_many(0, step())
    detectors.update_many(1, step(count=10))
    detectors.save(tmp_path / "two")
    stored = Detectors.load(tmp_path / "two")
    assert [tuple(segment) for segment in detectors.segments(0)] == [(40, 60), (60, 90)]
    assert stored.segments(0) == detectors.segments(0)


def test_many_series_are_each_as_if_alone(tmp_path):
    rng = np.random.default_rng(4)
    y = rng.normal(size=(36, 3)) + [0, 10, -5]
    y[24:, 1] += 6
    y[5:9, 2] = math.nan
    together, alone = Detectors(3, "gaussian"), [gaussian() for _ in range(3)]
    for t, row in enumerate(y):
        answers = together.update(row)
        singles = [each.update(value) for each, value in zip(alone, row, strict=True)]
        for ours, theirs in zip(answers, singles, strict=True):
            assert ours.seq == theirs.seq
            assert ours.anomaly == pytest.approx(theirs.anomaly, abs=1e-9)
            assert ours.log_score == pytest.approx(theirs.log_score, abs=1e-9)
        if t == 26:
            together.save(tmp_path / "many")
            together = Detectors.load(tmp_path / "many")
    assert answers.changed_probability.shape == (3,)
    for row, each in enumerate(alone):
        ours = [(event.id, event.state, event.start) for event in together.events(row)]
        assert ours == [(event.id, event.state, event.start) for event in each.events]
        assert together.segments(row) == each.segments()
    (some,) = together.update([1.0], streams=[2])
    assert some.seq == 36
    assert [together.seq(row) for row in range(3)] == [36, 36, 37]


def test_a_refused_label_hurts_its_own_series_alone():
    many = Detectors(2, "gaussian")
    many.update_many(0, step(count=30))
    many.update_many(1, [each * 1e-140 for each in step(count=30)])
    answers = many.update([0.0, 1e99])
    assert repr(answers) == "Answers(2 series, drift_detected=[], refused=[1])"
    assert (answers.refused, many.seq(0), many.seq(1)) == ([1], 31, 30)
    with pytest.raises(BadInput, match="not finite"):
        many.update_many(1, [0.0, 1e99])
    assert many.seq(1) == 31


def test_series_are_known_by_their_index_or_a_name_that_one_alone_has():
    many = Detectors(["pump", "twin", "twin"], "gaussian")
    many.update([1.0, 2.0], streams=["pump", 2])
    assert len(many.update_many("pump", [3.0, 5.0])) == 2
    assert [many.seq(stream) for stream in ("pump", 0, 1, 2)] == [3, 3, 0, 1]
    with pytest.raises(BadInput, match="from 0 to 2, or the name of one series, got 'twin'"):
        many.seq("twin")
    with pytest.raises(BadInput, match="named twice"):
        many.update([1.0, 2.0], streams=["pump", 0])
    assert repr(many) == "Detectors(3 series, 'gaussian')"


def test_what_is_no_series_is_refused():
    many = Detectors(2, "gaussian")
    for stream in (-1, 2, 0.5, True, None, "a"):
        calls = [many.predict, many.forecast, many.seq, many.segments, many.events]
        calls += [many.anomalies, many.warming_up, lambda s: many.update_many(s, [1.0])]
        calls += [lambda s: many.update([1.0, 2.0], streams=[1, s]), lambda s: many.score(s, 1.0)]
        for call in calls:
            with pytest.raises(BadInput, match="stream"):
                call(stream)
    assert [many.seq(np.int64(row)) for row in range(2)] == [0, 0]


def test_labels_that_lack_an_output_are_stepped_by_the_kernel(monkeypatch):
    """In the warm-up, where each forecast replays it, and after it."""
    rng = np.random.default_rng(2)
    labels = [[None if t % 2 else y, z] for t, (y, z) in enumerate(rng.normal(size=(50, 2)))]
    monkeypatch.setattr(Slab, "_eagerly", None)
    one = Detector("joint")
    answers = [one.update(label) for label in labels]
    assert answers[18].warming_up
    assert not answers[-1].warming_up
    assert all(np.isfinite(answer.log_score) for answer in answers[4:])


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import numpy as np
from model_core import Detector
from model_core.errors import MissingTorch
rng = np.random.default_rng(1)
y = rng.normal(size=80)
y[50:] += 9
both = np.stack((y, rng.normal(size=80)), 1)
series = {
    "averaged": y, "gaussian": y, "autoregressive": y, "linear": y, "poisson": np.abs(y).round(),
    "exponential": np.abs(y), "gamma": np.abs(y), "bernoulli": y > 5, "categorical": y > 5,
    "joint": both, "multivariate": both,
}
for name, labels in series.items():
    settings = {"classes": 2} if name == "categorical" else {}
    x = [[0.1 * t] for t in range(80)] if name == "linear" else None
    one = Detector(name, **settings)
    one.update_many(labels.astype(float), x)
    one.save(sys.argv[1])
    again = Detector.load(sys.argv[1])
    if x is None:
        steps, same = one.forecast(3, seed=1), again.forecast(3, seed=1)
        assert steps == same
        assert (steps[2].quantiles is None) == (name in ("bernoulli", "categorical"))
        paths = one.paths(3, 4, seed=2)
        assert paths.shape == (4, 3, labels.ndim) and np.isfinite(paths).all()
        assert (paths == again.paths(3, 4, seed=2)).all()
    assert one.predict(x and x[0]) == again.predict(x and x[0]) is not None
    assert again.retained()[1].tobytes() == one.retained()[1].tobytes()
    assert len(one.segments()) == 2, name
    print(name, *[event.start for event in one.events if event.state == "confirmed"])
partial = Detector("joint")
partial.update_many(both)
assert np.isfinite(partial.update([None, 1.0]).log_score)
assert np.isfinite(partial.forecast(2)[1].mean).all()
try:
    from model_core.lazy import load
    load()
except MissingTorch as error:
    print(str(error).partition(":")[0])
"""


def test_built_in_models_work_where_torch_is_not_installed(tmp_path):
    """Stepped, forecast, stored, loaded, segmented; what torch computes says so."""
    command = [sys.executable, "-c", WITHOUT_TORCH, str(tmp_path / "detector")]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines.pop() == "this needs torch, which is not installed"
    assert len(lines) == 11
    for line in lines:
        name, *starts = line.split()
        assert "50" in starts, line
