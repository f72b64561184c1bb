"""Rows of numbers in chunks: growing copies nothing, and chunks that are not needed go."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_core.lazy import torch
from model_core.transfer import to_device

Array = Any  # of float64: an array on the host, a tensor on another device; they index alike
Shapes = Sequence[tuple[int, ...]]
Numbers = Sequence[int] | NDArray[np.int64]
# Of the first chunk, the larger; each later one doubles what there is, up to a bound. Most slabs
# have one: steps of rows in several cost more.
FIRST_ROWS = 16
FIRST_BYTES = 4 << 20


class Chunk:
    """Memory of a fixed number of rows, and which of them are free; key: its own."""

    def __init__(self, key: int, shapes: Shapes, rows: int, device: str) -> None:
        self.key = key
        self.rows = rows
        self.free = list(range(rows - 1, -1, -1))
        # Not filled: a row is written before it is read.
        self.arrays = [_room((rows, *shape), device) for shape in shapes]

    @property
    def used(self) -> int:
        """Rows that are not free."""
        return self.rows - len(self.free)


class Chunks:
    """Rows known by numbers, which stay theirs wherever they lie; all arrays (rows, ...)."""

    def __init__(
        self, shapes: Shapes, chunk_bytes: int, expected: int = 0, device: str = "cpu"
    ) -> None:
        """Hold rows of arrays of these shapes in chunks of about `chunk_bytes` at most.

        expected: rows of the first chunk, at least.
        """
        self._expected = expected
        self._shapes = shapes
        self._device = device
        self.row_bytes = 8 * sum(map(prod, shapes))
        self._most = max(1, chunk_bytes // self.row_bytes)
        self._chunks: list[Chunk] = []
        self._made = 0  # chunks so far
        # Of each number the key of its chunk, and its row there; numbers that are free, least last.
        self._keys = np.zeros(0, np.int64)
        self._lying = np.zeros(0, np.int64)
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._keys) - len(self._free)

    @property
    def rows(self) -> int:
        """Rows that memory is held for."""
        return sum(chunk.rows for chunk in self._chunks)

    @property
    def full(self) -> bool:
        """Whether the next row needs a new chunk."""
        return not any(chunk.free for chunk in self._chunks)

    @property
    def next_bytes(self) -> int:
        """Bytes of the next chunk."""
        return self._next_rows() * self.row_bytes

    def reserve(self) -> int:
        """Take a row that is written next; returns its number."""
        if self.full:
            self._chunks.append(Chunk(self._made, self._shapes, self._next_rows(), self._device))
            self._made += 1
        if not self._free:
            held = len(self._keys)
            more = max(held, FIRST_ROWS)
            self._keys = np.concatenate((self._keys, np.full(more, -1)))
            self._lying = np.concatenate((self._lying, np.zeros(more, np.int64)))
            self._free = list(range(held + more - 1, held - 1, -1))
        number = self._free.pop()
        self._put(number)
        return number

    def _put(self, number: int) -> None:
        """Have a number be that of a free row: of the fullest chunk, so that others empty."""
        chunk = max((own for own in self._chunks if own.free), key=lambda own: own.used)
        self._keys[number] = chunk.key
        self._lying[number] = chunk.free.pop()

    def remove(self, number: int) -> None:
        """Forget a row; the next one may have its number."""
        (chunk,) = (own for own in self._chunks if own.key == self._keys[number])
        chunk.free.append(int(self._lying[number]))
        self._keys[number] = -1
        self._free.append(number)

    def read(self, numbers: Numbers) -> list[Array]:
        """Rows as they are numbered, copied."""
        groups = self.groups(numbers)
        return [self._gathered(groups, i) for i in range(len(self._shapes))]

    def lines(self, numbers: Numbers, count: int) -> Array:
        """The first lines (B, count, ...) of the first array of rows, copied."""
        return self._gathered(self.groups(numbers), 0, slice(count))

    def write(self, numbers: Numbers, arrays: Sequence[Array]) -> None:
        """Put rows in place of distinct ones; arrays: on the device, as `read` returns them."""
        for chunk, rows, at in self.groups(numbers):
            for own, array in zip(chunk.arrays, arrays, strict=True):
                own[rows] = array[at]

    def places(self, numbers: Numbers) -> list[tuple[Chunk, NDArray[np.int64], Any]]:
        """Chunks that hold them, with their rows there and which of `numbers` these are."""
        own = np.asarray(numbers, np.int64)
        lying = self._lying.take(own)
        keys = self._keys.take(own)
        held = [chunk for chunk in self._chunks if chunk.key == keys[0]]
        if held and np.count_nonzero(keys == keys[0]) == len(keys):  # as a rule: it has to be quick
            return [(held[0], lying, slice(None))]
        if (keys < 0).any():
            raise KeyError(f"rows {own[keys < 0].tolist()} were removed")
        of_chunks = [(chunk, np.flatnonzero(keys == chunk.key)) for chunk in self._chunks]
        return [(chunk, lying[at], at) for chunk, at in of_chunks if len(at)]

    def groups(self, numbers: Numbers) -> list[tuple[Chunk, Array, Array]]:
        """As `places`, with indices of the device."""
        groups = self.places(numbers)
        if self._device == "cpu":
            return groups
        placed = partial(to_device, device=self._device)
        return [
            (chunk, placed(lying), at if isinstance(at, slice) else placed(at))
            for chunk, lying, at in groups
        ]

    def trim(self, eager: bool = True) -> int:
        """Move rows together, and give back chunks that are not needed; returns their bytes.

        Unless `eager`, free rows stay, as many as the largest chunk has: a chunk that was just
        taken for rows to come would have others moved into it.
        """
        before = self.rows
        spare = before - len(self)
        if not eager and len(self):
            spare -= max(chunk.rows for chunk in self._chunks)
        for chunk in sorted(self._chunks, key=lambda candidate: candidate.used):
            if chunk.rows <= spare:
                spare -= chunk.rows
                self._chunks.remove(chunk)
                self._move(chunk)
        return (before - self.rows) * self.row_bytes

    def _next_rows(self) -> int:
        first = max(FIRST_ROWS, FIRST_BYTES // self.row_bytes, self._expected)
        return min(self._most, max(first, self.rows))

    def _move(self, chunk: Chunk) -> None:
        """Move what is in a chunk that is to go into free rows of others."""
        moved = np.flatnonzero(self._keys == chunk.key)
        if not len(moved):
            return
        arrays = [own[self._lying[moved]] for own in chunk.arrays]
        for number in moved.tolist():
            self._put(number)
        self.write(moved, arrays)

    def _gathered(
        self, groups: list[tuple[Chunk, Array, Array]], array: int, lines: slice = slice(None)
    ) -> Array:
        """Lines of one of the arrays, of the rows that groups of `groups` are of."""
        parts = [chunk.arrays[array][rows, lines] for chunk, rows, _ in groups]
        if len(parts) == 1:
            return parts[0]
        gathered = _room((sum(map(len, parts)), *parts[0].shape[1:]), self._device)
        for part, (_, _, at) in zip(parts, groups, strict=True):
            gathered[at] = part
        return gathered


def _room(shape: tuple[int, ...], device: str) -> Array:
    if device == "cpu":
        return np.empty(shape)
    return torch.empty(shape, dtype=torch.float64, device=device)
