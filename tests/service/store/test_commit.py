"""One atomic commit: everything, or nothing."""

import pytest

from service.store import keys
from service.store.log import DONE, START, Offset

pytestmark = pytest.mark.redis
P = 3
HEADS = keys.heads(P)


def meta(client, field):
    return client.hget(keys.meta(P), field)


def dump(client):
    return {key: client.dump(key) for key in client.scan_iter() if key != keys.lease(P).encode()}


def test_commit_writes_every_effect_and_moves_the_offset(redis_client, log, add, make):
    first, second = add(2)
    redis_client.hset(keys.tail(P, "a"), mapping={"1": "x", "2": "y"})
    redis_client.set(keys.append(P, "z"), "1")
    redis_client.hset(keys.history(P, "b"), "1", "x")
    listener = redis_client.pubsub()
    listener.subscribe("moca:reply:i")
    listener.get_message(timeout=1)
    lease = log.acquire(P)
    out = keys.outcomes(P, "i", 5)
    effects = [
        ("HSET", HEADS, "a", b"\x00\xff", "b", "é"),
        ("HSET", out, 5, 1690000000000123),
        ("PEXPIRE", out, 60_000),
        ("HDEL", keys.tail(P, "a"), "1", "9"),
        ("ZADD", keys.names(P), 0, "a", 1.5, "b"),
        ("ZREM", keys.names(P), "b"),
        ("DEL", keys.append(P, "z")),
        ("UNLINK", keys.history(P, "b")),
    ]
    commit = make(lease, Offset(first, DONE), *effects, done=7, publish=[("moca:reply:i", b"\x01")])
    assert log.commit([commit]) == ["OK"]
    assert redis_client.hgetall(HEADS) == {b"a": b"\x00\xff", b"b": "é".encode()}
    assert redis_client.hget(out, "5") == b"1690000000000123"
    assert 0 < redis_client.pttl(out) <= 60_000
    assert redis_client.hgetall(keys.tail(P, "a")) == {b"2": b"y"}
    assert redis_client.zrange(keys.names(P), 0, -1, withscores=True) == [(b"a", 0.0)]
    assert not redis_client.exists(keys.append(P, "z"), keys.history(P, "b"))
    assert meta(redis_client, "done") == b"7"
    assert meta(redis_client, "offset") == f"{first}:-1".encode()
    assert [id_.decode() for id_, _ in redis_client.xrange(keys.log(P))] == [second]
    assert listener.get_message(timeout=1)["data"] == b"\x01"
    listener.close()


def test_a_repeated_commit_answers_already_and_writes_nothing(redis_client, log, add, make):
    (first,) = add()
    lease = log.acquire(P)
    commit = make(lease, Offset(first, DONE), ("HSET", HEADS, "a", "1"), done=1)
    assert log.commit([commit]) == ["OK"]
    redis_client.hset(HEADS, "a", "2")
    before = dump(redis_client)
    assert log.commit([commit]) == ["ALREADY"]
    assert dump(redis_client) == before


def test_a_lost_lease_is_fenced(redis_client, log, other, add, make):
    first, second = add(2)
    lease = log.acquire(P)
    redis_client.delete(keys.lease(P))
    commit = make(lease, Offset(first, DONE), ("HSET", HEADS, "a", "1"))
    before = dump(redis_client)
    assert log.commit([commit]) == ["FENCED"]  # nobody's
    assert dump(redis_client) == before
    taken = other.acquire(P)
    before = dump(redis_client)
    assert log.commit([commit]) == ["FENCED"]  # somebody else's
    assert dump(redis_client) == before
    assert other.commit([make(taken, Offset(first, DONE))]) == ["OK"]
    assert log.commit([commit]) == ["FENCED"]  # its offset, but not its token: not ALREADY
    assert other.commit([make(taken, Offset(second, DONE))]) == ["FENCED"]  # wrong expectation


def test_two_commits_race_and_one_wins(redis_client, log, add, make):
    """Same token, same expected offset, different new ones: the second comes too late."""
    first, second = add(2)
    lease = log.acquire(P)
    both = [
        make(lease, Offset(entry, DONE), ("HSET", HEADS, "a", entry), done=1)
        for entry in (first, second)
    ]
    assert log.commit(both) == ["OK", "FENCED"]
    assert redis_client.hget(HEADS, "a") == first.encode()
    assert meta(redis_client, "done") == b"1"


def test_partial_offsets_keep_their_entry(redis_client, log, add, make):
    first, second = add(2)
    lease = log.acquire(P)
    offsets = [Offset(first, 0), Offset(first, 4), Offset(first, DONE), Offset(second, 2)]
    expected, left = lease.offset, []
    for new in offsets:
        assert log.commit([make(lease, new, expected=expected, done=1)]) == ["OK"]
        left.append([id_.decode() for id_, _ in redis_client.xrange(keys.log(P))])
        expected = new
    assert left == [[first, second], [first, second], [second], [second]]
    log.release(lease)
    lease = log.acquire(P)
    assert lease.offset == offsets[-1]
    assert log.read({P: lease.offset}, 5, 0)[P][0].id == second


def test_trimming_never_drops_what_is_not_applied(redis_client, log, add, make):
    ids = add(300)
    lease = log.acquire(P)
    expected = lease.offset
    for at in (0, 7, 99, 100, 298):
        assert log.commit([make(lease, Offset(ids[at], DONE), expected=expected)]) == ["OK"]
        expected = Offset(ids[at], DONE)
        assert [id_.decode() for id_, _ in redis_client.xrange(keys.log(P))] == ids[at + 1 :]
        assert len(log.read({P: expected}, 1000, 0)[P]) == 299 - at
    assert log.commit([make(lease, Offset(ids[-1], DONE), expected=expected)]) == ["OK"]
    assert redis_client.xlen(keys.log(P)) == 0
    (new,) = add()
    assert log.read({P: Offset(ids[-1], DONE)}, 10, 0)[P][0].id == new


def test_huge_sequence_numbers_trim_only_the_applied(redis_client, log, make):
    """Sequence numbers that a double cannot hold: an entry may stay longer, never go early."""
    big = [f"5-{2**63 + i}" for i in range(3)]
    for id_ in ("4-0", *big, "6-0"):
        redis_client.xadd(keys.log(P), {"b": id_}, id=id_)
    lease = log.acquire(P)
    expected, left = lease.offset, []
    for new in (Offset("4-0", DONE), Offset(big[0], 2), Offset(big[1], DONE), Offset("6-0", DONE)):
        assert log.commit([make(lease, new, expected=expected)]) == ["OK"]
        left.append(redis_client.xlen(keys.log(P)))
        expected = new
    assert left == [4, 4, 3, 0]


BAD = [
    ("RPUSH", HEADS, "a"),
    ("HSET", HEADS, "a"),
    ("HSET", HEADS),
    ("HDEL", HEADS),
    ("ZADD", keys.names(P), "x", "a"),
    ("ZADD", keys.names(P), float("nan"), "a"),
    ("ZADD", keys.names(P), 0),
    ("ZREM", keys.names(P)),
    ("DEL", HEADS, "a"),
    ("PEXPIRE", HEADS, "soon"),
    ("PEXPIRE", HEADS, -5),
    ("PEXPIRE", HEADS),
    ("HSET", keys.names(P), "a", "b"),  # a sorted set
    ("ZADD", keys.history(P, "a"), 0, "a"),  # becomes a hash earlier in the commit
    ("DEL", keys.lease(P)),
    ("HSET", keys.meta(P), "offset", "0-0:-1"),
    ("DEL", keys.log(P)),
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


@pytest.mark.parametrize("bad", BAD, ids=lambda effect: f"{effect[0]}-{len(effect)}")
def test_a_bad_effect_leaves_everything_unwritten(redis_client, log, bad, add, make):
    (first,) = add()
    redis_client.zadd(keys.names(P), {"z": 0})
    redis_client.hset(HEADS, "z", "1")
    lease, healthy = log.acquire(P), log.acquire(0)
    good = ("HSET", keys.history(P, "a"), "0", b"x")
    before = dump(redis_client)
    commit = make(lease, Offset(first, DONE), good, bad, good, done=1, publish=[("c", b"m")])
    answers = log.commit([commit, make(healthy, Offset("9-9", DONE))])
    assert answers[0].startswith("INVALID: ")
    assert answers[1] == "OK"  # the fault hurts one partition
    after = dump(redis_client)
    del after[keys.meta(0).encode()], before[keys.meta(0).encode()]
    assert after == before


def test_a_feed_takes_each_entry_once_and_names_the_one_before(redis_client, log, make):
    lease, feed = log.acquire(P), keys.feed(P)
    big = f"9-{2**63}"
    first = ("FEED", feed, 10, "5-7", b"a", "5-10", b"b", big, b"\x00")
    assert log.commit([make(lease, START, first)]) == ["OK"]
    # The same effect again, whole and in part: an id says what is there already.
    again = ("FEED", feed, 10, "5-10", b"b", big, b"\x00", f"9-{2**63 + 1}", b"d")
    assert log.commit([make(lease, START, first), make(lease, START, again)]) == ["OK", "OK"]
    found = [(id_.decode(), f[b"e"], f[b"b"].decode()) for id_, f in redis_client.xrange(feed)]
    assert found == [
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


def test_deleting_a_key_allows_another_type(redis_client, log, make):
    redis_client.set(HEADS, "a string")
    lease = log.acquire(P)
    effects = [("DEL", HEADS), ("HSET", HEADS, "a", "1")]
    assert log.commit([make(lease, START, *effects)]) == ["OK"]
    assert redis_client.hgetall(HEADS) == {b"a": b"1"}


def test_a_damaged_counter_stops_nobody(redis_client, log, add, make):
    (first,) = add()
    lease = log.acquire(P)
    redis_client.hset(keys.meta(P), mapping={"done": "1\xb2", "in": "7"})
    commit = make(lease, Offset(first, DONE), ("HSET", HEADS, "a", "1"), done=1)
    assert log.commit([commit]) == ["OK"]
    assert redis_client.hgetall(HEADS) == {b"a": b"1"}
    assert redis_client.hget(keys.meta(P), "done") == b"7"


def test_an_effect_on_another_partition_is_a_programming_error(log, make):
    lease = log.acquire(P)
    with pytest.raises(ValueError, match="partition 3"):
        log.commit([make(lease, START, ("HSET", keys.heads(0), "a", "1"))])


def test_effects_may_exceed_what_lua_can_unpack(redis_client, log, add, make):
    (first,) = add()
    lease = log.acquire(P)
    fields = [part for i in range(20_001) for part in (f"f{i}", str(i))]
    members = [part for i in range(9_000) for part in (0, f"m{i}")]
    effects = [
        ("HSET", HEADS, *fields),
        ("ZADD", keys.names(P), *members),
        ("HDEL", HEADS, *fields[0:18_000:2]),
        ("ZREM", keys.names(P), *members[3::2]),
    ]
    assert log.commit([make(lease, Offset(first, DONE), *effects)]) == ["OK"]
    assert redis_client.hlen(HEADS) == 11_001
    assert redis_client.hget(HEADS, "f20000") == b"20000"
    assert redis_client.zrange(keys.names(P), 0, -1) == [b"m0"]


def test_many_keys_in_one_commit(redis_client, log, make):
    lease = log.acquire(P)
    effects = [("HSET", keys.tail(P, f"s{i}"), i, b"x") for i in range(9_000)]
    assert log.commit([make(lease, START, *effects)]) == ["OK"]
    assert redis_client.hget(keys.tail(P, "s8999"), "8999") == b"x"


def test_commits_of_several_partitions_go_together(redis_client, log, make):
    leases = [log.acquire(p) for p in range(4)]
    redis_client.delete(keys.lease(2))
    commits = [make(at, START, ("HSET", keys.heads(at.partition), "a", "1")) for at in leases]
    assert log.commit(commits) == ["OK", "OK", "FENCED", "OK"]
    assert log.commit([]) == []


def test_scripts_are_loaded_again_when_the_server_forgot_them(redis_client, log, add, make):
    first, second = add(2)
    leases = [log.acquire(P), log.acquire(0)]
    commits = [
        make(leases[0], Offset(first, DONE), done=1),
        make(leases[0], Offset(second, DONE), expected=Offset(first, DONE), done=1),
        make(leases[1], Offset("1-1", DONE)),
    ]
    redis_client.script_flush()
    assert log.commit(commits) == ["OK", "OK", "OK"]
    assert meta(redis_client, "done") == b"2"
    redis_client.script_flush()
    assert log.renew(leases) == [True, True]
    assert log.release(leases[0])


def test_a_full_server_still_lets_a_worker_finish(redis_client, log, add, make):
    (first,) = add()
    redis_client.config_set("maxmemory", 1)
    try:
        lease = log.acquire(P)
        commit = make(lease, Offset(first, DONE), ("HSET", HEADS, "a", "1"))
        assert log.renew([lease]) == [True]
        assert log.commit([commit]) == ["OK"]
        assert log.release(lease)
    finally:
        redis_client.config_set("maxmemory", 0)
