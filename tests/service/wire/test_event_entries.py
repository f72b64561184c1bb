"""Cursors: what is written is read, and nothing else is."""

import base64
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.wire import Id
from service.wire.event_entries import START, BadCursor, Positions, parse_cursor

IDS = st.builds(Id, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
few = settings(max_examples=50)


@few
@given(st.dictionaries(st.integers(0, 63), IDS), st.sets(st.integers(0, 63)))
def test_a_cursor_has_every_position_of_its_partitions(known, partitions):
    text = Positions(partitions, 64, known).text()
    wanted = {p: id_ for p, id_ in known.items() if p in partitions and id_ != START}
    assert parse_cursor(text, 64) == wanted
    with pytest.raises(BadCursor, match="with 65 partitions, got one of 64: subscribe again"):
        parse_cursor(text, 65)


@few
@given(st.dictionaries(st.integers(0, 63), IDS, min_size=1), st.data())
def test_a_changed_cursor_is_refused(known, data):
    text = Positions(known, 64, known).text()
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from("AQgwXy09-_").filter(lambda c: c != text[at]))
    with pytest.raises(BadCursor):
        parse_cursor(text[:at] + other + text[at + 1 :], 64)
    with pytest.raises(BadCursor):
        parse_cursor(text[:at], 64)


def cursor_of(*numbers):
    """A cursor of four partitions with these numbers, and a checksum that fits."""
    blob = b"\4\0" + b"".join(
        number.to_bytes(2 if i % 3 == 0 else 8, "little") for i, number in enumerate(numbers)
    )
    text = base64.urlsafe_b64encode(blob + zlib.crc32(blob).to_bytes(4, "little"))
    return text.rstrip(b"=").decode()


def test_numbers_that_are_no_positions_are_refused():
    assert parse_cursor(cursor_of(3, 7, 2), 4) == {3: Id(7, 2)}
    for text in (cursor_of(3, 7), "", "x", "noon", "ä" * 9, "A" * 10_000):  # half an id first
        with pytest.raises(BadCursor):
            parse_cursor(text, 4)


def test_moving_changes_one_partition():
    positions = Positions([3, 1], 4, {1: Id(5, 0), 2: Id(9, 9)})
    positions.move(3, Id(7, 2))
    assert parse_cursor(positions.text(), 4) == {1: Id(5, 0), 3: Id(7, 2)}
    assert positions.behind({1: Id(5, 1), 2: Id(10, 0), 3: Id(7, 2)}) == {1: Id(5, 0)}


def test_sixty_four_partitions_fit_into_a_header():
    ids = {p: Id(1_700_000_000_000, 2**32 + p) for p in range(64)}
    assert len(Positions(ids, 64, ids).text()) < 1600
