"""The worker's loop: outcomes, deadlines, memory, long jobs, and a store in trouble."""

import gc
import json
import math
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import redis
import torch

from model_core import compiled
from service import wire
from service.problems import StartupError
from service.settings import Settings
from service.store import keys
from service.store.connection import connect
from service.store.log import START, Commit, Lease
from service.wire import Configure, Observation, Observe, Predict, RunLength
from service.worker import commit
from service.worker import worker as worker_module
from service.worker.commands import dispatch, rerun
from service.worker.commit import Committer, Stages
from service.worker.self_test import check_device
from service.worker.worker import Collector, Leases, share
from tests.service.worker.conftest import INCARNATION
from tests.waiting import Clock, until

HOUR_MS = 3_600_000
KNOWN = {"location": [0.0], "scale": [1.0]}


# --- outcomes -------------------------------------------------------------------------------------


def test_outcomes_are_published_as_they_are_stored_with_their_commit(make_bench):
    bench = make_bench(request_deadline_s=150.0)
    key = keys.results(bench.partition("a"), INCARNATION)
    with connect(bench.settings.redis_url) as client, client.pubsub() as listener:
        listener.ssubscribe(key)
        until(lambda: listener.get_message(timeout=1))
        outcomes = bench.send(Observe("a", [Observation(y=0.0)]), RunLength("a"))
        outcomes += bench.send(RunLength("a"))
        heard = [until(lambda: listener.get_message(timeout=1))["data"] for _ in range(2)]
    stored = bench.client.xrange(key)
    p = bench.partition("a")
    pieces = [(id_.decode(), fields[b"b"]) for id_, fields in stored]
    assert heard == [f"{p} {id_} {len(blob)}\n".encode() + blob for id_, blob in pieces]
    assert [id_ for id_, _ in pieces] == ["1-1", "1-2"]
    blobs = [wire.checked(blob, "results", INCARNATION, id_) for id_, blob in pieces]
    own = [outcome.stored for outcome in outcomes]
    assert list(map(wire.decode_results, blobs)) == [own[:2], own[2:]]
    assert 290_000 < bench.client.pttl(key) <= 300_000


def test_outcomes_are_kept_up_to_a_size_and_those_of_the_last_commit_in_any_case(make_bench):
    bench = make_bench(max_results_bytes=2000)
    key = keys.results(bench.partition("a"), INCARNATION)
    many = [Observation(y=0.0) for _ in range(100)]
    for _ in range(20):
        bench.send(RunLength("a") if bench.numbers else Observe("a", many[:1]))
    sizes = [len(fields[b"b"]) for _, fields in bench.client.xrange(key)]
    assert 1 < len(sizes) < 20
    assert sum(sizes) < 2300
    (long,) = bench.send(Observe("a", many))
    assert [len(fields[b"b"]) > 2000 for _, fields in bench.client.xrange(key)] == [True]
    assert bench.outcome(bench.partition("a"), long.number) == long


def test_a_long_outcome_has_time_to_be_read():
    """Its message has the id alone: the commits after it must not drop it at once."""
    with pytest.raises(ValueError, match="max_results_bytes"):
        Settings(max_results_bytes=1 << 20)


def test_outcomes_of_an_earlier_lease_are_kept_as_long(make_bench, monkeypatch):
    now_s = 1000.0
    monkeypatch.setattr(commit.time, "monotonic", lambda: now_s)
    bench = make_bench(request_deadline_s=150.0)
    key = keys.results(bench.partition("a"), INCARNATION)

    def ids():
        return [id_ for id_, _ in bench.client.xrange(key)]

    bench.observe("a", [1.0])
    bench.crash()
    bench.send(RunLength("a"))
    assert ids() == [b"1-1", b"2-1"]
    now_s += 299
    bench.send(RunLength("a"))
    assert ids() == [b"1-1", b"2-1", b"2-2"]
    now_s += 2
    bench.send(RunLength("a"))
    assert ids() == [b"2-2", b"2-3"]


def test_a_silent_process_keeps_its_number_alone(monkeypatch):
    """One that ended would leave its pieces behind for as long as the lease lasts."""
    now_s = 1000.0
    monkeypatch.setattr(commit.time, "monotonic", lambda: now_s)
    answers = commit.PartitionCommits(Lease(0, "t", 7, START, 0, 0, False), 60.0, 1 << 20, 0)

    def ids(incarnation):
        (effect,) = answers.effects({incarnation: [wire.Outcome(1, 200, [])]})
        return effect[3:5]  # the oldest that is kept, and its own

    for _ in range(3):
        ids("silent")
    now_s += 61
    assert ids("other") == ("7-1", "7-1")
    assert not answers._processes["silent"].pieces
    assert ids("silent") == ("7-4", "7-4")


def test_pieces_of_outcomes_are_as_long_as_need_be(monkeypatch):
    monkeypatch.setattr(commit, "PIECE_BYTES", 100)
    outcomes = [wire.Outcome(n, 200, [b"x" * n]) for n in (40, 40, 30, 200, 20, 20, 10, 90)]
    pieces = [wire.decode_results(body) for body in commit._bodies(outcomes)]
    assert [outcome for piece in pieces for outcome in piece] == outcomes
    encoded = [[len(wire.encode(outcome)) for outcome in piece] for piece in pieces]
    assert all(sum(piece) <= 100 or len(piece) == 1 for piece in encoded)
    following = [piece[0] for piece in encoded[1:]]
    assert all(sum(one) + then > 100 for one, then in zip(encoded, following, strict=False))


def test_groups_are_in_order_and_as_large_as_may_be():
    sizes = [0, 4, 4, 3, 20, 0, 2, 8, 1]
    groups = wire.grouped(sizes, int, 10)
    assert groups == [[0, 4, 4], [3], [20], [0, 2, 8], [1]]
    assert wire.grouped([], int, 10) == []


def test_order_is_the_logs_whatever_the_clock_of_an_api(bench):
    for at, jump_ms in enumerate((0, -24 * HOUR_MS, 48 * HOUR_MS, -24 * HOUR_MS)):
        bench.now_ms += jump_ms
        for again in (False, True):
            keyed = Observe("a", [Observation(y=float(at))], key=f"k{at}", digest="d")
            answer = bench.ask(keyed)
            assert (answer["seq"], answer["duplicate"]) == (at, again)
    bench.crash()
    repeated = bench.ask(Observe("a", [Observation(y=1.0)], key="k1", digest="d"))
    assert (repeated["seq"], repeated["duplicate"]) == (1, True)
    assert [record.y for record in bench.records("a")] == [0.0, 1.0, 2.0, 3.0]


# --- what does not fit ----------------------------------------------------------------------------


def test_extremes(make_bench):
    """Inputs at the edge of what is accepted."""
    bench = make_bench(partitions=1)
    extremes = [
        Observation(y=0.5, elapsed=1.7e308),
        Observation(y=0.5, elapsed=5e-324),
        Observation(y=0.5, changepoint=1.0),
        Observation(y=0.5, changepoint=0.0),
        Observation(y=None, changepoint=1.0),
        Observation(y=1e100),
        Observation(y=-1e100),
        Observation(y=5e-324),
    ]
    calm = [Observation(y=y) for y in (0.1, -0.3)]
    for i, seen in enumerate(extremes):
        stream, hazard = f"s{i}", [1e-300, 0.01, 1 - 1e-16][i % 3]
        bench.ask(Configure(stream, {**KNOWN, "hazard": hazard, "max_hypotheses": 4}), status=201)
        answers = bench.observe(stream, [seen, *calm, seen, seen, *calm, seen])
        for answer in answers:
            for name in ("changed", "recent_change"):
                assert 0 <= answer[f"{name}_probability"] <= 1
            assert 0 <= answer["run_length"]["pruned_mass"] <= 1
            assert answer["log_score"] is None or math.isfinite(answer["log_score"])
        belief = bench.ask(RunLength(stream))
        assert sum(row["probability"] for row in belief["belief"]) == pytest.approx(1)
        elapsed = 1.0 if seen.elapsed is None else seen.elapsed
        bench.ask(Predict(stream, elapsed=elapsed, samples=3, components=True))
    bench.crash()
    for i in range(len(extremes)):
        bench.observe(f"s{i}", calm)
    bench.ask(Configure("counts", {"model": "poisson", "location": [1e11]}), status=201)
    answers = bench.observe("counts", [1e12, 0.0, 1e11, None])
    assert answers[-1]["predictive"]["mean"][0] > 1e9


def test_a_full_store_is_worked_off(make_bench):
    bench = make_bench(checkpoint_every=8)
    bench.observe("a", [float(i % 5) for i in range(30)])
    numbers = []
    for at in range(6):
        seen = [Observation(y=float(at))] * 9
        numbers += bench.append(Observe("a", seen, key=f"k{at}", digest="d"))
    bench.client.config_set("maxmemory", 1)
    with pytest.raises(redis.ResponseError, match="OOM|maxmemory"):
        bench.append(Observe("a", [Observation(y=1.0)]))
    assert [outcome.status for outcome in bench.outcomes(numbers)] == [200] * 6
    assert bench.head("a").seq == 84
    assert bench.head("a").checkpoint > 70
    assert [bench.client.xlen(keys.log(p)) for p in range(2)] == [0, 0]
    bench.stop()
    assert bench.head("a").checkpoint == 84


def test_a_backlog_of_one_stream_is_committed_piece_by_piece(make_bench):
    """However much waits, a turn is short and the loop ticks: leases are kept and answers come."""
    bench = make_bench(partitions=1)
    bench.turn()
    ticks = []
    bench.worker.engine.tick = lambda: ticks.append(1)
    numbers = [n for _ in range(8) for n in bench.append(Observe("a", [Observation(y=1.0)] * 32))]
    numbers += bench.append(Observe("b", [Observation(y=1.0)]))
    turns = 0
    while bench.outcome(*numbers[-1]) is None:
        bench.turn()
        turns += 1
        assert int(bench.client.hget(keys.meta(0), "done") or 0) <= 128 * turns
    assert turns >= 3
    assert len(ticks) >= 257
    assert bench.head("a").seq == 256


# --- long jobs ------------------------------------------------------------------------------------

LABELS = [0.1 * (i % 7) + (4.0 if i >= 100 else 0.0) for i in range(130)]


@pytest.fixture
def names(bench, monkeypatch):
    """A stream with a history, and one of another partition; a slice is one tick, and short."""
    monkeypatch.setattr(worker_module, "SLICE_S", 0.0)
    monkeypatch.setattr(rerun, "SERIES", rerun.TICK)
    long = "long"
    other = next(n for n in map(str, range(99)) if bench.partition(n) != bench.partition(long))
    for name in (long, other):
        bench.ask(Configure(name, {**KNOWN, "hazard": 0.02}), 201)
    bench.observe(long, LABELS)
    return long, other


def turns_until(bench, numbers):
    for turn in range(500):
        (found,) = (bench.outcome(*number) for number in numbers)
        if found is not None:
            return turn, found
        bench.turn()
    raise AssertionError("no outcome")


def test_others_are_answered_while_a_job_goes_on(bench, names):
    long, other = names
    asked = bench.append(wire.WhatIf(long, {"hazard": 0.1}, False))
    for i in range(4):
        observed = bench.append(Observe(other, [Observation(float(i))]))
        turns, _ = turns_until(bench, observed)
        assert turns <= 3
        assert bench.outcome(*asked[0]) is None
    _, outcome = turns_until(bench, asked)
    assert outcome.status == 200
    assert json.loads(outcome.body[0])["compared"] == len(LABELS)


def test_a_partition_keeps_its_order_behind_a_job(bench, names):
    long, _ = names
    moved = bench.append(wire.Move(long, "averaged"))
    observed = bench.append(Observe(long, [Observation(4.0)]))
    bench.turn()
    assert bench.outcome(*observed[0]) is None
    _, first = turns_until(bench, moved)
    _, second = turns_until(bench, observed)
    assert (first.status, second.status) == (200, 200)
    answer = json.loads(second.body[0])
    assert (answer["seq"], answer["model"]) == (len(LABELS), "averaged")


@pytest.mark.parametrize("way", ["crash", "release", "evict"])
def test_a_job_that_is_broken_off_is_done_by_the_next_owner(bench, names, way):
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
    elif way == "evict":  # its stream stays
        worker.engine.settings = worker.settings.model_copy(update={"resident_bytes": 1})
        bench.turn()
        assert (bench.partition(long), long) in worker.engine.streams
    else:
        getattr(bench, way)()
    _, outcome = turns_until(bench, moved)
    assert outcome.status == 200
    assert json.loads(outcome.body[0])["model"] == "averaged"
    assert bench.observe(long, [4.0])[0]["seq"] == len(LABELS)


def test_a_fault_in_a_job_is_its_partitions_alone(bench, names, monkeypatch):
    long, other = names

    monkeypatch.setitem(dispatch._RUN, wire.WhatIf, Mock(side_effect=ValueError("broken")))
    asked = bench.append(wire.WhatIf(long, {}, False))
    for _ in range(3):
        bench.turn()
    _, outcome = turns_until(bench, bench.append(Observe(other, [Observation(1.0)])))
    assert outcome.status == 200
    _, outcome = turns_until(bench, asked)  # set aside in the end
    assert outcome.status == 500


# --- before and beside the loop -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("default", "kind"), [("averaged", "averaged"), ("poisson", "poisson"), ("gone", "gaussian")]
)
def test_the_kernel_of_the_default_model_is_ready_before_the_first_lease(
    make_bench, monkeypatch, default, kind
):
    worker = make_bench(default_model=default).worker
    done, kernel_of, start = [], compiled.kernel_of, worker.leases.start

    def loaded(model):
        done.append(model.kind)
        return kernel_of(model)

    def started():
        done.append("leases")
        start()

    monkeypatch.setattr(compiled, "kernel_of", loaded)
    monkeypatch.setattr(worker.leases, "start", started)
    worker.stop()
    worker.run()
    assert done == [kind, "leases"]


def test_a_worker_gives_signs_of_life_while_a_kernel_is_compiled(make_bench, monkeypatch):
    bench, ticks = make_bench(lease_ttl_ms=200), []
    bench.worker.engine.tick = lambda: ticks.append(1)

    def compile_kernel(model):
        before = len(ticks)
        until(lambda: len(ticks) > before + 2)

    monkeypatch.setattr(compiled, "kernel_of", compile_kernel)
    monkeypatch.setattr(bench.worker.leases, "lost", set)  # whatever the test's own pace
    assert bench.observe("a", [1.0])[0]["seq"] == 0


def test_a_device_that_is_not_there_is_refused():
    check_device("cpu")
    for device in ("gpu", f"cuda:{torch.cuda.device_count()}"):
        with pytest.raises(StartupError):
            check_device(device)


def test_a_store_that_is_away_is_logged_when_partitions_are_lost_and_once_a_minute(
    bench, monkeypatch, caplog
):
    bench.observe("a", [0.0])
    clock = Clock(time.monotonic())
    monkeypatch.setattr(worker_module.time, "monotonic", clock)
    monkeypatch.setattr(worker_module.time, "sleep", lambda _: None)
    away = Mock(side_effect=redis.ConnectionError("No space left"))
    monkeypatch.setattr(bench.worker, "_tick", away)
    monkeypatch.setattr(bench.worker.log, "give_back", away)
    caplog.set_level("INFO")
    for _ in range(20):
        bench.worker._turn()
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "restarting: ConnectionError: No space left",
        "leases are released later, or expire: No space left",
    ]
    clock.advance(61.0)
    bench.worker._turn()
    bench.worker._turn()
    assert [record.getMessage() for record in caplog.records][2:] == lines[:1]


def test_a_partition_whose_commit_is_refused_is_lost_and_its_commands_are_applied_again(
    bench, monkeypatch, caplog
):
    bench.observe("a", [0.0])
    begin = bench.worker.log.begin_commit
    invalid = Mock(side_effect=[lambda: ["INVALID: on purpose"]])
    monkeypatch.setattr(bench.worker.log, "begin_commit", invalid)
    numbers = bench.append(Observe("a", [Observation(y=1.0)]))
    until(lambda: bench.worker._turn() or invalid.called)
    monkeypatch.setattr(bench.worker.log, "begin_commit", begin)
    bench.worker._turn()
    p = bench.partition("a")
    assert f"partitions [{p}] failed; retrying" in caplog.text
    assert p not in bench.worker.offsets
    (outcome,) = bench.outcomes(numbers)
    assert json.loads(outcome.body[0])["seq"] == 1


def test_workers_that_lost_the_store_together_are_counted_until_they_are_back(bench, monkeypatch):
    worker, clock = bench.worker, Clock()
    monkeypatch.setattr(worker_module, "time", SimpleNamespace(monotonic=clock, time=time.time))
    living = Mock(return_value=["w1", "w2", "w3"])
    monkeypatch.setattr(worker.log, "heartbeat", living)
    assert worker._count_workers() == 3
    worker._hurry()
    living.return_value = ["w1"]
    assert worker._count_workers() == 3
    living.return_value = ["w1", "w2", "w3", "w4"]
    assert worker._count_workers() == 4
    living.return_value = ["w1"]
    clock.advance(worker_module.RETURN_S)
    assert worker._count_workers() == 1


def test_a_fair_share_of_partitions():
    shares = [share(*each) for each in ((6, 1), (6, 2), (6, 4), (7, 2), (2, 5), (6, 0))]
    assert shares == [6, 3, 2, 4, 1, 6]


def test_a_lease_that_is_not_renewed_is_lost_until_it_is_held_again():
    refusing = SimpleNamespace(renew=lambda leases: [False for _ in leases])
    leases = Leases(lambda: refusing, 60_000)
    first = Lease(3, "w/1", 1, START, 0, 0, False)
    leases.hold(first)
    leases._look(refusing)
    assert leases.lost() == {3}
    assert leases.lost() == set()
    leases._look(refusing)
    leases.drop(3)
    leases.hold(first._replace(token="w/2", epoch=2))
    assert leases.lost() == set()
    leases._look(refusing)
    leases.drop(3)
    assert leases.lost() == set()


def test_a_lease_is_not_lost_by_the_refusal_of_the_one_before_it():
    def renew(held):
        leases.hold(first._replace(token="w/2", epoch=2))  # meanwhile, by the worker's loop
        return [False for _ in held]

    refusing = SimpleNamespace(renew=renew)
    leases = Leases(lambda: refusing, 60_000)
    first = Lease(3, "w/1", 1, START, 0, 0, False)
    leases.hold(first)
    leases._look(refusing)
    assert leases.lost() == set()


def test_a_loop_that_hangs_loses_its_leases_and_its_trial_is_blamed_but_not_for_a_pause(
    monkeypatch,
):
    clock = Clock()
    monkeypatch.setattr(worker_module, "time", SimpleNamespace(monotonic=clock))
    log = Mock(renew=Mock(side_effect=lambda held: [True for _ in held]))
    lease = Lease(3, "w/1", 1, START, 0, 0, False)
    leases = Leases(lambda: log, 4000)
    leases.hold(lease)
    leases.trial = lease

    def look(times):
        for _ in range(times):
            clock.advance(1.0)
            leases._look(log)

    look(4)
    assert log.renew.call_count == 4
    look(2)
    clock.advance(60.0)  # the whole process paused
    look(6)
    assert log.renew.call_count == 4
    log.release.assert_not_called()
    look(2)
    log.release.assert_called_once_with(lease, clean=False, verdict="failed")
    leases.tick()
    look(4)
    assert log.renew.call_count == 8


def test_a_commit_whose_sending_fails_counts_as_under_way_until_it_is_abandoned():
    failing = Mock(begin_commit=Mock(side_effect=redis.ConnectionError("gone")))
    committer = Committer(failing)
    with pytest.raises(redis.ConnectionError):
        committer.submit([Commit(3, "w/1", START, START, 0, [])], Stages([], None))
    assert committer.partitions == {3}
    assert committer.abandon() == {3}
    assert committer.partitions == set()


# --- garbage: new objects are collected, and what stays is frozen ---------------------------------


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
    monkeypatch.setattr(worker_module, "time", SimpleNamespace(monotonic=clock))
    return clock


@pytest.fixture
def collector(clock):
    threshold = gc.get_threshold()
    gc.collect()
    Knot.gone = 0
    yield Collector()
    gc.unfreeze()
    gc.freeze()  # or all that was imported would be looked at again, by every test after this one
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
