"""What a stream retains of its observations: a list of rows in the store, its tail."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from model_core.stream.state import SeenLabels
from service import wire
from service.store import keys
from service.store.log import Effect
from service.store.streams import (
    BLOCK,
    Span,
    Store,
    UnreadablePart,
    blocks,
    reading,
    rows_of,
)
from service.wire import Head, Record, stored_records
from service.wire.stored_records import Part, begin_of, decoded_row

# Stands for every dict of a stream that has no entry: most have none, and an empty one of its own
# takes 64 bytes. It cannot be written to by mistake.
NOTHING: Any = MappingProxyType({})
FEW = 2  # rows in a block, of a tail whose last blocks are read by their number


class Tail:
    """Observations of a stream that the next commit writes; those before them are in the store.

    new: by position, up to the stream's own, rows, and records, which are encoded when their
    answers are complete. stored: position after the last row in the store; new rows may stand for
    stored ones. thin: whether blocks that were read last, and written since, have few rows each.
    """

    __slots__ = ("new", "partition", "place", "stored", "stream", "thin")

    def __init__(self, partition: int, stream: str) -> None:
        self.partition = partition
        self.stream = stream
        self.place = wire.place_of("tail", stream)
        self.clear()

    def clear(self) -> None:
        """Have nothing that is new, and nothing in the store."""
        self.new: dict[int, Record | bytes] = NOTHING
        self.stored = 0
        self.thin = False

    def put(self, record: Record) -> None:
        """Keep a record that is new or was changed."""
        if self.new:
            self.new[record.seq] = record
        else:
            self.new = {record.seq: record}

    def put_rows(self, first: int, rows: Sequence[bytes]) -> None:
        """Keep encoded records from position `first` on."""
        if not self.new:
            self.new = {}
        self.new.update(enumerate(rows, first))

    def take_back(self, seq: int) -> None:
        """Forget a record that was kept since the last commit."""
        # A new dict: one that entries were taken from keeps their memory.
        self.new = {at: new for at, new in self.new.items() if at != seq} or NOTHING

    # --- reading --------------------------------------------------------------------------------

    def missing(self, head: Head, most: int) -> Span:
        """The span of those of the last `most` records that are stored."""
        return Span(self.partition, self.stream, _first(head, most), self.stored, self.thin)

    def retained(self, head: Head, store: Store, most: int) -> list[Record]:
        """The last `most` records that are retained; ascending.

        Raises UnreadablePart where one of them cannot be read, or is gone.
        """
        (stored,) = store.tails([self.missing(head, most)])
        rows = stored_records.singly(self._parts(head, stored, most))
        with reading("tail", self.stream):
            return [decoded_row(seq, row) for seq, row in enumerate(rows, _first(head, most))]

    def recent(self, head: Head) -> list[Record]:
        """Records that no commit has written; ascending."""
        first = min(self.new, default=head.seq)
        return [decoded_row(seq, self.new[seq]) for seq in range(first, head.seq)]

    def labels(self, head: Head, stored: Sequence[bytes], most: int) -> SeenLabels:
        """Labels of the last `most` records at most; raises UnreadablePart as `retained` does.

        stored: the blocks that are `missing`.
        """
        parts = self._parts(head, stored, most)
        first = _first(head, most)

        def moment(number: int) -> tuple[str | None, int | None]:
            with reading("tail", self.stream):
                record = decoded_row(first + number, stored_records.singly(parts)[number])
            return record.time, record.accepted_ms

        with reading("tail", self.stream):
            return SeenLabels(*stored_records.labels_of(parts, head.y_dim or 1), moment)

    def _parts(self, head: Head, stored: Sequence[bytes], most: int) -> list[Part]:
        """The last rows, of blocks and of what is new."""
        from model_core.compiled import checksums  # numba: half a second

        first = _first(head, most)
        begin = min(self.new, default=head.seq)
        parts: list[Part] = []
        if first < begin:
            at, parts = rows_of(self.stream, stored, first, begin, checksums.of_rows)
            if at > first or at + sum(map(len, parts)) < begin:
                raise UnreadablePart(
                    f"observations {first}-{begin - 1} of {self.stream!r} are missing"
                )
            rows = self.stored - begin_of(stored[0])
            if rows >= BLOCK:
                self.thin = rows <= FEW * len(stored)
        new = list(map(self.new.__getitem__, range(max(first, begin), head.seq)))
        return [*parts, new] if new else parts

    # --- writing --------------------------------------------------------------------------------

    def effects(self) -> list[Effect]:
        """Effects that store what is new; answers are complete by now, and nothing is new then."""
        if not self.new:
            return []
        key = keys.tail(self.partition, self.stream)
        seqs = sorted(self.new)  # those that are corrected may come before others
        first = seqs[0]
        end = seqs[-1] + 1
        if end - first != len(seqs):
            raise AssertionError(f"{len(seqs)} records at seqs {first}-{end - 1}")
        rows = [encoded_row(self.new[seq]) for seq in seqs]
        effects: list[Effect] = []
        if first < self.stored:
            effects.append(("CUT", key, first))
        effects.append(("RPUSH", key, *blocks(self.place, first, rows)))
        self.stored = end
        self.thin = self.thin and len(rows) <= FEW
        self.new = NOTHING
        return effects


def _first(head: Head, most: int) -> int:
    """Position of the first of the last `most` records, or of the first that is retained."""
    return max(head.retained_from, head.seq - most)


def encoded_row(row: bytes | Record) -> bytes:
    """A record as a row, which it may be already."""
    return row if isinstance(row, bytes) else wire.encode_row(row)
