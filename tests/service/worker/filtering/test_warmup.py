"""Warm-up of the zero-training models: location and scale from the first labels of a stream."""

import random
import statistics

import pytest

from service.wire import Configure, Observation, Predict, RunLength


def labels(count, level=100.0, seed=2):
    rng = random.Random(seed)
    return [rng.gauss(level, 10.0) for _ in range(count)]


def warming(answers):
    return [answer["warming_up"] for answer in answers]


def test_twenty_labels(bench):
    y = labels(22)
    answers = bench.observe("a", y)
    assert warming(answers) == [True] * 20 + [False] * 2
    for answer in answers[:20]:
        assert answer["run_length"] is None
        for name in ("changed", "changepoint", "recent_change"):
            assert answer[f"{name}_probability"] is None
    # A predictive needs two labels that differ, and comes from one regime.
    assert [answer["predictive"] is None for answer in answers[:4]] == [True, True, False, False]
    assert [answer["log_score"] is None for answer in answers[:4]] == [True, True, False, False]
    assert 80 < answers[19]["predictive"]["mean"][0] < 120
    assert answers[20]["run_length"]["map"] in range(21)
    head = bench.head("a")
    assert head.location == [pytest.approx(statistics.median(y[:20]))]
    assert head.scale == [pytest.approx(statistics.stdev(y[:20]))]
    assert head.warm
    assert head.scored == 2


def test_what_follows_is_a_filter_that_was_there_from_the_start(make_bench, close):
    bench, told = make_bench(), make_bench(db=1)
    y = labels(60)
    found = bench.observe("a", y)
    head = bench.head("a")
    told.ask(Configure("a", {"location": head.location, "scale": head.scale}), status=201)
    expected = told.observe("a", y)
    close(found[20:], expected[20:])
    close(bench.ask(RunLength("a")), told.ask(RunLength("a")))


def test_missing_labels_do_not_count(bench):
    y = [v if i % 2 else None for i, v in enumerate(labels(50))]
    answers = bench.observe("a", y)
    # The twentieth label is the fortieth observation.
    assert warming(answers) == [True] * 40 + [False] * 10
    assert answers[30]["log_score"] is None
    assert answers[30]["predictive"] is not None


def test_constant_values_go_on_until_two_differ(bench):
    answers = bench.observe("a", [7.0] * 30 + [8.0] + labels(3, level=7.5))
    assert warming(answers) == [True] * 31 + [False] * 3


@pytest.mark.parametrize(("value", "location", "scale"), [(7.0, 7.0, 0.07), (0.0, 0.0, 1.0)])
def test_constant_values_go_on_to_200(bench, value, location, scale):
    answers = bench.observe("a", [value] * 202)
    assert warming(answers) == [True] * 200 + [False] * 2
    head = bench.head("a")
    assert head.location == [pytest.approx(location)]
    assert head.scale == [pytest.approx(scale)]
    assert answers[-1]["log_score"] > 0 or value == 0.0
    assert answers[-1]["run_length"]["map"] == 201


def test_each_output_must_vary(bench):
    rng = random.Random(1)
    answers = bench.observe("a", [[rng.gauss(0, 1), 5.0] for _ in range(40)])
    assert all(warming(answers))
    assert answers[-1]["predictive"] is None
    answers = bench.observe("a", [[0.5, 6.0], [0.1, 5.0]])
    assert warming(answers) == [True, False]
    assert len(answers[-1]["predictive"]["mean"]) == 2
    assert bench.head("a").y_dim == 2


def test_given_location_and_scale_skip_it(bench):
    bench.ask(Configure("a", {"location": [100.0], "scale": [10.0]}), status=201)
    (first,) = bench.observe("a", [101.0])
    assert not first["warming_up"]
    assert first["predictive"]["mean"] == [pytest.approx(100.0)]
    assert first["changepoint_probability"] is None
    assert first["run_length"]["map"] == 0


def test_a_given_location_alone_is_used_after_it(bench):
    bench.ask(Configure("a", {"location": [90.0], "warmup": 5}), status=201)
    answers = bench.observe("a", labels(7))
    assert warming(answers) == [True] * 5 + [False] * 2
    assert bench.head("a").location == [90.0]


def test_warmup_of_zero_begins_as_soon_as_two_differ(bench):
    bench.ask(Configure("a", {"warmup": 0}), status=201)
    assert warming(bench.observe("a", [1.0, 1.0, 2.0, 1.5])) == [True, True, True, False]


def test_counts_need_a_location_only(bench):
    bench.ask(Configure("a", {"model": "poisson", "location": [3.0]}), status=201)
    assert not bench.observe("a", [2.0])[0]["warming_up"]
    bench.ask(Configure("b", {"model": "poisson"}), status=201)
    answers = bench.observe("b", [0.0] * 202)
    assert warming(answers) == [True] * 200 + [False] * 2
    assert 0 < bench.head("b").location[0] < 0.01
    last = answers[-1]["predictive"]
    assert 0 < last["mean"][0] < 0.01
    assert last["quantiles"]["0.95"] == [0.0]


def test_zeros_and_ones_need_none(bench):
    bench.ask(Configure("a", {"model": "bernoulli"}), status=201)
    (first, second) = bench.observe("a", [1.0, None])
    assert not first["warming_up"]
    assert first["predictive"] == {"probabilities": [0.5, 0.5]}
    assert second["predictive"]["probabilities"][1] > 0.5


def test_predictions_while_it_lasts(bench):
    def predict():
        answer = bench.ask(Predict("a", samples=2, components=True))
        assert answer["warming_up"]
        return answer["predictions"][0]

    bench.observe("a", [1.0])
    assert predict()["predictive"] is None
    bench.observe("a", [2.0, 4.0])
    found = predict()
    assert 1 < found["predictive"]["mean"][0] < 4
    assert len(found["samples"]) == 2
    assert bench.ask(RunLength("a"))["belief"] == []


def test_changes_within_it_are_found_by_the_replay(bench):
    bench.ask(Configure("a", {"warmup": 60, "confirm_after": 10}), status=201)
    y = labels(30, level=0.0) + labels(29, level=200.0)
    assert not any(answer["event"] for answer in bench.observe("a", y))
    assert bench.events("a") == []
    (last,) = bench.observe("a", [205.0])
    assert last["warming_up"]
    event = last["event"]
    assert (event["id"], event["state"], event["start"]) == (1, "confirmed", 30)
    assert event["confirmed_at"] == event["suspected_at"] + 10 < 59
    (stored,) = bench.events("a")
    assert stored.direction == "up"
    assert bench.head("a").confirmed_start == 30


def test_records_stay_as_they_were_answered(bench):
    answers = bench.observe("a", labels(25))
    for record, answer in zip(bench.records("a"), answers, strict=True):
        assert record.log_score == answer["log_score"]
        assert record.changed_probability == answer["changed_probability"]
        assert record.mean == (answer["predictive"] or {}).get("mean")
    # What the segmentation follows is there from the first on.
    assert [record.previous_start for record in bench.records("a")][:2] == [-1, 0]


@pytest.mark.parametrize("leave", ["stop", "crash"])
def test_a_restart_in_the_middle_of_it(make_bench, close, leave):
    bench, plain = make_bench(), make_bench(db=1)
    y = [*labels(8), None, *labels(30, level=300.0)]
    answers = bench.observe("a", y[:13])
    getattr(bench, leave)()
    answers += bench.observe("a", y[13:20])
    getattr(bench, leave)()
    answers += bench.observe("a", y[20:22])
    getattr(bench, leave)()
    answers += bench.observe("a", y[22:])
    close(answers, plain.observe("a", y))
    assert [record.seq for record in bench.records("a")] == list(range(len(y)))


def test_a_stream_without_labels_does_not_grow_for_ever(bench):
    for _ in range(3):
        answers = bench.observe("a", [None] * 704, part=704)
    assert not answers[-1]["warming_up"]
    assert not bench.worker.engine.streams[bench.partition("a"), "a"].buffer
    assert len(bench.stored("a")["tail"]) < 200
    bench.crash()
    (first, *_) = bench.observe("a", [1e6, None])
    assert first["seq"] == 2112
    assert first["log_score"] is not None


def test_settings_may_change_in_the_middle_of_it(make_bench, close):
    bench, plain = make_bench(), make_bench(db=1)
    y = labels(40)
    for each in (bench, plain):
        each.observe("a", y[:5])
        each.ask(Configure("a", {"hazard": 0.2, "max_hypotheses": 9}))
        each.observe("a", y[5:19])
    bench.crash()
    found, expected = (each.observe("a", y[19:]) for each in (bench, plain))
    close(found, expected)
    assert [record.hazard for record in bench.records("a")] == [0.01] * 5 + [0.2] * 35
    assert found[-1]["run_length"]["hypotheses"] == 9


@pytest.mark.one_in(2)
@pytest.mark.parametrize("scale", [1e-150, 1e-30, 1e30, 1e98])
def test_units_do_not_matter(make_bench, close, scale):
    bench, plain = make_bench(), make_bench(db=1)
    y = labels(60, level=3.0)
    found = bench.observe("a", [scale * v for v in y])
    expected = plain.observe("a", y)
    for a, b in zip(found[20:], expected[20:], strict=True):
        close(a["run_length"], b["run_length"], tolerance=1e-6)
        close(a["changed_probability"], b["changed_probability"], tolerance=1e-6)


def test_values_too_small_to_square(bench):
    answers = bench.observe("a", [1e-200 * v for v in labels(40)])
    assert all(answer["log_score"] > 0 for answer in answers[20:])


def test_observations_come_with_their_times(bench):
    seen = [Observation(y=v, time=f"2024-01-01T00:00:{i:02}Z") for i, v in enumerate(labels(21))]
    answers = bench.observe("a", seen)
    assert answers[0]["time"] == "2024-01-01T00:00:00Z"
    assert bench.records("a")[20].time == "2024-01-01T00:00:20Z"
