"""What takes long is done in slices: others go on, and what is broken off has not happened."""

import json

import pytest

from service import wire
from service.worker import background_jobs
from service.worker.commands import rerun_commands

SETTINGS = {"location": [0.0], "scale": [1.0], "hazard": 0.02}
LABELS = [0.1 * (i % 7) + (4.0 if i >= 150 else 0.0) for i in range(300)]


@pytest.fixture
def names(bench, monkeypatch):
    """A stream with a history, and one of another partition; a slice is one tick."""
    monkeypatch.setattr(background_jobs.Job, "advance", background_jobs.Job.step)
    long = "long"
    other = next(n for n in map(str, range(99)) if bench.partition(n) != bench.partition(long))
    for name in (long, other):
        bench.ask(wire.Configure(name, SETTINGS), 201)
    bench.observe(long, LABELS)
    return long, other


def _turns_until(bench, numbers):
    for turn in range(500):
        (found,) = (bench.outcome(*number) for number in numbers)
        if found is not None:
            return turn, found
        bench.turn()
    raise AssertionError("no outcome")


def test_others_are_answered_meanwhile(bench, names):
    long, other = names
    asked = bench.append(wire.WhatIf(long, {"hazard": 0.1}, False))
    for i in range(5):
        observed = bench.append(wire.Observe(other, [wire.Observation(float(i))]))
        turns, _ = _turns_until(bench, observed)
        assert turns <= 3
        assert bench.outcome(*asked[0]) is None
    turns, outcome = _turns_until(bench, asked)
    assert turns >= len(LABELS) // 64
    assert outcome.status == 200
    assert json.loads(outcome.body[0])["compared"] == len(LABELS)


def test_its_own_partition_keeps_its_order(bench, names):
    long, _ = names
    moved = bench.append(wire.Move(long, "averaged"))
    observed = bench.append(wire.Observe(long, [wire.Observation(4.0)]))
    bench.turn()
    assert bench.outcome(*observed[0]) is None
    _, first = _turns_until(bench, moved)
    _, second = _turns_until(bench, observed)
    assert (first.status, second.status) == (200, 200)
    answer = json.loads(second.body[0])
    assert (answer["seq"], answer["model"]) == (len(LABELS), "averaged@2")


@pytest.mark.parametrize("way", ["crash", "stop", "release"])
def test_what_is_broken_off_is_done_by_the_next_owner(bench, names, way):
    long, _ = names
    moved = bench.append(wire.Move(long, "averaged"))
    for _ in range(4):
        bench.turn()
    worker = bench.worker
    assert bench.partition(long) in worker._jobs
    rows = sum(not slab.empty for slab in worker.engine._slabs.values())
    assert rows == 2  # the stream's, and that of its rerun
    if way == "release":
        worker._release(bench.partition(long))
        assert not worker._jobs
        worker.engine.drop_empty_slabs()
        assert len(worker.engine._slabs) <= 1
    else:
        getattr(bench, way)()
    _, outcome = _turns_until(bench, moved)
    assert outcome.status == 200
    assert json.loads(outcome.body[0])["model"] == "averaged@2"
    answer = bench.observe(long, [4.0])
    assert answer[0]["seq"] == len(LABELS)


def test_a_stream_is_not_evicted_under_its_job(bench, names):
    long, _ = names
    worker = bench.worker
    moved = bench.append(wire.Move(long, "averaged"))
    for _ in range(4):
        bench.turn()
    worker.engine.settings = worker.settings.model_copy(update={"resident_bytes": 1})
    for _ in range(3):
        bench.turn()
        assert (bench.partition(long), long) in worker.engine.streams
    _, outcome = _turns_until(bench, moved)
    assert outcome.status == 200


def test_a_fault_in_a_job_is_its_partitions_alone(bench, names, monkeypatch):
    long, other = names

    def fails(*_, **__):
        raise ValueError("broken")

    monkeypatch.setattr(rerun_commands, "what_if", fails)
    monkeypatch.setattr("service.worker.worker.BACKOFF_S", 0)
    asked = bench.append(wire.WhatIf(long, {}, False))
    for _ in range(3):
        bench.turn()
    observed = bench.append(wire.Observe(other, [wire.Observation(1.0)]))
    _, outcome = _turns_until(bench, observed)
    assert outcome.status == 200
    _, outcome = _turns_until(bench, asked)  # set aside in the end
    assert outcome.status == 500
