"""A stream that is evicted, handed over or lost goes on as if nothing had happened."""

import math
import random

import msgspec
import pytest
import redis

from service import wire
from service.store import keys
from service.wire import Configure, Observation, Predict, RunLength
from service.worker.streams import registry
from tests.service.worker.commits import commit_of, replace_commit, restore_commit


def series(kind, count, seed=1):
    """Labels with two shifts, a few of them missing, some irregular in time."""
    rng = random.Random(seed)
    levels = [0.0, 4.0, -3.0]
    made = []
    for i in range(count):
        level = levels[3 * i // count]
        y = rng.gauss(level, 1)
        if kind == "poisson":
            y = float(sum(rng.random() < 0.2 * (2 + abs(level)) for _ in range(20)))
        if kind == "bernoulli":
            y = float(rng.random() < 0.5 + level / 10)
        if kind == "vector":
            y = [y, rng.gauss(0, 1), rng.gauss(10 * level, 5)]
        x = None
        if kind == "pump":
            x = [rng.gauss(0, 1), rng.gauss(0, 1)]
            y = [y, x[0] * level]
        made.append(
            Observation(
                y=None if rng.random() < 0.05 else y,
                x=x,
                elapsed=rng.choice([1.0, 1.0, 2.5]),
                changepoint=0.2 if rng.random() < 0.03 else None,
                time=f"2024-01-01T00:00:{i % 60:02}Z",
            )
        )
    return made


MODELS = ["gaussian", "averaged", "poisson", "bernoulli", "vector", "pump"]


def configure(bench, stream, kind, **more):
    model = "gaussian" if kind == "vector" else kind
    settings = {"model": model, "max_hypotheses": 30, "outlier_rate": 0.01, **more}
    bench.ask(Configure(stream, settings), status=201)


def lose_everything(bench):
    """As after a lost connection: every partition is taken again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench.worker.log, "read", cut)
        bench.turn()
    assert not bench.worker.engine.streams


def cut(*_):
    raise redis.ConnectionError("cut")


def check_answers(answers, records, bench, stream):
    """Every retained observation is there once, with the answer it got."""
    by_seq = {answer["seq"]: answer for answer in answers}
    head = bench.head(stream)
    assert [r.seq for r in records] == list(
        range(max(0, head.seq - head.settings.history), head.seq)
    )
    for record in records:
        answer = by_seq[record.seq]
        for name in ("log_score", "changed_probability", "changepoint_probability", "time"):
            assert getattr(record, name) == answer.get(name), (record.seq, name)
        predictive = answer["predictive"] or {}
        for name in ("mean", "variance", "quantiles", "probabilities"):
            assert getattr(record, name) == predictive.get(name), (record.seq, name)
        if answer["run_length"]:
            assert record.map_run_length == answer["run_length"]["map"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", MODELS)
def test_lost_at_random_points(make_bench, close, alpaca, kind):
    bench, plain = make_bench(checkpoint_every=16), make_bench(db=1)
    rng = random.Random(kind)
    observations, stream = series(kind, 220), "a"
    for each in (bench, plain):
        configure(each, stream, kind, history=150)
    answers, at = [], 0
    while at < len(observations):
        size = rng.choice([1, 1, 2, 7, 32])
        answers += bench.observe(stream, observations[at : at + size])
        at += size
        if rng.random() < 0.35:
            rng.choice([bench.stop, bench.crash, lambda: lose_everything(bench)])()
        check_answers(answers, bench.records(stream), bench, stream)
        check_bounds(bench, stream)
    close(answers, plain.observe(stream, observations))
    read = [RunLength(stream), Predict(stream, samples=3, seed=1, components=True)]
    if kind == "pump":
        read[1].x = [[0.1, 0.2], [1.0, -1.0]]
    for each in read:
        close(bench.ask(each), plain.ask(each))
    assert [wire.encode(e) for e in bench.events(stream)] != []
    close(*([msgspec.to_builtins(e) for e in b.events(stream)] for b in (bench, plain)))


def check_bounds(bench, stream):
    """One checkpoint, a short tail, and no chunk beyond the history."""
    stored, head = bench.stored(stream), bench.head(stream)
    every = bench.settings.checkpoint_every
    assert (
        list(stored["checkpoint"])
        == [f"{head.generation}:{head.checkpoint}".encode()][: 1 if head.checkpoint else 0]
    )
    if head.warm:
        assert len(stored["tail"]) <= 64 + max(every, 64) + 32
        assert min(map(int, stored["tail"]), default=head.seq) >= min(head.sealed, head.checkpoint)
    assert len(stored["history"]) <= head.settings.history // 64 + 2


def test_evicted_after_every_batch(make_bench, close):
    bench, plain = make_bench(resident_bytes=1), make_bench(db=1)
    streams = [f"s{i}" for i in range(5)]
    observations = {s: series("gaussian", 70, seed=i) for i, s in enumerate(streams)}
    answers = {s: [] for s in streams}
    for at in range(0, 70, 5):
        for s in streams:
            answers[s] += bench.observe(s, observations[s][at : at + 5])
            bench.turn()
            assert not bench.worker.engine.streams
            assert all(each.slab is None for each in bench.worker.engine.streams.values())
    for s in streams:
        close(answers[s], plain.observe(s, observations[s]))
        check_answers(answers[s], bench.records(s), bench, s)
    # Rows are given back: five streams in turn never took more than one slab's first ones.
    assert all(slab.rows <= 16 for slab in bench.worker.engine._slabs.values())


def test_the_least_recently_used_goes_first(make_bench):
    bench = make_bench(partitions=1, resident_bytes=28_000)
    for i in range(12):
        bench.observe(f"s{i}", [1.0])
        bench.observe("busy", [1.0])
    bench.turn()
    resident = {name for _, name in bench.worker.engine.streams}
    assert {"busy", "s11"} <= resident
    assert "s0" not in resident
    assert bench.observe("s0", [2.0])[0]["seq"] == 1


def test_lost_between_checkpoint_and_commit(make_bench, close, monkeypatch):
    """Large states are written before the commit: one that was never committed has no effect."""
    monkeypatch.setattr(registry, "COMMITTED_BYTES", 0)
    bench, plain = make_bench(checkpoint_every=8), make_bench(db=1)
    observations = series("gaussian", 120)
    for each in (bench, plain):
        configure(each, "a", "gaussian", location=[0.0], scale=[1.0])
    answers = []
    for at in range(0, 120, 6):
        answers += bench.observe("a", observations[at : at + 3])
        put, commit = bench.worker.engine.store.put_checkpoints, commit_of(bench.worker.log)

        def put_and_fail(*args, put=put):
            put(*args)
            cut()

        def commit_and_fail(commits, commit=commit):
            commit(commits)
            cut()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bench.worker.engine.store, "put_checkpoints", put_and_fail)
            replace_commit(bench.worker.log, commit_and_fail)
            numbers = bench.append(wire.Observe("a", observations[at + 3 : at + 6]))
            bench.turn()
            bench.turn()
        restore_commit(bench.worker.log)
        (outcome,) = bench.outcomes(numbers)
        answers += map(msgspec.json.decode, outcome.body)
        check_bounds(bench, "a")
    close(answers, plain.observe("a", observations))


def test_a_new_life_in_the_same_batch_keeps_its_checkpoint(make_bench, close):
    """The delete drops every state of the stream, but not one made after it."""
    bench, plain = make_bench(checkpoint_every=8), make_bench(db=1)
    observations = series("gaussian", 60)
    bench.observe("a", observations)
    lists = [wire.Observe("a", observations[:20]), wire.Observe("a", observations[20:40])]
    bench.send(wire.Delete("a"), Configure("a", {"location": [0.0], "scale": [1.0]}), *lists)
    assert bench.head("a").checkpoint > 0
    bench.crash()
    configure(plain, "a", "gaussian", location=[0.0], scale=[1.0], max_hypotheses=50)
    plain.ask(Configure("a", {"outlier_rate": None}))
    plain.observe("a", observations[:40])
    close(bench.observe("a", observations[40:]), plain.observe("a", observations[40:]))
    check_bounds(bench, "a")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("history", [0, 1, 63, 64, 100])
def test_history_is_limited(make_bench, history):
    bench = make_bench(checkpoint_every=8)
    configure(bench, "a", "gaussian", history=history)
    answers = []
    for at in range(0, 300, 30):
        answers += bench.observe("a", series("gaussian", 300)[at : at + 30])
        records = bench.records("a")
        assert len(records) == min(history, at + 30)
        check_answers(answers, records, bench, "a")
        check_bounds(bench, "a")


def test_history_may_change_under_way(make_bench):
    bench = make_bench(checkpoint_every=8)
    configure(bench, "a", "gaussian", history=500)
    observations = series("gaussian", 600)
    answers = bench.observe("a", observations[:200])
    bench.ask(Configure("a", {"history": 10}))
    answers += bench.observe("a", observations[200:300])
    assert len(bench.stored("a")["history"]) <= 2
    bench.ask(Configure("a", {"history": 1000}))
    answers += bench.observe("a", observations[300:600])
    head, found = bench.head("a"), bench.stored("a")
    assert head.seq == 600
    # What went does not come back; all that came since is kept.
    chunks = sorted(map(int, found["history"]))
    assert chunks == list(range(head.oldest, chunks[-1] + 1))
    assert head.oldest * 64 <= 300


def test_a_tail_that_only_grows_by_what_is_not_sealed(make_bench):
    bench = make_bench(checkpoint_every=64)
    longest = 0
    for at in range(0, 640, 32):
        bench.observe("a", series("gaussian", 640)[at : at + 32])
        longest = max(longest, len(bench.stored("a")["tail"]))
        check_bounds(bench, "a")
    assert longest <= 160


def test_hand_over_leaves_nothing_to_replay(make_bench):
    bench = make_bench()
    bench.observe("a", series("gaussian", 50))
    bench.stop()
    head = bench.head("a")
    assert head.checkpoint == head.seq == 50
    assert [bench.client.exists(keys.lease(p)) for p in range(2)] == [0, 0]
    assert bench.client.zcard(keys.WORKERS) == 0


def test_numbers_after_20_000_observations_of_one_value_are_finite(make_bench):
    bench = make_bench()
    configure(bench, "a", "gaussian", location=[5.0], scale=[1.0], max_hypotheses=10)
    for _ in range(20):
        (*_, last) = bench.observe("a", [5.0] * 64)
    assert math.isfinite(last["log_score"])
    assert last["run_length"]["map"] == last["seq"]
