"""What a worker says it holds, against a recount of all its streams."""

import gc
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_core import kernel
from service.observability.metrics import REGISTRY
from service.wire import Configure, Delete, Observation, Observe
from service.worker.collection import THAW_S, Collector
from service.worker.streams.ledger import Tally

KNOWN = {"location": [0.0], "scale": [1.0]}
NAMES = [f"s{i}" for i in range(8)]
ACTIONS = ("observe", "observe", "list", "delete", "evict", "checkpoint", "resize", "lose", "fail")


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5))))
@settings(deadline=None, max_examples=100)
def test_a_tally_knows_its_extremes(moves):
    tally, numbers = Tally(), []
    for add, number in moves:
        if add or number not in numbers:
            tally.add(number)
            numbers.append(number)
        else:
            tally.remove(number)
            numbers.remove(number)
        if number % 2:  # extremes are read at some times only
            assert tally.least == min(numbers, default=None)
            assert tally.most == max(numbers, default=None)
    assert (tally.least, tally.most) == (min(numbers, default=None), max(numbers, default=None))


def recount(engine):
    """Resident streams, bytes on the host, longest way and oldest time behind a checkpoint."""
    streams = engine.streams.values()
    behind = [s for s in streams if s.slab is not None and s.live().checkpoint < s.live().seq]
    return (
        sum(s.slab is not None for s in streams),
        sum(s.host_bytes for s in streams),
        max((s.live().seq - s.live().checkpoint for s in behind), default=0),
        min((s.live().checkpoint_ms or s.live().created_ms for s in behind), default=None),
    )


def gauges(engine):
    """The same as the worker has it."""
    engine.measure()
    age_s = REGISTRY.get_sample_value("moca_checkpoint_age_seconds")
    oldest_ms = engine._ledger.oldest_ms
    expected_s = 0.0 if oldest_ms is None else max(0.0, time.time() - oldest_ms / 1000)
    assert age_s == pytest.approx(expected_s, abs=5.0)
    return (
        REGISTRY.get_sample_value("moca_resident_streams"),
        engine.held().host,
        REGISTRY.get_sample_value("moca_checkpoint_lag_observations"),
        oldest_ms,
    )


def do(bench, action, name, draw):
    """Do something to a stream; what it leads to is for the worker to count."""
    engine, partition = bench.worker.engine, bench.partition(name)
    stream = engine.streams.get((partition, name))
    seen = [Observation(y=draw.gauss(0, 1)) for _ in range(draw.randint(1, 30))]
    commands = {
        "observe": Observe(name, seen[:1]),
        "list": Observe(name, seen, key=f"k{draw.random()}", digest="d"),
        "delete": Delete(name),
        "resize": Configure(name, {**KNOWN, "max_hypotheses": draw.choice([10, 20])}),
        "fail": Observe(name, [Observation(y=1.0), Observation(y=[1.0, 2.0])]),
    }
    if action in commands:
        bench.send(commands[action])
    elif action == "lose":
        bench.worker._disown(partition)
    elif action == "evict" and stream is not None:
        bench.worker._settle()
        bench.worker._keep(partition, [name])
        engine.evict(stream)
    elif action == "checkpoint":
        bench.worker._keep(partition, [n for p, n in engine.streams if p == partition])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(6))
def test_totals_are_those_of_a_recount(bench, seed):
    draw = random.Random(seed)
    for _ in range(60):
        bench.now_ms += draw.randint(1, 2000)
        bench.turn()  # so that it has the partitions
        do(bench, draw.choice(ACTIONS), draw.choice(NAMES), draw)
        bench.worker._settle()
        assert gauges(bench.worker.engine) == recount(bench.worker.engine)
    for partition in range(bench.settings.partitions):
        bench.worker._disown(partition)
    assert gauges(bench.worker.engine) == (0, 0, 0, None)


def test_eviction_by_the_worker_itself_is_counted(make_bench):
    bench = make_bench(resident_bytes=60_000, partitions=1)
    for name in NAMES:
        bench.observe(name, [float(i) for i in range(30)])
        bench.turn()
        engine = bench.worker.engine
        assert gauges(engine) == recount(engine)
    assert len(bench.worker.engine.streams) < len(NAMES)


class Knot:
    """Something that refers to itself, and counts when it is gone."""

    gone = 0

    def __init__(self):
        self.myself = self

    def __del__(self):
        Knot.gone += 1


@pytest.fixture
def collector():
    threshold = gc.get_threshold()
    gc.collect()
    yield Collector()
    gc.unfreeze()
    gc.set_threshold(*threshold)


def test_new_garbage_is_collected_and_the_rest_is_left_alone(collector):
    Knot.gone = 0
    kept = Knot()
    Knot()
    frozen = gc.get_freeze_count()
    collector.tend()
    assert Knot.gone == 1
    assert gc.get_freeze_count() >= frozen
    del kept
    collector.tend()
    assert Knot.gone == 1  # it was frozen, and has no end of its own


def test_nothing_is_frozen_while_kernels_are_compiled(collector, monkeypatch):
    monkeypatch.setattr(kernel, "compiling", lambda: True)
    kept, frozen = Knot(), gc.get_freeze_count()
    collector.tend()
    assert gc.get_freeze_count() <= frozen
    assert not collector.due
    Knot.gone = 0
    del kept
    gc.collect()  # as the system does at last by itself
    assert Knot.gone == 1


def test_what_was_frozen_is_collected_once_a_day(collector, monkeypatch):
    Knot.gone = 0
    kept = Knot()
    collector.tend()
    del kept
    collector.rest()
    assert Knot.gone == 0
    now = time.monotonic()
    monkeypatch.setattr("service.worker.collection.time.monotonic", lambda: now + THAW_S + 1.0)
    collector.rest()
    assert Knot.gone == 1
    assert gc.get_freeze_count() > 0


def test_a_refused_command_leaves_nothing_that_is_frozen(bench, collector):
    """Its error refers to the batch: were it frozen, refusals would fill the memory."""
    bench.worker.collector = collector
    bench.observe("a", [1.0])
    bench.turn()
    before = gc.get_freeze_count()
    for _ in range(50):
        (outcome,) = bench.send(Observe("a", [Observation(y=[1.0, 2.0])]))
        assert outcome.status == 422
        bench.turn()
    assert gc.get_freeze_count() < before + 500
