"""Labels around a change are those of the records, wherever these lie."""

import pytest

from service import wire
from service.store import regimes
from service.store.regimes import Place
from service.store.worker_reads import CorruptState, chunk_of, seal

BEFORE, AFTER, COUNT = 200, 100, 400


def record(seq):
    label = None if seq % 9 == 0 else [float(seq), None if seq % 5 == 0 else -float(seq)]
    time = f"2024-05-01T12:00:{seq % 60:02d}Z"
    previous = 180 if seq == 250 else 0
    offset = 0.5 if seq % 2 else 0.0
    return wire.Record(
        seq, label, None, time, 1.0, None, 0.01, 0.01, previous_start=previous, offset=offset
    )


def head(sealed, history=1000, season=None):
    settings = wire.StreamSettings("joint@1", history=history)
    return wire.Head(1, settings, seq=COUNT, sealed=sealed, y_dim=2, season=season)


def stored(place):
    """What `fetch` returns: the tail from where chunks are sealed on, and the chunks."""
    wanted = regimes._range(place, BEFORE, AFTER)
    sealed, name = place.head.sealed, place.stream
    tail = [
        wire.checksummed(wire.encode(record(seq)), "tail", name, seq)
        for seq in range(max(wanted.start, sealed), wanted.stop)
    ]
    chunks = []
    for number in regimes._chunks(place, wanted):
        rows = [record(s) for s in range(sealed) if chunk_of(name, s) == number]
        chunks.append(seal(name, number, rows) if rows else None)
    return tail, chunks


def labels(seqs, seasonal):
    rows = [record(seq) for seq in seqs]
    return [
        [each - (row.offset if seasonal else 0.0) for each in wire.numbers(row.y)]
        for row in rows
        if row.y is not None
    ]


@pytest.mark.parametrize("season", [None, wire.Season([24], 0)])
@pytest.mark.parametrize("boundary", [2, 4, 6])
@pytest.mark.parametrize(
    ("start", "previous", "following", "before", "after"),
    [
        (300, None, None, range(100, 300), range(300, 400)),
        (250, None, 320, range(180, 250), range(250, 320)),  # by its record's own pointer
        (300, 290, None, range(290, 300), range(300, 400)),
        (40, None, None, range(40), range(40, 140)),
        (375, None, None, range(175, 375), range(375, 395)),  # it goes on: by tens
        (385, None, None, range(185, 385), range(385, 400)),
    ],
)
def test_they_are_those_of_the_records(season, boundary, start, previous, following, before, after):
    name = "pump"
    sealed = next(s for s in range(COUNT + 64) if chunk_of(name, s) == boundary)
    place = Place(0, name, head(min(sealed, COUNT), season=season), start, previous, following)
    found = regimes.decode(place, stored(place), BEFORE, AFTER)
    assert repr(found.before) == repr(labels(before, season is not None))  # nan is not itself
    assert repr(found.after) == repr(labels(after, season is not None))
    assert found.first == record(start)


def test_what_is_not_retained_is_left_out():
    place = Place(0, "pump", head(300, history=120), 300, None, None)
    found = regimes.decode(place, stored(place), BEFORE, AFTER)
    assert repr(found.before) == repr(labels(range(280, 300), False))
    gone = Place(0, "pump", head(300, history=50), 300, None, None)
    found = regimes.decode(gone, stored(gone), BEFORE, AFTER)
    assert found.before == []
    assert found.first is None


def test_damage_is_an_error():
    place = Place(0, "pump", head(300), 300, None, None)
    tail, chunks = stored(place)
    with pytest.raises(CorruptState):
        regimes.decode(place, ([b"?", *tail[1:]], chunks), BEFORE, AFTER)
    with pytest.raises(CorruptState):
        regimes.decode(place, (tail, [b"?", *chunks[1:]]), BEFORE, AFTER)
