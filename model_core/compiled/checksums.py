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
Flags = NDArray[np.bool_]
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
def enter_positions(
    heads: Bytes,
    further: Bytes,
    sizes_further: Ints,
    firsts: Ints,
    counts: Ints,
    full: Flags,
    room: Bytes,
    places: Ints,
    held: Ints,
    rows: Bytes,
    sizes: Ints,
    starts: Ints,
    marks: Bytes,
    positions: Bytes,
    ends: Ints,
    tails: Bytes,
    ends_of_tails: Ints,
) -> None:
    """Join positions and blocks as they are stored, each behind its length; and where each ends.

    heads: (N, H) how positions begin. further, sizes_further: (N,) what follows in each. firsts,
    counts: (N,) of the rows of each block. full: (N,) whether it goes to the tails; the others go
    with their positions. room: where rows are held; places, held: (N,) rows of it, and bytes of
    each, which a block begins with; what does not go to a tail is held there from here on. rows,
    sizes: (N,) those that follow. starts: (N, 2) what checksums of position and block begin with.
    marks: one before each length (u32, big-endian) and one before each checksum (u32).
    """
    # Unsigned places: bytes are copied as vectors.
    begins = heads.reshape(-1)
    width = np.uint64(heads.shape[1])
    at = np.uint64(0)
    at_tail = np.uint64(0)
    read = np.uint64(0)
    read_further = np.uint64(0)
    for i in range(len(sizes)):
        size = np.uint64(sizes_further[i])
        body = at + np.uint64(FRAME)
        end = body + width + size
        for k in range(width):
            positions[body + np.uint64(k)] = begins[np.uint64(i) * width + np.uint64(k)]
        for k in range(size):
            positions[body + width + np.uint64(k)] = further[read_further + np.uint64(k)]
        read_further += size
        _enter_sum(positions, body, end, starts[i, 0], marks[1])
        out = tails if full[i] else positions
        body = at_tail + np.uint64(FRAME) if full[i] else end + np.uint64(1 + SUM)
        stop = body
        for k in range(POSITION):
            out[stop] = (np.uint64(firsts[i]) >> np.uint64(8 * k)) & np.uint64(BYTE)
            stop += np.uint64(1)
        out[stop] = counts[i]
        stop += np.uint64(1)
        size = np.uint64(held[i])
        for k in range(size):
            out[stop + np.uint64(k)] = room[places[i], np.uint64(k)]
        stop += size
        more = np.uint64(sizes[i])
        for k in range(more):
            out[stop + np.uint64(k)] = rows[read + np.uint64(k)]
        stop += more
        _enter_sum(out, body, stop, starts[i, 1], marks[1])
        block = np.uint64(0)
        if full[i]:
            _enter_length(tails, at_tail, stop, marks[0])
            at_tail = stop
        else:
            for k in range(more):
                room[places[i], size + np.uint64(k)] = rows[read + np.uint64(k)]
            block = stop - end
            end = stop
        read += more
        positions[end] = block & np.uint64(BYTE)
        positions[end + np.uint64(1)] = block >> np.uint64(8)
        end += np.uint64(2)
        _enter_length(positions, at, end, marks[0])
        at = end
        ends[i] = at
        ends_of_tails[i] = at_tail


@inlined
def _enter_sum(out: Bytes, body: Any, end: Any, start: int, mark: int) -> None:
    own = _sum(out, body, end, start)
    out[body - np.uint64(1 + SUM)] = mark
    for k in range(SUM):
        out[body - np.uint64(SUM - k)] = (own >> np.uint32(8 * k)) & BYTE


@inlined
def _enter_length(out: Bytes, at: Any, end: Any, mark: int) -> None:
    length = end - at - np.uint64(LENGTH)
    out[at] = mark
    for k in range(4):
        out[at + np.uint64(1 + k)] = (length >> np.uint64(24 - 8 * k)) & np.uint64(BYTE)


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
    table = np.empty((0, 2), np.uint8)
    sums = np.empty((0, 2), np.int64)
    flags = np.empty(0, np.bool_)
    enter_positions(
        table, row, none, none, none, flags, table, none, none, row, none, sums, row,
        row.copy(), none, row.copy(), none,
    )  # fmt: skip
    words = np.empty((0, 0), np.uint64)
    find_columns(row, none, 0, 0, np.empty((256, 2), np.int64), 0, words, none)


locked("checksums", _compile)
