"""Both clients while a slot of a real cluster is on its way, and after."""

import pytest
import redis

from service.store import keys
from service.store.connection import connect, connect_async
from service.store.shards import SLOTS, slot_of
from tests.clusters import SlotMove, running_cluster, valkey

HALF = SLOTS // 2
MOVING = keys.log(3)
HERE = next(key for key in map(keys.log, range(64)) if slot_of(key) < HALF and key != MOVING)
THERE = next(key for key in map(keys.log, range(64)) if slot_of(key) >= HALF and key != MOVING)


async def test_a_command_follows_its_key_and_answers_keep_their_order():
    def counting(start):
        return [("INCRBY", key, start + i) for i, key in enumerate((HERE, MOVING, THERE, MOVING))]

    with running_cluster(masters=2, binary=valkey()) as (url, nodes), connect(url) as blocking:
        client, move = connect_async(url), SlotMove(nodes, MOVING)
        target = move.clients[move.target]
        assert await client.run(counting(1)) == [1, 2, 3, 6]
        move.begin()
        move.keys()
        assert await client.run(counting(10)) == [11, 17, 15, 30]
        assert blocking.run(counting(100)) == [111, 131, 117, 234]
        with pytest.raises(redis.exceptions.MovedError):  # the way was asked for this once
            target.get(MOVING)
        move.end()
        assert blocking.run(counting(1000)) == [1111, 1235, 1119, 2238]
        assert await client.run(counting(1000)) == [2111, 3239, 2121, 4242]
        assert target.get(MOVING) == "4242"
        await client.aclose()


async def test_a_transaction_is_run_whole_once_its_keys_are_at_one_server():
    def counting(start):
        return [("INCRBY", MOVING, start), ("HSET", f"{MOVING}:b", "n", start), ("GET", MOVING)]

    with running_cluster(masters=2, binary=valkey()) as (url, nodes), connect(url) as blocking:
        client, move = connect_async(url), SlotMove(nodes, MOVING)
        assert await client.atomic(counting(1)) == [1, 1, b"1"]
        move.begin()
        move.keys()
        move.end()
        assert blocking.atomic(counting(10)) == [11, 0, b"11"]
        assert await client.atomic(counting(100)) == [111, 0, b"111"]
        assert await client.hgetall(f"{MOVING}:b") == {b"n": b"100"}
        await client.aclose()
