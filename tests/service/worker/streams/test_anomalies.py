"""Anomalies of a stream: as `model_core.anomaly` has them, wherever the stream's state has been."""

import random

import numpy as np
import pytest

from model_core import anomaly, codec
from service.wire import Configure, Observation, RunLength
from tests.service.worker.commands.test_snapshot import export, put

KNOWN = {"location": [1.0], "scale": [2.0]}
SETTINGS = {
    "gaussian": {"model": "gaussian", **KNOWN},
    "averaged": {"model": "averaged", **KNOWN},
    "poisson": {"model": "poisson", "location": [4.0]},
    "categorical": {"model": "categorical", "classes": 4},
}


def labels(model, length, seed=0):
    rng = random.Random(seed)
    for _ in range(length):
        if rng.random() < 0.1:
            yield None
        elif model == "poisson":
            yield float(rng.randrange(9))
        elif model == "categorical":
            yield float(rng.randrange(4))
        else:
            yield rng.gauss(1.0, 2.0) + 20.0 * (rng.random() < 0.02)


def expected(answers, y, model):
    """Of answers, by their log scores."""
    outputs = int(model != "categorical")
    units = ([1.0], [2.0]) if model in ("gaussian", "averaged") else ([0.0], [1.0])
    state = anomaly.start(*(each[:outputs] for each in units))[None]
    surprises = [np.nan if each["log_score"] is None else -each["log_score"] for each in answers]
    given = np.array([[np.nan if label is None else label] for label in y])[:, :outputs]
    rows = np.zeros(len(y), dtype=np.int64)
    found = anomaly.observe_rows(state, rows, np.array(surprises), given)
    return [None if np.isnan(each) else each for each in found]


@pytest.mark.parametrize("model", SETTINGS)
def test_answers_and_records_carry_it(bench, model):
    y = list(labels(model, 120))
    bench.ask(Configure("a", SETTINGS[model]), status=201)
    answers = bench.observe("a", y)
    found = [answer["anomaly"] for answer in answers]
    assert found == expected(answers, y, model)
    assert [each is None for each in found] == [label is None for label in y]
    assert [record.anomaly for record in bench.records("a")] == found


def test_it_begins_after_the_warm_up_and_has_its_labels(bench):
    bench.ask(Configure("a", {"model": "gaussian", "warmup": 20}), status=201)
    answers = bench.observe("a", [float(i % 5) for i in range(40)])
    assert [answer["anomaly"] is None for answer in answers] == [True] * 20 + [False] * 20
    (slab,) = bench.worker.engine._slabs.values()
    (stream,) = bench.worker.engine.streams.values()
    assert slab.ranks(stream.row)[anomaly.size(0) + 2] == 40.0  # labels in the whole past


@pytest.mark.one_in(2)
@pytest.mark.parametrize("model", SETTINGS)
@pytest.mark.parametrize("way", ["crash", "stop", "evicted", "imported"])
def test_it_goes_on_to_the_last_bit(make_bench, model, way):
    plain = make_bench(db=1)
    bench = make_bench(checkpoint_every=32, resident_bytes=1 if way == "evicted" else None)
    y = list(labels(model, 150))
    for each in (bench, plain):
        each.ask(Configure("a", SETTINGS[model]), status=201)
        each.observe("a", y[:75], part=25)
    if way == "imported":
        blob = export(bench, "a")
        bench = make_bench(db=2)
        put(bench, "a", blob)
    elif way != "evicted":
        getattr(bench, way)()
    found, same = (
        [answer["anomaly"] for answer in each.observe("a", y[75:], part=25)]
        for each in (bench, plain)
    )
    assert found == same


def test_it_stays_when_hypotheses_become_fewer(bench):
    bench.ask(Configure("a", SETTINGS["gaussian"]), status=201)
    bench.observe("a", list(labels("gaussian", 60)))
    (stream,) = bench.worker.engine.streams.values()
    before = stream.slab.ranks(stream.row)
    bench.ask(Configure("a", {"max_hypotheses": 20}))
    assert np.array_equal(stream.slab.ranks(stream.row), before)
    bench.crash()
    bench.ask(RunLength("a"))
    (stream,) = bench.worker.engine.streams.values()
    assert np.array_equal(stream.slab.ranks(stream.row), before)


def test_what_an_older_version_stored_begins_anew(make_bench):
    bench, plain = make_bench(checkpoint_every=40), make_bench(db=1)
    y = list(labels("gaussian", 120))
    bench.ask(Configure("a", SETTINGS["gaussian"]), status=201)
    bench.observe("a", y[:40])
    (slab,) = bench.worker.engine._slabs.values()
    (stream,) = bench.worker.engine.streams.values()
    assert stream.live().checkpoint == 40
    stream.commit_checkpoint(codec.encode(slab.model, slab.state(stream.row)))
    stream.touch(bench.now_ms)
    bench.observe("a", y[40:50])
    bench.crash()
    found = bench.observe("a", y[50:])
    assert found[0]["anomaly"] is not None
    fresh = expected(
        [{"log_score": record.log_score} for record in bench.records("a")[40:]], y[40:], "gaussian"
    )
    assert [answer["anomaly"] for answer in found] == fresh[10:]
    assert len(plain.stored("a")["checkpoint"]) == 0


def test_a_label_to_come_leaves_the_stream_s_own_as_it_is(make_bench):
    """What ran ahead is answered from a copy; the labels then give what they give in order."""
    bench, plain = make_bench(), make_bench(db=1)
    y = [label for label in labels("gaussian", 80) if label is not None]
    for each in (bench, plain):
        each.ask(Configure("a", SETTINGS["gaussian"]), status=201)
        each.observe("a", y[:40])
    bench.observe("a", [Observation(y=None, pending=True)])
    ahead = bench.observe("a", y[41:45])
    assert all(answer["provisional"] for answer in ahead)
    assert all(0 <= answer["anomaly"] <= 1 for answer in ahead)
    bench.observe("a", [Observation(y=y[40])], seq=40)
    plain.observe("a", y[40:45])
    found, same = ([record.anomaly for record in each.records("a")[40:]] for each in (bench, plain))
    assert found == same
    assert bench.observe("a", y[45:])[-1]["anomaly"] == plain.observe("a", y[45:])[-1]["anomaly"]


def test_a_snapshot_with_impossible_ranks_is_refused(bench, make_bench):
    bench.ask(Configure("a", SETTINGS["gaussian"]), status=201)
    bench.observe("a", list(labels("gaussian", 40)))
    (slab,) = bench.worker.engine._slabs.values()
    (stream,) = bench.worker.engine.streams.values()
    ranks = slab.ranks(stream.row)
    ranks[0] = 1e9  # a sketch of so many values would be read far beyond its row
    stream.commit_checkpoint(codec.encode(slab.model, slab.state(stream.row), ranks))
    stream.touch(bench.now_ms)
    bench.observe("a", [1.0])
    blob = export(bench, "a")
    other = make_bench(db=1)
    said = put(other, "a", blob, status=422)
    assert "anomaly" in said["detail"]
