"""A flipped bit in any stored part is found: the answer is the true one, or an error."""

import asyncio
import itertools
import json
import math
from zlib import crc32

import pytest

from model_core import codec
from service import api_keys as access
from service import wire
from service.backup.file import Kept
from service.backup.take import damage
from service.models import canary
from service.models.canary import Canary
from service.store import event_log, keys
from service.store.api_keys import _table
from service.store.api_reads import AsyncStore
from service.store.append import Queued, entry_of
from service.store.connection import connect_async
from service.store.log import START, Entry
from service.store.worker_reads import CorruptState, Store, decoded
from service.wire import Configure, Delete, EventFeedback, Observation, Observe, WhatIf
from service.worker.filtering.history import retained
from service.worker.streams.registry import Engine
from service.worker.streams.stream import Stream
from service.worker.streams.task import decode_entries
from tests.service.worker.conftest import INCARNATION

LABELS = [0.1 * (i % 5) + (8.0 if i >= 30 else 0.0) for i in range(68)]
SETTINGS = {"max_hypotheses": 3, "location": [0.0], "scale": [1.0]}


def slug(answer):
    return answer["type"].rpartition("/")[2]


def damages(blob):
    """Each byte with one bit flipped, the first with any value, and shorter blobs."""
    for i, byte in enumerate(blob):
        yield blob[:i] + bytes([byte ^ (1 << i % 8)]) + blob[i + 1 :]
    for byte in set(range(256)) - {blob[0]}:
        yield bytes([byte]) + blob[1:]
    for length in {*range(8), *range(8, len(blob), 61), len(blob) - 1}:
        yield blob[:length]


class Reader:
    """What worker and API make of stream a, or that it cannot be read."""

    def __init__(self, bench):
        self.bench, self.client, self.p = bench, bench.client, bench.partition("a")
        self.engine = Engine(bench.settings, Store(bench.client))
        self.loop = asyncio.new_event_loop()
        self.async_client = connect_async(bench.settings.redis_url)
        self.store = AsyncStore(self.async_client, bench.settings.partitions)

    def close(self):
        self.loop.run_until_complete(self.async_client.aclose())
        self.loop.close()

    def worker(self, part):
        """What a worker makes of a part; None: it says what is wrong."""
        if part == "idempotency":
            (stored,) = self.engine.store.load(self.p, ["a"])
            stream = Stream(self.p, "a", stored)
            stream.recall(stored.idempotency)
            return None if stream.unreadable else dict(stream.remembered)
        if part in ("history", "events"):
            return self._read(self.engine.streams[self.p, "a"])
        return self.load()

    def load(self):
        """All that a worker makes of the stream."""
        if (self.p, "a") in self.engine.streams:
            self.engine.evict(self.engine.streams[self.p, "a"])
        self.engine.load(self.p, ["a"])
        stream = self.engine.streams[self.p, "a"]
        if stream.broken is not None:
            assert any(effect[0] == "HSET" for effect in stream.effects())  # bytes kept aside
            return None
        state = codec.encode(stream.slab.model, stream.slab.state(stream.row))
        if stream.unreadable or stream.damaged:
            assert stream.effects()
            return None
        return state, wire.encode(stream.head), dict(stream.remembered), self._read(stream)

    def _read(self, stream):
        """Parts of a loaded stream that are read when they are needed."""
        try:
            records = retained(stream, self.engine.store, 10_000)
            return records, stream.events(self.engine.store)
        except CorruptState:
            return None

    def api(self, part):
        """What the API reads of a part; None: it says what is wrong."""
        return self.loop.run_until_complete(self._api(part))

    def records(self):
        """What the API reads of the whole history, and what it says is lost."""
        read = self.store.records(self.p, "a", self.bench.head("a"), 0, 10_000)
        return self.loop.run_until_complete(read)

    async def _api(self, part):
        store, p, found = self.store, self.p, []
        try:
            if part == "outcome":
                outcome = (await store.outcomes(INCARNATION, [(p, 0)])).get(0)
                return None if isinstance(outcome, CorruptState) else outcome
            if part in ("head", "tail", "history"):
                head = await store.head(p, "a")
                if head is None:
                    return None
                records, lost = await store.records(p, "a", head, 0, head.seq)
                assert not lost  # only what was sealed without is
                found += [head, records]
                rows, unreadable = await store.overview([(p, "a"), (p, "b")], 5)
                assert rows[-1].stream == "b"  # whatever the damage of its neighbour
                found.append(None if unreadable else rows)
            if part in ("events", "changes"):
                read = store.events(p, "a") if part == "events" else store.changes(p, "a", 0, 99)
                good, unreadable = await read
                if unreadable:
                    with pytest.raises(CorruptState):
                        await store.parts(p, "a")
                    return None
                found.append(good)
            return [*found, await store.parts(p, "a")]
        except CorruptState:
            return None


@pytest.fixture
def make_reader():
    made = []

    def build(bench):
        made.append(Reader(bench))
        made[-1].load()
        return made[-1]

    yield build
    for reader in made:
        reader.close()


@pytest.fixture
def written(make_bench, make_reader):
    """A stream with every part there is, and another one beside it."""
    bench = make_bench(partitions=1, checkpoint_every=16)
    bench.ask(Configure("a", SETTINGS), status=201)
    bench.send(Observe("a", [Observation(y=LABELS[0])], key="k1", digest="d"))
    bench.send(Observe("a", [Observation(y=LABELS[1])], key="k2", digest="d"))
    bench.observe("a", LABELS[2:40])
    bench.ask(Configure("a", {"hazard": 0.02}))
    bench.ask(Configure("a", {"confirm_after": 5}))
    bench.observe("a", LABELS[40:65])
    bench.observe("a", LABELS[65:])
    bench.observe("b", [1.0, 2.0, 3.0])
    bench.crash()
    head = bench.head("a")
    assert 0 < head.sealed < head.checkpoint < head.seq
    assert head.last_event is not None
    return make_reader(bench)


def places(reader, part):
    """Keys and fields where a part is stored: one, of the tail one on each side of a checkpoint."""
    p = reader.p
    key = {
        "head": keys.heads(p),
        "outcome": keys.outcomes(p, INCARNATION, 0),
    }.get(part) or getattr(keys, part)(p, "a")
    fields = {"head": [b"a"], "outcome": [b"0"]}.get(part)
    if fields is None:
        fields = sorted(reader.client.hkeys(key))
    if part == "tail":
        head = reader.bench.head("a")
        fields = [str(head.checkpoint).encode(), str(head.checkpoint - 1).encode()]
    assert fields
    return key, fields[: 2 if part == "tail" else 1]


PARTS = ["head", "checkpoint", "tail", "history", "events", "changes", "idempotency", "outcome"]
WORKER = {"head", "checkpoint", "tail", "history", "events", "idempotency"}
API = {"head", "tail", "history", "events", "changes", "idempotency", "outcome", "checkpoint"}


@pytest.mark.parametrize("part", PARTS)
def test_every_byte_of_every_part(written, part):
    key, fields = places(written, part)
    loaded, worker, api = written.load(), written.worker(part), written.api(part)
    assert None not in (loaded, loaded[-1], worker, api)
    for field in fields:
        good = written.client.hget(key, field)
        assert good[:1] == wire.checksum.MARK
        count = 0
        for bad in damages(good):
            written.client.hset(key, field, bad)
            if part in WORKER:
                assert written.worker(part) in (None, worker), bad
            if part in API:
                assert written.api(part) in (None, api), bad
            count += 1
        assert count > len(good)
        written.client.hset(key, field, good)
    assert (written.load(), written.worker(part), written.api(part)) == (loaded, worker, api)


@pytest.mark.parametrize("part", PARTS)
def test_every_byte_of_every_name(written, part):
    """A hash's field is a part of what is stored, too."""
    key, fields = places(written, part)
    worker, api = written.worker(part), written.api(part)
    for field in fields:
        good = written.client.hget(key, field)
        for i, bit in itertools.product(range(len(field)), range(8)):
            bad = field[:i] + bytes([field[i] ^ 1 << bit]) + field[i + 1 :]
            if written.client.hexists(key, bad):
                continue
            written.client.hset(key, bad, good)
            written.client.hdel(key, field)
            if part in WORKER:
                assert written.worker(part) in (None, worker), bad
            if part != "outcome":  # one that is not there is not there yet
                assert written.api(part) in (None, api), bad
            written.client.hset(key, field, good)
            written.client.hdel(key, bad)


@pytest.mark.parametrize("part", ["tail", "history", "events", "changes", "idempotency"])
def test_values_under_one_anothers_names(written, part):
    key = getattr(keys, part)(written.p, "a")
    worker, api = written.worker(part), written.api(part)
    stored = written.client.hgetall(key)
    for (one, value), other in itertools.islice(itertools.permutations(stored.items(), 2), 12):
        written.client.hset(key, one, other[1])
        assert written.worker(part) in (None, worker) or part == "changes"
        assert written.api(part) in (None, api)
        written.client.hset(key, other[0], value)
        assert written.worker(part) in (None, worker) or part == "changes"
        assert written.api(part) in (None, api)
        written.client.hset(key, mapping=stored)


@pytest.mark.parametrize("part", ["head", "checkpoint", "tail", "history", "events"])
def test_parts_of_another_stream(make_bench, make_reader, part):
    """The same model, settings and positions: only the checksum knows whose it is."""
    bench = make_bench(partitions=1, checkpoint_every=16)
    names = ["a", next(f"s{i}" for i in range(999) if crc32(f"s{i}".encode()) % 64 == 3)]
    for name in names:
        bench.ask(Configure(name, SETTINGS), status=201)
        shift = float(name != "a")
        for i in range(0, 68, 4):
            bench.observe(name, [label + shift for label in LABELS[i : i + 4]])
    bench.observe("b", [1.0, 2.0, 3.0])
    bench.crash()
    reader = make_reader(bench)
    key = (lambda name: keys.heads(0)) if part == "head" else lambda n: getattr(keys, part)(0, n)
    fields = names if part == "head" else [min(bench.client.hkeys(key("a")))] * 2
    blob = bench.client.hget(key(names[1]), fields[1])
    assert blob is not None
    assert bench.client.hset(key("a"), fields[0], blob) == 0
    found = reader.load()
    assert reader.api(part) is None
    assert found is None or found[-1] is None


@pytest.mark.parametrize("part", ["head", "tail", "checkpoint", "events", "changes", "history"])
def test_parts_of_an_earlier_version_have_no_checksum(written, part):
    """They are read as they are, and get one when they are next written."""
    client, worker, api = written.client, written.worker(part), written.api(part)
    key = keys.heads(0) if part == "head" else getattr(keys, part)(0, "a")
    for field in client.hkeys(key):
        client.hset(key, field, client.hget(key, field)[wire.checksum.SIZE :])
    assert (written.worker(part), written.api(part)) == (worker, api)
    written.bench.observe("a", [1.0])
    assert client.hget(keys.heads(0), "a")[:1] == wire.checksum.MARK


# --- what is left of a damaged stream ---------------------------------------------------------


def flip(client, key, field):
    blob = client.hget(key, field)
    bad = blob[:-9] + bytes([blob[-9] ^ 4]) + blob[-8:]
    client.hset(key, field, bad)
    return bad


def test_a_damaged_chunk_stops_what_needs_it_alone(written):
    bench = written.bench
    bad = flip(bench.client, keys.history(0, "a"), "0")
    assert bench.observe("a", [1.0], key="n", digest="d")[0]["seq"] == 68
    for command in (WhatIf("a", {}), EventFeedback("a", False, event=1)):
        answer = bench.ask(command, status=500)
        assert slug(answer) == "corrupt-state"
        assert "history 0" in answer["detail"]
    assert bench.observe("a", [1.0])[0]["seq"] == 69
    assert bad in bench.quarantine("a").values()
    assert bench.client.hget(keys.history(0, "a"), "0") == bad


def test_a_damaged_event_stops_what_needs_it_alone(written):
    bench = written.bench
    bad = flip(bench.client, keys.events(0, "a"), "1")
    assert bench.observe("a", [1.0])[0]["seq"] == 68
    before = bench.head("a")
    for command in (EventFeedback("a", True, event=1), wire.Move("a", "student")):
        answer = bench.send(command)[0]
        assert answer.status in (500, 422)
    assert bench.head("a") == before
    assert slug(bench.ask(EventFeedback("a", True, event=1), status=500)) == "corrupt-state"
    assert bench.ask(WhatIf("a", {}))["seq"] == 69
    assert bad in bench.quarantine("a").values()


def test_a_damaged_record_before_the_checkpoint_is_missing_from_the_history_alone(written):
    bench, head = written.bench, written.bench.head("a")
    bad = flip(bench.client, keys.tail(0, "a"), str(head.checkpoint - 1))
    (answer,) = bench.observe("a", [1.0])
    assert answer["seq"] == 68
    assert bad in bench.quarantine("a").values()
    assert slug(bench.ask(WhatIf("a", {}), status=500)) == "corrupt-state"
    bench.observe("a", [float(i % 3) for i in range(70)])  # seals its chunk
    assert not bench.client.hexists(keys.tail(0, "a"), str(head.checkpoint - 1))
    bench.crash()
    assert slug(bench.ask(WhatIf("a", {}), status=500)) == "corrupt-state"
    records, lost = written.records()
    gone = head.checkpoint - 1
    assert [record.seq for record in records] == [seq for seq in range(139) if seq != gone]
    assert lost == [f"observation {gone}"]
    assert bench.observe("a", [1.0])[0]["seq"] == 139


def test_a_record_mended_before_its_chunk_is_sealed_is_not_lost(written):
    bench, head = written.bench, written.bench.head("a")
    field = str(head.checkpoint - 1)
    good = bench.client.hget(keys.tail(0, "a"), field)
    flip(bench.client, keys.tail(0, "a"), field)
    bench.observe("a", [1.0])  # its worker knows of the damage
    bench.client.hset(keys.tail(0, "a"), field, good)
    bench.observe("a", [float(i % 3) for i in range(70)])
    records, lost = written.records()
    assert ([record.seq for record in records], lost) == (list(range(139)), [])


def test_a_damaged_idempotency_record_is_an_error_for_its_key_alone(written):
    bench = written.bench
    bad = flip(bench.client, keys.idempotency(0, "a"), "k1\x000")
    before = bench.head("a").seq
    (known,) = bench.send(Observe("a", [Observation(y=LABELS[1])], key="k2", digest="d"))
    assert json.loads(known.body[0])["duplicate"]
    for _ in range(2):
        (lost,) = bench.send(Observe("a", [Observation(y=LABELS[0])], key="k1", digest="d"))
        assert (lost.status, slug(json.loads(lost.body[0]))) == (500, "corrupt-state")
    assert bench.head("a").seq == before
    (new,) = bench.send(Observe("a", [Observation(y=1.0)], key="k3", digest="d"))
    assert json.loads(new.body[0])["seq"] == before
    assert any(bad in kept for kept in bench.quarantine("a").values())
    bench.send(Delete("a"))
    assert not bench.client.hexists(keys.idempotency(0, "a"), "k1\x000")


def test_an_idempotency_record_under_a_damaged_name_is_known_by_its_own(written):
    bench, key = written.bench, keys.idempotency(0, "a")
    bench.client.hset(key, "k9\x000", bench.client.hget(key, "k1\x000"))
    bench.client.hdel(key, "k1\x000")
    (known,) = bench.send(Observe("a", [Observation(y=LABELS[0])], key="k1", digest="d"))
    assert (known.status, json.loads(known.body[0])["duplicate"]) == (200, True)
    (lost,) = bench.send(Observe("a", [Observation(y=1.0)], key="k9", digest="d"))
    assert lost.status == 500


def test_a_lost_head_is_no_new_stream(written):
    bench = written.bench
    bench.client.hdel(keys.heads(0), "a")
    assert "head is missing" in bench.ask(Observe("a", [Observation(y=1.0)]), status=500)["detail"]


# --- the log ------------------------------------------------------------------------------------


def envelope(number, y, stream="a"):
    return wire.Envelope(number, 1, 0, "gaussian", Observe(stream, [Observation(y=y)]))


def entry_with(envelopes):
    queued = [Queued(each.number, 1, wire.encode(each)) for each in envelopes]
    return Entry("5-0", *entry_of(0, INCARNATION, queued))


def read(entry):
    """Commands by their number; None for one that is answered as damaged, and what is set aside."""
    items = decode_entries(0, START, [entry])
    assert items
    known = {i.task.envelope.number: (i.task.incarnation, i.task.envelope) for i in items if i.task}
    lost = {item.lost.number: None for item in items if item.lost}
    assert all(item.payload is not None for item in items if item.task is None)
    assert items[-1].offset == ("5-0", -1)
    return known | lost


def test_every_byte_of_a_log_entry():
    envelopes = [envelope(n, 0.5 + n, "abc"[n % 3]) for n in (7, 8, 9)]
    entry = entry_with(envelopes)
    good = {each.number: (INCARNATION, each) for each in envelopes}
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
    assert read(Entry("5-0", entry.payload)) == good  # of an earlier version


def test_bytes_that_are_no_text_are_damage_too():
    """The decoder has an error of its own for them; a hurt mark leaves them without checksum."""
    with pytest.raises(CorruptState):
        decoded(wire.decode_idempotency, b"\x94\xa1\xff\x00\x00\x90", "idempotency", "a")
    (item,) = decode_entries(0, START, [Entry("5-0", b"\x92\xa1\xff\x90")])
    assert (item.task, item.payload) == (None, b"\x92\xa1\xff\x90")
    entry = entry_with([envelope(7, 1.0)])
    (item,) = decode_entries(0, START, [entry._replace(sums=b"\x94\xa1\xff\x01\x00\x90")])
    assert (item.task, item.lost.number) == (None, 7)


def test_an_entry_of_another_partition():
    entry = entry_with([envelope(7, 1.0)])
    (item,) = decode_entries(1, START, [entry])
    assert (item.task, item.lost.number) == (None, 7)


def test_an_entry_of_a_later_version_is_left_to_it():
    entry = entry_with([envelope(7, 1.0)])
    sums = wire.decode_sums(wire.checked(entry.sums, "entry", 0))
    sums.format += 1
    later = entry._replace(sums=wire.checksummed(wire.encode(sums), "entry", 0))
    assert decode_entries(0, START, [later]) == []
    body = wire.encode([7, 1, 0, "gaussian", {"type": "forecast_all", "stream": "a"}])
    unknown = Entry("5-0", *entry_of(0, INCARNATION, [Queued(7, 1, body)]))
    assert decode_entries(0, START, [unknown]) == []
    flipped = unknown._replace(payload=unknown.payload.replace(b"forecast", b"forecasu"))
    assert decode_entries(0, START, [flipped])[0].lost.number == 7


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
    assert (lost.status, slug(json.loads(lost.body[0]))) == (500, "quarantined")
    assert [json.loads(each.body[0])["seq"] for each in others] == [0, 0]
    assert bench.head("a").seq == 1
    assert bench.observe("a", [2.0])[0]["seq"] == 1
    (aside,) = bench.quarantine("a").values()
    assert wire.decode_envelope(aside).command.observations[0].y == 3.0
    meta = bench.client.hgetall(keys.meta(0))
    assert meta[b"in"] == meta[b"done"]


def test_an_api_of_an_earlier_version_reads_outcomes(make_bench):
    bench = make_bench(partitions=1)
    payload = wire.encode(wire.LogEntry("old", [envelope(4, 1.0)]))
    bench.client.xadd(keys.log(0), {"b": payload})
    bench.observe("b", [1.0])
    blob = bench.client.hget(keys.outcomes(0, "old", 4), "4")
    assert wire.decode_outcome(blob).status == 200


# --- what belongs to no stream --------------------------------------------------------------------


def test_every_byte_of_a_feed_entry(written):
    ((id_, fields), *_) = written.client.xrange(keys.feed(0))
    good = event_log.entry_of(0, id_, fields)
    assert good.raised is not None
    assert fields.keys() == {b"e", b"b", b"c"}
    for name, value in fields.items():
        for bad in damages(value):
            found = event_log.entry_of(0, id_, {**fields, name: bad})
            # One that is damaged counts as trimmed away, which its readers hear of.
            assert found == good or found.before == found.id
            assert found.raised in (None, good.raised)


def test_every_byte_of_a_key():
    key, _ = access.create("ci", ["write"], "100/second", 1_900_000_000_000)
    blob = wire.checksummed(wire.encode(key), "key", key.id)
    id_ = key.id.encode()
    assert _table({id_: blob}) == {key.id: key}
    assert _table({id_: wire.encode(key)}) == {key.id: key}  # of an earlier version
    for bad in damages(blob):
        assert _table({id_: bad}) in ({}, {key.id: key})
    for bad in damages(id_):
        assert _table({bad: blob}) == {}


def test_every_byte_of_a_canary(written):
    good = Canary("2", 0.25)
    run = written.loop.run_until_complete
    run(written.store.put_canary("pump", good))
    run(written.store.put_canary("fan", good))
    blob = written.client.hget(keys.CANARIES, "pump")
    for bad in damages(blob):
        written.client.hset(keys.CANARIES, "pump", bad)
        found, unreadable = run(written.store.canaries())
        assert found["fan"] == good
        assert found.get("pump", good) == good
        assert ("pump" in found) != ("pump" in unreadable)
    written.client.hset(keys.CANARIES, "pump", canary.encode(good))
    assert run(written.store.canaries()) == ({"pump": good, "fan": good}, [])


def test_a_backup_names_what_is_damaged(written):
    stored = written.bench.stored("a")
    names = ("checkpoint", "tail", "history", "events", "idempotency")
    parts = {name: stored[name] for name in names}
    parts["changes"] = written.client.hgetall(keys.changes(0, "a"))
    kept = Kept("a", stored["head"], **parts)
    assert damage(kept) == []
    for i in range(len(kept.head)):
        kept.head = stored["head"][:i] + bytes([stored["head"][i] ^ 1]) + stored["head"][i + 1 :]
        assert damage(kept) == ["head"]
    kept.head = stored["head"]
    for name, part in parts.items():
        field = min(part)
        good = part[field]
        part[field] = good[: len(good) // 2] + b"\0" + good[len(good) // 2 :]
        assert len(damage(kept)) == 1, name
        part[field] = good


def test_the_same_answers_with_damage_beside(written):
    """A part that cannot be read changes nothing of a stream in the same batch."""
    bench = written.bench
    flip(bench.client, keys.heads(0), "a")
    wrong, right = bench.send(
        Observe("a", [Observation(y=2.0)]), Observe("b", [Observation(y=2.0)])
    )
    assert (wrong.status, right.status) == (500, 200)
    assert math.isfinite(json.loads(right.body[0])["seq"])
