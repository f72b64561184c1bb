"""Retained history of a stream: sealed chunks, and what is in none yet."""

from __future__ import annotations

from service.store.worker_reads import CHUNK, CorruptState, Store, unseal
from service.wire import Record
from service.worker.streams.stream import Stream


def retained(stream: Stream, store: Store, most: int, gaps: bool = False) -> list[Record]:
    """The last `most` records, and those before them in the same chunk; ascending.

    Raises CorruptState where one of them cannot be read, or is gone. With `gaps` they begin after
    the last such one instead.
    """
    head, phase = stream.live(), stream.phase
    recent, sealing = stream.recent()
    first = max(0, head.seq - min(head.settings.history, most))
    wanted = range((first + phase) // CHUNK, (head.sealed - 1 + phase) // CHUNK + 1)
    missing = [number for number in wanted if number not in sealing]
    stored = dict(zip(missing, store.chunks(stream.partition, stream.name, missing), strict=True))
    for number, blob in stored.items():
        if blob is None and not gaps and head.oldest <= number < (head.sealed + phase) // CHUNK:
            raise CorruptState(f"chunk {number} of {stream.name!r} is missing")
    blobs = {number: blob for number, blob in (stored | sealing).items() if blob is not None}
    chunks = [_unsealed(stream.name, number, blob, gaps) for number, blob in blobs.items()]
    records = {record.seq: record for chunk in chunks for record in chunk} | recent
    found: list[Record] = []
    for seq in range(head.seq - 1, max(0, wanted.start * CHUNK - phase) - 1, -1):
        if seq not in records:
            # Of the oldest chunk the first may never have been here: those of an imported stream.
            within = (seq + phase) // CHUNK > head.oldest or min(records, default=seq) < seq
            if within and not gaps:
                raise CorruptState(f"observation {seq} of {stream.name!r} is missing")
            break
        found.append(records[seq])
    return found[::-1]


def _unsealed(name: str, number: int, blob: bytes, gaps: bool) -> list[Record]:
    try:
        return unseal(name, number, blob)
    except CorruptState:
        if not gaps:
            raise
        return []
