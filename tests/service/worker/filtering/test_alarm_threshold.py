"""Sensitivity in false alarms: a threshold is picked, kept, and events are confirmed by it."""

import json
import random
import shutil

from model_core import artifact
from service.models.catalogue import SHIPPED
from service.wire import Configure
from tests.model_core.learned_cases import pcoc_case

ASKED = {"sensitivity": {"false_alarms_per_1000": 0.1}}


def labels(count, seed=4, shift=0.0):
    rng = random.Random(seed)
    return [rng.gauss(shift, 1) for _ in range(count)]


def refusal(bench, settings, stream="r"):
    found = bench.ask(Configure(stream, settings), status=422)
    assert found["type"].endswith("/unfit-settings")
    assert found["field"] == "sensitivity"
    return found["detail"]


def test_the_summary_says_what_it_comes_to(bench):
    made = bench.ask(Configure("a", ASKED), status=201)
    found = made["sensitivity"]
    assert made["settings"]["sensitivity"] == {"false_alarms_per_1000": 0.1}
    assert found["false_alarms_per_1000"] == 0.1
    assert 0.96 < found["threshold"] < 0.995
    assert [each["shift"] for each in found["expected_delay"]] == [1, 2, 3]
    medians = [each["median"] for each in found["expected_delay"]]
    assert medians == sorted(medians, reverse=True)
    assert 15 < medians[0] < 26
    assert found["differs"] == []
    assert bench.ask(Configure("b", {}), status=201)["sensitivity"] is None


def test_an_event_is_confirmed_once_the_threshold_is_reached(bench):
    threshold = bench.ask(Configure("a", ASKED), status=201)["sensitivity"]["threshold"]
    y = labels(150) + labels(30, seed=9, shift=3.0)
    answers = bench.observe("a", y)
    high = [a["seq"] for a in answers if (a["changed_probability"] or 0) >= threshold]
    (event,) = [e for e in bench.events("a") if e.state == "confirmed"]
    assert event.confirmed_at == high[0]
    assert 150 <= event.confirmed_at < 157
    assert abs(event.start - 150) <= 2
    assert event.direction == "up"
    bench.ask(Configure("b", {"confirm_after": 10}), status=201)
    bench.observe("b", y)
    (by_time,) = [e for e in bench.events("b") if e.state == "confirmed"]
    assert by_time.confirmed_at == by_time.suspected_at + 10 > event.confirmed_at


def test_a_sensitive_stream_alarms_below_one_half(bench):
    asked = {"sensitivity": {"false_alarms_per_1000": 20.0}}
    threshold = bench.ask(Configure("a", asked), status=201)["sensitivity"]["threshold"]
    assert threshold < 0.5
    answers = bench.observe("a", labels(300, seed=2))
    found = [a for a in answers if a["event"] and a["event"]["state"] == "confirmed"]
    low = [a for a in found if a["event"]["confirmed_at"] == a["seq"] >= 20]
    assert low
    for answer in low:
        assert answer["event"]["start"] <= answer["seq"]
        assert answer["event"]["probability"] <= 0.5 or answer["event"]["start"] > 0


def test_it_changes_under_way_and_outlives_a_worker(bench):
    bench.observe("a", labels(150))
    made = bench.ask(Configure("a", ASKED))["sensitivity"]
    quieter = bench.ask(Configure("a", {"sensitivity": {"false_alarms_per_1000": 0.02}}))
    assert quieter["sensitivity"]["threshold"] > made["threshold"]
    assert bench.ask(Configure("a", {"history": 100}))["sensitivity"] == quieter["sensitivity"]
    assert bench.ask(Configure("a", ASKED))["sensitivity"] == made
    bench.crash()
    answers = bench.observe("a", labels(30, seed=9, shift=3.0))
    high = [a["seq"] for a in answers if a["changed_probability"] >= made["threshold"]]
    confirmed = [e.confirmed_at for e in bench.events("a") if e.state == "confirmed"]
    assert confirmed == high[:1]
    off = bench.ask(Configure("a", {"sensitivity": None}))
    assert (off["sensitivity"], off["settings"]["sensitivity"]) == (None, None)


def test_settings_that_were_not_simulated_are_named(bench):
    def differs(stream, **settings):
        found = bench.ask(Configure(stream, {**ASKED, **settings}), status=201)
        return found["sensitivity"]["differs"]

    assert differs("a", hazard=0.01, outlier_rate=0.01) == []
    assert differs("b", hazard=0.02) == ["hazard"]
    assert differs("c", hazard=0.001) == []
    others = {"outlier_rate": 0.1, "max_hypotheses": 20, "warmup": 40}
    assert differs("d", **others) == ["outlier_rate", "max_hypotheses", "warmup"]
    assert differs("e", location=[0.0], scale=[1.0]) == ["location"]
    assert differs("f", model="categorical", classes=7) == ["classes"]
    assert differs("g", model="categorical", classes=4) == []
    more = {"sensitivity": {"false_alarms_per_1000": 5.0}, "order": 3, "trend": True}
    assert differs("h", model="autoregressive", **more) == ["order", "trend"]


def test_a_smaller_hazard_has_a_smaller_threshold(bench):
    found = [
        bench.ask(Configure(f"s{i}", {**ASKED, "hazard": each}), status=201)["sensitivity"]
        for i, each in enumerate((0.0005, 0.001, 0.004, 0.01, 0.02, 0.03))
    ]
    thresholds = [each["threshold"] for each in found]
    assert thresholds == sorted(thresholds)


def test_what_cannot_be_had_is_refused_with_the_range(bench):
    beyond = {"sensitivity": {"false_alarms_per_1000": 900.0}}
    assert "false_alarms_per_1000: expected 0.0" in refusal(bench, beyond)
    assert "calibrated up to" in refusal(bench, {**ASKED, "hazard": 0.5})
    table = refusal(bench, {**ASKED, "hazard": {"mean": 50, "shape": 4}})
    assert "hazard must be a number" in table
    bench.observe("s", labels(30))
    before = bench.head("s")
    assert "calibrated up to" in refusal(bench, {**ASKED, "hazard": 0.5}, "s")
    assert bench.head("s") == before


def test_artifacts_bring_their_own_or_say_how(bench, tmp_path):
    models = bench.settings.models_dir
    shutil.copytree(SHIPPED / "regimes", models / "rig")
    found = bench.ask(Configure("a", {**ASKED, "model": "rig"}), status=201)["sensitivity"]
    assert 0.9 < found["threshold"] < 1
    path = models / "rig" / "1" / "model.json"
    described = json.loads(path.read_text())
    curves = described.pop("sensitivity")
    path.write_text(json.dumps(described))
    assert "moca calibrate rig@1" in refusal(bench, {**ASKED, "model": "rig"})
    assert bench.ask(Configure("b", {"model": "rig"}), status=201)["sensitivity"] is None
    curves["curves"][0]["points"].reverse()
    path.write_text(json.dumps({**described, "sensitivity": curves}))
    assert "cannot read the calibration of rig@1" in refusal(bench, {**ASKED, "model": "rig"})


def test_a_kind_that_cannot_be_simulated_says_why(bench):
    model = pcoc_case().model
    tensors = {
        "prior_mean": model.prior_mean,
        "log_prior_precision": model.prior_precision.log(),
        "log_noise_variance": model.noise_variance.log(),
        "log_dirichlet": model.dirichlet.log(),
    }
    described = {"kind": "pcoc", "x_dim": 4, "y_dim": 3, "feature_dim": 4, "hazard": 0.1}
    described["encoder"] = {"type": "identity"}
    artifact.save(bench.settings.models_dir / "kinds" / "1", described, tensors)
    said = refusal(bench, {**ASKED, "model": "kinds"})
    assert "kind 'pcoc': its regimes depend on the inputs" in said
