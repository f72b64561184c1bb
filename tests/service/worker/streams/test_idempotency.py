"""A keyed command has its effect once; its repeats are answered from memory and say so."""

import json

import pytest

from service.wire import Configure, Delete, Observation, Observe, checked, decode_idempotency


def keyed(y, key="k", digest="d", stream="a", **more):
    return Observe(stream, [Observation(y=v) for v in y], key=key, digest=digest, **more)


def bodies(outcome):
    return [json.loads(each) for each in outcome.body]


def same_but_marked(repeat, first):
    assert repeat.status == first.status
    for again, once in zip(bodies(repeat), bodies(first), strict=True):
        if "duplicate" in once:
            assert (once["duplicate"], again["duplicate"]) == (False, True)
        assert {**again, "duplicate": None} == {**once, "duplicate": None}


@pytest.mark.parametrize("leave", [None, "stop", "crash"])
def test_a_repeat_has_no_effect(bench, leave):
    (first,) = bench.send(keyed([1.0, 2.0], first=32))
    ((field, blob),) = bench.stored("a")["idempotency"].items()
    record = decode_idempotency(checked(blob, "idempotency", "a", "k\x0032"))
    assert field == b"k\x0032"
    assert (record.digest, record.time_ms, record.status) == ("d", bench.now_ms, 200)
    assert (record.body, record.answers) == (first.stored.body, first.stored.answers)
    assert [answer.seq for answer in record.answers.parts] == [0, 1]
    if leave:
        getattr(bench, leave)()
    before = bench.stored("a")
    for _ in range(2):
        (again,) = bench.send(keyed([1.0, 2.0], first=32))
        same_but_marked(again, first)
        (other,) = bench.send(keyed([3.0], digest="e", first=32))
        assert other.status == 422
        assert bodies(other)[0]["applied"] == 0
        assert bench.stored("a") == before
    bench.ask(Configure("a", {"max_hypotheses": 2}))
    bench.observe("a", [3.0])
    (again,) = bench.send(keyed([1.0, 2.0], first=32))
    same_but_marked(again, first)
    assert bench.head("a").seq == 3
    (other,) = bench.send(keyed([1.0], stream="b"))
    assert not bodies(other)[0]["duplicate"]


def test_within_one_batch(bench):
    first, again, other, more = bench.send(
        keyed([1.0, 2.0]), keyed([1.0, 2.0]), keyed([1.0], digest="e"), keyed([5.0], key="k2")
    )
    same_but_marked(again, first)
    assert other.status == 422
    assert bodies(other)[0]["type"].endswith("key-reused")
    assert bodies(more)[0]["seq"] == 2
    assert bench.head("a").seq == 3


def test_parts_of_a_list_are_remembered_one_by_one(bench):
    parts = [keyed([float(i)] * 3, first=3 * i) for i in range(4)]
    first = bench.send(*parts[:2])
    # The client lost its answers and sends the whole list again.
    again = bench.send(*parts)
    for a, b in zip(again[:2], first, strict=True):
        same_but_marked(a, b)
    assert [bodies(o)[0]["duplicate"] for o in again] == [True, True, False, False]
    assert [bodies(o)[0]["seq"] for o in again] == [0, 3, 6, 9]
    assert bench.head("a").seq == 12
    (other,) = bench.send(keyed([9.0], digest="another body", first=3))
    assert other.status == 422


@pytest.mark.parametrize("leave", [None, "stop", "crash"])
def test_a_late_repeat_does_not_bring_a_deleted_stream_back(bench, leave):
    (first,) = bench.send(keyed([1.0]))
    bench.send(Delete("a"))
    if leave:
        getattr(bench, leave)()
    (again,) = bench.send(keyed([1.0]))
    same_but_marked(again, first)
    assert bench.head("a").deleted
    assert not bench.stored("a")["named"]
    # A new life begins with a new key; the old one is still known.
    assert bodies(bench.send(keyed([7.0], key="new"))[0])[0]["seq"] == 0
    (again,) = bench.send(keyed([1.0]))
    same_but_marked(again, first)
    assert bench.head("a").generation == 2
    assert bench.head("a").seq == 1


def test_a_refusal_is_an_outcome_like_any_other(bench):
    bench.observe("a", [1.0])
    (first,) = bench.send(keyed([1.0, 2.0], seq=5))
    assert first.status == 409
    assert bodies(first)[0]["seq"] == 1
    bench.observe("a", [1.0] * 4)
    (again,) = bench.send(keyed([1.0, 2.0], seq=5))
    same_but_marked(again, first)
    assert bench.head("a").seq == 5


def test_old_ones_go_when_there_are_enough_newer(make_bench):
    bench = make_bench(idempotency_keep_s=10.0, idempotency_keep_requests=3)
    for i in range(6):
        bench.now_ms += 1
        bench.send(keyed([float(i)], key=f"k{i}"))
    assert len(bench.stored("a")["idempotency"]) == 6  # young
    bench.now_ms += 20_000
    bench.send(keyed([0.0], key="k6"))
    stored = bench.stored("a")["idempotency"]
    assert sorted(stored) == [b"k4\x000", b"k5\x000", b"k6\x000"]
    bench.now_ms += 1_000_000
    bench.crash()
    (again,) = bench.send(keyed([4.0], key="k4"))
    assert bodies(again)[0]["duplicate"]  # old, but among the newest
    (once,) = bench.send(keyed([0.0], key="k0"))
    assert not bodies(once)[0]["duplicate"]
    assert sorted(bench.stored("a")["idempotency"]) == [b"k0\x000", b"k5\x000", b"k6\x000"]
