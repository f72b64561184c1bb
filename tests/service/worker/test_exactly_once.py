"""Commands take effect once and in order, whatever fails and wherever the worker stops."""

import json
import random

import pytest
import redis

from service.store import keys
from service.wire import Configure, Delete, Observation, Observe, Predict, RunLength
from tests.service.worker.commits import commit_of, replace_commit

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
        made.key, made.digest = f"k{rng.randint(0, 4)}", str(rng.randint(0, 1))
    return made


def command(rng, stream, seqs):
    """A random command; `seqs` is where streams may be: expected positions are often right."""
    kind = rng.random()
    if kind < 0.60:
        return observing(rng, stream, seqs)
    if kind < 0.68:
        return Observe(stream, labels(rng, 2), seq=10_000)
    if kind < 0.74:
        return Observe(stream, [Observation(y=[1.0, 2.0])])
    if kind < 0.80:
        return Configure(stream, {"hazard": rng.choice([0.01, 0.1]), **KNOWN})
    if kind < 0.86:
        return Configure(stream, {"max_hypotheses": rng.choice([8, 20, 50])})
    if kind < 0.90:
        return Predict(stream, samples=2, seed=7)
    if kind < 0.97:
        return RunLength(stream)
    seqs[stream] = 0
    return Delete(stream)


def mix(rng, bench, count):
    """Random commands, cut into entries of one partition each, in order of each partition."""
    seqs = {}
    streams = [rng.choice(STREAMS) for _ in range(count)]
    first = {stream: Configure(stream, {**KNOWN, "outlier_rate": 0.01}) for stream in STREAMS}
    commands = [*first.values(), *(command(rng, stream, seqs) for stream in streams)]
    entries, open_ = [], {}
    for each in commands:
        entry = open_.setdefault(bench.partition(each.stream), [])
        entry.append(each)
        if rng.random() < 0.3:
            entries.append(open_.pop(bench.partition(each.stream)))
    return entries + list(open_.values())


class Faults:
    """Make a worker's commits fail now and then, before or after they took place."""

    def __init__(self, rng):
        self.rng, self.blamed, self.count = rng, 0, 0

    def install(self, worker):
        commit = commit_of(worker.log)

        def faulty(commits):
            chance = self.rng.random()
            if chance < 0.15:
                self.count += 1
                raise redis.ConnectionError("cut before")
            if chance < 0.30:
                self.count += 1
                commit(commits)
                raise redis.ConnectionError("cut after")
            if chance < 0.50 and self.blamed < 2:
                self.blamed += 1
                self.count += 1
                raise RuntimeError("a defect")
            return commit(commits)

        replace_commit(worker.log, faulty)


def state(bench, stream):
    """What a client can see of a stream."""
    found = {"events": [], "records": [], "named": bench.stored(stream)["named"]}
    if found["named"]:
        found["records"] = [record.__rich_repr__() for record in bench.records(stream)]
        found["records"] = [list(map(list, record)) for record in found["records"]]
        found["events"] = [
            [getattr(event, name) for name in event.__struct_fields__]
            for event in bench.events(stream)
        ]
        found["run length"] = bench.ask(RunLength(stream))
        head = bench.head(stream)
        found["head"] = [head.generation, head.seq, head.next_event]
        found["sums"] = [head.log_score_sum, head.scored, head.pruned_mass_sum]
    return found


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(3))
def test_random_mixes_equal_one_command_at_a_time(make_bench, close, seed):
    rng = random.Random(seed)
    bench = make_bench(
        checkpoint_every=(64, 8, 4)[seed % 3], resident_bytes=(1 << 30, 1, 9000)[seed % 3]
    )
    plain = make_bench(db=1)
    entries = mix(rng, bench, 110)
    outcomes = apply_with_faults(bench, rng, entries)
    for outcome, each in zip(outcomes, [c for entry in entries for c in entry], strict=True):
        (expected,) = plain.send(each)
        assert outcome.status == expected.status, each
        for found, wanted in zip(outcome.body, expected.body, strict=True):
            close(known(found), known(wanted))
    for stream in STREAMS:
        close(state(bench, stream), state(plain, stream))
    for p in range(2):
        counts = bench.client.hmget(keys.meta(p), ["in", "done"])
        assert counts[0] == counts[1]
        assert bench.client.xlen(keys.log(p)) == 0
        assert not bench.quarantine(STREAMS[p])


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
    assert faults.count > 1
    vars(bench.worker.log).pop("commit", None)
    return outcomes


def known(body):
    """JSON of an answer without the clock of its stream."""
    found = json.loads(body)
    for name in ("created", "updated"):
        found.pop(name, None)
    return found


def test_an_entry_applied_in_part_goes_on_where_it_stopped(bench):
    commands = [Observe("a", [Observation(y=float(i))]) for i in range(5)]
    commit, seen = commit_of(bench.worker.log), []

    def faulty(commits):
        # Two failures of the whole batch make the worker careful; then a cut after the second.
        seen.append([(c.expected.index, c.new.index) for c in commits])
        if len(seen) in (1, 2):
            raise RuntimeError("a defect")
        found = commit(commits)
        if len(seen) == 4:
            raise redis.ConnectionError("cut after")
        return found

    replace_commit(bench.worker.log, faulty)
    outcomes = bench.outcomes(bench.append(*commands))
    assert [json.loads(o.body[0])["seq"] for o in outcomes] == [0, 1, 2, 3, 4]
    # One by one until the cut; then the rest of the entry in one batch.
    assert seen[2:] == [[(-1, 0)], [(0, 1)], [(1, -1)]]
    assert bench.head("a").seq == 5


def test_streams_of_one_batch_share_steps_but_no_numbers(make_bench, close):
    together, alone = make_bench(), make_bench(db=1)
    streams = [f"s{i}" for i in range(12)]
    rng = random.Random(5)
    posts = [(s, [rng.gauss(i, 1) for _ in range(30)]) for i, s in enumerate(streams)]
    numbers = []
    for part in range(3):
        for stream, y in posts:
            seen = [Observation(y=v) for v in y[10 * part : 10 * part + 10]]
            numbers += together.append(Observe(stream, seen))
    together.outcomes(numbers)
    for stream, y in posts:
        alone.observe(stream, y)
        close(together.ask(RunLength(stream)), alone.ask(RunLength(stream)))
