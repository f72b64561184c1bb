"""What a stream retains of its observations: a list of rows in the store, its tail."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from model_core.stream.state import SeenLabels
from service import wire
from service.store import keys
from service.store.log import Effect
from service.store.streams import Store, UnreadablePart, blocks, reading, rows_of
from service.wire import Head, Record, stored_records

# Stands for every dict of a stream that has no entry: most have none, and an empty one of its own
# takes 64 bytes. It cannot be written to by mistake.
NOTHING: Any = MappingProxyType({})


class Tail:
    """Observations of a stream that the next commit writes; those before them are in the store.

    new: by position, up to the stream's own, rows, and records, which are encoded when their
    answers are complete. stored: position after the last row in the store; new rows may stand for
    stored ones.
    """

    __slots__ = ("new", "partition", "place", "stored", "stream")

    def __init__(self, partition: int, stream: str) -> None:
        self.partition = partition
        self.stream = stream
        self.place = wire.place_of("tail", stream)
        self.clear()

    def clear(self) -> None:
        """Have nothing that is new, and nothing in the store."""
        self.new: dict[int, Record | bytes] = NOTHING
        self.stored = 0

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

    def missing(self, head: Head, most: int) -> tuple[int, str, int, int]:
        """The span of those of the last `most` records that are stored, as of `Store.tails`."""
        return self.partition, self.stream, _first(head, most), self.stored

    def retained(self, head: Head, store: Store, most: int) -> list[Record]:
        """The last `most` records that are retained; ascending.

        Raises UnreadablePart where one of them cannot be read, or is gone.
        """
        (stored,) = store.tails([self.missing(head, most)])
        first = _first(head, most)
        rows = self._rows(head, stored, first)
        with reading("tail", self.stream):
            return [decoded_row(seq, row) for seq, row in enumerate(rows, first)]

    def recent(self, head: Head) -> list[Record]:
        """Records that no commit has written; ascending."""
        first = min(self.new, default=head.seq)
        return [decoded_row(seq, self.new[seq]) for seq in range(first, head.seq)]

    def labels(self, head: Head, stored: Sequence[bytes], most: int) -> SeenLabels:
        """Labels of the last `most` records at most; raises UnreadablePart as `retained` does.

        stored: the blocks that are `missing`.
        """
        rows = self._rows(head, stored, _first(head, most))
        encoded = list(map(encoded_row, rows))
        with reading("tail", self.stream):
            return stored_records.labels_of(encoded, head.y_dim or 1)

    def _rows(self, head: Head, stored: Sequence[bytes], first: int) -> list[bytes | Record]:
        """Rows from position `first` on, of blocks and of what is new."""
        begin = min(self.new, default=head.seq)
        rows: list[bytes | Record] = []
        if first < begin:
            at, known = rows_of(self.stream, stored, first)
            if at > first or at + len(known) < begin:
                raise UnreadablePart(
                    f"observations {first}-{begin - 1} of {self.stream!r} are missing"
                )
            rows += known[first - at : begin - at]
        rows += map(self.new.__getitem__, range(max(first, begin), head.seq))
        return rows

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
        self.new = NOTHING
        return effects


def _first(head: Head, most: int) -> int:
    """Position of the first of the last `most` records, or of the first that is retained."""
    return max(head.retained_from, head.seq - most)


def decoded_row(seq: int, row: bytes | Record) -> Record:
    """The record at a position, which may be encoded."""
    return wire.decode_row(seq, row) if isinstance(row, bytes) else row


def encoded_row(row: bytes | Record) -> bytes:
    """A record as a row, which it may be already."""
    return row if isinstance(row, bytes) else wire.encode_row(row)
