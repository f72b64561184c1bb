"""A stream's sensitivity is calibrated on its own labels, in the background, once and for good."""

import random

import pytest

from model_core.sensitivity import own
from service.store import keys
from service.wire import CalibrateSensitivity, Configure, Delete, WhatIf
from service.worker import background_jobs

ASKED = {"model": "averaged", "sensitivity": {"false_alarms_per_1000": 0.5}}

pytest.importorskip("numba")


@pytest.fixture
def coarse(monkeypatch):
    """A third of the simulated steps, and of the precision."""
    monkeypatch.setattr(own, "STEPS", 300)


def labels(count, seed=3):
    """Around two levels at random, for which the model's own curve is too loud."""
    rng = random.Random(seed)
    return [rng.choice([-2.0, 2.0]) + rng.gauss(0.0, 0.3) for _ in range(count)]


def started(bench, stream="a", **settings):
    """A stream that is stepped by a kernel."""
    bench.worker.engine.compiles = True
    made = bench.ask(Configure(stream, {**ASKED, **settings}), status=201)
    bench.observe(stream, labels(30, seed=9))
    for slab in bench.worker.engine._slabs.values():
        slab._compiled.compile()  # waits for it
    return made["sensitivity"]


def listed(bench, stream="a"):
    return bench.client.zrange(keys.uncalibrated(bench.partition(stream)), 0, -1)


def calibrate(bench, stream="a"):
    (outcome,) = bench.send(CalibrateSensitivity(stream))
    assert (outcome.status, outcome.body) == (204, [])
    return bench.head(stream).alarm


def test_once_there_are_labels_enough(bench):
    before = started(bench)
    assert before["calibration"] is None
    bench.observe("a", labels(480), part=200)
    assert listed(bench) == []
    unmoved = calibrate(bench)
    assert (unmoved.threshold, unmoved.calibration) == (before["threshold"], None)
    bench.observe("a", labels(120, seed=4), part=60)
    assert listed(bench) == [b"a"]
    after = calibrate(bench)
    assert listed(bench) == []
    assert after.threshold > before["threshold"]
    assert (after.calibration.labels, after.calibration.seq) == (610, 630)
    assert 0.5 <= after.calibration.false_alarms_per_1000 < 3  # that of the model: 2.4
    assert calibrate(bench) == after
    shown = bench.ask(Configure("a", {"pinned": True}))["sensitivity"]
    assert shown["threshold"] == after.threshold
    assert shown["calibration"]["labels"] == 610


@pytest.mark.usefixtures("coarse")
def test_again_when_the_labels_have_doubled(bench):
    started(bench)
    bench.observe("a", labels(500), part=250)
    first = calibrate(bench)
    bench.observe("a", labels(first.calibration.labels - 1, seed=5), part=250)
    assert listed(bench) == []
    bench.observe("a", labels(1, seed=6))
    assert listed(bench) == [b"a"]
    assert calibrate(bench).calibration.labels == 2 * first.calibration.labels


@pytest.mark.usefixtures("coarse")
def test_a_new_rate_begins_with_the_curve_and_is_calibrated(bench):
    before = started(bench)
    bench.observe("a", labels(500), part=250)
    first = calibrate(bench)
    rare = {"sensitivity": {"false_alarms_per_1000": 5.0}}
    changed = bench.ask(Configure("a", rare))["sensitivity"]
    assert changed["calibration"] is None
    assert changed["threshold"] < before["threshold"]
    bench.observe("a", labels(1, seed=7))
    assert listed(bench) == [b"a"]
    second = calibrate(bench)
    assert changed["threshold"] < second.threshold < first.threshold
    bench.ask(Configure("a", {"sensitivity": None}))
    assert bench.head("a").alarm.calibration is None


@pytest.mark.usefixtures("coarse")
def test_what_if_keeps_it(bench):
    started(bench)
    bench.observe("a", labels(500), part=250)
    calibrate(bench)
    present = bench.events("a")
    bench.observe("a", labels(200, seed=8), part=100)
    new = [event for event in bench.events("a") if event not in present]
    found = bench.ask(WhatIf("a", {"history": 1999}))
    assert found["seq"] == 730
    ids = {event["start"] for event in found["events"] if event["state"] == "confirmed"}
    assert {event.start for event in new if event.state == "confirmed"} <= ids


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("way", ["crash", pytest.param("stop", marks=pytest.mark.slow)])
def test_what_is_broken_off_is_done_by_the_next_owner(make_bench, monkeypatch, way):
    found = []
    for db, broken in ((0, False), (1, True)):
        bench = make_bench(db=db, partitions=1)
        started(bench)
        bench.observe("a", labels(500), part=250)
        if broken:
            monkeypatch.setattr(background_jobs.Job, "advance", background_jobs.Job.step)
            asked = bench.append(CalibrateSensitivity("a"))
            for _ in range(20):
                bench.turn()
            assert 0 in bench.worker._jobs
            assert bench.head("a").alarm.calibration is None
            getattr(bench, way)()
            bench.worker.engine.compiles = True
            assert [outcome.status for outcome in bench.outcomes(asked)] == [204]
        else:
            calibrate(bench)
        bench.crash()  # after the commit: it is stored with the stream
        found.append(bench.head("a").alarm)
    assert found[0].calibration == found[1].calibration
    assert found[1].threshold == pytest.approx(found[0].threshold, rel=1e-9)


def test_not_of_streams_that_cannot_be_simulated(bench):
    started(bench, history=400)
    bench.worker.engine.compiles = False
    bench.ask(Configure("b", {**ASKED, "model": "poisson"}), status=201)
    bench.ask(Configure("c", {**ASKED, "sensitivity": None}), status=201)
    for name in ("a", "b", "c"):
        bench.observe(name, [float(round(4 * y) + 40) for y in labels(520)], part=260)
        assert listed(bench, name) == []


def test_goes_with_its_stream(bench):
    started(bench)
    bench.observe("a", labels(500), part=250)
    assert listed(bench) == [b"a"]
    bench.send(Delete("a"))
    assert listed(bench) == []
