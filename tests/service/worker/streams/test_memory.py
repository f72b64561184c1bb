"""What a worker holds: in bounds, as counted, and within its container's limit."""

import gc
import os
import random
import tracemalloc
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.observability.metrics import REGISTRY
from service.wire import Configure, Delete, Observation, Observe
from service.worker.streams import memory, registry
from service.worker.streams.ledger import Tally
from tests.service.worker.kinds import KINDS, series
from tests.service.worker.streams.test_reload import check_answers
from tests.waiting import Clock

MIB = 1 << 20
KNOWN = {"location": [0.0], "scale": [1.0]}
NAMES = [f"s{i}" for i in range(8)]
ACTIONS = ("observe", "observe", "list", "delete", "evict", "checkpoint", "resize", "lose", "fail")
LIMITS = [  # files of limits, the process's own groups, MiB; None: that of the machine
    ({"memory.max": "104857600\n"}, "0::/\n", 100),
    ({"memory.max": "max\n"}, "0::/\n", None),
    ({"memory/memory.limit_in_bytes": "209715200"}, "4:memory:/docker/1\n0::/\n", 200),
    ({"memory/memory.limit_in_bytes": str(2**63 - 4096)}, "4:memory:/\n", None),
    ({"a/b/memory.max": "max", "a/memory.max": "314572800"}, "0::/a/b\n", 300),
    ({"memory/a/memory.limit_in_bytes": "1048576"}, "3:cpu,memory:/a\n", 1),
    ({}, "", None),
]


# --- the room -----------------------------------------------------------------------------------


def test_the_limit_of_the_container(tmp_path):
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for i, (files, own, expected) in enumerate(LIMITS):
        place = tmp_path / str(i)
        for name, text in {**files, "own": own}.items():
            file = place / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        found = memory.host_limit(place, place / "own")
        assert found == (machine if expected is None else expected * MIB), (files, own)


def test_workers_of_one_machine_share_it(monkeypatch):
    monkeypatch.setattr(memory, "host_limit", lambda: 4000 * MIB)
    monkeypatch.setattr(memory, "own_bytes", lambda: 300 * MIB)
    assert memory.room("cpu").host == 2900 * MIB
    assert memory.room("cpu", sharing=1).host == 1300 * MIB  # the API and the store have as much
    assert memory.room("cpu", sharing=3).host == 500 * MIB
    assert memory.room("cpu", sharing=40).host == memory.LEAST


def test_a_device_has_its_own_limit(monkeypatch):
    monkeypatch.setattr(memory, "host_limit", lambda: 4000 * MIB)
    monkeypatch.setattr(memory, "own_bytes", lambda: 300 * MIB)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (70_000 * MIB, 80_000 * MIB))
    assert memory.room("cuda").device == 56_000 * MIB  # others have 10,000
    found = memory.room("cuda:1", sharing=2)
    assert found == (int(0.8 * 4000 * MIB / 3) - 300 * MIB, 32_000 * MIB)
    assert found.excess(found.host + 5, found.device - 9) == 5
    assert found.excess(found.host - 9, found.device + 7) == 7


# --- what is counted ----------------------------------------------------------------------------


def test_streams_on_the_host_are_counted(make_bench):
    bench = make_bench(partitions=1, idempotency_keep_requests=64)
    names = [f"s{i}" for i in range(60)]

    def post(names, count):
        for at in range(count):
            seen = [Observation(y=float(at))] * 5
            bench.send(*(Observe(n, seen, key=f"k{at}", digest="d" * 32) for n in names))

    bench.send(*[Configure(name, KNOWN) for name in ["warm", *names]])
    post(["warm"], 2)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    counted = bench.worker.engine.held().host
    post(names, 6)
    for _ in range(2):  # so that the batches that are still held are small ones
        bench.send(Observe("warm", [Observation(y=1.0)]))
        bench.turn()
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    counted = bench.worker.engine.held().host - counted
    assert 0.8 * grown < counted < 1.2 * grown


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


@pytest.fixture
def clock(monkeypatch):
    """The clock that ages of checkpoints are measured by."""
    clock = Clock()
    monkeypatch.setattr(registry, "time", SimpleNamespace(time=clock))
    return clock


def recount(engine, now_s):
    """Resident streams, bytes on the host, longest way and oldest age behind a checkpoint."""
    streams = engine.streams.values()
    behind = [s for s in streams if s.slab is not None and s.live().checkpoint < s.live().seq]
    made_ms = [s.live().checkpoint_ms or s.live().created_ms for s in behind]
    return (
        sum(s.slab is not None for s in streams),
        sum(s.host_bytes for s in streams),
        max((s.live().seq - s.live().checkpoint for s in behind), default=0),
        max(0.0, now_s - min(made_ms) / 1000) if made_ms else 0.0,
    )


def gauges(engine):
    """The same as the worker has it."""
    engine.measure()
    return (
        REGISTRY.get_sample_value("moca_resident_streams"),
        engine.held().host,
        REGISTRY.get_sample_value("moca_checkpoint_lag_observations"),
        REGISTRY.get_sample_value("moca_checkpoint_age_seconds"),
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


@pytest.mark.parametrize("seed", [1, *(pytest.param(i, marks=pytest.mark.slow) for i in (2, 3, 4))])
def test_totals_are_those_of_a_recount(bench, clock, seed):
    draw = random.Random(seed)
    for _ in range(60):
        bench.now_ms += draw.randint(1, 2000)
        clock.now = bench.now_ms / 1000 + draw.choice([-10.0, 5.0])
        bench.turn()  # so that it has the partitions
        do(bench, draw.choice(ACTIONS), draw.choice(NAMES), draw)
        bench.worker._settle()
        found = gauges(bench.worker.engine)
        assert found == recount(bench.worker.engine, clock.now)
    for partition in range(bench.settings.partitions):
        bench.worker._disown(partition)
    assert gauges(bench.worker.engine) == (0, 0, 0, 0.0)


# --- eviction -----------------------------------------------------------------------------------


def test_evicted_after_every_batch_streams_go_on(make_bench, close):
    bench, plain = make_bench(resident_bytes=1), make_bench(db=1)
    streams = {f"s{i}": series(KINDS["gaussian"], 70, seed=i) for i in range(5)}
    answers = {name: [] for name in streams}
    for at in range(0, 70, 10):
        for name, observations in streams.items():
            answers[name] += bench.observe(name, observations[at : at + 10])
            bench.turn()
            assert not bench.worker.engine.streams
    for name, observations in streams.items():
        close(answers[name], plain.observe(name, observations))
        check_answers(answers[name], bench.records(name), bench, name)
    # Rows are given back: five streams in turn never took more than one slab's first ones.
    assert all(slab.rows <= 16 for slab in bench.worker.engine._slabs.values())


def test_the_least_recently_used_goes_first_and_is_counted(make_bench, clock):
    bench = make_bench(partitions=1, resident_bytes=28_000)
    engine = bench.worker.engine
    for i in range(12):
        bench.observe(f"s{i}", [1.0])
        bench.observe("busy", [1.0])
        assert gauges(engine) == recount(engine, clock.now)
    bench.turn()
    resident = {name for _, name in engine.streams}
    assert {"busy", "s11"} <= resident
    assert "s0" not in resident
    assert gauges(engine) == recount(engine, clock.now)
    assert bench.observe("s0", [2.0])[0]["seq"] == 1


# --- a worker under a limit ---------------------------------------------------------------------
