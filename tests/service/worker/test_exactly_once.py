"""Commands take effect once and in order, whatever fails and wherever the worker stops."""

import json
import random

import pytest
import redis

from service.store import keys
from service.wire import Configure, Delete, Observation, Observe, Predict, RunLength
from tests.service.worker.conftest import Trouble, commit_of, replace_commit

STREAMS = ["a", "b", "c", "d", "e"]
KNOWN = {"location": [0.0], "scale": [1.0]}


def labels(rng, count):
    return [
        Observation(
            y=None if rng.random() < 0.1 else rng.gauss(0, 1) + 3 * (rng.random() < 0.1),
            elapsed=rng.choice([1.0, 1.0, 0.5, 3.0]),
            changepoint=rng.choice([None] * 9 + [0.3]),
        )
        for _ in range(count)
    ]


def observing(rng, stream, seqs):
    count = rng.randint(1, 6)
    expected = seqs.get(stream, 0) if rng.random() < 0.3 else None
    seqs[stream] = seqs.get(stream, 0) + count
    made = Observe(stream, labels(rng, count), seq=expected, belief=rng.random() < 0.1)
    if rng.random() < 0.3:  # some of these are repeats, some of another body
        made.key = f"k{rng.randint(0, 4)}"
        made.digest = str(rng.randint(0, 1))
    return made


def command(rng, stream, seqs):
    """A random command; `seqs` is where streams may be: expected positions are often right."""
    others = [
        (0.08, lambda: Observe(stream, labels(rng, 2), seq=10_000)),
        (0.06, lambda: Observe(stream, [Observation(y=[1.0, 2.0])])),
        (0.06, lambda: Configure(stream, {"hazard": rng.choice([0.01, 0.1]), **KNOWN})),
        (0.06, lambda: Configure(stream, {"max_hypotheses": rng.choice([8, 20, 50])})),
        (0.04, lambda: Predict(stream, samples=2, seed=7)),
        (0.07, lambda: RunLength(stream)),
        (0.03, lambda: seqs.update({stream: 0}) or Delete(stream)),
    ]
    at = rng.random()
    for share, make in others:
        at -= share
        if at < 0:
            return make()
    return observing(rng, stream, seqs)


def mix(rng, bench, count):
    """Random commands, cut into entries of one partition each, in order of each partition."""
    seqs = {}
    commands = [Configure(stream, {**KNOWN, "outlier_rate": 0.01}) for stream in STREAMS]
    commands += [command(rng, rng.choice(STREAMS), seqs) for _ in range(count)]
    entries, open_ = [], {}
    for each in commands:
        partition = bench.partition(each.stream)
        open_.setdefault(partition, []).append(each)
        if rng.random() < 0.3:
            entries.append(open_.pop(partition))
    return entries + list(open_.values())


class Faults:
    """Make a worker's commits fail now and then, before or after they took place."""

    def __init__(self, rng):
        self.rng, self.blamed, self.count = rng, 0, 0

    def install(self, worker):
        commit = commit_of(worker.log)

        def faulty(commits):
            chance = self.rng.random()
            self.count += chance < 0.30
            if chance < 0.15:
                raise redis.ConnectionError("cut before")
            if chance < 0.30:
                commit(commits)
                raise redis.ConnectionError("cut after")
            if chance < 0.50 and self.blamed < 2:
                self.blamed += 1
                raise RuntimeError("a defect")
            return commit(commits)

        replace_commit(worker.log, faulty)


def state(bench, stream):
    """What a client can see of a stream."""
    found = {"named": bench.stored(stream)["named"]}
    if found["named"]:
        records = [record.__rich_repr__() for record in bench.records(stream)]
        found["records"] = [list(map(list, record)) for record in records]
        found["events"] = [list(event) for event in bench.events(stream)]
        found["run length"] = bench.ask(RunLength(stream))
        head = bench.head(stream)
        found["head"] = [head.generation, head.seq, head.track.next_event]
        found["sums"] = [head.log_score_sum, head.scored, head.pruned_mass_sum]
    return found


def without_times(body):
    """JSON of an answer without the clock of its stream."""
    members = json.loads(body)
    return {name: value for name, value in members.items() if name not in ("created", "updated")}


def check_nothing_left(bench):
    for p in range(bench.settings.partitions):
        done, asked = bench.client.hmget(keys.meta(p), ["done", "in"])
        assert done == asked
        assert bench.client.xlen(keys.log(p)) == 0
        assert bench.client.hlen(keys.quarantine(p)) == 0


@pytest.mark.parametrize(
    "seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 12))]
)
def test_random_mixes_equal_one_command_at_a_time(make_bench, close, seed):
    rng = random.Random(seed)
    resident = (1 << 30, 1, 9000)[seed % 3]
    bench = make_bench(checkpoint_every=(64, 8, 4)[seed % 3], resident_bytes=resident)
    plain = make_bench(db=1)
    entries = mix(rng, bench, 80)
    outcomes = apply_with_faults(bench, rng, entries)
    for outcome, each in zip(outcomes, [c for entry in entries for c in entry], strict=True):
        (expected,) = plain.send(each)
        assert outcome.status == expected.status, each
        for found, wanted in zip(outcome.body, expected.body, strict=True):
            close(without_times(found), without_times(wanted))
    for stream in STREAMS:
        close(state(bench, stream), state(plain, stream))
    check_nothing_left(bench)


def apply_with_faults(bench, rng, entries):
    """Append all while the worker fails and is replaced now and then; returns the outcomes."""
    faults, numbers = Faults(rng), []
    faults.install(bench.worker)
    for i, entry in enumerate(entries):
        numbers += bench.append(*entry)
        if rng.random() < 0.4:
            bench.turn()
        if i % 8 == 7:
            bench.outcomes(numbers)
            faults.blamed = 0  # three in a row would set a command aside
        if i % 8 == 3:
            rng.choice([bench.stop, bench.crash])()
            faults.blamed += 1
            faults.install(bench.worker)
    outcomes = bench.outcomes(numbers)
    assert faults.count + faults.blamed > 1
    return outcomes


# --- two workers, and commits that are refused ----------------------------------------------------


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
