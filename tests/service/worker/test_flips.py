"""A flipped bit in any stored part is found: the answer is the true one, or an error."""

import asyncio
import json

import pytest

from service import api_keys as access
from service import wire
from service.models.canary import Canary
from service.store import feed, keys
from service.store.api_keys import _table
from service.store.append import Queued, entry_of
from service.store.log import START, Entry
from service.store.streams import UnreadablePart
from service.wire import Configure, Observation, Observe
from service.worker.streams.task import decode_entries
from tests.service.worker.conftest import INCARNATION

LABELS = [0.1 * (i % 5) + (8.0 if i >= 30 else 0.0) for i in range(68)]
SETTINGS = {"max_hypotheses": 3, "location": [0.0], "scale": [1.0]}
HASHES = ["checkpoint", "tail", "history", "events", "changes", "idempotency"]
PARTS = ["head", *HASHES]


def damages(blob, every=1):
    """Bytes with one bit flipped (the first with any value), and shorter blobs."""
    for i in {*range(0, len(blob), every), len(blob) - 1}:
        yield blob[:i] + bytes([blob[i] ^ (1 << i % 8)]) + blob[i + 1 :]
    for byte in set(range(0, 256, every)) - {blob[0]}:
        yield bytes([byte]) + blob[1:]
    for length in {*range(8), *range(8, len(blob), 61), len(blob) - 1}:
        yield blob[:length]


@pytest.fixture
def written(make_bench):
    """A stream with every part there is, and another one beside it."""
    bench = make_bench(partitions=1, checkpoint_every=16)
    bench.ask(Configure("a", SETTINGS), status=201)
    for i in range(2):
        bench.send(Observe("a", [Observation(y=LABELS[i])], key=f"k{i}", digest="d"))
    bench.observe("a", LABELS[2:40])
    bench.ask(Configure("a", {"hazard": 0.02}))
    bench.observe("a", LABELS[40:65])
    bench.observe("a", LABELS[65:])
    bench.crash()
    head = bench.head("a")
    assert 0 < head.sealed < head.checkpoint < head.seq
    assert head.last_event is not None
    return bench


@pytest.mark.parametrize("every", [31, pytest.param(1, marks=pytest.mark.slow)])
def test_every_byte_of_every_part_and_of_its_name(written, every):
    """As the API reads them; workers are tried in `streams/test_damage.py`."""
    client = written.client

    def read():
        try:
            return asyncio.run(written._store(lambda store, p: store.parts(p, "a"), "a"))
        except UnreadablePart:
            return None

    parts = read()
    for part in PARTS:
        key = keys.heads(0) if part == "head" else getattr(keys, part)(0, "a")
        field = b"a" if part == "head" else min(client.hkeys(key))
        good = client.hget(key, field)
        assert good[:1] == wire.checksum.MARK
        for bad in damages(good, every):
            client.hset(key, field, bad)
            assert read() in (None, parts), (part, bad)
        flipped = good[:-9] + bytes([good[-9] ^ 4]) + good[-8:]
        client.hset(key, field, flipped)
        assert read() is None, part
        client.hset(key, field, good)
        # A hash's field is a part of what is stored, too.
        for i in range(len(field)):
            bad = field[:i] + bytes([field[i] ^ 1]) + field[i + 1 :]
            if not client.hexists(key, bad):
                client.hset(key, bad, good)
                client.hdel(key, field)
                assert read() in (None, parts), (part, bad)
                client.hset(key, field, good)
                client.hdel(key, bad)
    assert read() is not None


# --- the log --------------------------------------------------------------------------------------


def entry_with(count):
    """An entry of commands 7, 8, ... by their number."""
    envelopes = [
        wire.Envelope(n, 1, 0, "gaussian", Observe("abc"[n % 3], [Observation(y=0.5 + n)]))
        for n in range(7, 7 + count)
    ]
    queued = [Queued(each.number, 1, wire.encode(each)) for each in envelopes]
    good = {each.number: (INCARNATION, each) for each in envelopes}
    return Entry("5-0", *entry_of(0, INCARNATION, queued)), good


def read(entry, partition=0):
    """Commands by their number; None for one that is answered as damaged, and is set aside."""
    items = decode_entries(partition, START, [entry])
    assert items
    known = {i.task.envelope.number: (i.task.incarnation, i.task.envelope) for i in items if i.task}
    lost = {item.lost.number: None for item in items if item.lost}
    assert all(item.payload is not None for item in items if item.task is None)
    assert items[-1].offset == ("5-0", -1)
    return known | lost


def test_every_byte_of_a_log_entry():
    entry, good = entry_with(3)
    assert read(entry) == good
    worst = 0
    for bad in damages(entry.payload):
        found = read(entry._replace(payload=bad))
        assert found.keys() == good.keys()
        lost = [number for number, command in found.items() if command is None]
        assert all(found[number] == good[number] for number in good if number not in lost)
        worst = max(worst, len(lost) if len(bad) == len(entry.payload) else 0)
    assert worst == 1  # a damaged byte is one command's
    for bad in damages(entry.sums):
        found = read(entry._replace(sums=bad))
        assert set(found) <= set(good)  # none at all where there is no telling
        assert all(command in (None, good[number]) for number, command in found.items())
    assert set(read(entry, partition=1).values()) == {None}
    # The decoder has an error of its own for bytes that are no text.
    (item,) = decode_entries(0, START, [Entry("5-0", b"\x92\xa1\xff\x90")])
    assert (item.task, item.payload) == (None, b"\x92\xa1\xff\x90")


def test_a_damaged_command_is_answered_and_its_neighbours_are_applied(make_bench):
    bench = make_bench(partitions=1)
    bench.observe("a", [1.0])
    numbers = bench.append(*(Observe(name, [Observation(y=2.0)]) for name in "abc"))
    ((id_, fields),) = bench.client.xrange(keys.log(0))
    bad = fields[b"b"].replace(wire.encode(2.0), wire.encode(3.0), 1)
    assert bad != fields[b"b"]
    bench.client.xdel(keys.log(0), id_)
    ms, seq = id_.split(b"-")
    bench.client.xadd(keys.log(0), {**fields, b"b": bad}, b"%s-%d" % (ms, int(seq) + 1))
    lost, *others = bench.outcomes(numbers)
    assert lost.status == 500
    assert json.loads(lost.body[0])["type"].endswith("/quarantined")
    assert [json.loads(each.body[0])["seq"] for each in others] == [0, 0]
    assert bench.head("a").seq == 1
    (aside,) = bench.quarantine("a").values()
    assert wire.decode_envelope(aside).command.observations[0].y == 3.0
    asked, done = bench.client.hmget(keys.meta(0), ["in", "done"])
    assert asked == done


# --- what belongs to no stream --------------------------------------------------------------------


def test_every_byte_of_a_feed_entry_a_key_and_a_canary(written):
    client = written.client
    ((id_, fields), *_) = client.xrange(keys.feed(0))
    good = feed.entry_of(0, id_, fields)
    assert fields.keys() == {b"e", b"b", b"c"}
    for name, value in fields.items():
        for bad in damages(value):
            found = feed.entry_of(0, id_, {**fields, name: bad})
            # One that is damaged counts as trimmed away, which its readers hear of.
            assert found == good or found.before == found.id
            assert found.raised in (None, good.raised)
    key, _ = access.create("ci", ["write"], "100/second", 1_900_000_000_000)
    blob = wire.checksummed(wire.encode(key), "key", key.id)
    id_ = key.id.encode()
    assert _table({id_: blob}) == {key.id: key}
    assert all(_table({id_: bad}) in ({}, {key.id: key}) for bad in damages(blob))
    assert all(_table({bad: blob}) == {} for bad in damages(id_))
    canary = Canary("2", 0.25)

    async def canaries(store, _):
        await store.put_canary("fan", canary)
        return await store.canaries()

    asyncio.run(written._store(lambda store, p: store.put_canary("pump", canary), "a"))
    blob = client.hget(keys.CANARIES, "pump")
    for bad in damages(blob, every=7):
        client.hset(keys.CANARIES, "pump", bad)
        found, unreadable = asyncio.run(written._store(canaries, "a"))
        assert found["fan"] == found.get("pump", canary) == canary
        assert ("pump" in found) != ("pump" in unreadable)
