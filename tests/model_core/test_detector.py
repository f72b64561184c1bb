"""Detectors without a server: input, files, many series at once, the protocols of others.

That their numbers are the service's is in tests/service/worker/test_detector.py.
"""

import json
import math
import re
import shutil
import subprocess
import sys
import zlib
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model_core import Detector, Detectors, kernel, season
from model_core.detection import picture
from model_core.detection.filters import Filters
from model_core.detection.rows import Retained
from model_core.errors import BadInput, CorruptState, WarmingUp
from model_core.sensitivity import own
from model_core.sensitivity.alarms import Watch
from model_core.upm.conjugate import Gaussian


def step(size=3.0, at=60, count=90, seed=0):
    y = np.random.default_rng(seed).normal(size=count)
    y[at:] += size
    return y.tolist()


def gaussian(**more):
    return Detector("gaussian", kernels=False, **more)


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


def test_single_labels_have_plain_numbers_and_vectors_lists():
    answer = gaussian().update_many(step())[-1]
    low, high = answer.predictive.interval
    assert low < answer.predictive.mean < high
    assert answer.predictive.sd == pytest.approx(1.0, abs=0.5)
    detector = Detector(kernels=False)
    answer = detector.update_many(np.random.default_rng(0).normal(size=(25, 2)))[-1]
    assert detector.model == "joint@1"
    assert len(answer.predictive.mean) == len(answer.predictive.sd) == 2
    assert [len(each) for each in answer.predictive.interval] == [2, 2]


def test_mappings_are_vectors_by_name():
    by_name, by_place = (Detector(kernels=False) for _ in range(2))
    rng = np.random.default_rng(1)
    for a, b in rng.normal(size=(30, 2)).tolist():
        ours, theirs = by_name.update({"b": b, "a": a}), by_place.update([b, a])
        assert same(ours, theirs)
    assert same(by_name.update({"a": 1.0}), by_place.update([None, 1.0]))
    with pytest.raises(BadInput, match="'c'"):
        by_name.update({"c": 1.0})


@pytest.mark.parametrize(
    "rows",
    [
        list,
        np.array,
        lambda y: __import__("pandas").Series(y),
        lambda y: __import__("polars").Series(y),
    ],
)
def test_lists_arrays_and_columns_are_the_same(rows):
    y = step(count=30)
    y[5] = math.nan
    detector = gaussian()
    assert same(detector.update_many(rows(y))[-1], gaussian().update_many(y)[-1])


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    cuts=st.lists(st.integers(0, 80), max_size=4),
    missing=st.sets(st.integers(0, 79), max_size=8),
    saved=st.integers(0, 80),
    kernels=st.booleans(),
)
def test_chunks_files_and_single_updates_are_the_same(
    tmp_path_factory, cuts, missing, saved, kernels
):
    if kernels and (compiled := kernel.in_place(Gaussian(), "cpu")) is not None:
        compiled.compile()  # else it may be ready half-way, and quantiles differ in the ninth digit
    y = [None if t in missing else each for t, each in enumerate(step(count=80))]
    alone, chunked = (Detector("gaussian", kernels=kernels, history=50) for _ in range(2))
    singles, stored = [], None
    file = tmp_path_factory.mktemp("detector") / "a.moca"
    for t, each in enumerate(y):
        if t == saved:
            alone.save(file)
            stored = Detector.load(file)
        singles.append(alone.update(each))
    bounds = sorted({0, *cuts, 80})
    pieces = [
        each
        for a, b in zip(bounds, bounds[1:], strict=False)
        for each in chunked.update_many(y[a:b])
    ]
    assert all(map(same, singles, pieces))
    assert alone.events == chunked.events
    assert alone.segments() == chunked.segments()
    if stored is not None:
        assert all(map(same, stored.update_many(y[saved:]), singles[saved:]))
        assert stored.events == alone.events
        assert stored.segments() == alone.segments()


def test_a_file_has_seasons_vectors_and_what_came_before_the_first_label(tmp_path, monkeypatch):
    monkeypatch.setattr(season, "SEASONS_FROM", 100)
    t = np.arange(190)
    daily = (np.sin(2 * np.pi * t / 12) + 0.1 * np.random.default_rng(2).normal(size=190)).tolist()
    rows = np.random.default_rng(3).normal(size=(40, 3)).tolist()
    for made, y, at in (
        (gaussian(), daily, 150),
        (gaussian(seasonal=True), daily, 60),
        (Detector(kernels=False), [None, None, *rows], 1),
        (Detector(kernels=False), [None, *rows], 30),
    ):
        made.update_many(y[:at])
        made.save(tmp_path / "a")
        stored = Detector.load(tmp_path / "a")
        assert (stored.model, stored.seq) == (made.model, made.seq)
        for ours, theirs in zip(stored.update_many(y[at:]), made.update_many(y[at:]), strict=True):
            assert same(ours, theirs)
        assert stored.segments() == made.segments()
        assert stored.forecast(3) == made.forecast(3)
    assert made.last.predictive is not None


def test_a_damaged_file_is_refused(tmp_path):
    file = tmp_path / "a"
    detector = gaussian()
    detector.update_many(step(count=30))
    detector.save(file)
    blob = file.read_bytes()
    for damaged in (blob[:-9], blob[:40] + b"x" + blob[41:], b"MOCA" + blob[4:], b""):
        file.write_bytes(damaged)
        with pytest.raises(CorruptState):
            Detector.load(file)
    changed = blob[:-4].replace(b'"seq":30', b'"sea":30')
    file.write_bytes(changed + zlib.crc32(changed).to_bytes(4, "little"))
    with pytest.raises(CorruptState, match="cannot be restored"):
        Detector.load(file)


def test_a_model_of_ones_own_is_given_again(tmp_path):
    detector = Detector(Gaussian(), kernels=False)
    detector.update_many(step(count=40))
    detector.save(tmp_path / "a")
    with pytest.raises(BadInput, match=r"load\(path, model=\.\.\.\)"):
        Detector.load(tmp_path / "a")
    stored = Detector.load(tmp_path / "a", Gaussian())
    assert same(stored.update(1.0), detector.update(1.0))
    with pytest.raises(CorruptState, match="kind"):
        Detector.load(tmp_path / "a", "poisson")


def test_a_trained_model_is_known_by_its_folder_and_its_weights(tmp_path):
    folder = tmp_path / "sinusoid" / "1"
    shipped = resources.files("service.samples") / "models" / "sinusoid" / "1"
    with resources.as_file(shipped) as here:
        shutil.copytree(here, folder)
    detector = Detector(folder, kernels=False)
    rng = np.random.default_rng(7)
    for x, noise in rng.normal(size=(12, 2)):
        detector.update(math.sin(x) + 0.1 * noise, x=[x])
    assert detector.model == "sinusoid@1"
    detector.save(tmp_path / "a")
    assert Detector.load(tmp_path / "a").predict([0.5]) == detector.predict([0.5])
    with pytest.raises(BadInput, match="predict"):
        detector.forecast(2)
    described = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(described | {"description": "said anew"}))
    Detector.load(tmp_path / "a")
    (folder / "model.json").write_text(json.dumps(described | {"hazard": 0.5}))
    with pytest.raises(CorruptState, match="another artifact"):
        Detector.load(tmp_path / "a")


def test_many_series_are_each_as_if_alone(tmp_path):
    rng = np.random.default_rng(4)
    y = rng.normal(size=(70, 3)) + [0, 10, -5]
    y[40:, 1] += 6
    y[5:9, 2] = math.nan
    together, alone = Detectors(3, "gaussian", kernels=False), [gaussian() for _ in range(3)]
    for t, row in enumerate(y):
        answers = together.update(row)
        singles = [each.update(value) for each, value in zip(alone, row, strict=True)]
        for ours, theirs in zip(answers, singles, strict=True):
            assert ours.seq == theirs.seq
            assert ours.anomaly == pytest.approx(theirs.anomaly, abs=1e-9)
            assert ours.log_score == pytest.approx(theirs.log_score, abs=1e-9)
        if t == 50:
            together.save(tmp_path / "many")
            together = Detectors.load(tmp_path / "many")
    assert answers.changed_probability.shape == (3,)
    for row, each in enumerate(alone):
        ours = [(event.id, event.state, event.start) for event in together.events(row)]
        assert ours == [(event.id, event.state, event.start) for event in each.events]
        assert together.segments(row) == each.segments()
    (some,) = together.update([1.0], streams=[2])
    assert some.seq == 70
    assert [together.seq(row) for row in range(3)] == [70, 70, 71]


def test_a_refused_label_hurts_its_own_series_alone():
    many = Detectors(2, "gaussian", kernels=False)
    many.update_many(0, step(count=30))
    many.update_many(1, [each * 1e-140 for each in step(count=30)])
    answers = many.update([0.0, 1e99])
    assert (answers.refused, many.seq(0), many.seq(1)) == ([1], 31, 30)
    with pytest.raises(BadInput, match="not finite"):
        many.update_many(1, [0.0, 1e99])
    assert many.seq(1) == 31


def two_levels(count, seed=0):
    """Labels around two levels at random: the threshold of the model's curve is too loud."""
    rng = np.random.default_rng(seed)
    return (rng.choice([-2.0, 2.0], count) + 0.3 * rng.normal(size=count)).tolist()


def test_a_sensitivity_is_calibrated_on_own_labels(tmp_path, monkeypatch):
    monkeypatch.setattr(own, "STEPS", 300)  # a third of the time, and of the precision
    both = Detectors(["a", "b"], "gaussian", sensitivity=5.0, kernels=False)
    for row in (0, 1):
        both.update_many(row, two_levels(600, seed=row))
    curve = both.pipeline.threshold(0)
    found = both.calibrate(0)
    assert both.pipeline.threshold(0) == found.threshold != curve
    assert both.pipeline.threshold(1) == curve
    assert both.calibrate(0) == found  # it draws the same continuations
    both.save(tmp_path / "both.moca")
    loaded = Detectors.load(tmp_path / "both.moca")
    assert [loaded.pipeline.threshold(row) for row in (0, 1)] == [found.threshold, curve]
    numbers = both.pipeline.series[0].numbers()
    del numbers["threshold"]  # as in a file of a version before there was one
    both.pipeline.series[0].restore(numbers)
    assert both.pipeline.threshold(0) == curve


@pytest.mark.parametrize(
    ("settings", "labels", "message"),
    [
        ({"model": "gaussian"}, two_levels(30), "expected this setting"),
        ({"model": "gaussian", "sensitivity": 1.0}, [], "at least 500 labels, and that two differ"),
        (
            {"model": "gaussian", "sensitivity": 1.0},
            two_levels(499),
            "500 retained labels, got 499",
        ),
        (
            {"model": "gaussian", "sensitivity": 1.0},
            [3.0] * 600,
            "labels that differ, got 600 times 3",
        ),
        ({"model": "poisson", "sensitivity": 1.0}, [1.0] * 30, "got one of 1 count labels"),
    ],
)
def test_what_cannot_be_calibrated_says_why(settings, labels, message):
    detector = Detector(**settings, kernels=False)
    detector.update_many(labels)
    with pytest.raises(BadInput, match=message):
        detector.calibrate()


def test_labels_are_counted_before_a_kernel_is_compiled(monkeypatch):
    detector = Detector("gaussian", sensitivity=1.0, kernels=False)
    detector.update_many(two_levels(100))
    monkeypatch.setattr(Filters, "compile", lambda self: pytest.fail("it compiles a kernel"))
    with pytest.raises(BadInput, match="at least 500 retained labels, got 100"):
        detector.calibrate()


def test_calibration_uses_one_thread_and_restores_their_number(monkeypatch):
    monkeypatch.setattr(own, "STEPS", 3)
    detector = Detector("gaussian", sensitivity=5.0, kernels=False)
    detector.update_many(two_levels(500))
    take, threads = Watch.take, []

    def counted(self, state, t):
        threads.append(torch.get_num_threads())
        take(self, state, t)

    monkeypatch.setattr(Watch, "take", counted)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        detector.calibrate()
        assert (threads, torch.get_num_threads()) == ([1, 1, 1], 2)
    finally:
        torch.set_num_threads(before)


def test_memory_is_bounded():
    detector = gaussian(history=40, seasonal=False, max_hypotheses=10)
    detector.update_many(np.random.default_rng(5).normal(size=400))
    layout, rows = detector.retained()
    assert rows.shape == (40, layout.width)
    assert detector._all.pipeline.series[0].retained._rows.shape[0] <= 128
    assert detector.segments()[0].start == 360
    kept = Retained(1)
    for seq in range(1000):
        kept.append(np.array([seq]))
        kept.trim(30)
    assert (kept.rows[:, 0] == np.arange(970, 1000)).all()
    assert kept.at(969) is None
    assert kept.at(999)[0] == 999


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hasard": 0.1}, "did you mean 'hazard'"),
        ({"ttl": 3}, "of the service alone"),
        ({"hazard": 1.5}, "hazard: expected a hazard between 0 and 1, got 1.5"),
        ({"max_hypotheses": 1}, "from 2 to"),
        ({"warmup": 2.5}, "whole number"),
        ({"confirm_probability": 0.2}, "from 0.5 and below 1"),
        ({"confirm_probability": 0.9, "confirm_after": 3}, "not allowed together"),
        ({"anomaly_alarm": "high"}, "expected a number"),
        ({"scale": 0}, "scale: expected numbers between"),
        ({"sensitivity": -1}, "false alarms per 1,000"),
        ({"seasonal": 1}, "True or False"),
        ({"quantiles": [0.5, 2]}, "between 0 and 1"),
        ({"model": "gausian"}, "did you mean 'gaussian'"),
        ({"model": "categorical"}, "needs this setting"),
        ({"model": "poisson", "seasonal": True}, "one real label"),
        ({"location": [1.0, 2.0], "model": "poisson"}, "expected 1 numbers"),
    ],
)
def test_wrong_settings_are_refused(given, message):
    with pytest.raises(BadInput, match=message):
        Detector(**{"kernels": False, **given}).update(1.0)


@pytest.mark.parametrize(
    ("model", "y", "message"),
    [
        ("gaussian", "3", "got '3'"),
        ("gaussian", [1.0, 2.0], "expected 1 numbers, got 2"),
        ("gaussian", math.inf, "up to 1e"),
        ("poisson", 2.5, "a count"),
        ("bernoulli", 2, "0 or 1"),
    ],
)
def test_wrong_labels_are_refused_and_change_nothing(model, y, message):
    detector = Detector(model, kernels=False)
    detector.update_many([0, 1] * 15)
    with pytest.raises(BadInput, match=message):
        detector.update(y)
    with pytest.raises(BadInput, match="takes, got 1"):
        detector.update(1.0, x=[2.0])
    with pytest.raises(BadInput, match="elapsed"):
        detector.update(1.0, elapsed=0.0)
    assert detector.seq == 30


def test_forecasts_wait_for_the_warm_up():
    detector = gaussian()
    assert detector.predict() is None
    detector.update_many([1.0, 2.0, 1.5])
    with pytest.raises(WarmingUp, match="after 3 observations"):
        detector.forecast(2)
    assert detector.predict().mean == pytest.approx(1.5, abs=0.1)
    detector.update_many(step())
    assert detector.paths(4, 10, seed=1).shape == (10, 4, 1)
    with pytest.raises(BadInput, match="horizon"):
        detector.forecast(0)


def test_a_score_is_that_of_the_next_answer_and_changes_nothing():
    detector, other = gaussian(), gaussian()
    for y in step(count=70):
        before = detector.score_one(y)
        answer = detector.update(y)
        assert same(answer, other.update(y))
        assert before == (answer.anomaly or 0.0)
    assert detector.score_one(40.0) > detector.score_one(3.0)


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
        (gaussian(name="pump <7>"), step()),
        (Detector(kernels=False), np.random.default_rng(0).normal(size=(30, 2))),
        (Detector("categorical", classes=3, kernels=False), [0, 1, 2] * 10),
    ):
        with pytest.raises(BadInput, match="nothing is retained"):
            detector.plot()
        assert "<table>" in detector._repr_html_()
        detector.update_many(y)
        figure = detector.plot()
        assert len(figure.axes) == (3 if detector.model == "joint@1" else 2)
        assert "<svg" in detector._repr_html_()
        figure.canvas.draw()
    detector = gaussian()
    detector.update_many(step())
    assert "at 60" in detector._repr_html_()
    assert picture.confirmed(detector) == [60]
    (line,) = detector.plot(last=50).axes[1].lines
    assert line.get_xdata()[0] == 59.5
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(BadInput, match="pip install matplotlib"):
        detector.plot()


@pytest.mark.parametrize("page", ["docs/detector.md", "README.md"])
def test_the_documentation_prints_what_it_says(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / page).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", text, re.M | re.S)
    ours = [block for block in blocks if "Client" not in block[0]]
    assert "Detector" in ours[0][0]
    names = {}
    with kernel.eager_only():
        for code, printed in ours:
            exec(code, names)
            assert capsys.readouterr().out == printed


def test_a_file_without_retained_rows_goes_on(tmp_path):
    for detector, y in ((gaussian(history=0, seasonal=False), step(count=30)), (gaussian(), [])):
        detector.update_many(y)
        detector.save(tmp_path / "a")
        stored = Detector.load(tmp_path / "a")
        for each in step(count=25):
            assert same(stored.update(each), detector.update(each))


def test_a_trained_model_is_cloned_and_told_apart_by_what_was_loaded(tmp_path):
    folder = tmp_path / "sinusoid" / "1"
    shipped = resources.files("service.samples") / "models" / "sinusoid" / "1"
    with resources.as_file(shipped) as here:
        shutil.copytree(here, folder)
    detector = Detector(folder, kernels=False)
    described = json.loads((folder / "model.json").read_text())
    detector.save(tmp_path / "a")
    (folder / "model.json").write_text(json.dumps(described | {"regimes": None}))
    assert Detector.load(tmp_path / "a").clone().model == "sinusoid@1"
    (folder / "model.json").write_text(json.dumps(described | {"hazard": 0.5}))
    detector.save(tmp_path / "b")  # what it runs is what it was loaded as
    with pytest.raises(CorruptState, match="another artifact"):
        Detector.load(tmp_path / "b")
    shutil.rmtree(folder)
    detector.save(tmp_path / "c")
    assert "predict(x)" in detector._repr_html_()


def test_clones_of_a_loaded_detector_without_a_model_choose_anew(tmp_path):
    detector = Detector(kernels=False)
    detector.update(1.0)
    detector.save(tmp_path / "a")
    stored = Detector.load(tmp_path / "a")
    assert stored.model == "averaged@2"
    other = stored.clone()
    assert other.model == ""
    other.update([1.0, 2.0])
    assert other.model == "joint@1"
    stored.save(tmp_path / "b")
    assert Detector.load(tmp_path / "b").clone().model == ""


def test_rivers_protocols():
    pytest.importorskip("river", reason="river is not installed: no part of the tests' extra")
    from river import anomaly, drift, dummy

    wrapped = drift.DriftRetrainingClassifier(
        model=dummy.PriorClassifier(), drift_detector=gaussian(location=0.1, scale=0.3)
    )
    rng = np.random.default_rng(6)
    for t in range(120):
        wrapped.learn_one({"x": rng.normal()}, bool(t >= 60))
        wrapped.predict_proba_one({"x": 0.0})
    assert wrapped.drift_detector.seq < 120  # it was cloned at the drift, and began anew
    filtered = anomaly.QuantileFilter(gaussian(), q=0.95)
    for each in step():
        filtered.score_one({"x": each})
        filtered.learn_one({"x": each})
    assert filtered.anomaly_detector.seq > 60
