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
