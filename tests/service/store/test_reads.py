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
    END,
    Span,
    Store,
    Stored,
    UnreadablePart,
    blocks,
    head_fields,
    packed_state,
    records_of,
)
from service.wire import Id
from service.wire.event_entries import KINDS, START
from service.wire.stored_records import split_position, with_block
from tests.clusters import running_valkey
from tests.stored import put_event, put_head, put_records, record
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


# --- the worker's side ------------------------------------------------------------------------


def lay_beside(client, stream, head, rows):
    """Store a head with the last rows beside its position."""
    (block,) = blocks(wire.place_of("tail", stream), head.seq - len(rows), rows)
    *settled, name, position = head_fields(stream, head)
    position = with_block(split_position(position)[0], block)
    client.hset(keys.heads(P), items=[*settled, name, position])


def test_load_finds_all_parts(redis_client, store):
    put_head(redis_client, P, "a", head_of(130, checkpoint=128))
    redis_client.zrem(keys.names(P), "a")
    state = packed_state("a", b"\x00new")
    redis_client.hset(keys.checkpoints(P), "a", state)
    put_records(redis_client, P, "a", map(record, range(127, 130)))
    redis_client.hset(keys.idempotency(P, "a"), b"k\x000", b"r")
    redis_client.hset(keys.heads(P), keys.settled_field("broken"), b"\xc1")
    redis_client.hset(keys.heads(P), items=head_fields("bare", head_of(5))[:2])
    missing, found, broken, bare = store.load(P, ["b", "a", "broken", "bare"])
    assert missing == Stored(tail=[])
    head = head_of(130, checkpoint=128)
    tail = redis_client.lrange(keys.tail(P, "a"), 1, 2)
    assert found == Stored(head, state, tail, {b"k\x000": b"r"}, beside=[])
    rows = [wire.encode_row(record(at)) for at in (130, 131)]
    lay_beside(redis_client, "a", head_of(132, checkpoint=128), rows)
    (found,) = store.load(P, ["a"])
    assert (found.head, found.beside) == (head_of(132, checkpoint=128), rows)
    assert seqs(records_of("a", found.tail)) == [*range(128, 132)]
    assert (broken.head, broken.wrong) == (None, "the position of 'broken' is missing")
    assert bare.wrong == "the position of 'bare' is missing"
    redis_client.zadd(keys.names(P), {"lost": 0})
    assert store.load(P, ["lost"])[0].wrong == "its head is missing"
    assert store.load(P, []) == []


def test_the_last_rows_of_several_streams(redis_client, store):
    put_records(redis_client, P, "a", map(record, range(200)))
    put_records(redis_client, P, "b", map(record, range(3)))
    rows = list(map(wire.encode_row, map(record, range(200))))
    redis_client.rpush(keys.tail(P, "lists"), *blocks(wire.place_of("tail", "lists"), 0, rows))
    spans = [("a", 130, 200), ("a", 200, 200), ("b", 0, 3), ("c", 0, 1), ("a", 9, 4)]
    spans += [("a", END - 1, END), ("lists", 130, 200)]
    found = store.tails([Span(P, *span) for span in spans])
    assert list(map(len, found)) == [70, 0, 3, 0, 0, 1, 2]
    assert seqs(records_of("a", found[0])) == [*range(130, 200)]
    assert seqs(records_of("lists", found[-1], 130)) == [*range(130, 200)]
    thin = store.tails([Span(P, *span, thin=True) for span in spans])
    assert thin[:-1] == found[:-1]
    assert len(thin[-1]) == 4


def readable(blobs, first, end):
    """Positions of the rows in a span, or that it cannot be read."""
    try:
        return seqs(records_of("a", blobs, first, end))
    except UnreadablePart:
        return None


def test_thin_tails_that_are_not_as_expected_are_read_as_any(redis_client, store):
    """They go on after the span, or end before it, or lack a block."""
    place = wire.place_of("tail", "a")
    rows = [wire.encode_row(record(at)) for at in range(12)]
    alone = (blob for at in range(4, 12) for blob in blocks(place, at, [rows[at]]))
    whole = [*blocks(place, 0, rows[:4]), *alone]
    every = [(first, end) for first in range(13) for end in range(first + 1, 15)]
    spans = [Span(P, "a", *span) for span in every]
    for blobs in (whole, whole[:-2], whole[1:], [*whole[:5], *whole[6:]], []):
        redis_client.delete(keys.tail(P, "a"))
        if blobs:
            redis_client.rpush(keys.tail(P, "a"), *blobs)
        found = store.tails(spans)
        thin = store.tails([span._replace(thin=True) for span in spans])
        for span, blobs_of_any, blobs_of_thin in zip(every, found, thin, strict=True):
            assert readable(blobs_of_thin, *span) == readable(blobs_of_any, *span)
        assert readable(thin[0], *every[0]) == ([0] if blobs[:1] == whole[:1] else [])


# --- the API's side ---------------------------------------------------------------------------


async def test_head_hides_tombstones_and_names_the_broken(redis_client, alone):
    head = head_of(3)
    put_head(redis_client, P, "a", head)
    put_head(redis_client, P, "gone", head_of(3, deleted=True))
    redis_client.hset(keys.heads(P), keys.settled_field("broken"), b"\xc1")
    assert await alone.head("a") == head
    assert await alone.head("gone") is None
    assert await alone.head("never") is None
    with pytest.raises(UnreadablePart, match="position of 'broken' is missing"):
        await alone.head("broken")
    redis_client.hset(keys.heads(P), "broken", b"\xc1")
    with pytest.raises(UnreadablePart, match="head of 'broken'"):
        await alone.head("broken")
    redis_client.rpush(keys.tail(P, "a"), b"\xc1")
    with pytest.raises(UnreadablePart, match="'a'"):
        await alone.records("a", head_of(1), 0, 1)


async def test_the_last_rows_may_lie_beside_the_position(redis_client, alone):
    rows = list(map(wire.encode_row, map(record, range(9))))
    redis_client.zadd(keys.names(P), {"a": 0})
    for stored in (0, 7):
        redis_client.delete(keys.tail(P, "a"))
        if stored:
            own = blocks(wire.place_of("tail", "a"), 0, rows[:stored])
            redis_client.rpush(keys.tail(P, "a"), *own)
        head = head_of(9, oldest=0)
        lay_beside(redis_client, "a", head, rows[stored:])
        for first in range(9):
            for end in range(first + 1, 10):
                assert seqs(await alone.records("a", head, first, end)) == [*range(first, end)]
        (recent,), _ = await alone.recent(["a"], await alone.heads(["a"]), 3)
        assert seqs(recent.records) == [6, 7, 8]
        assert seqs((await alone.snapshot("a")).records) == [*range(9)]
    damaged = bytearray(redis_client.hget(keys.heads(P), "a"))
    damaged[-5] ^= 1
    redis_client.hset(keys.heads(P), "a", bytes(damaged))
    assert await alone.head("a") == head
    with pytest.raises(UnreadablePart, match="tail of 'a'"):
        await alone.records("a", head, 0, 9)


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


async def test_records_in_spans_of_a_tail(redis_client, alone):
    """Of blocks of one row and of several, some of which stand for rows of those before."""
    rng = random.Random(4)
    place = wire.place_of("tail", "a")
    seq = 0
    rows = []
    while seq < 300:
        first = seq - min(rng.choice([0, 0, 1, 2]), max(0, len(rows) - 1))
        rows = [wire.encode_row(record(at)) for at in range(first, seq + rng.choice([1, 1, 1, 40]))]
        redis_client.rpush(keys.tail(P, "a"), *blocks(place, first, rows))
        seq = first + len(rows)
    head = head_of(300)
    spans = [(0, 1), (299, 300), (0, 300), (100, 300), *((i, i + 70) for i in range(0, 230, 7))]
    for start, stop in spans:
        kept = await alone.records("a", head, start, stop)
        assert kept == [record(at) for at in range(start, stop)]
    assert seqs(await alone.records("a", head, -5, 999)) == list(range(300))
    assert await alone.records("a", head, 300, 400) == []
    assert await alone.records("a", head, 5, 5) == []


async def test_damage_brings_back_no_rows_that_others_took_the_place_of(redis_client, alone):
    place = wire.place_of("tail", "a")
    key = keys.tail(P, "a")
    old = [wire.encode_row(record(at)) for at in range(10)]
    new = [wire.encode_row(record(at, -1.0)) for at in range(5, 10)]
    (first,), (second,) = blocks(place, 0, old), blocks(place, 5, new)
    put_head(redis_client, P, "a", head_of(10))
    for bit in range(8 * len(second)):
        damaged = bytearray(second)
        damaged[bit // 8] ^= 1 << bit % 8
        redis_client.delete(key)
        redis_client.rpush(key, first, bytes(damaged))
        for span in ((0, 10), (5, 6), (7, 9)):
            with pytest.raises(UnreadablePart):
                await alone.records("a", head_of(10), *span)


async def test_the_last_records_of_streams(redis_client, alone):
    """Of blocks of several rows no others are read, though they be damaged."""
    put_records(redis_client, P, "one", map(record, range(20)))
    place = wire.place_of("tail", "lists")
    rows = [wire.encode_row(record(at)) for at in range(20)]
    lists = [blob for at in range(0, 20, 4) for blob in blocks(place, at, rows[at : at + 4])]
    redis_client.rpush(keys.tail(P, "lists"), *lists[:2], lists[2][:-1], *lists[3:])
    for stream, seq in (("one", 20), ("lists", 20), ("none", 0)):
        put_head(redis_client, P, stream, head_of(seq))
    heads = await alone.heads(["one", "lists", "none"])
    found, unreadable = await alone.recent([*heads], heads, 5)
    last = [*range(15, 20)]
    expected = [("one", last), ("lists", last), ("none", [])]
    assert [(row.stream, seqs(row.records)) for row in found] == expected
    assert unreadable == []
    assert (await alone.recent(["lists"], heads, 9))[1] == ["lists"]
    assert [row.records for row in (await alone.recent([*heads], heads, 0))[0]] == [[], [], []]


@pytest.mark.parametrize("part", [keys.tail, keys.events, keys.changes])
async def test_a_key_of_another_type_is_a_damaged_part_of_its_stream(redis_client, alone, part):
    for stream in ("a", "b"):
        put_head(redis_client, P, stream, head_of(5))
        put_records(redis_client, P, stream, map(record, range(5)))
    redis_client.delete(part(P, "a"))
    redis_client.set(part(P, "a"), b"text")
    reads = {
        keys.tail: lambda stream: alone.records(stream, head_of(5), 0, 5),
        keys.events: lambda stream: alone.events(stream, KINDS),
        keys.changes: lambda stream: alone.changes(stream, 0, 5),
    }
    for read in (reads[part], alone.snapshot):
        with pytest.raises(UnreadablePart, match="'a'"):
            await read("a")
    await reads[part]("b")
    heads = await alone.heads(["a", "b"])
    found, unreadable = await alone.recent(["a", "b"], heads, 2)
    assert unreadable == (["a"] if part is keys.tail else [])
    assert [row.stream for row in found if row.stream not in unreadable][-1] == "b"


async def test_records_end_with_the_retained_and_gaps_are_named(redis_client, alone):
    put_records(redis_client, P, "a", map(record, range(100, 200)))
    head = head_of(200, oldest=100, history=50)
    assert seqs(await alone.records("a", head, 0, 200)) == list(range(150, 200))
    put_head(redis_client, P, "a", head)
    before = head_of(180)  # as it was read; what went with a commit since is no gap
    assert seqs(await alone.records("a", before, 0, 200)) == list(range(100, 180))
    tail = keys.tail(P, "a")
    blob = redis_client.lindex(tail, 95)
    redis_client.lrem(tail, 1, blob)
    with pytest.raises(UnreadablePart, match="goes on at seq 196, expected 195"):
        await alone.records("a", head, 0, 200)
    redis_client.ltrim(tail, 0, 94)
    with pytest.raises(UnreadablePart, match="observation 199 of 'a' is missing"):
        await alone.records("a", head, 0, 200)


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
