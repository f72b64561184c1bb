"""Positions of heads: what is read is what was written, one by one and many at once."""

import random
from itertools import compress

import numpy as np
import pytest

from model_core.compiled.checksums import enter_positions
from model_core.stream.state import KnownRegime
from model_core.stream_settings import DEFAULTS
from service.store.streams import UNREADABLE
from service.wire import Head, Pace, Position, decode_position, encode_position
from service.wire.stored_records import (
    POSITION,
    TOO_MANY,
    Blocks,
    Damaged,
    block_of,
    bytes_of,
    checksummed_at,
    elements,
    enter_numbers,
    further_bytes,
    numbers_of,
    packed,
    split_position,
    with_block,
)


def ordinary(rng, **fields):
    values = {
        "seq": rng.choice([1, 64, TOO_MANY - 1]),
        "updated_ms": 1_795_734_569_283,
        "changed_probability": rng.random(),
        "evidence": rng.choice([0.0, -0.0, 1e308, float("inf")]),
        "map_run_length": rng.randrange(100),
        "best_start": rng.randrange(100),
        "log_score_sum": rng.gauss(0.0, 1e6),
        "scored": rng.randrange(100),
        "pruned_mass": rng.random(),
        "pruned_mass_sum": rng.random(),
        "last_label": [rng.gauss(0.0, 1.0)],
        "last_time": rng.choice([None, 0.0, 1.7e9]),
        "pace": rng.choice([None, Pace(1.7e9, rng.random() < 0.5, 7, rng.choice([None, 1e4]))]),
    }
    return Head(1, DEFAULTS, **{**values, **fields})


VECTOR = {"last_label": [0.5, -0.0, 2.0]}
OTHERS = [
    {"seq": TOO_MANY},
    {"changed_probability": None},
    {"evidence": None},
    {"map_run_length": None},
    {"last_label": None},
    {"last_label": [None]},
    {"last_label": [1.0, None]},
    {"last_label": [1.0] * 17},
    {"regime": KnownRegime("calm", 0.5)},
    {"pace": Pace(0.0, True, TOO_MANY)},
]


@pytest.mark.parametrize("fields", [{}, VECTOR, *OTHERS])
def test_what_is_read_is_what_was_written(fields):
    rng = random.Random(1)
    for _ in range(50):
        head = ordinary(rng, **fields)
        position = decode_position(encode_position(head))
        for name in Position.__struct_fields__:
            assert getattr(position, name) == getattr(head, name), name
    assert (numbers_of(head) is None) == (fields in OTHERS)


def strings_of(packed):
    """Strings of a list in msgpack, each as raw 32."""
    strings = []
    at = 5
    while at < len(packed):
        assert packed[at] == 0xDB
        end = at + 5 + int.from_bytes(packed[at + 1 : at + 5], "big")
        strings.append(packed[at + 5 : end])
        at = end
    assert packed[:5] == b"\xdd" + len(strings).to_bytes(4, "big")
    return strings


def test_many_at_once_are_stored_as_each_alone():
    rng = random.Random(2)
    labels = [[1.5], [0.5, -0.0, 2.0]]
    heads = [ordinary(rng, last_label=rng.choice(labels)) for _ in range(200)]
    rows = np.array([numbers_of(head) for head in heads], POSITION)
    further = [further_bytes(head.last_label[1:]) for head in heads]
    new = [[rng.randbytes(rng.randrange(300)) for _ in range(rng.randrange(1, 4))] for _ in heads]
    firsts = [rng.choice([rng.randrange(300), rng.randrange(2**47)]) for _ in heads]
    full = np.array([rng.random() < 0.3 for _ in heads])
    joined = [*map(b"".join, new)]
    places = np.arange(200)
    (positions, ends), (tails, ends_of_tails) = elements(
        np.stack((places, places + 1000), 1),
        bytes_of(rows),
        np.array([*map(len, further)]),
        b"".join(further),
        Blocks(
            np.array(firsts),
            np.array([*map(len, new)]),
            full,
            np.zeros((200, 900), np.uint8),
            places,
            np.zeros(200, np.int64),
            np.frombuffer(b"".join(joined), np.uint8),
            np.array([*map(len, joined)]),
        ),
        enter_positions,
    )
    each = [checksummed_at(at, encode_position(head)) for at, head in enumerate(heads)]
    blocks = [
        checksummed_at(1000 + at, block_of(*own))
        for at, own in enumerate(zip(firsts, new, strict=True))
    ]
    beside = [b"" if own else block for own, block in zip(full, blocks, strict=True)]
    stored = [*map(with_block, each, beside)]
    assert strings_of(packed(200, positions)) == stored
    assert strings_of(packed(7, positions[: ends[6]])) == stored[:7]
    assert [split_position(own) for own in stored] == list(zip(each, beside, strict=True))
    of_tails = [*compress(blocks, full)]
    assert strings_of(packed(len(of_tails), tails)) == of_tails
    some = int(np.count_nonzero(full[:50]))
    assert strings_of(packed(some, tails[: ends_of_tails[49]])) == of_tails[:some]


@pytest.mark.parametrize("stored", [b"", b"\0", b"abcd\0\0", b"abcdefgh\4\0"])
def test_a_block_beside_a_position_is_none_of_it(stored):
    with pytest.raises(Damaged):
        split_position(stored)


def test_numbers_are_entered_as_they_were_read():
    rng = random.Random(3)
    for _ in range(50):
        head = ordinary(rng, **rng.choice([{}, VECTOR]))
        other = ordinary(rng)
        further = head.last_label[1:]
        enter_numbers(other, np.array(numbers_of(head), POSITION).item(), further)
        assert other == head
        kinds = [type(getattr(other, name)) for name in Position.__struct_fields__]
        assert kinds == [type(getattr(head, name)) for name in Position.__struct_fields__]


def test_a_position_that_is_cut_short_is_not_read():
    for body in (
        encode_position(ordinary(random.Random(4), last_time=1.0, pace=Pace(1.0, True))),
        encode_position(ordinary(random.Random(4), last_time=None, pace=None)),
        encode_position(ordinary(random.Random(4), last_label=None)),
        encode_position(ordinary(random.Random(4), **VECTOR)),
    ):
        decode_position(body)
        for end in range(len(body)):
            with pytest.raises(UNREADABLE):
                decode_position(body[:end])
