"""Which server has a key, as servers of a cluster say; no server."""

import random
from types import SimpleNamespace

import pytest
import redis
from hiredis import pack_command
from redis.exceptions import AskError, MovedError, ResponseError, TryAgainError

from service.store import keys
from service.store.shards import (
    LONG,
    PART,
    SLOTS,
    ClusterShards,
    Shards,
    key_of,
    send,
    slot_of,
)

HALF = SLOTS // 2
LOW = next(key for key in map(keys.log, range(64)) if slot_of(key) < HALF)
HIGH = next(key for key in map(keys.log, range(64)) if slot_of(key) >= HALF)
GET_LOW, GET_HIGH = ("GET", LOW), ("GET", HIGH)
A, B, C = ("a", 1), ("b", 2), ("c", 3)


def halves(low, high, replica=C):
    return [
        [0, HALF - 1, [low[0].encode(), low[1], b"id"], [replica[0].encode(), replica[1], b"id"]],
        [HALF, SLOTS - 1, [high[0].encode(), high[1], b"id"]],
    ]


@pytest.fixture
def cluster():
    shards = ClusterShards(lambda host, port: (host, port), [A, B, A])
    shards.learn(shards.servers[0], halves(A, B))
    return shards


def test_each_key_is_where_the_servers_say():
    shards = ClusterShards(lambda host, port: (host, port), [A])
    with pytest.raises(redis.ConnectionError):
        shards.pool_of(GET_LOW)
    (pool,) = shards.servers
    shards.learn(pool, halves(("", 1), B))  # one that does not know its own name
    assert [shards.pool_of(GET_LOW), shards.pool_of(GET_HIGH)] == [A, B]
    assert shards.pools == [A, B]
    assert shards.servers == [A, C, B]  # replicas, too: they know as much
    shards.learn(pool, halves(A, B)[1:])
    assert shards.pool_of(GET_HIGH) == B
    with pytest.raises(redis.ConnectionError):
        shards.pool_of(GET_LOW)


def test_a_moved_key_stays_where_it_went_and_one_asked_for_does_not(cluster):
    slot = slot_of(LOW)
    asked = cluster.redirected(7, GET_LOW, AskError(f"{slot} c:3"))
    assert (asked.number, asked.pool, asked.asking) == (7, C, True)
    assert cluster.pool_of(GET_LOW) == A
    moved = cluster.redirected(7, GET_LOW, MovedError(f"{slot} c:3"))
    assert (moved.words, moved.pool, moved.asking) == (GET_LOW, C, False)
    assert cluster.pool_of(GET_LOW) == C
    assert cluster.servers[0] == C  # it knows of all that moved together
    cluster.distrust(C)
    assert cluster.servers[-1] == C
    again = cluster.redirected(7, GET_HIGH, TryAgainError("between two servers"))
    assert (again.pool, again.asking) == (B, False)
    for result in (ResponseError("WRONGTYPE"), None, b"1"):
        assert cluster.redirected(7, GET_HIGH, result) is None


def test_one_command_names_the_keys_of_one_slot(cluster):
    same = LOW.replace(":in", ":feed")
    assert cluster.groups([LOW, HIGH, same]) == [[LOW, same], [HIGH]]
    one = Shards(A)
    assert one.groups([LOW, HIGH, same]) == [[LOW, HIGH, same]]
    assert (one.pool_of(GET_HIGH), one.servers) == (A, [A])
    assert one.redirected(0, GET_LOW, MovedError(f"{slot_of(LOW)} c:3")) is None


def test_the_key_of_a_command():
    reading = ("COUNT", 1, "STREAMS", LOW, ">")
    cases = [
        GET_LOW,
        ("EVALSHA", "digest", 2, LOW, HIGH),
        ("XREAD", *reading),
        ("XREADGROUP", "GROUP", "g", "c", *reading),
    ]
    assert [key_of(words) for words in cases] == [LOW] * 4
    assert key_of(("TIME",)) == keys.WORKERS


def test_commands_with_long_values_are_sent_as_the_library_packs_them():
    rng = random.Random(1)
    words = ["EVALSHA", 7, "kéy", b"", b"short", 0.5, *(bytes([i]) * (LONG + i) for i in range(3))]
    sent = []
    connection = SimpleNamespace(send_packed_command=lambda parts: sent.extend(map(bytes, parts)))
    for _ in range(200):
        commands = [rng.choices(words, k=rng.randint(1, 9)) for _ in range(rng.randint(1, 9))]
        send(connection, commands)
        assert b"".join(sent) == b"".join(pack_command(tuple(command)) for command in commands)
        assert max(map(len, sent)) <= PART
        sent.clear()
    send(connection, [("SET", "key", b"x" * (3 * PART))])
    assert [*map(len, sent[:3])] == [PART] * 3
