"""Commits that are refused, fenced or cut: what rests on them is forgotten, and nothing twice."""

import pytest
import redis

from service.store import keys
from service.wire import Observation, Observe
from tests.service.worker.commits import commit_of, replace_commit, restore_commit


def test_two_workers_share_partitions_and_hand_over(make_bench):
    bench = make_bench(partitions=6)
    first = bench.worker
    bench.turn(first)
    assert len(first.offsets) == 6
    second = bench.new_worker()
    bench.turn(second)
    bench.turn(first)
    bench.turn(second)
    assert (len(first.offsets), len(second.offsets)) == (3, 3)
    numbers = [n for i in range(12) for n in bench.append(Observe(f"s{i}", [Observation(y=1.0)]))]
    while any(bench.outcome(*n) is None for n in numbers):
        bench.turn(first)
        bench.turn(second)
    first._hand_over()
    bench.turn(second)
    assert len(second.offsets) == 6
    assert [bench.client.exists(keys.lease(p)) for p in range(6)] == [1] * 6


def test_a_fenced_worker_forgets_and_nothing_is_applied_twice(bench):
    old = bench.worker
    bench.observe("a", [1.0, 2.0])
    (number,) = bench.append(Observe("a", [Observation(y=3.0)]))
    commit = commit_of(old.log)

    def late(commits):
        # Between its step and its commit the lease ends and another worker does the work.
        restore_commit(old.log)
        for p in range(2):
            bench.client.delete(keys.lease(p))
        old.log.leave()
        other = bench.new_worker()
        while bench.outcome(*number) is None:
            bench.turn(other)
        assert len(other.offsets) == 2
        return commit(commits)

    replace_commit(old.log, late)
    bench.turn(old)
    bench.turn(old)
    assert bench.partition("a") not in old.offsets
    assert not any(key[0] == bench.partition("a") for key in old.engine.streams)
    assert bench.head("a").seq == 3
    assert len(bench.records("a")) == 3


def test_a_refused_commit_of_one_partition_leaves_the_others_right(make_bench):
    """Every result of a pipeline of commits counts, also those after one that is refused."""
    bench = make_bench(partitions=6)
    streams = {bench.partition(f"s{i}"): f"s{i}" for i in range(60)}
    for stream in streams.values():
        bench.observe(stream, [1.0, 2.0])
    (victim,) = [stream for p, stream in streams.items() if p == 0]
    key = keys.tail(0, victim)
    aside = bench.client.hgetall(key)
    bench.client.delete(key)
    bench.client.set(key, "not a hash")
    numbers = [
        number
        for stream in streams.values()
        for number in bench.append(Observe(stream, [Observation(y=3.0)]))
    ]
    bench.worker.offsets = dict(sorted(bench.worker.offsets.items()))  # 0 is committed first
    bench.turn()
    bench.client.delete(key)
    bench.client.hset(key, mapping=aside)
    outcomes = bench.outcomes(numbers)
    assert [outcome.status for outcome in outcomes] == [200] * 6
    for stream in streams.values():
        bench.observe(stream, [4.0])
        assert [record.seq for record in bench.records(stream)] == [0, 1, 2, 3]


class Trouble:
    """The first round of commits fails in some way; those after it are as they should be."""

    def __init__(self, bench, kind):
        self.bench, self.kind, self.rounds = bench, kind, []
        self.commit = commit_of(bench.worker.log)

    def __call__(self, commits):
        self.rounds.append({each.partition for each in commits})
        first = len(self.rounds) == 1
        return getattr(self, self.kind)(commits) if first else self.commit(commits)

    def refused(self, commits):
        self.commit([each for each in commits if each.partition])
        return ["OK" if each.partition else "INVALID: why" for each in commits]

    def fenced(self, commits):
        self.bench.client.set(keys.lease(0), "another/worker")
        return self.commit(commits)

    def cut_before(self, commits):
        raise redis.ConnectionError("cut before")

    def cut_after(self, commits):
        self.commit(commits)
        raise redis.ConnectionError("cut after")


@pytest.mark.parametrize("kind", ["refused", "fenced", "cut_before", "cut_after"])
def test_a_batch_computed_while_the_commit_before_it_fails(make_bench, kind):
    """It rests on what was not committed, or it was never committed itself: all of it goes."""
    bench = make_bench(partitions=4)
    streams = list({bench.partition(f"s{i}"): f"s{i}" for i in range(60)}.values())
    for stream in streams:
        bench.observe(stream, [1.0, 2.0])
    bench.turn()
    bench.worker._maintained = float("inf")  # which would wait for the commit under way
    trouble = Trouble(bench, kind)
    replace_commit(bench.worker.log, trouble)
    numbers = []
    for _ in range(2):
        for stream in streams:
            numbers += bench.append(Observe(stream, [Observation(y=3.0)]))
        bench.worker._turn()
    assert trouble.rounds[0] == set(range(4))
    if kind == "fenced":
        bench.client.delete(keys.lease(0))
    outcomes = bench.outcomes(numbers)
    assert [outcome.status for outcome in outcomes] == [200] * 8
    for stream in streams:
        bench.observe(stream, [4.0])
        assert [record.y for record in bench.records(stream)] == [1.0, 2.0, 3.0, 3.0, 4.0]
