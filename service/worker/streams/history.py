"""What a stream retains of its observations: a list of rows in the store, its tail."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

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
from service.wire.stored_records import Floats, Part, begin_of, decoded_row

# Stands for every dict of a stream that has no entry: most have none, and an empty one of its own
# takes 64 bytes. It cannot be written to by mistake.
NOTHING: Any = MappingProxyType({})
NO_LABELS: Floats = np.empty((0, 0))
KEPT_BYTES = 16 << 20  # of labels of a worker: all that 1,000 streams are searched in
FEW = 4  # rows in a block, of a tail whose last blocks are read by their number


class LastRows(NamedTuple):
    """The last rows of a stream.

    span: of those that are stored, of which no others count than those before `begin`. new: those
    from there on.
    """

    span: Span
    begin: int
    new: list[Record | bytes]


class Tail:
    """Observations of a stream that the next commit writes; those before them are in the store.

    new: by position, up to the stream's own, rows, and records, which are encoded when their
    answers are complete. stored: position after the last row in the store; new rows may stand for
    stored ones. thin: rows in each block that was read last, and written since, where these are
    few; 0: many, or not known.
    unchanged: position up to which labels are as `KeptLabels` has them.
    """

    __slots__ = ("new", "partition", "place", "stored", "stream", "thin", "unchanged")

    def __init__(self, partition: int, stream: str) -> None:
        self.partition = partition
        self.stream = stream
        self.place = wire.place_of("tail", stream)
        self.clear()

    def clear(self) -> None:
        """Have nothing that is new, and nothing in the store."""
        self.new: dict[int, Record | bytes] = NOTHING
        self.stored = 0
        self.thin = 0
        self.unchanged = 0

    def put(self, record: Record) -> None:
        """Keep a record that is new or was changed."""
        self.unchanged = min(self.unchanged, record.seq)
        if self.new:
            self.new[record.seq] = record
        else:
            self.new = {record.seq: record}

    def put_rows(self, first: int, rows: Sequence[bytes | Record]) -> None:
        """Keep encoded records from position `first` on."""
        if not self.new:
            self.new = {}
        self.new.update(enumerate(rows, first))

    def take_back(self, seq: int) -> None:
        """Forget a record that was kept since the last commit."""
        # A new dict: one that entries were taken from keeps their memory.
        self.new = {at: new for at, new in self.new.items() if at != seq} or NOTHING

    # --- reading --------------------------------------------------------------------------------

    def last(self, first: int, end: int, slept: Sequence[Record | bytes] = ()) -> LastRows:
        """Those of positions from `first` to before `end`, that of the stream.

        slept: the last of them, which the stream slept through since the last commit.
        """
        awake = end - len(slept)
        begin = min(self.new, default=awake)
        new = list(map(self.new.__getitem__, range(max(first, begin), awake)))
        new += slept[max(first - awake, 0) :]
        # Commits that a stream sleeps through move its tail on: see `parted`.
        stored = self.stored if self.new else awake
        return LastRows(Span(self.partition, self.stream, first, stored, self.thin), begin, new)

    def retained(self, head: Head, store: Store, most: int) -> list[Record]:
        """The last `most` records that are retained; ascending.

        Raises UnreadablePart where one of them cannot be read, or is gone.
        """
        first = max(head.retained_from, head.seq - most)
        last = self.last(first, head.seq)
        (stored,) = store.tails([last.span])
        rows = stored_records.singly(self._parts(last, stored))
        with reading("tail", self.stream):
            return [decoded_row(seq, row) for seq, row in enumerate(rows, first)]

    def recent(self, head: Head) -> list[Record]:
        """Records that no commit has written; ascending."""
        first = min(self.new, default=head.seq)
        return [decoded_row(seq, self.new[seq]) for seq in range(first, head.seq)]

    def labels(self, last: LastRows, stored: Sequence[bytes], outputs: int) -> SeenLabels:
        """Labels of the last rows; raises UnreadablePart as `retained` does.

        stored: the blocks of their span. outputs: numbers of a label.
        """

        def moment(number: int) -> tuple[str | None, int | None]:
            row = stored_records.singly(self._parts(last, stored))[number]
            with reading("tail", self.stream):
                record = decoded_row(last.span.first + number, row)
            return record.time, record.accepted_ms

        usual = self._usual_labels(last, stored) if outputs == 1 else None
        parts: list[Part] = [last.new] if usual else self._parts(last, stored)
        with reading("tail", self.stream):
            y, offset = stored_records.labels_of(parts, outputs)
        if usual:
            y = np.concatenate((usual[0], y))
            offset = np.concatenate((usual[1], offset))
        return SeenLabels(y, offset, moment)

    def _usual_labels(
        self, last: LastRows, stored: Sequence[bytes]
    ) -> tuple[Floats, Floats] | None:
        """Labels and seasons of those in blocks; None where others are among them."""
        from model_core.compiled import checksums  # numba: half a second

        first = last.span.first
        with reading("tail", self.stream):
            usual = stored_records.usual_labels(
                self.place, stored, first, last.begin, checksums.find_columns
            )
        if usual:
            self._learn(last.span, stored)
        return usual

    def _learn(self, span: Span, stored: Sequence[bytes]) -> None:
        """Note how many rows the blocks of a span have."""
        rows = span.end - begin_of(stored[0])
        if rows >= BLOCK:
            each = rows // len(stored)
            self.thin = each if each <= FEW else 0

    def _parts(self, last: LastRows, stored: Sequence[bytes]) -> list[Part]:
        """The last rows, of blocks and of what is new."""
        from model_core.compiled import checksums  # numba: half a second

        first = last.span.first
        begin = last.begin
        parts: list[Part] = []
        if first < begin:
            at, parts = rows_of(self.stream, stored, first, begin, checksums.of_rows)
            if at > first or at + sum(map(len, parts)) < begin:
                raise UnreadablePart(
                    f"observations {first}-{begin - 1} of {self.stream!r} are missing"
                )
            self._learn(last.span, stored)
        return [*parts, last.new] if last.new else parts

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
        new = map(self.new.__getitem__, seqs)  # nearly all are rows: without a call for each
        rows = [row if type(row) is bytes else encoded_row(row) for row in new]
        effects: list[Effect] = []
        if first < self.stored:
            effects.append(("CUT", key, first))
        effects.append(("RPUSH", key, *blocks(self.place, first, rows)))
        self.stored = end
        self.thin = min(self.thin, len(rows)) if len(rows) <= FEW else 0
        self.new = NOTHING
        return effects


class KeptLabels:
    """Labels of streams as they were looked at last, so that only those since are read again.

    Of as many streams as they leave room for: those that were looked at last.
    """

    def __init__(self) -> None:
        self._labels: dict[Tail, tuple[int, Floats]] = {}  # position of the first, and (N, d)
        self._bytes = 0

    def take(self, tail: Tail, first: int) -> Floats:
        """Labels from position `first` on, as far as they are known; they are forgotten."""
        begin, y = self.forget(tail)
        return y[first - begin : max(tail.unchanged - begin, 0)] if first >= begin else NO_LABELS

    def forget(self, tail: Tail) -> tuple[int, Floats]:
        """Give back the memory of a stream's labels; returns position of the first, and those."""
        kept = self._labels.pop(tail, (0, NO_LABELS))
        self._bytes -= kept[1].nbytes
        return kept

    def put(self, tail: Tail, end: int, y: Floats) -> None:
        """Keep the labels up to a position."""
        self._labels[tail] = (end - len(y), y)
        tail.unchanged = end
        self._bytes += y.nbytes
        while self._bytes > KEPT_BYTES:
            self.forget(next(iter(self._labels)))


def encoded_row(row: bytes | Record) -> bytes:
    """A record as a row, which it may be already."""
    return row if isinstance(row, bytes) else wire.encode_row(row)
