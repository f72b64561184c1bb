"""Rows of one command for many streams: what they come to is what single commands come to."""

import json
import random

import pytest

from service import wire
from service.store import keys
from service.wire import Configure, Delete, Ingest, Observation, Observe
from service.worker.streams import registry
from service.worker.streams.task import RowsTask
from tests.remote_write import raw
from tests.service.worker.conftest import Trouble, noise, slug
from tests.service.worker.kinds import INPUTS, LABELS
from tests.service.worker.test_poison import POISON, Poisonous

STREAMS = [f"s{i}" for i in range(12)]


def observation(rng, i, at, model):
    """Of stream i: most are numbers of a level that moves; some are more, or wrong."""
    y = rng.gauss(8.0 if 45 < at <= 60 else 0.0, 1.0)
    seen = Observation(LABELS[model](y), INPUTS[model](y) if model in INPUTS else None)
    if i % 4 == 1:
        seen.time = f"2026-01-01T{at // 60:02}:{at % 60:02}:00Z"
    if i % 4 == 2 and rng.random() < 0.1:
        seen.changepoint = 0.5
    if rng.random() < 0.02:
        seen.y = rng.choice([None, [1.0, 2.0], 1e101, 40.0, -1.5, 0.5])
    return seen


def turns(seed, turns_, model):
    """What comes at a time: observations of distinct streams, some keyed, some repeated."""
    rng = random.Random(seed)
    last = None
    for at in range(turns_):
        turn = []
        for i, name in enumerate(STREAMS):
            if rng.random() < 0.1:
                continue
            count = rng.choice([1, 1, 1, 3]) if i % 2 else 1
            seen = [observation(rng, i, at, model) for _ in range(count)]
            more = {"key": f"k{at}", "digest": "d"} if i % 3 == 0 else {}
            if rng.random() < 0.03:
                more["seq"] = at
            turn.append(Observe(name, seen, **more))
        if last is not None and rng.random() < 0.1:
            turn = last  # once more: those with a key are duplicates
        last = turn
        yield turn


def results(outcomes):
    return [(outcome.status, outcome.body) for outcome in outcomes]


@pytest.mark.parametrize(
    ("seed", "model"),
    [
        (1, "gaussian"),
        (2, "gaussian"),
        (3, "poisson"),
        (4, "gamma"),
        (5, "bernoulli"),
        (6, "joint"),
        (7, "linear"),
    ],
)
def test_rows_come_to_what_single_commands_come_to(make_bench, monkeypatch, seed, model):
    """Bit for bit: answers, refusals, what is stored, and what is raised."""
    ones, many = (make_bench(db=i, partitions=1) for i in range(2))
    ones.default_model = many.default_model = model
    tasks = []
    task_of = RowsTask.task
    monkeypatch.setattr(RowsTask, "task", lambda rows, row: tasks.append(row) or task_of(rows, row))
    sent = 0
    statuses = set()
    for at, turn in enumerate(turns(seed, 70, model)):
        expected = results(ones.send(*turn))
        assert results(many.send_rows(*turn)) == expected
        statuses |= {status for status, _ in expected}
        sent += len(turn)
        for bench in (ones, many):
            if at == 24:
                bench.crash()
            if at == 49:
                bench.stop()
    assert ones.everything(STREAMS) == many.everything(STREAMS)
    assert statuses >= {200, 409, 422}
    assert len(tasks) < 0.9 * sent  # the others were quiet, whole
    assert [many.client.hget(keys.meta(0), name) for name in ("in", "done")] == [
        ones.client.hget(keys.meta(0), name) for name in ("in", "done")
    ]


def test_rows_keep_their_place_among_other_commands(make_bench):
    """Also where an earlier command of their stream, or an earlier row, is not applied yet."""
    ones, many = (make_bench(db=i, partitions=1) for i in range(2))

    def row(name, y):
        return Observe(name, [Observation(y=y)])

    for bench in (ones, many):
        bench.observe("a", [0.1 * i for i in range(40)])
        bench.observe("b", [0.2 * i for i in range(40)])
    first = [row("a", 1.0), row("b", 2.0), row("c", 3.0)]
    second = [row("b", 30.0), row("a", 40.0)]
    others = [Delete("a"), Configure("b", {"anomaly_alarm": 0.9})]
    expected = results(ones.send(row("a", 0.0), *first, *second, *others, *first))
    numbers = many.append(row("a", 0.0))
    numbers += many.append_rows(*first) + many.append_rows(*second)
    numbers += many.append(*others) + many.append_rows(*first)
    assert results(many.outcomes(numbers)) == expected
    for name in "abc":
        assert many.records(name) == ones.records(name)


def test_quiet_rows_of_a_stream_that_wait_together_are_applied_in_order(make_bench):
    ones, many = (make_bench(db=i, partitions=1) for i in range(2))
    rng = random.Random(6)
    for bench in (ones, many):
        for i, name in enumerate("abc"):
            bench.observe(name, noise(60, seed=i))
    levels = [0.0] * 3 + [9.0] * 6  # none of the second level are quiet
    turns = [[Observe(n, [Observation(rng.gauss(y, 1.0))]) for n in "abc"] for y in levels]
    expected = results([outcome for turn in turns for outcome in ones.send(*turn)])
    places = [place for turn in turns for place in many.append_rows(*turn)]
    assert results(many.outcomes(places)) == expected
    assert [many.records(name) for name in "abc"] == [ones.records(name) for name in "abc"]


def test_an_ingest_of_many_streams(make_bench):
    ones, many = (make_bench(db=i, partitions=1) for i in range(2))
    for at in range(3):
        turn = [
            Ingest(
                name,
                [Observation(float(i), time=f"2026-01-01T00:0{at}:{i:02}Z") for i in range(4)],
                settings=raw({"interval": 2.0, "tags": {"host": name}}),
            )
            for name in STREAMS
        ]
        expected = results(ones.send(*turn))
        assert results(many.send_rows(*turn)) == expected
        assert {json.loads(body[0])["applied"] for _, body in expected} == {2}
        (again,) = {body[0] for _, body in results(many.send_rows(*turn))}
        assert json.loads(again)["skipped"] == 4
        ones.send(*turn)
    assert ones.everything(STREAMS) == many.everything(STREAMS)


@pytest.mark.parametrize("interval", [None, 10.0])
def test_samples_of_many_streams_that_come_one_at_a_time(make_bench, monkeypatch, interval):
    """Some are late, repeated, in the same interval or after a gap."""
    ones, many = (make_bench(db=i, partitions=1) for i in range(2))
    tasks = []
    task_of = RowsTask.task
    monkeypatch.setattr(RowsTask, "task", lambda rows, row: tasks.append(row) or task_of(rows, row))
    rng = random.Random(9)
    at_s = dict.fromkeys(STREAMS, 60)
    settings = {"model": "gaussian", "interval": interval, "anomaly_alarm": 0.99}
    applied = 0
    for at in range(110):
        turn = []
        for i, name in enumerate(STREAMS):
            at_s[name] += rng.choice([10, 10, 10, 10, 10, 4, 0, -10, 30])
            seconds = at_s[name] + rng.choice([0.0, 0.25])
            time = f"2026-01-01T00:{int(seconds) // 60:02}:{seconds % 60:05.2f}Z"
            seen = Observation(rng.gauss(8.0 if at > 70 else 0.0, 1.0), time=time)
            if rng.random() < 0.03:
                seen.y = rng.choice([None, 1e101, 60.0])
            own = settings if i % 2 else {"model": "gaussian"}
            turn.append(Ingest(name, [seen], settings=raw(own)))
        expected = results(ones.send(*turn))
        assert results(many.send_rows(*turn)) == expected
        applied += sum(json.loads(body[0])["applied"] for _, body in expected)
        if at == 60:
            ones.crash()
            many.crash()
    assert ones.everything(STREAMS) == many.everything(STREAMS)
    assert applied > 600
    assert len(tasks) < 0.7 * 110 * len(STREAMS)
    assert any(len(ones.feed(name)) for name in STREAMS)


def test_rows_are_applied_in_parts_where_memory_is_short(make_bench, monkeypatch):
    """Each part commits its own rows; a worker that ends between two of them is no harm."""
    bench = make_bench(partitions=1)
    load_first = registry.Engine.load_first

    def few(engine, partition, names, most):
        return load_first(engine, partition, names[:5], most)

    monkeypatch.setattr(registry.Engine, "load_first", few)
    turn = [Observe(name, [Observation(y=1.0)] * 2) for name in STREAMS]
    places = bench.append_rows(*turn)
    bench.turn()
    bench.turn()
    offset = bench.client.hget(keys.meta(0), "offset")
    assert offset.endswith(b":4")
    done = [bench.outcome(*place) is not None for place in places]
    assert done == [True] * 5 + [False] * 7
    bench.crash()
    assert [outcome.status for outcome in bench.outcomes(places)] == [200] * 12
    assert [bench.head(name).seq for name in STREAMS] == [2] * 12
    assert bench.client.hmget(keys.meta(0), ["in", "done"]) == [b"24", b"24"]
    assert bench.client.xlen(keys.log(0)) == 0


@pytest.mark.parametrize("kind", ["refused", "fenced", "cut_before", "cut_after"])
def test_rows_are_applied_once_whatever_becomes_of_their_commit(make_bench, kind):
    bench = make_bench(partitions=1)
    bench.send_rows(*(Observe(name, [Observation(y=1.0)]) for name in STREAMS))
    places = bench.append_rows(*(Observe(name, [Observation(y=2.0)]) for name in STREAMS))
    Trouble(bench, kind)
    bench.turn()
    bench.turn()
    if kind == "fenced":
        bench.client.delete(keys.lease(0))
    assert [outcome.status for outcome in bench.outcomes(places)] == [200] * 12
    assert [bench.head(name).seq for name in STREAMS] == [2] * 12


def test_a_poisonous_row_is_set_aside_alone(make_bench, monkeypatch):
    monkeypatch.setattr("model_core.upm.conjugate.Gaussian", Poisonous)
    bench = make_bench(partitions=1)
    for name in STREAMS:
        bench.ask(Configure(name, {"location": [0.0], "scale": [1.0]}), status=201)
    keyed = {"key": "k", "digest": "d", "full": True}  # as the bench sends them
    turn = [Observe(name, [Observation(y=1.0)], **keyed) for name in STREAMS]
    for poisoned in (4, 9, 11):
        turn[poisoned].observations = [Observation(y=POISON)]
    outcomes = bench.send_rows(*turn)
    failed = [i for i, outcome in enumerate(outcomes) if outcome.status != 200]
    assert failed == [4, 9, 11]
    assert {slug(json.loads(outcomes[i].body[0])) for i in failed} == {"quarantined"}
    assert [bench.head(name).seq for name in STREAMS] == [int(i not in failed) for i in range(12)]
    aside = [wire.decode_envelope(blob).command for blob in bench.quarantine("s0").values()]
    assert [(each.stream, each.key) for each in aside] == [(turn[i].stream, "k") for i in failed]
    assert all(each.observations == [Observation(y=POISON)] for each in aside)
    # Each row of a repeat is answered from its own idempotency record.
    again = bench.send_rows(*turn)
    assert [outcome.status for outcome in again] == [outcome.status for outcome in outcomes]
    assert all(json.loads(again[i].body[0])["duplicate"] for i in range(12) if i not in failed)
    assert bench.client.hmget(keys.meta(0), ["in", "done"]) == [b"36", b"36"]


def test_rows_that_are_damaged_in_the_log_are_all_answered(make_bench):
    """Those that were applied before have their answer, and are not taken back."""
    bench = make_bench(partitions=1)
    turn = [Observe(name, [Observation(y=1.25)]) for name in STREAMS]
    others = bench.append(Observe("other", [Observation(y=1.0)]))
    places = bench.append_rows(*turn)
    (_, (id_, fields)) = bench.client.xrange(keys.log(0))
    bad = fields[b"b"].replace(b"s7", b"s6", 1)
    assert bad != fields[b"b"]
    bench.client.xdel(keys.log(0), id_)
    ms, seq = id_.split(b"-")
    bench.client.xadd(keys.log(0), {**fields, b"b": bad}, b"%s-%d" % (ms, int(seq) + 1))
    outcomes = bench.outcomes(places)
    assert {slug(json.loads(outcome.body[0])) for outcome in outcomes} == {"quarantined"}
    assert [outcome.status for outcome in bench.outcomes(others)] == [200]
    assert bench.client.hmget(keys.meta(0), ["in", "done"]) == [b"13", b"13"]
    assert [outcome.status for outcome in bench.send_rows(*turn)] == [200] * 12
