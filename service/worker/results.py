"""Outcomes on their way to the API processes that wait for them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from service import wire
from service.store import keys
from service.store.log import Effect, Lease
from service.store.shards import Argument
from service.wire import Outcome
from service.wire.event_entries import Id

FIRST = Id(1, 1)
PIECE_BYTES = 64 << 10  # of outcomes that are published together, but for a longer one


class Answered(NamedTuple):
    """What one command of an API process came to."""

    incarnation: str
    outcome: Outcome


class _Piece(NamedTuple):
    """Outcomes that are kept: their id, size, and when they may go."""

    id: Id
    size: int
    end_s: float


class _Process:
    """Pieces for one API process that are still in the store, oldest first."""

    def __init__(self) -> None:
        self.number = 0  # of the last piece
        self.size = 0
        self.pieces: deque[_Piece] = deque()

    def add(self, id_: Id, size: int, end_s: float) -> None:
        self.number = id_.number
        self.size += size
        self.pieces.append(_Piece(id_, size, end_s))

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

    def effects(self, answers: Iterable[Answered]) -> list[Effect]:
        """Effects that store and publish outcomes; commits have to be made in this order."""
        self._forget(time.monotonic())
        outcomes: dict[str, list[bytes]] = {}
        for incarnation, outcome in answers:
            outcomes.setdefault(incarnation, []).append(wire.encode(outcome))
        return [self._effect(incarnation, all_) for incarnation, all_ in outcomes.items()]

    def _forget(self, now_s: float) -> None:
        """Drop what is too old of all processes, but their numbers: one may only be idle."""
        if now_s < self._look_s:
            return
        self._look_s = now_s + self._keep_s
        for process in self._processes.values():
            process.trim(0, self._most_bytes, now_s)

    def _effect(self, incarnation: str, outcomes: Sequence[bytes]) -> Effect:
        process = self._processes.setdefault(incarnation, _Process())
        now_s = time.monotonic()
        stored: list[Argument] = []
        pieces = _pieces(outcomes)
        for piece in pieces:
            id_ = Id(self._lease.epoch, process.number + 1)
            body = wire.encode([msgspec.Raw(outcome) for outcome in piece])
            stored += (str(id_), wire.checksummed(body, "results", incarnation, id_))
            process.add(id_, len(body), now_s + self._keep_s)
        process.trim(len(pieces), self._most_bytes, now_s)
        oldest = process.pieces[0].id
        if oldest.number == 1 and now_s < self._inherited_until_s:
            oldest = FIRST
        key = keys.results(self._lease.partition, incarnation)
        return ("ANSWER", key, int(1000 * self._keep_s), str(oldest), *stored)


def _pieces(outcomes: Iterable[bytes]) -> list[list[bytes]]:
    """Group encoded outcomes, in order, so that no group is longer than need be."""
    pieces: list[list[bytes]] = []
    room = 0
    for outcome in outcomes:
        if len(outcome) > room:
            pieces.append([])
            room = max(PIECE_BYTES, len(outcome))
        pieces[-1].append(outcome)
        room -= len(outcome)
    return pieces
