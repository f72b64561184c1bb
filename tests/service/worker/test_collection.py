"""Garbage of a worker: new objects are collected, and what stays is frozen."""

import gc
from types import SimpleNamespace

import pytest

from service.wire import Observation, Observe
from service.worker import collection
from service.worker.collection import Collector
from tests.waiting import Clock


class Knot:
    """Something that refers to itself, and counts when it is gone."""

    gone = 0

    def __init__(self):
        self.myself = self

    def __del__(self):
        Knot.gone += 1


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(collection, "time", SimpleNamespace(monotonic=clock))
    return clock


@pytest.fixture
def collector(clock):
    threshold = gc.get_threshold()
    gc.collect()
    Knot.gone = 0
    yield Collector()
    gc.unfreeze()
    gc.set_threshold(*threshold)


def test_new_garbage_is_collected_and_the_rest_is_left_alone(collector):
    kept = Knot()
    Knot()
    frozen = gc.get_freeze_count()
    collector.tend()
    assert Knot.gone == 1
    assert gc.get_freeze_count() >= frozen
    del kept
    collector.tend()
    assert Knot.gone == 1  # it was frozen, and has no end of its own


def test_a_refused_command_leaves_nothing_that_is_frozen(bench, collector):
    """Its error refers to the batch: were it frozen, refusals would fill the memory."""
    bench.worker.collector = collector
    bench.observe("a", [1.0])
    bench.turn()
    before = gc.get_freeze_count()
    for _ in range(15):
        (outcome,) = bench.send(Observe("a", [Observation(y=[1.0, 2.0])]))
        assert outcome.status == 422
        bench.turn()
    assert gc.get_freeze_count() < before + 150
