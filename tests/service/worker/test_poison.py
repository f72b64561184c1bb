"""A command that stops its worker is set aside alone; faults of the machine set nothing aside."""

import json
from collections import Counter
from unittest.mock import Mock

import msgspec
import pytest
import redis
import torch

from model_core.upm.conjugate import Gaussian
from service import wire
from service.store import keys
from service.store import log as log_module
from service.store.log import entry_of
from service.wire import Configure, Observation, Observe, RunLength
from service.worker.streams import registry as engine_module
from tests.service.worker.conftest import INCARNATION, Queued

POISON = 13.0


class Poisonous(Gaussian):
    """A Gaussian that raises on one label."""

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


@pytest.fixture
def bench(make_bench):
    """One partition, with streams a and b."""
    bench = make_bench(partitions=1)
    create(bench, "a", "b")
    return bench


def one(stream, y, **more):
    return Observe(stream, [Observation(y=y)], **more)


def keyed(y, key="k"):
    return one("a", y, key=key, digest=str(y))


def create(bench, *streams):
    for stream in streams:
        bench.ask(Configure(stream, {"location": [0.0], "scale": [1.0]}), status=201)


def statuses(outcomes):
    return [outcome.status for outcome in outcomes]


def slug(outcome):
    return json.loads(outcome.body[0])["type"].rpartition("/")[2]


def test_one_command_is_set_aside_and_everything_else_is_served(make_bench, poisonous):
    bench = make_bench(partitions=3)
    streams = [f"s{i}" for i in range(6)]
    create(bench, *streams)
    numbers, commands = [], []
    for i, stream in enumerate(streams * 2):
        command = one(stream, POISON if i == 4 else float(i))
        commands.append(command)
        numbers += bench.append(command, RunLength(stream))
    outcomes = bench.outcomes(numbers)[::2]
    assert statuses(outcomes) == [200] * 4 + [500] + [200] * 7
    assert slug(outcomes[4]) == "quarantined"
    assert json.loads(outcomes[4].body[0])["applied"] == 0
    seqs = Counter(stream for i, stream in enumerate(streams * 2) if i != 4)
    assert {stream: bench.head(stream).seq for stream in streams} == dict(seqs)
    # It is kept aside whole, and once.
    (blob,) = (blob for p in range(3) for blob in bench.client.hvals(keys.quarantine(p)))
    assert msgspec.msgpack.decode(blob, type=wire.Envelope).command == commands[4]
    for p in range(3):
        asked, done, attempts = bench.client.hmget(keys.meta(p), ["in", "done", "attempts"])
        assert asked == done
        assert attempts == b"0"
        assert bench.client.xlen(keys.log(p)) == 0
    assert poisonous.calls["poison"] <= 7


def test_several_poisons_in_a_row_and_within_a_list(poisonous, bench):
    labels = [1.0, POISON, POISON, 2.0, POISON]
    outcomes = bench.send(*(one("a", y) for y in labels), one("b", 1.0))
    assert statuses(outcomes) == [200, 500, 500, 200, 500, 200]
    (outcome,) = bench.send(Observe("a", [Observation(y=v) for v in (3.0, POISON, 4.0)]))
    assert outcome.status == 500
    assert [record.y for record in bench.records("a")] == [1.0, 2.0]  # of the list nothing
    assert len(bench.quarantine("a")) == 4


def test_a_repeat_of_what_was_set_aside_has_its_answer(poisonous, bench):
    """It would stop its workers again."""
    outcomes = bench.send(keyed(POISON), one("a", 1.0), keyed(POISON), keyed(POISON))
    assert statuses(outcomes) == [500, 200, 500, 500]
    assert {outcomes[i].body[0] for i in (0, 2, 3)} == set(outcomes[0].body)
    tried = poisonous.calls["poison"]
    for again in (bench.stop, bench.crash, lambda: None):
        again()
        (repeat,) = bench.send(keyed(POISON))
        assert (repeat.status, repeat.body) == (500, outcomes[0].body)
    assert bench.send(keyed(2.0))[0].status == 422  # another body
    assert poisonous.calls["poison"] == tried
    assert len(bench.quarantine("a")) == 1
    assert bench.send(keyed(POISON, key="other"))[0].status == 500
    assert poisonous.calls["poison"] > tried
    assert bench.send(keyed(2.0, key="third"))[0].status == 200
    assert bench.head("a").seq == 2


def test_a_repeat_that_is_set_aside_says_what_the_first_came_to(bench, monkeypatch):
    """What stops its worker now may have been applied then."""
    (first,) = bench.send(keyed(1.0))
    stored = bench.stored("a")
    bench.crash()
    with monkeypatch.context() as patch:
        patch.setattr(engine_module.Engine, "_read", Mock(side_effect=ValueError("a defect")))
        (repeat,) = bench.send(keyed(1.0))
    answer = json.loads(repeat.body[0])
    assert (repeat.status, answer.pop("duplicate")) == (200, True)
    assert answer.items() <= json.loads(first.body[0]).items()
    assert bench.stored("a") == stored
    assert len(bench.quarantine("a")) == 1
    bench.crash()
    bench.client.delete(keys.idempotency(0, "b"))
    bench.client.set(keys.idempotency(0, "b"), "not a hash")
    with monkeypatch.context() as patch:
        patch.setattr(engine_module.Engine, "load", Mock(side_effect=ValueError("a defect")))
        (outcome,) = bench.send(one("b", 1.0, key="k", digest="d"))
    assert slug(outcome) == "quarantined"
    assert bench.client.get(keys.idempotency(0, "b")) == b"not a hash"


def test_the_trials_outlive_the_worker(poisonous, bench, monkeypatch):
    """Each attempt may as well kill its process: the next one goes on counting."""
    monkeypatch.setattr(log_module, "UNCERTAIN_MS", 0)
    bench.crash()
    numbers = [*bench.append(one("a", POISON)), *bench.append(one("b", 1.0))]

    class Killed(BaseException):
        pass

    lives = 0
    while bench.outcome(*numbers[0]) is None:
        bench.worker._lose = Mock(side_effect=Killed)
        try:
            bench.turn()
        except Killed:
            lives += 1
            bench.crash()
        assert lives < 8
    assert lives == 5  # two with all that waits, three alone
    poisoned, served = bench.outcomes(numbers)
    assert (poisoned.status, served.status) == (500, 200)


@pytest.mark.parametrize("fault", [redis.ConnectionError("gone"), torch.OutOfMemoryError("full")])
def test_faults_of_the_machine_set_nothing_aside(bench, monkeypatch, fault):
    numbers = bench.append(one("a", 2.0))
    with monkeypatch.context() as patch:
        patch.setattr(engine_module.Engine, "changes", Mock(side_effect=fault))
        for _ in range(12):
            bench.turn()
    assert statuses(bench.outcomes(numbers)) == [200]
    assert bench.head("a").seq == 1
    assert not bench.quarantine("a")


def test_a_key_of_a_wrong_type_hurts_its_stream_alone(bench):
    for stream, key in (("x", keys.tail), ("z", keys.idempotency)):
        bench.observe(stream, [1.0])
        bench.crash()
        bench.client.delete(key(0, stream))
        bench.client.set(key(0, stream), "not a hash")
        outcomes = bench.send(one("a", 2.0), one(stream, 2.0), one("b", 2.0))
        assert statuses(outcomes) == [200, 500, 200]
        assert slug(outcomes[1]) == "corrupt-state"
        if key is not keys.idempotency:  # which outlives its stream
            assert bench.send(wire.Delete(stream))[0].status == 204
            assert bench.observe(stream, [1.0])[0]["seq"] == 0


# --- entries that cannot be read, and those of another version ------------------------------------

DAMAGED = [
    b"",
    b"\xc1\xc1",
    b"\x92",
    wire.encode(wire.LogEntry("x", [])),
    wire.encode(["api9", 7, 1]),
    wire.encode(["api9", [[0, 1, 0, "gaussian", {"type": "observe"}]]]),
    wire.encode(["api9", [[0, 1, 0, "gaussian", [1]]]]),
]


def put(bench, payload, **sums):
    """Append an entry that no API of this version wrote."""
    p = bench.partition("a")
    bench.client.xadd(keys.log(p), {"b": payload, **sums})
    bench.client.hincrby(keys.meta(p), "in", 1)
    return p


def test_an_entry_that_cannot_be_read_is_set_aside(poisonous, bench):
    numbers = bench.append(one("a", 1.0))
    for payload in DAMAGED:
        put(bench, payload)
    numbers += bench.append(one("a", 2.0))
    assert statuses(bench.outcomes(numbers)) == [200, 200]
    assert list(bench.quarantine("a").values()) == DAMAGED
    # Also by a worker that is careful.
    put(bench, b"\xc1")
    numbers = bench.append(one("a", POISON), one("a", 1.0))
    bench.client.hset(keys.meta(0), mapping={"attempts": 9})
    bench.crash()
    assert statuses(bench.outcomes(numbers)) == [500, 200]
    assert len(bench.quarantine("a")) == len(DAMAGED) + 2
    assert bench.client.xlen(keys.log(0)) == 0


def test_an_entry_with_a_command_of_another_version_is_answered(bench):
    """Right by its checksum, and of a kind that this version does not have."""
    body = wire.encode([0, 1, 0, "gaussian", {"type": "forecast_all", "stream": "a", "steps": 3}])
    payload, sums = entry_of(bench.partition("a"), INCARNATION, [Queued(999, 1, body)])
    numbers = bench.append(one("a", 1.0))
    p = put(bench, payload, c=sums)
    numbers += bench.append(one("a", 2.0))
    assert statuses(bench.outcomes(numbers)) == [200, 200]
    assert bench.outcome(p, 999).status == 500
    assert list(bench.quarantine("a").values()) == [body]
