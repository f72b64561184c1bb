"""Warm-up of the zero-training models: location and scale from the first labels of a stream."""

import math
import random
import statistics

import pytest

from model_core.stream import warmup
from service.wire import Configure, RunLength, WhatIf
from tests.stored import as_kept


def labels(count, level=100.0, seed=2):
    rng = random.Random(seed)
    return [rng.gauss(level, 10.0) for _ in range(count)]


def warming(answers):
    return [answer["warming_up"] for answer in answers]


def test_twenty_labels_then_a_filter_that_was_there_from_the_start(bench, close):
    y = labels(30)
    answers = bench.observe("a", y)
    assert warming(answers) == [True] * 20 + [False] * 10
    for answer in answers[:20]:
        assert answer["run_length"] is None
        for name in ("changed", "changepoint", "recent_change"):
            assert answer[f"{name}_probability"] is None
    # A predictive needs two labels that differ, and comes from one regime.
    assert [answer["predictive"] is None for answer in answers[:4]] == [True, True, False, False]
    assert [answer["log_score"] is None for answer in answers[:4]] == [True, True, False, False]
    assert 80 < answers[19]["predictive"]["mean"][0] < 120
    head = bench.head("a")
    assert head.location == [pytest.approx(statistics.median(y[:20]))]
    assert head.scale == [pytest.approx(statistics.stdev(y[:20]))]
    assert (head.warm, head.scored) == (True, 10)
    records = bench.records("a")
    for record, answer in zip(records, answers, strict=True):
        assert record == as_kept(record, answer, ["mean"])
    # What the segmentation follows is there from the first on.
    assert [record.previous_start for record in records[:2]] == [-1, 0]
    bench.ask(Configure("b", {"location": head.location, "scale": head.scale}), status=201)
    expected = bench.observe("b", y)
    # Changes are those after it: of a stream without one, all after its first observation. So are
    # the errors by which forecasts are corrected.
    unlike = ("changed_probability", "evidence", "event", "predictive")
    alike = [{**each, "stream": "b"} for each in answers[20:]]
    for answer, other in zip(alike, expected[20:], strict=True):
        for name in unlike:
            answer[name] = other[name] = None
    close(alike, expected[20:])
    found = bench.ask(RunLength("a"))
    close(found["belief"], bench.ask(RunLength("b"))["belief"])
    later = sum(each["probability"] for each in found["belief"] if each["start"] > 19)
    assert found["changed_probability"] == pytest.approx(later)
    assert head.track.settled == 19


def test_what_counts_towards_it(bench):
    """Labels that are there, of which two must differ in an output; at most 200 observations."""
    rng = random.Random(1)
    cases = {
        "missing": ([v if i % 2 else None for i, v in enumerate(labels(42))], 40),
        "constant": ([7.0] * 30 + [8.0] + labels(2, level=7.5), 31),
        "an output": ([[rng.gauss(0, 1), 5.0] for _ in range(25)] + [[0.5, 6.0], [0.1, 5.0]], 20),
        "outputs": ([[7.0, 5.0]] * 30 + [[7.0, 6.0], [7.0, 5.0]], 31),
    }
    for stream, (y, until) in cases.items():
        answers = bench.observe(stream, y)
        assert warming(answers) == [n < until for n in range(len(y))], stream
    for stream, value, location, scale in (("seven", 7.0, 7.0, 0.07), ("zero", 0.0, 0.0, 1.0)):
        answers = bench.observe(stream, [value] * 202)
        assert warming(answers) == [True] * 200 + [False] * 2
        head = bench.head(stream)
        assert head.location == [pytest.approx(location)]
        assert head.scale == [pytest.approx(scale)]
        assert answers[-1]["run_length"]["map"] == 201


def test_counts_need_a_location_only_and_classes_nothing(bench):
    bench.ask(Configure("a", {"model": "poisson", "location": [3.0]}), status=201)
    assert not bench.observe("a", [2.0])[0]["warming_up"]
    bench.ask(Configure("b", {"model": "poisson"}), status=201)
    answers = bench.observe("b", [0.0] * 202)
    assert warming(answers) == [True] * 200 + [False] * 2
    assert 0 < bench.head("b").location[0] < 0.01
    assert answers[-1]["predictive"]["quantiles"]["0.95"] == [0.0]
    bench.ask(Configure("c", {"model": "bernoulli"}), status=201)
    first, second = bench.observe("c", [1.0, None])
    assert not first["warming_up"]
    assert first["predictive"] == {"probabilities": [0.5, 0.5]}
    assert second["predictive"]["probabilities"][1] > 0.5


@pytest.mark.parametrize("rule", [{}, {"confirm_after": 10}])
def test_changes_within_it_are_learned_from_and_no_news(bench, rule):
    bench.ask(Configure("a", {"warmup": 60, **rule}), status=201)
    answers = bench.observe("a", labels(30, level=0.0) + labels(50, level=200.0))
    assert warming(answers) == [True] * 60 + [False] * 20
    assert not any(answer["event"] for answer in answers)
    assert bench.head("a").track.settled == 59
    assert bench.head("a").map_run_length == 49
    assert answers[-1]["changed_probability"] < 0.1
    answers = bench.observe("a", labels(15, level=0.0))
    news = [each["event"] for each in answers if each["event"]]
    assert {(event["id"], event["start"]) for event in news} == {(1, 80)}
    assert news[-1]["state"] == "confirmed"
    assert [event.start for event in bench.events("a")] == [80]


def test_the_end_of_a_constant_is_a_change(bench):
    """Though the warm-up waited for it; as a rerun has it, too."""
    bench.ask(Configure("a", {"model": "gaussian"}), status=201)
    bench.observe("a", [5.0] * 60 + [7.0] * 20)
    (event,) = bench.events("a")
    assert (event.state, event.start) == ("confirmed", 60)
    assert event.confirmed_at <= 65
    tried = bench.ask(WhatIf("a", {"history": 1999}))["events"]
    assert [(each["start"], each["confirmed_at"]) for each in tried] == [(60, event.confirmed_at)]


def test_restarts_and_settings_in_the_middle_of_it(bench, close):
    y = [*labels(8), None, *labels(16, level=300.0)]
    plain = bench.observe("b", y[:13])
    bench.ask(Configure("b", {"hazard": 0.2, "max_hypotheses": 9}))
    plain += bench.observe("b", y[13:])
    answers = bench.observe("a", y[:13])
    bench.crash()
    bench.ask(Configure("a", {"hazard": 0.2, "max_hypotheses": 9}))
    for first, last in ((13, 20), (20, 22), (22, 25)):
        (bench.crash if first == 20 else bench.stop)()
        answers += bench.observe("a", y[first:last])
    close([{**each, "stream": "b"} for each in answers], plain)
    assert [record.hazard for record in bench.records("a")] == [None] * 13 + [0.2] * 12
    assert answers[-1]["run_length"]["hypotheses"] == 9


def test_a_stream_without_labels_does_not_grow_for_ever(bench, monkeypatch):
    monkeypatch.setattr(warmup, "LONGEST_WAIT", 800)
    for _ in range(3):
        answers = bench.observe("a", [None] * 704, part=704)
    assert not answers[-1]["warming_up"]
    assert not bench.worker.engine.streams[bench.partition("a"), "a"].buffer
    assert len(bench.stored("a")["tail"]) < 200
    bench.crash()
    (first, *_) = bench.observe("a", [1e6, None])
    assert first["seq"] == 2112
    assert first["log_score"] is not None


@pytest.mark.parametrize("seasonal", [False, True])
def test_predictives_outlast_corrections(bench, seasonal):
    """Of a commit for each observation; a season that is found corrects those before it."""
    bench.ask(Configure("a", {"model": "gaussian", "warmup": 60, "seasonal": seasonal}), status=201)
    y = [100.0 * math.sin(math.tau * i / 8) + noise for i, noise in enumerate(labels(59, 0.0))]
    answers = [answer for value in y for answer in bench.observe("a", [value])]
    (stream,) = bench.worker.engine.streams.values()
    assert [record.y for record in stream.buffered()] == y
    answers += bench.observe("a", labels(2, 0.0, seed=3))
    assert warming(answers[-2:]) == [True, False]
    records = bench.records("a")
    assert any(record.offset for record in records) == seasonal
    for record, answer in zip(records, answers, strict=True):
        assert record == as_kept(record, answer)
