"""A command that stops its worker is set aside alone; faults of the machine set nothing aside."""

import json
import multiprocessing
import os
import signal
import time
from collections import Counter

import pytest
import redis
import torch

from model_core.upm.conjugate import Gaussian
from service import wire
from service.redis import keys
from service.wire import Configure, Observation, Observe, RunLength
from service.worker import engine as engine_module
from service.worker import loop
from service.worker.loop import Worker

POISON = 13.0


class Poisonous(Gaussian):
    """A Gaussian that raises, or worse, on one label."""

    calls = Counter()

    def update(self, stats, phi, y, weight):
        if (y == POISON).any():
            self.calls["poison"] += 1
            raise ValueError("poison")
        return super().update(stats, phi, y, weight)


@pytest.fixture
def poisonous(monkeypatch):
    monkeypatch.setattr(Poisonous, "calls", Counter())
    monkeypatch.setitem(engine_module.Catalogue.__init__.__globals__["BUILTIN"], "gaussian",
                        lambda y_dim: Poisonous(y_dim=y_dim))  # fmt: skip
    return Poisonous


def one(stream, y):
    return Observe(stream, [Observation(y=y)])


def known(bench, *streams):
    for stream in streams:
        bench.ask(Configure(stream, {"location": [0.0], "scale": [1.0]}), status=201)


def test_one_command_is_set_aside_and_everything_else_is_served(make_bench, poisonous):
    bench = make_bench(partitions=3)
    streams = [f"s{i}" for i in range(6)]
    known(bench, *streams)
    numbers, commands = [], []
    for i, stream in enumerate(streams * 2):
        command = one(stream, POISON if i == 4 else float(i))
        commands.append(command)
        numbers += bench.append(command, RunLength(stream))
    outcomes = bench.outcomes(numbers)[::2]
    assert [outcome.status for outcome in outcomes] == [200] * 4 + [500] + [200] * 7
    answer = json.loads(outcomes[4].body[0])
    assert answer["type"].endswith("quarantined")
    assert answer["applied"] == 0
    seqs = Counter(stream for i, stream in enumerate(streams * 2) if i != 4)
    assert {stream: bench.head(stream).seq for stream in streams} == dict(seqs)
    # It is kept aside whole, and once.
    kept = [blob for s in streams[:3] for blob in bench.quarantine(s).values()]
    kept = [blob for p in range(3) for blob in bench.client.hvals(keys.quarantine(p))]
    (blob,) = kept
    assert wire.msgspec.msgpack.decode(blob, type=wire.Envelope).command == commands[4]
    for p in range(3):
        counts = bench.client.hmget(keys.meta(p), ["in", "done", "attempts"])
        assert counts[0] == counts[1]
        assert counts[2] == b"0"
        assert bench.client.xlen(keys.log(p)) == 0
    assert poisonous.calls["poison"] <= 7


def test_several_poisons_in_a_row(make_bench, poisonous):
    bench = make_bench(partitions=1)
    known(bench, "a", "b")
    labels = [1.0, POISON, POISON, 2.0, POISON]
    outcomes = bench.send(*(one("a", y) for y in labels), one("b", 1.0))
    assert [outcome.status for outcome in outcomes] == [200, 500, 500, 200, 500, 200]
    assert [record.y for record in bench.records("a")] == [1.0, 2.0]
    assert len(bench.quarantine("a")) == 3


def test_a_list_with_poison_in_it_is_not_applied_at_all(make_bench, poisonous):
    bench = make_bench(partitions=1)
    known(bench, "a")
    bench.observe("a", [0.5])
    (outcome,) = bench.send(Observe("a", [Observation(y=v) for v in (1.0, POISON, 2.0)]))
    assert outcome.status == 500
    assert bench.head("a").seq == 1


def test_the_attempts_outlive_the_worker(make_bench, poisonous):
    """Each attempt may as well kill its process: the next one goes on counting."""
    bench = make_bench(partitions=1)
    known(bench, "a", "b")
    numbers = [*bench.append(one("a", POISON)), *bench.append(one("b", 1.0))]

    class Killed(BaseException):
        pass

    def die(*_, **__):
        raise Killed

    lives = 0
    while bench.outcome(*numbers[0]) is None:
        bench.worker._lose = die
        try:
            bench.turn()
        except Killed:
            lives += 1
            bench.crash()
        assert lives < 8
    assert lives == 4  # the first had its lease before anything waited
    poisoned, served = bench.outcomes(numbers)
    assert (poisoned.status, served.status) == (500, 200)


@pytest.mark.parametrize("fault", [redis.ConnectionError("gone"), torch.OutOfMemoryError("full")])
def test_faults_of_the_machine_set_nothing_aside(bench, monkeypatch, fault):
    bench.observe("a", [1.0])
    numbers = bench.append(one("a", 2.0))
    with monkeypatch.context() as patch:
        patch.setattr(engine_module.Engine, "checkpoint_due", _raising(fault))
        for _ in range(12):
            bench.turn()
    (outcome,) = bench.outcomes(numbers)
    assert outcome.status == 200
    assert bench.head("a").seq == 2
    assert not bench.quarantine("a")


def _raising(error):
    def fail(*_):
        raise error

    return fail


def test_a_commit_that_can_never_succeed(make_bench):
    bench = make_bench(partitions=1)
    for stream in ("a", "b", "c"):
        bench.observe(stream, [1.0])
    commit = bench.worker.log.commit

    def refuse(commits):
        written = {effect[1] for each in commits for effect in each.effects}
        return ["INVALID: why"] if keys.tail(0, "b") in written else commit(commits)

    bench.worker.log.commit = refuse
    outcomes = bench.send(one("a", 2.0), one("b", 2.0), one("c", 2.0))
    assert [outcome.status for outcome in outcomes] == [200, 500, 200]
    assert [bench.head(s).seq for s in ("a", "b", "c")] == [2, 1, 2]
    assert len(bench.quarantine("b")) == 1


@pytest.mark.parametrize("key", [keys.tail, keys.checkpoint, keys.idempotency])
def test_a_key_of_a_wrong_type_hurts_its_stream_alone(make_bench, key):
    bench = make_bench(partitions=1)
    for stream in ("a", "b", "c"):
        bench.observe(stream, [1.0])
    bench.crash()
    bench.client.delete(key(0, "b"))
    bench.client.set(key(0, "b"), "not a hash")
    outcomes = bench.send(one("a", 2.0), one("b", 2.0), one("c", 2.0))
    assert [outcome.status for outcome in outcomes] == [200, 500, 200]
    assert json.loads(outcomes[1].body[0])["type"].endswith("corrupt-state")
    if key is not keys.idempotency:  # which outlives its stream
        assert bench.send(wire.Delete("b"))[0].status == 204
        assert bench.observe("b", [1.0])[0]["seq"] == 0


@pytest.mark.parametrize("payload", [b"", b"\xc1\xc1", wire.encode(wire.Batch("x", [])), b"\x92"])
def test_an_entry_that_cannot_be_read_is_set_aside(make_bench, payload):
    bench = make_bench(partitions=1)
    first = bench.append(one("a", 1.0))
    bench.client.xadd(keys.log(0), {"b": payload})
    bench.client.hincrby(keys.meta(0), "in", 1)
    numbers = [*first, *bench.append(one("a", 2.0))]
    assert [outcome.status for outcome in bench.outcomes(numbers)] == [200, 200]
    assert list(bench.quarantine("a").values()) == [payload]
    assert bench.client.xlen(keys.log(0)) == 0
    bench.client.xadd(keys.log(0), {"b": payload})
    bench.turn()
    bench.turn()
    assert bench.client.xlen(keys.log(0)) == 0
    assert len(bench.quarantine("a")) == 2


def test_an_unreadable_entry_met_by_a_careful_worker(make_bench, poisonous):
    bench = make_bench(partitions=1)
    known(bench, "a")
    bench.client.xadd(keys.log(0), {"b": b"\xc1"})
    numbers = bench.append(one("a", POISON), one("a", 1.0))
    bench.client.hset(keys.meta(0), mapping={"attempts": 9})
    bench.crash()
    assert [outcome.status for outcome in bench.outcomes(numbers)] == [500, 200]
    assert len(bench.quarantine("a")) == 2


# --- processes --------------------------------------------------------------------------------


def _serve(settings):
    loop.IDLE_MS = 50
    worker = Worker(settings)
    signal.signal(signal.SIGTERM, worker.stop)
    worker.run()
    os._exit(0)


@pytest.fixture
def processes():
    """Start worker processes; all are killed in the end."""
    made = []

    def start(bench):
        context = multiprocessing.get_context("fork")
        made.append(context.Process(target=_serve, args=(bench.settings,), daemon=True))
        made[-1].start()
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.join()


def wait(bench, numbers, timeout_s=20.0):
    limit = time.monotonic() + timeout_s
    while True:
        found = [bench.outcome(*number) for number in numbers]
        if all(outcome is not None for outcome in found):
            return found
        assert time.monotonic() < limit, f"{found.count(None)} without an answer"
        time.sleep(0.005)


def test_killed_again_and_again(make_bench, close, processes):
    """SIGKILL at random points under load: every observation once, numbers to 1e-9."""
    settings = {"lease_ttl_ms": 400, "request_deadline_s": 20.0, "checkpoint_every": 16}
    bench, plain = make_bench(**settings), make_bench(db=1)
    streams = [f"s{i}" for i in range(6)]
    numbers, process = [], processes(bench)
    for step in range(90):
        for i, stream in enumerate(streams):
            seen = Observation(y=((step * 7 + i) % 5) + 4.0 * (step > 50))
            numbers += bench.append(Observe(stream, [seen], belief=step == 89))
        time.sleep(0.01)
        if step in (20, 41, 62):
            wait(bench, numbers[: len(numbers) // 2])
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            process = processes(bench)
    outcomes = wait(bench, numbers)
    process.kill()
    for step in range(90):
        expected = plain.send(*_of(plain, streams, step, 0)) + plain.send(
            *_of(plain, streams, step, 1)
        )
        by_stream = {json.loads(o.body[0])["stream"]: json.loads(o.body[0]) for o in expected}
        for i, stream in enumerate(streams):
            (body,) = outcomes[6 * step + i].body
            close(json.loads(body), by_stream[stream])
    for stream in streams:
        assert [record.seq for record in bench.records(stream)] == list(range(90))
        assert not bench.quarantine(stream)


def _of(bench, streams, step, partition):
    return [
        Observe(s, [Observation(y=((step * 7 + i) % 5) + 4.0 * (step > 50))], belief=step == 89)
        for i, s in enumerate(streams)
        if bench.partition(s) == partition
    ]


def test_stopped_past_its_lease_and_continued(make_bench, processes):
    bench = make_bench(partitions=2, lease_ttl_ms=300, request_deadline_s=20.0)
    first = processes(bench)
    numbers = [*bench.append(one("a", 1.0)), *bench.append(one("b", 1.0))]
    wait(bench, numbers)
    os.kill(first.pid, signal.SIGSTOP)
    try:
        numbers = [n for _ in range(5) for s in "ab" for n in bench.append(one(s, 2.0))]
        processes(bench)
        wait(bench, numbers)
    finally:
        os.kill(first.pid, signal.SIGCONT)
    numbers = [n for _ in range(20) for s in "ab" for n in bench.append(one(s, 3.0))]
    outcomes = wait(bench, numbers)
    assert {outcome.status for outcome in outcomes} == {200}
    time.sleep(0.4)
    assert first.is_alive()
    for stream in "ab":
        assert bench.head(stream).seq == 26
        assert [r.y for r in bench.records(stream)] == [1.0] + [2.0] * 5 + [3.0] * 20


def test_a_clean_stop_hands_over_at_once(make_bench, processes):
    bench = make_bench(partitions=2, lease_ttl_ms=10_000, request_deadline_s=30.0)
    process = processes(bench)
    wait(bench, bench.append(one("a", 1.0)))
    process.terminate()
    process.join(5)
    assert process.exitcode == 0
    assert [bench.client.exists(keys.lease(p)) for p in range(2)] == [0, 0]
    assert bench.head("a").checkpoint == 0  # it is still warming up
    assert [answer["seq"] for answer in bench.observe("a", [2.0])] == [1]
