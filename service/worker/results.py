"""Outcomes on their way to the API processes that wait for them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

import msgspec

from service import wire
from service.store import keys
from service.store.log import Effect, Lease
from service.store.shards import Argument
from service.wire import Outcome

FIRST = "1-1"
PIECE_BYTES = 64 << 10  # of outcomes that are published together, but for a longer one
Outcomes = dict[str, list[Outcome]]  # of the commands of each API process, by incarnation


class _Piece(NamedTuple):
    """Outcomes that are kept: their number, size, and when they may go."""

    number: int
    size: int
    end_s: float


class _Process:
    """Pieces for one API process that are still in the store, oldest first."""

    def __init__(self, partition: int, incarnation: str) -> None:
        self.key = keys.results(partition, incarnation)
        self.place = wire.place_of("results", incarnation)  # as far as all its pieces have it
        self.number = 0  # of the last piece
        self.size = 0
        self.pieces: deque[_Piece] = deque()

    def add(self, size: int, end_s: float) -> None:
        self.size += size
        self.pieces.append(_Piece(self.number, size, end_s))

    def trim(self, least: int, most_bytes: int, now_s: float) -> None:
        """Drop what is too old or too much, but for the `least` newest pieces."""
        while len(self.pieces) > least and (self.pieces[0].end_s < now_s or self.size > most_bytes):
            self.size -= self.pieces.popleft().size


class Results:
    """What the commits under one lease answer to each API process.

    Outcomes are stored once, in pieces, and published as they are stored. Ids are EPOCH-1, EPOCH-2
    and so on: a process sees by them whether it missed a piece.
    """

    def __init__(self, lease: Lease, keep_s: float, most_bytes: int) -> None:
        """Begin with nothing; keep_s, most_bytes: so long and so much is kept for each process."""
        self._lease = lease
        self._keep_s = keep_s
        self._most_bytes = most_bytes
        self._inherited_until_s = time.monotonic() + keep_s  # what earlier leases left may be kept
        self._processes: dict[str, _Process] = {}
        self._look_s = self._inherited_until_s  # when to forget pieces of processes that are silent

    def effects(self, outcomes: Outcomes) -> list[Effect]:
        """Effects that store and publish outcomes; commits have to be made in this order."""
        now_s = time.monotonic()
        if now_s >= self._look_s:
            self._look_s = now_s + self._keep_s
            for process in self._processes.values():  # but their numbers: one may only be idle
                process.trim(0, self._most_bytes, now_s)
        return [self._effect(incarnation, own, now_s) for incarnation, own in outcomes.items()]

    def _effect(self, incarnation: str, outcomes: Sequence[Outcome], now_s: float) -> Effect:
        process = self._processes.get(incarnation)
        if process is None:
            process = _Process(self._lease.partition, incarnation)
            self._processes[incarnation] = process
        epoch = self._lease.epoch
        stored: list[Argument] = []
        bodies = _bodies(outcomes)
        for body in bodies:
            process.number += 1
            id_ = f"{epoch}-{process.number}"
            stored += (id_, wire.checksummed_at(crc32(id_.encode(), process.place), body))
            process.add(len(body), now_s + self._keep_s)
        process.trim(len(bodies), self._most_bytes, now_s)
        number = process.pieces[0].number
        oldest = FIRST if number == 1 and now_s < self._inherited_until_s else f"{epoch}-{number}"
        return ("ANSWER", process.key, int(1000 * self._keep_s), oldest, *stored)


def _bodies(outcomes: Sequence[Outcome]) -> list[bytes]:
    """Encode outcomes in order, in pieces that are no longer than need be."""
    body = wire.encode(outcomes)
    if len(body) <= PIECE_BYTES or len(outcomes) == 1:
        return [body]
    pieces = wire.grouped([wire.encode(outcome) for outcome in outcomes], len, PIECE_BYTES)
    return [wire.encode([msgspec.Raw(outcome) for outcome in piece]) for piece in pieces]
