"""What a stream retains of its observations: its tail, and the chunks that are sealed from it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np

from model_core.stream.state import SeenLabels
from service import wire
from service.store import keys
from service.store.log import Effect
from service.store.streams import (
    CHUNK,
    Store,
    UnreadablePart,
    blocks,
    decoded,
    phase_of,
    reading,
    seal,
    unseal_columns,
)
from service.wire import Head, Record, stored_records
from service.wire.stored_records import Part

ENTRY_BYTES = 110  # about, of an entry beside its own bytes
# Stands for every dict of a stream that has no entry: most have none, and an empty one of its own
# takes 64 bytes. It cannot be written to by mistake.
NOTHING: Any = MappingProxyType({})
# Three quarters of a record's memory.
PREDICTIVE = ("mean", "variance", "quantiles", "probabilities")


class Tail:
    """Observations of a stream that are in no chunk yet, or not in its last checkpoint.

    rows: encoded, of positions from `start` on. new: records since the last commit, by position;
    they are encoded when their answers are complete, rows are already. stored: the first rows,
    which are in the store; relaid: whether the next commit writes all of them anew. sealing: chunks
    that the last commit may be writing, by number.
    """

    __slots__ = (
        "new", "partition", "phase", "place", "relaid", "rows", "sealing", "start", "stored",
        "stream",
    )  # fmt: skip

    def __init__(self, partition: int, stream: str) -> None:
        self.partition = partition
        self.stream = stream
        self.phase = phase_of(stream)  # of its checkpoints and chunks
        self.place = wire.place_of("tail", stream)
        self.keep(0, [])

    def keep(self, start: int, rows: list[bytes]) -> None:
        """Have these rows from position `start` on, none of which is stored, and no record."""
        self.start = start
        self.rows = rows
        self.new: dict[int, Record | bytes] = NOTHING
        self.stored = 0
        self.relaid = False
        self.sealing: dict[int, bytes] = NOTHING

    def read(self, stored: Sequence[bytes]) -> None:
        """Take stored blocks over; raises UnreadablePart."""
        for blob in stored:
            first, block = decoded(stored_records.split_block, blob, "tail", self.stream)
            if not self.rows:
                self.start = first
            if first != self.end:
                raise UnreadablePart(f"its tail goes on at seq {first}, expected {self.end}")
            self.rows += block
            self.stored += len(block)

    @property
    def end(self) -> int:
        """Position after the last row."""
        return self.start + len(self.rows)

    @property
    def nbytes(self) -> int:
        """About what it takes in memory."""
        return _bytes_of(self.rows) + _bytes_of(self.sealing.values())

    def put(self, record: Record) -> None:
        """Keep a record that is new or was changed."""
        if self.new:
            self.new[record.seq] = record
        else:
            self.new = {record.seq: record}

    def take_back(self, seq: int) -> None:
        """Forget a record that was kept since the last commit."""
        # A new dict: one that entries were taken from keeps their memory.
        self.new = {at: new for at, new in self.new.items() if at != seq} or NOTHING

    def relay(self, head: Head, records: Sequence[Record]) -> None:
        """Have the last records written anew, in chunks and tail; the first begins a chunk.

        Those before them that are in no chunk yet, as of a long batch, stay as they are.
        """
        first = records[0].seq if records else head.seq
        head.sealed = min(head.sealed, first)
        del self.rows[max(0, first - self.start) :]
        self.relaid = True
        for record in records:
            self.put(record)

    def restore(self, records: Sequence[Record]) -> None:
        """Give records of a warm-up the predictives back that were committed with them."""
        committed = {record.seq: record for record in self.records(0)}
        for record in records:
            if record.seq in committed and record.seq not in self.new:
                for part in PREDICTIVE:
                    setattr(record, part, getattr(committed[record.seq], part))

    # --- reading --------------------------------------------------------------------------------

    def records(self, first: int) -> list[Record]:
        """Decode the rows from position `first` on."""
        begin = max(first, self.start)
        return [
            wire.decode_row(seq, row)
            for seq, row in enumerate(self.rows[begin - self.start :], begin)
        ]

    def recent(self) -> dict[int, Record]:
        """Records that are in no chunk yet, by position."""
        records = {record.seq: record for record in self.records(0)}
        for seq, new in self.new.items():
            records[seq] = wire.decode_row(seq, new) if isinstance(new, bytes) else new
        return records

    def retained(self, head: Head, store: Store, most: int) -> list[Record]:
        """The last `most` records, and those before them in the same chunk; ascending.

        Raises UnreadablePart where one of them cannot be read, or is gone.
        """
        (stored,) = store.chunks([self.missing(head, most)])
        parts = self._last(head, stored, most, 0)
        with reading("history", self.stream):
            rows = [*chain.from_iterable(map(stored_records.listed, parts))]
            return [
                wire.decode_row(seq, row) if isinstance(row, bytes) else row
                for seq, row in enumerate(rows, head.seq - len(rows))
            ]

    def labels(self, head: Head, stored: Sequence[bytes | None], most: int) -> SeenLabels:
        """Labels of the last `most` records at most; raises UnreadablePart as `retained` does.

        stored: the chunks that are `missing`.
        """
        parts = self._last(head, stored, most, head.seq - most)
        with reading("history", self.stream):
            return stored_records.labels_of(parts, head.y_dim or 1)

    def missing(self, head: Head, most: int) -> tuple[int, str, list[int]]:
        """Chunks of the last `most` records that are not here, as `Store.chunks` reads them."""
        wanted = self._chunks(head, most)
        return self.partition, self.stream, [n for n in wanted if n not in self.sealing]

    def _chunks(self, head: Head, most: int) -> range:
        phase = self.phase
        first = max(head.retained_from, head.seq - most)
        sealed = (head.sealed - 1 + phase) // CHUNK + 1 if head.sealed else 0
        return range((first + phase) // CHUNK, sealed)

    def _last(
        self, head: Head, stored: Sequence[bytes | None], most: int, first: int
    ) -> list[Part]:
        """Rows as of `retained`, but none before position `first`; some may not be encoded yet."""
        phase = self.phase
        first = max(first, self._chunks(head, most).start * CHUNK - phase, 0)
        known = self._parts(head, stored, most, first)
        newest_first: list[Part] = []
        end = head.seq
        while known and first < end:
            begin, stop, part = known.pop()
            if stop < end:
                raise UnreadablePart(f"observation {end - 1} of {self.stream!r} is missing")
            lowest = max(begin, first)
            if lowest < end:
                places = slice(lowest - begin, end - begin)
                newest_first.append(
                    part[:, places] if isinstance(part, np.ndarray) else part[places]
                )
                end = lowest
        # Of the oldest chunk the first may never have been here: those of an imported stream.
        if first < end and (end - 1 + phase) // CHUNK > head.oldest:
            raise UnreadablePart(f"observation {end - 1} of {self.stream!r} is missing")
        return newest_first[::-1]

    def _parts(
        self, head: Head, stored: Sequence[bytes | None], most: int, first: int
    ) -> list[tuple[int, int, Part]]:
        """Rows in chunks, and those that are in none, each from a position to before another.

        Chunks of the last `most` records, and others from position `first` on.
        """
        phase = self.phase
        wanted = self._chunks(head, most)
        blobs = {number: blob for number, blob in self.sealing.items() if number in wanted}
        for number, blob in zip(self.missing(head, most)[2], stored, strict=True):
            if blob is not None:
                blobs[number] = blob
            elif head.oldest <= number < (head.sealed + phase) // CHUNK:
                raise UnreadablePart(f"chunk {number} of {self.stream!r} is missing")
        known: list[tuple[int, int, Part]] = []
        for number, blob in sorted(blobs.items()):
            begin, runs = unseal_columns(self.stream, number, blob)
            for run in runs:
                known.append((begin, begin + run.shape[1], run))
                begin += run.shape[1]
        start = self.start if self.rows else min(self.new, default=head.seq)
        begin = max(first, start)
        recent: list[bytes | Record] = [*self.rows[begin - start :]]
        for seq in range(begin, head.seq):
            if seq in self.new:
                recent[seq - begin : seq - begin + 1] = [self.new[seq]]
        known.append((begin, begin + len(recent), recent))
        return known

    # --- writing --------------------------------------------------------------------------------

    def encode(self, waiting: bool) -> None:
        """Take what is new into the rows: answers are complete by now.

        waiting: the records stay in the buffer of a warm-up, but for their predictives, which the
        rows alone have from here on: see `restore`.
        """
        for seq in sorted(self.new):  # those that are corrected may come before others
            new = self.new[seq]
            row = new if isinstance(new, bytes) else wire.encode_row(new)
            if waiting and not isinstance(new, bytes):
                for part in PREDICTIVE:
                    setattr(new, part, None)
            if not self.rows:
                self.start = seq
            at = seq - self.start
            if at == len(self.rows):
                self.rows.append(row)
                continue
            if not 0 <= at < len(self.rows):
                raise AssertionError(f"a record at seq {seq}, beside a tail to {self.end}")
            self.rows[at] = row
            self.relaid = True
        self.new = NOTHING

    def seal(self, head: Head) -> list[Effect]:
        """Seal complete chunks, drop those past the retained history, trim the rows.

        Of a stream in its warm-up none is complete. Returns the effects, but for those of `write`.
        """
        if not head.warm:
            return []
        phase = self.phase
        key = keys.history(self.partition, self.stream)
        effects: list[Effect] = []
        complete = (head.seq + phase) // CHUNK
        for number in range((head.sealed + phase) // CHUNK, complete):
            end = (number + 1) * CHUNK - phase
            part = self.rows[head.sealed - self.start : end - self.start]
            blob = seal(self.stream, number, head.sealed, part)
            self.sealing = {**self.sealing, number: blob}
            effects.append(("HSET", key, str(number), blob))
            head.sealed = end
        oldest = min((head.retained_from + phase) // CHUNK, complete)
        if head.oldest < oldest:
            effects.append(("HDEL", key, *map(str, range(head.oldest, oldest))))
            head.oldest = oldest
        end = min(head.sealed, head.checkpoint)
        if self.start < end and self.rows:
            self.relaid = self.relaid or self.stored > 0
            self.rows = self.rows[end - self.start :]
            self.start = end
        return effects

    def write(self) -> list[Effect]:
        """Effects that store the rows that are not yet; all of them where it was laid anew."""
        key = keys.tail(self.partition, self.stream)
        effects: list[Effect] = []
        if self.relaid:
            effects.append(("UNLINK", key))
            self.stored = 0
            self.relaid = False
        if self.stored < len(self.rows):
            new = blocks(self.place, self.start + self.stored, self.rows[self.stored :])
            effects.append(("RPUSH", key, *new))
            self.stored = len(self.rows)
        return effects


def _bytes_of(parts: Collection[bytes]) -> int:
    """About what encoded parts take in memory."""
    return sum(map(len, parts)) + ENTRY_BYTES * len(parts)
