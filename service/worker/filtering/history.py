"""Retained history of a stream: sealed chunks, and what is in none yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from service.store.streams import CHUNK, Store, UnreadablePart, unseal, unseal_labels
from service.wire import Label, Labelled, Record
from service.worker.streams.stream import Stream

R = TypeVar("R", Record, Labelled)
Unseal = Callable[[str, int, bytes], Sequence[R]]


def retained(stream: Stream, store: Store, most: int) -> list[Record]:
    """The last `most` records, and those before them in the same chunk; ascending.

    Raises UnreadablePart where one of them cannot be read, or is gone.
    """
    recent, sealing = stream.recent()
    return _last(stream, store, most, unseal, recent, sealing)


def labels(stream: Stream, store: Store, most: int) -> list[Label]:
    """Labels of the last `most` records at most; raises UnreadablePart as `retained` does."""
    recent, sealing = stream.recent()
    loose = {seq: Labelled(seq, record.y) for seq, record in recent.items()}
    labelled = _last(stream, store, most, unseal_labels, loose, sealing)
    return [record.y for record in labelled[max(0, len(labelled) - most) :]]


def _last(
    stream: Stream,
    store: Store,
    most: int,
    unseal: Unseal[R],
    recent: Mapping[int, R],
    sealing: Mapping[int, bytes],
) -> list[R]:
    """Records or their labels as `retained`; recent: in no chunk yet. sealing: chunks likewise."""
    head = stream.live()
    phase = stream.phase
    first = max(0, head.seq - min(head.settings.history, most))
    wanted = range((first + phase) // CHUNK, (head.sealed - 1 + phase) // CHUNK + 1)
    missing = [number for number in wanted if number not in sealing]
    stored = dict(zip(missing, store.chunks(stream.partition, stream.name, missing), strict=True))
    for number, blob in stored.items():
        if blob is None and head.oldest <= number < (head.sealed + phase) // CHUNK:
            raise UnreadablePart(f"chunk {number} of {stream.name!r} is missing")
    blobs = {number: blob for number, blob in stored.items() if blob is not None} | dict(sealing)
    chunks = [unseal(stream.name, number, blob) for number, blob in blobs.items()]
    records = {record.seq: record for chunk in chunks for record in chunk} | dict(recent)
    newest_first: list[R] = []
    for seq in range(head.seq - 1, max(0, wanted.start * CHUNK - phase) - 1, -1):
        if seq not in records:
            # Of the oldest chunk the first may never have been here: those of an imported stream.
            if (seq + phase) // CHUNK > head.oldest or min(records, default=seq) < seq:
                raise UnreadablePart(f"observation {seq} of {stream.name!r} is missing")
            break
        newest_first.append(records[seq])
    return newest_first[::-1]
