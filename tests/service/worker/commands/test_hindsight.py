"""Segmentation in hindsight and calibration on own labels: jobs, with results beside the stream.

The segmentation is what an evaluation computes.
"""

import random

import pytest
from msgspec.structs import replace
from torch.utils._pytree import tree_leaves

from model_core.sensitivity import own, quiet
from model_core.stream import hindsight
from model_core.upm.builtin import Options, build
from service import wire
from service.store import keys
from service.store.streams import CHUNK
from service.wire import (
    CalibrateSensitivity,
    Configure,
    Delete,
    EventFeedback,
    Move,
    Observation,
    SegmentHistory,
    WhatIf,
)
from service.worker.filtering import alarm_threshold
from training.online import segmentation

LEVELS = [0.0, 3.0, -2.0, 5.0]
KNOWN = {"location": [0.0], "scale": [1.0]}


def labels(count, seed=5):
    """Regimes of 30 observations."""
    rng = random.Random(seed)
    return [rng.gauss(LEVELS[t // 30 % 4], 1.0) for t in range(count)]


def create(bench, model="gaussian", y=None, stream="a", **settings):
    bench.ask(Configure(stream, {"model": model, **settings}), status=201)
    bench.observe(stream, labels(60) if y is None else y)


def segment(bench, stream="a"):
    (outcome,) = bench.send(SegmentHistory(stream))
    assert (outcome.status, outcome.body) == (204, [])
    return bench.hindsight(stream)


def evaluated(model, y):
    """Starts that an evaluation of the labels finds, without the first."""
    return segmentation(build(model, Options()), [[value] for value in y])


@pytest.fixture
def reruns(monkeypatch):
    """Observations of each rerun."""
    counts = []
    inner = hindsight.starts

    def counting(slab, past, *more):
        counts.append(past.seen.rows)
        return (yield from inner(slab, past, *more))

    monkeypatch.setattr(hindsight, "starts", counting)
    return counts


# --- the segmentation in hindsight --------------------------------------------------------------


def test_location_and_scale_are_those_of_all_labels(bench):
    """A warm-up at another level and scale misleads the online path, and not this one."""
    rng = random.Random(8)
    y = [rng.gauss(0.0, 0.01) for _ in range(20)]
    y += [rng.gauss(100.0 + 40.0 * (t // 50), 5.0) for t in range(150)]
    create(bench, y=y)
    assert segment(bench).starts[1:] == evaluated("gaussian", y)
    assert bench.head("a").scale[0] < 0.1  # the stream's own stays


def test_supervision_and_rates_are_those_that_observations_met(bench):
    """As the online path has them: a later setting is for what comes."""
    rng = random.Random(3)
    y = [rng.gauss(0.0, 1.0) for _ in range(120)]
    seen = [Observation(y=v, changepoint=1.0 if t == 70 else None) for t, v in enumerate(y)]
    create(bench, "averaged", seen)
    bench.ask(Configure("a", {"hazard": 0.9}))
    assert segment(bench).starts == [0, 70]


def test_the_stream_is_untouched(bench):
    def state():
        loaded = bench.worker.engine.streams[bench.partition("a"), "a"]
        leaves = tree_leaves(loaded.slab.state(loaded.row))
        return bench.stored("a"), [each.tolist() for each in leaves]

    y = labels(140)
    for name in ("a", "b"):
        create(bench, "averaged", y, name)
    before = state()
    assert segment(bench) is not None
    assert state() == before
    answers = {name: bench.observe(name, labels(40, seed=9)) for name in ("a", "b")}
    assert [{**each, "stream": "b"} for each in answers["a"]] == answers["b"]
    assert bench.events("a") == bench.events("b")


def test_is_kept_until_a_tenth_more_was_observed(bench, reruns):
    y = labels(133)
    create(bench, y=y[:120])
    first = segment(bench)
    bench.observe("a", y[120:132])
    assert segment(bench) == first
    assert reruns == [120]
    bench.observe("a", y[132:])
    later = segment(bench)
    assert (reruns, later.seq) == ([120, 133], 133)
    assert later.starts[1:] == evaluated("gaussian", y)


def test_of_a_stream_longer_than_its_history(bench):
    y = labels(330)
    create(bench, "averaged", y, history=100)
    hindsight_found = segment(bench)
    # History is retained in whole chunks.
    assert 330 - 100 - CHUNK < hindsight_found.first <= 330 - 100
    later = evaluated("averaged", y[hindsight_found.first :])
    assert hindsight_found.starts == [
        hindsight_found.first,
        *(hindsight_found.first + start for start in later),
    ]


def test_goes_with_its_stream(bench, reruns):
    """One of an earlier generation, as a worker may have left it, is computed anew."""
    create(bench)
    old = segment(bench)
    blob = wire.checksummed(wire.encode(replace(old, generation=0)), "hindsight", "a")
    bench.client.hset(keys.hindsight(bench.partition("a")), "a", blob)
    assert segment(bench).starts == old.starts
    assert reruns == [60, 60]
    bench.send(Delete("a"))
    assert bench.hindsight("a") is None
    create(bench, y=labels(60, seed=6))
    assert segment(bench).generation == 2


def test_feedback_and_moves_drop_it(bench):
    rng = random.Random(1)
    create(bench, y=[rng.gauss(0.0 if t < 60 else 6.0, 1.0) for t in range(120)], **KNOWN)
    assert segment(bench).starts == [0, 60]
    (event,) = (each for each in bench.events("a") if each.state == "confirmed")
    bench.ask(EventFeedback("a", False, event=event.id))
    assert bench.hindsight("a") is None
    assert segment(bench).starts == [0]  # the retained observations say so now
    bench.ask(Move("a", "averaged"))
    assert bench.hindsight("a") is None


def test_refused_while_warming_up(bench):
    create(bench, y=labels(19))
    assert bench.ask(SegmentHistory("a"), status=409)["type"].endswith("warming-up")
    assert bench.hindsight("a") is None


# --- calibration --------------------------------------------------------------------------------

SENSITIVE = {"model": "averaged", "sensitivity": {"false_alarms_per_1000": 0.5}}


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    """Calibrate from 100 labels instead of 500, through a sixth of the simulated steps."""
    for module in (quiet, alarm_threshold):
        monkeypatch.setattr(module, "FEWEST", 100)
    monkeypatch.setattr(own, "STEPS", 150)


def two_levels(count, seed=3):
    """Around two levels at random, for which the model's own curve is too loud."""
    rng = random.Random(seed)
    return [rng.choice([-2.0, 2.0]) + rng.gauss(0.0, 0.3) for _ in range(count)]


def listed(bench, stream="a"):
    return bench.client.zrange(keys.uncalibrated(bench.partition(stream)), 0, -1)


def calibrate(bench):
    (outcome,) = bench.send(CalibrateSensitivity("a"))
    assert (outcome.status, outcome.body) == (204, [])
    return bench.head("a").alarm


def test_calibrated_once_there_are_labels_enough_and_again_when_they_have_doubled(bench):
    before = bench.ask(Configure("a", SENSITIVE), status=201)["sensitivity"]
    bench.observe("a", two_levels(119, seed=9))  # 20 of them are the warm-up's
    assert listed(bench) == []
    unmoved = calibrate(bench)
    assert (unmoved.threshold, unmoved.calibration) == (before["threshold"], None)
    bench.observe("a", two_levels(61))
    assert listed(bench) == [b"a"]
    after = calibrate(bench)
    assert listed(bench) == []
    assert after.threshold > before["threshold"]
    assert (after.calibration.labels, after.calibration.seq) == (160, 180)
    assert 0.5 <= after.calibration.false_alarms_per_1000 < 3  # that of the model: 2.4
    assert calibrate(bench) == after
    shown = bench.ask(Configure("a", {"ttl": 1e6}))["sensitivity"]
    assert (shown["threshold"], shown["calibration"]["labels"]) == (after.threshold, 160)
    present = bench.events("a")
    bench.observe("a", two_levels(159, seed=5))
    assert listed(bench) == []
    confirmed = {e.start for e in bench.events("a") if e not in present and e.state == "confirmed"}
    answer = bench.ask(WhatIf("a", {"history": 1999}))  # keeps the calibration
    assert confirmed <= {e["start"] for e in answer["events"] if e["state"] == "confirmed"}
    bench.observe("a", two_levels(1, seed=6))
    assert listed(bench) == [b"a"]
    assert calibrate(bench).calibration.labels == 320


def test_a_new_rate_begins_with_the_curve_and_is_calibrated(bench):
    before = bench.ask(Configure("a", SENSITIVE), status=201)["sensitivity"]
    bench.observe("a", two_levels(200))
    first = calibrate(bench)
    frequent = {"sensitivity": {"false_alarms_per_1000": 5.0}}
    changed = bench.ask(Configure("a", frequent))["sensitivity"]
    assert changed["calibration"] is None
    assert changed["threshold"] < before["threshold"]
    bench.observe("a", two_levels(1, seed=7))
    assert listed(bench) == [b"a"]
    again = calibrate(bench)
    assert again.threshold < first.threshold
    assert again.calibration.false_alarms_per_1000 >= 5
    bench.ask(Configure("a", {"sensitivity": None}))
    assert bench.head("a").alarm.calibration is None


def test_not_of_streams_that_cannot_be_simulated(bench):
    """Too little history, another model, no sensitivity; nor of one that is deleted."""
    y = [float(round(4 * y) + 40) for y in two_levels(130)]
    other = {"b": {"model": "poisson"}, "c": {"sensitivity": None}, "d": {"history": 90}, "a": {}}
    for name, settings in other.items():
        create(bench, y=y, stream=name, **{**SENSITIVE, **settings})
        assert listed(bench, name) == [b"a"] * (name == "a"), name
    bench.send(Delete("a"))
    assert listed(bench) == []
