"""What a worker holds: in bounds, as counted, and within its container's limit."""

import os
from types import SimpleNamespace

import pytest

from service.observability.metrics import REGISTRY
from service.worker.streams import registry
from tests.waiting import Clock

MIB = 1 << 20
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
        found = registry.host_limit(place, place / "own")
        assert found == (machine if expected is None else expected * MIB), (files, own)


# --- what is counted ----------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """The clock that ages of checkpoints are measured by."""
    clock = Clock()
    monkeypatch.setattr(registry, "time", SimpleNamespace(time=clock, monotonic=clock))
    return clock


def recount(engine, now_s):
    """Bytes on the host, longest way and oldest age behind a checkpoint."""
    streams = engine.streams.values()
    behind = [s for s in streams if s.slab is not None and s.live().checkpoint < s.live().seq]
    made_ms = [s.live().checkpoint_ms or s.live().created_ms for s in behind]
    return (
        sum(s.host_bytes for s in streams),
        max((s.live().seq - s.live().checkpoint for s in behind), default=0),
        max(0.0, now_s - min(made_ms) / 1000) if made_ms else 0.0,
    )


def gauges(engine):
    """The same as the worker has it."""
    engine.measure()
    return (
        engine.held().host,
        REGISTRY.get_sample_value("moca_checkpoint_lag_observations"),
        REGISTRY.get_sample_value("moca_checkpoint_age_seconds"),
    )


# --- eviction -----------------------------------------------------------------------------------


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
    # Rows are given back: thirteen streams in turn never took more than one slab's first ones.
    assert all(slab.rows <= 16 for slab in engine._slabs.values())
    assert bench.observe("s0", [2.0])[0]["seq"] == 1


def test_more_room_is_made_than_is_short(make_bench):
    """Streams are sorted for it, which the next ones need not wait for."""
    bench = make_bench(partitions=1)
    engine = bench.worker.engine
    for i in range(200):
        bench.observe(f"s{i:03}", [1.0])

    def used():
        host, device = engine.held()
        return host + device - sum(slab.spare_bytes for slab in engine._slabs.values())

    limit = used() - 1
    engine.settings = engine.settings.model_copy(update={"resident_bytes": limit})
    bench.turn()
    first = 200 - len(engine.streams)  # of those that are left, the oldest of which are gone
    assert {name for _, name in engine.streams} == {f"s{i:03}" for i in range(first, 200)}
    assert 0.97 * limit < used() <= 0.98 * limit
