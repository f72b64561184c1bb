"""CRC-32, as `zlib.crc32` has it, of many short rows: in a third of its time; rows with it.

A framed body has a byte and its checksum (u32, little-endian) before it. A block is one that begins
with a position (u48) and the number of rows (u8) that follow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_core.compiled.jit import called, inlined, locked

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
POLYNOMIAL = 0xEDB88320
STRIDE = 16  # bytes that are taken in at once
SUM = 4  # bytes of a checksum
LENGTH = 5  # bytes before what a length is of
FRAME = LENGTH + 1 + SUM  # bytes before a body
POSITION = 6
BLOCK = 1 + SUM + POSITION + 1  # bytes before the rows of a block
BYTE = np.uint32(0xFF)
EVERY = np.uint32(0xFFFFFFFF)
ZERO = np.uint64(0)  # with a signed one, numbers of 64 bits would become floats


def _tables() -> NDArray[np.uint32]:
    """What a byte that so many others follow adds to a sum: (STRIDE, 256)."""
    tables = np.empty((STRIDE, 256), np.uint32)
    own = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        own = (own >> np.uint32(1)) ^ np.where(own & np.uint32(1), np.uint32(POLYNOMIAL), 0)
    tables[0] = own
    for i in range(1, STRIDE):
        tables[i] = (tables[i - 1] >> np.uint32(8)) ^ own[tables[i - 1] & BYTE]
    return tables


_TABLES = _tables()


def of_rows(rows: Bytes, begin: int, start: int) -> NDArray[np.uint32]:
    """Checksum of each row (n, size) of bytes, from a place on; start: what each begins with."""
    sums = np.empty(len(rows), np.uint32)
    _sum_rows(rows.reshape(-1), rows.shape[1], begin, start, sums)
    return sums


@called
def _sum_rows(data: Bytes, size: int, begin: int, start: int, sums: NDArray[np.uint32]) -> None:
    for i in range(len(sums)):
        sums[i] = _sum(data, i * size + begin, (i + 1) * size, start)


@inlined
def _sum(data: Bytes, begin: Any, stop: Any, start: int) -> np.uint32:
    """Checksum of the bytes from a place to before another."""
    # Unsigned places: negative ones would count from the end.
    at = np.uint64(begin)
    end = np.uint64(stop)
    own = np.uint32(start) ^ EVERY
    while at + np.uint64(STRIDE) <= end:
        taken = np.uint32(0)
        for k in range(SUM):
            byte = (own >> np.uint32(8 * k)) & BYTE
            taken ^= _TABLES[STRIDE - 1 - k, byte ^ np.uint32(data[at + np.uint64(k)])]
        for k in range(SUM, STRIDE):
            taken ^= _TABLES[STRIDE - 1 - k, data[at + np.uint64(k)]]
        own = taken
        at += np.uint64(STRIDE)
    while at < end:
        own = (own >> np.uint32(8)) ^ _TABLES[0, (own ^ np.uint32(data[at])) & BYTE]
        at += np.uint64(1)
    return own ^ EVERY


@called
def enter_framed(
    heads: Bytes, data: Bytes, sizes: Ints, starts: Ints, before: Bytes, out: Bytes, ends: Ints
) -> None:
    """Join bodies, each behind its length and checksum; fills in where each ends.

    heads: (N, H) how each begins. data, sizes: (N,) what follows in each. starts: (N,) what their
    checksums begin with. before: two bytes, of which one stands before the length (u32,
    big-endian), which is that of all after it, and one before the checksum (u32, little-endian).
    """
    # Unsigned places: bytes are copied as vectors.
    begins = heads.reshape(-1)
    width = np.uint64(heads.shape[1])
    at = np.uint64(0)
    read = np.uint64(0)
    for i in range(len(sizes)):
        size = np.uint64(sizes[i])
        body = at + np.uint64(FRAME)
        end = body + width + size
        for k in range(width):
            out[body + np.uint64(k)] = begins[np.uint64(i) * width + np.uint64(k)]
        for k in range(size):
            out[body + width + np.uint64(k)] = data[read + np.uint64(k)]
        read += size
        length = end - at - np.uint64(LENGTH)
        own = _sum(out, body, end, starts[i])
        out[at] = before[0]
        for k in range(4):
            out[at + np.uint64(1 + k)] = (length >> np.uint64(24 - 8 * k)) & np.uint64(BYTE)
        out[at + np.uint64(LENGTH)] = before[1]
        for k in range(SUM):
            out[body - np.uint64(SUM - k)] = (own >> np.uint32(8 * k)) & BYTE
        at = end
        ends[i] = end


@inlined
def _number(data: Bytes, at: int, size: int) -> np.uint64:
    """So many bytes, little-endian."""
    number = np.uint64(0)
    for k in range(size):
        number |= np.uint64(data[at + k]) << np.uint64(8 * k)
    return number


@called
def find_columns(
    data: Bytes,
    sizes: Ints,
    mark: int,
    start: int,
    kinds: Ints,
    first: int,
    found: Words,
    others: Ints,
) -> bool:
    """Fill in columns (C, N) of the rows of N positions from `first` on.

    False: blocks are not right, do not follow on each other, or have rows of an unknown kind. data,
    sizes: blocks, one after the other, and the bytes of each. mark, start: the byte before their
    checksums, and what these begin with. kinds: (256, 2 + C) by the first byte of a row: its size,
    0 for unknown ones; how many of its last bytes say how many more follow; places of the columns,
    of eight bytes each: 0 where a column is 0, and of the first where a row has none. others: (N,)
    where in the data such rows begin; unchanged for those that have columns.
    """
    count = len(others)
    at = 0
    position = first
    for i in range(len(sizes)):
        end = at + sizes[i]
        row = at + BLOCK
        if row > end or data[at] != mark:
            return False
        body = at + 1 + SUM
        if _number(data, at + 1, SUM) != _sum(data, body, end, start):
            return False
        begin = np.int64(_number(data, body, POSITION))
        if (i == 0 and begin > first) or (i > 0 and begin != position):
            return False
        position = begin + data[row - 1]
        for number in range(begin - first, position - first):
            if row >= end:
                return False
            kind = data[row]
            after = row + kinds[kind, 0]
            if after == row or after > end:
                return False
            length = kinds[kind, 1]
            after += np.int64(_number(data, after - length, length))
            if after > end:
                return False
            if 0 <= number < count:
                if kinds[kind, 2] == 0:
                    others[number] = row
                for column in range(len(found)):
                    place = kinds[kind, 2 + column]
                    found[column, number] = _number(data, row + place, 8) if place else ZERO
            row = after
        if row != end:
            return False
        at = end
    return bool(position >= first + count)


def _compile() -> None:
    row = np.frombuffer(bytes(2), np.uint8)
    of_rows(row.reshape(1, 2), 1, 0)
    none = np.empty(0, np.int64)
    enter_framed(np.empty((0, 2), np.uint8), row, none, none, row, np.empty(0, np.uint8), none)
    words = np.empty((0, 0), np.uint64)
    find_columns(row, none, 0, 0, np.empty((256, 2), np.int64), 0, words, none)


locked("checksums", _compile)
