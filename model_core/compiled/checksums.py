"""CRC-32, as `zlib.crc32` has it, of many short rows: in a third of its time; rows with it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_core.compiled.jit import called, inlined, locked

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
POLYNOMIAL = 0xEDB88320
STRIDE = 16  # bytes that are taken in at once
SUM = 4  # bytes of a checksum
LENGTH = 5  # bytes before what a length is of
FRAME = LENGTH + 1 + SUM  # bytes before a body
BYTE = np.uint32(0xFF)
EVERY = np.uint32(0xFFFFFFFF)


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


def _compile() -> None:
    row = np.frombuffer(bytes(2), np.uint8)
    of_rows(row.reshape(1, 2), 1, 0)
    none = np.empty(0, np.int64)
    enter_framed(np.empty((0, 2), np.uint8), row, none, none, row, np.empty(0, np.uint8), none)


locked("checksums", _compile)
