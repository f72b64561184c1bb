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


def test_bodies_stand_behind_their_length_and_checksum():
    rng = random.Random(0)
    heads = [rng.randbytes(3) for _ in range(30)]
    more = [rng.randbytes(rng.choice((0, 1, 90, 300))) for _ in heads]
    starts = [0, 2**32 - 1, *(rng.getrandbits(32) for _ in heads[2:])]
    expected = []
    for head, data, start in zip(heads, more, starts, strict=True):
        body = head + data
        length = (len(body) + 5).to_bytes(4, "big")
        expected.append(b"a" + length + b"b" + crc32(body, start).to_bytes(4, "little") + body)
    out = np.empty(sum(map(len, expected)), np.uint8)
    ends = np.empty(len(heads), np.int64)
    checksums.enter_framed(
        np.frombuffer(bytearray(b"".join(heads)), np.uint8).reshape(-1, 3),
        np.frombuffer(b"".join(more), np.uint8),
        np.array(list(map(len, more))),
        np.array(starts),
        np.frombuffer(b"ab", np.uint8),
        out,
        ends,
    )
    assert out.tobytes() == b"".join(expected)
    assert ends.tolist() == np.cumsum(list(map(len, expected))).tolist()
