"""Settings that change under way, and those that cannot."""

import random

import pytest

from service.wire import Configure, Delete, Observation, Observe, Predict, RunLength


def labels(count, seed=4):
    rng = random.Random(seed)
    return [rng.gauss(0, 1) for _ in range(count)]


KNOWN = {"location": [0.0], "scale": [1.0]}


def test_the_answer_is_the_stream(bench):
    made = bench.ask(Configure("a", {"hazard": 0.05, **KNOWN}), status=201)
    assert (made["stream"], made["model"], made["seq"]) == ("a", "gaussian@1", 0)
    assert made["settings"]["hazard"] == 0.05
    assert made["y_dim"] == 1
    again = bench.ask(Configure("a", {"hazard": 0.05, **KNOWN}))
    assert again == made
    bench.observe("a", [1.0])
    bench.now_ms += 1000
    later = bench.ask(Configure("a", {}))
    assert later["settings"] == made["settings"]
    assert (later["created"], later["seq"], later["last"]) == (made["created"], 1, [1.0])
    assert later["updated"] > made["updated"]


def test_hazard_and_outlier_rate_count_from_the_next_observation(bench):
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", labels(5))
    bench.ask(Configure("a", {"hazard": 0.3, "outlier_rate": 0.2}))
    bench.observe("a", labels(5))
    bench.ask(Configure("a", {"hazard": None, "outlier_rate": None}))
    bench.observe("a", labels(5))
    records = bench.records("a")
    assert [r.hazard for r in records] == [0.01] * 5 + [0.3] * 5 + [0.01] * 5
    assert [r.outlier_rate for r in records] == [0.01] * 5 + [0.2] * 5 + [0.01] * 5


def test_a_hazard_moves_the_predictive_at_once(bench):
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", [3.0] * 20)
    low = bench.ask(Predict("a"))["predictions"][0]["predictive"]["mean"][0]
    bench.ask(Configure("a", {"hazard": 0.9}))
    high = bench.ask(Predict("a"))["predictions"][0]["predictive"]["mean"][0]
    assert low > 2.5
    assert high < 0.5


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("sizes", "leave"),
    [
        ((10,), None),
        ((10,), "stop"),
        ((10,), "crash"),
        ((100,), "crash"),
        ((5, 50, 8), None),
        ((5, 50, 8), "crash"),
        ((50, 49, 50), "crash"),
        ((2,), "stop"),
    ],
)
def test_max_hypotheses_up_and_down(make_bench, close, sizes, leave):
    """A reload finds what the worker had, also when the size changed at a checkpoint's seq."""
    bench, plain = make_bench(), make_bench(db=1)
    y = labels(140)
    for each in (bench, plain):
        each.ask(Configure("a", KNOWN), status=201)
        each.observe("a", y[:60])
    bench.stop()  # a checkpoint at this very seq
    for size in sizes:
        for each in (bench, plain):
            each.ask(Configure("a", {"max_hypotheses": size}))
    if leave:
        getattr(bench, leave)()
    found = bench.ask(RunLength("a"))
    close(found, plain.ask(RunLength("a")))
    assert len(found["belief"]) == min(50, *sizes)
    answers = bench.observe("a", y[60:90])
    if leave:
        getattr(bench, leave)()
    answers += bench.observe("a", y[90:])
    close(answers, plain.observe("a", y[60:]))
    assert answers[-1]["run_length"]["hypotheses"] == sizes[-1]
    assert len(bench.stored("a")["checkpoint"]) == 1


def test_a_smaller_size_and_observations_in_one_batch(make_bench, close):
    bench, plain = make_bench(checkpoint_every=8), make_bench(db=1)
    y = [Observation(y=v) for v in labels(120)]
    for each in (bench, plain):
        each.ask(Configure("a", KNOWN), status=201)
        each.observe("a", y[:60])
    bench.send(
        Observe("a", y[60:70]),
        Configure("a", {"max_hypotheses": 7}),
        Observe("a", y[70:90]),
        Configure("a", {"max_hypotheses": 20}),
        Observe("a", y[90:92]),
    )
    bench.crash()
    plain.observe("a", y[60:70])
    plain.ask(Configure("a", {"max_hypotheses": 7}))
    plain.observe("a", y[70:90])
    plain.ask(Configure("a", {"max_hypotheses": 20}))
    plain.observe("a", y[90:92])
    close(bench.observe("a", y[92:]), plain.observe("a", y[92:]))


@pytest.mark.parametrize(
    "given",
    [
        {"model": "poisson"},
        {"model": "gaussian@2"},
        {"location": [1.0]},
        {"location": None},
        {"scale": [2.0]},
        {"warmup": 3},
    ],
)
def test_what_shaped_the_prior_is_fixed(bench, given):
    bench.ask(Configure("a", {**KNOWN, "warmup": 5}), status=201)
    bench.observe("a", [1.0])
    before = bench.stored("a")
    answer = bench.ask(
        Configure("a", {"hazard": 0.5, **given}),
        status=422 if "gaussian@2" in given.values() else 409,
    )
    assert answer["type"].endswith(("settings-conflict", "unknown-model"))
    assert bench.stored("a") == before
    # The same again is no change.
    bench.ask(Configure("a", {**KNOWN, "warmup": 5, "model": "gaussian", "hazard": 0.2}))
    bench.ask(Configure("a", {"model": "gaussian@1"}))
    assert bench.head("a").settings.hazard == 0.2


def test_a_newer_version_of_the_model_does_not_conflict(make_bench, alpaca):
    """PUT with the model's bare name is idempotent, whatever is published meanwhile."""
    bench = make_bench()
    bench.ask(Configure("a", {"model": "pump"}), status=201)
    bench.observe("a", [Observation(x=[0.1, 0.2], y=[1.0, 2.0])])
    newer = alpaca.parent / "2"
    newer.mkdir()
    for file in alpaca.iterdir():
        (newer / file.name).write_bytes(file.read_bytes())
    assert bench.ask(Configure("a", {"model": "pump"}))["model"] == "pump@1"
    assert bench.ask(Configure("b", {"model": "pump"}), status=201)["model"] == "pump@2"
    assert bench.send(Configure("a", {"model": "pump@2"}))[0].status == 409


class TestBeforeTheFirstObservation:
    def test_everything_may_change(self, bench):
        bench.ask(Configure("a", {"model": "poisson", "location": [3.0]}), status=201)
        answer = bench.ask(Configure("a", {"model": "gaussian", "location": [1.0, 2.0]}))
        assert (answer["model"], answer["y_dim"]) == ("gaussian@1", 2)
        bench.ask(Configure("a", {"location": None, "scale": None}))
        bench.ask(Configure("a", {"location": [5.0, 6.0], "scale": [1.0, 1.0]}))
        (first,) = bench.observe("a", [[5.0, 6.0]])
        assert not first["warming_up"]
        assert first["predictive"]["mean"] == [pytest.approx(5.0), pytest.approx(6.0)]

    def test_a_bad_change_is_refused(self, bench):
        bench.ask(Configure("a", {"model": "poisson"}), status=201)
        before = bench.stored("a")
        answer = bench.ask(Configure("a", {"location": [1.0, 2.0]}), status=422)
        assert answer["field"] == "location"
        assert bench.stored("a") == before
        bench.observe("a", [3.0])

    def test_a_filter_that_predicted_already_begins_again(self, bench):
        bench.ask(Configure("a", KNOWN), status=201)
        assert bench.ask(Predict("a"))["predictions"][0]["predictive"]["mean"] == [pytest.approx(0)]
        bench.ask(Configure("a", {"location": [100.0], "max_hypotheses": 5}))
        found = bench.ask(Predict("a"))["predictions"][0]["predictive"]["mean"]
        assert found == [pytest.approx(100.0)]
        bench.ask(Configure("a", {"model": "bernoulli", "location": None, "scale": None}))
        assert "probabilities" in bench.ask(Predict("a"))["predictions"][0]["predictive"]
        bench.observe("a", [1.0, 0.0])

    def test_the_life_is_the_same(self, bench):
        bench.observe("a", [1.0])
        bench.send(Delete("a"))
        bench.ask(Configure("a", KNOWN), status=201)
        made = bench.head("a")
        bench.now_ms += 1000
        bench.ask(Configure("a", {"hazard": 0.2}))
        head = bench.head("a")
        assert (head.generation, head.created_ms) == (2, made.created_ms)
        assert head.settings.location == [0.0]


def test_the_default_model_is_the_commands(make_bench):
    bench = make_bench()
    bench.default_model = "bernoulli"
    bench.observe("a", [1.0])
    assert bench.head("a").settings.model == "bernoulli@1"
    bench.default_model = "gaussian"
    bench.observe("a", [0.0])
    assert bench.head("a").settings.model == "bernoulli@1"


class TestTheDefaultOfVectors:
    """Streams of several outputs that name no model; the first label decides."""

    @pytest.fixture
    def bench(self, make_bench):
        made = make_bench()
        made.default_model = "averaged"
        return made

    def model(self, bench, stream="a"):
        return bench.head(stream).settings.model

    def test_by_the_first_label(self, bench):
        bench.observe("a", [None, [1.0, 2.0]])
        bench.observe("b", [1.0])
        bench.observe("c", [[float(k) for k in range(17)]])
        assert [self.model(bench, s) for s in "abc"] == ["joint@1", "averaged@2", "averaged@2"]

    def test_by_a_location(self, bench):
        bench.ask(Configure("a", {"location": [0.0, 0.0], "scale": [1.0, 1.0]}), status=201)
        assert self.model(bench) == "joint@1"

    def test_of_a_stream_that_was_configured_without_a_model(self, bench):
        bench.ask(Configure("a", {"hazard": 0.02}), status=201)
        bench.ask(Configure("a", {"warmup": 10}))
        generation = bench.head("a").generation
        bench.observe("a", [[1.0, 2.0]])
        head = bench.head("a")
        assert (head.settings.model, head.settings.hazard, head.settings.warmup) == (
            "joint@1", 0.02, 10,
        )  # fmt: skip
        assert head.generation == generation
        bench.observe("a", [[1.0, 3.0]])
        assert (self.model(bench), bench.head("a").seq) == ("joint@1", 2)

    def test_a_model_that_is_named_stays(self, bench):
        bench.ask(Configure("a", {"model": "averaged"}), status=201)
        bench.ask(Configure("a", {"warmup": 10}))
        bench.observe("a", [[1.0, 2.0]])
        assert self.model(bench) == "averaged@2"

    def test_a_sensitivity_needs_a_calibrated_model(self, bench):
        given = {"sensitivity": {"false_alarms_per_1000": 1.0}, "max_hypotheses": 50}
        bench.ask(Configure("a", given), status=201)
        bench.observe("a", [[1.0, 2.0]])
        assert self.model(bench) == "averaged@2"

    def test_another_default_of_the_service_is_for_vectors_too(self, bench):
        bench.default_model = "gaussian"
        bench.observe("a", [[1.0, 2.0]])
        assert self.model(bench) == "gaussian@1"


def rule(summary):
    settings = summary["settings"]
    return settings["confirm_after"], settings["confirm_probability"]


def test_a_stream_has_one_rule_of_confirmation(bench):
    assert rule(bench.ask(Configure("a", {}), status=201)) == (None, 0.99)
    bench.observe("implicit", [1.0])
    assert bench.head("implicit").settings.confirm_probability == 0.99
    assert bench.head("implicit").alarm.threshold == 0.99
    for seen in ([], labels(5), labels(30)):
        bench.observe("a", seen)
        assert rule(bench.ask(Configure("a", {"confirm_after": 4}))) == (4, None)
        assert bench.head("a").alarm is None
        assert rule(bench.ask(Configure("a", {"hazard": 0.02}))) == (4, None)
        assert rule(bench.ask(Configure("a", {"confirm_probability": 0.8}))) == (None, 0.8)
        assert rule(bench.ask(Configure("a", {"hazard": 0.01}))) == (None, 0.8)
        assert bench.head("a").alarm.threshold == 0.8
        bench.stop()


@pytest.mark.parametrize("first", [{"confirm_after": 30}, {"confirm_probability": 0.99999}])
def test_either_rule_takes_over_under_way(bench, first):
    y = [*labels(60), 3.0, 3.2, 2.9]
    bench.ask(Configure("a", {**KNOWN, **first}), status=201)
    bench.observe("a", y)
    (event,) = bench.events("a")
    assert event.state == "suspected"
    assert 0.8 < bench.head("a").changed_probability < 0.99999
    # Each decides with the next observation.
    other = {"confirm_probability": 0.8} if "confirm_after" in first else {"confirm_after": 1}
    bench.ask(Configure("a", other))
    bench.observe("a", [3.1])
    (event,) = bench.events("a")
    assert (event.state, event.confirmed_at) == ("confirmed", 63)


def test_a_sensitivity_is_before_both_rules_and_leaves_the_one_there_was(bench):
    asked = {"sensitivity": {"false_alarms_per_1000": 0.1}}
    for stream, given, threshold in (
        ("a", {"confirm_after": 4}, None),
        ("b", {"confirm_probability": 0.8}, 0.8),
    ):
        bench.ask(Configure(stream, {**KNOWN, **given}), status=201)
        bench.observe(stream, labels(5))
        expected = rule(bench.ask(Configure(stream, {})))
        found = bench.ask(Configure(stream, asked))
        assert bench.head(stream).alarm.threshold == found["sensitivity"]["threshold"] > 0.9
        assert rule(found) == expected
        assert rule(bench.ask(Configure(stream, {"sensitivity": None}))) == expected
        alarm = bench.head(stream).alarm
        assert (alarm and alarm.threshold) == threshold


def test_confirm_after(bench):
    bench.ask(Configure("a", {**KNOWN, "confirm_after": 4}), status=201)
    answers = bench.observe("a", labels(40) + [v + 6 for v in labels(20, seed=5)])
    events = [a["event"] for a in answers if a["event"] and a["event"]["state"] == "confirmed"]
    (event,) = events
    assert event["start"] == 40
    assert event["confirmed_at"] - event["suspected_at"] >= 4


@pytest.mark.parametrize("interval", [5e-324, 1e-300])
def test_the_time_elapsed_is_finite_in_intervals_of_earlier_versions(bench, interval):
    """Settings refuse them now, as they are less than MIN_INTERVAL."""
    bench.ask(Configure("a", {**KNOWN, "interval": interval}), status=201)
    bench.observe("a", [0.1, 0.2])
    for day in ("1970-01-01", "1970-01-01", "9999-12-31"):
        bench.ask(Observe("a", [Observation(0.3, None, f"{day}T00:00:00Z")]))
    assert [record.elapsed for record in bench.records("a")] == [1.0, 1.0, 1.0, 0.0, 1e15]
