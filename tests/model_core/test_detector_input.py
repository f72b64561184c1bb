"""What detectors are given: indices, inputs by name, numbers; and that refusals change nothing."""

import math

import numpy as np
import pytest
import torch

from model_core import Detector, Detectors, warmup
from model_core.detection.filters import Filters
from model_core.errors import BadInput
from tests.model_core.test_detector import gaussian, same, step


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (None, "takes an input"),
        ([1.0], "expected 2 numbers, as linear@1 takes, got 1"),
        ([math.nan, 1.0], "expected numbers up to"),
        (5.0, "got 1"),
    ],
)
def test_inputs_before_the_first_label_are_checked_at_once(x, message):
    detector = Detector("linear", kernels=False)
    if message != "takes an input":
        detector.update(None, [1.0, 2.0])
    seq = detector.seq
    with pytest.raises(BadInput, match=message):
        detector.update(None, x)
    assert (detector.seq, detector.warming_up) == (seq, True)
    answers = detector.update_many(step(count=30), np.ones((30, 2)) * [[1.0, -1.0]])
    assert answers[-1].seq == seq + 29


def test_a_model_that_takes_nothing_is_given_up(monkeypatch):
    detector = gaussian(warmup=3)
    detector.update_many([1.0, 2.0])
    stepped = Filters._step_eagerly

    def refused(self, *given):
        steps = stepped(self, *given)
        return [each._replace(line=each.line._replace(ok=False)) for each in steps]

    with monkeypatch.context() as broken:
        broken.setattr(Filters, "_step_eagerly", refused)
        with pytest.raises(BadInput, match="not finite"):
            detector.update(3.0)
    other = gaussian(warmup=3)
    other.update_many([1.0, 2.0])
    assert same(detector.update(3.0), other.update(3.0))
    assert (detector.seq, detector.warming_up, detector.events) == (3, False, [])


@pytest.mark.parametrize("stream", [-1, 2, 0.5, True, None, "a"])
def test_series_are_known_by_their_index_alone(stream):
    many = Detectors(2, "gaussian", kernels=False)
    for call in (
        lambda: many.update([1.0, 2.0], streams=[1, stream]),
        lambda: many.update_many(stream, [1.0]),
        lambda: many.score(stream, 1.0),
        lambda: many.predict(stream),
        lambda: many.forecast(stream),
        lambda: many.seq(stream),
        lambda: many.segments(stream),
        lambda: many.events(stream),
        lambda: many.anomalies(stream),
        lambda: many.warming_up(stream),
    ):
        with pytest.raises(BadInput, match="stream: expected an index from 0 to 1, got"):
            call()
    assert [many.seq(np.int64(row)) for row in range(2)] == [0, 0]


def test_answers_before_a_refused_label_are_on_the_error():
    detector = gaussian()
    detector.update_many([each * 1e-140 for each in step(count=70, at=66)[:62]])
    rest = [each * 1e-140 for each in step(count=70, at=62)[62:]]
    with pytest.raises(BadInput, match="the 8 before it were") as caught:
        detector.update_many([*rest, 1e99, 0.0])
    assert [each.seq for each in caught.value.answers] == list(range(62, 70))
    assert any(each.drift_detected for each in caught.value.answers)
    assert detector.last is caught.value.answers[-1]


def test_warm_ups_are_predicted_together_without_what_is_not_labelled(monkeypatch):
    calls, provisional = [], warmup.provisional

    def counted(model, histories, *rest):
        calls.append(list(map(len, histories)))
        return provisional(model, histories, *rest)

    monkeypatch.setattr(warmup, "provisional", counted)
    many, alone = Detectors(3, "gaussian", kernels=False), gaussian()
    rows = [[1.0, 3.0, 5.0], [2.0, None, 5.0], [None, 2.0, 5.0], [2.5, 4.0, 5.0]]
    answers = [many.update(row) for row in rows]
    assert calls == [[1 + 1], [2, 2]]  # the third series does not vary
    assert many.predict(2) is None
    del calls[:]
    singles = alone.update_many([row[1] for row in rows])
    assert calls == [[2]]
    for ours, theirs in zip(answers, singles, strict=True):
        assert ours[1].log_score == (theirs.log_score and pytest.approx(theirs.log_score))
        assert ours[1].predictive == theirs.predictive


def test_many_series_without_labels_wait_as_long_as_one():
    many = Detectors(warmup.LONGEST_WAIT, kernels=False)
    many.update([None] * len(many))
    assert many.model == ""


def test_inputs_that_are_mappings_are_taken_by_name():
    by_name, by_place = (Detector("linear", kernels=False) for _ in range(2))
    rng = np.random.default_rng(1)
    for t, (a, b, y) in enumerate(rng.normal(size=(30, 3)).tolist()):
        x = {"b": b, "a": a} if t % 2 else {"a": a, "b": b}
        assert same(by_name.update(y, x), by_place.update(y, [a, b]))
    assert by_name.predict({"b": 1.0, "a": 2.0}) == by_place.predict([2.0, 1.0])
    assert "by its input" in by_name._repr_html_()
    with pytest.raises(BadInput, match="'c'"):
        by_name.update(0.0, {"a": 1.0, "c": 1.0})
    with pytest.raises(BadInput, match="nan"):
        by_name.update(0.0, {"a": 1.0})


def test_a_refused_first_label_decides_on_nothing():
    detector = Detector(kernels=False)
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
    assert (detector.model, detector.seq) == ("averaged@2", 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: d.update(10**400), "y: expected numbers up to"),
        (lambda d: d.update(1.0, elapsed="a"), "elapsed: expected a number above 0, got 'a'"),
        (lambda d: d.update(1.0, elapsed=10**400), "elapsed: expected"),
        (lambda d: d.update(1.0, changepoint="a"), "changepoint: expected"),
        (lambda d: d.update(1.0, changepoint=2), "a probability, got 2"),
        (lambda d: d.predict(elapsed=math.nan), "elapsed: expected a number above 0, got nan"),
        (lambda d: d.predict(elapsed=0), "elapsed"),
        (lambda d: d.update_many([1.0], elapsed=[1.0, 2.0]), "elapsed: expected one for each of 1"),
        (lambda d: d._all.update_many(0, [1.0], changepoint=[0.1, 0.2]), "changepoint: expected"),
        (lambda d: d.update_many(3.0), "expected a list"),
        (lambda d: Detectors("pump"), "streams: expected how many series.* 'pump'"),
        (lambda d: Detectors(0), "at least one"),
        (lambda d: Detectors(1.5), "streams: expected"),
        (lambda d: Detector(location=10**400), "location: expected a number"),
        (lambda d: Detector(hazard=10**400), "hazard"),
    ],
)
def test_what_is_no_number_is_refused_by_name(call, message):
    detector = gaussian()
    with pytest.raises(BadInput, match=message):
        call(detector)
    assert detector.seq == 0


def test_scalars_and_columns_of_torch_are_numbers():
    ours, theirs = gaussian(), gaussian()
    assert same(ours.update(torch.tensor(1.5)), theirs.update(1.5))
    ours.update_many(torch.arange(5.0))
    theirs.update_many(range(5))
    assert same(ours.update(torch.tensor([2.0])), theirs.update([2.0]))
