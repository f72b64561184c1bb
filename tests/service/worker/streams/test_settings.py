"""Settings: what changes under way, what cannot, defaults, times that count, lives of a stream."""

import asyncio

import numpy as np
import pytest

from model_core.stream_settings import DEFAULTS
from service.store import keys
from service.wire import (
    Configure,
    Delete,
    Expire,
    Move,
    Observation,
    Observe,
    Predict,
    RunLength,
)
from tests.service.worker.conftest import noise
from tests.service.worker.kinds import KINDS, series

KNOWN = {"location": [0.0], "scale": [1.0]}


def predicted(bench, stream="a"):
    return bench.ask(Predict(stream))["predictions"][0]["predictive"]


# --- changes ------------------------------------------------------------------------------------


def test_max_hypotheses_up_and_down(make_bench, close):
    """A reload finds what the worker had, also when the size changed at a checkpoint's seq."""
    bench, plain = make_bench(), make_bench(db=1)
    y = noise(140)
    for sizes, leave in (
        ((100,), bench.stop),
        ((50, 49, 50), bench.crash),
        ((5, 50, 2), lambda: None),
    ):
        name = str(sizes)
        for each in (bench, plain):
            each.ask(Configure(name, KNOWN), status=201)
            each.observe(name, y[:60])
        bench.stop()  # a checkpoint at this very seq
        for size in sizes:
            for each in (bench, plain):
                each.ask(Configure(name, {"max_hypotheses": size}))
        leave()
        found = bench.ask(RunLength(name))
        close(found, plain.ask(RunLength(name)))
        assert len(found["belief"]) == min(DEFAULTS.max_hypotheses, *sizes)
        answers = bench.observe(name, y[60:90])
        leave()
        answers += bench.observe(name, y[90:])
        close(answers, plain.observe(name, y[60:]))
        assert answers[-1]["run_length"]["hypotheses"] == sizes[-1]


def test_before_the_first_observation_everything_may_change(bench):
    bench.ask(Configure("a", {"model": "poisson", "location": [3.0]}), status=201)
    made, before = bench.head("a"), bench.stored("a")
    assert bench.ask(Configure("a", {"location": [1.0, 2.0]}), status=422)["field"] == "location"
    assert bench.stored("a") == before
    bench.now_ms += 1000
    answer = bench.ask(Configure("a", {"model": "gaussian", "location": [1.0, 2.0]}))
    assert (answer["model"], answer["y_dim"]) == ("gaussian", 2)
    bench.ask(Configure("a", {"location": None, "scale": None}))
    bench.ask(Configure("a", {"location": [5.0, 6.0], "scale": [1.0, 1.0]}))
    assert bench.head("a").generation == made.generation
    assert bench.head("a").created_ms == made.created_ms
    (first,) = bench.observe("a", [[5.0, 6.0]])
    assert not first["warming_up"]
    assert first["predictive"]["mean"] == [pytest.approx(5.0), pytest.approx(6.0)]


def test_a_filter_that_predicted_already_begins_again(bench):
    bench.ask(Configure("a", KNOWN), status=201)
    assert predicted(bench)["mean"] == [pytest.approx(0)]
    bench.ask(Configure("a", {"location": [100.0], "max_hypotheses": 5}))
    assert predicted(bench)["mean"] == [pytest.approx(100.0)]
    shaped = {"model": "categorical", "classes": 3, "location": None, "scale": None}
    bench.ask(Configure("a", shaped))
    bench.ask(Observe("a", [Observation(y=3.0)]), status=422)
    bench.ask(Configure("a", {"classes": 5}))
    assert bench.ask(Configure("a", {"classes": None}), status=422)["field"] == "classes"
    (answer,) = bench.observe("a", [4.0])
    assert answer["predictive"]["probabilities"] == pytest.approx([0.2] * 5)


# --- their history ------------------------------------------------------------------------------


def changes(bench, stream):
    """As the API reads them."""
    read = bench._store(lambda store: store.changes(stream, 0, 1000))
    return [(each.seq, each.settings) for each in asyncio.run(read)]


def test_every_change_is_on_record_in_order(bench):
    """Also within a millisecond and when clocks go back; what was refused or repeated is not."""
    bench.ask(Configure("a", KNOWN), status=201)
    bench.observe("a", [0.1, -0.4, 0.3])
    bench.ask(Configure("a", {"hazard": 0.2}))
    bench.ask(Configure("a", {"hazard": 0.2}))  # a repeat, which changes nothing
    bench.ask(Configure("a", {"hazard": 0.7, "warmup": 7}), status=409)
    bench.send(
        Configure("a", {"hazard": 0.3}),
        Observe("a", [Observation(y=0.0)]),
        Configure("a", {"hazard": 0.4}),
        Move("a", "averaged"),
    )
    bench.now_ms -= 5000
    bench.ask(Configure("a", {"outlier_rate": 0.0}))
    expected = [
        (3, {"hazard": 0.2}),
        (3, {"hazard": 0.3}),
        (4, {"hazard": 0.4}),
        (4, {"model": "averaged"}),
        (4, {"outlier_rate": 0.0}),
    ]
    assert changes(bench, "a") == expected
    bench.crash()
    bench.ask(Configure("a", {"hazard": 0.5}))
    expected += [(4, {"hazard": 0.5})]
    assert changes(bench, "a") == expected
    bench.put("b", bench.export("a"))
    bench.ask(Configure("b", {"hazard": 0.6}))
    assert changes(bench, "b") == [*expected, (4, {"hazard": 0.6})]
    bench.send(Delete("a"))
    assert not bench.client.exists(keys.changes(bench.partition("a"), "a"))
    bench.observe("a", [0.0])
    bench.ask(Configure("a", {"hazard": 0.3}))
    assert changes(bench, "a") == [(1, {"hazard": 0.3})]


# --- defaults -----------------------------------------------------------------------------------


def test_a_stream_that_names_no_model_has_the_default_of_its_first_command(bench):
    """Vectors have one of their own, unless the service's is another than the usual one."""

    def model(stream):
        return bench.head(stream).settings.model

    bench.default_model = "averaged"
    bench.observe("vector", [None, [1.0, 2.0]])
    bench.observe("number", [1.0])
    bench.observe("wide", [[float(k) for k in range(32)]])
    bench.observe("wider", [[float(k) for k in range(33)]])
    bench.ask(Configure("located", {"location": [0.0] * 2, "scale": [1.0] * 2}), status=201)
    bench.ask(Configure("named", {"model": "averaged"}), status=201)
    bench.observe("named", [[1.0, 2.0]])
    found = {stream for stream in ("vector", "wide", "located") if model(stream) == "joint"}
    assert found == {"vector", "wide", "located"}
    for stream in ("number", "wider", "named"):
        assert model(stream) == "averaged"
    bench.ask(Configure("late", {"hazard": 0.02}), status=201)
    bench.ask(Configure("late", {"warmup": 10}))
    generation = bench.head("late").generation
    bench.observe("late", [[1.0, 2.0]])
    head = bench.head("late")
    assert (head.settings.hazard, head.settings.warmup, head.generation) == (0.02, 10, generation)
    bench.default_model = "gaussian"
    bench.observe("other", [[1.0, 2.0]])
    bench.observe("late", [[1.0, 3.0]])
    assert (model("other"), model("late"), bench.head("late").seq) == ("gaussian", "joint", 2)


def rule(summary):
    settings = summary["settings"]
    return settings["confirm_after"], settings["false_alarm_every"]


def test_a_stream_has_one_rule_of_confirmation(bench):
    assert rule(bench.ask(Configure("a", {}), status=201)) == (None, 10_000.0)
    bench.observe("implicit", [1.0])
    assert bench.head("implicit").settings.threshold == 10_000.0
    for seen in ([], noise(5), noise(30)):
        bench.observe("a", seen)
        assert rule(bench.ask(Configure("a", {"confirm_after": 4}))) == (4, None)
        assert bench.head("a").settings.threshold == 0.0
        assert rule(bench.ask(Configure("a", {"hazard": 0.02}))) == (4, None)
        assert rule(bench.ask(Configure("a", {"false_alarm_every": 300.0}))) == (None, 300.0)
        assert rule(bench.ask(Configure("a", {"hazard": 0.01}))) == (None, 300.0)
        assert bench.head("a").settings.threshold == 300.0
        assert rule(bench.ask(Configure("a", {"false_alarm_every": None}))) == (None, 10_000.0)
        bench.stop()


@pytest.mark.parametrize("first", [{"confirm_after": 30}, {"false_alarm_every": 1000000.0}])
def test_either_rule_takes_over_under_way(bench, first):
    bench.ask(Configure("a", {**KNOWN, **first}), status=201)
    bench.observe("a", [*noise(60), 3.0, 3.2, 2.9])
    (event,) = bench.events("a")
    assert event.state == "suspected"
    assert 300 < bench.head("a").evidence < 1e6
    # Each decides with the next observation.
    other = {"false_alarm_every": 300.0} if "confirm_after" in first else {"confirm_after": 1}
    bench.ask(Configure("a", other))
    bench.observe("a", [3.1])
    (event,) = bench.events("a")
    assert (event.state, event.confirmed_at) == ("confirmed", 63)


# --- hazards ------------------------------------------------------------------------------------

RATES = [0.02, None, 0.2, 0.0, 0.01]
FORMS = [0.05, [0.0, 0.0, 0.2], {"mean": 12.5, "shape": 4.0}, None, [0.3]]
MET = [0.05, (0.0, 0.0, 0.2), {"mean": 12.5, "shape": 4.0}, None, (0.3,)]  # None: learned


def test_hazards_of_all_forms_are_met_again_after_a_reload(make_bench, close):
    bench, plain = make_bench(checkpoint_every=16), make_bench(db=1)
    observations = series(KINDS["gaussian"], 12 * len(FORMS))
    for each in (bench, plain):
        each.ask(Configure("a", KNOWN), status=201)
    for i, hazard in enumerate(FORMS):
        found = []
        for each in (bench, plain):
            before = predicted(each) if i else None
            said = each.ask(Configure("a", {"hazard": hazard, "outlier_rate": RATES[i]}))
            assert said["settings"]["hazard"] == hazard
            assert predicted(each) != before  # it counts from the next observation
            answers = each.observe("a", observations[12 * i : 12 * i + 5])
            if each is bench:
                (bench.stop if i % 2 else bench.crash)()
            answers += each.observe("a", observations[12 * i + 5 : 12 * i + 12])
            found.append([answers, each.ask(RunLength("a")), each.ask(Predict("a"))])
        close(*found)
    records = bench.records("a")
    assert [r.hazard for r in records] == [met for met in MET for _ in range(12)]
    rates = [0.01 if rate is None else rate for rate in RATES for _ in range(12)]
    assert [r.outlier_rate for r in records] == rates


# --- times --------------------------------------------------------------------------------------


def at(second, y=0.0, **more):
    return Observation(y=y, time=f"2024-01-01T00:{second // 60:02}:{second % 60:02}Z", **more)


def test_time_elapsed_is_taken_from_times(bench):
    bench.ask(Configure("a", {**KNOWN, "interval": 10.0}), status=201)
    bench.observe("a", [at(0), at(10), at(40), at(40), at(45), at(50, elapsed=7.0)])
    bench.crash()
    bench.observe("a", [Observation(y=0.0), at(70)])
    elapsed = [record.elapsed for record in bench.records("a")]
    assert elapsed == [1.0, 1.0, 3.0, 0.0, 0.5, 7.0, 1.0, 2.0]
    bench.ask(Configure("b", KNOWN), status=201)
    bench.observe("b", [at(50), at(10)])  # without an interval they are only shown
    assert [record.elapsed for record in bench.records("b")] == [1.0, 1.0]


def test_time_that_goes_backwards_is_refused_whole(bench):
    bench.ask(Configure("a", {**KNOWN, "interval": 1.0}), status=201)
    bench.observe("a", [at(15)])
    before = bench.stored("a")
    for seconds in ([14], [20, 10], [20, 30, 25]):
        answer = bench.ask(Observe("a", [at(second) for second in seconds]), status=422)
        assert answer["type"].endswith("/time-backwards"), seconds
        assert answer["field"] == "time"
        assert bench.stored("a") == before
    bench.observe("a", [at(14, elapsed=1.0), at(14)])


# --- lives --------------------------------------------------------------------------------------


def listed(bench, key):
    return bench.client.zrange(key(bench.partition("a")), 0, -1, withscores=True)


def test_a_stream_expires_when_nothing_happened_for_long_enough(bench):
    bench.ask(Configure("a", {**KNOWN, "ttl": 10.0}), status=201)
    assert listed(bench, keys.due) == [(b"a", bench.now_ms + 10_000)]
    bench.now_ms += 8000
    bench.observe("a", [1.0])
    assert listed(bench, keys.due)[0][1] == bench.now_ms + 10_000
    bench.now_ms += 9999
    (kept,) = bench.send(Expire("a"))
    assert (kept.status, bench.head("a").deleted) == (204, False)
    bench.now_ms += 1
    numbers = bench.append(Observe("a", [Observation(y=1.0)]), Expire("a"))  # the first counts
    assert [outcome.status for outcome in bench.outcomes(numbers)] == [200, 204]
    assert bench.head("a").seq == 2
    bench.now_ms += 10_000
    (gone,) = bench.send(Expire("a"))
    assert (gone.status, bench.head("a").deleted) == (204, True)
    assert listed(bench, keys.due) == []
    bench.observe("a", [1.0])
    assert listed(bench, keys.due) == []


def test_a_stream_that_is_asleep_is_listed_when_its_end_has_moved_enough(bench):
    """Seldom, then; and as it is once it seems to be due."""
    bench.ask(Configure("a", {**KNOWN, "ttl": 160.0}), status=201)
    labels = np.random.default_rng(1).normal(size=170).tolist()
    bench.observe("a", labels[:140])
    behind = []
    for label in labels[140:]:
        bench.now_ms += 1000
        bench.observe("a", [label])
        behind.append(bench.now_ms + 160_000 - listed(bench, keys.due)[0][1])
    assert max(behind) == 10_000  # a sixteenth of its life
    assert behind.count(0) < 10
    end_ms = bench.now_ms + 160_000
    bench.now_ms = end_ms - 1
    bench.send(Expire("a"))
    assert not bench.head("a").deleted
    assert listed(bench, keys.due) == [(b"a", end_ms)]
    bench.now_ms = end_ms
    bench.send(Expire("a"))
    assert bench.head("a").deleted
