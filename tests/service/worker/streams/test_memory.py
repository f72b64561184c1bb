"""What a worker holds: in bounds, as counted, and within its container's limit."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
import tracemalloc
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import service.samples
from model_core import artifact
from service import wire
from service.store import keys
from service.wire import Configure, Observation, Observe
from service.worker.streams import memory
from service.worker.streams.slab import Slab
from tests.service.worker.conftest import Bench

MIB = 1 << 20
MODELS = Path(service.samples.__file__).parent / "models"
KNOWN = {"model": "regimes", "location": [0.0], "scale": [1.0]}


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("files", "own", "expected"),
    [
        ({"memory.max": "104857600\n"}, "0::/\n", 100),
        ({"memory.max": "max\n"}, "0::/\n", None),
        ({"memory/memory.limit_in_bytes": "209715200"}, "4:memory:/docker/1\n0::/\n", 200),
        ({"memory/memory.limit_in_bytes": str(2**63 - 4096)}, "4:memory:/\n", None),
        ({"a/b/memory.max": "max", "a/memory.max": "314572800"}, "0::/a/b\n", 300),
        ({"memory/a/memory.limit_in_bytes": "1048576"}, "3:cpu,memory:/a\n", 1),
        ({}, "", None),
    ],
)
def test_the_limit_of_the_container(tmp_path, files, own, expected):
    for name, text in files.items():
        write(tmp_path / name, text)
    write(tmp_path / "own", own)
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found = memory.host_limit(tmp_path, tmp_path / "own")
    assert found == (machine if expected is None else expected * MIB)


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


@pytest.fixture
def regimes():
    return artifact.load(MODELS / "regimes" / "1")


def test_a_slab_grows_without_a_copy_and_shrinks_again(regimes):
    with torch.inference_mode(), Allocated() as allocated:
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
    with torch.inference_mode():
        slab = Slab(regimes, 50, "cpu", chunk_bytes=64 * MIB)
        for count in (1, 15, 17, 40, 70, 150):
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
    with torch.inference_mode():
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


def test_streams_on_the_host_are_counted(make_bench):
    bench = make_bench(partitions=1, idempotency_keep_requests=64)
    names = [f"s{i}" for i in range(60)]
    known = {"location": [0.0], "scale": [1.0]}

    def post(names, count):
        for at in range(count):
            seen = [Observation(y=float(at))] * 5
            posted = [Observe(n, seen, key=f"k{at}", digest="d" * 32) for n in names]
            bench.send(*posted)

    bench.send(*[Configure(name, known) for name in ["warm", *names]])
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
    print(f"{counted / 60:.0f} counted, {grown / 60:.0f} measured, per stream")
    assert 0.8 * grown < counted < 1.2 * grown


# --- a worker under a limit ---------------------------------------------------------------------


@contextlib.contextmanager
def cgroup(limit):
    """A control group of version 1 or 2 with a limit of memory, where this process may make one."""
    for base, name in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        place = memory.CGROUPS / base / f"moca-test-{os.getpid()}"
        try:
            place.mkdir()
            (place / name).write_text(str(limit))
        except OSError:
            with contextlib.suppress(OSError):
                place.rmdir()
            continue
        try:
            yield place
        finally:
            place.rmdir()
        return
    pytest.skip("no control group with a limit of memory can be made here")


def peak(process):
    text = Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in text.splitlines() if "VmHWM" in line)


def send(bench, commands, each=500):
    """Append commands, many in an entry; returns their numbers."""
    numbers = []
    for partition in range(bench.settings.partitions):
        mine = [c for c in commands if bench.partition(c.stream) == partition]
        for i in range(0, len(mine), each):
            numbers += bench.append(*mine[i : i + each])
    return numbers


def answered(bench, numbers, process, within_s=400.0):
    """Statuses of all outcomes, once they are there; the worker must live."""
    end, found, waiting = time.monotonic() + within_s, [], list(numbers)
    while waiting:
        assert process.poll() is None, f"the worker ended: {process.returncode}"
        assert time.monotonic() < end, f"{len(waiting)} of {len(numbers)} without an answer"
        time.sleep(0.5)
        outcomes = [(n, bench.outcome(*n)) for n in waiting]
        found += [each.status for _, each in outcomes if each is not None]
        waiting = [n for n, each in outcomes if each is None]
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("streams", [2100, 6000])
def test_a_worker_outlives_more_streams_than_fit(valkey_url, streams):
    """2 GiB; a stream of `regimes` takes about 260 kB."""
    limit = 2048 * MIB
    bench = Bench(valkey_url, MODELS, partitions=4)
    command = [sys.executable, "-m", "service.commands.main", "worker", "--redis-url", valkey_url]
    command += ["--models-dir", str(MODELS), "--partitions", "4"]
    with cgroup(limit) as group:
        process = subprocess.Popen(
            command,
            preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
        )
        try:
            names = [f"s{i}" for i in range(streams)]
            made = send(bench, [Configure(name, KNOWN) for name in names])
            assert set(answered(bench, made, process)) == {201}
            began = time.monotonic()
            for at in range(3):  # the second and third load what was evicted
                seen = [Observation(y=float(at))]
                posted = send(bench, [Observe(name, seen) for name in names])
                assert set(answered(bench, posted, process)) == {200}
            seqs = [
                wire.decode_head(wire.checked(blob, "head", name.decode())).seq
                for p in range(4)
                for name, blob in bench.client.hgetall(keys.heads(p)).items()
            ]
            assert seqs == [3] * streams
            took_s = time.monotonic() - began
            print(f"{streams} streams: peak {peak(process) / MIB:.0f} MiB, {took_s:.0f} s")
            assert peak(process) < limit
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            finally:
                process.kill()
                process.wait()
                bench.close()
