"""The log of a partition on every topology: append, lease, trials, commit, read.

Which requests are carried out, refused, fenced or repeats: test_protocol.py.
"""

import asyncio
import random
import threading
import time
from itertools import accumulate, dropwhile, product
from unittest.mock import Mock

import numpy as np
import pytest
from redis.exceptions import ConnectionError as Unreachable

from service import wire
from service.store import keys
from service.store import log as logs
from service.store.log import DONE, REMEMBER_MS, START, Appended, Appender, Log, Offset, Pushed
from service.store.shards import is_closed
from service.store.streams import blocks, records_of
from service.wire.stored_records import packed
from tests.service.store.conftest import TTL_MS, P
from tests.stored import block_of, put_records, record
from tests.waiting import until, until_async

pytestmark = pytest.mark.redis
HEADS = keys.heads(P)


def meta(client, *fields):
    """Fields of the partition's bookkeeping, as text."""
    values = client.hmget(keys.meta(P), fields)
    values = [None if value is None else value.decode() for value in values]
    return values[0] if len(fields) == 1 else values


def left(client, partition=P):
    """Ids of the entries in the log."""
    return [id_.decode() for id_, _ in client.xrange(keys.log(partition))]


def lose(log, client, **options):
    """Let a worker vanish: its lease ends, and nobody knows why; then take it again."""
    client.delete(keys.lease(P))
    return log.acquire(P, **options)


# --- append -----------------------------------------------------------------------------------


async def test_append_writes_an_entry_and_counts(redis_client, appender):
    first = await appender.append(P, 0, 3, b"\x00payload\xff", b"\x00")
    second = await appender.append(P, 1, 4, b"two", b"sums")
    assert (first.waiting, second.waiting) == (3, 7)
    assert redis_client.xrange(keys.log(P)) == [
        (first.entry.encode(), {b"b": b"\x00payload\xff", b"c": b"\x00"}),
        (second.entry.encode(), {b"b": b"two", b"c": b"sums"}),
    ]
    assert meta(redis_client, "in") == "7"
    assert REMEMBER_MS - 10_000 < redis_client.pttl(keys.append(P, "i1")) <= REMEMBER_MS


async def test_numbers_belong_to_one_process_and_partition(redis_client, appender):
    other = Appender(appender._client, "i2", max_pending=10)
    responses = await asyncio.gather(
        appender.append(P, 0, 1, b"a"),
        appender.append(P - 1, 0, 1, b"c"),
        appender.append(P - 2, 0, 1, b"d"),
    )
    responses.append(await other.append(P, 0, 1, b"b"))
    assert [each.waiting for each in responses] == [1, 1, 1, 2]
    assert len(left(redis_client)) == 2


async def test_appends_keep_a_connection_until_the_server_closes_it(redis_client, appender):
    await appender.append(P, 0, 1, b"a")
    (kept,) = appender._client._kept.values()
    await appender.append(P, 1, 1, b"b")
    assert [*appender._client._kept.values()] == [kept]
    redis_client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await until_async(lambda: is_closed(kept))
    assert (await appender.append(P, 2, 1, b"c")).waiting == 3
    assert len(left(redis_client)) == 3


async def test_appends_make_a_connection_anew_that_was_closed_here(redis_client, appender):
    await appender.append(P, 0, 1, b"a")
    ((pool, kept),) = appender._client._kept.items()
    await pool.disconnect()
    assert is_closed(kept)
    assert (await appender.append(P, 1, 1, b"b")).waiting == 2
    assert len(left(redis_client)) == 2


async def test_what_is_taken_right_before_an_append_goes_with_it(appender, monkeypatch):
    together = []
    send = appender._client.run

    async def sent(commands):
        together.append(sum(names // 3 for _, _, names, *_ in commands))
        return await send(commands)

    monkeypatch.setattr(appender._client, "run", sent)
    taken = []

    def take(partition, batch_no):
        taken.append(appender.append(partition, batch_no, 1, b"taken"))

    first = appender.append(P, 0, 1, b"a")
    appender.before_next(lambda: take(P - 1, 0))
    await first
    assert (await taken[0]).waiting == 1
    appender.before_next(lambda: None)  # what waited went away
    appender.before_next(lambda: 1 / 0)  # a defect of one partition is none of the others
    appender.before_next(lambda: take(P, 1))
    await until_async(lambda: len(taken) == 2)
    assert (await taken[1]).waiting == 2
    assert together == [2, 1]


async def test_a_full_partition_refuses_until_work_is_done(redis_client, appender, log, make):
    first = await appender.append(P, 0, 8, b"a")
    assert await appender.append(P, 1, 3, b"b") == Appended(None, 8)
    assert (await appender.append(P, 1, 2, b"b")).waiting == 10  # a refusal uses up no number
    assert await appender.append(P, 2, 1, b"c") == Appended(None, 10)
    assert (await appender.append(P, 2, 0, b"reads only")).waiting == 10
    assert (await appender.append(P - 1, 0, 10, b"d")).waiting == 10
    log.commit([make(log.acquire(P), Offset(first.entry, DONE), done=8)])
    assert await appender.append(P, 3, 9, b"e") == Appended(None, 2)
    assert (await appender.append(P, 3, 8, b"e")).waiting == 10
    assert len(left(redis_client)) == 3


async def test_scripts_are_loaded_again_when_forgotten(redis_client, appender, log, make):
    await appender.append(P, 0, 1, b"a")
    (first,) = left(redis_client)
    leases = [log.acquire(P), log.acquire(0)]
    commits = [
        make(leases[0], Offset(first, DONE), done=1),
        make(leases[0], Offset(first, DONE), expected=Offset(first, DONE), done=1),
        make(leases[1], Offset("1-1", DONE)),
    ]
    redis_client.script_flush()
    assert log.commit(commits) == ["OK", "OK", "OK"]
    assert meta(redis_client, "done") == "2"
    redis_client.script_flush()
    assert log.renew(leases) == [True, True]
    assert log.release(leases[0])
    await appender.append(P, 1, 1, b"b")
    assert meta(redis_client, "in") == "2"


# --- leases -----------------------------------------------------------------------------------


def test_acquire_starts_at_the_beginning_and_counts_epochs(redis_client, log):
    first = log.acquire(P)
    assert first[2:] == (1, START, 0, 0, False)
    assert first.token.startswith("w1/")
    assert TTL_MS / 2 < redis_client.pttl(keys.lease(P)) <= TTL_MS
    assert log.acquire(P) is None
    assert log.release(first)
    second = log.acquire(P)
    assert second.epoch == 2
    assert second.token != first.token
    with pytest.raises(ValueError, match="'/'"):  # would look like a token
        Log(redis_client, "a/b", TTL_MS, 4)


def test_renewing_prolongs_a_lease_that_is_ours_and_no_other(redis_client, log, other):
    kept, lost = log.acquire(P), log.acquire(0)
    redis_client.pexpire(keys.lease(P), TTL_MS // 2)
    assert log.renew([kept]) == [True]
    assert redis_client.pttl(keys.lease(P)) > TTL_MS / 2
    redis_client.delete(keys.lease(0))
    assert log.renew([kept, lost]) == [True, False]
    taken = other.acquire(0)
    assert taken.epoch == 2
    redis_client.pexpire(keys.lease(0), TTL_MS // 2)
    assert log.renew([kept, lost]) == [True, False]
    assert not log.release(lost)
    assert redis_client.pttl(keys.lease(0)) <= TTL_MS / 2
    assert other.renew([taken]) == [True]


def test_a_dead_workers_leases_go_and_no_others(redis_client, log, other, add):
    like = Log(redis_client, "w11", TTL_MS, 4)
    add()
    log.acquire(P)
    log.acquire(0)
    assert other.acquire(1)
    assert like.acquire(2)
    assert other.release_worker("w1") == 2
    assert other.acquire(P).attempts == 1  # the dead worker's attempt stays counted
    assert like.acquire(1) is None
    assert log.acquire(2) is None


def test_a_step_of_our_clock_changes_no_deadline(log, monkeypatch):
    """Between two heartbeats it would make every read late, or none."""
    monkeypatch.setattr(time, "time", lambda: 0.0)  # stepped back to 1970
    log.heartbeat()
    seconds, micros = log.client.time()
    now_ms = seconds * 1000 + micros / 1000
    assert abs(time.monotonic() * 1000 + log.ahead_ms - now_ms) < 60_000


def test_heartbeat_lists_the_living(redis_client, log, other):
    assert other.heartbeat() == ["w2"]
    assert log.heartbeat() == ["w1", "w2"]
    until_ms = redis_client.zscore(keys.WORKERS, "w1")
    assert TTL_MS / 2 < until_ms - time.monotonic() * 1000 - log.ahead_ms <= TTL_MS
    redis_client.zadd(keys.WORKERS, {"w1": 1.0})  # its time is over
    assert other.heartbeat() == ["w2"]
    log.heartbeat()
    other.leave()
    assert log.heartbeat() == ["w1"]


def test_each_blamed_acquire_of_waiting_work_counts(redis_client, log, add, make):
    for _ in range(3):  # nothing waits
        assert log.acquire(P).attempts == 0
        log.release_worker("w1")
    first, _ = add(2)
    seen = []
    for blame in (True, True, False, False, True):
        seen.append(log.acquire(P, blame=blame).attempts)
        log.release_worker("w1")
    assert seen == [0, 1, 2, 2, 2]
    log.release(log.acquire(P), clean=False)
    lease = log.acquire(P)
    assert lease.attempts == 4
    assert log.commit([make(lease, START, ("HSET", HEADS, "a", b"1"))]) == ["OK"]
    lease = lose(log, redis_client)
    assert lease.attempts == 5  # effects alone are no progress
    log.release(lease)  # a clean end forgets them
    assert log.acquire(P).attempts == 0
    lease = lose(log, redis_client)
    assert lease.attempts == 1
    assert log.commit([make(lease, Offset(first, DONE))]) == ["OK"]
    assert lose(log, redis_client).attempts == 0  # and so does a moved offset


@pytest.mark.parametrize("gone", [True, False])
def test_a_rolled_back_log_is_moved_up_to_the_offset(redis_client, log, gone, add, make):
    lease = log.acquire(P)
    far = Offset("99999999999999-5", DONE)
    assert log.commit([make(lease, far)]) == ["OK"]
    log.release(lease)
    if not gone:
        redis_client.xadd(keys.log(P), {"b": "old"})
    assert log.acquire(P).offset == far
    assert log.rollbacks == 1
    (new,) = add()
    assert new == "99999999999999-6"
    assert log.read({P: far}, 10, 0)[P][0].id == new
    lose(log, redis_client)
    assert log.rollbacks == 1


def test_counters_that_drifted_are_put_right_when_nothing_waits(redis_client, log, add, make):
    _, second = add(2)
    redis_client.hset(keys.meta(P), mapping={"in": 50, "done": 3})
    lease = log.acquire(P)
    assert meta(redis_client, "done") == "3"
    assert log.commit([make(lease, Offset(second, DONE), done=2)]) == ["OK"]
    log.release(lease)
    log.acquire(P)
    assert meta(redis_client, "in", "done") == ["50", "50"]


# --- leases of which no answer came -----------------------------------------------------------

AWAY = Mock(side_effect=Unreachable("gone"))


@pytest.fixture
def unanswered(log, monkeypatch):
    """Ask for a partition without an answer; returns the token that may be taken still."""

    def unanswered(partition=P):
        with monkeypatch.context() as patch:
            patch.setattr(log.client, "execute_command", AWAY)
            with pytest.raises(Unreachable):
                log.acquire(partition)
        (token,) = log._unsure[partition]
        return token

    return unanswered


def test_leases_that_could_not_be_given_back_are_no_hindrance(log, other, add, monkeypatch):
    """Their worker need not wait for their end once the store is back; another one has to."""
    add()
    lease, second = log.acquire(P), log.acquire(0)
    with monkeypatch.context() as patch:
        patch.setattr(log, "_release_tokens", AWAY)
        log.give_up([lease, second])
        with pytest.raises(Unreachable):
            log.acquire(P)
    assert other.acquire(P) is None
    again = log.acquire(P, blame=False)
    assert (again.epoch, again.attempts) == (2, 1)  # the first attempt alone counts
    assert log.renew([lease, again]) == [False, True]
    log.give_up([])  # the other one, too
    assert other.acquire(0).epoch == 2
    assert log.acquire(0) is None
    assert log.renew([again]) == [True]


def test_a_lease_that_came_without_an_answer_is_given_back(log, other, unanswered, monkeypatch):
    """A server that was stopped takes it when it comes to it: after the next try, even."""
    token, second = unanswered(), unanswered(0)
    log.client.set(keys.lease(P), token, px=60_000)
    log.client.set(keys.lease(0), second, px=60_000)
    assert other.acquire(P) is None
    lease = log.acquire(P)
    assert lease.token != token
    assert not log._unsure[P]
    assert other.acquire(0) is not None  # whether this worker wants it or not
    log.release(lease)
    token, run = unanswered(), log.client.execute_command

    def late(*command):  # carried out between release and acquisition
        run("SET", keys.lease(P), token, "PX", 60_000)
        return run(*command)

    with monkeypatch.context() as patch:
        patch.setattr(log.client, "execute_command", late)
        assert log.acquire(P) is None
    assert list(log._unsure[P]) == [token]
    assert log.acquire(P) is not None  # the next turn


def test_an_acquisition_that_never_came_is_forgotten(log, unanswered, monkeypatch):
    unanswered()
    log.give_back()
    now = time.monotonic()
    for later, forgotten in ((59, False), (62, True)):
        monkeypatch.setattr("service.store.log.time.monotonic", lambda at=now + later: at)
        log.give_back()
        assert (not log._unsure[P]) == forgotten


# --- trials: commands applied alone, and named meanwhile; see test_trials.py ------------------


def test_a_trial_takes_a_lease(redis_client, log, other, add, make):
    first, _ = add(2)
    lease = log.acquire(P)
    assert log.begin_trial(lease, first, 0)
    assert meta(redis_client, "trying") == f"{first}:0"
    assert log.commit([make(lease, Offset(first, 0))]) == ["OK"]
    redis_client.delete(keys.lease(P))
    assert not log.begin_trial(lease, first, 1)
    other.acquire(P)
    assert not log.begin_trial(lease, first, 1)
    assert meta(redis_client, "trying", "tries") == [None, None]


# --- commit -----------------------------------------------------------------------------------


def dump(client):
    names = [keys.log(P), keys.meta(P), HEADS, keys.names(P), keys.changes(P, "a"), keys.feed(P)]
    return {name: client.dump(name) for name in names}


def test_commit_writes_every_effect_and_moves_the_offset(redis_client, log, add, make):
    first, second = add(2)
    redis_client.hset(keys.changes(P, "a"), mapping={"1": "x", "2": "y"})
    redis_client.rpush(keys.tail(P, "a"), "1", "2", "3")
    put_records(redis_client, P, "c", map(record, range(200)))
    redis_client.set(keys.append(P, "z"), "1")
    redis_client.hset(keys.changes(P, "b"), "1", "x")
    results = keys.results(P, "i")
    effects = [
        ("HSET", HEADS, "a", b"\x00\xff", "b", "é"),
        ("ANSWER", results, 60_000, "1-1", "1-1", b"\x00one", "1-2", b"two"),
        ("HDEL", keys.changes(P, "a"), "1", "9"),
        ("UNLINK", keys.tail(P, "a")),
        ("RPUSH", keys.tail(P, "a"), b"\x00four", "five"),
        ("DROP", keys.tail(P, "c"), 130),
        ("CUT", keys.tail(P, "c"), 150),
        ("RPUSH", keys.tail(P, "c"), block_of("c", record(150, 1.0))),
        ("ZADD", keys.names(P), 0, "a", 1.5, "b"),
        ("ZREM", keys.names(P), "b"),
        ("UNLINK", keys.append(P, "z")),
        ("HSET", keys.append(P, "z"), "of", "another type"),
        ("UNLINK", keys.changes(P, "b")),
    ]
    lease = log.acquire(P)
    assert log.commit([make(lease, Offset(first, DONE), *effects, done=7)]) == ["OK"]
    assert redis_client.hgetall(HEADS) == {b"a": b"\x00\xff", b"b": "é".encode()}
    assert redis_client.xrange(results) == [
        (b"1-1", {b"b": b"\x00one"}),
        (b"1-2", {b"b": b"two"}),
    ]
    assert 0 < redis_client.pttl(results) <= 60_000
    assert redis_client.hgetall(keys.changes(P, "a")) == {b"2": b"y"}
    assert redis_client.lrange(keys.tail(P, "a"), 0, -1) == [b"\x00four", b"five"]
    kept = records_of("c", redis_client.lrange(keys.tail(P, "c"), 0, -1))
    assert kept == [*map(record, range(130, 150)), record(150, 1.0)]
    assert redis_client.zrange(keys.names(P), 0, -1, withscores=True) == [(b"a", 0.0)]
    assert redis_client.hlen(keys.append(P, "z")) == 1
    assert not redis_client.exists(keys.changes(P, "b"))
    assert meta(redis_client, "done", "offset") == ["7", f"{first}:-1"]
    assert left(redis_client) == [second]


def test_a_repeated_commit_answers_already_and_writes_nothing(redis_client, log, add, make):
    (first,) = add()
    commit = make(log.acquire(P), Offset(first, DONE), ("HSET", HEADS, "a", "1"), done=1)
    assert log.commit([commit]) == ["OK"]
    redis_client.hset(HEADS, "a", "2")
    before = dump(redis_client)
    assert log.commit([commit]) == ["ALREADY"]
    assert dump(redis_client) == before


def pushed_to(*others, **elements):
    """Elements for tails, and positions of their streams and others."""
    streams = [*others, *elements]
    positions = strings(f"{n:>8}".encode() for n in streams)
    return Pushed(streams, positions, [*elements], strings(elements.values()))


def strings(elements):
    """A list of them in msgpack, each as raw 32."""
    listed = [b"\xdb" + len(element).to_bytes(4, "big") + element for element in elements]
    return packed(len(listed), np.frombuffer(b"".join(listed), np.uint8))


@pytest.mark.parametrize("most", [1, 2, 4096], ids=["each alone", "in pairs", "at once"])
def test_commits_of_several_partitions_go_together(redis_client, log, make, monkeypatch, most):
    monkeypatch.setattr(logs, "MOST_EFFECTS", 2 * most)
    leases = [log.acquire(p) for p in (2, 0, 3, 1)]
    redis_client.delete(keys.lease(3))
    commits = [
        make(lease, START, ("HSET", keys.heads(lease.partition), "a", str(lease.partition)))
        for lease in leases
    ]
    commits[1] = commits[1]._replace(pushed=pushed_to(a=b"x", b=b"y"))
    commits[3].effects.append(("HSET", keys.meta(1), "a", "1"))
    answers = log.commit(commits)
    assert [answer[:7] for answer in answers] == ["OK", "OK", "FENCED", "INVALID"]
    written = [redis_client.hget(keys.heads(p), "a") for p in (2, 0, 3, 1)]
    assert written == [b"2", b"0", None, None]
    assert [redis_client.lrange(keys.tail(0, name), 0, -1) for name in "ab"] == [[b"x"], [b"y"]]
    assert log.commit([]) == []
    with pytest.raises(ValueError, match="partition 2"):
        log.commit([make(leases[0], START, ("HSET", keys.heads(0), "a", "1"))])


def test_trimming_drops_whole_applied_entries_and_no_others(redis_client, log, add, make):
    ids = add(300)
    lease = log.acquire(P)
    expected = lease.offset
    steps = [(0, 0), (0, 4), (0, DONE), (7, DONE), (99, 2), (99, DONE), (298, DONE), (299, DONE)]
    for at, index in steps:
        new = Offset(ids[at], index)
        assert log.commit([make(lease, new, expected=expected, done=1)]) == ["OK"]
        first = at + 1 if index == DONE else at
        assert left(redis_client) == ids[first:]
        log.release(lease)
        lease = log.acquire(P)
        assert lease.offset == new
        assert len(log.read({P: new}, 1000, 0).get(P, [])) == 300 - first
        expected = new
    (new,) = add()
    assert log.read({P: Offset(ids[-1], DONE)}, 10, 0)[P][0].id == new


def test_huge_sequence_numbers_trim_only_the_applied(redis_client, log, make):
    """Sequence numbers that a double cannot hold: an entry may stay longer, never go early."""
    big = [f"5-{2**63 + i}" for i in range(3)]
    for id_ in ("4-0", *big, "6-0"):
        redis_client.xadd(keys.log(P), {"b": id_}, id=id_)
    lease = log.acquire(P)
    expected, lengths = lease.offset, []
    for new in (Offset("4-0", DONE), Offset(big[0], 2), Offset(big[1], DONE), Offset("6-0", DONE)):
        assert log.commit([make(lease, new, expected=expected)]) == ["OK"]
        lengths.append(redis_client.xlen(keys.log(P)))
        expected = new
    assert lengths == [4, 4, 3, 0]


BAD = [
    ("RPUSH", HEADS, "a"),
    ("HSET", HEADS, "a"),
    ("HSET", HEADS),
    ("HDEL", HEADS),
    ("ZADD", keys.names(P), "x", "a"),
    ("ZADD", keys.names(P), float("nan"), "a"),
    ("ZADD", keys.names(P), 0),
    ("ZREM", keys.names(P)),
    ("UNLINK", HEADS, "a"),
    ("ANSWER", keys.results(P, "i"), "soon", "1-1", "1-1", b"x"),
    ("ANSWER", keys.results(P, "i"), -5, "1-1", "1-1", b"x"),
    ("ANSWER", keys.results(P, "i"), 60_000, "1-1", "1-1"),
    ("ANSWER", keys.results(P, "i"), 60_000, "1", "1-1", b"x"),
    ("ANSWER", keys.results(P, "i"), 60_000, "1-1", "1-*", b"x"),
    ("ANSWER", HEADS, 60_000, "1-1", "1-1", b"x"),
    ("HSET", keys.names(P), "a", "b"),  # a sorted set
    ("ZADD", keys.changes(P, "a"), 0, "a"),  # becomes a hash earlier in the commit
    ("DROP", HEADS, 5),
    ("DROP", keys.tail(P, "a"), "-5"),
    ("CUT", keys.tail(P, "a"), "x"),
    ("CUT", keys.tail(P, "a")),
    ("UNLINK", keys.lease(P)),
    ("HSET", keys.meta(P), "offset", "0-0:-1"),
    ("UNLINK", keys.log(P)),
    ("FEED", keys.feed(P), 10, "5-1"),
    ("FEED", keys.feed(P), 0, "5-1", b"e"),
    ("FEED", keys.feed(P), 10, "5-1", b"e", "5-1", b"f"),
    ("FEED", keys.feed(P), 10, "5-10", b"e", "5-9", b"f"),
    ("FEED", keys.feed(P), 10, "0-0", b"e"),
    ("FEED", keys.feed(P), 10, "5-*", b"e"),
    ("FEED", keys.feed(P), 10, "5-01", b"e"),
    ("FEED", keys.feed(P), 10, "5-18446744073709551616", b"e"),
    ("FEED", HEADS, 10, "5-1", b"e"),
]


def test_a_bad_effect_leaves_everything_unwritten(redis_client, log, add, make):
    (first,) = add()
    redis_client.zadd(keys.names(P), {"z": 0})
    redis_client.hset(HEADS, "z", "1")
    lease, healthy = log.acquire(P), log.acquire(0)
    good = ("HSET", keys.changes(P, "a"), "0", b"x")
    before = dump(redis_client)
    for bad in BAD:
        commit = make(lease, Offset(first, DONE), good, bad, good, done=1)
        answers = log.commit([commit, make(healthy, START)])
        assert answers[0].startswith("INVALID: "), bad
        assert answers[1] == "OK"  # the fault hurts one partition
        assert dump(redis_client) == before, bad


def test_tails_and_positions_are_written_of_all_streams_or_nothing_is_done(
    redis_client, log, add, make
):
    entries = [*map(Offset, add(2), (DONE, DONE))]
    lease = log.acquire(P)
    tails = [keys.tail(P, name) for name in ("a", "b:tail:c", "c")]
    redis_client.rpush(tails[0], "old")
    redis_client.rpush(tails[1], "old")
    long = b"y" * 70_000
    pushed = pushed_to("e", **{"a": b"", "b:tail:c": long, "c": b"z"})
    commit = make(lease, entries[0])._replace(pushed=pushed)
    assert log.commit([commit]) == ["OK"]
    held = [redis_client.lrange(key, 0, -1) for key in tails]
    assert held == [[b"old", b""], [b"old", long], [b"z"]]
    assert redis_client.hmget(HEADS, pushed.streams) == [
        b"       e",
        b"       a",
        b"b:tail:c",
        b"       c",
    ]
    redis_client.set(keys.tail(P, "d"), "no list")
    for wrong in (
        pushed_to(a=b"x", d=b"y"),
        pushed._replace(tails=pushed.tails[:-1]),
        pushed._replace(tails=pushed.tails + b"x"),
        pushed._replace(tails=pushed.tails[:2]),
        pushed._replace(streams=pushed.streams[1:]),
        pushed._replace(positions=pushed.positions + b"x"),
        pushed._replace(positions=pushed_to(a=b"x").positions),
    ):
        commit = make(lease, entries[1], expected=entries[0])
        (answer,) = log.commit([commit._replace(pushed=wrong)])
        assert answer.startswith("INVALID: ")
    assert [redis_client.lrange(key, 0, -1) for key in tails] == held
    redis_client.delete(HEADS)
    redis_client.set(HEADS, "no hash")
    (answer,) = log.commit([commit._replace(pushed=pushed)])
    assert answer == "INVALID: the heads are a string"
    assert [redis_client.lrange(key, 0, -1) for key in tails] == held
    commit = make(lease, entries[1], ("UNLINK", tails[0]), expected=entries[0])
    with pytest.raises(ValueError, match="pushed to"):
        log.commit([commit._replace(pushed=pushed)])


SIZES = {
    "alike": [3] * 70,
    "single rows": [1] * 200,
    "a list, then single rows": [64, 36, *[1] * 99],
    "single rows, then lists": [*[1] * 30, 64, 64],
    "any": random.Random(5).choices(range(1, 9), k=40),
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_a_drop_leaves_all_blocks_with_later_rows(redis_client, log, make, sizes):
    key, place, row = keys.tail(P, "a"), wire.place_of("tail", "a"), wire.encode_row(record(0))
    lease = log.acquire(P)
    for begin, damaged in product((0, 70_000), (None, 0, 5)):
        ends = [begin + end for end in accumulate(sizes)]
        tail = [
            (end, blocks(place, end - n, [row] * n)[0]) for n, end in zip(sizes, ends, strict=True)
        ]
        if damaged is not None:  # it goes with those before it
            tail[damaged] = (0, b"?")
        for position in sorted({*range(begin, ends[-1] + 2, 7), begin + 31, *ends}):
            redis_client.delete(key)
            redis_client.rpush(key, *(block for _, block in tail))
            assert log.commit([make(lease, START, ("DROP", key, position))]) == ["OK"]
            left = [*dropwhile(lambda each, at=position: each[0] <= at, tail)]
            assert redis_client.lrange(key, 0, -1) == [block for _, block in left]


def test_effects_may_exceed_what_lua_can_unpack(redis_client, log, add, make):
    (first,) = add()
    fields = [part for i in range(20_001) for part in (f"f{i}", str(i))]
    members = [part for i in range(9_000) for part in (0, f"m{i}")]
    effects = [
        ("HSET", HEADS, *fields),
        ("ZADD", keys.names(P), *members),
        ("HDEL", HEADS, *fields[0:18_000:2]),
        ("ZREM", keys.names(P), *members[3::2]),
        *(("RPUSH", keys.tail(P, f"s{i}"), i, b"x") for i in range(9_000)),
    ]
    assert log.commit([make(log.acquire(P), Offset(first, DONE), *effects)]) == ["OK"]
    assert redis_client.hlen(HEADS) == 11_001
    assert redis_client.hget(HEADS, "f20000") == b"20000"
    assert redis_client.zrange(keys.names(P), 0, -1) == [b"m0"]
    assert redis_client.lrange(keys.tail(P, "s8999"), 0, -1) == [b"8999", b"x"]


# --- feeds ------------------------------------------------------------------------------------


def test_a_feed_takes_each_entry_once_and_names_the_one_before(redis_client, log, make):
    lease, feed = log.acquire(P), keys.feed(P)
    big = f"9-{2**63}"
    first = ("FEED", feed, 10, "5-7", b"a", "5-10", b"b", big, b"\x00")
    assert log.commit([make(lease, START, first)]) == ["OK"]
    # The same effect again, whole and in part: an id says what is there already.
    again = ("FEED", feed, 10, "5-10", b"b", big, b"\x00", f"9-{2**63 + 1}", b"d")
    assert log.commit([make(lease, START, first), make(lease, START, again)]) == ["OK", "OK"]
    entries = [(id_.decode(), f[b"e"], f[b"b"].decode()) for id_, f in redis_client.xrange(feed)]
    assert entries == [
        ("5-7", b"a", "0-0"),
        ("5-10", b"b", "5-7"),
        (big, b"\x00", "5-10"),
        (f"9-{2**63 + 1}", b"d", big),
    ]


def test_a_feed_is_bounded(redis_client, log, make):
    lease, feed = log.acquire(P), keys.feed(P)
    parts = [part for i in range(1, 2001) for part in (f"{i}-0", b"x")]
    assert log.commit([make(lease, START, ("FEED", feed, 100, *parts))]) == ["OK"]
    assert 100 <= redis_client.xlen(feed) <= 300  # whole nodes of a stream go at a time
    ((last, fields),) = redis_client.xrevrange(feed, count=1)
    assert (last, fields[b"b"]) == (b"2000-0", b"1999-0")


# --- results ----------------------------------------------------------------------------------


def test_results_before_the_oldest_go_and_later_ids_than_a_commits_are_of_no_use(
    redis_client, log, make
):
    lease, key = log.acquire(P), keys.results(P, "i")

    def ids_after(oldest, *ids):
        parts = [part for id_ in ids for part in (id_, b"x")]
        assert log.commit([make(lease, START, ("ANSWER", key, 60_000, oldest, *parts))]) == ["OK"]
        return [id_.decode() for id_, _ in redis_client.xrange(key)]

    assert ids_after("1-1", "1-1", "1-2", "1-9", "1-10") == ["1-1", "1-2", "1-9", "1-10"]
    assert ids_after("1-9", "1-11") == ["1-9", "1-10", "1-11"]
    assert ids_after("2-1", "2-1") == ["2-1"]
    assert ids_after("1-11", "1-12", "1-13") == ["1-12", "1-13"]  # another life of the store


def test_of_long_results_the_id_alone_is_published(redis_client, log, make):
    lease, key = log.acquire(P), keys.results(P, "i")
    with redis_client.pubsub() as listener:
        listener.ssubscribe(key)
        until(lambda: listener.get_message(timeout=1))
        parts = ("1-1", b"x" * 262_144, "1-2", b"x" * 262_145, "1-3", b"y")
        assert log.commit([make(lease, START, ("ANSWER", key, 60_000, "1-1", *parts))]) == ["OK"]
        messages = [until(lambda: listener.get_message(timeout=1))["data"] for _ in range(2)]
    said = f"{P} 1-1 262144 {P} 1-2 0\n".encode()
    assert messages == [said + b"x" * 262_144, f"{P} 1-3 1\ny".encode()]
    assert redis_client.xlen(key) == 3


def test_what_several_partitions_answer_to_a_process_is_published_together(
    redis_client, redis_url, log, make
):
    if redis_url.startswith("redis+cluster"):
        pytest.skip("a script has the partitions of one slot")
    leases = {p: log.acquire(p) for p in (P, 0)}
    answers = [("1-1", b"aa"), ("1-7", b"b")]
    with redis_client.pubsub() as listener:
        for process in ("i", "j"):
            listener.ssubscribe(*[keys.results(p, process) for p in (P, 0)])
        for _ in range(4):
            until(lambda: listener.get_message(timeout=1))
        commits = [
            make(lease, START, *[
                ("ANSWER", keys.results(p, process), 60_000, "1-1", *answer)
                for process in ("i", "j")
            ])
            for (p, lease), answer in zip(leases.items(), answers, strict=True)
        ]  # fmt: skip
        assert log.commit(commits) == ["OK", "OK"]
        heard = [until(lambda: listener.get_message(timeout=1)) for _ in range(2)]
    told = {each["channel"].decode(): each["data"] for each in heard}
    message = f"{P} 1-1 2 0 1-7 1\naab".encode()
    assert told == {keys.results(P, "i"): message, keys.results(P, "j"): message}


# --- read -------------------------------------------------------------------------------------


def test_read_returns_what_is_beyond_each_offset(redis_client, log, add):
    ids, more = add(3), add(2, partition=0)
    by_partition = log.read({P: Offset(ids[0], DONE), 0: START, 1: START}, count=10, block_ms=0)
    assert {p: [entry.id for entry in entries] for p, entries in by_partition.items()} == {
        P: ids[1:],
        0: more,
    }
    assert by_partition[P][0].payload == b"e1"
    assert len(log.read({P: START}, count=2, block_ms=0)[P]) == 2
    assert log.read({1: START}, count=2, block_ms=0) == {}
    assert log.read({}, count=2, block_ms=0) == {}


def test_an_entry_applied_in_part_is_read_again(redis_client, log):
    for id_ in ("5-0", "5-1", "6-0"):
        redis_client.xadd(keys.log(P), {"b": id_}, id=id_)
    for offset, first in [(("5-0", 0), "5-0"), (("5-1", 7), "5-1"), (("6-0", 1), "6-0")]:
        entries = log.read({P: Offset(*offset)}, count=1, block_ms=0)[P]
        assert (entries[0].id, entries[0].payload) == (first, first.encode())
    assert log.read({P: Offset("5-1", DONE)}, 1, 0)[P][0].id == "6-0"
    for offset in (START, Offset("5-18446744073709551615", DONE), Offset("7-1", 0)):
        assert Offset.parse(str(offset)) == Offset.parse(str(offset).encode()) == offset


def test_read_waits_for_the_first_entry(redis_url, log, add):
    thread = threading.Timer(0.05, add)
    thread.start()
    entries = []
    while not entries:  # a read waits for a second at most
        entries = log.read({P: START}, count=10, block_ms=1000).get(P, [])
    thread.join()
    assert len(entries) == 1
    began = time.monotonic()
    assert log.read({0: START}, count=10, block_ms=50) == {}
    assert time.monotonic() - began >= 0.04


def test_a_wait_from_elsewhere_is_given_up(log, add):
    assert log.read({P: START}, count=10, block_ms=20) == {}  # it goes on
    first, second = add(2)
    found = log.read({P: Offset(first, DONE)}, count=10, block_ms=1000)
    assert [entry.id for entry in found[P]] == [second]


def test_a_wait_that_a_server_closed_is_lost_and_the_next_begins_anew(redis_client, log, add):
    assert log.read({P: START, 0: START}, count=10, block_ms=20) == {}  # it goes on
    redis_client.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(Unreachable):
        log.read({P: START, 0: START}, count=10, block_ms=1000)
    assert log.read({P: START, 0: START}, count=10, block_ms=20) == {}
    ids = add()
    assert [entry.id for entry in log.read({P: START}, count=10, block_ms=1000)[P]] == ids
