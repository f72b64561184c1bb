"""A stream that is handed over or lost goes on as if nothing had happened; what it keeps."""

import msgspec
import redis

from service import wire
from service.store import keys
from service.store.streams import BLOCK, records_of
from service.wire import Configure
from service.worker import worker as worker_module
from service.worker.streams import registry
from tests.service.worker.conftest import commit_of, replace_commit, restore_commit
from tests.service.worker.kinds import KINDS, configure, series
from tests.stored import as_kept

KNOWN = {"location": [0.0], "scale": [1.0]}


def check_answers(answers, records, bench, stream):
    """Every retained observation is there once, with the answer it got."""
    by_seq = {answer["seq"]: answer for answer in answers}
    head = bench.head(stream)
    oldest = max(0, head.seq - head.settings.history)
    assert [r.seq for r in records] == list(range(oldest, head.seq))
    for record in records:
        answer = by_seq[record.seq]
        with_anomaly = msgspec.structs.replace(record, anomaly=answer["anomaly"])
        assert record == as_kept(with_anomaly, answer)
        if answer["run_length"]:
            assert record.map_run_length == answer["run_length"]["map"]


def check_bounds(bench, stream):
    """A checkpoint, and a tail from it on, and as long as the history, or not much longer."""
    stored, head = bench.stored(stream), bench.head(stream)
    every = bench.settings.checkpoint_every
    assert (stored["checkpoint"] is not None) == (head.checkpoint > 0)
    if head.warm:
        tail = [record.seq for record in records_of(stream, stored["tail"])]
        first = min(tail, default=head.seq)
        assert tail == [*range(first, head.seq)]
        assert first <= head.oldest < first + BLOCK
        assert head.oldest <= min(head.checkpoint, head.retained_from)
        assert len(tail) <= max(head.settings.history, every) + 2 * BLOCK + every + 32


def test_a_commit_of_unknown_outcome_has_its_checkpoint_or_not(make_bench, close):
    bench, plain = make_bench(checkpoint_every=8), make_bench(db=1)
    observations = series(KINDS["gaussian"], 90)
    for each in (bench, plain):
        each.ask(Configure("a", KNOWN), status=201)
    answers = []
    for at in range(0, 90, 6):
        answers += bench.observe("a", observations[at : at + 3])
        commit = commit_of(bench.worker.log)

        def commit_and_fail(commits, commit=commit):
            commit(commits)
            raise redis.ConnectionError("cut")

        replace_commit(bench.worker.log, commit_and_fail)
        numbers = bench.append(wire.Observe("a", observations[at + 3 : at + 6]))
        bench.turn()
        restore_commit(bench.worker.log)
        (outcome,) = bench.outcomes(numbers)
        answers += map(msgspec.json.decode, outcome.body)
        if at % 30 == 0:
            bench.crash()
        check_bounds(bench, "a")
    close(answers, plain.observe("a", observations))


def test_states_that_are_too_many_for_one_commit(make_bench, close, monkeypatch):
    """Others wait for a later one of their stream; a hand-over leaves none."""
    monkeypatch.setattr(registry, "STATES_BYTES", 1)
    monkeypatch.setattr(worker_module, "STATES_BYTES", 1)
    bench, plain = make_bench(checkpoint_every=8), make_bench(db=1)
    observations = series(KINDS["gaussian"], 60)
    for name in "ab":
        bench.ask(Configure(name, KNOWN), status=201)
    bench.send(*(wire.Observe(name, observations[:30]) for name in "ab"))
    assert sorted(bool(bench.head(name).checkpoint) for name in "ab") == [False, True]
    bench.stop()
    assert [bench.head(name).checkpoint for name in "ab"] == [30, 30]
    plain.ask(Configure("b", KNOWN), status=201)
    plain.observe("b", observations[:30])
    close(bench.observe("b", observations[30:]), plain.observe("b", observations[30:]))


def test_a_new_life_in_the_same_batch_keeps_its_checkpoint(make_bench, close):
    """The delete drops the state of the stream, but not the one made after it."""
    bench, plain = make_bench(checkpoint_every=8), make_bench(db=1)
    observations = series(KINDS["gaussian"], 60)
    bench.observe("a", observations)
    lists = [wire.Observe("a", observations[:20]), wire.Observe("a", observations[20:40])]
    bench.send(wire.Delete("a"), Configure("a", KNOWN), *lists)
    assert bench.head("a").checkpoint > 0
    bench.crash()
    plain.ask(Configure("a", KNOWN), status=201)
    plain.observe("a", observations[:40])
    close(bench.observe("a", observations[40:]), plain.observe("a", observations[40:]))
    check_bounds(bench, "a")


def test_hand_over_leaves_nothing_to_replay(bench):
    bench.observe("a", series(KINDS["gaussian"], 50))
    bench.stop()
    head = bench.head("a")
    assert head.checkpoint == head.seq == 50
    assert [bench.client.exists(keys.lease(p)) for p in range(2)] == [0, 0]
    assert bench.client.zcard(keys.WORKERS) == 0


# --- history ------------------------------------------------------------------------------------


def test_history_is_limited(make_bench):
    bench = make_bench(checkpoint_every=8)
    observations = series(KINDS["gaussian"], 150)
    for history in (0, 1, 64, 100):
        name = f"h{history}"
        bench.ask(Configure(name, {"history": history}), status=201)
        answers = []
        for at in range(0, 150, 30):
            answers += bench.observe(name, observations[at : at + 30])
            records = bench.records(name)
            assert len(records) == min(history, at + 30)
            check_answers(answers, records, bench, name)
            check_bounds(bench, name)


def test_history_may_change_under_way(make_bench):
    bench = make_bench(checkpoint_every=8)
    configure(bench, "a", KINDS["gaussian"], history=500)
    observations = series(KINDS["gaussian"], 600)
    bench.observe("a", observations[:200])
    bench.ask(Configure("a", {"history": 10}))
    bench.observe("a", observations[200:300])
    check_bounds(bench, "a")
    assert 200 < bench.head("a").oldest <= 290
    bench.ask(Configure("a", {"history": 1000}))
    bench.observe("a", observations[300:600])
    assert bench.head("a").seq == 600
    # What was past the shorter history does not come back; all that came since is kept.
    assert bench.head("a").oldest == 290
    check_bounds(bench, "a")
