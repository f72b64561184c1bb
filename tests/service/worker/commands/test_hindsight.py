"""Segmentation in hindsight: a job, with its result beside the stream.

It is what an evaluation computes.
"""

import random

import pytest
from msgspec.structs import replace
from torch.utils._pytree import tree_leaves

from model_core.stream import hindsight
from model_core.upm.builtin import Options, build
from service import wire
from service.store import keys
from service.wire import (
    Configure,
    Delete,
    EventFeedback,
    Move,
    Observation,
    SegmentHistory,
)
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
    y = [rng.gauss(0.0, 1.0) for _ in range(20)]
    y += [rng.gauss(40.0 + 20.0 * (t // 50), 5.0) for t in range(150)]
    create(bench, y=y)
    assert segment(bench).starts[1:] == evaluated("gaussian", y)
    assert bench.head("a").scale[0] < 2.0  # the stream's own stays


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
        leaves = tree_leaves(loaded.slab.batch([loaded.row])[0])
        return bench.stored("a"), [None if each is None else each.tolist() for each in leaves]

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
    assert hindsight_found.first == 330 - 100
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
