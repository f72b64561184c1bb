"""Rows of a slab: stepped by a kernel as eagerly, held in chunks that grow and shrink."""

import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import service.samples
from model_core import artifact, kernel
from model_core.upm.builtin import Options, build
from service.wire import Configure, Observation, Record
from service.worker.streams.answers import Place, Summarised
from service.worker.streams.slab import Slab
from tests.service.worker.conftest import close_to

MIB = 1 << 20
SAMPLES = Path(service.samples.__file__).parent / "models"
STREAMS = 20


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


def slab_of():
    slab = Slab(build("averaged", Options()), 10, "cpu", chunk_bytes=1)  # a row to a chunk, nearly
    return slab, slab.begin([[2.0]] * STREAMS, [[1.5]] * STREAMS)


def beside():
    """Two slabs alike, the second with its kernel."""
    eager, compiled = slab_of(), slab_of()
    compiled[0].compile()
    compiled[0]._compiled.compile()  # waits for it
    return eager, compiled


def records(y):
    return [Record(0, y + i, None, None, 1.0, None, 0.01, 0.01) for i in range(STREAMS)]


# --- the kernel ---------------------------------------------------------------------------------


def test_what_a_kernel_does_not_serve_is_stepped_eagerly():
    """A row that names details; a label too far off, which both refuse."""
    (eager, rows), (compiled, own) = beside()
    told = records(1.0)
    told[3].y = 1e200
    detailed = [i % 4 == 0 for i in range(STREAMS)]
    step = compiled.step(own, told, [0] * STREAMS, None, detailed)
    for i, (place, wanted) in enumerate(zip(step.places, detailed, strict=True)):
        assert isinstance(place, Place if wanted or i == 3 else Summarised)
    for each in (step, eager.step(rows, told, [0] * STREAMS)):
        assert [readout.ok for readout in each.readouts] == [i != 3 for i in range(STREAMS)]
    assert int(compiled.state(own[3]).seq) == 0
    assert int(compiled.state(own[4]).seq) == 1


def test_a_slab_steps_eagerly_until_its_kernel_is_ready():
    slab, rows = slab_of()
    told = records(1.0)
    kinds = [type(slab.step(rows, told, [0] * STREAMS).places[0])]
    slab.compile()
    slab._compiled.compile()
    kinds.append(type(slab.step(rows, told, [0] * STREAMS).places[0]))
    with kernel.eager_only():
        kinds.append(type(slab.step(rows, told, [0] * STREAMS).places[0]))
        assert not slab.in_series
    assert kinds == [Place, Summarised, Place]


def test_a_replayed_observation_that_breaks_the_step_counts_as_missing():
    (eager, rows), (compiled, own) = beside()
    told = records(1.0)
    told[3].y = 1e200
    for slab, at in ((eager, rows), (compiled, own)):
        readouts = slab.replay(at, told, [0] * STREAMS)
        assert all(readout.ok for readout in readouts)
        assert np.isnan(readouts[3].log_score)
        assert [int(slab.state(row).seq) for row in at] == [1] * STREAMS


@pytest.mark.parametrize("model", ["averaged", "pump"])
def test_a_worker_answers_as_without_kernels(make_bench, alpaca, model):
    """One by one, in lists, with details, with beliefs, and stepped again after a crash."""
    rng = np.random.default_rng(9)
    x = [rng.normal(size=2).tolist() if model == "pump" else None for _ in range(50)]
    y = rng.normal(size=(50, 2)).tolist() if model == "pump" else rng.normal(size=50).tolist()
    coming = [Observation(y=None if i % 9 == 5 else y[i], x=x[i]) for i in range(50)]
    given = {} if model == "pump" else {"location": [4.0], "scale": [2.0]}
    answers = []
    for compiles, part in ((False, 7), (True, 1), (True, 7)):
        bench = make_bench(db=len(answers), partitions=1, compiles=compiles)
        bench.ask(Configure("a", {"model": model, **given}), status=201)
        own = bench.observe("a", coming[:20], part=part)
        (slab,) = bench.worker.engine._slabs.values()
        assert slab.in_series == compiles
        bench.crash()
        own += bench.observe("a", coming[20:30], part=part)
        own += bench.observe("a", coming[30:40], part=part, components=True)
        own += bench.observe("a", coming[40:], part=part, belief=True)
        answers.append(own)
        assert [record.seq for record in bench.records("a")] == list(range(50))
    for found in answers[1:]:
        close_to(found, answers[0], 1e-7)


# --- memory -------------------------------------------------------------------------------------


class Allocated(TorchDispatchMode):
    """Bytes of the tensors that are made and live, and their peak."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self._known = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for each in found if isinstance(found, list | tuple) else [found]:
            if isinstance(each, torch.Tensor):
                self._count(each.untyped_storage())
        return found

    def _count(self, storage):
        pointer, size = storage.data_ptr(), storage.nbytes()
        if size and pointer not in self._known:
            self._known.add(pointer)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._gone, pointer, size)

    def _gone(self, pointer, size):
        self._known.discard(pointer)
        self.now -= size


@pytest.fixture(scope="module")
def regimes():
    return artifact.load(SAMPLES / "regimes" / "1")


def test_a_slab_grows_without_a_copy_and_shrinks_again(regimes):
    with Allocated() as allocated:
        slab = Slab(regimes, 50, "cpu", chunk_bytes=4 * MIB)
        rows = [slab.begin([[0.0]], [[1.0]])[0] for _ in range(200)]
        state = slab.state(rows[0])
        assert slab.nbytes < 1.1 * 200 * slab.row_bytes
        assert 0.8 * allocated.now < slab.nbytes < 1.2 * allocated.now
        assert allocated.peak < 1.3 * slab.nbytes
        kept = rows[::4]
        marked = {row: float(i) for i, row in enumerate(kept)}
        for row, mark in marked.items():
            slab.put(row, state._replace(totals=state.totals + mark))
        for row in set(rows) - set(kept):
            slab.remove(row)
        assert slab.trim() > 0.7 * 200 * slab.row_bytes
        assert slab.nbytes < 1.4 * len(kept) * slab.row_bytes
        assert allocated.now < 1.3 * slab.nbytes
        for row, mark in marked.items():  # each is still where its number says
            assert slab.state(row).totals[0, 0] == mark
        for row in kept:
            slab.remove(row)
        slab.trim()
        assert (slab.nbytes, slab.empty) == (0, True)


def test_rows_stay_where_they_are_while_a_slab_grows(regimes):
    """As the worker looks at it meanwhile: what was taken for rows to come is not given back."""
    slab = Slab(regimes, 50, "cpu", chunk_bytes=64 * MIB)
    for count in (1, 15, 17, 40):
        slab.begin([[0.0]] * count, [[1.0]] * count)
        held, places = slab.nbytes, dict(slab._chunks._places)
        assert slab.trim(eager=False) == 0
        assert slab.nbytes == held
        assert slab._chunks._places == places
    rows = sorted(slab._chunks._places)
    for row in rows[5:]:
        slab.remove(row)
    assert slab.trim(eager=False) > 0
    assert slab.trim() > 0
    for row in rows[:5]:
        slab.remove(row)
    slab.trim(eager=False)
    assert slab.nbytes == 0


def test_streams_begun_together_are_as_those_begun_alone(regimes):
    slab = Slab(regimes, 20, "cpu", chunk_bytes=4 * MIB)
    locations, scales = [[0.5], [-2.0], [7.0]], [[1.0], [3.0], [0.25]]
    rows = slab.begin(locations, scales)
    for row, location, scale in zip(rows, locations, scales, strict=True):
        (alone,) = slab.begin([location], [scale])
        for mine, other in zip(slab.state(row)[1:-1], slab.state(alone)[1:-1], strict=True):
            assert torch.equal(mine, other)
        for mine, other in zip(slab.state(row).stats, slab.state(alone).stats, strict=True):
            assert torch.equal(mine, other)
        assert torch.equal(slab.row_prior(row).location, slab.row_prior(alone).location)
        assert np.array_equal(slab.ranks(row), slab.ranks(alone))
