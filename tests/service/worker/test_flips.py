"""A flipped bit is found: in all that has a checksum, and in the log, where it costs one command.

What workers make of a damaged part: streams/test_damage.py.
"""

import asyncio
import json

import pytest

from service import wire
from service.models.catalogue import Canary
from service.store import keys
from service.store.log import START, Entry, entry_of
from service.store.streams import UnreadablePart
from service.wire import Configure, Observation, Observe, rows
from service.worker.streams.task import decode_entries
from tests.packing import pack
from tests.service.worker.conftest import INCARNATION, Queued


def damages(blob):
    """Bytes with one bit flipped (the first with any value), and shorter blobs."""
    for i in range(len(blob)):
        yield blob[:i] + bytes([blob[i] ^ (1 << i % 8)]) + blob[i + 1 :]
    for byte in set(range(256)) - {blob[0]}:
        yield bytes([byte]) + blob[1:]
    for length in {*range(8), *range(8, len(blob), 61), len(blob) - 1}:
        yield blob[:length]


def test_every_byte_of_what_has_a_checksum_and_its_place():
    body, place = wire.encode({"seq": 7, "mean": [0.5] * 9}), ("head", "a", "4:2")
    blob = wire.checksummed(body, *place)
    assert wire.checked(blob, *place) == body
    for bad in damages(blob):
        with pytest.raises(ValueError, match="checksum"):
            wire.checked(bad, *place)
    for elsewhere in (("tail", "a", "4:2"), ("head", "b", "4:2"), ("head", "a", "4:3")):
        with pytest.raises(ValueError, match="checksum"):
            wire.checked(blob, *elsewhere)


def test_every_part_of_a_stream_is_checked_by_the_api_too(make_bench):
    """And its name, which is a part of what is stored."""
    bench = make_bench(partitions=1, checkpoint_every=16)
    labels = [0.1 * (i % 5) + (8.0 if i >= 30 else 0.0) for i in range(68)]
    given = {"max_hypotheses": 3, "location": [0.0], "scale": [1.0]}
    bench.ask(Configure("a", given), status=201)
    bench.send(Observe("a", [Observation(y=labels[0])], key="k", digest="d"))
    bench.observe("a", labels[1:40])
    bench.ask(Configure("a", {"hazard": 0.02}))
    for first, last in ((40, 65), (65, 68)):
        bench.observe("a", labels[first:last])
    bench.crash()
    head = bench.head("a")
    assert 0 < head.checkpoint < head.seq
    assert head.track.last_event is not None

    def read():
        try:
            return asyncio.run(bench._store(lambda store: store.snapshot("a")))
        except UnreadablePart:
            return None

    parts = read()
    fields = {"head": b"a\0", "position": b"a", "checkpoint": b"a"}
    lists = {"head": keys.heads, "position": keys.heads, "checkpoint": keys.checkpoints}
    for part in (
        "head",
        "position",
        "checkpoint",
        "events",
        "changes",
        "idempotency",
    ):
        key = lists[part](0) if part in lists else getattr(keys, part)(0, "a")
        field = fields.get(part) or min(bench.client.hkeys(key))
        good = bench.client.hget(key, field)
        bench.client.hset(key, field, good[:-9] + bytes([good[-9] ^ 4]) + good[-8:])
        assert read() is None, part
        bench.client.hset(key, field, good)
        for i in range(len(field)):
            bad = field[:i] + bytes([field[i] ^ 1]) + field[i + 1 :]
            if not bench.client.hexists(key, bad):
                bench.client.hset(key, bad, good)
                bench.client.hdel(key, field)
                assert read() in (None, parts), (part, bad)
                bench.client.hset(key, field, good)
                bench.client.hdel(key, bad)
    check_tail(bench, read)
    assert read() == parts


def check_tail(bench, read):
    """Flip a bit of each block: nothing is read."""
    key = keys.tail(0, "a")
    blocks = bench.tail("a")
    assert len(blocks) > 1
    for at, good in enumerate(blocks):
        bench.client.lset(key, at, good[:-9] + bytes([good[-9] ^ 4]) + good[-8:])
        assert read() is None, at
        bench.client.lset(key, at, good)


# --- the log --------------------------------------------------------------------------------------


def entry_with(count):
    """An entry of commands 7, 8, ... by their number; the second is of two rows."""
    envelopes = [
        wire.Envelope(n, 1, 0, "gaussian", Observe("abc"[n % 3], [Observation(y=0.5 + n)]))
        for n in range(7, 7 + count)
    ]
    pair = [Observe("d", [Observation(y=1.5)]), Observe("e", [Observation(y=2.5)])]
    envelopes[1].command = pack(pair)
    queued = [
        Queued(n.number, wire.units(n.command), wire.encode(n), rows.rows_of(n.command))
        for n in envelopes
    ]
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
        commands = read(entry._replace(payload=bad))
        assert commands.keys() == good.keys()
        lost = [number for number, command in commands.items() if command is None]
        assert all(commands[number] == good[number] for number in good if number not in lost)
        worst = max(worst, len(lost) if len(bad) == len(entry.payload) else 0)
    assert worst == 1  # a damaged byte is one command's
    for bad in damages(entry.sums):
        assert read(entry._replace(sums=bad)) == {}
    assert read(entry, partition=1) == {}
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


def test_a_canary_that_cannot_be_read_costs_no_other(bench):
    canary = Canary("2", 0.25)

    async def damaged(store):
        for name in ("fan", "pump"):
            await store.put_canary(name, canary)
        bench.client.hset(keys.CANARIES, "pump", b"damaged")
        return await store.canaries()

    found, unreadable = asyncio.run(bench._store(damaged))
    assert (found, list(unreadable)) == ({"fan": canary}, ["pump"])
