"""A command that stops its worker is set aside alone; faults of the machine set nothing aside."""

import json
from collections import Counter

import pytest
import redis
import torch

from model_core.upm.conjugate import Gaussian
from service import wire
from service.store import keys
from service.store import log as log_module
from service.wire import Configure, Observation, Observe, RunLength
from service.worker.streams import registry as engine_module
from tests.service.worker.commits import commit_of, replace_commit

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
    monkeypatch.setattr("model_core.upm.conjugate.Gaussian", Poisonous)
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


def keyed(y, key="k"):
    return Observe("a", [Observation(y=y)], key=key, digest=str(y))


def test_a_repeat_of_what_was_set_aside_has_its_answer(make_bench, poisonous):
    """It would stop its workers again."""
    bench = make_bench(partitions=1)
    known(bench, "a")
    (first,) = bench.send(keyed(POISON))
    assert json.loads(first.body[0])["type"].endswith("quarantined")
    tried = poisonous.calls["poison"]
    for again in (bench.stop, bench.crash, lambda: None):
        again()
        (repeat,) = bench.send(keyed(POISON))
        assert (repeat.status, repeat.body) == (first.status, first.body)
    assert bench.send(keyed(2.0))[0].status == 422  # another body
    assert poisonous.calls["poison"] == tried
    assert len(bench.quarantine("a")) == 1
    (other,) = bench.send(keyed(POISON, key="other"))
    assert other.status == 500
    assert poisonous.calls["poison"] > tried
    assert bench.send(keyed(2.0, key="third"))[0].status == 200
    assert bench.head("a").seq == 1


def test_repeats_that_wait_behind_the_first_are_tried_no_more(make_bench, poisonous):
    bench = make_bench(partitions=1)
    known(bench, "a")
    outcomes = bench.send(keyed(POISON), one("a", 1.0), keyed(POISON), keyed(POISON))
    assert [outcome.status for outcome in outcomes] == [500, 200, 500, 500]
    assert {outcomes[i].body[0] for i in (0, 2, 3)} == set(outcomes[0].body)
    assert len(bench.quarantine("a")) == 1


def test_a_repeat_that_is_set_aside_says_what_the_first_came_to(make_bench, monkeypatch):
    """What stops its worker now may have been applied then."""
    bench = make_bench(partitions=1)
    (first,) = bench.send(keyed(1.0))
    stored = bench.stored("a")
    bench.crash()
    with monkeypatch.context() as patch:
        patch.setattr(engine_module.Engine, "_read", _raising(ValueError("a defect")))
        (repeat,) = bench.send(keyed(1.0))
    answer = json.loads(repeat.body[0])
    assert (repeat.status, answer.pop("duplicate")) == (200, True)
    assert answer.items() <= json.loads(first.body[0]).items()
    assert bench.stored("a") == stored
    assert len(bench.quarantine("a")) == 1


def test_a_poison_whose_keys_cannot_be_read(make_bench, monkeypatch):
    bench = make_bench(partitions=1)
    known(bench, "a")
    bench.crash()
    bench.client.set(keys.idempotency(0, "a"), "not a hash")
    with monkeypatch.context() as patch:
        patch.setattr(engine_module.Engine, "load", _raising(ValueError("a defect")))
        (outcome,) = bench.send(keyed(1.0))
    assert json.loads(outcome.body[0])["type"].endswith("quarantined")
    assert bench.client.get(keys.idempotency(0, "a")) == b"not a hash"


def test_the_trials_outlive_the_worker(make_bench, poisonous, monkeypatch):
    """Each attempt may as well kill its process: the next one goes on counting."""
    monkeypatch.setattr(log_module, "UNCERTAIN_MS", 0)
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
    # The first had its lease before anything waited; then two with all that waits, three alone.
    assert lives == 6
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
    commit = commit_of(bench.worker.log)

    def refuse(commits):
        written = {effect[1] for each in commits for effect in each.effects}
        return ["INVALID: why"] if keys.tail(0, "b") in written else commit(commits)

    replace_commit(bench.worker.log, refuse)
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


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1\xc1", wire.encode(wire.LogEntry("x", [])), b"\x92"]
)
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
