"""Sensitivity in false alarms: a threshold is picked, kept, and events are confirmed by it."""

import json
import shutil

from service.models.catalogue import SHIPPED
from service.wire import Configure
from tests.service.worker.conftest import noise

ASKED = {"sensitivity": {"false_alarms_per_1000": 0.1}}


def refused(bench, settings, stream="r"):
    found = bench.ask(Configure(stream, settings), status=422)
    assert found["type"].endswith("/unfit-settings")
    assert found["field"] == "sensitivity"
    return found["detail"]


def made(bench, stream, **settings):
    return bench.ask(Configure(stream, {**ASKED, **settings}), status=201)["sensitivity"]


def test_the_summary_says_what_it_comes_to(bench):
    found = made(bench, "a")
    assert found["false_alarms_per_1000"] == 0.1
    assert 0.96 < found["threshold"] < 0.995
    assert [each["shift"] for each in found["expected_delay"]] == [1, 2, 3]
    medians = [each["median"] for each in found["expected_delay"]]
    assert medians == sorted(medians, reverse=True)
    assert 15 < medians[0] < 26
    assert found["differs"] == []
    assert bench.ask(Configure("b", {}), status=201)["sensitivity"] is None
    thresholds = [
        made(bench, f"s{i}", hazard=hazard)["threshold"]
        for i, hazard in enumerate((0.0005, 0.001, 0.004, 0.01, 0.03))
    ]
    assert thresholds == sorted(thresholds)


def test_an_event_is_confirmed_once_the_threshold_is_reached(bench):
    """Also after it changed under way, and by another worker."""
    threshold = made(bench, "a")["threshold"]
    y = noise(150) + noise(30, seed=9, level=3.0)
    bench.observe("b", y[:150])
    quiet = bench.ask(Configure("b", {"sensitivity": {"false_alarms_per_1000": 0.02}}))
    assert quiet["sensitivity"]["threshold"] > threshold
    assert bench.ask(Configure("b", {"history": 500}))["sensitivity"] == quiet["sensitivity"]
    assert bench.ask(Configure("b", ASKED))["sensitivity"]["threshold"] == threshold
    bench.crash()
    for stream, rest in (("a", y), ("b", y[150:])):
        answers = bench.observe(stream, rest)
        high = [a["seq"] for a in answers if (a["changed_probability"] or 0) >= threshold]
        (event,) = [e for e in bench.events(stream) if e.state == "confirmed"]
        assert event.confirmed_at == high[0]
        assert 150 <= event.confirmed_at < 157
        assert abs(event.start - 150) <= 2
    off = bench.ask(Configure("b", {"sensitivity": None}))
    assert (off["sensitivity"], off["settings"]["sensitivity"]) == (None, None)


def test_settings_that_were_not_simulated_are_named(bench):
    cases = [
        ({"hazard": 0.01, "outlier_rate": 0.01}, []),
        ({"hazard": 0.02}, ["hazard"]),
        ({"hazard": 0.001}, []),
        (
            {"outlier_rate": 0.1, "max_hypotheses": 20, "warmup": 40},
            ["outlier_rate", "max_hypotheses", "warmup"],
        ),
        ({"location": [0.0], "scale": [1.0]}, ["location"]),
        ({"model": "categorical", "classes": 7}, ["classes"]),
        ({"model": "categorical", "classes": 4}, []),
        (
            {
                "model": "autoregressive",
                "sensitivity": {"false_alarms_per_1000": 5.0},
                "order": 3,
                "trend": True,
            },
            ["order", "trend"],
        ),
    ]
    for i, (settings, differs) in enumerate(cases):
        assert made(bench, f"s{i}", **settings)["differs"] == differs, settings


def test_artifacts_bring_their_own_or_say_how(bench):
    models = bench.settings.models_dir
    shutil.copytree(SHIPPED / "regimes", models / "rig")
    assert 0.9 < made(bench, "a", model="rig")["threshold"] < 1
    path = models / "rig" / "1" / "model.json"
    described = json.loads(path.read_text())
    curves = described.pop("sensitivity")
    path.write_text(json.dumps(described))
    assert "moca calibrate rig@1" in refused(bench, {**ASKED, "model": "rig"})
    assert bench.ask(Configure("b", {"model": "rig"}), status=201)["sensitivity"] is None
    curves["curves"][0]["points"].reverse()
    path.write_text(json.dumps({**described, "sensitivity": curves}))
    refused(bench, {**ASKED, "model": "rig"})
