"""What streams keep, as their worker and the API read it, on every topology."""

import asyncio
import random
import resource
import time

import pytest

from service import wire
from service.store import keys
from service.store.connection import connect, connect_async
from service.store.reads import AsyncStore, Health
from service.store.streams import (
    CHUNK,
    Store,
    Stored,
    StoredHead,
    UnreadablePart,
    chunk_of,
    first_of,
    head_fields,
    packed_state,
    phase_of,
    unseal,
)
from service.wire import Id
from service.wire.event_entries import KINDS, START
from tests.clusters import running_valkey
from tests.stored import put_event, put_head, put_records, record, sealed_of
from tests.waiting import until

pytestmark = pytest.mark.redis
P = 0
PARTITIONS = 4


@pytest.fixture
async def reader(redis_url):
    async with connect_async(redis_url) as client:
        yield AsyncStore(client, PARTITIONS)


@pytest.fixture
async def alone(redis_url):
    """Of one partition."""
    async with connect_async(redis_url) as client:
        yield AsyncStore(client, 1)


@pytest.fixture
def store(redis_client):
    return Store(redis_client)


def head_of(seq=0, **fields):
    settings = wire.StreamSettings("gaussian", history=fields.pop("history", 2000))
    return wire.Head(1, settings, seq=seq, **fields)


def write_history(client, stream, seq, sealed):
    """Store records 0..seq-1 as a worker would: whole chunks below `sealed`, then the tail."""
    put_records(client, P, stream, map(record, range(seq)), sealed)


# --- chunks -----------------------------------------------------------------------------------


def test_where_records_lie_and_that_sealing_is_the_identity():
    """Part of the stored format: a change would look for records in the wrong place."""
    assert [phase_of(s) for s in ("pump-7", "a", "nile", "größe")] == [51, 3, 63, 9]
    assert [chunk_of("pump-7", seq) for seq in (0, 12, 13, 76, 77)] == [0, 0, 1, 1, 2]
    assert [first_of("pump-7", chunk) for chunk in (0, 1, 2)] == [0, 13, 77]
    records = [record(i) for i in range(CHUNK)]
    sealed = sealed_of("a", 2, records)
    assert unseal("a", 2, sealed) == records
    unchecked = wire.checked(sealed, "history", "a", 2)
    damaged = [
        ("a", 2, b"garbage"),
        ("a", 2, unchecked),
        ("a", 2, sealed[:-3]),
        ("a", 3, sealed),
        ("b", 2, sealed),
    ]
    for place in damaged:
        with pytest.raises(UnreadablePart):
            unseal(*place)


# --- the worker's side ------------------------------------------------------------------------


def test_load_finds_all_parts(redis_client, store):
    put_head(redis_client, P, "a", head_of(130, checkpoint=128))
    redis_client.zrem(keys.names(P), "a")
    state = packed_state("a", b"\x00new")
    redis_client.hset(keys.checkpoints(P), "a", state)
    redis_client.rpush(keys.tail(P, "a"), "x", "y", "z")
    redis_client.hset(keys.idempotency(P, "a"), b"k\x000", b"r")
    redis_client.hset(keys.heads(P), "broken", b"\xc1")
    redis_client.hset(keys.heads(P), items=head_fields("bare", head_of(5))[:2])
    missing, found, broken, bare = store.load(P, ["b", "a", "broken", "bare"])
    assert missing == Stored(None, None, [], {})
    tail = [b"x", b"y", b"z"]
    head = StoredHead(*head_fields("a", head_of(130, checkpoint=128))[1::2])
    assert found == Stored(head, state, tail, {b"k\x000": b"r"})
    assert broken == Stored(StoredHead(b"\xc1", None), None, [], {})
    assert (bare.head.position, bare.checkpoint) == (None, None)
    assert store.load(P, []) == []


def test_chunks_as_stored(redis_client, store):
    write_history(redis_client, "a", 200, 200)
    first, none, second = store.chunks([(P, "a", [0, 99, 1])])[0]
    assert none is None
    records = unseal("a", 0, first) + unseal("a", 1, second)
    assert [r.seq for r in records] == list(range(len(unseal("a", 0, first)) + 64))
    assert store.chunks([(P, "a", []), (P, "a", [0])]) == [[], [first]]


# --- the API's side ---------------------------------------------------------------------------


async def test_head_hides_tombstones_and_names_the_broken(redis_client, alone):
    head = head_of(3)
    put_head(redis_client, P, "a", head)
    put_head(redis_client, P, "gone", head_of(3, deleted=True))
    redis_client.hset(keys.heads(P), "broken", b"\xc1")
    assert await alone.head("a") == head
    assert await alone.head("gone") is None
    assert await alone.head("never") is None
    with pytest.raises(UnreadablePart, match="position of 'broken' is missing"):
        await alone.head("broken")
    redis_client.hset(keys.heads(P), keys.position_field("broken"), b"\xc1")
    with pytest.raises(UnreadablePart, match="head of 'broken'"):
        await alone.head("broken")
    redis_client.rpush(keys.tail(P, "a"), b"\xc1")
    with pytest.raises(UnreadablePart, match="'a'"):
        await alone.records("a", head_of(1), 0, 1)


async def test_events_by_id(redis_client, alone):
    for id_ in (10, 2, 1):
        event = wire.Event(id_, "confirmed", 5 * id_, 6 * id_)
        put_event(redis_client, P, "a", event)
    assert [event.id for event in await alone.events("a", KINDS)] == [1, 2, 10]
    assert await alone.events("b", KINDS) == []
    back = wire.Event(11, "confirmed", 55, 66, returned=wire.KnownRegime(None, 0.9, 3, 2, 30))
    put_event(redis_client, P, "a", back)
    assert [event.id for event in await alone.events("a", {"returned"})] == [11]
    assert [event.id for event in await alone.events("a", {"change"})] == [1, 2, 10]
    assert await alone.events("a", {"anomaly"}) == []
    redis_client.hset(keys.events(P, "a"), "3", b"?")
    with pytest.raises(UnreadablePart, match="events 3 of 'a'"):
        await alone.events("a", KINDS)


def seqs(found):
    return [record.seq for record in found]


async def test_records_across_chunks_and_tail(redis_client, alone):
    for stream in ("pump-7", "größe"):
        sealed = next(i for i in range(200, 300) if (i + phase_of(stream)) % CHUNK == 0)
        write_history(redis_client, stream, 300, sealed)
        head = head_of(300, sealed=sealed)
        ranges = [(0, 1), (299, 300), (sealed - 1, sealed + 1), (sealed, 300), (0, sealed)]
        ranges += [(i, i + 70) for i in (0, 5, 60, 64, 130)]
        for start, stop in ranges:
            kept = await alone.records(stream, head, start, stop)
            assert seqs(kept) == list(range(start, stop))
        assert kept[0] == record(130)
        assert seqs(await alone.records(stream, head, -5, 999)) == list(range(300))
        assert await alone.records(stream, head, 300, 400) == []
        assert await alone.records(stream, head, 5, 5) == []


async def test_records_end_with_the_retained_and_follow_what_was_sealed_since(redis_client, alone):
    write_history(redis_client, "a", 200, 189)
    head = head_of(200, sealed=189, history=50)
    assert seqs(await alone.records("a", head, 0, 200)) == list(range(150, 200))
    before = head_of(200, sealed=61)  # what was sealed when the head was read; 189 is by now
    assert seqs(await alone.records("a", before, 0, 200)) == list(range(200))
    put_head(redis_client, P, "a", head_of(200, sealed=189))
    redis_client.lset(keys.tail(P, "a"), 6, "195")
    redis_client.lrem(keys.tail(P, "a"), 1, "195")
    with pytest.raises(UnreadablePart, match="observation 195 of 'a' is missing"):
        await alone.records("a", before, 0, 200)


async def pages(reader, prefix, limit):
    found, cursor, sizes = [], None, []
    while True:
        ids, cursor = await reader.names(prefix, cursor, limit)
        found += ids
        sizes.append(len(ids))
        if cursor is None:
            return found, sizes


async def test_names_are_paged_in_order_over_partitions(redis_client, reader):
    rng = random.Random(1)
    names = [f"{rng.choice(['pump', 'fan', 'größe', '泵'])}-{i}" for i in range(150)]
    for name in names:
        redis_client.zadd(keys.names(keys.partition_of(name, PARTITIONS)), {name: 0})
    for limit in (1, 7, 50, 1000):
        for prefix in ("", "pump", "pump-1", "größe", "泵-", "nothing"):
            expected = sorted(name for name in names if name.startswith(prefix))
            found, sizes = await pages(reader, prefix, limit)
            assert found == expected, (prefix, limit)
            assert all(size == limit for size in sizes[:-1])


async def test_names_that_all_lie_in_one_partition(redis_client, reader):
    names = sorted(f"n{i}" for i in range(500))
    redis_client.zadd(keys.names(1), dict.fromkeys(names, 0))
    redis_client.zadd(keys.names(0), {"zz": 0})
    assert (await pages(reader, "", 60))[0] == [*names, "zz"]
    assert await reader.names("", "n499", 1000) == (names[names.index("n499") + 1 :] + ["zz"], None)
    assert await reader.names("n", None, 500) == (names, None)
    assert await reader.names("zz", "a", 5) == (["zz"], None)
    assert await reader.names("n", "zz", 5) == ([], None)


async def test_results_and_health(redis_client, reader):
    for place in ("3-1", "3-2", "12-1"):
        redis_client.xadd(keys.results(P, "i"), {"b": place}, id=place)
    rows = [(Id(3, 1), b"3-1"), (Id(3, 2), b"3-2"), (Id(12, 1), b"12-1")]
    assert await reader.results("i", {P: START, 1: START}, 9) == {P: rows, 1: []}
    assert await reader.results("i", {P: START}, 2) == {P: rows[:2]}
    assert await reader.results("i", {P: Id(3, 1)}, 9) == {P: rows[1:]}
    assert await reader.results("j", {P: START}, 9) == {P: []}
    assert await reader.results("i", {}, 9) == {}
    assert await reader.last_results("i", [P, 1]) == {P: Id(12, 1), 1: START}
    assert await reader.last_results("i", []) == {}
    redis_client.set(keys.lease(1), "w/x")
    redis_client.hset(keys.meta(2), mapping={"in": 7, "done": 3})
    for p, names in ((0, ["a", "b"]), (3, ["c"])):
        redis_client.zadd(keys.names(p), dict.fromkeys(names, 0))
    health = await reader.health()
    assert isinstance(health, Health)
    assert health.unowned == [0, 2, 3]
    assert health.pending == [0, 0, 4, 0]
    assert health.used_memory > 0
    assert health.maxmemory == 0
    assert health.streams == 3


# --- what metrics show ------------------------------------------------------------------------


async def test_the_oldest_entry_of_all_partitions_counts(reader, redis_client):
    assert (await reader.condition()).oldest_pending_s == 0
    now_ms = int(time.time() * 1000)
    redis_client.xadd(keys.log(1), {"b": "x"}, id=f"{now_ms - 600_000}-0")
    redis_client.xadd(keys.log(1), {"b": "y"})
    redis_client.xadd(keys.log(3), {"b": "z"}, id=f"{now_ms - 300_000}-0")
    redis_client.set(keys.log(0), "not a log")  # hides no other
    assert 600 <= (await reader.condition()).oldest_pending_s < 800
    redis_client.xtrim(keys.log(1), maxlen=0, approximate=False)
    assert 300 <= (await reader.condition()).oldest_pending_s < 500
    redis_client.xtrim(keys.log(3), maxlen=0, approximate=False)
    redis_client.xadd(keys.log(3), {"b": "x"}, id=f"{now_ms + 600_000}-0")
    assert (await reader.condition()).oldest_pending_s == 0  # from the future


def test_an_append_only_file_that_cannot_grow_is_seen():
    async def look():
        async with connect_async(server.url) as client:
            return await AsyncStore(client, PARTITIONS).condition()

    with running_valkey() as server, connect(server.url) as client:
        client.set("a", "b")
        assert asyncio.run(look()) == (0.0, True, False)
        server.limit_files(64)
        client.set("a", "c" * 1000)
        until(lambda: asyncio.run(look()).append_only_failing)
        server.limit_files(resource.RLIM_INFINITY)
        until(lambda: not asyncio.run(look()).append_only_failing)
