"""Rows of numbers in chunks: growing copies nothing, and chunks that are not needed go."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from model_core.lazy import torch
from model_core.transfer import to_device

Array = Any  # of float64: an array on the host, a tensor on another device; they index alike
Shapes = Sequence[tuple[int, ...]]
# Of the first chunk, the larger; each later one doubles what there is, up to a bound. Most slabs
# have one: steps of rows in several cost more.
FIRST_ROWS = 16
FIRST_BYTES = 4 << 20


class Chunk:
    """Memory of a fixed number of rows, and which of them are free."""

    def __init__(self, shapes: Shapes, rows: int, device: str) -> None:
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
        self._places: dict[int, tuple[Chunk, int]] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._places)

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
            self._chunks.append(Chunk(self._shapes, self._next_rows(), self._device))
        # Into the fullest, so that others empty.
        chunk = max(
            (candidate for candidate in self._chunks if candidate.free),
            key=lambda candidate: candidate.used,
        )
        number = self._next
        self._next += 1
        self._places[number] = chunk, chunk.free.pop()
        return number

    def remove(self, number: int) -> None:
        """Forget a row."""
        chunk, row = self._places.pop(number)
        chunk.free.append(row)

    def read(self, numbers: Sequence[int]) -> list[Array]:
        """Rows as they are numbered, copied."""
        groups = self.groups(numbers)
        return [self._gathered(groups, i) for i in range(len(self._shapes))]

    def lines(self, numbers: Sequence[int], count: int) -> Array:
        """The first lines (B, count, ...) of the first array of rows, copied."""
        return self._gathered(self.groups(numbers), 0, slice(count))

    def write(self, numbers: Sequence[int], arrays: Sequence[Array]) -> None:
        """Put rows in place of distinct ones; arrays: on the device, as `read` returns them."""
        for chunk, rows, at in self.groups(numbers):
            for own, array in zip(chunk.arrays, arrays, strict=True):
                own[rows] = array[at]

    def places(self, numbers: Sequence[int]) -> list[tuple[Chunk, list[int], list[int]]]:
        """Chunks that hold them, with their rows there and which of `numbers` these are."""
        groups: dict[int, tuple[Chunk, list[int], list[int]]] = {}
        for place, number in enumerate(numbers):
            chunk, row = self._places[number]
            _, rows, places = groups.setdefault(id(chunk), (chunk, [], []))
            rows.append(row)
            places.append(place)
        return list(groups.values())

    def groups(self, numbers: Sequence[int]) -> list[tuple[Chunk, Array, Array]]:
        """Chunks that hold them, with their rows there and which of `numbers` these are."""
        first, lying = self._places[numbers[0]]
        if numbers.count(numbers[0]) == len(numbers):  # as of one series
            return [(first, self._index([lying] * len(numbers)), slice(None))]
        rows = [row for chunk, row in map(self._places.__getitem__, numbers) if chunk is first]
        if len(rows) == len(numbers):  # as a rule: it has to be quick
            return [(first, self._index(rows), slice(None))]
        groups = self.places(numbers)
        return [(chunk, self._index(lying), self._index(at)) for chunk, lying, at in groups]

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
        moved = [number for number, (place, _) in self._places.items() if place is chunk]
        if not moved:
            return
        arrays = self.read(moved)
        for number in moved:
            other = next(candidate for candidate in self._chunks if candidate.free)
            self._places[number] = other, other.free.pop()
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

    def _index(self, rows: list[int]) -> Array:
        places = np.array(rows, dtype=np.int64)
        return places if self._device == "cpu" else to_device(places, self._device)


def _room(shape: tuple[int, ...], device: str) -> Array:
    if device == "cpu":
        return np.empty(shape)
    return torch.empty(shape, dtype=torch.float64, device=device)
