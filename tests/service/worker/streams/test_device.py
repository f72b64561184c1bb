"""A worker whose states are on a device of their own gives the answers of one on the CPU.

The device is `guard`, which refuses what a GPU refuses; its numbers are those of the CPU.
"""

from unittest import mock

import msgspec
import pytest

from model_core.errors import NotCompiled
from service.wire import (
    Act,
    Configure,
    Delete,
    EventFeedback,
    Move,
    Observation,
    Observe,
    Predict,
    RunLength,
    SetBelief,
    WhatIf,
)
from service.worker.self_test import rehearse
from service.worker.streams.registry import compile_step
from tests.guarded import guarded
from tests.service.worker.kinds import KINDS, configure, publish, series

QUICK = ("linear",)


@pytest.fixture
def benches(make_bench, tmp_path, no_kernels):
    """One for the guarded device, one on the CPU, by the same filter."""
    publish(tmp_path / "models")
    there = make_bench(device="guard", checkpoint_every=8)
    here = make_bench(db=1, checkpoint_every=8)
    here.now_ms = there.now_ms
    return there, here


@pytest.fixture
def device():
    with guarded():
        yield


@pytest.fixture
def both(benches, close):
    """Ask the same of both; they must answer the same."""

    def ask(do):
        there, here = benches
        with guarded():
            found = do(there)
        close(found, do(here))
        return found

    return ask


def told(outcome):
    return [outcome.status, [msgspec.json.decode(each) for each in outcome.body]]


@pytest.mark.parametrize(
    "name", [pytest.param(k, marks=[pytest.mark.slow] * (k not in QUICK)) for k in KINDS]
)
def test_every_command_of_every_kind(benches, both, name):
    kind, asked = KINDS[name], []
    observations = series(kind, 30)

    def ask(command):
        asked.append(both(lambda bench: told(bench.send(command)[0])))
        return asked[-1]

    both(lambda bench: configure(bench, "a", kind, warmup=5, label_window=3, hazard=[0.02, 0.05]))
    both(lambda bench: bench.observe("a", observations[:20], belief=True))
    slabs = benches[0].worker.engine._slabs.values()
    chunks = [chunk for each in slabs for chunk in each._chunks._chunks]
    assert {array.device.type for chunk in chunks for array in chunk.arrays} == {"guard"}
    points = [seen.x for seen in observations[20:22]] if kind.x_dim else None
    predict = Predict("a", x=points, samples=3, seed=1, components=True)
    assert ask(predict)[0] == 200
    reads = [Predict("a", horizon=2, samples=2, seed=3), RunLength("a")]
    if kind.x_dim:
        reads += [Act("a", points, way, 3, 5) for way in ("greedy", "thompson", "optimistic")]
    reads += [WhatIf("a", {"hazard": 0.1, "max_hypotheses": 7}, True, 2)]
    for each in reads:
        ask(each)
    lengths = [each["run_length"] for each in ask(RunLength("a"))[1][0]["belief"]]
    assert ask(SetBelief("a", [(lengths[0], 0.5), (lengths[-1], 0.5)], 0.2))[0] == 200
    both(lambda bench: bench.observe("a", observations[20:22]))
    assert ask(EventFeedback("a", True, start=6))[0] == 200
    both(lambda bench: bench.crash())  # states come back from their bytes, and from the tail
    both(lambda bench: bench.observe("a", observations[22:24]))
    for size in (5, 25):
        ask(Configure("a", {"max_hypotheses": size}))
    late = [Observation(x=observations[24].x, pending=True), *observations[25:27]]
    both(lambda bench: bench.observe("a", [msgspec.structs.replace(e, time=None) for e in late]))
    ask(predict)
    ask(Observe("a", [Observation(y=observations[24].y)], seq=24))
    both(lambda bench: bench.put("b", bench.export("a")) and None)
    last = [msgspec.structs.replace(e, time=None) for e in observations[27:]]
    both(lambda bench: bench.observe("b", last))
    ask(Move("a", kind.model if "@" in kind.model else "gaussian"))
    assert ask(Delete("a"))[0] == 204
    assert [status for status, _ in asked].count(200) >= 9
    assert all(status < 500 for status, _ in asked)


@pytest.mark.parametrize("error", [None, NotCompiled("no gcc")])
def test_a_gpu_has_steps_compiled_and_does_without_where_that_fails(caplog, error):
    slab = mock.Mock(device="cuda:0", **{"compile.side_effect": error})
    with caplog.at_level("INFO"):
        compile_step(slab, "gaussian")
    last = caplog.records[-1]
    assert last.levelname == ("WARNING" if error else "INFO")
    assert "gaussian" in last.message
    assert ("no gcc" in last.message) == (error is not None)
    slab.device = "cpu"
    compile_step(slab, "gaussian")
    assert slab.compile.call_count == 1


@pytest.mark.usefixtures("device")
def test_a_worker_starts_and_gives_memory_back(benches):
    """Streams in several chunks, all evicted, and loaded again."""
    bench, _ = benches
    rehearse(bench.worker.client, bench.settings)
    small = bench.settings.model_copy(update={"resident_bytes": 2 << 20})
    bench.worker.engine.settings = small
    names = [n for n in (f"s{i}" for i in range(160)) if bench.partition(n) == 0][:34]
    made = [Configure(n, {"model": "gaussian", "location": [0.0], "scale": [1.0]}) for n in names]
    seen = [Observe(n, [Observation(y=0.3 * i)] * 2) for i, n in enumerate(names)]
    answers = [told(each) for each in [*bench.send(*made), *bench.send(*seen)]]
    assert {status for status, _ in answers} <= {200, 201}
    slab = next(s for s in bench.worker.engine._slabs.values() if s.rows)
    assert len(slab._chunks._chunks) > 1
    bench.worker.engine.settings = bench.settings.model_copy(update={"resident_bytes": 1})
    bench.turn()
    assert not bench.worker.engine.streams
    assert bench.observe(names[7], [1.0])[0]["seq"] == 2
