"""Checksums of many rows: those of zlib."""

import random
from zlib import crc32

import numpy as np
import pytest

from model_core.compiled import checksums


@pytest.mark.parametrize("size", [1, 5, 8, 13, 91, 300])
def test_they_are_those_of_each_row_by_zlib(size):
    rng = random.Random(size)
    rows = [rng.randbytes(size) for _ in range(20)]
    table = np.frombuffer(b"".join(rows), np.uint8).reshape(-1, size)
    for begin in {0, 1, 5, size} & {*range(size + 1)}:
        for start in (0, 1, 2**32 - 1, rng.getrandbits(32)):
            expected = [crc32(row[begin:], start) for row in rows]
            assert checksums.of_rows(table, begin, start).tolist() == expected


def framed(body, start):
    return b"b" + crc32(body, start).to_bytes(4, "little") + body


def strings(bodies):
    return b"".join(b"a" + len(body).to_bytes(4, "big") + body for body in bodies)


def test_blocks_lie_beside_their_position_until_they_are_full():
    rng = random.Random(0)
    count = 40
    heads = [rng.randbytes(3) for _ in range(count)]
    further, new = ([rng.randbytes(rng.choice((0, 1, 9, 90))) for _ in heads] for _ in range(2))
    lain = [rng.randbytes(rng.choice((0, 1, 90))) for _ in heads]
    firsts = [rng.choice((0, 300, 2**48 - 2)) for _ in heads]
    counts = [rng.randrange(256) for _ in heads]
    full = [rng.random() < 0.5 for _ in heads]
    starts = [[rng.getrandbits(32), rng.choice((0, 2**32 - 1))] for _ in heads]
    places = rng.sample(range(50), count)
    room = np.zeros((50, 180), np.uint8)
    for at, own in zip(places, lain, strict=True):
        room[at, : len(own)] = np.frombuffer(own, np.uint8)
    blocks = [
        framed(first.to_bytes(6, "little") + bytes([n]) + own + rows, start)
        for first, n, own, rows, (_, start) in zip(firsts, counts, lain, new, starts, strict=True)
    ]
    beside = [b"" if of_tail else own for own, of_tail in zip(blocks, full, strict=True)]
    positions = [
        framed(head + more, start) + own + len(own).to_bytes(2, "little")
        for head, more, own, (start, _) in zip(heads, further, beside, starts, strict=True)
    ]
    tails = [own for own, of_tail in zip(blocks, full, strict=True) if of_tail]
    out, out_tails = (np.empty(len(strings(each)), np.uint8) for each in (positions, tails))
    ends, ends_of_tails = np.empty((2, count), np.int64)
    checksums.enter_positions(
        np.frombuffer(bytearray(b"".join(heads)), np.uint8).reshape(-1, 3),
        np.frombuffer(b"".join(further), np.uint8),
        np.array(list(map(len, further))),
        np.array(firsts),
        np.array(counts),
        np.array(full),
        room,
        np.array(places),
        np.array(list(map(len, lain))),
        np.frombuffer(b"".join(new), np.uint8),
        np.array(list(map(len, new))),
        np.array(starts),
        np.frombuffer(b"ab", np.uint8),
        out,
        ends,
        out_tails,
        ends_of_tails,
    )
    assert out.tobytes() == strings(positions)
    assert out_tails.tobytes() == strings(tails)
    assert ends.tolist() == [len(strings(positions[: i + 1])) for i in range(count)]
    assert ends_of_tails.tolist() == [
        len(strings(tails[: sum(full[: i + 1])])) for i in range(count)
    ]
    for at, own, rows, of_tail in zip(places, lain, new, full, strict=True):
        held = own if of_tail else own + rows
        assert room[at].tobytes() == held.ljust(180, b"\0")
