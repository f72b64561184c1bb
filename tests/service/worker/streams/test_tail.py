"""The tail of a stream: what a commit appends to it, and what it drops."""

import random
from bisect import bisect_right
from itertools import accumulate, pairwise
from operator import add

import numpy as np
import pytest

from model_core.compiled import checksums
from service import wire
from service.store import keys
from service.store.streams import UNREADABLE, UnreadablePart, blocks, records_of, rows_of
from service.wire import Configure, Event, stored_records
from service.worker.streams.history import KEPT_BYTES, KeptLabels, Tail
from service.worker.streams.stream import Stream
from tests.service.wire.test_stored_records import ordinary, shaped
from tests.stored import record


def rows_from(stream, blobs, start=0):
    """Position of the first row of blocks, and all from there on."""
    first, parts = rows_of(stream, blobs, start)
    return first, stored_records.singly(parts)


def drawn(kind, count, **fields):
    """Rows of one kind."""
    rng = random.Random(4)
    fields.setdefault("outlier_rate", 0.0)
    rows = (stored_records.encode_row(ordinary(0, rng, **fields)) for _ in range(400))
    return [row for row in rows if row[0] == kind][:count]


@pytest.mark.parametrize("of_each", [1, 3])
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (stored_records.NUMBERS, {}),
        (stored_records.NUMBERS | stored_records.STATED, {"hazard": 0.5}),
        (
            stored_records.NUMBERS | stored_records.TIMED,
            {"time": "2024-05-01T12:00:00Z", "accepted_ms": None},
        ),
        (stored_records.NUMBERS | stored_records.SHAPED, shaped(2, 1) | {"offset": []}),
    ],
)
@pytest.mark.parametrize("sums", [stored_records.sums_of, checksums.of_rows])
def test_rows_that_are_read_together_are_as_those_read_one_by_one_and_checked_as_well(
    of_each, kind, fields, sums
):
    place = wire.place_of("tail", "s")
    usual = drawn(kind, 12 * of_each, **fields)
    assert len(usual) == 12 * of_each
    other = stored_records.encode_row(record(5))
    rows = [other, *usual[:-of_each], other, *usual[-of_each:]]
    sizes = [1, *[of_each] * 11, 1, of_each]
    firsts = [0, *accumulate(sizes)]
    blobs = [
        blob
        for first, size in zip(firsts, sizes, strict=False)
        for blob in blocks(place, 5 + first, rows[first : first + size])
    ]
    first, parts = rows_of("s", blobs, sums=sums)
    tables = [len(part) for part in parts if isinstance(part, np.ndarray)]
    assert tables == [11 * of_each]
    assert (first, stored_records.singly(parts)) == (5, rows)
    for start, stop in ((5, 7), (6, 9), (8, 8 + 11 * of_each), (16, 17), (0, 4)):
        at, cut = rows_of("s", blobs, start, stop, sums)
        assert stored_records.singly(cut) == rows[max(at - 5, 0) : max(stop - 5, 0)]
        assert at == max(start, 5)
    for gap in (2, 6, len(blobs) - 2):
        with pytest.raises(UnreadablePart):
            rows_of("s", blobs[:gap] + blobs[gap + 1 :], sums=sums)
    twice = [*blobs[:4], blobs[3], *blobs[5:]]
    with pytest.raises(UnreadablePart):
        rows_of("s", twice, sums=sums)
    for at in range(len(blobs[4])):
        damaged = bytearray(blobs[4])
        damaged[at] ^= 1
        with pytest.raises(UnreadablePart):
            rows_of("s", [*blobs[:4], bytes(damaged), *blobs[5:]], sums=sums)


@pytest.mark.parametrize("changed", [b"\x03", b"\x29", b"\x05"])
def test_one_of_another_kind_among_rows_of_one_length_is_not_read_as_theirs(changed):
    """By the right checksum: its own length is another, or its rate of outliers."""
    place = wire.place_of("tail", "s")
    usual = drawn(stored_records.NUMBERS, 12)
    usual[6] = changed + usual[6][1:]
    blobs = [blob for at, row in enumerate(usual) for blob in blocks(place, at, [row])]
    with pytest.raises(UnreadablePart):
        rows_of("s", blobs)
    usual[6] = bytes([stored_records.NUMBERS | stored_records.OUTLIERS]) + usual[6][1:]
    blobs[6:7] = blocks(place, 6, [usual[6]])
    (part,) = rows_of("s", blobs)[1]
    assert stored_records.singly([part]) == usual
    assert isinstance(part, np.ndarray)


def labels_of(blobs, start, stop):
    """Labels and seasons of rows of blocks; None where they cannot be read."""
    try:
        first, parts = rows_of("s", blobs, start, stop)
        found = stored_records.labels_of(parts, 1)
    except UNREADABLE:
        return None
    return exact(found) if (first, len(found[0])) == (start, stop - start) else None


def usual_labels(blobs, start, stop):
    """The same, by the kernel; None also where others have to read them."""
    place = wire.place_of("tail", "s")
    return exact(stored_records.usual_labels(place, blobs, start, stop, checksums.find_columns))


def exact(found):
    """To the last bit."""
    return repr(found and [column.tolist() for column in found])


def block(first, rows):
    """One block, with its checksum."""
    return wire.checksummed_at(wire.place_of("tail", "s"), stored_records.block_of(first, rows))


def usual_rows():
    """Of every kind, also whole records."""
    timed = {"time": "2024-05-01T12:00:00Z", "accepted_ms": None}
    return [
        *drawn(stored_records.NUMBERS, 2),
        *drawn(stored_records.NUMBERS + 2 * stored_records.OUTLIERS, 2, outlier_rate=0.01),
        *drawn(stored_records.NUMBERS + stored_records.STATED, 2, hazard=0.5, offset=[2.5]),
        stored_records.encode_row(record(11)),
        *drawn(stored_records.NUMBERS + stored_records.TIMED, 2, **timed),
        *drawn(
            stored_records.NUMBERS + stored_records.STATED + stored_records.TIMED,
            1,
            hazard=0.5,
            **timed,
        ),
        stored_records.encode_row(record(15, None)),
        stored_records.encode_row(record(16, 3.0, offset=[-1.5])),
    ]


def test_labels_of_usual_rows_are_those_of_any():
    """Of blocks of one row and of several."""
    rows = usual_rows()
    end = 5 + len(rows)
    for sizes in ([1] * 12, [4, 1, 7], [12]):
        firsts = [*accumulate(sizes, initial=0)]
        blobs = [block(5 + at, rows[at:end_]) for at, end_ in pairwise(firsts)]
        for start in range(5, end):
            for stop in range(start + 1, end + 1):
                expected = labels_of(blobs, start, stop)
                assert expected is not None
                assert usual_labels(blobs, start, stop) == expected
        for start, stop in ((4, end), (5, end + 1), (8, 8)):
            assert usual_labels(blobs, start, stop) == "None"


def test_other_rows_and_damaged_ones_are_left_to_others():
    rows = usual_rows()
    good = [block(at, [row]) for at, row in enumerate(rows)]
    count = len(good)
    assert usual_labels(good, 0, count) != "None"
    vector = stored_records.encode_row(ordinary(0, random.Random(4), **shaped(2, 1)))
    for at, blob in enumerate(good):
        row = rows[at]
        others = [block(at, [vector]), block(at, []), block(at + 1, [row]), block(at, [row + b"?"])]
        others += [block(at - 1, [row])] if at else []
        others += [block(at, [row, row])] if at < count - 1 else []
        others += [blob[:i] for i in range(len(blob))]
        others += [blob[:i] + bytes([blob[i] ^ 1]) + blob[i + 1 :] for i in range(len(blob))]
        for other in others:
            assert usual_labels([*good[:at], other, *good[at + 1 :]], 0, count) == "None"


def test_rows_of_a_right_checksum_that_are_none_are_not_read_beyond_their_end():
    """The kernel checks each place that it reads; others say what is wrong."""
    rng = random.Random(8)
    agree = 0
    for row in usual_rows():
        for _ in range(300):
            changed = bytearray(row)
            for _ in range(rng.randrange(3)):
                at = rng.choice([rng.randrange(6), rng.randrange(len(row))])
                changed[at % len(row)] = rng.randrange(256)
            if rng.random() < 0.5:
                del changed[rng.randrange(1, len(row)) :]
            blobs = [block(0, [bytes(changed)])]
            try:
                found = usual_labels(blobs, 0, 1)
            except UNREADABLE:
                continue
            if found != "None":
                assert found == labels_of(blobs, 0, 1)
                agree += 1
    assert agree > 500


def tail_effects(stream):
    """What the next commit does to the stored tail."""
    effects, _ = stream.effects()
    return [effect for effect in effects if effect[1] == keys.tail(0, "a")]


def observe(stream, count):
    head = stream.live()
    for _ in range(count):
        stream.tail.put(record(head.seq, float(head.seq), accepted_ms=head.seq))
        head.seq += 1
    stream.touch(1)


def applied(stored, effects):
    """A stored tail after effects on it."""
    for operation, _, *arguments in effects:
        bodies = [blob[wire.CHECKSUM_SIZE :] for blob in stored]
        firsts = list(map(stored_records.begin_of, stored))
        if operation == "RPUSH":
            stored = [*stored, *arguments]
        elif operation == "CUT":
            stored = [b for b, first in zip(stored, firsts, strict=True) if first < arguments[0]]
        elif operation == "DROP":
            ends = map(add, firsts, map(len, map(stored_records.split_block, bodies)))
            stored = [b for b, end in zip(stored, ends, strict=True) if end > arguments[0]]
    return stored


def seqs(stored):
    return [record.seq for record in records_of("a", stored)]


def test_rows_go_when_they_are_past_the_history_and_before_a_checkpoint():
    stream = Stream(0, "a")
    settings = wire.StreamSettings("gaussian", history=10)
    stream.create(wire.Head(1, settings, warm=True))
    stored = []
    for _ in range(200):
        observe(stream, 1)
        stored = applied(stored, tail_effects(stream))
    assert seqs(stored) == [*range(200)]
    # Of what no checkpoint covers nothing goes, and not less than a block at once.
    for checkpoint, first in ((60, 0), (100, 100), (150, 100), (199, 190)):
        stream.live().checkpoint = checkpoint
        stored = applied(stored, tail_effects(stream))
        assert seqs(stored) == [*range(first, 200)]
        assert stream.live().oldest == first
    assert tail_effects(stream) == []


def test_a_longer_history_has_room_for_what_comes(bench):
    """Of what was past the shorter one nothing comes back, stored though it may be."""
    bench.ask(Configure("a", {"history": 30, "location": [0.0], "scale": [1.0]}), status=201)
    bench.observe("a", map(float, range(101)))
    for history, first, seq in ((50, 71, 111), (20, 101, 121), (60, 101, 131), (5000, 101, 141)):
        bench.ask(Configure("a", {"history": history}))
        bench.observe("a", map(float, range(10)))
        head = bench.head("a")
        assert (head.retained_from, head.seq) == (first, seq)
        assert [each.seq for each in bench.records("a")] == [*range(first, seq)]


def test_a_corrected_record_stands_for_the_stored_one():
    stream = Stream(0, "a")
    stream.create(wire.Head(1, wire.StreamSettings("gaussian"), warm=True))
    stored = []
    for count in (2, 4):
        observe(stream, count)
        stored = applied(stored, tail_effects(stream))
    for seq in (3, 4, 5):
        stream.tail.put(record(seq, -1.0))
    observe(stream, 1)
    effects = tail_effects(stream)
    assert [effect[:3] for effect in effects][0] == ("CUT", keys.tail(0, "a"), 3)
    stored = applied(stored, effects)
    assert len(stored) == 3  # the second has one row that counts
    assert [r.y for r in records_of("a", stored)] == [0.0, 1.0, 2.0, -1.0, -1.0, -1.0, 6.0]
    observe(stream, 1)
    stored = applied(stored, tail_effects(stream))
    stream.tail.put(record(7, -2.0))  # the last one alone, which has a block of its own
    stored = applied(stored, tail_effects(stream))
    assert [r.y for r in records_of("a", stored)][-2:] == [6.0, -2.0]


@pytest.mark.parametrize(("often", "expected_thin"), [(0.1, {0, 1, 2, 3, 4}), (0.02, {0, 1})])
def test_what_is_read_is_what_is_stored_and_what_is_new(often, expected_thin):
    """However many blocks there are, and rows that stand for stored ones."""
    rng = random.Random(2)
    stream = Stream(0, "a")
    settings = wire.StreamSettings("gaussian", history=100)
    stream.create(wire.Head(1, settings, warm=True, y_dim=1))
    head = stream.live()
    stored = []
    labels = []
    thins = set()
    for _ in range(300):
        if head.seq > 20 and rng.random() < often:
            first = head.seq - rng.randrange(1, 20)
            labels[first:] = [-1.0 - label for label in labels[first:]]
            for seq in range(first, head.seq):
                stream.tail.put(record(seq, labels[seq], accepted_ms=seq))
        count = rng.choice((1, 1, 3)) if often > 0.05 else 1
        labels += map(float, range(head.seq, head.seq + count))
        observe(stream, count)
        for most in (1, 7, 1000):
            last = stream.last(stream.first_of_last(most))
            *_, first, end, thin = last.span
            at = bisect_right(stored, first, key=stored_records.begin_of) - 1
            blobs = stored[max(at, 0) :] if first < end else []
            if thin and blobs:
                few = stored[(first - end) // thin :]
                if stored_records.begin_of(few[0]) <= first:
                    blobs = few
            thins.add(thin)
            found = stream.tail.labels(last, blobs, 1)
            expected = labels[-min(most, 100, len(labels)) :]
            assert found.y[:, 0].tolist() == expected
            number = rng.randrange(len(expected))
            assert found.moment(number) == (None, head.seq - len(expected) + number)
        if rng.random() < 0.7:
            head.checkpoint = head.seq
            stored = applied(stored, tail_effects(stream))
    assert head.oldest > 150
    assert thins == expected_thin


@pytest.mark.parametrize("room", [KEPT_BYTES, 3000])
def test_labels_that_were_looked_at_are_known_until_they_change(monkeypatch, room):
    """And while there is room for them."""
    monkeypatch.setattr("service.worker.streams.history.KEPT_BYTES", room)
    rng = random.Random(3)
    kept = KeptLabels()
    tails = [Tail(0, name) for name in "abc"]
    labels = {tail: [] for tail in tails}
    known = dict.fromkeys(tails, (0, 0))  # first and end of those that should be
    every = 0
    for _ in range(400):
        tail = rng.choice(tails)
        own = labels[tail]
        if own and rng.random() < 0.2:
            changed = len(own) - rng.randrange(min(len(own), 30))
            own[changed:] = [rng.random() for _ in own[changed:]]
            for seq in range(changed, len(own)):
                tail.put(record(seq, own[seq]))
            known[tail] = (known[tail][0], min(known[tail][1], changed))
        for _ in range(rng.randrange(1, 9)):
            own.append(rng.random())
            tail.put(record(len(own) - 1, own[-1]))
        first = max(0, len(own) - rng.choice((20, 100, 2000)))
        found = kept.take(tail, first).ravel().tolist()
        assert found == own[first : first + len(found)]
        begin, end = known[tail]
        if room > 3000:
            assert len(found) == (max(end - first, 0) if first >= begin else 0)
        every += len(found)
        kept.put(tail, len(own), np.array(own[first:]).reshape(-1, 1))
        known[tail] = (first, len(own))
        assert sum(y.nbytes for _, y in kept._labels.values()) == kept._bytes <= room
    assert every > 1000


def test_blocks_that_do_not_follow_on_each_other_are_refused():
    rows = [wire.encode_row(record(seq)) for seq in range(6)]
    place = wire.place_of("tail", "a")

    def block(first, stop):
        (blob,) = blocks(place, first, rows[first:stop])
        return blob

    assert rows_from("a", [block(0, 3), block(2, 4), block(4, 6)]) == (0, rows)
    assert rows_from("a", []) == (0, [])
    good = block(0, 3)
    for blobs in (
        [good, block(4, 6)],
        [good, block(3, 5), block(3, 5)],
        [good, block(2, 4), block(1, 4)],
        [good[:-3]],
        [b"garbage"],
        [wire.checksummed(good[wire.CHECKSUM_SIZE :], "tail", "b")],
    ):
        with pytest.raises(UnreadablePart, match="the stored tail of 'a'"):
            rows_of("a", blobs)


def test_what_a_deleted_generation_left_waiting_goes_with_its_keys():
    """Also where the stream is made again before the commit: that writes in order."""
    stream = Stream(0, "a")
    for generation in (1, 2):
        stream.create(wire.Head(generation, wire.StreamSettings("gaussian"), warm=True))
        observe(stream, 3)
        stream.keep_events([Event(generation, "confirmed", 1, 1)])
        stream.commit_checkpoint(b"state")
        if generation == 1:
            stream.delete(1)
    effects, _ = stream.effects()
    for key, written, dropped in (
        (keys.events(0, "a"), [("HSET", "change:1"), ("HSET", "change:2")], ("UNLINK",)),
        (keys.checkpoints(0), 2 * [("HSET", "a")], ("HDEL", "a")),
    ):
        own = [(operation, *rest[:1]) for operation, name, *rest in effects if name == key]
        assert own == [written[0], dropped, written[1]]
    (push,) = [effect for effect in effects if effect[0] == "RPUSH"]
    assert seqs(push[2:]) == [0, 1, 2]
    assert stream.idle
