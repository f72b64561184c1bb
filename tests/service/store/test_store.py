"""What streams keep: chunks, tails, names, outcomes."""

import random
import zlib

import pytest

from service import wire
from service.store import keys
from service.store.api_reads import AsyncStore, Health
from service.store.connection import connect_async
from service.store.worker_reads import (
    CHUNK,
    CorruptState,
    Store,
    Stored,
    chunk_of,
    phase_of,
    seal,
    unseal,
)

pytestmark = pytest.mark.redis
P = 2
PARTITIONS = 4


@pytest.fixture
async def client(redis_url):
    async with connect_async(redis_url) as client:
        yield client


@pytest.fixture
def reader(client):
    return AsyncStore(client, PARTITIONS)


@pytest.fixture
def store(redis_client):
    return Store(redis_client)


def record(seq):
    return wire.Record(seq, float(seq), None, None, 1.0, None, 0.01, 0.0, log_score=-1.5)


def head_of(seq=0, **fields):
    settings = wire.StreamSettings("gaussian@1", history=fields.pop("history", 2000))
    return wire.Head(1, settings, seq=seq, **fields)


def write_history(client, stream, seq, sealed):
    """Store records 0..seq-1 as a worker would: whole chunks below `sealed`, then the tail."""
    chunks = {}
    for i in range(sealed):
        chunks.setdefault(chunk_of(stream, i), []).append(record(i))
    for number, records in chunks.items():
        client.hset(keys.history(P, stream), str(number), seal(stream, number, records))
    for i in range(sealed, seq):
        client.hset(keys.tail(P, stream), str(i), wire.encode(record(i)))


# --- chunks ---------------------------------------------------------------------------------


def test_chunk_numbers_are_golden():
    """Part of the stored format: a change would look for records in the wrong place."""
    assert [phase_of(s) for s in ("pump-7", "a", "nile", "größe")] == [51, 3, 63, 9]
    assert [chunk_of("pump-7", seq) for seq in (0, 12, 13, 76, 77)] == [0, 0, 1, 1, 2]


def test_sealing_and_unsealing_is_the_identity():
    records = [record(i) for i in range(CHUNK)]
    assert unseal("a", 2, seal("a", 2, records)) == records
    assert unseal("a", 2, zlib.compress(wire.encode(records))) == records  # of an earlier version
    with pytest.raises(CorruptState):
        unseal("a", 2, b"garbage")
    with pytest.raises(CorruptState):
        unseal("a", 2, seal("a", 2, records)[:-3])
    for place in (("a", 3), ("b", 2)):
        with pytest.raises(CorruptState, match="checksum"):
            unseal(*place, seal("a", 2, records))


# --- the worker's side ----------------------------------------------------------------------


def test_load_finds_all_parts(redis_client, store):
    head = wire.encode(head_of(130, checkpoint=128))
    redis_client.hset(keys.heads(P), "a", head)
    store.put_checkpoints(
        P, [("a", "1:128", b"\x00new"), ("a", "1:64", b"old"), ("b", "1:0", b"b")]
    )
    redis_client.hset(keys.tail(P, "a"), mapping={"129": "y", "1000": "z", "128": "x"})
    redis_client.hset(keys.idempotency(P, "a"), b"k\x000", b"r")
    redis_client.hset(keys.heads(P), "broken", b"\xc1")
    missing, found, broken = store.load(P, ["b", "a", "broken"])
    assert missing == Stored(None, None, {}, {})
    tail = {128: b"x", 129: b"y", 1000: b"z"}
    new = wire.checksummed(b"\x00new", "checkpoint", "a", "1:128")
    assert found == Stored(head, new, tail, {b"k\x000": b"r"}, (b"1:64",))
    assert list(found.tail) == [128, 129, 1000]
    assert broken == Stored(b"\xc1", None, {}, {})
    assert store.load(P, []) == []


def test_a_missing_checkpoint_is_told_from_a_missing_head(redis_client, store):
    redis_client.hset(keys.heads(P), "a", wire.encode(head_of(5)))
    assert store.load(P, ["a"])[0].head is not None
    assert store.load(P, ["a"])[0].checkpoint is None


def test_chunks_as_stored(redis_client, store):
    write_history(redis_client, "a", 200, 200)
    first, none, second = store.chunks(P, "a", [0, 99, 1])
    assert none is None
    records = unseal("a", 0, first) + unseal("a", 1, second)
    assert [r.seq for r in records] == list(range(len(unseal("a", 0, first)) + 64))
    assert store.chunks(P, "a", []) == []


# --- the API's side -------------------------------------------------------------------------


async def test_head_hides_tombstones(client, reader):
    head = head_of(3)
    await client.hset(keys.heads(P), "a", wire.encode(head))
    await client.hset(keys.heads(P), "gone", wire.encode(head_of(3, deleted=True)))
    await client.hset(keys.heads(P), "broken", b"\xc1")
    assert await reader.head(P, "a") == head
    assert await reader.head(P, "gone") is None
    assert await reader.head(P, "never") is None
    with pytest.raises(CorruptState, match="'broken'"):
        await reader.head(P, "broken")


async def test_events_by_id(client, reader):
    for id_ in (10, 2, 1):
        event = wire.Event(id_, "confirmed", 5 * id_, 6 * id_)
        await client.hset(keys.events(P, "a"), str(id_), wire.encode(event))
    events, unreadable = await reader.events(P, "a")
    assert ([event.id for event in events], unreadable) == ([1, 2, 10], [])
    assert await reader.events(P, "b") == ([], [])


def seqs(found):
    """Seqs of records of which none is lost."""
    records, lost = found
    assert lost == []
    return [record.seq for record in records]


@pytest.mark.parametrize("stream", ["pump-7", "nile", "größe"])
async def test_records_across_chunks_and_tail(redis_client, reader, stream):
    seq = 300
    sealed = next(i for i in range(200, 300) if (i + phase_of(stream)) % CHUNK == 0)
    write_history(redis_client, stream, seq, sealed)
    head = head_of(seq, sealed=sealed)
    ranges = [(0, 300), (0, 1), (299, 300), (sealed - 1, sealed + 1), (sealed, 300), (0, sealed)]
    ranges += [(i, i + 70) for i in (0, 5, 60, 64, 130)]
    for start, stop in ranges:
        found = await reader.records(P, stream, head, start, stop)
        assert seqs(found) == list(range(start, stop))
    assert found[0][0] == record(start)
    assert seqs(await reader.records(P, stream, head, -5, 999)) == list(range(300))
    assert await reader.records(P, stream, head, 300, 400) == ([], [])
    assert await reader.records(P, stream, head, 5, 5) == ([], [])


async def test_records_end_with_the_retained_history(redis_client, reader):
    write_history(redis_client, "a", 200, 189)
    head = head_of(200, sealed=189, history=50)
    assert seqs(await reader.records(P, "a", head, 0, 200)) == list(range(150, 200))


async def test_records_sealed_after_the_head_was_read(redis_client, reader):
    head = head_of(200, sealed=61)  # what was sealed then; 189 is by now
    write_history(redis_client, "a", 200, 189)
    assert seqs(await reader.records(P, "a", head, 0, 200)) == list(range(200))


async def test_a_corrupt_record_says_whose(redis_client, reader):
    redis_client.hset(keys.tail(P, "a"), "0", b"\xc1")
    with pytest.raises(CorruptState, match="'a'"):
        await reader.records(P, "a", head_of(1), 0, 1)


async def pages(reader, prefix, limit):
    found, cursor, sizes = [], None, []
    while True:
        ids, cursor = await reader.names(prefix, cursor, limit)
        found += ids
        sizes.append(len(ids))
        if cursor is None:
            return found, sizes


@pytest.mark.parametrize("limit", [1, 7, 50, 1000])
async def test_names_are_paged_in_order_over_partitions(redis_client, reader, limit):
    rng = random.Random(limit)
    names = [f"{rng.choice(['pump', 'fan', 'größe', '泵'])}-{i}" for i in range(300)]
    for name in names:
        redis_client.zadd(keys.names(keys.partition_of(name, PARTITIONS)), {name: 0})
    for prefix in ("", "pump", "pump-1", "größe", "泵-", "nothing"):
        expected = sorted(name for name in names if name.startswith(prefix))
        found, sizes = await pages(reader, prefix, limit)
        assert found == expected
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


async def test_outcomes(client, reader):
    outcome = wire.Outcome(1024, 200, [b"{}"])
    await client.hset(keys.outcomes(P, "i", 1024), "1024", wire.encode(outcome))
    assert await reader.outcomes("i", [(P, 0), (P, 1024), (P, 1025)]) == {1024: outcome}
    assert await reader.outcomes("i", [(0, 1024)]) == await reader.outcomes("j", [(P, 1024)]) == {}
    assert await reader.outcomes("i", []) == {}


async def test_health(client, reader):
    await client.set(keys.lease(1), "w/x")
    await client.hset(keys.meta(2), mapping={"in": 7, "done": 3})
    health = await reader.health()
    assert isinstance(health, Health)
    assert health.unowned == [0, 2, 3]
    assert health.pending == [0, 0, 4, 0]
    assert health.used_memory > 0
    assert health.maxmemory == 0
